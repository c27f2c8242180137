//! The sandbox of an errand that is no session's own: that of a session, with a user id that no other sandbox and no
//! account has; and what an errand has until its sandbox is gone.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact};
use crate::sandbox::backend::ErrandEnd;
use crate::sandbox::etc;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::launch::{Launcher, UserSlot};
use crate::sandbox::left_sandboxes::note_user;
use crate::sandbox::spec::{Errand, Limits, SandboxSpec, hardware};
use crate::sandbox::workspace::guest;
use crate::security_controls;

impl Launcher {
    /// The spec, with the kernel of the image, which is compiled now if it is new. The user id is free again when the
    /// slot is dropped, the daemon's folder is gone when the folder is.
    pub(in crate::sandbox) async fn errand_spec(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        (backend, image): (Backend, &ImageFact),
        limits: Limits,
    ) -> Result<(SandboxSpec, Option<UserSlot>, Folder), Problem> {
        let mapping = self.backend(backend).user_mapping().await?;
        let slot = self.service.system.then(|| self.slots.take()).transpose()?;
        let user = guest(self.service, mapping, slot.as_ref().map_or(self.service.uid, |slot| slot.uid));
        let folder = self.errand_folder(sandbox, backend, slot.as_ref())?;
        let mut spec = SandboxSpec {
            sandbox: sandbox.clone(),
            backend,
            instance: self.instance.clone(),
            image: image.clone(),
            runtime: self.settings.sandbox.runtime.clone(),
            user,
            limits,
            workspace: PathBuf::new(),
            workspace_identity: (0, 0),
            bridge_dir: PathBuf::new(),
            kernel_dir: PathBuf::new(),
            packages_dir: PathBuf::new(),
            etc_dir: etc::folder_in(&folder.path),
            hidden: hardware::hidden(),
            env: Environment::new(),
            mounts: Vec::new(),
        };
        spec.kernel_dir = self.kernel_for(&spec).await?;
        Ok((spec, slot, folder))
    }

    /// Makes the daemon's folder of an errand's sandbox. By the note in it the next daemon keeps the user id of a sandbox
    /// that outlived this one.
    pub(in crate::sandbox) fn errand_folder(
        &self,
        sandbox: &SandboxId,
        backend: Backend,
        slot: Option<&UserSlot>,
    ) -> Result<Folder, Problem> {
        let path = self.paths.sandboxes_dir().join(&sandbox.0);
        let failed = |error: std::io::Error| storage_problem(&path, &error);
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let folder = Folder::of(path.clone());
        if let Some(slot) = slot {
            note_user(&folder.path, backend, slot).map_err(failed)?;
        }
        Ok(folder)
    }

    /// Runs an errand, and gives back what it `has` when its sandbox is gone: its user id, its room, its folders. Where the
    /// sandbox cannot be removed, it may still run as that user and write into those folders, so that is when the reaper
    /// has removed it.
    pub(in crate::sandbox) async fn run_errand(
        &self,
        spec: &SandboxSpec,
        folder: &Path,
        errand: &Errand,
        has: impl Send + 'static,
    ) -> Result<(), Problem> {
        let ErrandEnd { outcome, is_left } =
            self.backend(spec.backend).run_errand(spec, folder, errand).await;
        if !is_left {
            self.left_sandboxes.is_gone(&spec.sandbox);
            return outcome;
        }
        if !security_controls::holds("errands_keep_what_they_have") {
            return outcome;
        }
        self.left_sandboxes.add(spec.backend, spec.sandbox.clone(), has);
        let what = "the sandbox of a program could not be removed, and may still run";
        outcome
            .and(Err(Problem::new(Code::SandboxFailed, what).hint("the daemon's log says more; try again")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Paths, load_text};
    use crate::sandbox::backend::fake::FakeBackend;
    use crate::sandbox::spec::tests::spec;
    use crate::sandbox::workspace::Service;

    fn launcher(home: &Path, fake: &FakeBackend) -> Launcher {
        let settings = load_text(&home.join("config.toml"), "").unwrap().settings;
        let paths = Paths::discover(false, &|name| (name == "BELLJAR_HOME").then(|| home.into())).unwrap();
        std::fs::create_dir_all(paths.sandboxes_dir()).unwrap();
        let service = Service { system: false, ..Service::of_this_process() };
        Launcher::new(service, Arc::new(settings), paths, "test".into()).with_processes(fake.clone())
    }

    /// Otherwise a session of another user could get the user id of an installer that runs on.
    #[tokio::test]
    async fn an_errand_that_outlives_its_daemon_keeps_its_user_id_until_its_sandbox_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let fake = FakeBackend::in_this_runtime();
        let before = launcher(home.path(), &fake);
        let slot = before.slots.take().unwrap();
        let sandbox = SandboxId::fresh();
        let folder = before.errand_folder(&sandbox, Backend::Process, Some(&slot)).unwrap();
        // A daemon that is killed drops nothing.
        std::mem::forget(folder);
        let launcher = launcher(home.path(), &fake);
        launcher.keep_left_user_ids();
        assert!(launcher.slots.is_taken(slot.uid) && launcher.is_left(&sandbox.0));
        launcher.reap().await;
        assert!(!launcher.slots.is_taken(slot.uid) && !launcher.is_left(&sandbox.0));
    }

    /// The daemon ended in good order before the reaper could remove the sandbox.
    #[tokio::test]
    async fn what_an_errand_left_is_known_to_the_next_daemon() {
        let home = tempfile::tempdir().unwrap();
        let fake = FakeBackend::in_this_runtime();
        let before = launcher(home.path(), &fake);
        let slot = before.slots.take().unwrap();
        let (uid, sandbox) = (slot.uid, SandboxId::fresh());
        let folder = before.errand_folder(&sandbox, Backend::Process, Some(&slot)).unwrap();
        let spec = SandboxSpec { sandbox, backend: Backend::Process, ..spec() };
        let errand = Errand::compile(&spec.kernel_dir, home.path());
        fake.let_removals_fail(true);
        let path = folder.path.clone();
        before.run_errand(&spec, &path, &errand, (slot, folder)).await.unwrap_err();
        drop(before);
        let launcher = launcher(home.path(), &fake);
        launcher.keep_left_user_ids();
        assert!(launcher.slots.is_taken(uid));
    }

    #[tokio::test]
    async fn what_an_errand_has_is_free_when_its_sandbox_is_gone_and_not_before() {
        let home = tempfile::tempdir().unwrap();
        let fake = FakeBackend::in_this_runtime();
        let launcher = launcher(home.path(), &fake);
        let spec = SandboxSpec { backend: Backend::Process, ..spec() };
        let (user_id, errand) = (Arc::new(()), Errand::compile(&spec.kernel_dir, home.path()));
        let run = || launcher.run_errand(&spec, home.path(), &errand, Arc::clone(&user_id));
        run().await.unwrap();
        assert_eq!(Arc::strong_count(&user_id), 1);
        fake.let_removals_fail(true);
        assert!(run().await.unwrap_err().message.contains("may still run"));
        launcher.reap().await;
        assert_eq!(Arc::strong_count(&user_id), 2);
        fake.let_removals_fail(false);
        launcher.reap().await;
        assert_eq!(Arc::strong_count(&user_id), 1);
    }
}

//! Compiled kernels: one folder for each image that sandboxes run.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::Problem;
use crate::sandbox::etc;
use crate::sandbox::folder::storage_problem;
use crate::sandbox::kernel::files as kernel_files;
use crate::sandbox::launch::{Launcher, UserSlot};
use crate::sandbox::spec::{Errand, GuestUser, Limits, SandboxSpec};
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::{guest, remove_tree};
use crate::security_controls;

/// How the name of a folder begins that is no kernel: one is being made, or removed there.
pub const DRAFT: &str = ".draft-";

/// A folder in which a kernel tree is made. It is removed when this value is dropped, however the work ended.
struct Draft(PathBuf);

impl Draft {
    /// Fails if the folder exists: the remains of another draft are not trusted.
    fn make(path: PathBuf) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "cannot be removed");
        }
    }
}

impl Launcher {
    /// The kernel compiled for the spec's image; compiled now if it is new.
    pub(in crate::sandbox) async fn kernel_for(&self, spec: &SandboxSpec) -> Result<PathBuf, Problem> {
        let known = || self.kernels.lock().get(&spec.image.id).cloned();
        // A sandbox whose kernel is there does not wait for the kernel of another image.
        if let Some(folder) = known() {
            return Ok(folder);
        }
        let _alone = self.compiling.lock().await;
        if let Some(folder) = known() {
            return Ok(folder);
        }
        let parent = self.paths.kernel_dir();
        let target = parent.join(kernel_files::folder_name(&spec.image.id));
        let sound = !security_controls::holds("kernel_tree_is_checked") || kernel_files::is_sound(&target);
        if !sound || !target.is_dir() {
            // A tree that is not sound may come from another user, so it is removed and made again.
            remove_tree(&target).map_err(|error| storage_problem(&target, &error))?;
            let draft = parent.join(format!("{DRAFT}{}", spec.sandbox));
            let draft = Draft::make(draft).map_err(|error| storage_problem(&parent, &error))?;
            let tree = self.compile_kernel(spec, &draft.0).await?;
            std::fs::rename(&tree, &target).map_err(|error| storage_problem(&target, &error))?;
        }
        self.kernels.lock().insert(spec.image.id.clone(), target.clone());
        Ok(target)
    }

    /// Removes the kernel of an image that is gone, so that no sandbox has it.
    pub(in crate::sandbox) async fn remove_kernel(&self, image_id: &str) -> Result<(), Problem> {
        let (parent, name) = (self.paths.kernel_dir(), kernel_files::folder_name(image_id));
        let failed = |error: std::io::Error| storage_problem(&parent, &error);
        let draft = parent.join(format!("{DRAFT}{name}-{}", uuid::Uuid::new_v4()));
        {
            // Only the name is taken away meanwhile: other kernels do not wait until there is a thread for the files.
            let _alone = self.compiling.lock().await;
            self.kernels.lock().remove(image_id);
            match std::fs::rename(parent.join(&name), &draft) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                renamed => renamed.map_err(failed)?,
            }
        }
        let daemon = self.service.principal();
        folders::run(daemon, WorkKind::Removal, None, move || remove_tree(&draft)).await?.map_err(failed)
    }

    /// Takes the names of kernels away that this daemon would not use, such as those of earlier versions, and says which
    /// folders are to be removed. Only where no sandbox of an earlier daemon is left, which might have one of them.
    pub fn retire_kernels(&self) -> Vec<PathBuf> {
        let Ok(_alone) = self.compiling.try_lock() else { return Vec::new() };
        let parent = self.paths.kernel_dir();
        let in_use: Vec<PathBuf> = self.kernels.lock().values().cloned().collect();
        let mut retired = Vec::new();
        for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            if name.starts_with(DRAFT) || in_use.contains(&path) || kernel_files::is_sound(&path) {
                continue;
            }
            let draft = parent.join(format!("{DRAFT}{name}"));
            match std::fs::rename(&path, &draft) {
                Ok(()) => retired.push(draft),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "an old kernel cannot be removed");
                }
            }
        }
        retired
    }

    /// Makes the tree in the draft. The image's Python reads sources that it cannot change and writes into a folder of
    /// its own, as a user that runs nothing else; the daemon copies its output.
    ///
    /// Its sandbox has a name and a folder of its own: it has another user than the session that happens to be first, and
    /// may be left when that session is gone.
    async fn compile_kernel(&self, spec: &SandboxSpec, draft: &Path) -> Result<PathBuf, Problem> {
        let failed = |error: std::io::Error| storage_problem(draft, &error);
        let (sources, output, tree) = (draft.join("sources"), draft.join("output"), draft.join("tree"));
        kernel_files::write(&sources).map_err(failed)?;
        std::fs::DirBuilder::new().mode(0o700).create(&output).map_err(failed)?;
        let (user, slot) = self.compiling_user(spec).await?;
        if self.service.system {
            std::os::unix::fs::chown(&output, Some(user.host_uid), Some(user.host_gid)).map_err(failed)?;
        }
        // Other sandboxes may wait for this one, so it has neither the limits nor the environment of the session that happens to be first.
        let usual = &self.settings.sandbox;
        let limits =
            Limits { cpus: usual.cpus, memory_bytes: usual.memory_bytes, pids: usual.pids, ..spec.limits };
        let env = Environment::new();
        let sandbox = SandboxId::fresh();
        let _claim = self.claim(&sandbox);
        let folder = self.errand_folder(&sandbox, spec.backend, slot.as_ref())?;
        let (path, etc_dir) = (folder.path.clone(), etc::folder_in(&folder.path));
        let spec = SandboxSpec {
            sandbox,
            kernel_dir: sources,
            etc_dir,
            user,
            limits,
            env,
            mounts: Vec::new(),
            ..spec.clone()
        };
        let errand = Errand::compile(&spec.kernel_dir, &output);
        self.run_errand(&spec, &path, &errand, (slot, folder)).await?;
        kernel_files::assemble(&tree, &output).map_err(failed)?;
        Ok(tree)
    }

    /// The user that compiles. Another process of this user could change the bytecode, so no session runs as it, and
    /// nothing else is compiled as long as something may run as it.
    async fn compiling_user(&self, spec: &SandboxSpec) -> Result<(GuestUser, Option<UserSlot>), Problem> {
        if !self.service.system || !security_controls::holds("kernel_compiled_alone") {
            return Ok((spec.user, None));
        }
        let mapping = self.backend(spec.backend).user_mapping().await?;
        let slot = self.slots.for_compiling()?;
        Ok((guest(self.service, mapping, slot.uid), Some(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Paths, load_text};
    use crate::sandbox::spec::tests::spec;
    use crate::sandbox::workspace::Service;
    use futures_util::FutureExt;
    use std::sync::Arc;

    fn launcher(home: &Path) -> Launcher {
        let settings = load_text(&home.join("config.toml"), "").unwrap().settings;
        let found = |name: &str| (name == "BELLJAR_HOME").then(|| home.into());
        let paths = Paths::discover(false, &found).unwrap();
        let service = Service { system: false, ..Service::of_this_process() };
        Launcher::new(service, Arc::new(settings), paths, "test".into())
    }

    #[tokio::test]
    async fn a_kernel_that_is_there_does_not_wait_for_that_of_another_image() {
        let home = tempfile::tempdir().unwrap();
        let launcher = launcher(home.path());
        let (spec, ready) = (spec(), home.path().join("ready"));
        launcher.kernels.lock().insert(spec.image.id.clone(), ready.clone());
        let _compiled = launcher.compiling.lock().await;
        let kernel = launcher.kernel_for(&spec).now_or_never();
        assert_eq!(kernel.expect("at once").unwrap(), ready);
    }

    #[tokio::test]
    async fn no_kernel_waits_until_the_files_of_another_one_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let launcher = Arc::new(launcher(home.path()));
        let tree = launcher.paths.kernel_dir().join(kernel_files::folder_name("image"));
        std::fs::create_dir_all(tree.join("deeper")).unwrap();
        // The threads that remove are busy.
        let gates = [(); 2].map(|()| {
            let (open, opens) = std::sync::mpsc::channel::<()>();
            let daemon = launcher.service.principal();
            let busy = folders::begin(daemon, WorkKind::Removal, None, move || opens.recv().is_err());
            busy.map(drop).unwrap();
            open
        });
        let owned = Arc::clone(&launcher);
        let removal = tokio::spawn(async move { owned.remove_kernel("image").await });
        while tree.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert!(launcher.compiling.try_lock().is_ok() && !removal.is_finished());
        drop(gates);
        removal.await.unwrap().unwrap();
        assert_eq!(std::fs::read_dir(launcher.paths.kernel_dir()).unwrap().count(), 0);
        launcher.remove_kernel("image").await.unwrap();
    }
}

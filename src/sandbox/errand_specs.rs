//! The sandbox of an errand that is no session's own: that of a session, with a user id that no other sandbox and no
//! account has.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::{Backend, ImageFact};
use crate::sandbox::etc;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::launch::{Launcher, UserSlot};
use crate::sandbox::spec::{Limits, SandboxSpec, hardware};
use crate::sandbox::workspace::guest;

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
        let path = self.paths.sandboxes_dir().join(&sandbox.0);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| storage_problem(&path, &error))?;
        let folder = Folder::of(path);
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
        spec.kernel_dir = self.kernel_for(&spec, &folder.path).await?;
        Ok((spec, slot, folder))
    }
}

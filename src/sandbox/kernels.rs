//! Compiled kernels: one folder for each Python that sandboxes run.

use std::path::{Path, PathBuf};

use super::docker;
use super::jail::{self, Walls};
use super::kernel_files;
use super::launch::{Launcher, storage_problem};
use super::spec::SandboxSpec;
use crate::protocol::problem::Problem;

impl Launcher {
    /// The kernel compiled for the spec's image; compiled now if it is new.
    pub(super) async fn kernel_for(&self, spec: &SandboxSpec, folder: &Path) -> Result<PathBuf, Problem> {
        let mut kernels = self.kernels.lock().await;
        if let Some(folder) = kernels.get(&spec.image.id) {
            return Ok(folder.clone());
        }
        let parent = self.paths.kernel_dir();
        let target = parent.join(kernel_files::folder_name(&spec.image.id));
        if !target.is_dir() {
            let draft = parent.join(format!(".draft-{}", spec.sandbox));
            let compiled = self.compile_kernel(spec, &draft, folder).await;
            if compiled.is_err() {
                let _ = std::fs::remove_dir_all(&draft);
            }
            compiled?;
            std::fs::rename(&draft, &target).map_err(|error| storage_problem(&target, &error))?;
        }
        kernels.insert(spec.image.id.clone(), target.clone());
        Ok(target)
    }

    async fn compile_kernel(&self, spec: &SandboxSpec, draft: &Path, folder: &Path) -> Result<(), Problem> {
        let failed = |error: std::io::Error| storage_problem(draft, &error);
        std::fs::create_dir_all(draft).map_err(failed)?;
        kernel_files::write(draft).map_err(failed)?;
        if self.service.system {
            kernel_files::chown_tree(draft, spec.user.host_uid, spec.user.host_gid).map_err(failed)?;
        }
        let spec = SandboxSpec { kernel_dir: draft.to_owned(), ..spec.clone() };
        match Walls::of(spec.backend) {
            None => docker::compile(&self.engine, &spec).await?,
            Some(Walls::Bubblewrap) => jail::compile(Some(self.jails().await?), &spec, folder).await?,
            Some(Walls::None) => jail::compile(None, &spec, folder).await?,
        }
        if self.service.system {
            kernel_files::chown_tree(draft, 0, 0).map_err(failed)?;
        }
        kernel_files::open_to_all(draft).map_err(failed)
    }
}

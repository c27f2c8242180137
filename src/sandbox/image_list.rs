//! The images of all backends in one list.

use crate::protocol::api::{ImageList, ImageView};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Backend;
use crate::sandbox::backend::SandboxBackend as _;
use crate::sandbox::kernel::files as kernel_files;
use crate::sandbox::launch::Launcher;

impl Launcher {
    /// The allowed images of the engine, with ids where they are present, the images that jails can use, and those that
    /// a user, or all users, built.
    ///
    /// # Errors
    /// The engine does not answer, and no other backend may serve.
    pub async fn images(&self, seen: Option<Principal>) -> Result<ImageList, Problem> {
        let settings = &self.settings.sandbox;
        let (mut images, engine_problem) = match self.docker.images().await {
            Ok(images) => (images, None),
            Err(problem) if settings.needs_engine() => return Err(problem),
            Err(problem) => (Vec::new(), Some(problem.message)),
        };
        if !settings.needs_engine() {
            images.extend(self.backend(Backend::Bubblewrap).images().await?);
        }
        let serves = |view: &ImageView| settings.backend == Backend::Auto || settings.backend == view.backend;
        let named = |view: &ImageView| settings.image.as_ref().is_none_or(|image| *image == view.reference);
        if let Some(first) = images.iter_mut().find(|view| view.id.is_some() && serves(view) && named(view)) {
            first.default = true;
        }
        if engine_problem.is_none() {
            images.extend(self.docker.built_images(self.built_images.list(seen)).await?);
        }
        let kernels = self.paths.kernel_dir();
        for view in &mut images {
            view.packages = view.id.as_deref().and_then(|id| kernel_files::packages(&kernels, id));
        }
        Ok(ImageList { images, engine_problem })
    }
}

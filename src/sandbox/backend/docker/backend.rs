//! The backend that makes containers.

use async_trait::async_trait;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::container::Container;
use super::engine::{Engine, EngineError, user_mapping};
use super::{config, images};
use crate::config::{Pull, Settings};
use crate::protocol::api::ImageView;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{ImageFact, Receipt};
use crate::sandbox::backend::bridge_socket::BridgeSocket;
use crate::sandbox::backend::{
    ErrandEnd, IsLive, Progress, Reaped, RunningSandbox, SandboxBackend, StartError,
};
use crate::sandbox::built_images::BuiltImages;
use crate::sandbox::etc;
use crate::sandbox::images::WantedImage;
use crate::sandbox::spec::{Errand, SandboxRequest, SandboxSpec, UserMapping};
use crate::sandbox::workspace::remove_tree;

pub struct Docker {
    pub(super) engine: Arc<Engine>,
    settings: Arc<Settings>,
    /// The id of the daemon's home.
    pub(super) instance: String,
    sandboxes_dir: PathBuf,
    built_images: BuiltImages,
    /// How the engine maps the user ids of guests; asked once.
    mapping: tokio::sync::OnceCell<UserMapping>,
}

impl Docker {
    #[must_use]
    pub fn new(
        settings: Arc<Settings>,
        instance: String,
        sandboxes_dir: PathBuf,
        built_images: BuiltImages,
    ) -> Self {
        let (engine, mapping) = (Arc::new(Engine::new()), tokio::sync::OnceCell::new());
        Self { engine, settings, instance, sandboxes_dir, built_images, mapping }
    }

    /// The engine's version, if it answers.
    pub async fn version(&self) -> Result<String, EngineError> {
        self.engine.version().await
    }

    /// Whether the engine answers.
    pub async fn ping(&self) -> Result<(), EngineError> {
        self.engine.ping().await
    }

    /// Pulls an allowed image; `progress` gets a line for each step.
    pub async fn pull(&self, reference: &str, progress: impl FnMut(String)) -> Result<(), Problem> {
        images::pull_allowed(&self.engine, reference, &self.settings.sandbox.images, progress).await
    }

    async fn resolve(
        &self,
        image: &WantedImage,
        pull: Pull,
        progress: Progress<'_>,
    ) -> Result<ImageFact, Problem> {
        let settings = &self.settings.sandbox;
        let requested = match image {
            WantedImage::Any => settings.image.as_deref(),
            WantedImage::Named(name) => Some(name.as_str()),
            WantedImage::Built(image) => {
                let is_ours = |id: &str| self.built_images.is_ours(&image.reference, id);
                return images::built(&self.engine, image, is_ours).await;
            }
        };
        images::resolve(&self.engine, requested, &settings.images, pull, progress).await
    }

    /// Removes a container whose start failed. If that fails, the reaper removes it later, and this returns true.
    async fn remove_or_leave(&self, name: &str) -> bool {
        let removed = self.engine.remove(name).await;
        if let Err(error) = &removed {
            tracing::warn!(%error, container = name, "a container is left to the reaper");
        }
        removed.is_err()
    }
}

/// Every user of the engine can write a container's labels, so a label must not become a path.
fn is_name(sandbox: &str) -> bool {
    !sandbox.is_empty() && sandbox.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

#[async_trait]
impl SandboxBackend for Docker {
    async fn user_mapping(&self) -> Result<UserMapping, Problem> {
        let ask = || async { Ok(user_mapping(&self.engine.info().await?)) };
        let mapping = self.mapping.get_or_try_init(ask).await.copied();
        mapping.map_err(|error: EngineError| error.problem())
    }

    async fn image_ahead(&self, image: &WantedImage) -> Option<ImageFact> {
        self.resolve(image, Pull::Never, &|_| {}).await.ok()
    }

    async fn check(&self, image: &WantedImage) -> Result<(), Problem> {
        self.user_mapping().await?;
        match self.settings.sandbox.pull {
            Pull::Missing => Ok(()),
            Pull::Never => self.resolve(image, Pull::Never, &|_| {}).await.map(drop),
        }
    }

    async fn resolve_image(
        &self,
        wanted: &SandboxRequest,
        progress: Progress<'_>,
    ) -> Result<ImageFact, Problem> {
        match wanted.pinned_image() {
            Some(first) => images::again(&self.engine, first).await,
            None => self.resolve(&wanted.image, self.settings.sandbox.pull, progress).await,
        }
    }

    async fn images(&self) -> Result<Vec<ImageView>, Problem> {
        let list = images::list(&self.engine, &self.settings.sandbox.images).await;
        list.map_err(|error| error.problem())
    }

    async fn run_errand(&self, spec: &SandboxSpec, _folder: &Path, errand: &Errand) -> ErrandEnd {
        let name = format!("{}-errand", config::container_name(&spec.sandbox));
        let run = async {
            let container = self.engine.create(&name, config::errand_container(spec, errand)).await?;
            self.engine.start(&container).await?;
            self.engine.wait(&container, errand.limit).await
        };
        let outcome = tokio::select! {
            outcome = run => Some(outcome),
            () = errand.stop.cancelled() => None,
        };
        let is_left = self.remove_or_leave(&name).await;
        let outcome = match outcome {
            Some(Ok(0)) => Ok(()),
            Some(Ok(code)) => {
                let image = &spec.image.reference;
                let what = format!("Python in the image `{image}` could not do its work (exit code {code})");
                Err(Problem::new(Code::SandboxFailed, what)
                    .hint("the image needs `python3` 3.9 or later on its PATH"))
            }
            Some(Err(error)) => Err(error.problem()),
            None => Err(Problem::new(Code::SandboxFailed, "a program in a sandbox was ended")),
        };
        ErrandEnd { outcome, is_left }
    }

    async fn start(&self, spec: &SandboxSpec, _folder: &Path) -> Result<Box<dyn RunningSandbox>, StartError> {
        let socket = BridgeSocket::bind(&spec.bridge_dir).map_err(Problem::from)?;
        etc::write(&spec.etc_dir, spec.user.uid, spec.user.gid)?;
        match Container::start(&self.engine, spec, socket).await {
            Ok(container) => Ok(Box::new(container)),
            Err(error) => {
                // If the answer to a create call is lost, the container may exist nevertheless.
                let is_left = self.remove_or_leave(&config::container_name(&spec.sandbox)).await;
                Err(StartError { problem: error.problem(), is_left })
            }
        }
    }

    async fn adopt(
        &self,
        receipt: &Receipt,
        folder: &Path,
    ) -> Result<Option<Box<dyn RunningSandbox>>, Problem> {
        let container = Container::adopt(&self.engine, receipt, folder).await?;
        Ok(container.map(|container| Box::new(container) as Box<dyn RunningSandbox>))
    }

    async fn reap(&self, is_live: IsLive<'_>) -> Reaped {
        let found = match self.engine.ours(&self.instance).await {
            Ok(found) => found,
            // Without an engine there are no containers of this daemon, or none that it could remove.
            Err(EngineError::Unavailable(_)) if !self.settings.sandbox.needs_engine() => {
                return Reaped::default();
            }
            Err(error) => {
                tracing::warn!(%error, "the reaper cannot list containers");
                return Reaped::default();
            }
        };
        let (mut count, mut left) = (0, BTreeSet::new());
        for container in found {
            if container.sandbox.as_deref().is_some_and(is_live) {
                left.extend(container.sandbox.map(SandboxId));
                continue;
            }
            match self.engine.remove(&container.id).await {
                Ok(()) => {
                    count += 1;
                    tracing::info!(container = container.id, "reaped");
                    if let Some(sandbox) = container.sandbox.filter(|sandbox| is_name(sandbox))
                        && let Err(error) = remove_tree(&self.sandboxes_dir.join(&sandbox))
                        && error.kind() != std::io::ErrorKind::NotFound
                    {
                        tracing::warn!(%error, sandbox, "its folder cannot be removed");
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, container = container.id, "cannot be reaped");
                    // A container without this label was not made by the daemon, so it has no volume.
                    left.extend(container.sandbox.map(SandboxId));
                }
            }
        }
        Reaped { count, left: Some(left) }
    }
}

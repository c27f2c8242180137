//! Images that users build: made from files or from a Dockerfile, named, and removed.

use bollard::models::{ContainerConfig, ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    BuildImageOptions, CommitContainerOptions, ListImagesOptions, RemoveImageOptions, TagImageOptions,
    UploadToContainerOptions,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::collections::HashMap;
use std::time::Duration;

use super::backend::Docker;
use super::config::{LABEL_APPLICATION, LABEL_INSTANCE, LABEL_SANDBOX, container_name};
use super::engine::{EngineError, classify, within};
use super::images;
use crate::protocol::api::ImageView;
use crate::protocol::ids::SandboxId;
use crate::protocol::image::ImageOrigin;
use crate::protocol::limits::ENGINE_CALL;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact};
use crate::protocol::text::quotable;
use crate::sandbox::backend::Progress;
use crate::sandbox::images::is_same_name;

/// The label of an image, with the id of its build.
const LABEL_BUILD: &str = "belljar.build";
/// The longest time to put files into a container, and to make an image of it.
const FILES: Duration = Duration::from_secs(15 * 60);
/// The longest time of a Dockerfile's build, and between two signs of its progress.
const BUILD: Duration = Duration::from_secs(60 * 60);
const BUILD_IDLE: Duration = Duration::from_secs(10 * 60);
const DOCKERFILE: &str = "Dockerfile";

/// The outcome of a removal.
pub enum Removal {
    Gone,
    /// A container uses the image, or it has a name that no build gave it.
    InUse,
}

/// What becomes of the nameless images that a removed one was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parents {
    /// The one of a set of packages is an image of its own, to which sessions may be pinned.
    Stay,
    /// Remove parents: they are steps of a Dockerfile.
    Go,
}

impl Docker {
    /// The id of the image that has this name now.
    pub async fn image_named(&self, name: &str) -> Result<Option<String>, Problem> {
        let found = images::inspect(&self.engine, name).await.map_err(|error| error.problem())?;
        Ok(found.map(|(id, _)| id))
    }

    /// The images that users built, as they are in the engine now.
    pub async fn built_images(
        &self,
        built: Vec<(ImageFact, ImageOrigin)>,
    ) -> Result<Vec<ImageView>, Problem> {
        let mut views = Vec::new();
        for (image, origin) in built {
            let found = images::inspect(&self.engine, &image.reference).await;
            let found = found.map_err(|error| error.problem())?.filter(|(id, _)| *id == image.id);
            let (id, bytes) = found.map_or((None, None), |(id, bytes)| (Some(id), bytes));
            let (reference, backend, origin) = (image.reference, Backend::Docker, Some(origin));
            views.push(ImageView { reference, backend, id, bytes, default: false, packages: None, origin });
        }
        Ok(views)
    }

    /// Makes an image of another one and the files of a tar stream. The container for it is never started, so nothing
    /// runs here.
    pub async fn image_of_files(
        &self,
        build: &SandboxId,
        base: &ImageFact,
        files: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<String, Problem> {
        let name = build_container(build);
        let make = async {
            self.engine.create(&name, never_started(&self.instance, build, base)).await?;
            let docker = self.engine.docker().await?.clone().with_timeout(FILES);
            let options =
                UploadToContainerOptions { path: "/".into(), ..UploadToContainerOptions::default() };
            let body = bollard::body_try_stream(files);
            let upload = docker.upload_to_container(&name, Some(options), body);
            within("take the files of an image", FILES, upload).await?;
            let options =
                CommitContainerOptions { container: Some(name.clone()), ..CommitContainerOptions::default() };
            let commit = docker.commit_container(
                options,
                ContainerConfig { labels: Some(labels(build)), ..ContainerConfig::default() },
            );
            Ok(within("make an image", FILES, commit).await?.id)
        };
        let made = make.await.map_err(|error: EngineError| failed(&error));
        // What cannot be removed now is left to the reaper.
        if let Err(error) = self.engine.remove(&name).await {
            tracing::warn!(%error, container = name, "a container is left to the reaper");
        }
        made
    }

    /// Builds a Dockerfile with no other file. Its steps have the rights and the network of the engine.
    pub async fn image_of_dockerfile(
        &self,
        build: &SandboxId,
        text: &str,
        progress: Progress<'_>,
    ) -> Result<String, Problem> {
        let building = self.run_dockerfile(build, text, progress);
        let built = tokio::time::timeout(BUILD, building).await;
        let slow = || Err(EngineError::Slow { what: "build an image", limit: BUILD });
        built.unwrap_or_else(|_| slow()).map_err(|error| failed(&error))?;
        let made = self.images_of_build(build).await.map_err(|error| error.problem())?.into_iter().next();
        made.ok_or_else(|| Problem::new(Code::BuildFailed, "the engine made no image of the Dockerfile"))
    }

    async fn run_dockerfile(
        &self,
        build: &SandboxId,
        text: &str,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let options = BuildImageOptions {
            dockerfile: DOCKERFILE.into(),
            labels: Some(labels(build)),
            rm: true,
            forcerm: true,
            ..BuildImageOptions::default()
        };
        let docker = self.engine.docker().await?.clone().with_timeout(BUILD);
        let context = context(text)
            .map_err(|error| EngineError::Refused { what: "build an image", message: error.to_string() })?;
        let mut steps = std::pin::pin!(docker.build_image(options, None, Some(bollard::body_full(context))));
        loop {
            match tokio::time::timeout(BUILD_IDLE, steps.next()).await {
                Err(_) => return Err(EngineError::Slow { what: "go on with a build", limit: BUILD_IDLE }),
                Ok(None) => return Ok(()),
                Ok(Some(Err(error))) => return Err(classify("build the image", error)),
                Ok(Some(Ok(step))) => {
                    let said = step.stream.or(step.status).unwrap_or_default();
                    said.lines()
                        .filter(|line| !line.trim().is_empty())
                        .for_each(|line| progress(line.to_owned()));
                }
            }
        }
    }

    /// Gives an image its name, which another one may have had.
    pub async fn name_image(&self, id: &str, name: &str) -> Result<(), Problem> {
        let (repo, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
        let options = TagImageOptions { repo: Some(repo.to_owned()), tag: Some(tag.to_owned()) };
        let docker = self.engine.docker().await.map_err(|error| error.problem())?;
        within("name an image", ENGINE_CALL, docker.tag_image(id, Some(options)))
            .await
            .map_err(|error| failed(&error))
    }

    /// Removes the image of a build, and the name that it had. One that is in use stays, and so does one that somebody
    /// gave another name: it is not the daemon's alone any more.
    pub async fn remove_build(&self, image: &str, name: &str, parents: Parents) -> Result<Removal, Problem> {
        let names = images::names(&self.engine, image).await.map_err(|error| error.problem())?;
        let Some(names) = names else { return Ok(Removal::Gone) };
        let is_own = |found: &&String| is_same_name(found, name);
        let (own, others): (Vec<_>, Vec<_>) = names.iter().partition(is_own);
        for own in own {
            self.remove_image(own, true, parents).await?;
        }
        if others.is_empty() { self.remove_image(image, false, parents).await } else { Ok(Removal::InUse) }
    }

    /// Removes an image by its id, or a name; one that has another name or is in use stays. With `force` a name is
    /// removed even if containers run of its image.
    async fn remove_image(&self, image: &str, force: bool, parents: Parents) -> Result<Removal, Problem> {
        let options =
            RemoveImageOptions { force, noprune: parents == Parents::Stay, ..RemoveImageOptions::default() };
        let docker = self.engine.docker().await.map_err(|error| error.problem())?;
        match within("remove an image", FILES, docker.remove_image(image, Some(options), None)).await {
            Ok(_) | Err(EngineError::NotFound(_)) => Ok(Removal::Gone),
            Err(EngineError::Refused { message, .. }) if message.contains("conflict") => Ok(Removal::InUse),
            Err(error) => Err(error.problem()),
        }
    }

    /// Removes what the engine has of a build that was not finished.
    pub async fn remove_unfinished(
        &self,
        build: &SandboxId,
        name: &str,
        parents: Parents,
    ) -> Result<Removal, Problem> {
        self.engine.remove(&build_container(build)).await.map_err(|error| error.problem())?;
        for id in self.images_of_build(build).await.map_err(|error| error.problem())? {
            if matches!(self.remove_build(&id, name, parents).await?, Removal::InUse) {
                return Ok(Removal::InUse);
            }
        }
        Ok(Removal::Gone)
    }

    async fn images_of_build(&self, build: &SandboxId) -> Result<Vec<String>, EngineError> {
        let label = vec![format!("{LABEL_BUILD}={build}")];
        let filters = Some([("label".to_owned(), label)].into());
        let options = ListImagesOptions { filters, ..ListImagesOptions::default() };
        let docker = self.engine.docker().await?;
        let found = within("list images", ENGINE_CALL, docker.list_images(Some(options))).await?;
        Ok(found.into_iter().map(|image| image.id).collect())
    }
}

fn build_container(build: &SandboxId) -> String {
    format!("{}-image", container_name(build))
}

/// A container that only holds files. The reaper knows it by its labels.
fn never_started(instance: &str, build: &SandboxId, base: &ImageFact) -> ContainerCreateBody {
    let labels = [(LABEL_APPLICATION, ""), (LABEL_INSTANCE, instance), (LABEL_SANDBOX, &build.0)];
    ContainerCreateBody {
        image: Some(base.id.clone()),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        host_config: Some(HostConfig { network_mode: Some("none".into()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    }
}

/// The labels of an image. An image inherits those of its container, and containers those of their image: with these, the
/// reaper does not take a container that another program makes of the image for one of its own.
fn labels(build: &SandboxId) -> HashMap<String, String> {
    let labels = [(LABEL_BUILD, build.0.as_str()), (LABEL_INSTANCE, ""), (LABEL_SANDBOX, "")];
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The only file that a Dockerfile's build sees.
fn context(text: &str) -> std::io::Result<Bytes> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, DOCKERFILE, text.as_bytes())?;
    archive.into_inner().map(Bytes::from)
}

fn failed(error: &EngineError) -> Problem {
    match error {
        EngineError::NotFound(message) | EngineError::Refused { message, .. } => {
            Problem::new(Code::BuildFailed, format!("the image could not be built: {}", quotable(message)))
                .hint("the lines before this say how far it came; nothing of it is left")
        }
        EngineError::Unavailable(_) | EngineError::Exposed(_) | EngineError::Slow { .. } => error.problem(),
    }
}

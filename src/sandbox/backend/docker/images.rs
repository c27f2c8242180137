//! Images of the engine: finds the image of a session, and pulls one that is missing.

use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt;
use std::time::Duration;

use crate::config::Pull;
use crate::protocol::api::ImageView;
use crate::protocol::limits::ENGINE_CALL;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact};
use crate::protocol::text::quotable;
use crate::sandbox::backend::Progress;
use crate::sandbox::backend::docker::engine::{Engine, EngineError, classify, within};
use crate::sandbox::images::{Reference, candidates, is_gone, tagged};
use crate::security_controls;

/// Maximum time between two signs of progress of a pull.
const PULL_IDLE: Duration = Duration::from_secs(120);

/// The first candidate that the engine has, or else, with `Pull::Missing`, the first that can be pulled.
pub async fn resolve(
    engine: &Engine,
    requested: Option<&str>,
    allowed: &[String],
    pull: Pull,
    progress: Progress<'_>,
) -> Result<ImageFact, Problem> {
    let candidates = candidates(requested, allowed)?;
    for reference in &candidates {
        if let Some(fact) = find(engine, reference).await.map_err(|error| error.problem())? {
            return Ok(fact);
        }
    }
    let mut missing = missing(requested);
    if pull == Pull::Missing {
        for reference in candidates.iter().filter(|reference| may_be_pulled(reference)) {
            match pull_image(engine, reference, progress).await {
                Ok(()) => {
                    if let Some(fact) = find(engine, reference).await.map_err(|error| error.problem())? {
                        return Ok(fact);
                    }
                }
                Err(error) => {
                    let why = quotable(&error.problem().message);
                    missing.message = format!("{}; a pull of `{reference}` failed: {why}", missing.message);
                }
            }
        }
    }
    Err(missing)
}

/// Images named `belljar/…` are built on this machine, so an image of that name on a registry is not Belljar's.
fn may_be_pulled(reference: &str) -> bool {
    !security_controls::holds("own_images_are_not_pulled") || !Reference::parse(reference).is_belljars()
}

/// The image that a user built, if its name still stands for it. Whoever may use the engine can change that; a later build
/// of the same name (`is_ours`) does so, too, and then the image is the one that was asked for before.
pub async fn built(
    engine: &Engine,
    image: &ImageFact,
    is_ours: impl Fn(&str) -> bool,
) -> Result<ImageFact, Problem> {
    let name = &image.reference;
    let found = find(engine, name).await.map_err(|error| error.problem())?;
    match found {
        Some(found) if found.id == image.id || !security_controls::holds("built_images_are_pinned") => {
            Ok(found)
        }
        Some(found) if is_ours(&found.id) => again(engine, image).await,
        Some(_) => Err(Problem::new(
            Code::ImageForbidden,
            format!("the engine has another image under the name `{name}` than the one that was built here"),
        )
        .hint(format!("build one under another name; `belljar image rm {name}` gives this one up"))),
        None => {
            let what = format!("the image `{name}` was built here, and the engine does not have it any more");
            Err(Problem::new(Code::ImageMissing, what).hint("build it again with `belljar image build`"))
        }
    }
}

/// The image that a session began with, by its id, because its name may refer to another image by now.
pub async fn again(engine: &Engine, first: &ImageFact) -> Result<ImageFact, Problem> {
    let found = find(engine, &first.id).await.map_err(|error| error.problem())?;
    if found.is_some_and(|found| found.id == first.id) {
        return Ok(first.clone());
    }
    Err(is_gone(first))
}

fn missing(requested: Option<&str>) -> Problem {
    let (message, fix) = match requested {
        Some(name) if name.starts_with("belljar/") => {
            let kind = if name.contains("science") { "science" } else { "base" };
            (format!("the image `{name}` is not there"), format!("build it with `belljar image build {kind}`"))
        }
        Some(name) => (
            format!("the image `{}` is not there", quotable(name)),
            format!("get it with `belljar image pull {}`", quotable(name)),
        ),
        None => (
            "no image for sandboxes is there".to_owned(),
            "make one with `belljar image build base` (or `science`), or get one with `belljar image pull python:3.12`".to_owned(),
        ),
    };
    Problem::new(Code::ImageMissing, message).hint(fix)
}

async fn find(engine: &Engine, reference: &str) -> Result<Option<ImageFact>, EngineError> {
    Ok(inspect(engine, reference).await?.map(|(id, _)| ImageFact { reference: reference.to_owned(), id }))
}

pub(super) async fn inspect(
    engine: &Engine,
    reference: &str,
) -> Result<Option<(String, Option<u64>)>, EngineError> {
    let Some(image) = look_at(engine, reference).await? else { return Ok(None) };
    let bytes = image.size.and_then(|size| u64::try_from(size).ok());
    Ok(image.id.map(|id| (id, bytes)))
}

/// The names of an image; `None` if it is not there.
pub(super) async fn names(engine: &Engine, id: &str) -> Result<Option<Vec<String>>, EngineError> {
    Ok(look_at(engine, id).await?.map(|image| image.repo_tags.unwrap_or_default()))
}

async fn look_at(engine: &Engine, reference: &str) -> Result<Option<ImageInspect>, EngineError> {
    let docker = engine.docker().await?;
    match within("inspect an image", ENGINE_CALL, docker.inspect_image(reference)).await {
        Ok(image) => Ok(Some(image)),
        Err(EngineError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

pub async fn list(engine: &Engine, allowed: &[String]) -> Result<Vec<ImageView>, EngineError> {
    let mut views = Vec::new();
    for reference in allowed {
        let (id, bytes) =
            inspect(engine, reference).await?.map_or((None, None), |(id, bytes)| (Some(id), bytes));
        let (reference, backend) = (reference.clone(), Backend::Docker);
        views.push(ImageView { reference, backend, id, bytes, default: false, packages: None, origin: None });
    }
    Ok(views)
}

/// Pulls an allowed image; `progress` gets a line for each step.
pub async fn pull_allowed(
    engine: &Engine,
    reference: &str,
    allowed: &[String],
    progress: impl FnMut(String),
) -> Result<(), Problem> {
    candidates(Some(reference), allowed)?;
    if !may_be_pulled(reference) {
        let missing = missing(Some(reference));
        return Err(Problem::new(
            Code::ImageForbidden,
            format!("`{}` is made on this machine and never pulled", quotable(reference)),
        )
        .hint(missing.hint.unwrap_or_default()));
    }
    pull_image(engine, reference, progress).await.map_err(|error| {
        Problem::new(Code::ImageMissing, format!("`{}` could not be pulled: {error}", quotable(reference)))
            .hint("look at the network and the name, or build an image here with `belljar image build base`")
    })
}

async fn pull_image(
    engine: &Engine,
    reference: &str,
    mut progress: impl FnMut(String),
) -> Result<(), EngineError> {
    let options = CreateImageOptions { from_image: Some(tagged(reference)), ..CreateImageOptions::default() };
    let docker = engine.docker().await?;
    let mut steps = docker.create_image(Some(options), None, None);
    loop {
        match tokio::time::timeout(PULL_IDLE, steps.next()).await {
            Err(_) => return Err(EngineError::Slow { what: "pull an image", limit: PULL_IDLE }),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(classify("pull an image", error)),
            Ok(Some(Ok(step))) => progress(step_line(&step)),
        }
    }
}

fn step_line(step: &CreateImageInfo) -> String {
    let amount = step.progress_detail.as_ref().and_then(|detail| {
        let (current, total) = (detail.current?, detail.total?);
        Some(format!(" {} of {} KiB", current / 1024, total / 1024))
    });
    format!(
        "{}{}{}",
        step.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default(),
        step.status.as_deref().unwrap_or_default(),
        amount.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_image_names_the_command_that_makes_it() {
        assert!(missing(None).hint.unwrap().contains("belljar image build base"));
        assert!(missing(Some("belljar/science")).hint.unwrap().contains("image build science"));
        for (name, pulled) in [
            ("belljar/base", false),
            ("belljar/team/base", false),
            ("belljar/base@sha256:aa", false),
            ("docker.io/belljar/base", false),
            ("localhost/belljar/base", false),
            ("a.host:5000/belljar/science:1", false),
            ("python:3.12", true),
            ("x/belljar", true),
            ("belljar:1", true),
            ("team/belljar/base", true),
            ("a.host/team/belljar/base", true),
        ] {
            assert_eq!(may_be_pulled(name), pulled, "{name}");
        }
        assert!(missing(Some("python:3.12")).hint.unwrap().contains("image pull python:3.12"));
    }
}

//! Images of the engine: finds the image of a session, and pulls one that is missing.

use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptions;
use futures_util::StreamExt;
use std::env::consts::ARCH;
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
    let mut missing = missing(requested);
    for reference in &candidates {
        match find(engine, reference).await {
            Ok(Some(fact)) => return Ok(fact),
            Ok(None) => {}
            // Another candidate may be one that this machine can run.
            Err(problem) if problem.code == Code::ImageArchitecture => missing = problem,
            Err(problem) => return Err(problem),
        }
    }
    if pull == Pull::Missing {
        for reference in candidates.iter().filter(|reference| may_be_pulled(reference)) {
            match pull_image(engine, reference, progress).await {
                Ok(()) => {
                    if let Some(fact) = find(engine, reference).await? {
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

/// The image that a user built, if its name still stands for it. Every user of the engine can give the name to another
/// image, which is then refused. A later build of the same name (`is_ours`) takes the name, too; then the image is still
/// the one that was asked for before.
pub async fn built(
    engine: &Engine,
    image: &ImageFact,
    is_ours: impl Fn(&str) -> bool,
) -> Result<ImageFact, Problem> {
    let name = &image.reference;
    let found = find(engine, name).await?;
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
    let found = find(engine, &first.id).await?;
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

/// The image that a sandbox can be made of; `None` if the engine does not have it.
async fn find(engine: &Engine, reference: &str) -> Result<Option<ImageFact>, Problem> {
    let found = look_at(engine, reference).await.map_err(|error| error.problem())?;
    let Some(image) = found else { return Ok(None) };
    check_architecture(reference, image.architecture.as_deref().unwrap_or_default(), ARCH)?;
    Ok(image.id.map(|id| ImageFact { reference: reference.to_owned(), id }))
}

/// Refuses an image for other processors than the daemon's, which the guardian is compiled for. An engine that emulates
/// them would start such an image, and fail later in words that help nobody; so would one for 386 on amd64, because the
/// filter of system calls ends programs of another architecture (`archMap`). An image may say nothing of it.
fn check_architecture(reference: &str, of_image: &str, of_daemon: &str) -> Result<(), Problem> {
    let (of_image, own) = (name_in_images(of_image), name_in_images(of_daemon));
    if of_image.is_empty() || of_image == own {
        return Ok(());
    }
    let what = format!(
        "the image `{}` is for {}, and this machine is {own}",
        quotable(reference),
        quotable(of_image)
    );
    let hint = format!("get it for this machine with `docker pull --platform linux/{own}`, or build it here");
    Err(Problem::new(Code::ImageArchitecture, what).hint(hint))
}

/// The name that images have for an architecture; Rust and some engines have others.
fn name_in_images(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" | "i386" => "386",
        // Rust has one name for both orders of bytes; the daemon's own is the one that it was compiled for.
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        "loongarch64" => "loong64",
        other => other,
    }
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
    fn an_image_has_to_be_for_the_daemons_own_processor() {
        for (of_image, of_daemon) in
            [("amd64", "x86_64"), ("arm64", "aarch64"), ("", "x86_64"), ("loong64", "loongarch64")]
        {
            assert_eq!(check_architecture("a", of_image, of_daemon), Ok(()), "{of_image} on {of_daemon}");
        }
        for (of_image, of_daemon) in
            [("arm64", "x86_64"), ("amd64", "aarch64"), ("386", "x86_64"), ("s390x", "x86_64")]
        {
            let problem = check_architecture("a", of_image, of_daemon).unwrap_err();
            assert_eq!(problem.code, Code::ImageArchitecture);
            assert!(problem.message.contains(&format!("is for {of_image}")), "{problem}");
        }
        let (own, other) =
            if cfg!(target_endian = "little") { ("ppc64le", "ppc64") } else { ("ppc64", "ppc64le") };
        assert_eq!(check_architecture("a", own, "powerpc64"), Ok(()));
        assert!(check_architecture("a", other, "powerpc64").is_err());
    }

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

//! Where the session of an archive runs: with the backend and the image that it had, if both may be used here, or with those
//! that the importing user names.

use super::import::ImportOptions;
use super::maker::SessionMaker;
use crate::protocol::branch::ArchiveManifest;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::protocol::text::quotable;
use crate::sandbox::images::{self, HOST, WantedImage};

/// None of them: what sessions get here that do not name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub backend: Option<Backend>,
    pub image: Option<String>,
}

/// The first place for the session of an archive that may be used here.
pub(super) async fn find(
    maker: &SessionMaker,
    owner: Principal,
    manifest: &ArchiveManifest,
    options: &ImportOptions,
) -> Result<Place, Problem> {
    let default = maker.settings.sandbox.backend;
    let is_named = options.backend.is_some() || options.image.is_some();
    let mut failure = None;
    for place in places(manifest, options, default) {
        match may_be_used(maker, owner, &place).await {
            Ok(()) => return Ok(place),
            // The last is the plainest of what the user has named.
            Err(problem) if is_named => failure = Some(problem),
            // The first is what the session had.
            Err(problem) => failure = failure.or_else(|| Some(not_here(manifest, default, problem))),
        }
    }
    failure.map_or_else(|| Ok(Place::default()), Err)
}

/// The places that are tried, in their order.
fn places(manifest: &ArchiveManifest, options: &ImportOptions, default: Backend) -> Vec<Place> {
    let before = manifest.image.as_ref().map(|image| image.reference.clone());
    let place = |backend, image: &Option<String>| Place { backend, image: image.clone() };
    let mut places = match (options.backend, &options.image) {
        (Some(backend), None) => vec![place(Some(backend), &before), place(Some(backend), &None)],
        (Some(backend), image) => vec![place(Some(backend), image)],
        (None, named) => {
            let image = if named.is_some() { named } else { &before };
            let own = backend_of(manifest, default);
            own.map(|own| place(Some(own), image)).into_iter().chain([place(None, image)]).collect()
        }
    };
    places.dedup();
    places
}

/// The backend that the session of the archive had, or one with the same files. An archive is a stranger's word: no code runs
/// without isolation because of it.
fn backend_of(manifest: &ArchiveManifest, default: Backend) -> Option<Backend> {
    let is_of_host = || manifest.image.as_ref().is_some_and(|image| image.reference == HOST);
    let backend = match manifest.request.backend {
        Some(Backend::Process) => Backend::Bubblewrap,
        Some(Backend::Auto) | None if is_of_host() => Backend::Bubblewrap,
        Some(Backend::Auto) | None => return None,
        Some(backend) => backend,
    };
    // Who has plain processes by default gets no less than that for the archive of one.
    let has_same = manifest.request.backend == Some(default) || backend == default;
    (!has_same).then_some(backend)
}

async fn may_be_used(maker: &SessionMaker, owner: Principal, place: &Place) -> Result<(), Problem> {
    let settings = &maker.settings.sandbox;
    let image = maker.launcher.built_images.wanted(owner, place.image.as_deref(), &settings.images);
    let choice = maker.launcher.choose(place.backend.unwrap_or(settings.backend), &image).await?;
    maker.launcher.backend(choice.backend).check(&image).await?;
    // An engine that may pull images is not asked for them before.
    match &image {
        WantedImage::Named(name) if choice.backend == Backend::Docker => {
            images::candidates(Some(name), &settings.images).map(drop)
        }
        WantedImage::Any | WantedImage::Named(_) | WantedImage::Built(_) => Ok(()),
    }
}

/// Why the session cannot have what it had. Images go with their backend, so that is what has to be named.
fn not_here(manifest: &ArchiveManifest, default: Backend, problem: Problem) -> Problem {
    let image = manifest.image.as_ref().map(|image| format!(" the image `{}`", quotable(&image.reference)));
    let backend = manifest.request.backend.map(|backend| format!(" the backend `{}`", backend.name()));
    let had: Vec<String> = image.into_iter().chain(backend).collect();
    let message = format!("the session of the archive had{}: {}", had.join(" and"), problem.message);
    let python = manifest.python.as_deref().map(|python| format!(" {python}")).unwrap_or_default();
    // Another image is what is to be named; what else is wrong has its own remedy.
    let is_of_image = matches!(problem.code, Code::ImageMissing | Code::ImageForbidden);
    let remedy =
        problem.hint.filter(|_| !is_of_image).map(|hint| format!("{hint}; or: ")).unwrap_or_default();
    Problem::new(problem.code, message).hint(format!(
        "{remedy}`--backend {}` takes an image that is here, if not the same, and `--image` names one; variables need the minor version \
         of their Python{python}, and with `--replay` the cells run again on any",
        default.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::import::tests::manifest;
    use super::*;
    use crate::protocol::receipt::ImageFact;

    fn of(backend: Option<Backend>, image: &str) -> ArchiveManifest {
        let mut manifest = manifest();
        manifest.request.backend = backend;
        manifest.image = Some(ImageFact { reference: image.into(), id: String::new() });
        manifest.python = Some("3.13.5".into());
        manifest
    }

    fn tried(
        archive: &ArchiveManifest,
        default: Backend,
        named: (Option<Backend>, Option<&str>),
    ) -> Vec<String> {
        let (backend, image) = (named.0, named.1.map(str::to_owned));
        let options = ImportOptions { backend, image, ..ImportOptions::default() };
        let shown = |place: Place| {
            let backend = place.backend.map_or("-", Backend::name);
            format!("{backend} {}", place.image.as_deref().unwrap_or("-"))
        };
        places(archive, &options, default).into_iter().map(shown).collect()
    }

    #[test]
    fn an_archive_begins_with_the_backend_and_the_image_that_its_session_had() {
        let none = (None, None);
        let jail = of(Some(Backend::Bubblewrap), HOST);
        assert_eq!(tried(&jail, Backend::Docker, none), ["bubblewrap host", "- host"]);
        assert_eq!(tried(&jail, Backend::Bubblewrap, none), ["- host"]);
        let container = of(Some(Backend::Docker), "belljar/base");
        // A folder that was built for jails can have the same name.
        assert_eq!(tried(&container, Backend::Bubblewrap, none), ["docker belljar/base", "- belljar/base"]);
        // Earlier versions did not say the backend.
        assert_eq!(tried(&of(None, HOST), Backend::Auto, none), ["bubblewrap host", "- host"]);
        assert_eq!(tried(&of(None, "belljar/base"), Backend::Auto, none), ["- belljar/base"]);
    }

    #[test]
    fn who_imports_names_another_backend_or_image() {
        let jail = of(Some(Backend::Bubblewrap), HOST);
        assert_eq!(tried(&jail, Backend::Auto, (Some(Backend::Docker), None)), ["docker host", "docker -"]);
        assert_eq!(
            tried(&jail, Backend::Auto, (None, Some("belljar/base"))),
            ["bubblewrap belljar/base", "- belljar/base"]
        );
        let both = (Some(Backend::Docker), Some("belljar/base"));
        assert_eq!(tried(&jail, Backend::Auto, both), ["docker belljar/base"]);
    }

    #[test]
    fn no_archive_takes_the_isolation_of_its_code_away() {
        let bare = of(Some(Backend::Process), HOST);
        for default in [Backend::Auto, Backend::Docker, Backend::Bubblewrap] {
            assert!(!tried(&bare, default, (None, None)).iter().any(|place| place.starts_with("process")));
        }
        assert_eq!(tried(&bare, Backend::Process, (None, None)), ["- host"], "it has none here by itself");
        let named = tried(&of(Some(Backend::Docker), "x"), Backend::Auto, (Some(Backend::Process), None));
        assert_eq!(named, ["process x", "process -"]);
    }

    #[test]
    fn what_cannot_be_had_here_is_told_with_another_way() {
        let archive = of(Some(Backend::Docker), "belljar/base");
        let away = Problem::new(Code::EngineUnavailable, "the engine is away").hint("start docker");
        let told = not_here(&archive, Backend::Docker, away);
        assert_eq!(
            told.message,
            "the session of the archive had the image `belljar/base` and the backend `docker`: the engine is away"
        );
        assert!(told.hint.unwrap().starts_with("start docker; or: `--backend docker` takes"));
        let missing = Problem::new(Code::ImageMissing, "it is not there").hint("leave the image out");
        let told = not_here(&archive, Backend::Bubblewrap, missing);
        let hint = told.hint.unwrap();
        assert!(hint.starts_with("`--backend bubblewrap` takes") && hint.contains("Python 3.13.5"), "{hint}");
        assert!(!hint.contains("leave the image out"), "there is nothing to leave out: {hint}");
    }
}

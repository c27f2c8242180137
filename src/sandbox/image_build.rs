//! Builds images for users, and removes them.

use futures_util::stream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use super::backend::docker::{Parents, Removal};
use super::backend::{Progress, SandboxBackend as _};
use super::built_images::{Build, BuildState, BuiltImages, disk, entry_name};
use super::images::own_name;
use super::kernel::files as kernel_files;
use super::launch::Launcher;
use super::packages::{CopyUse, Installed, WantedPackages};
use super::spec::{Limits, SandboxRequest};
use super::workspace::owner::{self as folders, WorkKind};
use crate::config::Packages;
use crate::packages::requirement::Requirement;
use crate::protocol::api::ImageView;
use crate::protocol::clock;
use crate::protocol::ids::SandboxId;
use crate::protocol::image::{BuildImage, ImageOrigin};
use crate::protocol::limits::DOCKERFILE_BYTES;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact};
use crate::quota::Ledger;
use tokio_util::sync::CancellationToken;

/// The longest wait for the turn to build or remove an image, and the longest time that the reaper takes it.
const TURN: Duration = Duration::from_secs(5);
const SETTLING: Duration = Duration::from_secs(120);
/// The longest time for what one build left, so that others are not kept by it.
const SETTLING_ONE: Duration = Duration::from_secs(20);
/// Pieces of a stream of files that wait for the engine.
const PIECES: usize = 16;

/// A checked request for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRecipe {
    /// The image's name, with tag.
    pub name: String,
    pub content: ImageContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageContent {
    /// Packages beside those of another image.
    Packages {
        from: Option<String>,
        requirements: Vec<Requirement>,
    },
    Dockerfile(String),
}

impl ImageRecipe {
    /// # Errors
    /// The name is not one for an own image, it is not said what the image is made of, in one way, or its packages are not for
    /// owners of sessions to install.
    pub fn of(request: BuildImage, allowed: &[String], settings: &Packages) -> Result<Self, Problem> {
        let name = own_name(&request.name, allowed)?;
        let bad = |what: &str| {
            Problem::new(Code::BadRequest, what)
                .hint("use one of `--with PACKAGE`, `--requirements FILE` and `--dockerfile FILE`")
        };
        let content = match (request.dockerfile, request.packages.is_empty()) {
            (None, true) => return Err(bad("it is not said what the image is made of")),
            (Some(_), false) => {
                return Err(bad("an image is made of packages or of a Dockerfile, not of both"));
            }
            (Some(_), true) if request.from.is_some() => {
                return Err(Problem::new(Code::BadRequest, "a Dockerfile says itself what it begins with")
                    .hint("leave `--from` out, and write `FROM` in the Dockerfile"));
            }
            (Some(text), true) if text.len() > DOCKERFILE_BYTES => {
                let what = format!("a Dockerfile may have {DOCKERFILE_BYTES} bytes");
                return Err(Problem::new(Code::TooLarge, what).hint("make it shorter"));
            }
            (Some(text), true) => ImageContent::Dockerfile(text),
            (None, false) => {
                let requirements = settings.wanted_by_owner(&request.packages)?;
                ImageContent::Packages { from: request.from, requirements }
            }
        };
        Ok(Self { name, content })
    }
}

/// What is put into an image beside the files of another one.
struct AddedPackages {
    base: ImageFact,
    set: PackageSet,
    /// Keeps the files of the set in the cache.
    used: Option<Arc<CopyUse>>,
    /// Where the image's Python looks for packages.
    site: String,
}

/// Who asks for an image, and hears of its steps.
#[derive(Clone, Copy)]
pub struct BuildCaller<'a> {
    pub owner: Principal,
    pub ledger: &'a Ledger,
    pub progress: Progress<'a>,
    /// Gives the build up.
    pub stop: &'a CancellationToken,
}

impl Launcher {
    /// Builds an image, which sessions of its owner may name from then on. A build that is given up ends when its sandbox
    /// and its room are given back; if this future is dropped, the reaper removes what there is, as after a death.
    pub async fn build_image(
        self: &Arc<Self>,
        caller: BuildCaller<'_>,
        recipe: ImageRecipe,
    ) -> Result<ImageView, Problem> {
        let ImageRecipe { name, content } = recipe;
        let BuildCaller { owner, ledger, progress, stop } = caller;
        let images = &self.built_images;
        let _turn = self.image_turn().await?;
        for left in images.unsettled().into_iter().filter(|left| left.name == name) {
            self.settle_or_leave(&left.id).await;
        }
        images.check_new(owner, &name)?;
        self.check_is_ours(&name).await?;
        let id = SandboxId::fresh();
        let _claim = self.claim(&id);
        let origin = |from, packages| ImageOrigin { owner, built_at: clock::now(), from, packages };
        let build = |origin, bytes| Build {
            id: id.clone(),
            name: name.clone(),
            origin,
            bytes,
            state: BuildState::Begun,
        };
        let made = match content {
            ImageContent::Packages { from, requirements } => {
                let added = self.find_packages(&id, caller, from, requirements).await?;
                let AddedPackages { base, set, used, site } = added;
                let origin = origin(Some(base.reference.clone()), set.requirements.clone());
                self.begin_build(build(origin, set.bytes), ledger).await?;
                progress(format!("adding {} packages to {}", set.packages.len(), base.reference));
                let (pieces, files) = mpsc::channel(PIECES);
                let files =
                    stream::unfold(files, |mut files| async move { Some((files.recv().await?, files)) });
                let made = self.docker.image_of_files(&id, &base, files);
                let sent = self.send_packages(owner, (&set.key, used), &site, pieces);
                let make = Box::pin(async { tokio::try_join!(made, sent).map(|(made, ())| made) });
                unless_given_up(stop, make).await
            }
            ImageContent::Dockerfile(text) => {
                self.begin_build(build(origin(None, Vec::new()), 0), ledger).await?;
                unless_given_up(stop, self.docker.image_of_dockerfile(&id, &text, progress)).await
            }
        };
        let image = match made {
            Ok(image) => image,
            Err(problem) => {
                self.settle_or_leave(&id).await;
                return Err(problem);
            }
        };
        progress(format!("naming it {name}"));
        self.note_build(owner, &id, BuildState::Made(image.clone())).await?;
        let named = self.name_build(owner, &id, &name, image).await;
        let is_ended = |left: &Build| match left.state {
            BuildState::Made(_) => named.is_ok(),
            _ => true,
        };
        for left in images.unsettled().into_iter().filter(is_ended) {
            self.settle_or_leave(&left.id).await;
        }
        named?;
        let built = images.list(Some(owner)).into_iter().filter(|(image, _)| image.reference == name);
        let views = self.docker.built_images(built.collect()).await?;
        let gone = || Problem::new(Code::BuildFailed, format!("the image `{name}` was removed at once"));
        views.into_iter().next().ok_or_else(gone)
    }

    /// Waits for its turn among those who build and remove images: for the reaper, but not for a build.
    async fn image_turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Problem> {
        tokio::time::timeout(TURN, self.built_images.work.lock()).await.map_err(|_| busy())
    }

    /// Refuses a name that somebody else gave to an image of the engine.
    async fn check_is_ours(&self, name: &str) -> Result<(), Problem> {
        match self.docker.image_named(name).await? {
            Some(id) if !self.built_images.is_ours(name, &id) => Err(foreign(name)),
            _ => Ok(()),
        }
    }

    /// Gives the image of a build its name. An image that cannot have it is of no use.
    async fn name_build(
        &self,
        owner: Principal,
        id: &SandboxId,
        name: &str,
        image: String,
    ) -> Result<(), Problem> {
        let name_it = async {
            self.check_is_ours(name).await?;
            self.docker.name_image(&image, name).await
        };
        let named = name_it.await;
        let state = match &named {
            Ok(()) => BuildState::Named(image),
            Err(problem) if matches!(problem.code, Code::ImageForbidden | Code::BuildFailed) => {
                BuildState::Old(image)
            }
            // An engine that does not answer is asked again.
            Err(_) => return named,
        };
        self.note_build(owner, id, state).await?;
        named
    }

    /// Has the packages installed for an image, as for a session of it.
    async fn find_packages(
        self: &Arc<Self>,
        build: &SandboxId,
        BuildCaller { owner, ledger, progress, stop }: BuildCaller<'_>,
        from: Option<String>,
        requirements: Vec<Requirement>,
    ) -> Result<AddedPackages, Problem> {
        let settings = &self.settings.sandbox;
        let image = self.built_images.wanted(owner, from.as_deref(), &settings.images);
        let wanted = SandboxRequest { image, ..SandboxRequest::of_errand(settings) };
        let base = unless_given_up(stop, self.docker.resolve_image(&wanted, progress)).await?;
        let backend = Backend::Docker;
        let packages = WantedPackages {
            owner,
            backend,
            image: base.clone(),
            existing: None,
            requirements,
            replace: false,
            sources: false,
            session: None,
            stop: stop.clone(),
        };
        // This is not dropped: it has to end its sandbox before others get the user id and the room.
        let installed = self.install(&packages, ledger, progress).await.map_err(|problem| {
            if problem.code == Code::PackageConflict {
                return problem.hint("name other versions, or begin with another image: `--from IMAGE`");
            }
            problem
        })?;
        let Installed { set: Some(set), used, .. } = installed else {
            let what = format!("the image `{}` has all of these packages already", base.reference);
            return Err(Problem::new(Code::BadRequest, what).hint("use that image as it is"));
        };
        let (spec, _slot, _folder) =
            self.errand_spec(build, (backend, &base), Limits::new(settings, &wanted)).await?;
        let site = kernel_files::site(&spec.kernel_dir).ok_or_else(|| {
            let what =
                format!("the Python of `{}` has no folder for packages that could be used", base.reference);
            Problem::new(Code::BuildFailed, what).hint("begin with another image: `--from IMAGE`")
        })?;
        Ok(AddedPackages { base, set, used, site })
    }

    /// Charges the owner, and writes down that a build begins.
    async fn begin_build(self: &Arc<Self>, build: Build, ledger: &Ledger) -> Result<(), Problem> {
        let owner = build.origin.owner;
        let permit = ledger.take(owner, &entry_name(&build.name), disk(build.bytes))?;
        self.in_list(owner, move |images| images.begin(build, permit)).await
    }

    async fn note_build(&self, owner: Principal, id: &SandboxId, state: BuildState) -> Result<(), Problem> {
        let id = id.clone();
        self.in_list(owner, move |images| images.set_state(&id, &state)).await
    }

    /// Works on the list of builds, which is a file.
    async fn in_list(
        &self,
        owner: Principal,
        work: impl FnOnce(&BuiltImages) -> Result<(), Problem> + Send + 'static,
    ) -> Result<(), Problem> {
        let images = self.built_images.clone();
        folders::run(owner, WorkKind::Look, None, move || work(&images)).await?
    }

    /// Removes an image that a user built, for whom `may` it. One that the engine still needs goes later.
    pub async fn remove_built_image(
        &self,
        name: &str,
        may: impl Fn(Principal) -> bool,
    ) -> Result<(), Problem> {
        let _turn = self.image_turn().await?;
        let leaving = self.built_images.removable(name, may)?;
        for build in &leaving.builds {
            self.note_build(build.origin.owner, &build.id, build.state.clone()).await?;
            self.settle(build.clone()).await?;
        }
        Ok(())
    }

    /// Finishes or removes what builds have left in the engine, also those of a daemon that was killed. What takes too
    /// long is left to the next time.
    pub async fn settle_images(&self) {
        // While somebody builds, an unfinished build is not left over.
        let Ok(_turn) = self.built_images.work.try_lock() else { return };
        if tokio::time::timeout(SETTLING, self.settle_all()).await.is_err() {
            tracing::warn!("the engine takes long to remove what builds left; the rest is removed later");
        }
    }

    async fn settle_all(&self) {
        for build in self.built_images.unsettled() {
            self.settle_or_leave(&build.id).await;
        }
    }

    async fn settle_or_leave(&self, id: &SandboxId) {
        let build = self.built_images.unsettled().into_iter().find(|build| build.id == *id);
        let Some(build) = build else { return };
        match tokio::time::timeout(SETTLING_ONE, self.settle(build)).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => {
                tracing::warn!(problem = problem.message, build = %id, "what a build left is removed later");
            }
            Err(_) => tracing::warn!(build = %id, "the engine takes long to remove what a build left"),
        }
    }

    async fn settle(&self, build: Build) -> Result<(), Problem> {
        let Build { id, name, origin: ImageOrigin { owner, from, .. }, state, .. } = build;
        let parents = if from.is_some() { Parents::Stay } else { Parents::Go };
        let (removal, image) = match state {
            BuildState::Begun => (self.docker.remove_unfinished(&id, &name, parents).await?, None),
            BuildState::Old(image) => (self.docker.remove_build(&image, &name, parents).await?, Some(image)),
            BuildState::Made(image) => return self.name_build(owner, &id, &name, image).await,
            BuildState::Named(_) => return Ok(()),
        };
        if matches!(removal, Removal::InUse) {
            return Ok(());
        }
        if let Some(image) = image {
            self.remove_kernel(&image).await?;
        }
        self.in_list(owner, move |images| images.forget(&id)).await
    }
}

/// Does the work, or drops it when nobody wants its outcome any more.
async fn unless_given_up<T>(
    stop: &CancellationToken,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let given_up =
        || Err(Problem::new(Code::BuildFailed, "the build was given up: nobody waits for it any more"));
    stop.run_until_cancelled(work).await.unwrap_or_else(given_up)
}

fn busy() -> Problem {
    Problem::new(Code::Busy, "another image is being built or removed")
        .hint("try again when that has ended; images are built one after the other")
}

fn foreign(name: &str) -> Problem {
    let what = format!("the engine has an image `{name}` that was not built here");
    Problem::new(Code::ImageForbidden, what)
        .hint(format!("choose another name, or remove that image: `docker rmi {name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_made_of_one_thing() {
        let allowed = ["python:3.12".to_owned()];
        let settings =
            crate::config::load_text(std::path::Path::new("c.toml"), "").unwrap().settings.packages;
        let of = |from: Option<&str>, packages: &[&str], dockerfile: Option<&str>| {
            let request = BuildImage {
                name: "plots".into(),
                from: from.map(ToOwned::to_owned),
                packages: packages.iter().map(|package| (*package).to_owned()).collect(),
                dockerfile: dockerfile.map(ToOwned::to_owned),
            };
            ImageRecipe::of(request, &allowed, &settings)
        };
        let long = "#".repeat(DOCKERFILE_BYTES + 1);
        for (wrong, code) in [
            (of(None, &[], None), Code::BadRequest),
            (of(None, &["numpy"], Some("FROM x")), Code::BadRequest),
            (of(Some("python:3.12"), &[], Some("FROM x")), Code::BadRequest),
            (of(Some("python:3.12"), &[], None), Code::BadRequest),
            (of(None, &["-r x"], None), Code::BadRequest),
            (of(None, &[], Some(&long)), Code::TooLarge),
        ] {
            let problem = wrong.unwrap_err();
            assert_eq!(problem.code, code, "{problem:?}");
            assert!(problem.hint.is_some(), "{problem:?}");
        }
        let made = of(None, &[], Some("FROM x")).unwrap();
        assert_eq!(
            made,
            ImageRecipe { name: "plots:latest".into(), content: ImageContent::Dockerfile("FROM x".into()) }
        );
        let ImageContent::Packages { from, requirements } =
            of(Some("python:3.12"), &["numpy<3"], None).unwrap().content
        else {
            panic!("packages are wanted")
        };
        assert_eq!((from.as_deref(), requirements.len()), (Some("python:3.12"), 1));
    }
}

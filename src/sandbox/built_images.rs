//! The images that users have built: which there are, whose they are, and which sessions use them. The list is a file in
//! the daemon's home, because the engine's own names can be changed by everybody who may use the engine.
//!
//! A build is on the list before anything of it is in the engine, so that the next daemon removes what a killed one began.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::storage_problem;
use super::images::{WantedImage, tagged};
use crate::protocol::ids::{SandboxId, SessionId, SessionName};
use crate::protocol::image::ImageOrigin;
use crate::protocol::limits::BUILT_IMAGES;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::ImageFact;
use crate::protocol::text::quotable;
use crate::quota::{Amounts, Ledger, Permit};
use crate::security_controls;

/// The most bytes of the list that are read.
const LIST_BYTES: u64 = 16 * 1024 * 1024;

/// One build of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The label of its container and of its image.
    pub id: SandboxId,
    /// The name of the image, with its tag.
    pub name: String,
    pub origin: ImageOrigin,
    /// What its packages take on the engine's disk.
    pub bytes: u64,
    pub state: BuildState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "image")]
pub enum BuildState {
    /// The build is unfinished; what the engine has of it must not be used.
    Begun,
    /// The image of this id is there, and gets its name now.
    Made(String),
    /// The name is that of this image.
    Named(String),
    /// Another build has the name, or its owner removed it; sessions may still use the image.
    Old(String),
}

impl BuildState {
    /// What becomes of this when a newer build of the same name comes to a state.
    fn beside(&self, newer: &Self) -> Self {
        match (self, newer) {
            (Self::Made(image), Self::Made(_) | Self::Named(_)) | (Self::Named(image), Self::Named(_)) => {
                Self::Old(image.clone())
            }
            (state, _) => state.clone(),
        }
    }
}

impl Build {
    /// The image that sessions get by its name.
    fn current(&self) -> Option<ImageFact> {
        match &self.state {
            BuildState::Named(id) => Some(ImageFact { reference: self.name.clone(), id: id.clone() }),
            BuildState::Begun | BuildState::Made(_) | BuildState::Old(_) => None,
        }
    }

    /// The build as it is when its owner has removed its image; none if it has no image, or did not have the name.
    fn removed(&self) -> Option<Self> {
        match &self.state {
            BuildState::Made(id) | BuildState::Named(id) => {
                Some(Self { state: BuildState::Old(id.clone()), ..self.clone() })
            }
            BuildState::Begun | BuildState::Old(_) => None,
        }
    }
}

/// The builds of all users. Clones are the same.
#[derive(Clone)]
pub struct BuiltImages {
    file: PathBuf,
    /// Why the list cannot be read, if so. Then it stays as it is, and nothing is built or removed.
    unreadable: Option<Arc<std::io::Error>>,
    known: Arc<Mutex<Known>>,
    /// Held while the list is changed, on a thread that may wait for the disk.
    changes: Arc<Mutex<()>>,
    /// Held while an image is built or removed, so that nobody takes an unfinished one for what a killed daemon left.
    pub(super) work: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Known {
    builds: Vec<Build>,
    /// What the builds take of their owners' disks.
    permits: BTreeMap<SandboxId, Permit>,
    /// The sessions that named an image, whether somebody built it or not.
    sessions: BTreeMap<SessionId, SessionImage>,
    /// The builds that are being removed, which no session gets any more.
    leaving: BTreeSet<SandboxId>,
    /// Whether the daemon ends: sessions let go of their images then, but the next daemon has them again.
    is_ending: bool,
}

/// The image that a session named, and whose session it is.
struct SessionImage {
    image: String,
    owner: Principal,
    session: SessionName,
}

/// The use of an image by a session, until this value is dropped.
pub struct ImageUse {
    images: BuiltImages,
    session: SessionId,
}

impl Drop for ImageUse {
    fn drop(&mut self) {
        self.images.known.lock().sessions.remove(&self.session);
    }
}

/// The builds of a name that are being removed. Until this value is dropped, no session gets their images.
pub struct LeavingBuilds {
    images: BuiltImages,
    /// The builds, with the state they will have.
    pub builds: Vec<Build>,
}

impl Drop for LeavingBuilds {
    fn drop(&mut self) {
        let mut known = self.images.known.lock();
        known.leaving.retain(|id| self.builds.iter().all(|build| build.id != *id));
    }
}

impl Known {
    /// The image of this name, if this user built it.
    fn current(&self, owner: Principal, name: &str) -> Option<ImageFact> {
        let is_theirs = |build: &&Build| {
            build.origin.owner == owner || !security_controls::holds("built_images_are_their_builders")
        };
        let builds = self.builds.iter().filter(|build| build.name == tagged(name)).filter(is_theirs);
        builds.filter(|build| !self.leaving.contains(&build.id)).find_map(Build::current)
    }

    fn wanted(&self, owner: Principal, name: Option<&str>, allowed: &[String]) -> WantedImage {
        let Some(name) = name else { return WantedImage::Any };
        let built = if is_listed(name, allowed) { None } else { self.current(owner, name) };
        built.map_or_else(|| WantedImage::Named(name.to_owned()), WantedImage::Built)
    }
}

impl BuiltImages {
    /// The list of an earlier daemon. One that cannot be read allows no image.
    pub fn load(file: PathBuf) -> Self {
        let (list, unreadable) = match read(&file) {
            Ok(list) => (list, None),
            Err(error) => {
                tracing::error!(%error, file = %file.display(), "the list of built images cannot be read");
                (None, Some(Arc::new(error)))
            }
        };
        let known = Known { builds: list.unwrap_or_default(), ..Known::default() };
        Self {
            file,
            unreadable,
            known: Arc::new(Mutex::new(known)),
            changes: Arc::default(),
            work: Arc::default(),
        }
    }

    /// Refuses work on a list that cannot be read: what is on it would be lost.
    fn check_list(&self) -> Result<(), Problem> {
        let Some(error) = &self.unreadable else { return Ok(()) };
        let what = format!("the list of built images `{}` cannot be read: {error}", self.file.display());
        Err(Problem::new(Code::Storage, what)
            .hint("repair it, or move it away to begin without one, and start the daemon again; nothing is built or removed until then"))
    }

    /// From now on no older image is removed, because which of them sessions need is not known any more.
    pub fn end(&self) {
        self.known.lock().is_ending = true;
    }

    /// Charges all users for the images that an earlier daemon built for them.
    pub fn charge_all(&self, ledger: &Ledger) {
        let Known { builds, permits, .. } = &mut *self.known.lock();
        for build in builds {
            let permit = ledger.keep(build.origin.owner, &entry_name(&build.name), disk(build.bytes));
            permits.insert(build.id.clone(), permit);
        }
    }

    /// The image that a name stands for when this user asks for it. The list of the configuration comes first.
    pub fn wanted(&self, owner: Principal, name: Option<&str>, allowed: &[String]) -> WantedImage {
        self.known.lock().wanted(owner, name, allowed)
    }

    /// The image that a new session asks for, and the use of it, which begins at once, so that nobody removes the image
    /// before the session has it. A name that stands for no image of this user is refused later, and is no use of one.
    pub fn wanted_by(
        &self,
        owner: Principal,
        session: SessionId,
        session_name: &SessionName,
        name: Option<&str>,
        allowed: &[String],
    ) -> (WantedImage, Option<ImageUse>) {
        let mut known = self.known.lock();
        let wanted = known.wanted(owner, name, allowed);
        let is_used = match &wanted {
            WantedImage::Any => false,
            WantedImage::Named(name) => is_listed(name, allowed),
            WantedImage::Built(_) => true,
        };
        let name = name.filter(|_| is_used);
        let in_use = name.map(|name| self.begin_use(&mut known, owner, session, session_name, name));
        (wanted, in_use)
    }

    /// The images of a user, or of all users, that sessions may name.
    pub fn list(&self, owner: Option<Principal>) -> Vec<(ImageFact, ImageOrigin)> {
        let known = self.known.lock();
        let wanted =
            known.builds.iter().filter(|build| owner.is_none_or(|owner| owner == build.origin.owner));
        wanted.filter_map(|build| Some((build.current()?, build.origin.clone()))).collect()
    }

    /// Whether the user has built an image.
    pub fn has_some(&self, owner: Principal) -> bool {
        self.known.lock().builds.iter().any(|build| build.origin.owner == owner)
    }

    /// Whether the engine may have an image under this name because of a build.
    pub fn is_ours(&self, name: &str, id: &str) -> bool {
        let is_it = |build: &Build| match &build.state {
            BuildState::Begun => false,
            BuildState::Made(image) | BuildState::Named(image) | BuildState::Old(image) => image == id,
        };
        self.known.lock().builds.iter().any(|build| build.name == name && is_it(build))
    }

    /// The builds that are not finished, and those that nobody needs any more.
    pub fn unsettled(&self) -> Vec<Build> {
        let known = self.known.lock();
        let is_used = |name: &str| known.sessions.values().any(|session| session.image == name);
        let is_unsettled = |build: &&Build| match build.state {
            BuildState::Begun | BuildState::Made(_) => true,
            BuildState::Named(_) => false,
            BuildState::Old(_) => !known.is_ending && !is_used(&build.name),
        };
        known.builds.iter().filter(is_unsettled).cloned().collect()
    }

    /// Refuses a build whose name another user has, or for which its owner has too many.
    pub fn check_new(&self, owner: Principal, name: &str) -> Result<(), Problem> {
        self.check_list()?;
        let known = self.known.lock();
        if known.builds.iter().any(|build| build.name == name && build.origin.owner != owner) {
            return Err(Problem::new(Code::Forbidden, format!("another user has built an image `{name}`"))
                .hint("choose another name: the engine has one list of names for all users"));
        }
        if known.builds.iter().filter(|build| build.origin.owner == owner).count() >= BUILT_IMAGES {
            return Err(Problem::new(
                Code::TooMany,
                format!("you have built {BUILT_IMAGES} images, and no more are kept"),
            )
            .hint("remove one with `belljar image rm NAME`; one that sessions began with stays until they are removed"));
        }
        Ok(())
    }

    /// Writes a new build down, and charges its owner. Nothing of it may be in the engine before that.
    pub fn begin(&self, build: Build, permit: Permit) -> Result<(), Problem> {
        let id = build.id.clone();
        self.change(|builds| builds.push(build))?;
        self.known.lock().permits.insert(id, permit);
        Ok(())
    }

    /// Changes the state of a build, and of the older ones of its name.
    pub fn set_state(&self, id: &SandboxId, state: &BuildState) -> Result<(), Problem> {
        self.change(|builds| {
            let name = builds.iter().find(|build| build.id == *id).map(|build| build.name.clone());
            for build in builds.iter_mut().filter(|build| Some(&build.name) == name.as_ref()) {
                build.state = if build.id == *id { state.clone() } else { build.state.beside(state) };
            }
        })
    }

    /// Forgets a build of which the engine has nothing any more.
    pub fn forget(&self, id: &SandboxId) -> Result<(), Problem> {
        self.change(|builds| builds.retain(|build| build.id != *id))?;
        drop(self.known.lock().permits.remove(id));
        Ok(())
    }

    /// The builds of a name that a user wants to remove; a refusal if sessions use it. `may` says whose images this user
    /// may remove, and whose sessions the refusal may name.
    pub fn removable(&self, name: &str, may: impl Fn(Principal) -> bool) -> Result<LeavingBuilds, Problem> {
        self.check_list()?;
        let image = tagged(name);
        let mut known = self.known.lock();
        let theirs = known.builds.iter().filter(|build| build.name == image && may(build.origin.owner));
        let builds: Vec<Build> = theirs.filter_map(Build::removed).collect();
        if builds.is_empty() {
            let what = format!("you have built no image `{}`", quotable(name));
            return Err(Problem::new(Code::NoSuchImage, what).hint("`belljar image ls` lists yours"));
        }
        let users = known.sessions.values().filter(|session| session.image == image);
        let (nameable, others): (Vec<_>, Vec<_>) = users.partition(|session| may(session.owner));
        if !(nameable.is_empty() && others.is_empty()) && security_controls::holds("images_in_use_stay") {
            let nameable: Vec<String> =
                nameable.into_iter().map(|session| format!("`{}`", session.session)).collect();
            return Err(in_use(&image, &nameable, others.len()));
        }
        known.leaving.extend(builds.iter().map(|build| build.id.clone()));
        Ok(LeavingBuilds { images: self.clone(), builds })
    }

    /// Records that a session of an earlier daemon names an image, until the answer is dropped. It has its image, whatever
    /// the name stands for now.
    pub fn use_again(
        &self,
        owner: Principal,
        session: SessionId,
        session_name: &SessionName,
        image: Option<&str>,
    ) -> Option<ImageUse> {
        Some(self.begin_use(&mut self.known.lock(), owner, session, session_name, image?))
    }

    fn begin_use(
        &self,
        known: &mut Known,
        owner: Principal,
        session: SessionId,
        session_name: &SessionName,
        image: &str,
    ) -> ImageUse {
        let named = SessionImage { image: tagged(image), owner, session: session_name.clone() };
        known.sessions.insert(session, named);
        ImageUse { images: self.clone(), session }
    }

    /// Changes the list: first the file, then what is known. Nobody who only asks waits for the disk.
    fn change(&self, change: impl FnOnce(&mut Vec<Build>)) -> Result<(), Problem> {
        self.check_list()?;
        let _alone = self.changes.lock();
        let mut builds = self.known.lock().builds.clone();
        change(&mut builds);
        write(&self.file, &builds).map_err(|error| storage_problem(&self.file, &error))?;
        self.known.lock().builds = builds;
        Ok(())
    }
}

/// Whether the configuration lets all users name the image.
fn is_listed(name: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|image| tagged(image) == tagged(name))
}

/// The refusal to remove an image that sessions use. How many there are of other users is all that is told of those.
fn in_use(image: &str, nameable: &[String], others: usize) -> Problem {
    let sessions = |count: usize| if count == 1 { "session" } else { "sessions" };
    let nameable =
        (!nameable.is_empty()).then(|| format!("the {} {}", sessions(nameable.len()), nameable.join(", ")));
    let hint = nameable
        .as_ref()
        .map_or("wait until they have ended", |_| "remove what uses it first, with `belljar rm NAME`");
    let others = (others > 0).then(|| format!("{others} {} of other users", sessions(others)));
    let users: Vec<String> = [nameable, others].into_iter().flatten().collect();
    Problem::new(Code::Busy, format!("the image `{image}` is used by {}", users.join(" and "))).hint(hint)
}

/// How an image appears in its owner's quota.
pub(super) fn entry_name(name: &str) -> String {
    format!("image {name}")
}

/// The amount of disk that an image takes beside the image it was made from.
pub(super) fn disk(bytes: u64) -> Amounts {
    Amounts::of([(
        Kind::Workspace,
        if security_controls::holds("built_images_are_charged") { bytes } else { 0 },
    )])
}

/// None if nothing was ever built.
fn read(file: &Path) -> std::io::Result<Option<Vec<Build>>> {
    let mut text = String::new();
    match std::fs::File::open(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        list => list?.take(LIST_BYTES).read_to_string(&mut text)?,
    };
    Ok(Some(serde_json::from_str(&text)?))
}

/// The list appears whole or not at all.
fn write(file: &Path, builds: &[Build]) -> std::io::Result<()> {
    let draft = file.with_extension("draft");
    let mut options = std::fs::OpenOptions::new();
    let mut draft_file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    draft_file.write_all(&serde_json::to_vec(builds)?)?;
    draft_file.sync_all()?;
    std::fs::rename(&draft, file)?;
    file.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests;

//! The images that users have built: which there are, whose they are, and which sessions use them. The list is a file in
//! the daemon's home, because the engine's own names can be changed by everybody who may use the engine.
//!
//! A build is on the list before anything of it is in the engine, so that the next daemon removes what a killed one began.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// What the engine has of it is of no use.
    Begun,
    /// The image of this id is there, and gets its name now.
    Made(String),
    /// The name is that of this image.
    Named(String),
    /// Another build has the name, or its owner removed it; sessions may still use the image.
    Old(String),
}

impl Build {
    /// The image that sessions get by its name.
    fn current(&self) -> Option<ImageFact> {
        match &self.state {
            BuildState::Named(id) => Some(ImageFact { reference: self.name.clone(), id: id.clone() }),
            BuildState::Begun | BuildState::Made(_) | BuildState::Old(_) => None,
        }
    }
}

/// The builds of all users. Clones are the same.
#[derive(Clone)]
pub struct BuiltImages {
    file: PathBuf,
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
    sessions: BTreeMap<SessionId, (String, SessionName)>,
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

impl BuiltImages {
    /// The list of an earlier daemon. One that cannot be read allows no image.
    pub fn load(file: PathBuf) -> Self {
        let builds = read(&file).unwrap_or_else(|error| {
            tracing::error!(%error, file = %file.display(), "the list of built images cannot be read");
            Vec::new()
        });
        let known = Known { builds, ..Known::default() };
        Self { file, known: Arc::new(Mutex::new(known)), changes: Arc::default(), work: Arc::default() }
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
        let Some(name) = name else { return WantedImage::Any };
        let is_listed = allowed.iter().any(|image| tagged(image) == tagged(name));
        let built = if is_listed { None } else { self.current(owner, name) };
        built.map_or_else(|| WantedImage::Named(name.to_owned()), WantedImage::Built)
    }

    /// The image of this name, if this user built it.
    fn current(&self, owner: Principal, name: &str) -> Option<ImageFact> {
        let is_theirs = |build: &&Build| {
            build.origin.owner == owner || !security_controls::holds("built_images_are_their_builders")
        };
        let known = self.known.lock();
        let mut builds = known.builds.iter().filter(|build| build.name == tagged(name)).filter(is_theirs);
        builds.find_map(Build::current)
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
        let is_used = |name: &str| known.sessions.values().any(|(used, _)| used == name);
        let is_unsettled = |build: &&Build| match build.state {
            BuildState::Begun | BuildState::Made(_) => true,
            BuildState::Named(_) => false,
            BuildState::Old(_) => !is_used(&build.name),
        };
        known.builds.iter().filter(is_unsettled).cloned().collect()
    }

    /// Refuses a build whose name another user has, or for which its owner has too many.
    pub fn check_new(&self, owner: Principal, name: &str) -> Result<(), Problem> {
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

    /// Changes the state of a build. When it gets its name, the build that had it is an old one.
    pub fn set_state(&self, id: &SandboxId, state: &BuildState) -> Result<(), Problem> {
        self.change(|builds| {
            let name = builds.iter().find(|build| build.id == *id).map(|build| build.name.clone());
            for build in builds.iter_mut() {
                if build.id == *id {
                    build.state = state.clone();
                } else if Some(&build.name) == name.as_ref()
                    && let (BuildState::Named(image), BuildState::Named(_)) = (&build.state, state)
                {
                    build.state = BuildState::Old(image.clone());
                }
            }
        })
    }

    /// Forgets a build of which the engine has nothing any more.
    pub fn forget(&self, id: &SandboxId) -> Result<(), Problem> {
        self.change(|builds| builds.retain(|build| build.id != *id))?;
        drop(self.known.lock().permits.remove(id));
        Ok(())
    }

    /// The build whose image a user wants to remove; a refusal if sessions use it.
    pub fn removable(
        &self,
        name: &str,
        may: impl Fn(Principal) -> bool,
    ) -> Result<(SandboxId, Principal, ImageFact), Problem> {
        let known = self.known.lock();
        let mut found =
            known.builds.iter().filter(|build| build.name == tagged(name) && may(build.origin.owner));
        let found = found.find_map(|build| Some((build.id.clone(), build.origin.owner, build.current()?)));
        let Some((id, owner, image)) = found else {
            let what = format!("you have built no image `{}`", quotable(name));
            return Err(Problem::new(Code::NoSuchImage, what).hint("`belljar image ls` lists yours"));
        };
        let users = known.sessions.values().filter(|(used, _)| *used == image.reference);
        let users: Vec<String> = users.map(|(_, session)| format!("`{session}`")).collect();
        if !users.is_empty() && security_controls::holds("images_in_use_stay") {
            let (word, name) = (if users.len() == 1 { "session" } else { "sessions" }, &image.reference);
            let what = format!("the image `{name}` is used by the {word} {}", users.join(", "));
            return Err(
                Problem::new(Code::Busy, what).hint("remove what uses it first, with `belljar rm NAME`")
            );
        }
        Ok((id, owner, image))
    }

    /// Records that a session names an image, until the answer is dropped.
    pub fn use_by(
        &self,
        session: SessionId,
        session_name: &SessionName,
        image: Option<&str>,
    ) -> Option<ImageUse> {
        let name = tagged(image?);
        self.known.lock().sessions.insert(session, (name, session_name.clone()));
        Some(ImageUse { images: self.clone(), session })
    }

    /// Changes the list: first the file, then what is known. Nobody who only asks waits for the disk.
    fn change(&self, change: impl FnOnce(&mut Vec<Build>)) -> Result<(), Problem> {
        let _alone = self.changes.lock();
        let mut builds = self.known.lock().builds.clone();
        change(&mut builds);
        write(&self.file, &builds).map_err(|error| storage_problem(&self.file, &error))?;
        self.known.lock().builds = builds;
        Ok(())
    }
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

fn read(file: &Path) -> std::io::Result<Vec<Build>> {
    let mut text = String::new();
    match std::fs::File::open(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list?.take(LIST_BYTES).read_to_string(&mut text)?,
    };
    Ok(serde_json::from_str(&text)?)
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

//! Packages that were installed once, kept for later sessions: a folder of files for each set, and the answer to each
//! request. What a guest could have written is given to sessions of the same user only, unless the administrator shares
//! the cache; then the daemon's own user pays for it. What code of packages had a hand in is never shared. A set appears under its name when all its files are there.

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::charges::{Charges, CopyUse, Pay, SetNote, UnreadSession, UseKind};
use super::draft::Draft;
use super::make_room::Missing;
use super::small_charges::SmallCharges;
use super::tree::Copied;
use crate::config::Packages as Settings;
use crate::protocol::ids::SessionName;
use crate::protocol::packages::{InstalledPackage, PackageVersion, ReplacedPackage};
use crate::protocol::principal::Principal;
use crate::quota::{Ledger, Permit};
use crate::sandbox::workspace::remove_tree;
use crate::security_controls;

/// Largest note of the cache.
pub const NOTE_BYTES: u64 = 1024 * 1024;
/// Most packages that the note of a set names.
const NAMED_PACKAGES: usize = 200;
/// Most answers that are kept; those that were not used for the longest time go first.
const ANSWERS: usize = 1000;
/// The folder of all users if the administrator shares the cache.
const SHARED: &str = "shared";
const NOTE: &str = "set.json";
const SITE: &str = "site";

/// Where a session finds the packages that a request brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The key of the set; none if the image has all that was asked for.
    pub key: Option<String>,
    pub packages: Vec<InstalledPackage>,
    pub bytes: u64,
    pub in_image: Vec<PackageVersion>,
    /// Versions of the image that other ones of the set stand before.
    pub replaced: Vec<ReplacedPackage>,
    /// Versions that the asking session had, which the installer kept to. They may be old, or a stranger's choice, so that
    /// this is no answer for sessions without them.
    #[serde(default)]
    pub pinned: Vec<PackageVersion>,
}

/// The caches of all users.
pub struct PackageCache {
    root: PathBuf,
    shared: bool,
    most_bytes: u64,
    /// The user as whom the daemon runs, who pays for a shared cache.
    daemon: Principal,
    /// One installation of each user at a time, so that equal requests are answered once.
    turns: Mutex<BTreeMap<Principal, Arc<tokio::sync::Mutex<()>>>>,
    /// A lock for each cache: shared while sets are looked up, exclusive while one is moved away. Exclusive access is
    /// only tried, since waiting for it would block later readers.
    uses: Mutex<BTreeMap<PathBuf, Arc<RwLock<()>>>>,
    pub charges: Charges,
    /// The charges for answers and for `uv`, by their folders.
    small: SmallCharges,
}

/// The cache that one user's sessions use. All its work is with files, and not for threads of the runtime.
#[derive(Clone)]
pub struct UserCache {
    /// The folder with sets and answers.
    folder: PathBuf,
    /// The folder with drafts and `uv`, which are the user's in any case.
    own: PathBuf,
    owner: Principal,
    /// Who pays for sets and answers.
    payer: Principal,
    pub uses: Arc<RwLock<()>>,
}

/// A set that is in the cache.
pub struct CachedSet {
    pub site: PathBuf,
    /// The file of the note.
    pub note_file: PathBuf,
    pub note: SetNote,
    /// When it was used last.
    pub used: SystemTime,
}

impl PackageCache {
    #[must_use]
    pub fn new(root: PathBuf, settings: &Settings, daemon: Principal) -> Self {
        Self {
            root,
            shared: settings.shared,
            most_bytes: settings.cache_bytes,
            daemon,
            turns: Mutex::default(),
            uses: Mutex::default(),
            charges: Charges::default(),
            small: SmallCharges::default(),
        }
    }

    /// The folders that installations of an earlier daemon left unfinished, where an installer of it may still write, and
    /// those that had the name of a set and are none.
    pub fn unfinished(&self) -> Vec<PathBuf> {
        self.caches().iter().for_each(UserCache::put_aside_what_is_no_set);
        let drafts = entries(&self.root).map(|cache| cache.join("drafts"));
        drafts.flat_map(|drafts| entries(&drafts).collect::<Vec<_>>()).collect()
    }

    /// Charges all users for what an earlier daemon kept for them.
    pub fn charge_all(&self, ledger: &Ledger) {
        for cache in self.caches() {
            for (key, set) in cache.sets() {
                self.charges.keep(cache.payer, &key, &set.note, ledger);
            }
            self.charge_small(&cache, ledger);
        }
    }

    /// The caches that have a folder.
    pub fn caches(&self) -> Vec<UserCache> {
        let of_folder = |folder: PathBuf| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let owner = name.parse().map_or(self.daemon, Principal::new);
            self.at(&name, owner, owner)
        };
        entries(&self.root).map(of_folder).collect()
    }

    /// Keeps what a session of the user might use until it has said what it uses; without a user, what any might.
    pub fn unread_session(&self, owner: Option<Principal>) -> UnreadSession {
        self.charges.unread(owner.filter(|_| self.is_private()))
    }

    pub fn is_private(&self) -> bool {
        !self.shared && security_controls::holds("package_caches_are_private")
    }

    fn at(&self, name: &str, owner: Principal, payer: Principal) -> UserCache {
        let folder = self.root.join(name);
        let uses = Arc::clone(self.uses.lock().entry(folder.clone()).or_default());
        UserCache { folder, own: self.root.join(owner.to_string()), owner, payer, uses }
    }

    /// The cache that has a user's sets; `built` ones are those beside which code of packages may have run.
    pub fn of(&self, owner: Principal, built: bool) -> std::io::Result<UserCache> {
        let is_own = built && security_controls::holds("built_packages_are_private");
        let cache = if is_own || self.is_private() {
            self.at(&owner.to_string(), owner, owner)
        } else {
            self.at(SHARED, owner, self.daemon)
        };
        let make = |folder: PathBuf| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        ["sets", "requests"].into_iter().try_for_each(|folder| make(cache.folder.join(folder)))?;
        ["tools", "drafts"].into_iter().try_for_each(|folder| make(cache.own.join(folder)))?;
        Ok(cache)
    }

    /// The user's turn to install.
    pub fn turn(&self, owner: Principal) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.turns.lock().entry(owner).or_default())
    }

    /// Moves a folder with `site` into the cache, after unused sets have made room for it, and uses it. If the set is there
    /// already, that one stays. The caller holds an amount for the files until they are charged here.
    pub fn keep(
        &self,
        cache: &UserCache,
        ledger: &Ledger,
        made: &Path,
        key: &str,
        copied: &Copied,
        session: Option<&SessionName>,
    ) -> std::io::Result<CopyUse> {
        let Some(target) = cache.set_folder(key) else {
            return Err(std::io::Error::other("a set without a key"));
        };
        let note = SetNote {
            copy: uuid::Uuid::new_v4().to_string(),
            bytes: copied.bytes,
            folder_bytes: copied.folder_bytes,
            packages: copied.packages.iter().take(NAMED_PACKAGES).map(PackageVersion::from).collect(),
        };
        std::fs::write(made.join(NOTE), serde_json::to_vec(&note)?)?;
        // All of it is on the disk before its name is.
        rustix::fs::syncfs(std::fs::File::open(made)?)?;
        self.keep_within_bound(cache, copied.bytes, key);
        cache.remove_if_no_set(&target);
        let _in_use = cache.uses.read();
        let note = match std::fs::rename(made, &target) {
            Err(_) if target.is_dir() => CachedSet::read(&target)?.ok_or_else(gone)?.note,
            outcome => {
                outcome?;
                note
            }
        };
        self.charges.keep(cache.payer, key, &note, ledger);
        let used = self.charges.use_copy(cache.owner, &note, ledger, Pay::Anyway, UseKind::of(session));
        std::fs::File::open(cache.folder.join("sets"))?.sync_all()?;
        used.map_err(|_| std::io::Error::other("the packages cannot be charged"))
    }

    /// Uses a set of the cache for a session that had it before; none if the cache has it no more.
    pub fn use_again(
        &self,
        cache: &UserCache,
        ledger: &Ledger,
        key: &str,
        session: &SessionName,
    ) -> std::io::Result<Option<CopyUse>> {
        let Some(folder) = cache.set_folder(key) else { return Ok(None) };
        let _in_use = cache.uses.read();
        let Some(set) = CachedSet::read(&folder)? else { return Ok(None) };
        // A copy that could not be read when the daemon started is charged now.
        self.charges.keep(cache.payer, key, &set.note, ledger);
        let kind = UseKind::Session(session.clone());
        Ok(self.charges.use_copy(cache.owner, &set.note, ledger, Pay::Anyway, kind).ok())
    }

    /// Keeps the answer to a request, removes answers that lead nowhere or are too many, and charges the rest, with the
    /// user's `uv`.
    pub fn remember(
        &self,
        cache: &UserCache,
        ledger: &Ledger,
        answer: Option<(&str, &Answer)>,
    ) -> std::io::Result<()> {
        let written =
            answer.map_or(Ok(()), |(request, answer)| self.keep_answer(cache, ledger, request, answer));
        cache.tidy_answers();
        self.charge_small(cache, ledger);
        written
    }

    /// Forgets the answers that lead to no set, also those that said that an image has everything.
    pub fn forget_answers(&self, cache: &UserCache, ledger: &Ledger) {
        let leads_to_set = |answer: Answer| {
            answer.key.and_then(|key| cache.set_folder(&key)).is_some_and(|folder| folder.is_dir())
        };
        for path in entries(&cache.answers()) {
            if !read_note(&path).is_some_and(leads_to_set) {
                let _ = std::fs::remove_file(path);
            }
        }
        self.charge_small(cache, ledger);
    }

    /// An answer that is too long, or for which its payer has no room, is not kept: it is no mistake to ask the index
    /// again.
    fn keep_answer(
        &self,
        cache: &UserCache,
        ledger: &Ledger,
        request: &str,
        answer: &Answer,
    ) -> std::io::Result<()> {
        let text = serde_json::to_vec(answer)?;
        if text.len() as u64 > NOTE_BYTES {
            return Ok(());
        }
        let (answers, bytes) = (cache.answers(), text.len() as u64);
        self.small.write((&answers, cache.payer), ledger, bytes, || cache.write_answer(request, &text))
    }

    /// Takes over the `uv` that an installer fetched into a draft, and charges it. The draft pays for it until then.
    pub fn keep_uv(&self, cache: &UserCache, ledger: &Ledger, made: &Path) -> std::io::Result<()> {
        let kept = cache.keep_uv(made);
        self.charge_small(cache, ledger);
        kept
    }

    fn charge_small(&self, cache: &UserCache, ledger: &Ledger) {
        let folders = [(cache.answers(), cache.payer), (cache.own.join("tools"), cache.owner)];
        self.small.count(&folders, ledger);
    }

    /// Removes sets until `more` bytes fit into the cache: those that nothing uses first, then others, which are installed
    /// again when a sandbox needs them. `kept` stays.
    fn keep_within_bound(&self, cache: &UserCache, more: u64, kept: &str) {
        let mut sets = self.sets_in(cache);
        sets.retain(|set| set.key != kept);
        let bytes: u64 = sets.iter().map(|set| set.bytes).sum();
        let too_much = bytes.saturating_add(more).saturating_sub(self.most_bytes);
        let missing = Missing { of_payers: BTreeMap::from([(cache.payer, too_much)]), of_all: 0 };
        self.make_room(std::slice::from_ref(cache), sets, &missing);
    }
}

impl UserCache {
    /// A new folder for an installation, which pays for it with `room`.
    pub fn draft(&self, name: &str, room: Permit) -> std::io::Result<Draft> {
        Draft::make(self.own.join("drafts").join(name), self.owner, room)
    }

    fn set_folder(&self, key: &str) -> Option<PathBuf> {
        let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_hexdigit());
        is_key.then(|| self.folder.join("sets").join(key))
    }

    /// A set, if it is here; counts as a use of it.
    pub fn find(&self, key: &str) -> Option<CachedSet> {
        let set = CachedSet::read(&self.set_folder(key)?).ok().flatten()?;
        touch(&set.note_file);
        Some(set)
    }

    /// The answer to a request, with the set that it leads to, if that is still here.
    pub fn answer(&self, request: &str) -> Option<(Answer, Option<CachedSet>)> {
        let path = self.answers().join(request);
        let answer: Answer = read_note(&path)?;
        let set = match &answer.key {
            Some(key) => Some(self.find(key)?),
            None => None,
        };
        touch(&path);
        Some((answer, set))
    }

    fn answers(&self) -> PathBuf {
        self.folder.join("requests")
    }

    /// The answer appears whole or not at all.
    fn write_answer(&self, request: &str, text: &[u8]) -> std::io::Result<()> {
        let draft = self.own.join("drafts").join(format!("{request}-{}", uuid::Uuid::new_v4()));
        std::fs::write(&draft, text)?;
        std::fs::File::open(&draft)?.sync_all()?;
        std::fs::rename(draft, self.answers().join(request))
    }

    fn tidy_answers(&self) {
        let mut left: Vec<(SystemTime, PathBuf)> = Vec::new();
        for path in entries(&self.answers()) {
            let leads_somewhere = |answer: Answer| {
                answer.key.is_none_or(|key| self.set_folder(&key).is_some_and(|folder| folder.is_dir()))
            };
            let used = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
            match used.filter(|_| read_note(&path).is_some_and(leads_somewhere)) {
                Some(used) => left.push((used, path)),
                None => drop(std::fs::remove_file(path)),
            }
        }
        left.sort();
        for (_, path) in left.iter().take(left.len().saturating_sub(ANSWERS)) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// The `uv` that an installer fetched for this user.
    pub fn uv(&self) -> PathBuf {
        self.own.join("tools/uv")
    }

    pub fn has_uv(&self) -> bool {
        self.uv().exists()
    }

    fn keep_uv(&self, made: &Path) -> std::io::Result<()> {
        std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o755))?;
        std::fs::File::open(made)?.sync_all()?;
        std::fs::rename(made, self.uv())
    }

    /// All sets that can be read.
    pub fn sets(&self) -> Vec<(String, CachedSet)> {
        let mut found = Vec::new();
        for folder in entries(&self.folder.join("sets")) {
            let key = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match CachedSet::read(&folder) {
                Ok(Some(set)) => found.push((key, set)),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, set = key, "cached packages cannot be read"),
            }
        }
        found
    }

    /// Moves folders without files, or without a note that says something, to the drafts: no session finds them, and
    /// nobody would pay for them. They are not removed here, because the daemon does not serve yet.
    fn put_aside_what_is_no_set(&self) {
        for folder in entries(&self.folder.join("sets")) {
            if matches!(CachedSet::read(&folder), Ok(None))
                && let Err(error) = self.put_aside(&folder)
            {
                tracing::warn!(%error, path = %folder.display(), "what is no set of packages cannot be moved");
            }
        }
    }

    /// Removes what has the name of a set and is none, unless the cache is being looked at.
    fn remove_if_no_set(&self, folder: &Path) {
        let Some(alone) = self.uses.try_write() else { return };
        if !folder.exists() || !matches!(CachedSet::read(folder), Ok(None)) {
            return;
        }
        let moved = self.put_aside(folder);
        drop(alone);
        if let Err(error) = moved.and_then(|moved| remove_tree(&moved)) {
            tracing::warn!(%error, path = %folder.display(), "what is no set of packages cannot be removed");
        }
    }

    /// Takes the name of a copy away, so that no session finds half of it, and says where its files are now; none if the
    /// set is gone, or is another copy.
    pub fn take_name(&self, key: &str, copy: &str) -> std::io::Result<Option<PathBuf>> {
        let folder = self.set_folder(key).ok_or_else(gone)?;
        match CachedSet::read(&folder)? {
            Some(set) if set.note.copy == copy => self.put_aside(&folder).map(Some),
            _ => Ok(None),
        }
    }

    /// Moves a folder to the drafts, and says where it is now.
    fn put_aside(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let drafts = self.own.join("drafts");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&drafts)?;
        let moved = drafts.join(format!("removed-{}", uuid::Uuid::new_v4()));
        std::fs::rename(folder, &moved)?;
        Ok(moved)
    }

    /// Who pays for sets and answers.
    pub fn payer(&self) -> Principal {
        self.payer
    }

    pub fn owner(&self) -> Principal {
        self.owner
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl CachedSet {
    #[cfg(test)]
    pub fn for_test(site: PathBuf, note_file: PathBuf, note: SetNote) -> Self {
        Self { site, note_file, note, used: SystemTime::now() }
    }

    /// None if there is no set, or if its note says nothing; an error does not say that.
    fn read(folder: &Path) -> std::io::Result<Option<Self>> {
        let (site, note_file) = (folder.join(SITE), folder.join(NOTE));
        let absent = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        let found = std::fs::metadata(&note_file).and_then(|note| {
            Ok((note.modified()?, note.len() <= NOTE_BYTES && std::fs::metadata(&site)?.is_dir()))
        });
        let used = match found {
            Ok((used, true)) => used,
            Ok((_, false)) => return Ok(None),
            Err(error) if absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let note: Option<SetNote> = serde_json::from_slice(&std::fs::read(&note_file)?).ok();
        Ok(note.map(|note| Self { site, note_file, note, used }))
    }
}

fn gone() -> std::io::Error {
    std::io::Error::other("the packages are gone")
}

/// Counts as a use.
fn touch(file: &Path) {
    if let Ok(file) = std::fs::File::options().write(true).open(file) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// The paths in a folder; none if it cannot be read.
pub fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

pub fn read_note<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let is_small = std::fs::metadata(path).is_ok_and(|file| file.len() <= NOTE_BYTES);
    is_small.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}

#[cfg(test)]
mod tests;

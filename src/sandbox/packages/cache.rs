//! Packages that were installed once, kept for later sessions: a folder of files for each set, and the answer to each
//! request. What a guest could have written is given to sessions of the same user only, unless the administrator shares
//! the cache; then the daemon's own user pays for it. A set appears under its name when all its files are there.

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::charges::{Charges, HOLD, SetNote, disk};
use super::draft::Draft;
use super::tree::{self, Copied};
use crate::config::Packages as Settings;
use crate::protocol::packages::{InstalledPackage, PackageVersion, ReplacedPackage};
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Gauge, Ledger, Permit};
use crate::sandbox::workspace::remove_tree;
use crate::security_controls;

/// Largest note of the cache.
pub const NOTE_BYTES: u64 = 1024 * 1024;
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
    /// Held while sets of a cache are linked, and alone while some are removed.
    uses: Mutex<BTreeMap<PathBuf, Arc<RwLock<()>>>>,
    pub charges: Charges,
    /// The charges for all sets that are kept, by their folders.
    kept: Mutex<BTreeMap<PathBuf, Arc<Permit>>>,
    /// The charges for answers and for `uv`, by their folders.
    small: Mutex<BTreeMap<PathBuf, Permit>>,
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
    used: SystemTime,
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
            kept: Mutex::default(),
            small: Mutex::default(),
        }
    }

    /// The folders that installations of an earlier daemon left unfinished. An installer of it may still write there.
    pub fn unfinished(&self) -> Vec<PathBuf> {
        let drafts = entries(&self.root).map(|cache| cache.join("drafts"));
        drafts.flat_map(|drafts| entries(&drafts).collect::<Vec<_>>()).collect()
    }

    /// Charges all users for what an earlier daemon kept for them.
    pub fn charge_all(&self, ledger: &Ledger) {
        for folder in entries(&self.root) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let owner = name.parse().map_or(self.daemon, Principal::new);
            let cache = self.at(&name, owner, owner);
            for (key, set) in cache.sets() {
                self.charge_set(&cache, &key, &set.note, ledger);
            }
            self.charge_small(&cache, ledger);
        }
    }

    fn at(&self, name: &str, owner: Principal, payer: Principal) -> UserCache {
        let folder = self.root.join(name);
        let uses = Arc::clone(self.uses.lock().entry(folder.clone()).or_default());
        UserCache { folder, own: self.root.join(owner.to_string()), owner, payer, uses }
    }

    pub fn of(&self, owner: Principal) -> std::io::Result<UserCache> {
        let private = !self.shared && security_controls::holds("package_caches_are_private");
        let cache = if private {
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

    /// Moves a folder with `site` into the cache, after others have made room for it. If the set is there already, that
    /// one stays. The caller holds an amount for the files until they are charged here.
    pub fn keep(
        &self,
        cache: &UserCache,
        ledger: &Ledger,
        made: &Path,
        key: &str,
        copied: &Copied,
    ) -> std::io::Result<()> {
        let Some(target) = cache.set_folder(key) else {
            return Err(std::io::Error::other("a set without a key"));
        };
        let note = SetNote {
            copy: uuid::Uuid::new_v4().to_string(),
            bytes: copied.bytes,
            folder_bytes: copied.folder_bytes,
        };
        std::fs::write(made.join(NOTE), serde_json::to_vec(&note)?)?;
        // All of it is on the disk before its name is.
        rustix::fs::syncfs(std::fs::File::open(made)?)?;
        self.make_room(cache, copied.bytes, key);
        match std::fs::rename(made, &target) {
            Err(_) if target.is_dir() => return Ok(()),
            outcome => outcome?,
        }
        self.charge_set(cache, key, &note, ledger);
        std::fs::File::open(cache.folder.join("sets"))?.sync_all()
    }

    fn charge_set(&self, cache: &UserCache, key: &str, note: &SetNote, ledger: &Ledger) {
        let charge = self.charges.of_present_copy(cache.payer, note, ledger);
        if let (Some(folder), Some(charge)) = (cache.set_folder(key), charge) {
            self.kept.lock().insert(folder, charge);
        }
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
        let bytes = disk(tree::disk_bytes(text.len() as u64)).get(Kind::Workspace);
        let hold = self.small_hold(&cache.answers(), cache.payer, ledger);
        if hold.grow(Kind::Workspace, bytes).is_err() {
            return Ok(());
        }
        cache.write_answer(request, &text)
    }

    /// Takes over the `uv` that an installer fetched into a draft, and charges it. The draft pays for it until then.
    pub fn keep_uv(&self, cache: &UserCache, ledger: &Ledger, made: &Path) -> std::io::Result<()> {
        let kept = cache.keep_uv(made);
        self.charge_small(cache, ledger);
        kept
    }

    /// The hold for a folder of answers or tools.
    fn small_hold(&self, folder: &Path, payer: Principal, ledger: &Ledger) -> Gauge {
        let mut small = self.small.lock();
        let permit = small.entry(folder.to_owned()).or_insert_with(|| ledger.keep(payer, HOLD, disk(0)));
        permit.gauge()
    }

    fn charge_small(&self, cache: &UserCache, ledger: &Ledger) {
        for (folder, payer) in [(cache.answers(), cache.payer), (cache.own.join("tools"), cache.owner)] {
            let files = entries(&folder).filter_map(|file| std::fs::symlink_metadata(file).ok());
            let bytes = files.map(|file| tree::disk_bytes(file.len())).sum();
            let _ = self.small_hold(&folder, payer, ledger).measure(Kind::Workspace, bytes);
        }
    }

    /// Removes the sets that were not used for the longest time, until `more` bytes fit. `kept` stays.
    fn make_room(&self, cache: &UserCache, more: u64, kept: &str) {
        let mut sets = cache.sets();
        sets.retain(|(key, _)| key != kept);
        sets.sort_by_key(|(_, set)| set.used);
        let mut bytes: u64 = sets.iter().map(|(_, set)| set.note.bytes).sum::<u64>().saturating_add(more);
        for (key, set) in sets {
            if bytes <= self.most_bytes {
                return;
            }
            match cache.remove(&key) {
                Ok(()) => {
                    bytes = bytes.saturating_sub(set.note.bytes);
                    // Sandboxes that have the files have charges of their own for them.
                    drop(cache.set_folder(&key).and_then(|folder| self.kept.lock().remove(&folder)));
                }
                Err(error) => tracing::warn!(%error, set = key, "cached packages cannot be removed"),
            }
        }
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
        let set = CachedSet::read(&self.set_folder(key)?)?;
        touch(&set.note_file);
        Some(set)
    }

    /// The answer to a request, if the files that it leads to are still here.
    pub fn answer(&self, request: &str) -> Option<Answer> {
        let path = self.answers().join(request);
        let answer: Answer = read_note(&path)?;
        if answer.key.as_ref().is_some_and(|key| self.find(key).is_none()) {
            return None;
        }
        touch(&path);
        Some(answer)
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

    /// All sets. What is none, and so would never be charged, is removed.
    fn sets(&self) -> Vec<(String, CachedSet)> {
        let mut found = Vec::new();
        for folder in entries(&self.folder.join("sets")) {
            let key = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(set) = CachedSet::read(&folder) {
                found.push((key, set));
            } else if let Err(error) = remove_tree(&folder) {
                tracing::warn!(%error, set = key, "what is no set of packages cannot be removed");
            }
        }
        found
    }

    /// Takes the name away first, so that no session finds half a set, and waits for those that link it.
    fn remove(&self, key: &str) -> std::io::Result<()> {
        let Some(set) = self.set_folder(key) else { return Ok(()) };
        let gone = self.own.join("drafts").join(format!("{key}-{}", uuid::Uuid::new_v4()));
        let _alone = self.uses.write();
        std::fs::rename(set, &gone)?;
        remove_tree(&gone)
    }
}

impl CachedSet {
    #[cfg(test)]
    pub fn for_test(site: PathBuf, note_file: PathBuf, note: SetNote) -> Self {
        Self { site, note_file, note, used: SystemTime::now() }
    }

    fn read(folder: &Path) -> Option<Self> {
        let (site, note_file) = (folder.join(SITE), folder.join(NOTE));
        let used = std::fs::metadata(&note_file).ok()?.modified().ok()?;
        let note = read_note(&note_file)?;
        site.is_dir().then_some(Self { site, note_file, note, used })
    }
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

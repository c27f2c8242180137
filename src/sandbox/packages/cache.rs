//! Packages that were installed once, kept for later sessions: a folder of files for each set, and the answer to each
//! request. What a guest could have written is given to sessions of the same user only, unless the administrator shares
//! the cache. A set appears under its name when all its files are there.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::config::Packages as Settings;
use crate::protocol::packages::{InstalledPackage, PackageVersion, ReplacedPackage};
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::sandbox::workspace::remove_tree;
use crate::security_controls;

/// Largest note of the cache.
const NOTE_BYTES: u64 = 1024 * 1024;
/// The folder of all users if the administrator shares the cache.
const SHARED: &str = "shared";
const NOTE: &str = "set.json";
const SITE: &str = "site";
/// The name of the cache in a user's quota.
const HOLD: &str = "installed packages";

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
    /// One installation at a time in each cache, so that equal requests are answered once.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// The charge for the files of each user.
    charges: Mutex<BTreeMap<Principal, Permit>>,
}

/// The cache that one user's sessions use.
pub struct UserCache {
    folder: PathBuf,
    name: String,
}

impl PackageCache {
    #[must_use]
    pub fn new(root: PathBuf, settings: &Settings) -> Self {
        let (turns, charges) = (Mutex::default(), Mutex::default());
        Self { root, shared: settings.shared, most_bytes: settings.cache_bytes, turns, charges }
    }

    /// Removes what installations of an earlier daemon left unfinished.
    pub fn clear_drafts(&self) {
        for cache in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if let Err(error) = remove_tree(&cache.path().join("drafts")) {
                tracing::warn!(%error, "drafts of packages cannot be removed");
            }
        }
    }

    /// Charges all users for what an earlier daemon kept for them.
    pub fn charge_all(&self, ledger: &Ledger) {
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Ok(uid) = name.parse() {
                self.charge(ledger, Principal::new(uid), &UserCache { folder: entry.path(), name });
            }
        }
    }

    pub fn of(&self, owner: Principal) -> std::io::Result<UserCache> {
        let private = !self.shared && security_controls::holds("package_caches_are_private");
        let name = if private { owner.to_string() } else { SHARED.to_owned() };
        let cache = UserCache { folder: self.root.join(&name), name };
        for folder in ["sets", "requests", "tools", "drafts"] {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(cache.folder.join(folder))?;
        }
        Ok(cache)
    }

    /// The turn to install into a cache.
    pub fn turn(&self, cache: &UserCache) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.turns.lock().entry(cache.name.clone()).or_default())
    }

    /// Charges the user for the files of the cache.
    pub fn charge(&self, ledger: &Ledger, owner: Principal, cache: &UserCache) {
        let bytes = cache.sets().iter().map(|set| set.bytes).sum();
        let mut charges = self.charges.lock();
        let permit = charges
            .entry(owner)
            .or_insert_with(|| ledger.keep(owner, HOLD, Amounts::of([(Kind::Workspace, 0)])));
        let _ = permit.gauge().measure(Kind::Workspace, bytes);
    }

    /// Removes the sets that were not used for the longest time, until the rest fits. `kept` stays.
    pub fn make_room(&self, cache: &UserCache, kept: &str) {
        let mut sets = cache.sets();
        sets.sort_by_key(|set| set.used);
        let mut bytes: u64 = sets.iter().map(|set| set.bytes).sum();
        for set in sets.iter().filter(|set| set.key != kept) {
            if bytes <= self.most_bytes {
                return;
            }
            match cache.remove(&set.key) {
                Ok(()) => bytes -= set.bytes,
                Err(error) => tracing::warn!(%error, set = set.key, "cached packages cannot be removed"),
            }
        }
    }
}

struct CachedSet {
    key: String,
    bytes: u64,
    used: SystemTime,
}

impl UserCache {
    /// A new folder for an installation, which is removed when this value is dropped.
    pub fn draft(&self, name: &str) -> std::io::Result<Draft> {
        let path = self.folder.join("drafts").join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Draft(path))
    }

    /// The folder with the files of a set, if it is here; counts as a use of it.
    pub fn files(&self, key: &str) -> Option<PathBuf> {
        let set = self.set(key)?;
        let note = std::fs::File::options().write(true).open(set.join(NOTE)).ok()?;
        let _ = note.set_modified(SystemTime::now());
        Some(set.join(SITE)).filter(|site| site.is_dir())
    }

    fn set(&self, key: &str) -> Option<PathBuf> {
        let is_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_hexdigit());
        is_key.then(|| self.folder.join("sets").join(key))
    }

    /// The answer to a request, if the files that it leads to are still here.
    pub fn answer(&self, request: &str) -> Option<Answer> {
        let answer: Answer = read_note(&self.folder.join("requests").join(request))?;
        match &answer.key {
            Some(key) => self.files(key).map(|_| answer),
            None => Some(answer),
        }
    }

    /// Keeps the answer to a request. It appears whole or not at all.
    pub fn remember(&self, request: &str, answer: &Answer) -> std::io::Result<()> {
        let draft = self.folder.join("drafts").join(format!("{request}-{}", uuid::Uuid::new_v4()));
        std::fs::write(&draft, serde_json::to_vec(answer)?)?;
        std::fs::rename(draft, self.folder.join("requests").join(request))
    }

    /// Moves a folder with `site` into the cache. If the set is there already, that one stays.
    pub fn keep(&self, made: &Path, key: &str, bytes: u64) -> std::io::Result<()> {
        let Some(target) = self.set(key) else { return Err(std::io::Error::other("a set without a key")) };
        std::fs::write(made.join(NOTE), serde_json::to_vec(&bytes)?)?;
        match std::fs::rename(made, &target) {
            Err(_) if target.is_dir() => Ok(()),
            outcome => outcome,
        }
    }

    /// The `uv` that an installer fetched for this user.
    pub fn uv(&self) -> PathBuf {
        self.folder.join("tools/uv")
    }

    /// Takes over the `uv` that an installer fetched.
    pub fn keep_uv(&self, made: &Path) -> std::io::Result<()> {
        std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o755))?;
        std::fs::rename(made, self.uv())
    }

    fn sets(&self) -> Vec<CachedSet> {
        let entries = std::fs::read_dir(self.folder.join("sets")).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| {
            let note = entry.path().join(NOTE);
            let used = std::fs::metadata(&note).ok()?.modified().ok()?;
            let key = entry.file_name().into_string().ok()?;
            Some(CachedSet { key, bytes: read_note(&note)?, used })
        });
        found.collect()
    }

    /// Takes the name away first, so that no session finds half a set.
    fn remove(&self, key: &str) -> std::io::Result<()> {
        let Some(set) = self.set(key) else { return Ok(()) };
        let gone = self.folder.join("drafts").join(format!("{key}-{}", uuid::Uuid::new_v4()));
        std::fs::rename(set, &gone)?;
        remove_tree(&gone)
    }
}

fn read_note<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let is_small = std::fs::metadata(path).is_ok_and(|file| file.len() <= NOTE_BYTES);
    is_small.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}

/// A folder of an installation.
pub struct Draft(pub PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(home: &Path, most: &str) -> PackageCache {
        let text = format!("[packages]\ncache = \"{most}\"\n");
        let settings = crate::config::load_text(Path::new("c.toml"), &text).unwrap().settings;
        PackageCache::new(home.join("packages"), &settings.packages)
    }

    fn put(user: &UserCache, key: &str) {
        let draft = user.draft(key).unwrap();
        let made = draft.0.join("made");
        std::fs::create_dir_all(made.join(SITE)).unwrap();
        std::fs::write(made.join(SITE).join("x.py"), "1").unwrap();
        user.keep(&made, key, 400).unwrap();
    }

    #[test]
    fn the_least_recently_used_goes_first_and_answers_go_with_their_files() {
        let home = tempfile::tempdir().unwrap();
        let cache = cache(home.path(), "1KiB");
        let user = cache.of(Principal::ANN).unwrap();
        let answer = |key: &str| Answer {
            key: Some(key.into()),
            packages: Vec::new(),
            bytes: 400,
            in_image: Vec::new(),
            replaced: Vec::new(),
        };
        for key in ["a1", "b2"] {
            put(&user, key);
            user.remember(key, &answer(key)).unwrap();
        }
        let old = std::fs::File::options().write(true).open(user.set("b2").unwrap().join(NOTE)).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(user.answer("a1").is_some(), "which is a use");
        put(&user, "c3");
        cache.make_room(&user, "c3");
        assert!(user.answer("b2").is_none() && user.answer("a1").is_some() && user.files("c3").is_some());
        assert!(user.files("../a1").is_none());
    }

    #[test]
    fn caches_are_private_unless_the_administrator_shares_them() {
        let home = tempfile::tempdir().unwrap();
        let private = cache(home.path(), "1GiB");
        put(&private.of(Principal::ANN).unwrap(), "a1");
        assert!(private.of(Principal::BOB).unwrap().files("a1").is_none());
        let shared = PackageCache { shared: true, ..private };
        put(&shared.of(Principal::ANN).unwrap(), "b2");
        assert!(shared.of(Principal::BOB).unwrap().files("b2").is_some());
    }

    #[test]
    fn what_an_earlier_daemon_left_unfinished_is_removed_and_a_set_is_never_replaced() {
        let home = tempfile::tempdir().unwrap();
        let cache = cache(home.path(), "1GiB");
        let user = cache.of(Principal::ANN).unwrap();
        std::mem::forget(user.draft("left").unwrap());
        put(&user, "a1");
        let first = std::fs::metadata(user.files("a1").unwrap().join("x.py")).unwrap();
        put(&user, "a1");
        let second = std::fs::metadata(user.files("a1").unwrap().join("x.py")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&first), std::os::unix::fs::MetadataExt::ino(&second));
        cache.clear_drafts();
        assert!(!user.folder.join("drafts").exists());
        let user = cache.of(Principal::ANN).unwrap();
        assert!(user.files("a1").is_some() && user.draft("left").is_ok());
    }
}

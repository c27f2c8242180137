//! The folder of installed packages that a sandbox sees. It is mounted read-only before anything is in it; the daemon
//! puts complete folders into it from the host, and a link leads to the newest one.
//!
//! Earlier folders stay as long as the sandbox does: code may have opened files there, or remember where they are. All of
//! them are charged to the session's owner. A note beside the folder, which the sandbox does not see, says of each what it
//! takes, so that the next daemon charges the same.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cache::{CachedSet, entries, read_note};
use super::charges::{Charges, CopyUse, Pay, SetNote, UseKind, disk};
use super::tree;
use crate::protocol::ids::SessionName;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::quota::{Ledger, Permit, Refusal};
use crate::sandbox::workspace::remove_tree;

/// The link that leads to the packages; it is on `sys.path` from the start, so it leads to an empty folder first.
const SITE: &str = "site";
const EMPTY: &str = "empty";
/// How the extension of a draft begins.
const DRAFT: &str = "draft-";

/// Makes the folder of a new sandbox.
pub fn prepare(folder: &Path) -> std::io::Result<()> {
    for path in [folder, &folder.join(EMPTY)] {
        std::fs::DirBuilder::new().mode(0o755).create(path)?;
        // Regardless of the daemon's umask, every guest can read it.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    std::os::unix::fs::symlink(EMPTY, folder.join(SITE))
}

/// The packages in one sandbox, with their charges. Clones are the same.
#[derive(Clone)]
pub struct SandboxPackages {
    folder: PathBuf,
    charged: Arc<Mutex<BTreeMap<String, PackageCharge>>>,
}

struct PackageCharge {
    /// Charge for files that the cache or other sandboxes may share; `None` if the files are no links.
    _copy: Option<CopyUse>,
    /// Charge for what only this sandbox has: its folders, and files that are no links.
    _own: Permit,
}

/// Who pays for packages in a sandbox.
pub struct Payer<'a> {
    pub owner: Principal,
    /// The session that has the sandbox.
    pub session: &'a SessionName,
    pub ledger: &'a Ledger,
    pub charges: &'a Charges,
}

impl SandboxPackages {
    /// The packages visible in the sandbox that mounts `folder`; none is charged yet.
    pub fn of(folder: PathBuf) -> Self {
        Self { folder, charged: Arc::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.charged.lock().is_empty()
    }

    /// Charges what an earlier daemon let appear, and removes what it left unfinished.
    pub fn take_over(&self, payer: &Payer<'_>) {
        let mut charged = self.charged.lock();
        for draft in self.drafts() {
            let is_folder = draft.is_dir() && !draft.is_symlink();
            let removed = if is_folder { remove_tree(&draft) } else { std::fs::remove_file(&draft) };
            if let Err(error) = removed {
                tracing::warn!(%error, path = %draft.display(), "a draft of packages cannot be removed");
            }
        }
        self.charge_present(&mut charged, payer);
    }

    /// Whether the set is in the sandbox, charged, and where the link leads.
    pub fn has(&self, key: &str) -> bool {
        let leads_to = std::fs::read_link(self.folder.join(SITE));
        self.charged.lock().contains_key(key) && leads_to.is_ok_and(|target| target == Path::new(key))
    }

    /// What was begun beside the folder. Nothing is being made there while `charged` is locked.
    fn drafts(&self) -> Vec<PathBuf> {
        let mut beside: Vec<PathBuf> = self.folder.parent().into_iter().flat_map(entries).collect();
        let is_draft =
            |extension: &std::ffi::OsStr| extension.as_encoded_bytes().starts_with(DRAFT.as_bytes());
        beside.retain(|path| {
            path.file_stem() == self.folder.file_stem() && path.extension().is_some_and(is_draft)
        });
        beside
    }

    /// Lets a set of the cache appear. Its name appears when all its files are there.
    pub fn show(&self, key: &str, set: &CachedSet, payer: &Payer<'_>) -> Result<(), Problem> {
        let mut charged = self.charged.lock();
        self.charge_present(&mut charged, payer);
        let target = self.folder.join(key);
        // Beside the folder, where the sandbox does not see it.
        let draft = self.folder.with_extension(format!("{DRAFT}{}", uuid::Uuid::new_v4()));
        if !charged.contains_key(key) {
            let is_same_disk = device(&set.site) == device(&self.folder);
            let charge = PackageCharge::take(&set.note, is_same_disk, payer, Pay::IfThereIsRoom)?;
            let linked = self.note(key, set, is_same_disk).and_then(|()| {
                let copy = if is_same_disk { tree::link } else { tree::duplicate };
                copy(&set.site, &draft).and_then(|()| std::fs::rename(&draft, &target))
            });
            if let Err(error) = linked {
                let _ = std::fs::remove_dir_all(&draft);
                // A daemon that made no notes may have put it there.
                if !target.is_dir() {
                    let _ = std::fs::remove_file(self.notes().join(key));
                    return Err(failed(&error));
                }
            }
            charged.insert(key.to_owned(), charge);
        }
        let switched = std::os::unix::fs::symlink(key, &draft)
            .and_then(|()| std::fs::rename(&draft, self.folder.join(SITE)));
        switched.map_err(|error| failed(&error))
    }

    /// Charges what an earlier daemon let appear. Of a set without all of its files only the note is there.
    fn charge_present(&self, charged: &mut BTreeMap<String, PackageCharge>, payer: &Payer<'_>) {
        for path in entries(&self.notes()) {
            let key = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let shown = device(&self.folder.join(&key));
            if charged.contains_key(&key) || shown.is_none() {
                continue;
            }
            let Some(note) = read_note::<SetNote>(&path) else { continue };
            let is_linked = std::fs::metadata(&path).is_ok_and(|found| found.nlink() > 1);
            if let Ok(charge) = PackageCharge::take(&note, is_linked, payer, Pay::Anyway) {
                charged.insert(key, charge);
            }
        }
    }

    fn notes(&self) -> PathBuf {
        self.folder.with_extension("notes")
    }

    fn note(&self, key: &str, set: &CachedSet, is_same_disk: bool) -> std::io::Result<()> {
        let (notes, note) = (self.notes(), self.notes().join(key));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(notes)?;
        match std::fs::remove_file(&note) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if is_same_disk {
            std::fs::hard_link(&set.note_file, note)
        } else {
            std::fs::copy(&set.note_file, note).map(drop)
        }
    }
}

impl PackageCharge {
    /// Where files cannot be linked, the sandbox has its own.
    fn take(note: &SetNote, is_linked: bool, payer: &Payer<'_>, pay: Pay) -> Result<Self, Refusal> {
        let Payer { owner, session, ledger, charges } = *payer;
        let kind = UseKind::Sandbox(session.clone());
        let copy = is_linked.then(|| charges.use_copy(owner, note, ledger, pay, kind)).transpose()?;
        let own = if is_linked { note.folder_bytes } else { note.bytes };
        let own = pay.take(ledger, owner, disk(own.saturating_add(tree::disk_bytes(0))))?;
        Ok(Self { _copy: copy, _own: own })
    }
}

fn device(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|found| found.dev())
}

fn failed(error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("the packages cannot be put into the sandbox: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::quota::Kind;

    #[test]
    fn the_newest_packages_are_where_the_link_leads_and_all_of_them_are_charged() {
        let home = tempfile::tempdir().unwrap();
        let (site, folder) = (home.path().join("cached/site"), home.path().join("s/p"));
        std::fs::create_dir_all(site.join("polars")).unwrap();
        std::fs::create_dir(home.path().join("s")).unwrap();
        std::fs::write(site.join("polars/__init__.py"), "x = 1").unwrap();
        prepare(&folder).unwrap();
        assert_eq!(std::fs::read_dir(folder.join(SITE)).unwrap().count(), 0);
        let settings = crate::config::load_text("c.toml".as_ref(), "").unwrap().settings;
        let (ledger, charges) = (Ledger::new(&settings.quota), Charges::default());
        let session = SessionName::parse("s").unwrap();
        let payer = Payer { owner: Principal::ANN, session: &session, ledger: &ledger, charges: &charges };
        let set = |copy: &str| {
            let note =
                SetNote { copy: copy.into(), bytes: 100_000, folder_bytes: 10_000, ..SetNote::default() };
            let note_file = home.path().join("cached").join(copy);
            std::fs::write(&note_file, serde_json::to_vec(&note).unwrap()).unwrap();
            CachedSet::for_test(site.clone(), note_file, note)
        };
        let (packages, again) = (SandboxPackages::of(folder.clone()), SandboxPackages::of(folder.clone()));
        for key in ["one", "two", "one"] {
            packages.show(key, &set(key), &payer).unwrap();
            let text = std::fs::read_to_string(folder.join(SITE).join("polars/__init__.py")).unwrap();
            assert_eq!(text, "x = 1");
            assert_eq!(std::fs::read_link(folder.join(SITE)).unwrap(), Path::new(key));
        }
        let own = 10_000 + tree::disk_bytes(0);
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 2 * (100_000 + own));
        drop(packages);
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
        // The next daemon charges what it finds, also where the cache has removed it since, and tidies up.
        std::fs::remove_file(home.path().join("cached/two")).unwrap();
        tree::link(&site, &home.path().join("s/p.draft-1")).unwrap();
        std::os::unix::fs::symlink("two", home.path().join("s/p.draft-2")).unwrap();
        assert!(!again.has("one"));
        again.take_over(&payer);
        assert!(again.has("one") && !again.has("two"), "that is not where the link leads");
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 2 * (100_000 + own) - 10_000);
        let beside = std::fs::read_dir(home.path().join("s")).unwrap().count();
        assert_eq!(beside, 2, "no draft is left");
    }

    #[test]
    fn packages_for_which_the_user_has_no_room_do_not_appear() {
        let home = tempfile::tempdir().unwrap();
        let (site, folder) = (home.path().join("cached/site"), home.path().join("p"));
        std::fs::create_dir_all(&site).unwrap();
        prepare(&folder).unwrap();
        let settings =
            crate::config::load_text("c.toml".as_ref(), "[quota]\nworkspace = \"1KiB\"\n").unwrap();
        let (ledger, charges) = (Ledger::new(&settings.settings.quota), Charges::default());
        let session = SessionName::parse("s").unwrap();
        let payer = Payer { owner: Principal::ANN, session: &session, ledger: &ledger, charges: &charges };
        let note = SetNote { copy: "a".into(), bytes: 2000, ..SetNote::default() };
        let set = CachedSet::for_test(site, home.path().join("note"), note);
        let refused = SandboxPackages::of(folder.clone()).show("a1", &set, &payer).unwrap_err();
        assert_eq!(refused.code, Code::QuotaExceeded, "{refused:?}");
        assert!(!folder.join("a1").exists());
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
    }
}

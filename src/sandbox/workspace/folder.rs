//! The folder of a session: one that the daemon manages, or one of the caller's own, which is checked once and held
//! open from then on.

use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::spec::{Choice, GuestUser, UserMapping};
use crate::sandbox::uid_accounts::UidAccounts;
use crate::sandbox::user_database::users;
use crate::sandbox::workspace::own_user::{MountedFolder, as_owner};
use crate::sandbox::workspace::owner::{self, CurrentIds, Ids, NO_GROUP, WorkKind, acting_as};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::upload_room::FillLevel;
use crate::sandbox::workspace::usage;
use crate::sandbox::workspace::{groups, local_file_systems, project, set_id};
use crate::security_controls;

/// The user who runs the daemon. It decides as which users guests run, and who owns their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Whether the daemon runs as root, for all users.
    pub system: bool,
    pub uid: u32,
    pub gid: u32,
}

impl Service {
    pub fn of_this_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { system: uid == 0, uid, gid: rustix::process::getegid().as_raw() }
    }

    pub fn principal(self) -> Principal {
        Principal::new(self.uid)
    }
}

#[derive(Debug)]
pub struct Workspace {
    pub path: PathBuf,
    /// Every access of the daemon goes through this, never through the path, and only by [`Workspace::access`].
    pub(super) root: Arc<OwnedFd>,
    pub managed: bool,
    /// The guest's user when the session began, or was restored.
    pub user: GuestUser,
    /// The user id of the configured range that the guest's is made of; `None` where the guest is its owner.
    pub slot: Option<u32>,
    /// How the engine maps the owner of a caller's folder; `None` where the guest is not that owner.
    pub(super) owner_mapping: Option<UserMapping>,
    /// The backend that the guest's user was picked for.
    pub choice: Choice,
    /// The user with whose rights work is done; `None` where the daemon's own rights are the user's.
    pub(super) ids: Option<Arc<CurrentIds>>,
    /// In a caller's folder, the list that says whether the caller's id is still the caller's account.
    pub(super) accounts: Option<UidAccounts>,
    /// The user whose threads work in the folder.
    pub(super) pays: Principal,
    /// How full the folder is while files are uploaded.
    pub(super) fill_level: Arc<FillLevel>,
    /// Volumes and folders of the caller that the sandbox has beside this one.
    pub mounts: Vec<MountedFolder>,
}

impl Workspace {
    /// Does `work` in the folder with the rights of its owner, on a thread of the session's user.
    pub async fn access<T: Send + 'static>(
        &self,
        lane: WorkKind,
        work: impl FnOnce(&Root<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.access_for(self.pays, lane, work).await
    }

    /// The same on a thread of the user who has asked for it: an administrator who reads slowly holds up no one else.
    pub async fn access_for<T: Send + 'static>(
        &self,
        pays: Principal,
        lane: WorkKind,
        work: impl FnOnce(&Root<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.check_account().await?;
        let (folder, managed, uid) = (Arc::clone(&self.root), self.managed, self.user.host_uid);
        let work = move || work(&Root { folder: folder.as_fd(), managed, uid });
        owner::run(pays, lane, self.ids.clone(), work).await
    }

    /// Refuses a caller's folder if the caller's user id is another account by now. A guest of a managed folder has a
    /// user id that is no account.
    pub async fn check_account(&self) -> Result<(), Problem> {
        let (Some(accounts), pays) = (self.accounts.clone(), self.pays) else { return Ok(()) };
        owner::run(pays, WorkKind::Look, None, move || accounts.check(pays)).await?
    }

    /// The same as `access`, on this thread.
    #[cfg(test)]
    pub(super) fn access_here<T>(&self, work: impl FnOnce(&Root<'_>) -> T) -> T {
        let root = Root { folder: self.root.as_fd(), managed: self.managed, uid: self.user.host_uid };
        let ids = self.ids.as_ref().map(|ids| ids.now());
        acting_as(ids.as_deref(), || work(&root)).unwrap()
    }

    /// The room that all uploads to the folder share.
    pub fn fill_level(&self) -> Arc<FillLevel> {
        Arc::clone(&self.fill_level)
    }

    /// Counts the threads that work in the folder for this user.
    #[must_use]
    pub fn paid_by(mut self, owner: Principal) -> Self {
        self.pays = owner;
        self
    }

    /// A new folder for a guest, who may store `bytes` bytes there. `slot` is a user id of the configured range. The
    /// parent is a folder of the daemon, so only the daemon makes and removes the entry.
    pub fn managed(
        path: PathBuf,
        service: Service,
        mapping: UserMapping,
        choice: Choice,
        slot: u32,
        bytes: u64,
    ) -> Result<Self, Problem> {
        let workspace = Self::managed_as(path, service, guest(service, mapping, slot), choice, bytes)?;
        Ok(Self { slot: Some(slot), ..workspace })
    }

    pub(super) fn managed_as(
        path: PathBuf,
        service: Service,
        user: GuestUser,
        choice: Choice,
        bytes: u64,
    ) -> Result<Self, Problem> {
        let storage = |error: std::io::Error| {
            Problem::new(Code::Storage, format!("the workspace `{}` cannot be made: {error}", path.display()))
        };
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(storage(error)),
            _ => {}
        }
        // The guest of an earlier session may have taken away the rights to the folder.
        let root = open_folder_of_ours(&path).map_err(|error| storage(error.into()))?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o700)).map_err(|error| storage(error.into()))?;
        if service.system {
            give(&root, user).map_err(|error| storage(error.into()))?;
            match project::hold(root.as_fd(), &path, bytes, usage::ENTRIES as u64) {
                Ok(is_limited) => {
                    tracing::debug!(path = %path.display(), held = is_limited, "the kernel's limit for a workspace");
                }
                // The usage watch still limits the workspace.
                Err(error) => tracing::warn!(%error, "the kernel takes no limit for a workspace"),
            }
        }
        let of_guest = || Arc::new(CurrentIds::of_guest(Ids::alone(user.host_uid, user.host_gid)));
        let ids = service.system.then(of_guest);
        Ok(Self {
            path,
            root: Arc::new(root),
            managed: true,
            user,
            slot: None,
            owner_mapping: None,
            choice,
            ids,
            accounts: None,
            pays: service.principal(),
            fill_level: Arc::default(),
            mounts: Vec::new(),
        })
    }

    /// Gives a managed folder, in which nothing was done yet, to the session whose path and owner these are. A sandbox
    /// that has the folder mounted keeps it.
    pub fn given_to(mut self, path: PathBuf, owner: Principal) -> Result<Self, Problem> {
        project::rename(self.root.as_fd(), &self.path, &path).map_err(|error| {
            Problem::new(Code::Storage, format!("the workspace `{}` cannot be made: {error}", path.display()))
        })?;
        self.path = path;
        Ok(self.paid_by(owner))
    }

    /// A folder of the caller's. The guest runs as its owner, who is never root. `private` are the daemon's own
    /// folders, which may not be above or below the workspace.
    pub fn of_caller(
        path: &Path,
        service: Service,
        mapping: UserMapping,
        choice: Choice,
        caller: Principal,
        private: &[PathBuf],
        accounts: &UidAccounts,
    ) -> Result<Self, Problem> {
        accounts.check(caller)?;
        let printable_path = path.display();
        let not_yours = || {
            Problem::new(Code::Forbidden, format!("`{printable_path}` is not a folder of yours"))
                .hint("use a folder that you own")
        };
        let bad = |what: String| Problem::new(Code::BadRequest, what);
        if !path.is_absolute() {
            return Err(bad(format!("the folder `{printable_path}` is not an absolute path")));
        }
        // The path is opened with the caller's rights, because root can open more.
        let eyes = (service.system && !caller.is_root()).then(|| {
            let ids = users().get(&caller.uid()).ok().and_then(|who| who.ids.clone());
            ids.unwrap_or_else(|| Arc::new(Ids::alone(caller.uid(), NO_GROUP)))
        });
        let opened = acting_as(eyes.as_deref(), || {
            let path = std::fs::canonicalize(path)?;
            let root = open_folder(&path)?;
            Ok::<_, std::io::Error>((rustix::fs::fstat(&root)?, path, root))
        });
        let (found, path, root) = opened.and_then(std::convert::identity).map_err(|error| match eyes {
            Some(_) => not_yours(),
            None => {
                bad(format!("the folder `{printable_path}` cannot be opened: {error}")).hint("name a folder")
            }
        })?;
        if !caller.is_root()
            && found.st_uid != caller.uid()
            && security_controls::holds("workspace_is_the_callers")
        {
            return Err(not_yours());
        }
        local_file_systems::check(&root, &path)?;
        let private = private.iter().filter_map(|folder| std::fs::canonicalize(folder).ok());
        if private.into_iter().any(|folder| folder.starts_with(&path) || path.starts_with(&folder)) {
            return Err(Problem::new(
                Code::Forbidden,
                format!("the folder `{printable_path}` holds, or lies in, what is the daemon's own"),
            )
            .hint("use a folder apart from `BELLJAR_HOME` and the folder of the socket"));
        }
        let user = if service.system {
            if found.st_uid == 0 {
                return Err(Problem::new(
                    Code::Forbidden,
                    format!("the folder `{printable_path}` belongs to root, and guests never run as root"),
                )
                .hint("use a folder of another user, for example after `chown nobody DIR`, or a managed workspace"));
            }
            as_owner(mapping, &path, found.st_uid, found.st_gid)?
        } else {
            guest(service, mapping, 0)
        };
        let alone = |uid| Ids::alone(uid, groups::without_account(uid));
        let ids = service.system.then(|| Arc::new(CurrentIds::of_account(alone(user.host_uid))));
        let looked = acting_as(ids.as_ref().map(|ids| ids.now()).as_deref(), || {
            set_id::check(&Root { folder: root.as_fd(), managed: false, uid: user.host_uid }, &path)
        });
        looked
            .map_err(|error| bad(format!("the folder `{printable_path}` cannot be looked at: {error}")))??;
        Ok(Self {
            path,
            root: Arc::new(root),
            managed: false,
            user,
            slot: None,
            owner_mapping: service.system.then_some(mapping),
            choice,
            ids,
            accounts: Some(accounts.clone()),
            pays: caller,
            fill_level: Arc::default(),
            mounts: Vec::new(),
        })
    }

    /// The guest's user for a new sandbox. The owner of a caller's folder may have left its group since the session
    /// began.
    pub async fn guest_now(&self) -> Result<GuestUser, Problem> {
        let Some(mapping) = self.owner_mapping.filter(|_| security_controls::holds("groups_are_current"))
        else {
            return Ok(self.user);
        };
        let (folder, path, uid) = (Arc::clone(&self.root), self.path.clone(), self.user.host_uid);
        let current_user = move || {
            let found = rustix::fs::fstat(&folder).map_err(|error| {
                Problem::new(Code::Storage, format!("`{}` cannot be looked at: {error}", path.display()))
            })?;
            as_owner(mapping, &path, uid, found.st_gid)
        };
        owner::run(self.pays, WorkKind::Look, None, current_user).await?
    }

    /// Device and inode, to recognise the folder again.
    pub fn identity(&self) -> rustix::io::Result<(u64, u64)> {
        rustix::fs::fstat(&self.root).map(|found| (found.st_dev, found.st_ino))
    }

    /// Removes a managed folder and its content; a caller's folder stays.
    pub async fn remove(&self) -> std::io::Result<()> {
        if !self.managed {
            return Ok(());
        }
        let path = self.path.clone();
        let removed = owner::run(self.pays, WorkKind::Removal, None, move || remove_tree(&path)).await;
        removed.map_err(|problem| std::io::Error::other(problem.message))?
    }
}

/// Removes a tree that a guest may have made unreadable for its own user, or deeper than any stack. The tree's own
/// entry is in a folder of the daemon; its content is removed with the rights of the tree's owner.
pub fn remove_tree(path: &Path) -> std::io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.is_dir() {
        return std::fs::remove_file(path);
    }
    let folder = open_folder_of_ours(path)?;
    let found = rustix::fs::fstat(&folder)?;
    let of_guest = Service::of_this_process().system && found.st_uid != 0;
    let ids = of_guest.then(|| Ids::alone(found.st_uid, found.st_gid));
    acting_as(ids.as_ref(), || super::removal::empty_tree(&folder))??;
    std::fs::remove_dir(path)?;
    project::release(folder.as_fd());
    Ok(())
}

/// A guest that runs as the daemon's user may have taken away the rights even to the workspace itself.
pub(super) fn open_folder_of_ours(path: &Path) -> rustix::io::Result<OwnedFd> {
    match open_folder(path) {
        Err(rustix::io::Errno::ACCESS) => {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))
                .map_err(|_| rustix::io::Errno::ACCESS)?;
            open_folder(path)
        }
        other => other,
    }
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

pub(super) fn give(file: &impl std::os::fd::AsFd, user: GuestUser) -> rustix::io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(user.host_uid), rustix::fs::Gid::from_raw(user.host_gid));
    rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

/// The guest's user: in system mode the user id `slot`, otherwise the daemon's own user, as the engine maps it.
pub(in crate::sandbox) fn guest(service: Service, mapping: UserMapping, slot: u32) -> GuestUser {
    match (service.system, mapping) {
        (true, UserMapping::Remapped { uid_base, gid_base }) => {
            // Only 65536 ids are mapped there, so the slot is reduced to that range.
            let inside = 1000 + slot % 60_000;
            GuestUser { uid: inside, gid: inside, host_uid: uid_base + inside, host_gid: gid_base + inside }
        }
        (true, _) => GuestUser { uid: slot, gid: slot, host_uid: slot, host_gid: slot },
        (false, UserMapping::Rootless) => {
            GuestUser { uid: 0, gid: 0, host_uid: service.uid, host_gid: service.gid }
        }
        (false, _) => {
            GuestUser { uid: service.uid, gid: service.gid, host_uid: service.uid, host_gid: service.gid }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::receipt::Backend;

    #[test]
    fn a_tree_deeper_than_any_stack_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("w");
        std::fs::create_dir(&top).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", top.join("link")).unwrap();
        let mut folder = open_folder(&top).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&folder, "d", Mode::from_raw_mode(0o700)).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            folder = rustix::fs::openat(&folder, "d", flags, Mode::empty()).unwrap();
        }
        let small = std::thread::Builder::new().stack_size(256 * 1024);
        small.spawn(move || remove_tree(&top).unwrap()).unwrap().join().unwrap();
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        assert!(Path::new("/etc/passwd").exists());
        remove_tree(&home.path().join("w")).unwrap();
    }

    #[tokio::test]
    async fn a_new_sandbox_has_the_group_that_the_owner_has_now() {
        const DAEMON: u32 = 1;
        let service = Service::of_this_process();
        if !service.system {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("w");
        std::fs::create_dir(&path).unwrap();
        for folder in [home.path(), &path] {
            std::os::unix::fs::chown(folder, Some(DAEMON), Some(DAEMON)).unwrap();
        }
        let choice = Choice { backend: crate::protocol::receipt::Backend::Docker, why: String::new() };
        let accounts = UidAccounts::load(home.path().join("accounts.json"));
        let made = Workspace::of_caller(
            &path,
            service,
            UserMapping::Same,
            choice,
            Principal::new(DAEMON),
            &[],
            &accounts,
        );
        let mut workspace = made.unwrap();
        let now = workspace.user;
        assert_eq!((now.uid, now.gid), (DAEMON, DAEMON));
        // The owner was a member of another group when the session began.
        (workspace.user.gid, workspace.user.host_gid) = (27, 27);
        assert_eq!(workspace.guest_now().await.unwrap(), now);
    }

    #[test]
    fn folders_that_are_closed_to_their_owner_are_removed() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("w");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), "x").unwrap();
        for path in ["a/b", "a", "."] {
            std::fs::set_permissions(top.join(path), std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_folder_is_not_opened_for_an_account_that_has_lost_its_user_id() {
        let home = tempfile::tempdir().unwrap();
        let (own, folder) = (Service { system: false, ..Service::of_this_process() }, home.path().join("w"));
        std::fs::create_dir(&folder).unwrap();
        let open = |accounts: &UidAccounts| {
            let choice = Choice { backend: Backend::Process, why: String::new() };
            Workspace::of_caller(&folder, own, UserMapping::Same, choice, own.principal(), &[], accounts)
        };
        open(&UidAccounts::of_ann(home.path(), own.principal(), "ann")).unwrap();
        let refused = open(&UidAccounts::of_ann(home.path(), own.principal(), "bob")).unwrap_err();
        assert!(refused.message.contains("`bob`"), "{refused:?}");
    }
}

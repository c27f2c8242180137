//! Folders in which a guest runs as the user of its session instead of a user id of its own: a managed workspace beside
//! volumes or mounts, and the volumes themselves. What several sessions of a user share needs one user id.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::protocol::ids::{SessionId, VolumeName};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::spec::{Choice, GuestUser, UserMapping};
use crate::sandbox::uid_accounts::UidAccounts;
use crate::sandbox::workspace::folder::{give, guest, open_folder_of_ours};
use crate::sandbox::workspace::owner::{self, CurrentIds, Ids, NO_GROUP, WorkKind};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::upload_room::FillLevel;
use crate::sandbox::workspace::{Service, Workspace, groups, project, remove_tree, usage};

/// The beginning of the names of folders that are to become volumes. No volume has such a name.
pub const DRAFT: &str = ".draft-";

/// A folder that a sandbox has beside its workspace.
#[derive(Debug)]
pub struct MountedFolder {
    /// Absolute path in the sandbox.
    pub target: String,
    pub writable: bool,
    /// The name of a volume; none for a folder of the caller.
    pub volume: Option<VolumeName>,
    pub folder: Workspace,
}

/// The guest that works as the owner of a folder, with the groups that the owner has now.
pub(super) fn as_owner(
    mapping: UserMapping,
    path: &Path,
    uid: u32,
    folder_gid: u32,
) -> Result<GuestUser, Problem> {
    mapped(mapping, uid, groups::for_guest(uid, folder_gid)).ok_or_else(|| {
        let what = format!("the engine cannot run a guest as the owner of `{}`", path.display());
        Problem::new(Code::Forbidden, what).hint("the engine remaps user ids; use a managed workspace")
    })
}

/// The ids inside the container for a user of the host.
fn mapped(mapping: UserMapping, uid: u32, gid: u32) -> Option<GuestUser> {
    match mapping {
        UserMapping::Same => Some(GuestUser { uid, gid, host_uid: uid, host_gid: gid }),
        UserMapping::Rootless => None,
        UserMapping::Remapped { uid_base, gid_base } => Some(GuestUser {
            uid: uid.checked_sub(uid_base)?,
            gid: gid.checked_sub(gid_base)?,
            host_uid: uid,
            host_gid: gid,
        }),
    }
}

/// The guest that runs as a user of the host.
fn guest_as(
    service: Service,
    mapping: UserMapping,
    user: Principal,
    path: &Path,
) -> Result<GuestUser, Problem> {
    if !service.system {
        return Ok(guest(service, mapping, 0));
    }
    if user.is_root() {
        let what = "a session with a volume or a mount runs as its user, and no guest runs as root";
        return Err(Problem::new(Code::Forbidden, what).hint("be another user for volumes and mounts"));
    }
    as_owner(mapping, path, user.uid(), NO_GROUP).map_err(|problem| {
        let what = "a session with a volume or a mount runs as its user, which the engine cannot do: it remaps user ids";
        Problem { message: what.into(), ..problem }.hint("leave `--volume` and `--mount` out, or choose another `--backend`")
    })
}

/// The same, unless the user's id is another account by now.
fn guest_of_account(
    service: Service,
    mapping: UserMapping,
    user: Principal,
    path: &Path,
    accounts: &UidAccounts,
) -> Result<GuestUser, Problem> {
    accounts.check(user)?;
    guest_as(service, mapping, user, path)
}

impl Workspace {
    /// A new managed folder, as [`Workspace::managed`] makes it, for a guest that runs as the session's user.
    pub fn managed_for(
        path: PathBuf,
        service: Service,
        mapping: UserMapping,
        choice: Choice,
        user: Principal,
        bytes: u64,
        accounts: &UidAccounts,
    ) -> Result<Self, Problem> {
        let guest = guest_of_account(service, mapping, user, &path, accounts)?;
        let made = Self::managed_as(path, service, guest, choice, bytes)?;
        Ok(Self { accounts: Some(accounts.clone()), ..made.paid_by(user) })
    }

    /// A volume, which was made before.
    pub fn volume(
        path: PathBuf,
        service: Service,
        mapping: UserMapping,
        choice: Choice,
        user: Principal,
        accounts: &UidAccounts,
    ) -> Result<Self, Problem> {
        let guest = guest_of_account(service, mapping, user, &path, accounts)?;
        let root = open_folder_of_ours(&path).map_err(|error| storage(&path, &error.into()))?;
        Ok(Self {
            path,
            root: Arc::new(root),
            managed: true,
            user: guest,
            owner_mapping: None,
            slot: None,
            choice,
            ids: service.system.then(|| Arc::new(account_of(user))),
            accounts: Some(accounts.clone()),
            pays: user,
            fill_level: Arc::default(),
            mounts: Vec::new(),
        })
    }

    /// Puts folders beside the workspace. All belong to the user that the guest runs as: another one could not use them
    /// as their owner does.
    pub fn beside(mut self, folders: Vec<MountedFolder>) -> Result<Self, Problem> {
        let is_foreign = |mount: &&MountedFolder| mount.folder.user.host_uid != self.user.host_uid;
        if let Some(foreign) = folders.iter().find(is_foreign) {
            let (path, workspace) = (foreign.folder.path.display(), self.path.display());
            return Err(Problem::new(
                Code::Forbidden,
                format!("`{path}` and the workspace `{workspace}` belong to different users, and a guest runs as one of them"),
            )
            .hint("use folders of one user"));
        }
        self.mounts = folders;
        Ok(self)
    }

    /// Shares the room for uploads with all who upload to the same folder.
    #[must_use]
    pub fn filled(self, fill_level: Arc<FillLevel>) -> Self {
        Self { fill_level, ..self }
    }

    /// The user who pays for the folder.
    pub fn payer(&self) -> Principal {
        self.pays
    }
}

/// The size of a volume, of which `most` bytes are allowed; none if it cannot be looked at.
pub async fn volume_bytes(path: PathBuf, service: Service, user: Principal, most: u64) -> Option<u64> {
    let open = move || open_folder_of_ours(&path);
    let folder = owner::run(user, WorkKind::Look, None, open).await.ok()?.ok()?;
    let ids = service.system.then(|| Arc::new(account_of(user)));
    let look = move || usage::measure(&Root { folder: folder.as_fd(), managed: true, uid: user.uid() });
    owner::run(user, WorkKind::Look, ids, look).await.ok()?.ok().map(|usage| usage.counted(most))
}

/// The ids with which the daemon works in the volumes of a user.
fn account_of(user: Principal) -> CurrentIds {
    CurrentIds::of_account(Ids::alone(user.uid(), groups::without_account(user.uid())))
}

/// Makes the folder of a volume, which only the user can enter, and which may hold `bytes` bytes. The folders above are
/// the daemon's own. The folder gets its name when all else is done, so that a daemon which is killed meanwhile leaves no
/// volume that belongs to root or lacks its limit.
pub fn make_volume(path: &Path, service: Service, user: Principal, bytes: u64) -> Result<(), Problem> {
    use std::os::unix::fs::DirBuilderExt;
    let make =
        |folder: &Path, recursive| std::fs::DirBuilder::new().recursive(recursive).mode(0o700).create(folder);
    let owner = guest_as(service, UserMapping::Same, user, path)?;
    let draft = path.with_file_name(format!("{DRAFT}{}", SessionId::fresh()));
    let made = path.parent().map_or(Ok(()), |parent| make(parent, true)).and_then(|()| make(&draft, false));
    made.map_err(|error| storage(path, &error))?;
    let finish = || {
        let root = open_folder_of_ours(&draft)?;
        if service.system {
            give(&root, owner)?;
            if let Err(error) = project::hold(root.as_fd(), path, bytes, usage::ENTRIES as u64) {
                // The usage watch still limits the volume.
                tracing::warn!(%error, "the kernel takes no limit for a volume");
            }
        }
        // What is there is refused, because an empty folder would be replaced.
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                project::rename(root.as_fd(), &draft, path)
            }
            found => found.and(Err(std::io::ErrorKind::AlreadyExists.into())),
        }
    };
    finish().map_err(|error| {
        // With its limit, if it has one.
        if let Err(error) = remove_tree(&draft) {
            tracing::warn!(%error, path = %draft.display(), "a draft of a volume is left to the next daemon");
        }
        storage(path, &error)
    })
}

/// Gives the folder of a volume another name in the same place.
pub fn rename_volume(path: &Path, to: &Path) -> std::io::Result<()> {
    project::rename(open_folder_of_ours(path)?.as_fd(), path, to)
}

fn storage(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("the volume `{}` cannot be used: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_guest_beside_volumes_runs_as_root_or_as_a_user_that_the_engine_cannot_have() {
        let system = Service { system: true, uid: 0, gid: 0 };
        let remapped = UserMapping::Remapped { uid_base: 1_000_000, gid_base: 0 };
        let ann = Principal::ANN;
        let made = |mapping, user| guest_as(system, mapping, user, Path::new("/v"));
        assert_eq!(made(UserMapping::Same, ann).unwrap().host_uid, ann.uid());
        for (mapping, user, what) in [
            (UserMapping::Same, Principal::ROOT, "no guest runs as root"),
            (UserMapping::Rootless, ann, "it remaps user ids"),
            (remapped, ann, "it remaps user ids"),
        ] {
            let refused = made(mapping, user).unwrap_err();
            assert_eq!(refused.code, Code::Forbidden, "{refused:?}");
            assert!(refused.message.contains(what) && refused.hint.is_some(), "{refused:?}");
        }
    }
}

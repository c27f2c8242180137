//! Volumes: folders of the daemon that outlive sessions. Each belongs to one user, counts in that user's disk quota, and
//! can be in several sessions of the user at a time. The folders themselves are the record of which volumes there are.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::api::VolumeView;
use crate::protocol::ids::{SandboxId, SessionId, SessionName, VolumeName};
use crate::protocol::limits::VOLUMES;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::Backend;
use crate::quota::{Amounts, Ledger, Permit, Refusal};
use crate::sandbox::workspace::own_user::{DRAFT, make_volume, rename_volume, volume_bytes};
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::upload_room::FillLevel;
use crate::sandbox::workspace::{Service, Workspace, remove_tree};
use crate::security_controls;

mod notes;
mod rounds;
mod uses;

pub use uses::{VolumeHold, VolumeTransfer, VolumeUse};

/// The beginning of the names of folders that are being removed. No volume has such a name.
const REMOVED: &str = ".removed-";
/// The times of every daemon.
const TIMES: Times = Times {
    look: Duration::from_secs(10),
    remove_again: Duration::from_secs(60),
    change: Duration::from_secs(60),
};

#[derive(Clone, Copy)]
struct Times {
    /// How often all volumes of a user are measured; less often where that takes long.
    look: Duration,
    /// The pause before a folder that could not be removed is tried again.
    remove_again: Duration,
    /// How long a client waits for the folder of a volume to be made or renamed. The work is not given up then, so the
    /// volume stays as one that is being changed until its outcome is known.
    change: Duration,
}

type Key = (Principal, VolumeName);

/// The volumes of all users. Clones are the same.
#[derive(Clone)]
pub struct Volumes {
    known: Arc<Mutex<BTreeMap<Key, Volume>>>,
    folder: PathBuf,
    service: Service,
    times: Times,
    /// Removes a folder with all that is in it; tests let it fail.
    remover: fn(&Path) -> std::io::Result<()>,
}

struct Volume {
    /// The bytes of the volume, in the books of its user.
    permit: Permit,
    /// The folder is being made or removed, so that no session can have it.
    is_changing: bool,
    /// The sessions that name the volume, whether they have a sandbox now or not.
    sessions: BTreeMap<SessionId, SessionName>,
    /// The sandboxes that have the volume. One that could not be removed has it longer than its session.
    sandboxes: BTreeMap<SandboxId, Backend>,
    /// The number of transfers of files to or from the volume.
    transfers: usize,
    /// How full the volume is while files are uploaded.
    fill_level: Arc<FillLevel>,
}

impl Volume {
    fn new(permit: Permit, is_changing: bool) -> Self {
        Self {
            permit,
            is_changing,
            sessions: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            transfers: 0,
            fill_level: Arc::default(),
        }
    }

    /// Why the volume cannot be removed now, if it is used.
    fn in_use(&self, name: &VolumeName) -> Option<Problem> {
        let busy = |by: String| Problem::new(Code::Busy, format!("the volume `{name}` is used by {by}"));
        if !self.sessions.is_empty() {
            let sessions: Vec<_> = self.sessions.values().map(|session| format!("`{session}`")).collect();
            let word = if sessions.len() == 1 { "session" } else { "sessions" };
            let problem = busy(format!("the {word} {}", sessions.join(", ")));
            return Some(problem.hint("remove what uses it first, with `belljar rm NAME`"));
        }
        if !self.sandboxes.is_empty() {
            let problem = busy("a sandbox that could not be removed yet".into());
            return Some(problem.hint(
                "its removal is tried again and again; `belljar doctor` says whether the engine answers",
            ));
        }
        (self.transfers > 0).then(|| busy("a transfer of files".into()).hint("try again when it has ended"))
    }
}

impl Volumes {
    pub fn new(folder: PathBuf, service: Service) -> Self {
        Self { known: Arc::default(), folder, service, times: TIMES, remover: remove_tree }
    }

    /// The folder of a volume.
    pub fn path(&self, owner: Principal, name: &VolumeName) -> PathBuf {
        self.folder.join(owner.uid().to_string()).join(name.as_str())
    }

    /// Finds the volumes that earlier daemons made, and holds those of the sandboxes that they left, whose folders are in
    /// `sandboxes`. In the background, what was being removed is removed, and all volumes
    /// are measured again and again, whether a session has them or not: what a session wrote last is seen then, and what
    /// its user, who is the guest, writes from outside. A volume may hold `most` bytes.
    pub fn load(&self, ledger: &Ledger, most: u64, sandboxes: &Path) {
        for of_user in names_in(&self.folder) {
            let Ok(uid) = of_user.parse() else { continue };
            let owner = Principal::new(uid);
            for name in names_in(&self.folder.join(&of_user)) {
                // A draft is of a daemon that was killed while it made the volume, so no client knows of it.
                if name.starts_with(REMOVED) || name.starts_with(DRAFT) {
                    let permit = ledger.keep(owner, "removed volumes", nothing());
                    let (volumes, path) = (self.clone(), self.folder.join(&of_user).join(&name));
                    tokio::spawn(async move {
                        if let Some(bytes) = volume_bytes(path.clone(), volumes.service, owner, most).await {
                            let _ = permit.gauge().measure(Kind::Workspace, bytes);
                        }
                        volumes.remove_files(owner, path, permit).await;
                    });
                } else if let Ok(name) = VolumeName::parse(&name) {
                    let permit = ledger.keep(owner, &entry_name(&name), nothing());
                    self.known.lock().insert((owner, name), Volume::new(permit, false));
                }
            }
        }
        self.hold_noted(sandboxes);
        let unowned = Self { known: Arc::default(), ..self.clone() };
        tokio::spawn(rounds::measure_for_ever(Arc::downgrade(&self.known), unowned, most));
    }

    /// Records the size of a volume; an error if its user has too much on the disk now.
    pub fn measured(&self, owner: Principal, name: &VolumeName, bytes: u64) -> Result<(), Refusal> {
        let gauge = self.known.lock().get(&(owner, name.clone())).map(|volume| volume.permit.gauge());
        let gauge = gauge.filter(|_| security_controls::holds("volume_charge"));
        gauge.map_or(Ok(()), |gauge| gauge.measure(Kind::Workspace, bytes))
    }

    /// Makes a volume that may hold `bytes` bytes.
    pub async fn create(
        &self,
        ledger: &Ledger,
        owner: Principal,
        name: &VolumeName,
        bytes: u64,
    ) -> Result<VolumeView, Problem> {
        let key = (owner, name.clone());
        {
            let mut known = self.known.lock();
            if let Some(volume) = known.get(&key) {
                if volume.is_changing {
                    return Err(is_changing(name));
                }
                return Err(Problem::new(Code::VolumeExists, format!("there is a volume `{name}` already"))
                    .hint(format!(
                        "use it with `--volume {name}:/data`, or remove it with `belljar volume rm {name}`"
                    )));
            }
            if known.keys().filter(|(of, _)| *of == owner).count() >= VOLUMES {
                return Err(Problem::new(
                    Code::TooMany,
                    format!("you have {VOLUMES} volumes, and no more are kept"),
                )
                .hint("remove one with `belljar volume rm NAME`"));
            }
            let permit = ledger.take(owner, &entry_name(name), nothing())?;
            known.insert(key.clone(), Volume::new(permit, true));
        }
        let (path, service) = (self.path(owner, name), self.service);
        let make = move || make_volume(&path, service, owner, bytes);
        let settle = |volumes: &Self, key: &Key, made: &Result<(), Problem>| {
            let mut known = volumes.known.lock();
            match known.get_mut(key) {
                Some(volume) if made.is_ok() => volume.is_changing = false,
                _ => drop(known.remove(key)),
            }
        };
        self.change(key, make, settle).await?;
        Ok(VolumeView { owner, name: name.clone(), bytes: 0, sessions: Vec::new() })
    }

    /// Makes or renames the folder of a volume. What follows from the outcome is done whenever it comes, also if the client
    /// does not wait for it any more; until then the volume stays as one that is being changed.
    async fn change(
        &self,
        key: Key,
        work: impl FnOnce() -> Result<(), Problem> + Send + 'static,
        settle: impl FnOnce(&Self, &Key, &Result<(), Problem>) + Send + 'static,
    ) -> Result<(), Problem> {
        let (volumes, begun) = (self.clone(), folders::begin(key.0, WorkKind::Look, None, work));
        let settled = tokio::spawn(async move {
            let outcome = match begun {
                Ok(outcome) => outcome.await.and_then(|outcome| outcome),
                Err(problem) => Err(problem),
            };
            settle(&volumes, &key, &outcome);
            outcome
        });
        match tokio::time::timeout(self.times.change, settled).await {
            Ok(settled) => settled
                .unwrap_or_else(|_| Err(Problem::new(Code::Internal, "an internal error ended the work"))),
            Err(_) => Err(folders::late(self.times.change)),
        }
    }

    /// The volumes of a user, or of all users.
    pub fn list(&self, owner: Option<Principal>) -> Vec<VolumeView> {
        let known = self.known.lock();
        let wanted = known
            .iter()
            .filter(|((of, _), volume)| owner.is_none_or(|owner| owner == *of) && !volume.is_changing);
        wanted
            .map(|((owner, name), volume)| VolumeView {
                owner: *owner,
                name: name.clone(),
                bytes: volume.permit.gauge().own(Kind::Workspace),
                sessions: volume.sessions.values().cloned().collect(),
            })
            .collect()
    }

    /// Whether the user has a volume, also one that is being made or removed.
    pub fn has_some(&self, owner: Principal) -> bool {
        self.known.lock().keys().any(|(of, _)| *of == owner)
    }

    /// Lets files of a volume be sent or received, as long as the answer is kept; the volume is not removed meanwhile.
    pub fn transfer(&self, owner: Principal, name: &VolumeName) -> Result<VolumeTransfer, Problem> {
        let key = (owner, name.clone());
        let mut known = self.known.lock();
        let volume = usable(&mut known, &key)?;
        volume.transfers += 1;
        let (gauge, fill_level) = (volume.permit.gauge(), Arc::clone(&volume.fill_level));
        drop(known);
        Ok(VolumeTransfer { volumes: self.clone(), key, gauge, fill_level })
    }

    /// Records that a sandbox has the volumes among the folders beside its workspace, until `let_go`, and notes it for the
    /// next daemon in the sandbox's folder.
    pub fn hold(
        &self,
        sandbox: &SandboxId,
        backend: Backend,
        folder: &Path,
        workspace: &Workspace,
    ) -> std::io::Result<()> {
        self.hold_all(sandbox, backend, keys_of(workspace));
        notes::write(folder, backend, keys_of(workspace).collect())
    }

    /// Holds the volumes of a session for the sandbox that an earlier daemon left to it, whether there is a note or not:
    /// a daemon of an earlier version wrote none.
    pub fn hold_again(
        &self,
        sandbox: &SandboxId,
        backend: Backend,
        owner: Principal,
        names: impl Iterator<Item = VolumeName>,
    ) {
        self.hold_all(sandbox, backend, names.map(|name| (owner, name)));
    }

    /// The same as `hold` for a sandbox that is about to be started.
    pub fn hold_for_start(
        &self,
        sandbox: &SandboxId,
        folder: &Path,
        workspace: &Workspace,
    ) -> std::io::Result<VolumeHold> {
        let hold = VolumeHold { volumes: self.clone(), sandbox: Some(sandbox.clone()) };
        self.hold(sandbox, workspace.choice.backend, folder, workspace)?;
        Ok(hold)
    }

    fn hold_all(&self, sandbox: &SandboxId, backend: Backend, keys: impl Iterator<Item = Key>) {
        let mut known = self.known.lock();
        for key in keys {
            if let Some(volume) = known.get_mut(&key) {
                volume.sandboxes.insert(sandbox.clone(), backend);
            }
        }
    }

    /// Records that the sandbox is gone, with all that its processes held.
    pub fn let_go(&self, sandbox: &SandboxId) {
        let mut released = Vec::new();
        for volume in self.known.lock().values_mut() {
            if volume.sandboxes.remove(sandbox).is_some() {
                released.push(Arc::clone(&volume.fill_level));
            }
        }
        for fill_level in released {
            fill_level.set_unlinked(sandbox, 0);
        }
    }

    /// Records what the processes of a sandbox hold of a volume without a name. A measurement may end after the sandbox is
    /// gone, when nothing is held any more.
    pub fn set_unlinked(&self, owner: Principal, name: &VolumeName, sandbox: &SandboxId, bytes: u64) {
        let known = self.known.lock();
        let volume = known.get(&(owner, name.clone()));
        if let Some(volume) = volume.filter(|volume| volume.sandboxes.contains_key(sandbox)) {
            volume.fill_level.set_unlinked(sandbox, bytes);
        }
    }

    /// How full a volume is, which all share who write to it.
    pub fn fill_level(&self, owner: Principal, name: &VolumeName) -> Arc<FillLevel> {
        let known = self.known.lock();
        known.get(&(owner, name.clone())).map(|volume| Arc::clone(&volume.fill_level)).unwrap_or_default()
    }

    /// Whether the sandbox has a volume.
    pub fn are_held_by(&self, sandbox: &str) -> bool {
        let sandbox = SandboxId(sandbox.to_owned());
        self.known.lock().values().any(|volume| volume.sandboxes.contains_key(&sandbox))
    }

    /// The sandboxes of a backend that have volumes.
    pub fn holders(&self, backend: Backend) -> Vec<SandboxId> {
        let known = self.known.lock();
        let all = known.values().flat_map(|volume| &volume.sandboxes);
        all.filter(|(_, of)| **of == backend).map(|(sandbox, _)| sandbox.clone()).collect()
    }

    /// Lets a session use volumes of its owner, as long as the answer is kept; no volume is removed meanwhile.
    pub fn use_by(
        &self,
        owner: Principal,
        session: SessionId,
        session_name: &SessionName,
        names: Vec<VolumeName>,
    ) -> Result<VolumeUse, Problem> {
        let mut known = self.known.lock();
        for name in &names {
            usable(&mut known, &(owner, name.clone()))?;
        }
        Ok(self.begin_use(&mut known, owner, session, session_name, names))
    }

    /// The same for a session of an earlier daemon, whose sandbox may still have them. One that is gone is missed when the
    /// session needs its next sandbox.
    pub fn use_again(
        &self,
        owner: Principal,
        session: SessionId,
        session_name: &SessionName,
        names: Vec<VolumeName>,
    ) -> VolumeUse {
        self.begin_use(&mut self.known.lock(), owner, session, session_name, names)
    }

    fn begin_use(
        &self,
        known: &mut BTreeMap<Key, Volume>,
        owner: Principal,
        session: SessionId,
        session_name: &SessionName,
        names: Vec<VolumeName>,
    ) -> VolumeUse {
        for name in &names {
            if let Some(volume) = known.get_mut(&(owner, name.clone())) {
                volume.sessions.insert(session, session_name.clone());
            }
        }
        VolumeUse { volumes: self.clone(), owner, names, session }
    }

    /// Removes a volume that nothing uses. Answered when the name is free; the files are removed after that.
    pub async fn remove(&self, owner: Principal, name: &VolumeName) -> Result<(), Problem> {
        let key = (owner, name.clone());
        {
            let mut known = self.known.lock();
            let volume = usable(&mut known, &key)?;
            if let Some(problem) = volume.in_use(name)
                && security_controls::holds("volumes_in_use_stay")
            {
                return Err(problem);
            }
            volume.is_changing = true;
        }
        let path = self.path(owner, name);
        let aside = path.with_file_name(format!("{REMOVED}{}", SessionId::fresh()));
        let to = aside.clone();
        let rename = move || {
            rename_volume(&path, &to).map_err(|error| {
                Problem::new(Code::Storage, format!("`{}` cannot be removed: {error}", path.display()))
            })
        };
        let settle = move |volumes: &Self, key: &Key, moved: &Result<(), Problem>| {
            let mut known = volumes.known.lock();
            if moved.is_err() {
                if let Some(volume) = known.get_mut(key) {
                    volume.is_changing = false;
                }
            } else if let Some(volume) = known.remove(key) {
                let (volumes, owner) = (volumes.clone(), key.0);
                tokio::spawn(async move { volumes.remove_files(owner, aside, volume.permit).await });
            }
        };
        self.change(key, rename, settle).await
    }

    /// Removes the folder of a volume that is gone for its user. The bytes count until they are gone, however long that
    /// takes.
    async fn remove_files(&self, owner: Principal, path: PathBuf, permit: Permit) {
        loop {
            let (remover, folder) = (self.remover, path.clone());
            let removed = folders::run(owner, WorkKind::Removal, None, move || remover(&folder)).await;
            match removed.map_err(|problem| problem.message).and_then(|done| done.map_err(|e| e.to_string()))
            {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(error, path = %path.display(), "a volume is not removed yet");
                }
            }
            tokio::time::sleep(self.times.remove_again).await;
        }
        drop(permit);
    }
}

/// A volume that is there and is not being made or removed.
fn usable<'a>(known: &'a mut BTreeMap<Key, Volume>, key: &Key) -> Result<&'a mut Volume, Problem> {
    match known.get_mut(key) {
        Some(volume) if volume.is_changing => Err(is_changing(&key.1)),
        Some(volume) => Ok(volume),
        None => Err(no_such(&key.1)),
    }
}

/// The volumes among the folders beside a workspace.
fn keys_of(workspace: &Workspace) -> impl Iterator<Item = Key> {
    workspace.mounts.iter().filter_map(|mount| Some((mount.folder.payer(), mount.volume.clone()?)))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// How the volume appears in a user's quota.
fn entry_name(name: &VolumeName) -> String {
    format!("volume {name}")
}

fn nothing() -> Amounts {
    Amounts::of([(Kind::Workspace, 0)])
}

fn no_such(name: &VolumeName) -> Problem {
    Problem::new(Code::NoSuchVolume, format!("there is no volume `{name}`"))
        .hint(format!("`belljar volume ls` lists yours; `belljar volume create {name}` makes it"))
}

fn is_changing(name: &VolumeName) -> Problem {
    Problem::new(Code::Busy, format!("the volume `{name}` is being made or removed"))
        .hint("try again; if that lasts, see whether the file system of the daemon's home works")
}

#[cfg(test)]
mod tests;

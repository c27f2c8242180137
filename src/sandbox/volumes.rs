//! Volumes: folders of the daemon that outlive sessions. Each belongs to one user, counts in that user's disk quota, and
//! can be in several sessions of the user at a time. The folders themselves are the record of which volumes there are.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::api::VolumeView;
use crate::protocol::ids::{SessionId, SessionName, VolumeName};
use crate::protocol::limits::VOLUMES;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit, Refusal};
use crate::sandbox::workspace::own_user::{make_volume, volume_bytes};
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::usage::pause_after;
use crate::sandbox::workspace::{Service, remove_tree};
use crate::security_controls;

/// The beginning of the names of folders that are being removed. No volume has such a name.
const REMOVED: &str = ".removed-";
/// How often all volumes are measured; less often where that takes long.
const LOOK: Duration = Duration::from_secs(10);
/// The pause before a folder that could not be removed is tried again.
const REMOVE_AGAIN: Duration = Duration::from_secs(60);

type Key = (Principal, VolumeName);

/// The volumes of all users. Clones are the same.
#[derive(Clone)]
pub struct Volumes {
    known: Arc<Mutex<BTreeMap<Key, Volume>>>,
    folder: PathBuf,
    service: Service,
}

struct Volume {
    /// The bytes of the volume, in the books of its user.
    permit: Permit,
    /// The folder is being made or removed, so that no session can have it.
    is_changing: bool,
    /// The sessions that name the volume, whether they have a sandbox now or not.
    sessions: BTreeMap<SessionId, SessionName>,
}

/// The use of volumes by a session, until this value is dropped.
pub struct VolumeUse {
    volumes: Volumes,
    owner: Principal,
    names: Vec<VolumeName>,
    session: SessionId,
}

impl Volumes {
    pub fn new(folder: PathBuf, service: Service) -> Self {
        Self { known: Arc::default(), folder, service }
    }

    /// The folder of a volume.
    pub fn path(&self, owner: Principal, name: &VolumeName) -> PathBuf {
        self.folder.join(owner.uid().to_string()).join(name.as_str())
    }

    /// Finds the volumes that earlier daemons made. In the background, what was being removed is removed, and all volumes
    /// are measured again and again, whether a session has them or not: what a session wrote last is seen then, and what
    /// its user, who is the guest, writes from outside. A volume may hold `most` bytes.
    pub fn load(&self, ledger: &Ledger, most: u64) {
        let mut removed = Vec::new();
        for of_user in names_in(&self.folder) {
            let Ok(uid) = of_user.parse() else { continue };
            let owner = Principal::new(uid);
            for name in names_in(&self.folder.join(&of_user)) {
                if name.starts_with(REMOVED) {
                    removed.push((owner, self.folder.join(&of_user).join(&name)));
                } else if let Ok(name) = VolumeName::parse(&name) {
                    let permit = ledger.keep(owner, &entry_name(&name), nothing());
                    let volume = Volume { permit, is_changing: false, sessions: BTreeMap::new() };
                    self.known.lock().insert((owner, name), volume);
                }
            }
        }
        let (known, folder, service) = (Arc::downgrade(&self.known), self.folder.clone(), self.service);
        tokio::spawn(async move {
            for (owner, path) in removed {
                is_removed(owner, path).await;
            }
            while let Some(known) = known.upgrade() {
                let begun = Instant::now();
                let volumes = Self { known, folder: folder.clone(), service };
                let keys: Vec<Key> = volumes.known.lock().keys().cloned().collect();
                for (owner, name) in keys {
                    volumes.measure(owner, &name, most).await;
                }
                drop(volumes);
                tokio::time::sleep(LOOK.max(pause_after(begun.elapsed()))).await;
            }
        });
    }

    /// Measures a volume and records its size.
    async fn measure(&self, owner: Principal, name: &VolumeName, most: u64) {
        let bytes = volume_bytes(self.path(owner, name), self.service, owner, most).await;
        if let Some(bytes) = bytes {
            let _ = self.measured(owner, name, bytes);
        }
    }

    /// Records the size of a volume; an error if its user has too much on the disk now.
    pub fn measured(&self, owner: Principal, name: &VolumeName, bytes: u64) -> Result<(), Refusal> {
        let gauge = self.known.lock().get(&(owner, name.clone())).map(|volume| volume.permit.gauge());
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
            if known.contains_key(&key) {
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
            known.insert(key.clone(), Volume { permit, is_changing: true, sessions: BTreeMap::new() });
        }
        let (path, service) = (self.path(owner, name), self.service);
        let make = move || make_volume(&path, service, owner, bytes);
        let made = folders::run(owner, WorkKind::Look, None, make).await.and_then(|made| made);
        let mut known = self.known.lock();
        match made {
            Ok(()) => {
                if let Some(volume) = known.get_mut(&key) {
                    volume.is_changing = false;
                }
                Ok(VolumeView { name: name.clone(), bytes: 0, sessions: Vec::new() })
            }
            Err(problem) => {
                known.remove(&key);
                Err(problem)
            }
        }
    }

    /// The volumes of a user.
    pub fn list(&self, owner: Principal) -> Vec<VolumeView> {
        let known = self.known.lock();
        let own = known.iter().filter(|((of, _), volume)| *of == owner && !volume.is_changing);
        own.map(|((_, name), volume)| VolumeView {
            name: name.clone(),
            bytes: volume.permit.gauge().own(Kind::Workspace),
            sessions: volume.sessions.values().cloned().collect(),
        })
        .collect()
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
        let is_there =
            |name: &VolumeName| known.get(&(owner, name.clone())).is_some_and(|volume| !volume.is_changing);
        if let Some(missing) = names.iter().find(|name| !is_there(name)) {
            return Err(no_such(missing));
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

    /// Removes a volume that no session names. Answered when the name is free; the files are removed after that.
    pub async fn remove(&self, owner: Principal, name: &VolumeName) -> Result<(), Problem> {
        let key = (owner, name.clone());
        {
            let mut known = self.known.lock();
            let found = known.get_mut(&key).filter(|volume| !volume.is_changing);
            let volume = found.ok_or_else(|| no_such(name))?;
            if !volume.sessions.is_empty() && security_controls::holds("volumes_in_use_stay") {
                let sessions: Vec<_> =
                    volume.sessions.values().map(|session| format!("`{session}`")).collect();
                let (word, list) =
                    (if sessions.len() == 1 { "session" } else { "sessions" }, sessions.join(", "));
                return Err(Problem::new(
                    Code::Busy,
                    format!("the volume `{name}` is used by the {word} {list}"),
                )
                .hint("remove what uses it first, with `belljar rm NAME`"));
            }
            volume.is_changing = true;
        }
        let path = self.path(owner, name);
        let aside = path.with_file_name(format!("{REMOVED}{}", SessionId::fresh()));
        let (from, to) = (path.clone(), aside.clone());
        let moved = folders::run(owner, WorkKind::Look, None, move || std::fs::rename(from, to)).await;
        let moved = moved.and_then(|moved| {
            moved.map_err(|error| {
                Problem::new(Code::Storage, format!("`{}` cannot be removed: {error}", path.display()))
            })
        });
        let mut known = self.known.lock();
        match moved {
            Ok(()) => {
                let volume = known.remove(&key);
                drop(known);
                tokio::spawn(async move {
                    // The bytes count until they are gone, however long that takes.
                    while !is_removed(owner, aside.clone()).await {
                        tokio::time::sleep(REMOVE_AGAIN).await;
                    }
                    drop(volume);
                });
                Ok(())
            }
            Err(problem) => {
                if let Some(volume) = known.get_mut(&key) {
                    volume.is_changing = false;
                }
                Err(problem)
            }
        }
    }
}

impl Drop for VolumeUse {
    fn drop(&mut self) {
        let mut known = self.volumes.known.lock();
        for name in &self.names {
            if let Some(volume) = known.get_mut(&(self.owner, name.clone())) {
                volume.sessions.remove(&self.session);
            }
        }
    }
}

/// Removes a folder. False if that failed.
async fn is_removed(owner: Principal, path: PathBuf) -> bool {
    let shown = path.display().to_string();
    let removed = folders::run(owner, WorkKind::Removal, None, move || remove_tree(&path)).await;
    let removed =
        removed.map_err(|problem| problem.message).and_then(|done| done.map_err(|error| error.to_string()));
    if let Err(error) = &removed {
        tracing::warn!(error, path = shown, "a volume is not removed yet");
    }
    removed.is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    #[tokio::test]
    async fn a_volume_is_found_again_and_stays_while_a_session_names_it() {
        let home = tempfile::tempdir().unwrap();
        let settings = load_text(&home.path().join("config.toml"), "").unwrap().settings;
        let service = Service { system: false, ..Service::of_this_process() };
        let (owner, other) = (service.principal(), Principal::new(service.uid + 1));
        let (name, session) = (VolumeName::parse("v").unwrap(), SessionName::parse("s").unwrap());
        let ledger = Ledger::new(&settings.quota);
        let made = Volumes::new(home.path().join("v"), service);
        made.create(&ledger, owner, &name, 1 << 20).await.unwrap();
        let again = made.create(&ledger, owner, &name, 1 << 20).await.unwrap_err();
        assert_eq!(again.code, Code::VolumeExists);
        made.measured(owner, &name, 4096).unwrap();
        assert_eq!(ledger.used(owner, Kind::Workspace), 4096);
        // The next daemon finds it.
        let volumes = Volumes::new(home.path().join("v"), service);
        volumes.load(&Ledger::new(&settings.quota), 1 << 20);
        assert_eq!((volumes.list(owner).len(), volumes.list(other).len()), (1, 0));
        let used = volumes.use_by(owner, SessionId::fresh(), &session, vec![name.clone()]).unwrap();
        assert_eq!(volumes.list(owner)[0].sessions, std::slice::from_ref(&session));
        let refused = volumes.use_by(other, SessionId::fresh(), &session, vec![name.clone()]).err().unwrap();
        assert_eq!(refused.code, Code::NoSuchVolume);
        let refused = volumes.remove(owner, &name).await.unwrap_err();
        assert!(refused.code == Code::Busy && refused.message.contains("the session `s`"), "{refused:?}");
        drop(used);
        // One that is gone leaves the others in use.
        let names = vec![VolumeName::parse("gone").unwrap(), name.clone()];
        let used = volumes.use_again(owner, SessionId::fresh(), &session, names);
        assert_eq!(volumes.remove(owner, &name).await.unwrap_err().code, Code::Busy);
        drop(used);
        volumes.remove(owner, &name).await.unwrap();
        assert_eq!(volumes.remove(owner, &name).await.unwrap_err().code, Code::NoSuchVolume);
        assert!(!volumes.path(owner, &name).exists());
    }
}

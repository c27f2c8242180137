//! A sandbox that is a process of the host.

use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::group::Group;
use super::{Isolation, attest, errand, scope, start, status};
use crate::processes::Identity;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::counters::CounterFiles;
use crate::sandbox::backend::bridge_socket::BridgeSocket;
use crate::sandbox::backend::data_socket::DataSocket;
use crate::sandbox::backend::{ByteStream, ConnectError, DataListener, RunningSandbox, SandboxEnd};
use crate::sandbox::spec::{BRIDGE_DIR, SandboxSpec, bridge_dir};

/// Time for a killed process to disappear.
const KILLED: Duration = Duration::from_secs(10);
/// Time of one wait for the end of a jail that is expected to run on.
const LOOK: Duration = Duration::from_secs(1);
/// Number of attempts to read the exit code of a jail that has ended.
const EXIT_LOOKS: usize = 20;
const EXIT_PAUSE: Duration = Duration::from_millis(10);
/// The exit code by which shells and engines report an end by SIGKILL.
const EXIT_KILLED: i64 = 137;

/// A sandbox that is a process of the host.
pub struct Jail {
    pub(super) walls: Isolation,
    /// Whether the daemon runs as root.
    pub(super) system: bool,
    pub(super) identity: Identity,
    pub(super) group: Option<Group>,
    /// The sandbox's folder, with the file in which bubblewrap records its end.
    pub(super) folder: PathBuf,
    /// The expected mount points; empty for an adopted jail, where they are unknown.
    pub(super) targets: Vec<PathBuf>,
    pub(super) runtime: String,
    /// Fingerprint of the seccomp profile that the jail was built with.
    pub(super) seccomp: String,
    pub(super) stderr_head: StderrHead,
    pub(super) socket: BridgeSocket,
    pub(super) data: DataSocket,
}

/// The beginning of what a jail wrote to its stderr.
pub(super) type StderrHead = Arc<Mutex<String>>;

impl Jail {
    /// Takes over a jail that an earlier daemon left running; `None` if it is gone.
    pub fn adopt(receipt: &Receipt, folder: &Path, system: bool) -> Option<Self> {
        let walls = Isolation::of(receipt.backend)?;
        let identity = Identity::parse(&receipt.container).filter(Identity::lives)?;
        let name = &receipt.sandbox.0;
        let group = (receipt.limits.cgroup_version > 0)
            .then(|| Group::find(name).or_else(|| scope::find(name, identity.pid)))
            .flatten();
        Some(Self {
            walls,
            system,
            identity,
            group,
            folder: folder.to_owned(),
            targets: Vec::new(),
            runtime: receipt.runtime.clone(),
            seccomp: receipt.seccomp_profile.clone(),
            stderr_head: StderrHead::default(),
            socket: BridgeSocket::unbound(bridge_dir(folder)),
            data: data_socket(walls, &bridge_dir(folder)),
        })
    }

    /// Succeeds also if the jail is not stopped.
    pub fn resume(&self) -> Result<(), Problem> {
        if let Some(group) = &self.group {
            group.freeze(false).map_err(|error| failed("thawed", &error))?;
        }
        if self.identity.is_stopped() {
            // The stop may also come from another process of the host.
            self.identity.continue_tree().map_err(|error| failed("thawed", &error.into()))?;
        }
        Ok(())
    }
}

/// The socket for data of a jail with this folder of the bridge. A process without walls sees the paths of the host.
pub(super) fn data_socket(walls: Isolation, bridge_dir: &Path) -> DataSocket {
    let seen_as = match walls {
        Isolation::Bubblewrap => Path::new(BRIDGE_DIR),
        Isolation::None => bridge_dir,
    };
    DataSocket::new(bridge_dir.to_owned(), seen_as)
}

#[async_trait]
impl RunningSandbox for Jail {
    fn pid(&self) -> Option<i32> {
        Some(self.identity.pid)
    }

    async fn connect(&self, limit: Duration) -> Result<Box<dyn ByteStream>, ConnectError> {
        let stream = self.socket.accept(self.identity.pid, limit).await?;
        Ok(Box::new(stream) as Box<dyn ByteStream>)
    }

    fn open_data(&self) -> Result<DataListener, ConnectError> {
        self.data.open()
    }

    fn read_back(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Option<(Vec<String>, Receipt)> {
        let evidence = attest::gather(spec, self)?;
        let differences =
            attest::differences(spec, self.walls, self.system, &self.targets, &evidence, &probe);
        Some((differences, attest::receipt(spec, self, evidence, python, probe)))
    }

    fn remedy(&self, _differences: &[String]) -> &'static str {
        "no code ran in it; look at the version of bubblewrap and at the kernel's settings"
    }

    async fn freeze(&self) -> Result<(), Problem> {
        match &self.group {
            Some(group) => group.freeze(true).map_err(|error| failed("frozen", &error)),
            None => self.identity.stop_tree().map(drop).map_err(|error| failed("frozen", &error.into())),
        }
    }

    async fn thaw(&self) -> Result<(), Problem> {
        self.resume()
    }

    fn is_frozen(&self) -> bool {
        let frozen = self.group.as_ref().and_then(|group| group.cgroup.is_frozen());
        frozen.unwrap_or(false) || self.identity.is_stopped()
    }

    fn cpu_time(&self) -> Option<Duration> {
        match &self.group {
            Some(group) => group.cgroup.cpu_time(),
            None => Some(self.identity.cpu_time_of_tree()),
        }
    }

    fn activity(&self) -> Option<u64> {
        match &self.group {
            Some(group) => group.cgroup.activity(),
            None => self.identity.activity_of_tree(),
        }
    }

    fn cgroup(&self) -> Option<&Cgroup> {
        self.group.as_ref().map(|group| &group.cgroup)
    }

    /// The bubblewrap process outside of the jail writes the exit code a moment after the jail has ended.
    async fn end(&self) -> Option<SandboxEnd> {
        let running = self.identity.lives();
        let mut exit_code = status::read(&self.folder).exit_code;
        if self.walls == Isolation::Bubblewrap && !running {
            for _ in 0..EXIT_LOOKS {
                if exit_code.is_some() {
                    break;
                }
                tokio::time::sleep(EXIT_PAUSE).await;
                exit_code = status::read(&self.folder).exit_code;
            }
        }
        let counters = self.cgroup().map(|cgroup| CounterFiles::open(cgroup).read()).unwrap_or_default();
        let out_of_memory = exit_code == Some(EXIT_KILLED) && counters.oom_kills > 0;
        Some(SandboxEnd { running, exit_code, out_of_memory })
    }

    async fn gone(&self) {
        while !self.identity.is_gone_within(LOOK).await {}
    }

    /// The jail's messages on its stderr before it was ready.
    fn last_words(&self) -> String {
        self.stderr_head.lock().clone()
    }

    async fn remove(&self) -> Result<(), Problem> {
        end(self.walls, &self.identity, self.group.as_ref()).await
    }
}

/// Kills the sandbox, and returns the processes whose end the caller has to wait for.
pub(super) fn kill(
    walls: Isolation,
    identity: &Identity,
    group: Option<&Group>,
) -> std::io::Result<Vec<Identity>> {
    if let Some(group) = group {
        // On version 1 a frozen process does not die.
        let _ = group.freeze(false);
    }
    let killed = match walls {
        // The process is the first of its pid namespace, so the kernel kills all others with it.
        Isolation::Bubblewrap => identity.signal(Signal::KILL).map(|()| vec![identity.clone()]),
        Isolation::None => identity.kill_tree(),
    };
    match killed {
        Err(rustix::io::Errno::SRCH) => Ok(Vec::new()),
        other => Ok(other?),
    }
}

pub(super) async fn end(walls: Isolation, identity: &Identity, group: Option<&Group>) -> Result<(), Problem> {
    for one in kill(walls, identity, group).map_err(|error| failed("killed", &error))? {
        if !one.is_gone_within(KILLED).await {
            return Err(Problem::new(Code::SandboxFailed, "a sandbox was killed and does not go"));
        }
    }
    if let Some(group) = group {
        group.remove().await;
    }
    Ok(())
}

/// Ends a sandbox with these walls that a daemon which died left, by the notes in the sandbox's folder. True if a
/// process was still running.
pub async fn reap(walls: Isolation, sandbox: &SandboxId, folder: &Path) -> Result<bool, Problem> {
    let names = [sandbox.0.clone(), errand::group_name(sandbox)];
    let groups: Vec<Group> = match walls {
        Isolation::Bubblewrap => names.iter().filter_map(|name| Group::find(name)).collect(),
        Isolation::None => Vec::new(),
    };
    let noted = start::noted(folder).filter(|(noted, identity)| *noted == walls && identity.lives());
    if let Some((_, identity)) = &noted {
        for group in &groups {
            // On version 1 a frozen process does not die.
            let _ = group.freeze(false);
        }
        end(walls, identity, None).await?;
    }
    for group in &groups {
        group.remove().await;
    }
    Ok(noted.is_some())
}

fn failed(what: &str, error: &std::io::Error) -> Problem {
    Problem::new(Code::SandboxFailed, format!("the sandbox cannot be {what}: {error}"))
}

//! Attestation: checks that a jail is as its command line asked for. Everything is read back from the host's kernel and
//! the guest's own probe, never copied from the request. A `process` has no isolation to attest, only its user and its
//! limits.

use std::path::{Path, PathBuf};

use crate::protocol::frames::Probe;
use crate::protocol::receipt::{Backend, HeldBy, Holder, LimitFact, MountFact, ProcessFact, Receipt};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::checks::Checks;
use crate::sandbox::attest::facts::{self, Ceilings};
use crate::sandbox::attest::mount_table::{self, MountRow};
use crate::sandbox::attest::{same_folder, same_mounts};
use crate::sandbox::backend::jail::Isolation;
use crate::sandbox::backend::jail::process::Jail;
use crate::sandbox::spec::{SandboxSpec, WORKSPACE};
use crate::sandbox::workspace::groups;

/// Namespaces that every jail has for itself, and one that it has only if an ordinary user built it.
const NAMESPACES: [&str; 6] = ["cgroup", "ipc", "mnt", "net", "pid", "uts"];
const USER_NAMESPACE: &str = "user";
/// Folders in which bubblewrap itself makes mounts.
const BROUGHT: [&str; 2] = ["/proc", "/dev"];
/// The file system that stands for another one until that is mounted on first access.
const ON_DEMAND: &str = "autofs";
/// Folders that may be writable beside the workspace and volumes. In `/proc` only the guest's own entries are.
const WRITABLE: [&str; 3] = ["/proc", "/tmp", "/dev"];

/// Everything that was read back, before it is checked.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub process: ProcessFact,
    /// Groups that a guest may have because its owner, who runs the daemon, has them.
    pub owner_groups: Vec<u32>,
    pub limits: LimitFact,
    pub ceilings: Ceilings,
    /// The namespaces of the jail that differ from the daemon's.
    pub namespaces: Vec<String>,
    pub mounts: Vec<MountRow>,
    pub workspace_is_ours: Option<bool>,
    pub mounts_are_ours: bool,
}

/// The mounts that can be reached. An `autofs` mount is hidden by the file system that is mounted over it on demand,
/// and bubblewrap changes the options of the upper one only. There is such a pair below `/proc/sys` wherever systemd
/// runs.
fn visible(table: &str) -> Vec<MountRow> {
    let rows = mount_table::rows(table);
    let covers = |upper: &MountRow, lower: &MountRow| {
        lower.kind == ON_DEMAND
            && upper.parent == lower.id
            && upper.id != lower.id
            && upper.target == lower.target
    };
    rows.iter().filter(|row| !rows.iter().any(|other| covers(other, row))).cloned().collect()
}

/// Reads the facts from the host's kernel. `None` if the jail is gone, or the daemon may not read them.
pub fn gather(spec: &SandboxSpec, jail: &Jail) -> Option<Evidence> {
    let pid = jail.identity.pid;
    let read = |name: &str| facts::read_small(Path::new(&format!("/proc/{pid}/{name}"))).ok();
    let process = facts::process(pid)?;
    let limits_text = read("limits")?;
    let row = |name: &str| facts::parse_limit(&limits_text, name);
    let group = jail.group.as_ref().map(|group| &group.cgroup);
    let processes = row("Max processes")?;
    let pids_held = processes <= spec.limits.pids;
    let own_cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    #[expect(clippy::cast_precision_loss, reason = "a few CPUs")]
    let limits = LimitFact {
        memory_bytes: group.and_then(Cgroup::memory_limit).unwrap_or(spec.limits.memory_bytes),
        cpus: group.and_then(Cgroup::cpus).unwrap_or(own_cpus as f64),
        pids: group.and_then(Cgroup::pids_limit).unwrap_or(processes),
        open_files: row("Max open files")?,
        file_bytes: row("Max file size")?,
        core_bytes: row("Max core file size")?,
        cgroup_version: group.map_or(0, Cgroup::version),
        held_by: match group {
            Some(_) => HeldBy::default(),
            None => HeldBy {
                memory: Holder::Guardian,
                cpus: Holder::Nothing,
                pids: if pids_held { Holder::Rlimit } else { Holder::Nothing },
            },
        },
    };
    // The process is still the same one, so all facts are about it and not about a later process with its pid.
    if !jail.identity.lives() {
        return None;
    }
    Some(Evidence {
        process,
        owner_groups: groups::of_an_owner(),
        limits,
        ceilings: facts::parse_ceilings(&limits_text)?,
        namespaces: own_namespaces(pid),
        mounts: visible(&mount_table::read(&pid.to_string()).ok()?),
        workspace_is_ours: match jail.walls {
            Isolation::Bubblewrap => same_folder(pid, WORKSPACE, spec.workspace_identity),
            Isolation::None => None,
        },
        mounts_are_ours: same_mounts(pid, &spec.mounts),
    })
}

fn own_namespaces(pid: i32) -> Vec<String> {
    let link = |whose: &str, name: &str| std::fs::read_link(format!("/proc/{whose}/ns/{name}")).ok();
    let mut names: Vec<&str> = NAMESPACES.into_iter().chain([USER_NAMESPACE]).collect();
    names
        .retain(|name| link(&pid.to_string(), name).is_some_and(|theirs| Some(theirs) != link("self", name)));
    names.into_iter().map(str::to_owned).collect()
}

/// The names of all differences; code may run only if there are none.
pub fn differences(
    spec: &SandboxSpec,
    walls: Isolation,
    system: bool,
    targets: &[PathBuf],
    evidence: &Evidence,
    probe: &Probe,
) -> Vec<String> {
    let mut checks = Checks::default();
    checks.user(spec, &evidence.process, &evidence.owner_groups);
    checks.limits(spec, &evidence.limits);
    checks.ceilings(evidence.ceilings);
    if walls == Isolation::None {
        return checks.differences();
    }
    checks.rights(&evidence.process);
    checks.probe(probe);
    let mut check = |holds, what: &str| checks.check(holds, what);
    let wanted = NAMESPACES.into_iter().chain((!system).then_some(USER_NAMESPACE));
    for name in wanted {
        check(evidence.namespaces.iter().any(|own| own == name), &format!("the {name} namespace"));
    }
    check(evidence.workspace_is_ours == Some(true), "the folder mounted as the workspace");
    check(evidence.mounts_are_ours, "the folders mounted beside the workspace");
    let writable = spec.mounts.iter().filter(|mount| mount.writable).map(|mount| Path::new(&mount.target));
    let writable: Vec<&Path> = writable.chain([Path::new(WORKSPACE)]).collect();
    let strange = evidence.mounts.iter().filter(|mount| !is_meant(mount, targets, &writable));
    for mount in strange {
        check(false, &format!("the mount at {}", mount.target.display()));
    }
    for target in targets {
        let there = evidence.mounts.iter().any(|mount| mount.target == *target);
        check(there, &format!("nothing is mounted at {}", target.display()));
    }
    checks.differences()
}

/// Whether a mount was asked for, or lies beneath one that was: the host's `/usr` may itself consist of several mounts.
fn is_meant(mount: &MountRow, targets: &[PathBuf], writable: &[&Path]) -> bool {
    let asked = targets.contains(&mount.target);
    let beneath = |folder: &Path| folder != Path::new("/") && mount.target.starts_with(folder);
    let any_of = |folders: &[&str]| folders.iter().any(|folder| beneath(Path::new(folder)));
    let may_write = writable.contains(&mount.target.as_path()) || any_of(&WRITABLE);
    let reachable = asked || any_of(&BROUGHT) || targets.iter().any(|target| beneath(target));
    reachable && mount.nosuid && (!mount.writable || may_write)
}

/// The receipt of a sandbox that passed the checks.
pub fn receipt(spec: &SandboxSpec, jail: &Jail, evidence: Evidence, python: String, probe: Probe) -> Receipt {
    let bubblewrap = jail.walls == Isolation::Bubblewrap;
    let mount_fact = |mount: &MountRow| MountFact {
        target: mount.target.display().to_string(),
        kind: if mount.kind == "tmpfs" { "tmpfs".into() } else { "bind".into() },
        writable: mount.writable,
    };
    // The mounts in `/dev` and `/proc` are the same in every jail, so they are left out.
    let plain = |mount: &&MountRow| {
        !BROUGHT.iter().any(|folder| mount.target.starts_with(folder)) || mount.target.ends_with("shm")
    };
    let mut mounts: Vec<MountFact> = match jail.walls {
        Isolation::Bubblewrap => evidence.mounts.iter().filter(plain).map(mount_fact).collect(),
        Isolation::None => Vec::new(),
    };
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    let read_only_root =
        evidence.mounts.iter().any(|mount| mount.target == Path::new("/") && !mount.writable);
    Receipt {
        sandbox: spec.sandbox.clone(),
        backend: if bubblewrap { Backend::Bubblewrap } else { Backend::Process },
        container: jail.identity.to_string(),
        runtime: jail.runtime.clone(),
        image: spec.image.clone(),
        python,
        network: if evidence.namespaces.iter().any(|name| name == "net") { "none" } else { "host" }.into(),
        process: evidence.process,
        read_only_root: bubblewrap && read_only_root,
        seccomp_profile: jail.seccomp.clone(),
        limits: evidence.limits,
        mounts,
        probe,
        namespaces: evidence.namespaces,
        chosen: String::new(),
    }
}

#[cfg(test)]
mod tests;

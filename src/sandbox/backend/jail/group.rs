//! A control group for a jail, version 1 or 2, where the daemon may make one: memory, processes, CPU and the freezer,
//! as an engine sets them for its containers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sandbox::attest::cgroup::{Cgroup, write};
use crate::sandbox::spec::{CPU_SHARES, Limits};
use crate::security_controls;

const ROOT: &str = "/sys/fs/cgroup";
/// The parent of all groups of jails.
const PARENT: &str = "belljar";
/// The weight that corresponds to `CPU_SHARES`, where 1024 shares are a weight of 100.
const CPU_WEIGHT: u64 = 25;
/// A group stays busy for a moment after its last process has died.
const REMOVE_TRIES: usize = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub cgroup: Cgroup,
}

impl Group {
    /// Makes a group; `None` if the daemon may not make one with all its limits.
    pub fn make(name: &str, limits: &Limits) -> Option<Self> {
        let group = Self::named(Path::new(ROOT), name);
        match group.set_up(limits) {
            Ok(()) => Some(group),
            Err(error) => {
                tracing::debug!(%error, name, "no control group for a jail");
                group.try_remove();
                None
            }
        }
    }

    /// The existing group of that name.
    pub fn find(name: &str) -> Option<Self> {
        let group = Self::named(Path::new(ROOT), name);
        let is_there = match &group.cgroup {
            // Jails of earlier daemons have no `cpuacct` group.
            Cgroup::V1 { cpuacct, .. } => {
                let mut folders =
                    group.folders().into_iter().filter(|folder| Some(*folder) != cpuacct.as_ref());
                folders.all(|folder| folder.is_dir())
            }
            Cgroup::V2 { folder } => folder.is_dir(),
        };
        is_there.then_some(group)
    }

    fn named(root: &Path, name: &str) -> Self {
        let below = |controller: &str| root.join(controller).join(PARENT).join(name);
        let cgroup = if root.join("cgroup.controllers").exists() {
            Cgroup::V2 { folder: root.join(PARENT).join(name) }
        } else {
            Cgroup::V1 {
                memory: below("memory"),
                pids: below("pids"),
                cpu: below("cpu"),
                cpuacct: is_apart(root).then(|| below("cpuacct")),
                freezer: Some(below("freezer")),
            }
        };
        Self { cgroup }
    }

    fn folders(&self) -> Vec<&PathBuf> {
        match &self.cgroup {
            Cgroup::V1 { memory, pids, cpu, cpuacct, freezer } => {
                [memory, pids, cpu].into_iter().chain(cpuacct).chain(freezer).collect()
            }
            Cgroup::V2 { folder } => vec![folder],
        }
    }

    fn set_up(&self, limits: &Limits) -> std::io::Result<()> {
        if let Cgroup::V2 { folder } = &self.cgroup {
            // A controller is available in a group only if all its ancestors enable it.
            let parents: Vec<&Path> = folder.ancestors().skip(1).take(2).collect();
            for parent in parents.into_iter().rev() {
                std::fs::create_dir_all(parent)?;
                write(&parent.join("cgroup.subtree_control"), "+cpu +memory +pids")?;
            }
        }
        for folder in self.folders() {
            std::fs::create_dir_all(folder)?;
        }
        let (memory, pids) = (limits.memory_bytes.to_string(), limits.pids.to_string());
        let write = |holds: bool, path: &Path, value: &str| if holds { write(path, value) } else { Ok(()) };
        let memory_holds = security_controls::holds("jail_memory_limit");
        let pids_hold = security_controls::holds("jail_process_limit");
        let shares_hold = security_controls::holds("jail_cpu_shares");
        if security_controls::holds("jail_cpu_limit") {
            self.cgroup.limit_cpus(Some(limits.cpus))?;
        }
        match &self.cgroup {
            Cgroup::V1 { memory: memory_folder, pids: pids_folder, cpu, .. } => {
                write(memory_holds, &memory_folder.join("memory.limit_in_bytes"), &memory)?;
                // Swap is not counted everywhere; where it is, the guest gets none.
                let _ = write(memory_holds, &memory_folder.join("memory.memsw.limit_in_bytes"), &memory);
                write(pids_hold, &pids_folder.join("pids.max"), &pids)?;
                write(shares_hold, &cpu.join("cpu.shares"), &CPU_SHARES.to_string())
            }
            Cgroup::V2 { folder } => {
                write(memory_holds, &folder.join("memory.max"), &memory)?;
                let _ = write(memory_holds, &folder.join("memory.swap.max"), "0");
                write(pids_hold, &folder.join("pids.max"), &pids)?;
                write(shares_hold, &folder.join("cpu.weight"), &CPU_WEIGHT.to_string())
            }
        }
    }

    pub fn take_in(&self, pid: i32) -> std::io::Result<()> {
        self.folders()
            .into_iter()
            .try_for_each(|folder| write(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    pub fn freeze(&self, frozen: bool) -> std::io::Result<()> {
        match &self.cgroup {
            Cgroup::V1 { freezer: Some(freezer), .. } => {
                write(&freezer.join("freezer.state"), if frozen { "FROZEN" } else { "THAWED" })
            }
            Cgroup::V1 { freezer: None, .. } => Ok(()),
            Cgroup::V2 { folder } => write(&folder.join("cgroup.freeze"), if frozen { "1" } else { "0" }),
        }
    }

    /// Removes the group when its last process is gone.
    pub async fn remove(&self) {
        for _ in 0..REMOVE_TRIES {
            if self.try_remove() {
                return;
            }
            tokio::time::sleep(REMOVE_PAUSE).await;
        }
        tracing::warn!(group = ?self.folders().first(), "a control group cannot be removed");
    }

    fn try_remove(&self) -> bool {
        self.folders().into_iter().fold(true, |gone, folder| {
            let removed = std::fs::remove_dir(folder);
            gone && (removed.is_ok() || !folder.exists())
        })
    }
}

/// Whether CPU time is counted in a separate hierarchy; else `cpu` and `cpuacct` are two names of the same one.
fn is_apart(root: &Path) -> bool {
    let real = |name| std::fs::canonicalize(root.join(name)).ok();
    real("cpuacct").is_some_and(|cpuacct| Some(cpuacct) != real("cpu"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::spec::tests::spec;

    fn files(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    let text = std::fs::read_to_string(entry.path()).unwrap();
                    let path = entry.path().strip_prefix(root).unwrap().display().to_string();
                    found.push(format!("{path} = {text}"));
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn both_versions_get_the_limits_of_the_spec() {
        let limits = spec().limits;
        let v1 = tempfile::tempdir().unwrap();
        Group::named(v1.path(), "x").set_up(&limits).unwrap();
        insta::assert_snapshot!(files(v1.path()).join("\n"), @r"
        cpu/belljar/x/cpu.cfs_period_us = 100000
        cpu/belljar/x/cpu.cfs_quota_us = 150000
        cpu/belljar/x/cpu.shares = 256
        memory/belljar/x/memory.limit_in_bytes = 1073741824
        memory/belljar/x/memory.memsw.limit_in_bytes = 1073741824
        pids/belljar/x/pids.max = 256
        ");
        let v2 = tempfile::tempdir().unwrap();
        std::fs::write(v2.path().join("cgroup.controllers"), "").unwrap();
        let group = Group::named(v2.path(), "x");
        group.set_up(&limits).unwrap();
        group.take_in(7).unwrap();
        group.freeze(true).unwrap();
        insta::assert_snapshot!(files(v2.path()).join("\n"), @r"
        belljar/cgroup.subtree_control = +cpu +memory +pids
        belljar/x/cgroup.freeze = 1
        belljar/x/cgroup.procs = 7
        belljar/x/cpu.max = 150000 100000
        belljar/x/cpu.weight = 25
        belljar/x/memory.max = 1073741824
        belljar/x/memory.swap.max = 0
        belljar/x/pids.max = 256
        cgroup.controllers = 
        cgroup.subtree_control = +cpu +memory +pids
        ");
    }
}

//! The control group of a sandbox, version 1 or 2: its limits, and what its processes use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::api::Load;
use crate::protocol::receipt::Receipt;
use crate::sandbox::attest::facts::read_small;

const ROOT: &str = "/sys/fs/cgroup";
/// The period of the CPU quota.
const PERIOD_US: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    V1 {
        memory: PathBuf,
        pids: PathBuf,
        cpu: PathBuf,
        /// The folder where CPU time is counted, if that is not `cpu`.
        cpuacct: Option<PathBuf>,
        freezer: Option<PathBuf>,
    },
    V2 {
        folder: PathBuf,
    },
}

impl Cgroup {
    /// The control group of a process, from the text of `/proc/<pid>/cgroup`.
    pub fn parse(text: &str) -> Option<Self> {
        let root = Path::new(ROOT);
        let below = |controller: &str| {
            text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next()?;
                let path = parts.next()?.trim_start_matches('/');
                // The folder of co-mounted controllers is reachable by each of their names.
                controllers
                    .split(',')
                    .any(|name| name == controller)
                    .then(|| root.join(controller).join(path))
            })
        };
        if let (Some(memory), Some(pids), Some(cpu)) = (below("memory"), below("pids"), below("cpu")) {
            let (cpuacct, freezer) = (below("cpuacct"), below("freezer"));
            return Some(Self::V1 { memory, pids, cpu, cpuacct, freezer });
        }
        let unified = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(Self::V2 { folder: root.join(unified.trim_start_matches('/')) })
    }

    pub fn of_process(pid: i32) -> Option<Self> {
        Self::parse(&read_small(Path::new(&format!("/proc/{pid}/cgroup"))).ok()?)
    }

    /// The control group of a sandbox, if it has one of its own.
    pub fn of_sandbox(receipt: &Receipt) -> Option<Self> {
        (receipt.limits.cgroup_version > 0).then(|| Self::of_process(receipt.process.pid)).flatten()
    }

    pub fn version(&self) -> u8 {
        match self {
            Self::V1 { .. } => 1,
            Self::V2 { .. } => 2,
        }
    }

    /// What the group's processes use now; `None` if that is not counted here.
    pub fn load(&self) -> Option<Load> {
        let number = |path: PathBuf| read_small(&path).ok()?.trim().parse::<u64>().ok();
        let of = |path: PathBuf, key| keyed(&read_small(&path).ok()?, key);
        let (memory, cache, cpu_us) = match self {
            Self::V1 { memory, cpu, cpuacct, .. } => {
                let mut counting = [Some(cpu), cpuacct.as_ref()].into_iter().flatten();
                let time = counting.find_map(|folder| number(folder.join("cpuacct.usage")));
                let cache = of(memory.join("memory.stat"), "total_inactive_file");
                (number(memory.join("memory.usage_in_bytes"))?, cache, time? / 1000)
            }
            Self::V2 { folder } => {
                let cache = of(folder.join("memory.stat"), "inactive_file");
                (number(folder.join("memory.current"))?, cache, of(folder.join("cpu.stat"), "usage_usec")?)
            }
        };
        Some(Load { cpu_us, memory_bytes: memory.saturating_sub(cache.unwrap_or(0)) })
    }

    pub fn cpu_time(&self) -> Option<Duration> {
        self.load().map(|load| Duration::from_micros(load.cpu_us))
    }

    /// A number that is another one once any process of the group has run, which takes it more than the unit of time in
    /// which the kernel counts; `None` if that is not counted here.
    pub fn activity(&self) -> Option<u64> {
        match self {
            Self::V1 { cpu, cpuacct, .. } => {
                let mut counting = [Some(cpu), cpuacct.as_ref()].into_iter().flatten();
                let read = |folder: &PathBuf| read_small(&folder.join("cpuacct.usage")).ok();
                counting.find_map(read)?.trim().parse().ok()
            }
            Self::V2 { folder } => keyed(&read_small(&folder.join("cpu.stat")).ok()?, "usage_usec"),
        }
    }

    /// Whether all processes of the group are frozen; `None` if that cannot be read.
    pub fn is_frozen(&self) -> Option<bool> {
        match self {
            Self::V1 { freezer, .. } => {
                let state = read_small(&freezer.as_ref()?.join("freezer.state")).ok()?;
                Some(state.trim() != "THAWED")
            }
            Self::V2 { folder } => {
                let events = read_small(&folder.join("cgroup.events")).ok()?;
                keyed(&events, "frozen").map(|frozen| frozen == 1)
            }
        }
    }

    pub fn memory_limit(&self) -> Option<u64> {
        let path = match self {
            Self::V1 { memory, .. } => memory.join("memory.limit_in_bytes"),
            Self::V2 { folder } => folder.join("memory.max"),
        };
        read_small(&path).ok()?.trim().parse().ok()
    }

    pub fn pids_limit(&self) -> Option<u64> {
        let path = match self {
            Self::V1 { pids, .. } => pids.join("pids.max"),
            Self::V2 { folder } => folder.join("pids.max"),
        };
        read_small(&path).ok()?.trim().parse().ok()
    }

    /// Limits the CPU time of all the group's processes together, or removes the limit.
    pub fn limit_cpus(&self, cpus: Option<f64>) -> std::io::Result<()> {
        let quota = cpus.map(quota_us);
        match self {
            Self::V1 { cpu, .. } => {
                write(&cpu.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                write(
                    &cpu.join("cpu.cfs_quota_us"),
                    &quota.map_or_else(|| "-1".into(), |quota| quota.to_string()),
                )
            }
            Self::V2 { folder } => {
                let quota = quota.map_or_else(|| "max".into(), |quota| quota.to_string());
                write(&folder.join("cpu.max"), &format!("{quota} {PERIOD_US}"))
            }
        }
    }

    pub fn cpus(&self) -> Option<f64> {
        let (quota, period) = match self {
            Self::V1 { cpu, .. } => (
                read_small(&cpu.join("cpu.cfs_quota_us")).ok()?,
                read_small(&cpu.join("cpu.cfs_period_us")).ok()?,
            ),
            Self::V2 { folder } => {
                let text = read_small(&folder.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.to_owned(), period.to_owned())
            }
        };
        let (quota, period): (f64, f64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }
}

/// Writes a setting of a group; the error names the file.
pub fn write(path: &Path, value: &str) -> std::io::Result<()> {
    std::fs::write(path, value)
        .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn quota_us(cpus: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "settings bound it to a few hundred CPUs"
    )]
    let quota = (cpus * PERIOD_US as f64).round() as u64;
    // The kernel refuses a quota below one millisecond.
    quota.max(1000)
}

/// The number after `key` in text of `key value` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let v1 = "12:pids:/docker/abc\n5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:freezer:/docker/abc\n0::/\n";
        assert_eq!(
            Cgroup::parse(v1),
            Some(Cgroup::V1 {
                memory: "/sys/fs/cgroup/memory/docker/abc".into(),
                pids: "/sys/fs/cgroup/pids/docker/abc".into(),
                cpu: "/sys/fs/cgroup/cpu/docker/abc".into(),
                cpuacct: Some("/sys/fs/cgroup/cpuacct/docker/abc".into()),
                freezer: Some("/sys/fs/cgroup/freezer/docker/abc".into()),
            })
        );
        let v2 = "0::/system.slice/docker-abc.scope\n";
        assert_eq!(
            Cgroup::parse(v2),
            Some(Cgroup::V2 { folder: "/sys/fs/cgroup/system.slice/docker-abc.scope".into() })
        );
        assert_eq!(Cgroup::parse("garbage"), None);
    }
}

//! Resource limits of a jail's first process, set before it starts Python and inherited by all its descendants.

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use rustix::thread::CapabilitySet;
use std::path::Path;

use crate::sandbox::attest::facts::read_small;
use crate::sandbox::spec::{LOCKED_MEMORY_BYTES, Limits, OOM_SCORE};
use crate::security_controls;

/// Since this kernel version, processes are counted for each user namespace, and not for the whole user.
const COUNTED_BY_NAMESPACE: (u32, u32) = (5, 14);

/// The score of a jail whose code can lower its own: enough to be killed before the daemon, and little enough that code
/// which spares itself is killed before the guardian.
const LOW_OOM_SCORE: i64 = 20;

/// The mechanism that enforces the limits beside the limits of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnforcement {
    Group,
    /// Nothing else; the guest has a user namespace, or a user id, of its own.
    Nothing,
    /// Nothing else; the guest's user has other processes, which the kernel would count, too.
    Shared,
}

/// Each limit with its value. `machine` is the machine's memory in bytes.
fn table(limits: &Limits, other_enforcement: OtherEnforcement, machine: u64) -> Vec<(Resource, u64)> {
    let locked = u64::try_from(LOCKED_MEMORY_BYTES).unwrap_or(0);
    let always = [
        security_controls::setting("jail_open_files_limit", (Resource::Nofile, limits.open_files)),
        security_controls::setting("jail_file_size_limit", (Resource::Fsize, limits.file_bytes)),
        Some((Resource::Core, u64::from(!security_controls::holds("jail_no_core_dumps")))),
        security_controls::setting("jail_locked_memory_limit", (Resource::Memlock, locked)),
        security_controls::setting("jail_no_message_queues", (Resource::Msgqueue, 0)),
    ];
    let mut table: Vec<(Resource, u64)> = always.into_iter().flatten().collect();
    if other_enforcement != OtherEnforcement::Group && security_controls::holds("jail_reserved_memory_limit")
    {
        // The guardian ends processes that use more memory than the session has. Memory that is only reserved must be
        // granted up to the machine's size, as in a container: else the same code would fail in another way.
        table.push((Resource::Data, machine));
    }
    if other_enforcement == OtherEnforcement::Nothing && security_controls::holds("jail_process_rlimit") {
        table.push((Resource::Nproc, limits.pids));
    }
    table
}

pub fn apply(pid: i32, limits: &Limits, other_enforcement: OtherEnforcement) -> std::io::Result<()> {
    let process = Pid::from_raw(pid);
    let machine = machine_bytes().unwrap_or(limits.memory_bytes);
    for (resource, value) in table(limits, other_enforcement, machine) {
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        prlimit(process, resource, limit).map_err(|error| {
            std::io::Error::other(format!("{resource:?} cannot be limited to {value}: {error}"))
        })?;
    }
    if security_controls::holds("jail_dies_before_the_daemon") {
        // This only helps the out-of-memory killer, so a failure is ignored.
        let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), oom_score().to_string());
    }
    Ok(())
}

/// Bounds the memory of each process of a jail that no control group holds and in which no guardian watches.
pub fn bound_memory(pid: i32, bytes: u64) -> std::io::Result<()> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    Ok(prlimit(Pid::from_raw(pid), Resource::Data, limit).map(drop)?)
}

/// The score that makes the kernel kill the jail before the daemon. Only if the daemon has the right to set it for good
/// can code in the jail not lower its own; otherwise a high score would only make the guardian die before that code.
fn oom_score() -> i64 {
    let own = rustix::thread::capabilities(None);
    let is_lasting = own.is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_RESOURCE));
    if is_lasting { OOM_SCORE } else { LOW_OOM_SCORE }
}

/// Whether this kernel counts the processes of a user namespace separately.
pub fn counts_by_namespace() -> bool {
    read_small(Path::new("/proc/sys/kernel/osrelease"))
        .is_ok_and(|release| version(&release).is_some_and(|version| version >= COUNTED_BY_NAMESPACE))
}

fn machine_bytes() -> Option<u64> {
    total_memory(&read_small(Path::new("/proc/meminfo")).ok()?)
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let row = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    row.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::spec::tests::spec;

    #[test]
    fn only_what_nobody_else_holds_is_held_twice() {
        let with = |other_enforcement| {
            table(&spec().limits, other_enforcement, 1).into_iter().map(|(what, _)| what).collect::<Vec<_>>()
        };
        assert!(!with(OtherEnforcement::Group).contains(&Resource::Data));
        assert!(with(OtherEnforcement::Nothing).contains(&Resource::Nproc));
        assert!(!with(OtherEnforcement::Shared).contains(&Resource::Nproc));
        assert!(with(OtherEnforcement::Shared).contains(&Resource::Data));
    }

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total_memory("MemTotal:       24591984 kB\nMemFree:  7 kB\n"), Some(24_591_984 * 1024));
        assert_eq!(total_memory("MemFree: 7 kB\n"), None);
        assert!(machine_bytes().is_some());
    }

    #[test]
    fn versions_of_kernels_are_read() {
        assert_eq!(version("6.1.0-18-amd64\n"), Some((6, 1)));
        assert_eq!(version("5.15.90.1-microsoft-standard-WSL2"), Some((5, 15)));
        assert_eq!(version("x"), None);
    }
}

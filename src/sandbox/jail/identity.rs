//! One process of the host, told from all that had or will have its number: by when it started, in
//! which run of the machine.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::sandbox::facts::read_small;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Time between two looks whether a process is gone.
const GONE_POLL: Duration = Duration::from_millis(5);
/// Rounds in which processes that fork all the time are told to stop.
const ROUNDS: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pid: i32,
    /// In clock ticks since the machine's start.
    started: u64,
    boot: String,
}

/// What `/proc/<pid>/stat` says of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    state: char,
    parent: i32,
    started: u64,
}

impl Row {
    /// The command may hold spaces and parentheses: the fields start after the last one.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Self { state, parent, started })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&read_small(Path::new(&format!("/proc/{pid}/stat"))).ok()?)
    }

    fn lives(self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

impl Identity {
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: Row::of(pid)?.started, boot: boot()? })
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '-');
        let pid = parts.next()?.parse().ok().filter(|pid| *pid > 1)?;
        Some(Self { pid, started: parts.next()?.parse().ok()?, boot: parts.next()?.to_owned() })
    }

    #[must_use]
    pub fn lives(&self) -> bool {
        self.row().is_some_and(Row::lives)
    }

    /// Whether it was told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.row().is_some_and(|row| matches!(row.state, 'T' | 't'))
    }

    fn row(&self) -> Option<Row> {
        let row = Row::of(self.pid)?;
        (row.started == self.started && boot().as_ref() == Some(&self.boot)).then_some(row)
    }

    /// To this very process, and to none that got its number since.
    pub fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        let gone = rustix::io::Errno::SRCH;
        let handle = pidfd_open(Pid::from_raw(self.pid).ok_or(gone)?, PidfdFlags::empty())?;
        // The handle holds on to one process; was it ours when it was taken?
        self.row().ok_or(gone)?;
        pidfd_send_signal(handle, signal)
    }

    /// Stops it and all that it has started, also as fast as they fork; gives whom.
    pub fn stop_tree(&self) -> rustix::io::Result<Vec<Self>> {
        let mut stopped: Vec<Self> = Vec::new();
        for _ in 0..ROUNDS {
            let fresh: Vec<Self> = self.tree().into_iter().filter(|one| !stopped.contains(one)).collect();
            if fresh.is_empty() {
                break;
            }
            for one in fresh {
                match one.signal(Signal::STOP) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => stopped.push(one),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(stopped)
    }

    pub fn continue_tree(&self) -> rustix::io::Result<()> {
        self.tree().iter().try_for_each(|one| tolerant(one.signal(Signal::CONT)))
    }

    /// Stopped first, so that none is orphaned and lost sight of while the others die.
    pub fn kill_tree(&self) -> rustix::io::Result<Vec<Self>> {
        let family = self.stop_tree()?;
        family.iter().try_for_each(|one| tolerant(one.signal(Signal::KILL)))?;
        Ok(family)
    }

    /// It and its descendants; the dead do not count.
    fn tree(&self) -> Vec<Self> {
        if !self.lives() {
            return Vec::new();
        }
        let rows = processes();
        let mut found = vec![self.clone()];
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|one| one.pid) {
            let children = rows.iter().filter(|(pid, row)| row.parent == parent && **pid != parent);
            found.extend(children.map(|(pid, row)| Self {
                pid: *pid,
                started: row.started,
                boot: self.boot.clone(),
            }));
            next += 1;
        }
        found
    }

    /// Waits until it is gone; false if that takes too long.
    pub async fn is_gone_within(&self, limit: Duration) -> bool {
        let gone = async {
            while self.lives() {
                tokio::time::sleep(GONE_POLL).await;
            }
        };
        tokio::time::timeout(limit, gone).await.is_ok()
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.pid, self.started, self.boot)
    }
}

/// One that is gone meanwhile needs no signal.
fn tolerant(outcome: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match outcome {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => other,
    }
}

fn processes() -> HashMap<i32, Row> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .filter_map(|pid| Some((pid, Row::of(pid).filter(|row| row.lives())?)))
        .collect()
}

fn boot() -> Option<String> {
    read_small(Path::new(BOOT_ID)).ok().map(|text| text.trim().replace('-', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_be_named_like_anything() {
        let stat = "7 (a) b) R (c) S 3 7 7 0 -1 4194624 46 0 0 0 1 2 3 4 20 0 1 0 494573 3457024 388 0";
        assert_eq!(Row::parse(stat), Some(Row { state: 'S', parent: 3, started: 494_573 }));
        assert_eq!(Row::parse("7 (x"), None);
    }

    #[test]
    fn a_number_that_is_used_again_is_somebody_else() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert_eq!(Identity::parse(&identity.to_string()), Some(identity.clone()));
        let earlier = Identity { started: identity.started - 1, ..identity.clone() };
        let other_boot = Identity { boot: "0".into(), ..identity.clone() };
        for other in [earlier, other_boot] {
            assert!(!other.lives());
            assert!(other.signal(Signal::KILL).is_err());
        }
        assert!(identity.lives());
        identity.signal(Signal::STOP).unwrap();
        while !identity.is_stopped() {
            std::thread::yield_now();
        }
        identity.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!identity.lives());
        for nonsense in ["", "1-2", "x-1-b", "0-1-b", "1-1-b", "-5-1-b"] {
            assert_eq!(Identity::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_whole_family_is_told() {
        let mut shell =
            std::process::Command::new("sh").args(["-c", "sleep 60 & sleep 60 & wait"]).spawn().unwrap();
        let identity = Identity::of(i32::try_from(shell.id()).unwrap()).unwrap();
        while identity.tree().len() < 3 {
            std::thread::yield_now();
        }
        let family = identity.tree();
        identity.stop_tree().unwrap();
        assert!(family.iter().all(Identity::lives));
        identity.continue_tree().unwrap();
        identity.kill_tree().unwrap();
        shell.wait().unwrap();
        while family.iter().any(Identity::lives) {
            std::thread::yield_now();
        }
    }
}

//! One process of the host, told from all that had or will have its number: by when it started, in
//! which run of the machine; and what it has started, however deep.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

/// Files of `/proc` are small; a longer one is cut.
const PROC_BYTES: u64 = 64 * 1024;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Time between two looks whether a process is gone.
const GONE_POLL: Duration = Duration::from_millis(5);
/// What the kernel counts CPU time in for programs, on every architecture that is served.
const TICKS_PER_SECOND: u64 = 100;
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
    /// CPU time of it and of its children that are gone, in clock ticks.
    ticks: u64,
}

impl Row {
    /// The command may hold spaces and parentheses: the fields start after the last one.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let mut number = |skipped| fields.nth(skipped)?.parse::<u64>().ok();
        let times = [number(9)?, number(0)?, number(0)?, number(0)?];
        let ticks = times.iter().fold(0, |sum: u64, time| sum.saturating_add(*time));
        Some(Self { state, parent, started: number(4)?, ticks })
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
        let mut stopped = Vec::new();
        for (one, outcome) in self.stop(|_| true) {
            tolerant(outcome)?;
            stopped.push(one);
        }
        Ok(stopped)
    }

    /// Whom of its tree it was told to stop, and how that went.
    fn stop(&self, meant: impl Fn(&Self) -> bool) -> Vec<(Self, rustix::io::Result<()>)> {
        let mut told: Vec<(Self, rustix::io::Result<()>)> = Vec::new();
        let mut known = HashSet::new();
        for _ in 0..ROUNDS {
            let tree = self.tree().into_iter();
            let fresh: Vec<Self> =
                tree.filter(|one| meant(one) && known.insert((one.pid, one.started))).collect();
            if fresh.is_empty() {
                break;
            }
            for one in fresh {
                let outcome = one.signal(Signal::STOP);
                told.push((one, outcome));
            }
        }
        told
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

    /// Kills all that it has started and that may be killed, and leaves it alone itself. Says how many of them there
    /// still are, with its own children that are dead and that it has not waited for.
    #[must_use]
    pub fn kill_descendants(&self) -> usize {
        let told = self.stop(|one| one.pid != self.pid);
        let killed = told.iter().filter(|(one, stopped)| stopped.is_ok() && one.signal(Signal::KILL).is_ok());
        let is_left = |row: Row| row.lives() || row.parent == self.pid;
        killed.filter(|(one, _)| one.row().is_some_and(is_left)).count()
    }

    /// CPU time of it and of its descendants, the dead included that were waited for.
    #[must_use]
    pub fn cpu_time_of_tree(&self) -> Duration {
        let rows = self.tree().into_iter().filter_map(|one| Row::of(one.pid));
        let ticks = rows.fold(0, |sum: u64, row| sum.saturating_add(row.ticks));
        Duration::from_millis(ticks.saturating_mul(1000) / TICKS_PER_SECOND)
    }

    /// It and its descendants. A process whose first thread has ended looks dead while others of it run on, so the
    /// dead are among them.
    fn tree(&self) -> Vec<Self> {
        if !self.lives() {
            return Vec::new();
        }
        let mut children = by_parent();
        let mut found = vec![self.clone()];
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|one| one.pid) {
            let of = children.remove(&parent).unwrap_or_default();
            found.extend(of.into_iter().map(|(pid, started)| Self { pid, started, boot: self.boot.clone() }));
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

/// All processes, each with when it started, by who started them.
fn by_parent() -> HashMap<i32, Vec<(i32, u64)>> {
    let mut found: HashMap<i32, Vec<(i32, u64)>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().parse().ok();
        if let Some((pid, row)) = pid.and_then(|pid| Some((pid, Row::of(pid)?))) {
            found.entry(row.parent).or_default().push((pid, row.started));
        }
    }
    found
}

/// A file of the kernel's, as text.
pub fn read_small(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(PROC_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
        assert_eq!(Row::parse(stat), Some(Row { state: 'S', parent: 3, started: 494_573, ticks: 10 }));
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

    /// The first thread of a process ends, and another one goes on: it looks dead and is not.
    #[test]
    fn what_looks_dead_is_killed_all_the_same() {
        let code = "import ctypes, platform, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n\
                    print('there', flush=True)\nctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)";
        let mut python = std::process::Command::new("python3")
            .args(["-c", code])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let of_python = Identity::of(i32::try_from(python.id()).unwrap()).unwrap();
        while of_python.lives() {
            std::thread::yield_now();
        }
        assert!(python.try_wait().unwrap().is_none(), "it lives");
        let own = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.tree().contains(&of_python));
        of_python.signal(Signal::KILL).unwrap();
        python.wait().unwrap();
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

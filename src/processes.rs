//! The identity of one process of the host: its pid together with its start time and the machine's boot, so that it is
//! never mistaken for another process with the same pid. Also finds all its descendants.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

/// Files of `/proc` are small; a longer one is cut.
const PROC_BYTES: u64 = 64 * 1024;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Time between two checks whether a process is gone.
const GONE_POLL: Duration = Duration::from_millis(5);
/// The unit in which the kernel reports CPU time to programs, on every supported architecture.
const TICKS_PER_SECOND: u64 = 100;
/// Maximum number of tasks of a tree whose activity is told; a sandbox at rest has far fewer.
const ACTIVITY_TASKS: usize = 64;
/// Maximum number of rounds in which a tree that keeps forking is stopped.
const ROUNDS: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pid: i32,
    /// The start time in clock ticks since the machine's boot.
    started: u64,
    boot: String,
}

/// The fields of `/proc/<pid>/stat` that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    state: char,
    parent: i32,
    started: u64,
    /// CPU time of the process and of its children that it has waited for, in clock ticks.
    ticks: u64,
}

impl Row {
    /// The command may contain spaces and parentheses, so the fields start after the last closing parenthesis.
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

    /// Whether the process is stopped by a signal or a debugger.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.row().is_some_and(|row| matches!(row.state, 'T' | 't'))
    }

    fn row(&self) -> Option<Row> {
        let row = Row::of(self.pid)?;
        (row.started == self.started && boot().as_ref() == Some(&self.boot)).then_some(row)
    }

    /// Sends the signal to this very process, and never to a later process with the same pid.
    pub fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        let gone = rustix::io::Errno::SRCH;
        let handle = pidfd_open(Pid::from_raw(self.pid).ok_or(gone)?, PidfdFlags::empty())?;
        // The handle refers to one process for good; the check afterwards makes sure that it is this one.
        self.row().ok_or(gone)?;
        pidfd_send_signal(handle, signal)
    }

    /// Stops the process and all its descendants, even while they fork, and returns the stopped ones.
    pub fn stop_tree(&self) -> rustix::io::Result<Vec<Self>> {
        let mut stopped = Vec::new();
        for (one, outcome) in self.stop(|_| true) {
            tolerant(outcome)?;
            stopped.push(one);
        }
        Ok(stopped)
    }

    /// Sends `SIGSTOP` to the processes of the tree that `meant` selects, and returns each with the signal's outcome.
    fn stop(&self, meant: impl Fn(&Self) -> bool) -> Vec<(Self, rustix::io::Result<()>)> {
        let mut outcomes: Vec<(Self, rustix::io::Result<()>)> = Vec::new();
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
                outcomes.push((one, outcome));
            }
        }
        outcomes
    }

    pub fn continue_tree(&self) -> rustix::io::Result<()> {
        self.tree().iter().try_for_each(|one| tolerant(one.signal(Signal::CONT)))
    }

    /// Kills the tree. All processes are stopped first, so that none is orphaned and missed while the others die.
    pub fn kill_tree(&self) -> rustix::io::Result<Vec<Self>> {
        let family = self.stop_tree()?;
        family.iter().try_for_each(|one| tolerant(one.signal(Signal::KILL)))?;
        Ok(family)
    }

    /// Kills all descendants that may be killed, but not the process itself. Returns how many of them are still there,
    /// including its dead children that it has not waited for.
    #[must_use]
    pub fn kill_descendants(&self) -> usize {
        let outcomes = self.stop(|one| one.pid != self.pid);
        let killed =
            outcomes.iter().filter(|(one, stopped)| stopped.is_ok() && one.signal(Signal::KILL).is_ok());
        let is_left = |row: Row| row.lives() || row.parent == self.pid;
        killed.filter(|(one, _)| one.row().is_some_and(is_left)).count()
    }

    /// CPU time of the process and its descendants, including the dead ones that were waited for.
    #[must_use]
    pub fn cpu_time_of_tree(&self) -> Duration {
        let rows = self.tree().into_iter().filter_map(|one| Row::of(one.pid));
        let ticks = rows.fold(0, |sum: u64, row| sum.saturating_add(row.ticks));
        Duration::from_millis(ticks.saturating_mul(1000) / TICKS_PER_SECOND)
    }

    /// A number that is another one once any process of the tree has run: whatever ran was in the tree before, or was
    /// started by a process that was, and ran for that. `None` if a process ends meanwhile, if the tree is too large to
    /// be looked at often, or if the kernel does not say.
    #[must_use]
    pub fn activity_of_tree(&self) -> Option<u64> {
        let (mut all, mut tasks, mut pids) = (DefaultHasher::new(), 0, vec![self.pid]);
        while let Some(pid) = pids.pop() {
            for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
                let task = task.ok()?.path();
                tasks += 1;
                if tasks > ACTIVITY_TASKS {
                    return None;
                }
                // The time for which the task has run and waited, in nanoseconds, and how often. Some kernels count nothing.
                let times =
                    read_small(&task.join("schedstat")).ok().filter(|times| !times.starts_with("0 "))?;
                (&task, times).hash(&mut all);
                let children = read_small(&task.join("children")).ok()?;
                pids.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
            }
        }
        Some(all.finish())
    }

    /// The process and its descendants. Zombies are included, because a process whose first thread has ended looks like
    /// one while its other threads run on.
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

    /// Waits until the process is gone; false if that takes too long.
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

/// A process that is gone meanwhile needs no signal.
fn tolerant(outcome: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match outcome {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => other,
    }
}

/// All processes of the host with their start times, by the pid of their parent.
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

/// Reads a file of `/proc` or `/sys` as text.
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

    /// The first thread of a process ends and another one runs on, so the process looks dead and is not.
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

    /// The grandchild waits for its input, and runs for as little as a process can.
    #[test]
    fn whatever_runs_in_a_family_is_noticed_and_what_waits_is_not() {
        use std::io::{BufRead, BufReader, Write};
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'echo there; while read line; do echo $line; done'; wait"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let identity = Identity::of(i32::try_from(shell.id()).unwrap()).unwrap();
        let (mut input, mut output) =
            (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()).lines());
        assert_eq!(output.next().unwrap().unwrap(), "there");
        let at_rest = || {
            let mut before = identity.activity_of_tree();
            loop {
                std::thread::sleep(Duration::from_millis(20));
                let now = identity.activity_of_tree();
                if now.is_some() && now == before {
                    return now;
                }
                before = now;
            }
        };
        for word in ["once", "again"] {
            let before = at_rest();
            writeln!(input, "{word}").unwrap();
            assert_eq!(output.next().unwrap().unwrap(), word);
            assert_ne!(at_rest(), before);
        }
        drop(input);
        shell.wait().unwrap();
        assert_eq!(identity.activity_of_tree(), None);
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

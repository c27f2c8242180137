//! The counters of a control group that distinguish an out-of-memory kill or a refused fork from other deaths, read from files that stay open: to open one takes longer than to read it, and they are
//! read before and after every cell.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::protocol::event::Counters;
use crate::sandbox::attest::cgroup::{Cgroup, keyed};

/// More than the kernel writes into one of these files.
const FILE_BYTES: usize = 1024;

/// Open files; a file that is not there counts nothing.
#[derive(Debug, Default)]
pub struct CounterFiles {
    memory: Option<File>,
    pids: Option<File>,
}

impl CounterFiles {
    #[must_use]
    pub fn open(cgroup: &Cgroup) -> Self {
        let (memory, pids) = match cgroup {
            Cgroup::V1 { memory, pids, .. } => (memory.join("memory.oom_control"), pids.join("pids.events")),
            Cgroup::V2 { folder } => (folder.join("memory.events"), folder.join("pids.events")),
        };
        let open = |path: &Path| File::open(path).ok();
        Self { memory: open(&memory), pids: open(&pids) }
    }

    /// The counters now; zero for a group that is gone.
    #[must_use]
    pub fn read(&self) -> Counters {
        Counters {
            oom_kills: count(self.memory.as_ref(), "oom_kill"),
            forks_refused: count(self.pids.as_ref(), "max"),
        }
    }
}

fn count(file: Option<&File>, key: &str) -> u64 {
    let mut text = [0; FILE_BYTES];
    let read = file.and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
    let text = text.get(..read).and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| keyed(text, key)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_picked_by_their_whole_name_and_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 9\n");
        let group = Cgroup::V2 { folder: folder.path().to_owned() };
        let files = CounterFiles::open(&group);
        assert_eq!(files.read(), Counters { oom_kills: 1, forks_refused: 0 }, "one file is not there");
        write("memory.events", "oom_kill 4\noom_group_kill 9\n");
        assert_eq!(files.read().oom_kills, 4);
        write("pids.events", "max 7\n");
        assert_eq!(CounterFiles::open(&group).read(), Counters { oom_kills: 4, forks_refused: 7 });
        assert_eq!(CounterFiles::default().read(), Counters::default());
        // Version 1 has another file, with other names beside.
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
        let folder = folder.path().to_owned();
        let (memory, pids, cpu) = (folder.clone(), folder.clone(), folder);
        let group = Cgroup::V1 { memory, pids, cpu, cpuacct: None, freezer: None };
        assert_eq!(CounterFiles::open(&group).read(), Counters { oom_kills: 5, forks_refused: 7 });
    }
}

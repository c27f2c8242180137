//! The processes of the sandbox as `/proc` lists them, and which of them are strays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::limits::DEPTH;

/// What a row of the listing says about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub parent: i32,
    pub session: i32,
    /// Whether the process was stopped.
    pub stands: bool,
    /// When the process started, in clock ticks since the machine's start.
    pub started: u64,
    /// No thread of it is left. A process whose first thread has ended is listed as a zombie, too, and lives on.
    pub is_zombie: bool,
}

pub type Rows = BTreeMap<i32, Row>;

/// The row of a process in `/proc/PID/stat`.
fn parse_row(stat: &[u8]) -> Option<Row> {
    // The command may hold spaces and parentheses: the fields start after the last one.
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(&stat[behind..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().take(20).collect();
    let (state, threads) = (*fields.first()?, fields.get(17)?.parse::<u64>().ok()?);
    Some(Row {
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        stands: matches!(state, "T" | "t"),
        started: fields.get(19)?.parse().ok()?,
        is_zombie: matches!(state, "Z" | "X") && threads <= 1,
    })
}

/// A living thread of a process whose first thread has ended; `None` for any other process.
pub fn other_thread(pid: i32) -> Option<i32> {
    other_thread_of(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn other_thread_of(pid: i32, stat: &[u8]) -> Option<i32> {
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    if !stat[behind..].starts_with(b" Z") {
        return None;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|thread| *thread != pid)
}

/// Whether this is the number of a process; threads have numbers, too.
pub fn is_process(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group.and_then(|group| group.trim().parse().ok()) == Some(pid)
}

/// The row of a process, which may be a zombie. If its first thread has ended, another one shows whether it stands.
pub fn row(pid: i32) -> Option<Row> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let row = parse_row(&stat)?;
    let other = other_thread_of(pid, &stat).filter(|_| !row.is_zombie);
    let shown = other.and_then(|thread| fs::read(format!("/proc/{pid}/task/{thread}/stat")).ok());
    Some(shown.and_then(|stat| parse_row(&stat)).map_or(row, |shown| Row { stands: shown.stands, ..row }))
}

/// Pids of everything that `/proc` lists; `None` if it cannot be listed.
pub fn pids() -> Option<Vec<i32>> {
    let listing = fs::read_dir("/proc").ok()?;
    Some(listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// All living processes by pid; zombies do not count. Empty if no descriptor is left: there is nothing better to do
/// than to go on.
pub fn living() -> Rows {
    let pids = pids().unwrap_or_default().into_iter();
    pids.filter_map(|pid| Some((pid, row(pid).filter(|row| !row.is_zombie)?))).collect()
}

pub fn is_alive(pid: i32) -> bool {
    row(pid).is_some_and(|row| !row.is_zombie)
}

/// Whether the process exists, also as a zombie: until it is reaped, it counts towards the limit on processes.
pub fn is_there(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(false)
}

/// Whether the process is a descendant of `root`; it may have ended, but not been reaped.
pub fn comes_of(root: i32, pid: i32) -> bool {
    let mut each = pid;
    for _ in 0..DEPTH {
        match row(each) {
            Some(row) if row.parent == root => return true,
            None if each == pid => return false,
            // An ancestor that is gone has left its children to another process, so the search begins again.
            None => each = pid,
            Some(row) => each = row.parent,
        }
    }
    false
}

/// All descendants of `root`, but not the `spared` ones and what is below them.
pub fn descendants(rows: &Rows, root: i32, spared: &BTreeSet<i32>) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, row) in rows {
        children.entry(row.parent).or_default().push(*pid);
    }
    let (mut found, mut waiting) = (Vec::new(), vec![root]);
    while let Some(parent) = waiting.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            if !spared.contains(&pid) {
                found.push(pid);
                waiting.push(pid);
            }
        }
    }
    found
}

/// The processes that are spared when strays are killed.
#[derive(Debug, Default, Clone)]
pub struct Spared {
    pub living: BTreeSet<i32>,
    /// Runners whose descendants are spared, too.
    pub copies: BTreeSet<i32>,
    /// Tags of copies that have not reported yet.
    pub coming: BTreeSet<u64>,
    /// Whether commands, and what commands that have ended left running, are to be spared: cells have nothing to do with
    /// them. They are known by their tags.
    pub commands: bool,
}

/// The tags of commands begin here; those of copies are below.
pub const COMMAND_TAGS: u64 = 1 << 41;

pub fn is_of_command(tag: u64) -> bool {
    tag >= COMMAND_TAGS
}

/// Which strays are to be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    All,
    /// The strays that started after this process.
    Younger(i32),
    /// What is left of copies that have ended: of one copy by its session, of all by their tags.
    LeftBehind(Option<i32>),
}

/// Descendants of `root` that are to be killed. Processes that a checkpoint has started are not spared.
///
/// Descendants of a copy are below it, because it adopts its orphans, or in its session, which no other process can
/// enter. The tag of an existing copy proves nothing: code can read it, and set it on itself.
pub fn strays(
    rows: &Rows,
    root: i32,
    spared: &Spared,
    which: Which,
    tag_of: impl Fn(i32) -> Option<u64>,
) -> Vec<i32> {
    let mut found = descendants(rows, root, &spared.copies);
    found.retain(|pid| {
        !spared.living.contains(pid) && !rows.get(pid).is_some_and(|row| spared.copies.contains(&row.session))
    });
    if !spared.coming.is_empty() {
        found.retain(|pid| tag_of(*pid).is_none_or(|tag| !spared.coming.contains(&tag)));
    }
    if spared.commands {
        found.retain(|pid| !tag_of(*pid).is_some_and(is_of_command));
    }
    match which {
        Which::All => {}
        Which::Younger(oldest) => {
            // The start is known to a hundredth of a second; within one, pids decide, because they ascend.
            let age = |pid: i32| rows.get(&pid).map(|row| (row.started, pid));
            let oldest = age(oldest);
            found.retain(|pid| oldest.is_some() && age(*pid) > oldest);
        }
        Which::LeftBehind(session) => found.retain(|pid| {
            session.is_some_and(|session| rows.get(pid).is_some_and(|row| row.session == session))
                || tag_of(*pid).is_some_and(|tag| !is_of_command(tag))
        }),
    }
    found
}

/// The processes of a command: what is below the one that was started, in its session, or has its tag.
pub fn of_command(rows: &Rows, root: i32, leader: i32, has_tag: impl Fn(i32) -> bool) -> Vec<i32> {
    let below: BTreeSet<i32> = descendants(rows, leader, &BTreeSet::new()).into_iter().collect();
    let mut found = descendants(rows, root, &BTreeSet::new());
    found.retain(|pid| {
        *pid == leader
            || below.contains(pid)
            || rows.get(pid).is_some_and(|row| row.session == leader)
            || has_tag(*pid)
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code of the session chooses the name of its processes.
    #[test]
    fn no_name_of_a_process_changes_what_its_row_says() {
        let rest = " S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1234 0 0";
        let expected = parse_row(format!("5 (sh){rest}").as_bytes());
        assert!(expected.is_some_and(|row| (row.parent, row.session, row.started) == (7, 9, 1234)));
        let telling: [&[u8]; 6] = [b")", b"(", b" ", b") Z 1 1 1", b"\n", b"\xff"];
        crate::noise::try_out(2000, |noise| {
            let mut name = b"sh".to_vec();
            let places = noise.below(4);
            noise.damage(&mut name, places, &telling);
            let stat = [b"5 (", &name[..], b")", rest.as_bytes()].concat();
            assert_eq!(parse_row(&stat), expected, "{name:?}");
            let cut = noise.below(stat.len());
            parse_row(&stat[..cut]);
        });
    }

    const GUARDIAN: i32 = 1;

    fn rows(given: &[(i32, i32, i32, u64)]) -> Rows {
        let row = |&(pid, parent, session, started): &(i32, i32, i32, u64)| {
            (pid, Row { parent, session, stands: false, started, is_zombie: false })
        };
        given.iter().map(row).collect()
    }

    #[test]
    fn a_row_is_found_behind_any_command() {
        let stat = b"7 (a) Z (b) T 3 7 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0";
        let expected = Row { parent: 3, session: 5, stands: true, started: 99, is_zombie: false };
        assert_eq!(parse_row(stat), Some(expected));
        assert_eq!(parse_row(b"7 (a"), None);
        let zombie = |threads: u64| format!("7 (a) Z 3 7 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0");
        assert!(parse_row(zombie(1).as_bytes()).unwrap().is_zombie);
        assert!(!parse_row(zombie(2).as_bytes()).unwrap().is_zombie);
    }

    #[test]
    fn what_lives_below_a_copy_or_in_its_session_is_kept_and_all_else_is_not() {
        let rows = rows(&[
            (10, 1, 10, 5), // the worker
            (11, 10, 10, 6),
            (20, 1, 20, 7), // a copy
            (21, 20, 99, 8),
            (22, 1, 20, 8), // an orphan in the copy's session
            (30, 1, 30, 9), // an orphan
        ]);
        let spared = Spared { living: [10, 20].into(), copies: [20].into(), ..Spared::default() };
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::All, |_| None), [30, 11]);
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::Younger(20), |_| None), [30]);
    }

    #[test]
    fn of_processes_with_the_same_start_the_higher_pid_is_younger() {
        let rows = rows(&[(10, 1, 10, 5), (11, 1, 11, 5), (9, 1, 9, 5)]);
        let spared = Spared { living: [10].into(), ..Spared::default() };
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::Younger(10), |_| None), [11]);
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::Younger(77), |_| None), [0; 0]);
    }

    #[test]
    fn a_copy_that_is_coming_is_known_by_its_tag() {
        let rows = rows(&[(10, 1, 10, 5), (11, 1, 11, 5), (12, 1, 12, 5)]);
        let tags = |pid: i32| (pid < 12).then_some(u64::try_from(pid).unwrap());
        let spared = Spared { coming: [10].into(), ..Spared::default() };
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::All, tags), [11, 12]);
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::LeftBehind(None), tags), [11]);
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::LeftBehind(Some(12)), tags), [11, 12]);
    }

    #[test]
    fn what_commands_started_is_spared_by_the_ends_of_cells_and_found_for_a_kill() {
        let rows = rows(&[
            (10, 1, 10, 5), // the worker
            (20, 1, 20, 6), // a command
            (21, 20, 20, 7),
            (22, 1, 22, 8), // what it started left its session and its parent
            (30, 1, 30, 9), // what a cell started
        ]);
        let tags = |pid: i32| (20..30).contains(&pid).then_some(COMMAND_TAGS);
        let spared = Spared { living: [10].into(), commands: true, ..Spared::default() };
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::All, tags), [30]);
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::LeftBehind(None), tags), [0; 0]);
        let spared = Spared { commands: false, ..spared };
        assert_eq!(strays(&rows, GUARDIAN, &spared, Which::All, tags).len(), 4);
        assert_eq!(of_command(&rows, GUARDIAN, 20, |pid| tags(pid).is_some()), [20, 22, 21]);
        assert_eq!(of_command(&rows, GUARDIAN, 20, |_| false), [20, 21]);
    }
}

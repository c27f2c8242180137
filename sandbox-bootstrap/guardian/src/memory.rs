//! How much memory the sandbox uses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::limits::{BRIM, BRIM_BYTES, LOOK, LOOK_CROWD, Limits, ROLLUP, ROLLUP_SLACK_BYTES};
use crate::process::Processes;
use crate::process_table;

/// More descriptors of sizes than there are checkpoints.
const ROLLUPS: usize = 64;
const ROLLUP_FILE_BYTES: usize = 8192;
const NAMELESS_KEPT: usize = 4096;
/// Pieces of nameless shared memory of all processes together. More of them count as more memory than any limit.
const NAMELESS_MOST: usize = 16 * 1024;
/// Bytes of a list of mappings that are read, and of all lists together. Longer ones count as more memory than any limit.
const MAPS_BYTES: u64 = 8 * 1024 * 1024;
const MAPS_ALL_BYTES: u64 = 128 * 1024 * 1024;
/// The system's name for shared memory without one.
const NAMELESS: &str = "/dev/zero (deleted)";

/// The files of a counter: in use, bound, statistics, the prefix of the names in these, and events.
struct Counters {
    in_use: &'static str,
    bound: &'static str,
    statistics: &'static str,
    prefix: &'static str,
    events: &'static str,
}

/// The files of a cgroup v2, and those of a cgroup v1.
static COUNTERS: [Counters; 2] = [
    Counters {
        in_use: "/sys/fs/cgroup/memory.current",
        bound: "/sys/fs/cgroup/memory.max",
        statistics: "/sys/fs/cgroup/memory.stat",
        prefix: "",
        events: "/sys/fs/cgroup/memory.events",
    },
    Counters {
        in_use: "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        bound: "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        statistics: "/sys/fs/cgroup/memory/memory.stat",
        prefix: "total_",
        events: "/sys/fs/cgroup/memory/memory.oom_control",
    },
];

/// Whether there is a counter of the sandbox's own; unknown until the limits are.
enum Counter {
    Unknown,
    None,
    Own(&'static Counters),
}

/// A descriptor through which a checkpoint, which hides its memory from others, shows its size.
struct Rollup {
    descriptor: OwnedFd,
    order: u64,
}

/// Reads the sandbox's own counter; where there is none, sums up the shares of the runners.
pub struct Memory {
    counter: Counter,
    looked_at: Option<Instant>,
    brimful_since: Option<Instant>,
    rollups: BTreeMap<i32, Rollup>,
    rollups_made: u64,
    /// The processes that do not show their size now, by pid, and until when that is accepted: the descriptor of a new
    /// checkpoint may still come, and a process that makes one hides its memory meanwhile.
    awaited: BTreeMap<i32, Instant>,
    /// The largest extent that was seen of each piece of nameless shared memory, by device and inode.
    nameless_ends: BTreeMap<(String, String), u64>,
    /// Folders of the sandbox's own whose files take memory.
    folders: Vec<&'static str>,
}

impl Memory {
    pub fn new(is_init: bool) -> Self {
        Self {
            counter: Counter::Unknown,
            looked_at: None,
            brimful_since: None,
            rollups: BTreeMap::new(),
            rollups_made: 0,
            awaited: BTreeMap::new(),
            nameless_ends: BTreeMap::new(),
            folders: if is_init { folders_in_memory() } else { Vec::new() }, // else they are the host's
        }
    }

    /// The counter whose limit is the sandbox's; a counter with a larger limit includes other processes, too.
    fn counters(&mut self, limits: &Limits) -> Option<&'static Counters> {
        if matches!(self.counter, Counter::Unknown) {
            let most = limits.memory_bytes.saturating_add(limits.checkpoint_bytes);
            let own = COUNTERS.iter().find(|each| number(each.bound).is_some_and(|bound| bound <= most));
            self.counter = own.map_or(Counter::None, Counter::Own);
        }
        if let Counter::Own(counters) = self.counter { Some(counters) } else { None }
    }

    /// Whether the system itself ends processes when the sandbox takes more memory than it has.
    pub fn is_limited_by_system(&mut self, limits: &Limits) -> bool {
        self.counters(limits).is_some()
    }

    /// What the counter of the sandbox's own says, the file cache included.
    pub fn counted(&mut self, limits: &Limits) -> Option<u64> {
        self.counters(limits).and_then(|counters| number(counters.in_use))
    }

    /// How many processes the system has ended for memory; 0 where it does not tell.
    pub fn oom_kills(&mut self, limits: &Limits) -> u64 {
        let events = self.counters(limits).and_then(|counters| fs::read_to_string(counters.events).ok());
        let row = |text: &str| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        events.as_deref().and_then(row).unwrap_or(0)
    }

    /// Whether it is time to measure again; a sum costs more than a counter.
    pub fn take_turn(&mut self, pause: std::time::Duration) -> bool {
        let now = Instant::now();
        let has_counter = matches!(self.counter, Counter::Own(_));
        if !has_counter && self.looked_at.is_some_and(|looked_at| now < looked_at + pause) {
            return false;
        }
        self.looked_at = Some(now);
        true
    }

    /// The bytes of memory in use. A page that checkpoints share counts once.
    pub fn in_use(&mut self, limits: &Limits, pids: &[i32], processes: &mut Processes) -> u64 {
        let Some(counters) = self.counters(limits) else {
            return self.total(pids, processes);
        };
        let used = number(counters.in_use).unwrap_or(0);
        // The statistics cost more to read, and matter only above the session's memory.
        if used > limits.memory_bytes {
            used.saturating_sub(cached(counters, &["inactive_file"]))
        } else {
            used
        }
    }

    /// Whether nearly all memory, without the file cache, has been in use for a good while.
    ///
    /// The host's kernel may then spend its time on reading the same pages of programs in again and again, rather than
    /// end a process.
    pub fn is_brimful(&mut self, limits: &Limits) -> bool {
        let Some(counters) = self.counters(limits) else { return false };
        let (used, brim) =
            (number(counters.in_use).unwrap_or(0), limits.all_memory().saturating_sub(BRIM_BYTES));
        let is_full =
            used > brim && used.saturating_sub(cached(counters, &["inactive_file", "active_file"])) > brim;
        let now = Instant::now();
        self.brimful_since = is_full.then(|| self.brimful_since.unwrap_or(now));
        self.brimful_since.is_some_and(|since| now >= since + BRIM)
    }

    /// What processes use together, where a page that n processes share counts as an nth for each.
    pub fn total(&mut self, pids: &[i32], processes: &mut Processes) -> u64 {
        let mut still = Stillness::new(processes);
        // Code of the session chooses some of the numbers, so no sum may overflow.
        let (mut own, mut shared) = (0_u64, 0_u64);
        for pid in pids {
            still.before_next();
            let share = self.share(*pid);
            own = own.saturating_add(share.0.saturating_sub(share.1));
            shared = shared.saturating_add(share.1);
        }
        let nameless = self.nameless(pids, &mut still);
        still.end();
        self.with_files(own, shared, nameless)
    }

    /// All that a process uses, and how much of it is shared memory.
    fn share(&self, pid: i32) -> (u64, u64) {
        let [share, shared] = self.mapped(pid, ["Pss:", "Pss_Shmem:"]);
        if share > 0 {
            return (share, shared);
        }
        if self.is_awaited(pid) {
            return (0, 0); // it is about to show its size, or to show it again
        }
        // The process hides its memory, or has ended. What it shares with others counts in full then.
        let [own, shared] = status(pid);
        (own.saturating_add(shared), shared)
    }

    /// The memory of a process, except for what a disk backs, with the files that lie in memory.
    pub fn resident_with_files(&self, pid: i32) -> u64 {
        let [own, shared] = status(pid);
        self.with_files(own, shared, 0)
    }

    /// The memory that the end of each process alone would free, by pid; an upper bound if the process hides its memory.
    pub fn held_by_each(&self, pids: &[i32], processes: &mut Processes) -> BTreeMap<i32, u64> {
        let mut still = Stillness::new(processes);
        let mut held = BTreeMap::new();
        for pid in pids {
            still.before_next();
            let [alone] = self.mapped(*pid, ["Private_"]);
            let alone = if alone > 0 || self.is_awaited(*pid) { alone } else { status(*pid)[0] };
            held.insert(*pid, alone);
        }
        still.end();
        held
    }

    /// Shared memory may be mapped files or not; no page is counted twice, at the price that some are not counted.
    fn with_files(&self, own: u64, shared: u64, nameless: u64) -> u64 {
        let files = sum(self.folders.iter().map(|folder| bytes_of_files(folder)));
        own.saturating_add(shared.max(nameless.saturating_add(files)))
    }

    /// Shared memory that is no file. A process can release its pages while they stay allocated, so all of it counts.
    fn nameless(&mut self, pids: &[i32], still: &mut Stillness<'_>) -> u64 {
        let mut pieces = Nameless::default();
        for pid in pids {
            still.before_next();
            // A process that has ended, or hides, shows nothing: then its own pages are all that can be seen.
            let Ok(maps) = File::open(format!("{}/maps", folder_of(*pid))) else { continue };
            if !pieces.take(maps) {
                return u64::MAX;
            }
        }
        for (key, end) in &mut pieces.ends {
            // Pages that are no longer mapped stay allocated as long as any part is mapped.
            *end = self.nameless_ends.get(key).copied().unwrap_or(0).max(*end);
        }
        if self.nameless_ends.len() > NAMELESS_KEPT {
            self.nameless_ends.clear();
        }
        let total = sum(pieces.ends.values().copied());
        self.nameless_ends.extend(pieces.ends);
        total
    }

    /// Expects the descriptor through which a checkpoint shows its size.
    pub fn expect(&mut self, pid: i32) {
        if !self.rollups.contains_key(&pid) {
            self.awaited.insert(pid, Instant::now() + ROLLUP);
        }
    }

    /// Expects that a process hides its memory for a moment, while it makes a checkpoint; but not again and again.
    pub fn may_hide(&mut self, pid: i32) {
        self.awaited.entry(pid).or_insert_with(|| Instant::now() + ROLLUP);
    }

    pub fn shows_again(&mut self, pid: i32) {
        self.awaited.remove(&pid);
    }

    fn is_awaited(&self, pid: i32) -> bool {
        self.awaited.get(&pid).is_some_and(|until| Instant::now() < *until)
    }

    /// Keeps the descriptor of a process that may not have reported yet that it is a checkpoint, or never will.
    pub fn hold(&mut self, pid: i32, descriptor: OwnedFd) {
        self.let_go(pid);
        if !process_table::is_there(pid) {
            return;
        }
        self.rollups_made += 1;
        self.rollups.insert(pid, Rollup { descriptor, order: self.rollups_made });
        if self.rollups.len() > ROLLUPS {
            let oldest = self.rollups.iter().min_by_key(|(_, rollup)| rollup.order).map(|(pid, _)| *pid);
            if let Some(oldest) = oldest {
                self.let_go(oldest);
            }
        }
    }

    pub fn let_go(&mut self, pid: i32) {
        self.awaited.remove(&pid);
        self.rollups.remove(&pid);
    }

    /// Sums of `smaps_rollup`, for which the host's kernel walks all pages. Zeros if the process hides its memory.
    fn mapped<const N: usize>(&self, pid: i32, keys: [&str; N]) -> [u64; N] {
        let Some(rollup) = self.rollups.get(&pid) else {
            return kibibytes(&format!("/proc/{pid}/smaps_rollup"), keys);
        };
        let mut buffer = [0; ROLLUP_FILE_BYTES];
        let Ok(count) = rustix::io::pread(&rollup.descriptor, &mut buffer, 0) else { return [0; N] };
        let text = String::from_utf8_lossy(&buffer[..count]);
        let [seen] = sums(&text, ["Rss:"]);
        // The process may run another program by now, while the descriptor shows the memory from when it was opened.
        let hides = resident(pid) > seen.saturating_add(ROLLUP_SLACK_BYTES);
        if hides { [0; N] } else { sums(&text, keys) }
    }
}

/// Keeps all other processes stopped while pages are counted: a crowd at once, else when counting takes long.
///
/// A process that forks holds the lock of its pages, and hundreds of busy processes leave it no CPU time to release it:
/// the guardian would wait for each of them, and notice the end of a cell much too late.
struct Stillness<'a> {
    processes: &'a mut Processes,
    was_halted: bool,
    until: Instant,
}

impl<'a> Stillness<'a> {
    fn new(processes: &'a mut Processes) -> Self {
        let was_halted = processes.is_halted();
        if processes.is_crowded(LOOK_CROWD) {
            processes.halt();
        }
        Self { processes, was_halted, until: Instant::now() + LOOK }
    }

    /// Called before each process is measured: if measuring takes long, the processes stand still for the rest of it.
    fn before_next(&mut self) {
        if Instant::now() > self.until && !self.processes.is_halted() {
            self.processes.halt();
        }
    }

    fn end(self) {
        if !self.was_halted {
            self.processes.resume();
        }
    }
}

fn folders_in_memory() -> Vec<&'static str> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let is_tmpfs = |folder: &&str| {
        let last = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(*folder));
        last.and_then(|line| line.split_once(" - ")).is_some_and(|(_, kind)| kind.starts_with("tmpfs "))
    };
    ["/tmp", "/dev/shm"].into_iter().filter(is_tmpfs).collect()
}

fn bytes_of_files(folder: &str) -> u64 {
    rustix::fs::statvfs(folder)
        .map_or(0, |room| room.f_blocks.saturating_sub(room.f_bfree).saturating_mul(room.f_frsize))
}

/// The number in a file; `None` if it is not there, or `max`.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The sum of these rows of the counter's statistics.
fn cached(counters: &Counters, keys: &[&str]) -> u64 {
    let Ok(text) = fs::read_to_string(counters.statistics) else { return 0 };
    let row = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        keys.contains(&name.strip_prefix(counters.prefix)?).then(|| value.trim().parse::<u64>().ok())?
    };
    sum(text.lines().filter_map(row))
}

/// Memory of a process of its own, and shared memory, except for what a disk backs; quick to read.
fn status(pid: i32) -> [u64; 2] {
    kibibytes(&format!("{}/status", folder_of(pid)), ["RssAnon:", "RssShmem:"])
}

/// Where `/proc` shows the memory of a process. If its first thread has ended, only its other threads show it.
fn folder_of(pid: i32) -> String {
    let thread = process_table::other_thread(pid);
    thread.map_or_else(|| format!("/proc/{pid}"), |thread| format!("/proc/{pid}/task/{thread}"))
}

/// A sum that ends at the largest number.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Memory of a process, shared or not, except for what a disk backs.
pub fn resident(pid: i32) -> u64 {
    sum(status(pid).into_iter())
}

/// For each key, the sum in bytes of the lines that start with it.
fn kibibytes<const N: usize>(path: &str, keys: [&str; N]) -> [u64; N] {
    fs::read(path).map_or([0; N], |data| sums(&String::from_utf8_lossy(&data), keys))
}

fn sums<const N: usize>(text: &str, keys: [&str; N]) -> [u64; N] {
    let mut totals = [0_u64; N];
    for line in text.lines() {
        for (total, key) in totals.iter_mut().zip(keys) {
            if line.starts_with(key) {
                let kibibytes =
                    line.split_ascii_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
                *total = total.saturating_add(kibibytes.unwrap_or(0).saturating_mul(1024));
            }
        }
    }
    totals
}

/// Pieces of nameless shared memory in lists of mappings. Code of the session chooses how many mappings there are, and
/// how long their names.
#[derive(Default)]
struct Nameless {
    /// How far each piece reaches, by device and inode.
    ends: BTreeMap<(String, String), u64>,
    bytes_read: u64,
}

impl Nameless {
    /// Adds the pieces of one list. False if there are too many of them, or too much to read.
    fn take(&mut self, maps: impl Read) -> bool {
        let most = MAPS_BYTES.min(MAPS_ALL_BYTES.saturating_sub(self.bytes_read));
        let mut maps = BufReader::new(maps.take(most));
        let mut line = Vec::new();
        while self.ends.len() <= NAMELESS_MOST
            && maps.read_until(b'\n', &mut line).is_ok_and(|count| count > 0)
        {
            if let Some((key, extent)) = std::str::from_utf8(&line).ok().and_then(parse_nameless) {
                let end = self.ends.entry(key).or_default();
                *end = extent.max(*end);
            }
            line.clear();
        }
        let unread = maps.get_ref().limit();
        self.bytes_read += most - unread;
        unread > 0 && self.ends.len() <= NAMELESS_MOST
    }
}

/// Which piece of nameless shared memory a line of `maps` shows, and how far it reaches.
fn parse_nameless(line: &str) -> Option<((String, String), u64)> {
    if !line.contains(NAMELESS) {
        return None;
    }
    let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
    let [span, _, offset, device, inode] = fields[..] else { return None };
    let (start, end) = span.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let extent = hex(offset)?.checked_add(hex(end)?)?.checked_sub(hex(start)?)?;
    Some(((device.to_owned(), inode.to_owned()), extent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_start_with_a_key_are_summed_up() {
        let text = "Rss:  10 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty:  2 kB\nPss: x kB\n";
        assert_eq!(sums(text, ["Private_", "Pss:", "Rss:"]), [3 * 1024, 0, 10 * 1024]);
    }

    #[test]
    fn nameless_memory_is_known_by_device_and_inode() {
        let line = "7f00-7f80 rw-s 00000040 00:01 1027   /dev/zero (deleted)";
        assert_eq!(parse_nameless(line), Some((("00:01".into(), "1027".into()), 0xC0)));
        assert_eq!(parse_nameless("7f00-7f80 rw-s 00000040 00:01 1027   /dev/shm/x"), None);
    }

    #[test]
    fn no_list_of_mappings_takes_memory_without_bound() {
        let line = b"7f00-7f80 rw-s 00000040 00:01 1027   /dev/zero (deleted)\n";
        let other = b"7f00-7f80 rw-s 00000040 00:01 1027   /tmp/\xff\n";
        let maps = [&other[..], line, other].concat();
        let mut pieces = Nameless::default();
        assert!(pieces.take(&maps[..]));
        assert_eq!(pieces.ends.len(), 1);
        assert!(!pieces.take(std::io::repeat(b'a')));
    }

    #[test]
    fn lists_of_mappings_have_one_bound_together() {
        let mut pieces = Nameless::default();
        let list = |from: usize| {
            let line = |inode| format!("7f00-7f80 rw-s 00000000 00:01 {inode}   /dev/zero (deleted)\n");
            (from..from + NAMELESS_MOST / 2).map(line).collect::<String>()
        };
        assert!(pieces.take(list(0).as_bytes()) && pieces.take(list(0).as_bytes()));
        assert!(pieces.take(list(NAMELESS_MOST / 2).as_bytes()));
        assert!(!pieces.take(list(NAMELESS_MOST).as_bytes()));
        let mut pieces = Nameless::default();
        let long = || std::io::repeat(b'a').take(MAPS_BYTES - 1);
        assert!((0..MAPS_ALL_BYTES / MAPS_BYTES).all(|_| pieces.take(long())));
        assert!(!pieces.take(long()));
    }

    #[test]
    fn sums_of_what_code_of_the_session_chooses_do_not_overflow() {
        assert_eq!(sum([u64::MAX, 1].into_iter()), u64::MAX);
        assert_eq!(sums(&format!("Pss: {} kB\nPss: 1 kB\n", u64::MAX), ["Pss:"]), [u64::MAX]);
        let memory = Memory::new(false);
        assert_eq!(memory.with_files(1, u64::MAX, u64::MAX), u64::MAX);
    }
}

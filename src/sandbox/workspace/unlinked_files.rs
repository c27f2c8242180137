//! Files without a name, which take space as long as a process holds them: deleted files, and files that never had a
//! name. A walk of the workspace does not see them, so they are searched for in the descriptors and mappings of the
//! sandbox's processes. Descriptors in transit through a socket are not seen.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::security_controls;

/// Maximum number of tasks that are checked; a sandbox may have far fewer.
const TASKS: usize = 16_384;
/// Maximum number of descriptors and mappings that are checked.
const DESCRIPTORS: usize = 400_000;
/// Bytes that are read of the list of one process's mappings.
const MAPPINGS_BYTES: u64 = 16 * 1024 * 1024;

/// A folder in which processes of a sandbox can make files.
#[derive(Debug)]
pub(super) struct FolderInSandbox {
    pub device: u64,
    /// Where the sandbox has the folder. No guest can change what is mounted there.
    pub target: PathBuf,
}

/// The files without a name that processes hold on the file systems of some folders.
#[derive(Debug, Default)]
pub(super) struct UnlinkedFiles {
    /// The bytes of those in each folder, in the order of the folders.
    pub bytes: Vec<u64>,
    /// Bytes that the processes have written to disks, including their children that have ended.
    pub bytes_written: u64,
    /// Whether there were more tasks, descriptors or mappings than are checked.
    pub too_many: bool,
    folders: Vec<FolderInSandbox>,
    /// Devices and inodes.
    seen: HashSet<(u64, u64)>,
    checked: usize,
}

/// The files that a process and its descendants hold. In a process namespace of its own, these are all its processes:
/// an orphan becomes a child of the first process.
pub(super) fn find_unlinked_files(first: i32, folders: Vec<FolderInSandbox>) -> UnlinkedFiles {
    let mut found = UnlinkedFiles { bytes: vec![0; folders.len()], folders, ..UnlinkedFiles::default() };
    if !security_controls::holds("nameless_files_count") {
        return found;
    }
    let (mut processes, mut tasks_seen) = (vec![first], 0);
    while let Some(pid) = processes.pop() {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let tasks: Vec<PathBuf> = entries(&process.join("task")).take(TASKS).collect();
        tasks_seen += tasks.len();
        if tasks_seen > TASKS {
            found.too_many = true;
            break;
        }
        for task in &tasks {
            // Each thread may have its own descriptors and its own children.
            found.count_descriptors(task);
            let children = std::fs::read_to_string(task.join("children")).unwrap_or_default();
            processes.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
        found.bytes_written = found.bytes_written.saturating_add(bytes_written_by(&process));
        // Threads share their memory, so one list is enough; a first thread that has ended shows an empty one.
        let _ = tasks.iter().any(|task| found.count_mappings(&process, task));
    }
    found
}

/// The entries of a folder of `/proc`; none if its process is gone.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The bytes written, as the kernel counts them; 0 where it does not count them or denies access.
fn bytes_written_by(process: &Path) -> u64 {
    let counts = std::fs::read_to_string(process.join("io")).unwrap_or_default();
    let of = |line: &str| line.strip_prefix("write_bytes: ")?.trim().parse().ok();
    counts.lines().find_map(of).unwrap_or(0)
}

impl UnlinkedFiles {
    fn count_descriptors(&mut self, task: &Path) {
        for descriptor in entries(&task.join("fd")) {
            if !self.may_continue() {
                return;
            }
            self.count_if_unlinked(&descriptor);
        }
    }

    /// Whether the list had any mapping.
    fn count_mappings(&mut self, process: &Path, task: &Path) -> bool {
        let Ok(list) = std::fs::File::open(task.join("maps")) else { return false };
        let (mut list, mut line, mut any) = (BufReader::new(list.take(MAPPINGS_BYTES)), Vec::new(), false);
        while list.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            any = true;
            if !self.may_continue() {
                break;
            }
            // The name is the guest's choice, so only the kernel's link identifies the file.
            let range = line.split(|byte| *byte == b' ').next().and_then(|word| str::from_utf8(word).ok());
            if let Some(range) = range.filter(|_| line.ends_with(b" (deleted)\n")) {
                self.count_if_unlinked(&process.join("map_files").join(trimmed(range)));
            }
            line.clear();
        }
        self.too_many |= list.get_ref().limit() == 0;
        any
    }

    fn may_continue(&mut self) -> bool {
        self.checked += 1;
        self.too_many |= self.checked > DESCRIPTORS;
        !self.too_many
    }

    fn count_if_unlinked(&mut self, link: &Path) {
        let Ok(found) = std::fs::metadata(link) else { return };
        if found.nlink() > 0 || self.seen.contains(&(found.dev(), found.ino())) {
            return;
        }
        let Some(folder) = self.folder_of(link, found.dev()) else { return };
        self.seen.insert((found.dev(), found.ino()));
        self.bytes[folder] = self.bytes[folder].saturating_add(found.blocks().saturating_mul(512));
    }

    /// The folder in which the file is: the kernel still knows the path that it had, or the folder in which it was made
    /// without a name, and both begin with the place of a mount. A file on the same file system that is in none of the
    /// folders counts to the first of them there, which is the workspace as a rule.
    fn folder_of(&self, link: &Path, device: u64) -> Option<usize> {
        let path = std::fs::read_link(link).unwrap_or_default();
        let here = || self.folders.iter().enumerate().filter(|(_, folder)| folder.device == device);
        let holds_it = here().find(|(_, folder)| path.starts_with(&folder.target));
        holds_it.or_else(|| here().next()).map(|(index, _)| index)
    }
}

/// A range as the names in `map_files` are written: without leading zeros.
fn trimmed(range: &str) -> String {
    let short = |number: &str| match number.trim_start_matches('0') {
        "" => "0".to_owned(),
        short => short.to_owned(),
    };
    range.split_once('-').map_or_else(String::new, |(start, end)| format!("{}-{}", short(start), short(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Each file has 1 MiB: deleted and open, mapped only, never linked, twice in one process, in a child, in none of the
    /// folders; and one that still has a name.
    const HOLDER: &str = r"
import mmap, os, sys, time
def file(name):
    f = open(name, 'w+b')
    f.write(b'x' * (1 << 20))
    f.flush()
    return f
os.mkdir('w'); os.mkdir('v')
a = file('w/a'); os.unlink('w/a'); again = os.dup(a.fileno())
b = file('w/b'); m = mmap.mmap(b.fileno(), 0); b.close(); os.unlink('w/b')
c = open(os.open('v', os.O_TMPFILE | os.O_RDWR), 'w+b'); c.write(b'x' * (1 << 20)); c.flush()
d = file('w/d')
f = file('f'); os.unlink('f')
if os.fork() == 0:
    e = file('v/e'); os.unlink('v/e')
    print('ready', flush=True)
time.sleep(60)
";

    #[test]
    fn what_a_family_holds_without_a_name_is_counted_once_and_in_its_folder() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/target").unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", HOLDER]).current_dir(folder.path()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first_line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first_line).unwrap();
        let device = std::fs::metadata(folder.path()).unwrap().dev();
        let first = i32::try_from(child.id()).unwrap();
        let folders = |device| {
            ["w", "v"].map(|name| FolderInSandbox { device, target: folder.path().join(name) }).into()
        };
        let found = find_unlinked_files(first, folders(device));
        let elsewhere = find_unlinked_files(first, folders(device + 1));
        let family = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
        for pid in family.split_whitespace() {
            Command::new("kill").args(["-KILL", pid]).status().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Only root may read the links of mappings.
        let files = if rustix::process::geteuid().is_root() { 3 } else { 2 };
        let mib: Vec<u64> = found.bytes.iter().map(|bytes| bytes >> 20).collect();
        assert_eq!(mib, [files, 2], "{found:?}");
        assert!(!found.too_many && elsewhere.bytes == [0, 0], "{found:?} {elsewhere:?}");
    }

    #[test]
    fn ranges_are_written_as_the_kernel_names_them() {
        assert_eq!(trimmed("00400000-00452000"), "400000-452000");
        assert_eq!(trimmed("7f0000000000-7f0000001000"), "7f0000000000-7f0000001000");
        assert_eq!(trimmed("nonsense"), "");
    }
}

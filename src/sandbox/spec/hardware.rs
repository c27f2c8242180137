//! Files about the host's hardware that are hidden from guests. Their names differ between machines, so they are read.

use std::fs::FileType;
use std::path::Path;

use crate::sandbox::spec::MASKED_PATHS;
use crate::security_controls;

/// Folders, and the entries of each that stay visible: processors and memory as programs ask for them, and the guest's
/// own control group.
const KEPT: [(&str, &[&str]); 5] = [
    ("/sys", &["devices", "fs", "kernel"]),
    ("/sys/devices", &["system"]),
    ("/sys/devices/system", &["cpu", "node"]),
    ("/sys/fs", &["cgroup"]),
    ("/sys/kernel", &["mm"]),
];
/// The entries of `/proc` that stay visible beside those of processes: figures that programs size themselves by, facts
/// that system calls tell too, the guest's own links, and a switch that only root can use. All others are about disks, buses,
/// devices, interrupts, page allocators, locks of other processes and the host's boot, or new to this list.
const KEPT_OF_PROC: [&str; 15] = [
    "cpuinfo",
    "filesystems",
    "loadavg",
    "meminfo",
    "mounts",
    "net",
    "self",
    "stat",
    "sys",
    "sysrq-trigger",
    "sysvipc",
    "thread-self",
    "uptime",
    "version",
    "vmstat",
];

/// Paths that are hidden from guests on this host.
pub(in crate::sandbox) fn hidden() -> Vec<String> {
    if !security_controls::holds("hardware_is_hidden") {
        return Vec::new();
    }
    let mut hidden = of_proc(&names_in(Path::new("/proc"), |_| true));
    hidden.extend(below(&|folder| names_in(Path::new(folder), |kind| kind.is_dir())));
    hidden
}

/// The entries of `/proc` that a guest must not see, without those that the lists of masked paths name already.
fn of_proc(names: &[String]) -> Vec<String> {
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let is_kept = |name: &str| is_process(name) || KEPT_OF_PROC.contains(&name);
    let others = names.iter().filter(|name| !is_kept(name)).map(|name| format!("/proc/{name}"));
    let mut hidden: Vec<String> = others.filter(|path| !MASKED_PATHS.contains(&path.as_str())).collect();
    hidden.sort();
    hidden
}

fn below(folders_in: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut hidden = Vec::new();
    for (folder, kept_names) in KEPT {
        let others = folders_in(folder).into_iter().filter(|name| !kept_names.contains(&name.as_str()));
        hidden.extend(others.map(|name| format!("{folder}/{name}")));
    }
    hidden.sort();
    hidden
}

fn names_in(folder: &Path, wanted: impl Fn(FileType) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| entry.file_type().is_ok_and(&wanted));
    wanted.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_hidden_but_processors_memory_and_the_own_group() {
        let host = |folder: &str| -> Vec<String> {
            let names: &[&str] = match folder {
                "/sys" => &["block", "devices", "kernel"],
                "/sys/devices" => &["pci0000:80", "system"],
                "/sys/devices/system" => &["cpu", "memory", "node"],
                "/sys/kernel" => &["mm", "slab"],
                _ => &["cgroup"],
            };
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let expected =
            ["/sys/block", "/sys/devices/pci0000:80", "/sys/devices/system/memory", "/sys/kernel/slab"];
        assert_eq!(below(&host), expected);
    }

    #[test]
    fn a_file_of_proc_that_nobody_has_heard_of_is_hidden() {
        let there = ["1", "4711", "self", "meminfo", "zoneinfo", "kallsyms", "a-new-one", "pressure"];
        let there: Vec<String> = there.map(String::from).to_vec();
        assert_eq!(of_proc(&there), ["/proc/a-new-one", "/proc/pressure", "/proc/zoneinfo"]);
    }
}

//! Files about the host's hardware that are hidden from guests. Their names differ between machines, so they are read.

use std::path::Path;

use crate::controls;

/// Folders, and the entries of each that stay visible: processors and memory as programs ask for them, and the guest's
/// own control group.
const KEPT: [(&str, &[&str]); 5] = [
    ("/sys", &["devices", "fs", "kernel"]),
    ("/sys/devices", &["system"]),
    ("/sys/devices/system", &["cpu", "node"]),
    ("/sys/fs", &["cgroup"]),
    ("/sys/kernel", &["mm"]),
];
/// Hidden files of `/proc`: about disks, buses, devices, locks of other processes and the host's boot.
const OF_PROC: [&str; 17] = [
    "/proc/bus",
    "/proc/cmdline",
    "/proc/consoles",
    "/proc/devices",
    "/proc/diskstats",
    "/proc/driver",
    "/proc/fs",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/key-users",
    "/proc/locks",
    "/proc/mdstat",
    "/proc/misc",
    "/proc/mtrr",
    "/proc/partitions",
    "/proc/swaps",
    "/proc/tty",
];

/// Paths that are hidden from guests on this host.
pub(in crate::sandbox) fn hidden() -> Vec<String> {
    if !controls::holds("hardware_is_hidden") {
        return Vec::new();
    }
    let of_proc = OF_PROC.iter().map(|path| (*path).to_owned());
    of_proc.chain(below(&|folder| folders_in(Path::new(folder)))).collect()
}

fn below(folders_in: &dyn Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut hidden = Vec::new();
    for (folder, kept) in KEPT {
        let others = folders_in(folder).into_iter().filter(|name| !kept.contains(&name.as_str()));
        hidden.extend(others.map(|name| format!("{folder}/{name}")));
    }
    hidden.sort();
    hidden
}

fn folders_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
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
}

//! What a guest learns of its host: no hardware, no disks, no modules, no names of others. And what users of the host
//! learn of the sessions of others.

use serde_json::json;
use std::os::unix::fs::chown;

use super::grounds::on_every_ground;
use crate::docker::helpers::{printed, session};
use crate::docker::many_users::{ALICE, ask, run, shared};
use crate::support::jails;

on_every_ground!(nothing_of_the_hosts_hardware_is_seen);

/// Prints what can be read and says something. What a guest may see of `/sys` is its own control group, its
/// processors and the settings of memory.
const LOOK: &str = r#"
import os
seen = []
KEPT = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm")
for folder, folders, files in os.walk("/sys"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in KEPT]
    if folder == "/sys/kernel":
        continue
    seen += [os.path.join(folder, name) for name in files]
    seen += [p for p in (os.path.join(folder, name) for name in folders) if os.path.islink(p)]
# Whatever else a kernel has at the top of /proc is empty or closed, also what no list of ours has heard of.
KEPT_OF_PROC = {"cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "net", "self", "stat", "sys", "sysrq-trigger",
                "sysvipc", "thread-self", "uptime", "version", "vmstat"}
for name in os.listdir("/proc"):
    if name.isdigit() or name in KEPT_OF_PROC:
        continue
    path = f"/proc/{name}"
    try:
        found = os.listdir(path) if os.path.isdir(path) else os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 64)
    except OSError:
        continue
    if found:
        seen.append(path)
print(*seen[:50], sep="\n", end="")
"#;

fn nothing_of_the_hosts_hardware_is_seen() {
    let Some(daemon) = session() else { return };
    assert_eq!(printed(&daemon, LOOK), "", "a guest sees these");
    // What programs need is there.
    let needed = "import os, multiprocessing\nprint(os.cpu_count() > 0, open('/proc/meminfo').read(3), \
                  len(open('/proc/cpuinfo').read()) > 0, open('/proc/stat').read(3), os.path.exists('/proc/self/mounts'))";
    assert_eq!(printed(&daemon, needed), "True Mem True cpu True\n");
}

/// Every user of the host can read the command lines of all processes.
#[test]
fn the_command_lines_of_jails_tell_nothing_of_sessions() {
    jails::in_a_jail(None, || {
        let daemon = shared("");
        let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
        chown(folder.path(), Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
        let request = json!({"name": "a", "workspace": folder.path()});
        let made = ask(&daemon, ALICE, "POST", "/v1/sessions", request).expect_status(201);
        assert_eq!(run(&daemon, ALICE, "a", "1")["status"], "success");
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let lines: Vec<String> = processes
            .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect();
        let guest = format!("--reuid={}", ALICE.uid);
        assert!(lines.iter().any(|line| line.starts_with("bwrap\0") && line.contains(&guest)), "{lines:?}");
        let (id, folder) = (made["id"].as_str().expect("an id"), folder.path().display().to_string());
        for line in &lines {
            assert!(!line.contains(id) && !line.contains(&folder), "{line}");
        }
        let home = daemon.home().join("s").display().to_string();
        for line in lines.iter().filter(|line| line.starts_with("bwrap\0")) {
            assert!(!line.contains(&home), "{line}");
        }
    });
}

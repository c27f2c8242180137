//! What a session must not leave behind.

use super::{Daemon, eventually};

/// Processes of the host that are in the control group of a container.
fn processes_of(container: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(container))
    })
    .collect()
}

/// A process of a sandbox and all others in its pid namespace.
pub fn beside(pid: u32) -> Vec<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = namespace(pid) else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    pids.filter(|pid| namespace(*pid).as_ref() == Some(&own)).collect()
}

/// The processes of bubblewrap that hold a file below the folder open. The file by which bubblewrap tells the end of a
/// jail is one.
fn jails_with_file_below(folder: &std::path::Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter(|pid| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut paths = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "bwrap")
            && paths.any(|path| path.starts_with(folder))
    })
    .collect()
}

/// No container, folder or process of these sandboxes is there any more, or soon. The journal, and
/// with it the output of removed sessions, stays.
#[track_caller]
pub fn assert_nothing_left(daemon: &Daemon, containers: &[String]) {
    let listed = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(daemon.home().join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy())).collect()
    };
    let left = || -> Vec<String> {
        // Output stays with the journal of a removed session, for as long as that is kept.
        let folders = ["s", "w"].into_iter().flat_map(listed);
        let running = containers.iter().flat_map(|id| processes_of(id)).map(|pid| format!("process {pid}"));
        let jails = jails_with_file_below(&daemon.home().join("s"));
        let running = running.chain(jails.into_iter().map(|pid| format!("jail of process {pid}")));
        let drafts = listed("kernel").into_iter().filter(|name| name.contains("draft"));
        daemon.containers().into_iter().chain(folders).chain(running).chain(drafts).collect()
    };
    let mut last = Vec::new();
    let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("nothing is left", || {
            last = left();
            last.is_empty().then_some(())
        });
    }));
    assert!(gone.is_ok(), "left behind: {last:?}");
}

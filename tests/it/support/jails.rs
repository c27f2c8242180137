//! The same tests on another ground: whatever a test starts while it is run by `in_a_jail` is a daemon
//! whose sandboxes are built by bubblewrap, perhaps as another user.

use serde_json::Value;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::User;

#[derive(Clone, Copy)]
pub struct Ground {
    pub user: Option<User>,
}

thread_local! {
    static GROUND: Cell<Option<Ground>> = const { Cell::new(None) };
}

/// Runs a test that was written for containers.
pub fn in_a_jail(user: Option<User>, test: impl FnOnce()) {
    let before = GROUND.replace(Some(Ground { user }));
    test();
    GROUND.set(before);
}

pub fn ground() -> Option<Ground> {
    GROUND.get()
}

/// The configuration with another backend in it.
pub fn with_backend(config: &str) -> String {
    let line = "backend = \"bubblewrap\"\n";
    match config.split_once("[sandbox]\n") {
        Some((before, after)) => format!("{before}[sandbox]\n{line}{after}"),
        None => format!("{config}\n[sandbox]\n{line}"),
    }
}

/// Images are those of an engine; a jail shows the host's own system.
pub fn without_image(mut request: Value) -> Value {
    if let Some(fields) = request.as_object_mut() {
        fields.remove("image");
    }
    request
}

/// The folders of jails that live, with the host's pid of their first process.
pub fn living(home: &Path) -> Vec<(PathBuf, u32)> {
    let folders = std::fs::read_dir(home.join("s")).into_iter().flatten().flatten();
    let mut found: Vec<(PathBuf, u32)> = folders
        .filter_map(|folder| Some((folder.path(), first_process(&folder.path())?)))
        .filter(|(_, pid)| is_alive(*pid))
        .collect();
    found.sort();
    found
}

fn first_process(folder: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let first: Value = serde_json::from_str(status.lines().next()?).ok()?;
    u32::try_from(first["child-pid"].as_u64()?).ok()
}

pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Stops all processes of a jail by signals.
pub fn stop(pid: u32) {
    for pid in super::beside(pid) {
        // It may be gone meanwhile.
        let _ = Command::new("kill").args(["-STOP", &pid.to_string()]).status();
    }
}

/// Whether a jail is stopped, by signals or by the freezer of its control group.
pub fn is_stopped(folder: &Path, pid: u32) -> bool {
    let root = Path::new("/sys/fs/cgroup");
    let v1 = root.join("freezer/belljar").join(name(folder)).join("freezer.state");
    let v2 = root.join("belljar").join(name(folder)).join("cgroup.freeze");
    let reads = |path: &Path, value| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    reads(&v1, "FROZEN")
        || reads(&v2, "1")
        || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

pub fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Control groups of jails with these names.
pub fn groups(names: &[String]) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let parents = [root.join("belljar")].into_iter().chain(
        ["cpu", "cpuacct", "freezer", "memory", "pids"]
            .map(|controller| root.join(controller).join("belljar")),
    );
    parents
        .flat_map(|parent| names.iter().map(move |name| parent.join(name)))
        .filter(|path| path.exists())
        .collect()
}

/// What a daemon leaves running for the next one, when there is no next one.
pub fn remove_all(home: &Path) {
    for (folder, pid) in living(home) {
        // On version 1 a frozen process does not die.
        let freezer = Path::new("/sys/fs/cgroup/freezer/belljar").join(name(&folder)).join("freezer.state");
        let _ = std::fs::write(freezer, "THAWED");
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        while is_alive(pid) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // A group is busy for a moment after its last process has died.
        let names = [name(&folder)];
        for _ in 0..100 {
            let left = groups(&names);
            if left.is_empty() {
                break;
            }
            for group in left {
                let _ = std::fs::remove_dir(group);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

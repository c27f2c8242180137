//! Sessions at rest: they cost the daemon next to nothing, and what stirs in one of them is noticed all the same.

use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

use crate::support::{Daemon, engine, eventually};

const SESSIONS: u32 = 4;
const SECONDS: u32 = 10;
/// How often a session at rest may wake the daemon in a second: two actors look at their clocks, and each wakes as many
/// threads as it hands something on to.
const WAKE_UPS: u32 = 8;

/// How often each thread of the daemon has slept.
fn sleeps(daemon: &Daemon) -> HashMap<String, u32> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs");
    let counted = threads.flatten().filter_map(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((thread.file_name().to_string_lossy().into_owned(), count.trim().parse().ok()?))
    });
    counted.collect()
}

#[test]
pub fn a_session_at_rest_is_left_alone() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    for number in 0..SESSIONS {
        let name = format!("s{number}");
        daemon.session(&name, json!({"image": "belljar/base"}));
        assert_eq!(daemon.run(&name, "1 + 1")["result"]["repr"], "2");
    }
    // By then, what the cells left to be done is done.
    std::thread::sleep(Duration::from_secs(3));
    let before = sleeps(&daemon);
    std::thread::sleep(Duration::from_secs(SECONDS.into()));
    let woken: u32 = sleeps(&daemon)
        .into_iter()
        .map(|(thread, count)| count.saturating_sub(before.get(&thread).copied().unwrap_or(0)))
        .sum();
    assert!(woken <= SESSIONS * SECONDS * WAKE_UPS, "{woken} wake-ups in {SECONDS} s of {SESSIONS} sessions");
}

/// Waits for long, then writes more than a workspace may hold.
const LATE: &str = r"
import threading, time
def write():
    time.sleep(8)
    for number in range(30):
        open(f'file{number}', 'wb').write(b'x' * (1 << 20))
        time.sleep(0.5)
threading.Thread(target=write, daemon=True).start()
";

#[test]
pub fn what_a_thread_writes_after_a_long_rest_is_noticed() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\nworkspace = \"8MiB\"\n");
    daemon.session("a", json!({"image": "belljar/base"}));
    assert_eq!(daemon.run("a", LATE)["status"], "success");
    let gone = eventually("the sandbox is ended", || {
        daemon.events("a", 0).into_iter().find(|event| event["type"] == "sandbox_gone")
    });
    assert!(gone.to_string().contains("The workspace held"), "{gone}");
}

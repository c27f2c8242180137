//! What a cell that follows another at once costs in calls of the system, which does not depend on how busy the machine
//! is. Only reads and writes are counted by the kernel; the rest of the calls come with them.

use serde_json::json;

use super::helpers::{S, session_with};
use crate::support::Daemon;

const WARM_UPS: u64 = 20;
const CELLS: u64 = 100;
/// Reads and writes for a cell, by the guardian and Python together: twice of what was counted.
const OF_THE_SANDBOX: u64 = 23;
/// The same by the daemon, with the request, the answer and the journal.
const OF_THE_DAEMON: u64 = 48;

/// The reads and writes that the processes have made so far.
fn reads_and_writes(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let counters = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("the process lives");
        let values = counters.lines().filter(|line| line.starts_with("sysc")).map(|line| {
            line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a number")
        });
        values.sum::<u64>()
    };
    pids.iter().map(of).sum()
}

/// All processes of the session's sandbox.
fn processes(daemon: &Daemon) -> Vec<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(daemon.first_process(S));
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| namespace(*pid) == wanted).collect()
}

#[test]
pub fn a_cell_takes_few_reads_and_writes() {
    let Some(daemon) = session_with("", json!({"image": "belljar/base"})) else { return };
    let run = |count| {
        for _ in 0..count {
            assert_eq!(daemon.run(S, "1 + 1")["result"]["repr"], "2");
        }
    };
    run(WARM_UPS);
    // A cell without effects makes no process, so that these are all.
    let sandbox = processes(&daemon);
    let before = (reads_and_writes(&sandbox), reads_and_writes(&[daemon.pid()]));
    run(CELLS);
    let of_sandbox = reads_and_writes(&sandbox) - before.0;
    let of_daemon = reads_and_writes(&[daemon.pid()]) - before.1;
    assert!(of_sandbox <= OF_THE_SANDBOX * CELLS, "{of_sandbox} for {CELLS} cells in the sandbox");
    assert!(of_daemon <= OF_THE_DAEMON * CELLS, "{of_daemon} for {CELLS} cells in the daemon");
    eprintln!("for {CELLS} cells: {of_sandbox} in the sandbox, {of_daemon} in the daemon");
}

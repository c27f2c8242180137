//! Hundreds of processes that take all the CPU time there is and fork as fast as they die.

use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::grounds::on_every_ground;
use crate::docker::helpers::{outcome, printed, queue, session_with};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, engine, eventually, keeps_every_state};
use belljar::sandbox::attest::cgroup::Cgroup;

const BOMB: &str = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
/// Each process is gone when it is looked for: it has forked the next one.
const CHAINS: &str = "\
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        while True:
            open('alive', 'w').close()
            if os.fork():
                os._exit(0)
while True:
    pass";
const WATCH: &str = r#"
import os, signal, time
signal.signal(signal.SIGCHLD, lambda *_: open("stopped", "w").close())
if os.fork() == 0:
    open("watching", "w").close()
while True:
    time.sleep(600)
"#;
/// Leaves a crowd that does nothing, and ends its worker.
const CROWD: &str = "\
for _ in range(80):
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
print('crowded', flush=True)
time.sleep(0.03)
os._exit(3)";
/// Deaths of a crowd while copies are made. One in thirty used to cost the variables of a cell.
const CROWDS: usize = 25;
const TIMEOUT: Duration = Duration::from_secs(2);
/// The end of a cell comes this long after its deadline at the latest, where the machine runs these tests alone.
const WITHIN: Duration = Duration::from_secs(1);
/// In an ordinary run, other tests take the machine at the same time: what ends a cell waits for the CPU behind their
/// sandboxes and compilers, which are no load of the session and nothing that a guardian could stop.
const WITHIN_BESIDE_TESTS: Duration = Duration::from_secs(5);
const ROUNDS: usize = 3;
/// Guardian, worker, eight checkpoints, and copies that are just being made.
const OWN_PROCESSES: usize = 14;

/// Two busy loops beside.
struct Load([Child; 2]);

impl Load {
    fn start() -> Self {
        Self(
            [(); 2]
                .map(|()| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell")),
        )
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How often, and how late the end of a cell may be. `BELLJAR_BOMBS=50` is the long run, on a machine for itself.
fn rounds() -> (usize, Duration) {
    let asked_for = std::env::var("BELLJAR_BOMBS").ok().and_then(|text| text.parse().ok());
    asked_for.map_or((ROUNDS, WITHIN_BESIDE_TESTS), |rounds| (rounds, WITHIN))
}

fn explode(daemon: &Daemon, mode: &str) {
    let (rounds, within) = rounds();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "import os; kept = 'as it was'");
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let begun = Instant::now();
        let result = daemon.run_with("a", json!({"code": BOMB, "timeout_s": 2, "mode": mode}));
        let late = begun.elapsed().saturating_sub(TIMEOUT);
        slowest = slowest.max(late);
        let kind = if mode == "main" { "restored" } else { "kept" };
        assert_eq!(
            (&result["status"], &result["state"]["kind"]),
            (&json!("timeout"), &json!(kind)),
            "round {round}: {result}"
        );
        assert!(late < within, "round {round}: {late:?} after the deadline");
        let after = daemon.run("a", "kept");
        assert_eq!(after["result"]["repr"], "'as it was'", "round {round}: {after}, after {result}");
    }
    println!("{rounds} bombs, the slowest end {slowest:?} after its deadline");
    eventually("none of the processes is left", || {
        let counted = daemon.run("a", "sum(map(str.isdigit, os.listdir('/proc')))");
        let count: usize = counted["result"]["repr"].as_str()?.parse().ok()?;
        (count <= OWN_PROCESSES).then_some(())
    });
    daemon.assert_sound();
}

fn a_deadline_holds_for_a_fork_bomb() {
    if engine() {
        explode(&Daemon::start(), "main");
    }
}

fn a_deadline_holds_for_a_fork_bomb_in_a_copy() {
    if engine() {
        explode(&Daemon::start(), "fork");
    }
}

fn a_deadline_holds_for_a_fork_bomb_beside_other_load() {
    if engine() {
        let _load = Load::start();
        explode(&Daemon::start(), "main");
    }
}

/// The priority of a process: the higher, the less CPU time it gets beside others.
fn niceness(pid: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(16)?.parse().ok()
}

/// A daemon of root gives the guardian a priority that nothing else in the sandbox has.
fn the_guardian_goes_first() {
    let daemon = Daemon::start();
    let of_root = std::fs::metadata(format!("/proc/{}", daemon.pid())).expect("it runs").uid() == 0;
    daemon.session("a", json!({"image": "belljar/base"}));
    let first = daemon.first_process("a");
    let of_guardian = niceness(first).expect("it runs");
    assert_eq!(of_guardian < 0, of_root, "{of_guardian}");
    let worker = daemon.run("a", "open('/proc/self/stat').read().rpartition(')')[2].split()[16]");
    let of_worker: i32 = worker["result"]["repr"]
        .as_str()
        .and_then(|text| text.trim_matches('\'').parse().ok())
        .expect("a number");
    assert!(of_worker >= 0, "{of_worker}");
}

/// What is killed one by one is never found in time.
fn chains_of_forks_end_with_their_cell() {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "import os, time");
    let result = daemon.run_with("a", json!({"code": CHAINS, "timeout_s": 2}));
    assert_eq!((&result["status"], &result["state"]["kind"]), (&json!("timeout"), &json!("restored")));
    let after = daemon
        .run("a", "os.path.exists('alive') and os.unlink('alive'); time.sleep(1); os.path.exists('alive')");
    assert_eq!(after["result"]["repr"], "False", "{after}");
    daemon.assert_sound();
}

/// A process of an earlier cell, which goes on afterwards, is told that its child was stopped.
fn all_stand_still_before_a_cell_is_killed() {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run(
        "a",
        &format!("import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {WATCH:?}])"),
    );
    let is_there = |name: &str| {
        let looked = daemon.run("a", &format!("os.path.exists('{name}')"));
        (looked["result"]["repr"] == "True").then_some(())
    };
    eventually("it watches", || is_there("watching"));
    // A crowd stands still until its worker has ended; of a few, each would have to be quick to be stopped at all.
    let result = daemon.run_with("a", json!({"code": BOMB, "timeout_s": 2}));
    assert_eq!((&result["status"], &result["state"]["kind"]), (&json!("timeout"), &json!("restored")));
    eventually("its child was stopped", || is_there("stopped"));
}

/// A checkpoint that makes a copy of itself while all stand still could not take the worker's place.
fn a_crowd_that_ends_while_copies_are_made_costs_no_variables() {
    if !keeps_every_state() {
        return; // its cells come one right after the other
    }
    let Some(daemon) = session_with("", json!({"image": "belljar/base", "pids": 256})) else { return };
    printed(&daemon, "import os, time; ran = []");
    for round in 1..=CROWDS {
        let cells: Vec<u64> = [
            json!({"code": "ran.append(1)"}),
            json!({"code": CROWD}),
            json!({"code": "len(ran)", "mode": "fork"}),
            json!({"code": "len(ran)", "mode": "fork"}),
        ]
        .iter()
        .map(|request| queue(&daemon, request))
        .collect();
        let results: Vec<Value> = cells.iter().map(|cell| outcome(&daemon, *cell)).collect();
        assert_eq!(results[1]["state"]["restored_to"], cells[0], "round {round}: {:#}", results[1]);
        for copy in &results[2..] {
            // One that is asked of a worker that is just ending may not come to be, and is told so.
            let reason = copy["reason"].as_str();
            assert!(matches!(reason, Some("ok" | "pids")), "round {round}: {copy:#}");
        }
    }
}

/// The guardian would not get any CPU time either where a crowd has used up what the sandbox has.
fn the_cpu_limit_is_lifted_while_a_cell_is_killed() {
    if !engine() {
        return;
    }
    // A guardian that has CPU time is quicker than it would get more.
    let mut daemon = Daemon::with_environment("", &[("BELLJAR_PERIODS", "hurry:0")]);
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "import signal; kept = 1; signal.signal(signal.SIGTERM, signal.SIG_IGN)");
    let first = i32::try_from(daemon.first_process("a")).expect("a pid");
    let group = Cgroup::of_process(first).expect("a group");
    let limit = group.cpus().expect("a limit");
    let is_over = AtomicBool::new(false);
    let lifted = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut lifted = false;
            while !is_over.load(Ordering::Relaxed) {
                lifted |= group.cpus().is_none();
                std::thread::sleep(Duration::from_millis(2));
            }
            lifted
        });
        let result = daemon.run_with("a", json!({"code": "while True: pass", "timeout_s": 1}));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(result["status"], "timeout", "{result}");
        watch.join().expect("it watched")
    });
    assert!(lifted, "it has the CPU time of its code");
    assert_eq!(group.cpus(), Some(limit), "after the cell");

    group.limit_cpus(None).expect("as root");
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.run("a", "kept")["result"]["repr"], "1");
    assert_eq!(group.cpus(), Some(limit), "where a daemon has died that had lifted it");
}

#[test]
fn the_cpu_limit_is_lifted_while_a_cell_is_killed_in_a_container() {
    the_cpu_limit_is_lifted_while_a_cell_is_killed();
}

#[test]
fn the_cpu_limit_is_lifted_while_a_cell_is_killed_in_a_jail_of_root() {
    in_a_jail(None, the_cpu_limit_is_lifted_while_a_cell_is_killed);
}

on_every_ground!(
    a_crowd_that_ends_while_copies_are_made_costs_no_variables,
    all_stand_still_before_a_cell_is_killed,
    the_guardian_goes_first,
    chains_of_forks_end_with_their_cell,
    a_deadline_holds_for_a_fork_bomb,
    a_deadline_holds_for_a_fork_bomb_in_a_copy,
    a_deadline_holds_for_a_fork_bomb_beside_other_load,
);

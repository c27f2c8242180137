//! Hundreds of processes that take all the CPU time there is and fork as fast as they die.

use serde_json::json;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::grounds::on_every_ground;
use crate::support::{Daemon, engine};

const BOMB: &str = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
const TIMEOUT: Duration = Duration::from_secs(2);
/// The end of a cell comes this long after its deadline at the latest, also while other tests take the machine. On
/// one that has nothing else to do it is less than a second.
const WITHIN: Duration = Duration::from_secs(5);
/// More of them are run by `BELLJAR_BOMBS=50`.
const ROUNDS: usize = 3;

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

fn rounds() -> usize {
    std::env::var("BELLJAR_BOMBS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

fn explode(daemon: &Daemon, mode: &str) {
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "import os; kept = 'as it was'");
    let mut slowest = Duration::ZERO;
    for round in 0..rounds() {
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
        assert!(late < WITHIN, "round {round}: {late:?} after the deadline");
        let after = daemon.run("a", "kept");
        assert_eq!(after["result"]["repr"], "'as it was'", "round {round}: {after}, after {result}");
    }
    println!("{} bombs, the slowest end {slowest:?} after its deadline", rounds());
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

on_every_ground!(
    a_deadline_holds_for_a_fork_bomb,
    a_deadline_holds_for_a_fork_bomb_in_a_copy,
    a_deadline_holds_for_a_fork_bomb_beside_other_load,
);

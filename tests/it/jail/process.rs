//! The backend without walls: only by name, only for an ordinary user, and never called anything else.

use super::ANN;
use crate::support::{Daemon, eventually};

#[test]
fn a_process_works_by_name_and_says_what_it_is_not() {
    let daemon = Daemon::as_user(ANN);
    let made = daemon.cli(["new", "a", "--backend", "process"]).ok();
    assert!(made.stderr.contains("no isolation"), "{made:?}");
    daemon.cli(["exec", "-s", "a", "x = 41"]).ok();
    daemon.cli(["exec", "-s", "a", "import os; os._exit(3)"]).exits(3);
    assert_eq!(daemon.cli(["exec", "-s", "a", "x + 1"]).ok().stdout, "42\n");
    daemon.cli(["exec", "-s", "a", "--timeout", "1s", "while True: pass"]).exits(124);
    let receipt = daemon.cli(["receipt", "a", "--json"]).ok().stdout;
    let receipt: serde_json::Value = serde_json::from_str(&receipt).expect("JSON");
    assert_eq!((&receipt["backend"], &receipt["network"]), (&"process".into(), &"host".into()));
    assert_eq!(receipt["read_only_root"], false);
    assert_eq!(receipt["limits"]["held_by"]["cpus"], "nothing");
    let pid = receipt["process"]["pid"].as_u64().expect("a pid");
    let started =
        daemon.cli(["exec", "-s", "a", "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"]);
    let sleeper: u32 = started.ok().stdout.trim().parse().expect("a pid");
    daemon.cli(["rm", "a"]).ok();
    for pid in [u32::try_from(pid).expect("a pid"), sleeper] {
        eventually("it is gone", || (!crate::support::jails::is_alive(pid)).then_some(()));
    }
}

#[test]
fn a_daemon_of_root_and_a_minimum_refuse_it() {
    let daemon = Daemon::start();
    let refused = daemon.cli(["new", "a", "--backend", "process"]).exits(125);
    assert!(refused.stderr.contains("a daemon of root runs no code without isolation"), "{refused:?}");
    let daemon = Daemon::with_config("[sandbox]\nminimum_isolation = \"jail\"\n");
    let refused = daemon.cli(["new", "a", "--backend", "process"]).exits(125);
    assert!(refused.stderr.contains("isolates less than the `jail`"), "{refused:?}");
}

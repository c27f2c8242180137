//! Sessions that no client holds any more go by themselves.

use serde_json::{Value, json};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::helpers::{list, text};
use crate::support::{Daemon, engine, eventually};

/// Makes sessions of a daemon live for 4 s without a client that holds them.
const PERIODS: (&str, &str) = ("BELLJAR_PERIODS", "unheld:4");
/// Longer than a session lives that no client holds.
const LONGER: Duration = Duration::from_secs(6);

fn sessions(daemon: &Daemon) -> Vec<Value> {
    list(&daemon.http("GET", "/v1/sessions", b"").expect_status(200), "sessions").to_vec()
}

/// A `run` whose script has begun and does not end.
fn run(daemon: &Daemon) -> Child {
    let script = daemon.home().join("script.py");
    std::fs::write(&script, "open('begun', 'w').close()\nwhile True: pass").expect("written");
    let mut command = daemon.command(["run", "--image", daemon.image(), "--timeout", "5min"]);
    let child = command.arg(&script).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    eventually("the script runs", || {
        let found = sessions(daemon);
        let session = found.first().filter(|session| session["state"] == "busy")?;
        std::path::Path::new(text(session, "workspace")).join("begun").exists().then_some(())
    });
    child.expect("it runs")
}

#[test]
pub fn a_run_whose_client_was_killed_leaves_nothing() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::with_environment("", &[PERIODS]);
    for daemon_dies in [false, true] {
        let mut child = run(&daemon);
        // This one is held.
        std::thread::sleep(LONGER);
        assert_eq!(sessions(&daemon).len(), 1);
        child.kill().expect("killed");
        child.wait().expect("it ended");
        if daemon_dies {
            daemon.kill();
            daemon.restart();
        }
        eventually("the session is gone", || sessions(&daemon).is_empty().then_some(()));
        eventually("its container is gone", || daemon.containers().is_empty().then_some(()));
    }
    // One that was made to stay does.
    daemon.session("s", json!({"image": "belljar/base"}));
    std::thread::sleep(LONGER);
    assert_eq!(sessions(&daemon).len(), 1);
    daemon.assert_sound();
}

#[test]
pub fn a_session_that_nobody_was_told_of_is_not_there_after_a_restart() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let mut died = 0;
    for n in 1..=6 {
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", &format!("{n}:before"))]);
        let told =
            daemon.try_restart() && daemon.cli(["new", "a", "--image", daemon.image()]).code == Some(0);
        died += usize::from(!told);
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        assert_eq!(sessions(&daemon).len(), usize::from(told), "{n}");
        if told {
            daemon.cli(["rm", "a"]).ok();
        }
        eventually("its container is gone", || daemon.containers().is_empty().then_some(()));
    }
    assert!(died >= 2, "the daemon died {died} times only");
}

//! A disk without space: what is told then stays true, whatever happens next.

use serde_json::json;

use super::helpers::{
    S, assert_ended, gapless, go, outcome, post, printed, queue, text, value, wait_for_line, with_go, written,
};
use crate::support::{Daemon, SmallDisk, binary, engine, eventually, in_own_home};

fn small() -> Option<Daemon> {
    if !engine() {
        return None;
    }
    let daemon = Daemon::on_small_disk()?;
    daemon.session(S, json!({"image": "belljar/base"}));
    Some(daemon)
}

/// Fills the disk, which the daemon notices with a cell that is too large for what its files have left.
#[track_caller]
fn fill(daemon: &Daemon) {
    daemon.disk().fill();
    let large = json!({"code": format!("y = 3  # {}", "x".repeat(500_000))});
    let refused = post(daemon, "cells", &large).expect_status(507);
    assert_eq!(text(&refused, "code"), "storage", "{refused}");
}

fn empty(daemon: &Daemon) {
    daemon.disk().empty();
    eventually("cells are taken again", || {
        (post(daemon, "cells", &json!({"code": ""})).status == 202).then_some(())
    });
}

#[test]
pub fn what_cannot_be_written_is_told() {
    let Some(daemon) = small() else { return };
    printed(&daemon, "x = 1");
    printed(&daemon, "x = 2");
    let cell = queue(&daemon, &json!({"code": with_go("print('busy')\nwait_for_go()\n'done'")}));
    wait_for_line(&daemon, cell, "busy");
    fill(&daemon);
    go(&daemon);
    let path = format!("/v1/sessions/s/cells/{cell}?wait=true");
    eventually("the cell is over", || {
        let view = daemon.http("GET", &path, b"").expect_status(507);
        text(&view, "message").contains("has ended").then_some(())
    });
    for request in ["undo", "reset"] {
        assert_eq!(text(&post(&daemon, request, &json!({})).expect_status(507), "code"), "storage");
    }
    empty(&daemon);
    let result = outcome(&daemon, cell);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(text(&result, "/result/repr"), "'done'");
    // The cell that was refused never ran.
    assert_eq!(value(&daemon, "x, 'y' in globals()"), "(2, False)");
    daemon.assert_sound();
}

/// A cell may be over, but no client is told of a result that a death of the daemon could undo.
#[test]
pub fn whoever_waits_for_a_cell_is_told_that_its_end_cannot_be_written() {
    let Some(daemon) = small() else { return };
    let code = with_go("print('busy', flush=True)\nwait_for_go()\nx = 2");
    let mut command = daemon.command(["exec", "-s", S, &code]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let client = command.spawn().expect("a client");
    eventually("it runs", || (written(&daemon, Some(1)) == "busy\n").then_some(()));
    let copy = json!({"code": with_go("wait_for_go()"), "mode": "fork"}).to_string();
    std::thread::scope(|scope| {
        let path = "/v1/sessions/s/cells?wait=true";
        let waiting = scope.spawn(|| daemon.http("POST", path, copy.as_bytes()));
        eventually("it waits", || {
            let view = daemon.http("GET", "/v1/sessions/s/cells/2", b"");
            (view.status == 200 && view.json()["state"] == "running").then_some(())
        });
        fill(&daemon);
        let health = daemon.http("GET", "/v1/health", b"").expect_status(200);
        assert_eq!(health["status"], "degraded", "{health}");
        assert!(text(&health, "/problems/0").contains("journal"), "{health}");
        go(&daemon);
        let problem = waiting.join().expect("it ends").expect_status(507);
        assert_eq!(text(&problem, "code"), "storage", "{problem}");
    });
    let output = client.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("cannot be written") && said.contains("free some space"), "{said}");
    empty(&daemon);
    for cell in [1, 2] {
        assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
    }
    assert_eq!(value(&daemon, "x"), "2");
    assert_eq!(daemon.http("GET", "/v1/health", b"").expect_status(200)["status"], "ok");
    gapless(&daemon, S);
    daemon.assert_sound();
}

#[test]
pub fn a_session_that_was_said_to_be_removed_does_not_come_back() {
    let Some(mut daemon) = small() else { return };
    printed(&daemon, "x = 1");
    fill(&daemon);
    let told = daemon.http("DELETE", "/v1/sessions/s", b"");
    assert!([200, 507].contains(&told.status), "{}", told.text());
    let removed = told.status == 200;
    daemon.signal("KILL");
    daemon.wait();
    daemon.disk().empty();
    daemon.restart();
    let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
    let there = listed["sessions"].as_array().is_some_and(|sessions| !sessions.is_empty());
    assert!(!(removed && there), "{listed}");
    if there {
        daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    }
    assert_eq!(daemon.containers(), Vec::<String>::new());
    daemon.assert_sound();
}

/// The daemon's own words would go to a file on that disk.
#[test]
fn a_command_that_cannot_start_a_daemon_for_want_of_space_says_so() {
    let home = tempfile::Builder::new().prefix("bj").tempdir_in("/tmp").expect("a folder");
    let Some(disk) = SmallDisk::mount(home.path()) else { return };
    disk.fill();
    let mut command = std::process::Command::new(binary());
    let ran = in_own_home(&mut command, home.path()).arg("ps").output().expect("belljar runs");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(125), "{told}");
    assert!(told.contains("exit status: 125") && told.contains("No space left"), "{told}");
    assert!(told.contains("hint: make room"), "{told}");
}

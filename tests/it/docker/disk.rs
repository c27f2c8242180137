//! A disk without space: what is told then stays true, whatever happens next.

use serde_json::json;

use super::helpers::{
    S, assert_ended, go, outcome, post, printed, queue, text, value, wait_for_line, with_go,
};
use crate::support::{Daemon, engine, eventually};

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
fn what_cannot_be_written_is_told() {
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

#[test]
fn a_session_that_was_said_to_be_removed_does_not_come_back() {
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
        daemon.http("DELETE", "/v1/sessions/s", b"").expect_status(200);
    }
    assert_eq!(daemon.containers(), Vec::<String>::new());
    daemon.assert_sound();
}

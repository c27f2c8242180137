//! Replays that meet something else: another replay, an undo, a running cell, an end in the middle.

use serde_json::{Value, json};

use super::helpers::{
    S, assert_ended, base, go, list, number, outcome, post, printed, queue, replay_behind, restart_by,
    take_away, text, value, wait_for_line, with_go,
};
use crate::support::{Daemon, eventually};

#[track_caller]
fn refused(daemon: &Daemon, request: &str, body: &Value) {
    let problem = post(daemon, request, body).expect_status(409);
    assert_eq!(text(&problem, "code"), "busy", "{problem}");
    assert!(text(&problem, "hint").contains("wait"), "{problem}");
}

fn replayed(daemon: &Daemon) -> Vec<u64> {
    let report = post(daemon, "replay", &json!({})).expect_status(200);
    list(&report, "cells").iter().map(|cell| number(cell, "/cell")).collect()
}

/// Cells 1 to 3, of which the second waits for a file that is there at first.
fn three_cells() -> Option<Daemon> {
    let daemon = base()?;
    printed(&daemon, "a = 1");
    go(&daemon);
    printed(&daemon, &with_go("print('waits', flush=True)\nwait_for_go()\nb = 2"));
    printed(&daemon, "c = 3");
    Some(daemon)
}

/// Begins a replay that stands still in its second cell, whose number it gives.
fn stopped_replay(daemon: &Daemon) -> (std::thread::JoinHandle<()>, u64) {
    daemon.http("DELETE", "/v1/sessions/s/files/go", b"").expect_status(200);
    let replay = replay_behind(daemon);
    let of_second = |event: &Value| event["type"] == "cell_queued" && event["replays"] == 2;
    let cell = eventually("the second cell is replayed", || {
        daemon.events(S, 0).into_iter().find(of_second).map(|event| number(&event, "/cell"))
    });
    wait_for_line(daemon, cell, "waits");
    (replay, cell)
}

#[test]
pub fn nothing_else_changes_variables_while_a_replay_goes_on() {
    let Some(daemon) = three_cells() else { return };
    let (replay, _) = stopped_replay(&daemon);
    refused(&daemon, "replay", &json!({}));
    refused(&daemon, "undo", &json!({}));
    refused(&daemon, "cells", &json!({"code": "a = 5"}));
    // A copy changes nothing, and sees what is rebuilt so far.
    let copy = post(&daemon, "cells?wait=true", &json!({"code": "a", "mode": "fork"})).expect_status(200);
    assert_eq!(text(&copy, "/result/repr"), "1");
    go(&daemon);
    replay.join().expect("it ends");
    assert_eq!(value(&daemon, "a, b, c"), "(1, 2, 3)");
    // And it is over: an undo takes back what came last.
    post(&daemon, "undo", &json!({})).expect_status(200);
    let undone = post(&daemon, "undo", &json!({})).expect_status(200);
    assert_eq!(undone["state_of"], 5, "{undone}");
    assert_eq!(value(&daemon, "'c' in globals()"), "False");
    daemon.assert_sound();
}

#[test]
pub fn a_replay_goes_on_when_its_client_leaves() {
    let Some(daemon) = three_cells() else { return };
    daemon.http("DELETE", "/v1/sessions/s/files/go", b"").expect_status(200);
    let mut client = daemon.command(["replay", S]).spawn().expect("belljar runs");
    let told = |kind: &str, replays: Value| {
        let found = |event: &Value| event["type"] == kind && event["replays"] == replays;
        daemon.events(S, 0).iter().any(found).then_some(())
    };
    eventually("the second cell is replayed", || told("cell_queued", json!(2)));
    client.kill().expect("it runs");
    client.wait().expect("it has ended");
    go(&daemon);
    eventually("the replay ends", || told("replay_finished", Value::Null));
    let next = daemon.run(S, "a, b, c");
    assert_eq!(text(&next, "/result/repr"), "(1, 2, 3)");
    assert_eq!(next["state"]["note"], Value::Null, "{next:#}");
}

#[test]
pub fn a_replay_that_was_interrupted_is_told_and_forgets_nothing_that_is_undone_then() {
    let Some(daemon) = three_cells() else { return };
    let (replay, cell) = stopped_replay(&daemon);
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_eq!(text(&outcome(&daemon, cell), "status"), "interrupted");
    replay.join().expect("it ends");
    let next = daemon.run(S, "d = 4; a");
    assert_eq!(text(&next, "/result/repr"), "1");
    assert!(text(&next, "/state/note").starts_with("A replay was broken off"), "{next:#}");
    // The cell `d`, the interrupted one, and the first of the replay.
    let undone = post(&daemon, "undo", &json!({"cells": 3})).expect_status(200);
    assert_eq!(undone["state_of"], 0, "{undone}");
    go(&daemon);
    assert_eq!(replayed(&daemon), [1, 2, 3]);
    // And one that a cell breaks off says what it did not come to.
    daemon.run_with(S, json!({"code": "import os, time\nif os.path.exists('die'): os._exit(3)"}));
    printed(&daemon, "e = 5");
    daemon.http("PUT", "/v1/sessions/s/files/die", b"").expect_status(200);
    let report = post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(list(&report, "not_run").len(), 1, "{report}");
    daemon.http("DELETE", "/v1/sessions/s/files/die", b"").expect_status(200);
    post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(value(&daemon, "a, b, c, 'd' in globals()"), "(1, 2, 3, False)");
    daemon.assert_sound();
}

#[test]
pub fn a_replay_that_the_daemon_did_not_survive_is_told_with_the_next_cell() {
    let Some(mut daemon) = three_cells() else { return };
    let (replay, cell) = stopped_replay(&daemon);
    restart_by(&mut daemon, "KILL");
    replay.join().expect("it ends");
    go(&daemon);
    assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
    let next = daemon.run(S, "a, b, 'c' in globals()");
    assert_eq!(text(&next, "/result/repr"), "(1, 2, False)");
    assert!(text(&next, "/state/note").starts_with("A replay was broken off"), "{next:#}");
    assert_eq!(replayed(&daemon).len(), 4);
    assert_eq!(value(&daemon, "a, b, c"), "(1, 2, 3)");
}

#[test]
pub fn a_replay_is_refused_while_a_cell_runs_and_leaves_out_what_was_interrupted() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "import time; a = 1");
    let cell = queue(&daemon, &json!({"code": "b = 2; print('busy', flush=True); time.sleep(600)"}));
    wait_for_line(&daemon, cell, "busy");
    refused(&daemon, "replay", &json!({}));
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_eq!(text(&outcome(&daemon, cell), "status"), "interrupted");
    assert_eq!(value(&daemon, "b"), "2");
    take_away(&daemon);
    let report = post(&daemon, "replay", &json!({})).expect_status(200);
    let ran: Vec<u64> = list(&report, "cells").iter().map(|cell| number(cell, "/cell")).collect();
    assert_eq!((ran, &report["left_out"]), (vec![1, cell + 1], &json!([cell])), "{report}");
    assert_eq!(value(&daemon, "'b' in globals()"), "False");
}

#[test]
pub fn numbers_of_cells_and_addresses_are_no_difference() {
    let Some(daemon) = base() else { return };
    for code in [
        "def f(): pass\nprint(object())\nf",
        "import warnings\nwarnings.warn('careful')",
        "compile('1 +', f.__code__.co_filename, 'exec')",
        "print(hex(4096))",
    ] {
        daemon.run(S, code);
    }
    let ran = daemon.cli(["replay", S]).ok();
    assert_eq!(ran.stdout.matches("the same").count(), 4, "{ran:?}");
    // What differs otherwise is still told.
    daemon.run(S, "import time; print(hex(time.time_ns()))");
    let ran = daemon.cli(["replay", S]).exits(1);
    assert!(ran.stdout.trim_end().ends_with("different in stdout"), "{ran:?}");
    daemon.assert_sound();
}

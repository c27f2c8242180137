//! Background cells, which go on beside the notebook line and share its variables, and cells with names of their own.

use serde_json::{Value, json};

use super::helpers::{
    S, assert_ended, base, gapless, outcome, post, printed, queue, restart_by, session, text, value,
    wait_for_line,
};
use crate::support::{Daemon, keeps_every_state};

const TURNS: &str = "import time\nprint('begun')\nwhile not stop:\n    time.sleep(0.01)\n";
const STUBBORN: &str = "import time\nprint('begun')\nwhile True:\n    try:\n        time.sleep(0.01)\n    \
                        except BaseException:\n        pass\n";

/// Begins a background cell, and gives its number once it runs.
fn begun(daemon: &Daemon, code: &str, timeout_s: f64) -> u64 {
    let cell = queue(daemon, &json!({"code": code, "mode": "background", "timeout_s": timeout_s}));
    wait_for_line(daemon, cell, "begun");
    cell
}

fn interrupt(daemon: &Daemon, cell: u64) {
    post(daemon, &format!("cells/{cell}/interrupt"), &json!({})).expect_status(200);
}

#[track_caller]
fn assert_rolled_back(result: &Value) {
    assert_eq!(
        (text(result, "status"), text(result, "reason")),
        ("interrupted", "rolled_back"),
        "{result:#}"
    );
}

#[test]
pub fn a_background_cell_shares_the_variables_and_has_a_result_of_its_own() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "stop, seen = False, []");
    let cell = begun(&daemon, &format!("{TURNS}seen.append(stop)\nprint('done')\nlen(seen)"), 60.0);
    assert_eq!(
        printed(&daemon, "stop = 'now'\nimport time\nwhile not seen: time.sleep(0.01)\nprint('main')"),
        "main\n"
    );
    let result = outcome(&daemon, cell);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "mode"), text(&result, "stdout")), ("background", "begun\ndone\n"));
    assert_eq!((text(&result, "/result/repr"), value(&daemon, "seen")), ("1", "['now']".to_owned()));
}

#[test]
pub fn the_command_line_prints_its_number_and_waits_for_it() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "stop = False");
    let code = format!("{TURNS}print('done')");
    let begins = daemon.cli(["exec", "-s", S, "--mode", "background", code.as_str()]).exits(0);
    assert_eq!(begins.stdout, "2\n");
    printed(&daemon, "stop = True");
    assert_eq!(daemon.cli(["wait", "-s", S, "2"]).exits(0).stdout, "begun\ndone\n");
    let wrong = daemon.cli(["interrupt", S, "--cell", "2"]).exits(125);
    assert!(wrong.stderr.contains("no background cell that runs"), "{wrong:?}");
}

#[test]
pub fn an_interrupt_or_its_deadline_end_it_and_leave_the_line_alone() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x, stop = 5, False");
    let (interrupted, late) = (begun(&daemon, TURNS, 60.0), begun(&daemon, TURNS, 1.0));
    interrupt(&daemon, interrupted);
    let result = outcome(&daemon, interrupted);
    assert_ended(&result, "interrupted", "by_user", 0);
    let result = outcome(&daemon, late);
    assert_eq!(
        (text(&result, "status"), text(&result, "reason")),
        ("timeout", "cell_deadline"),
        "{result:#}"
    );
    assert_eq!((text(&result, "/state/kind"), value(&daemon, "x")), ("kept", "5".to_owned()));
}

#[test]
pub fn one_that_does_not_end_at_its_deadline_takes_the_session_back() {
    let Some(daemon) = session().filter(|_| keeps_every_state()) else { return };
    printed(&daemon, "x = 1");
    let cell = begun(&daemon, &format!("x = 2\n{STUBBORN}"), 1.0);
    let main = queue(&daemon, &json!({"code": "import time\ntime.sleep(60)"}));
    let result = outcome(&daemon, cell);
    assert_eq!(
        (text(&result, "reason"), text(&result, "/state/kind")),
        ("cell_deadline", "restored"),
        "{result:#}"
    );
    assert_rolled_back(&outcome(&daemon, main));
    assert_eq!(value(&daemon, "x"), "1");
}

#[test]
pub fn a_crash_beside_it_and_an_undo_end_it_as_rolled_back() {
    let Some(daemon) = session().filter(|_| keeps_every_state()) else { return };
    printed(&daemon, "x, stop = 1, False");
    printed(&daemon, "x = 2");
    let cell = begun(&daemon, TURNS, 60.0);
    assert_eq!(text(&daemon.run(S, "import os\nos._exit(3)"), "reason"), "exit_call");
    assert_rolled_back(&outcome(&daemon, cell));
    let cell = begun(&daemon, TURNS, 60.0);
    post(&daemon, "undo", &json!({"cells": 1})).expect_status(200);
    assert_rolled_back(&outcome(&daemon, cell));
    assert_eq!(value(&daemon, "x"), "1");
}

#[test]
pub fn a_reset_ends_it() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "stop = False");
    let cell = begun(&daemon, TURNS, 60.0);
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(text(&outcome(&daemon, cell), "reason"), "by_cancel");
}

#[test]
pub fn what_it_has_changed_outlives_a_crash_after_its_end() {
    let Some(daemon) = session().filter(|_| keeps_every_state()) else { return };
    printed(&daemon, "x = 1");
    assert_ended(
        &outcome(&daemon, queue(&daemon, &json!({"code": "x = 2", "mode": "background"}))),
        "success",
        "ok",
        0,
    );
    let crashed = daemon.run(S, "import os\nos._exit(1)");
    assert_eq!((text(&crashed, "/state/kind"), value(&daemon, "x")), ("restored", "2".to_owned()));
}

#[test]
pub fn it_goes_on_while_no_daemon_runs_and_its_deadline_is_the_next_ones() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "stop = False");
    let goes_on = begun(&daemon, &format!("{TURNS}print('done')"), 60.0);
    let late = begun(&daemon, TURNS, 8.0);
    restart_by(&mut daemon, "KILL");
    assert_eq!(text(&outcome(&daemon, late), "reason"), "cell_deadline");
    printed(&daemon, "stop = True");
    let result = outcome(&daemon, goes_on);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "mode")), ("begun\ndone\n", "background"));
    gapless(&daemon, S);
}

#[test]
pub fn a_scratch_cell_drops_its_names_and_shares_the_objects() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "given, shared = 20, []");
    let code = "given += 1\nshared.append(given)\nprint(2 * given)";
    let cell = queue(&daemon, &json!({"code": code, "mode": "scratch"}));
    let result = outcome(&daemon, cell);
    assert_eq!((text(&result, "stdout"), text(&result, "mode")), ("42\n", "scratch"), "{result:#}");
    assert_eq!(value(&daemon, "given, shared"), "(20, [21])");
    let told = daemon.cli(["exec", "-s", S, "--mode", "scratch", "tmp = 1; print(given)"]).exits(0);
    assert_eq!(told.stdout, "20\n");
}

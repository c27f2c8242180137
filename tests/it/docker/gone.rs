//! What comes in the moment in which the sandbox dies, or in which the daemon does.

use serde_json::{Value, json};
use std::io::{Read, Write};

use super::helpers::{
    S, assert_ended, base, end, gapless, go, list, number, outcome, post, printed, queue, text, value,
    wait_for_line, with_go,
};
use crate::support::{Daemon, eventually};

/// Kills the first process of the sandbox, and returns when it is dead: the daemon has had no time to
/// notice more than that its connection broke.
fn kill_sandbox(daemon: &Daemon) {
    let pid = daemon.first_process(S).to_string();
    let killed = std::process::Command::new("kill").args(["-KILL", &pid]).status();
    assert!(killed.expect("kill").success());
    let stat = format!("/proc/{pid}/stat");
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        std::hint::spin_loop();
    }
}

fn is_told(result: &Value) {
    let note = text(result, "/state/note");
    assert!(note.starts_with("The sandbox is a new one"), "{result:#}");
}

#[test]
pub fn a_cell_that_comes_right_after_the_end_of_the_sandbox_runs_in_the_next_one() {
    let Some(daemon) = base() else { return };
    for _ in 0..5 {
        printed(&daemon, "x = 1");
        kill_sandbox(&daemon);
        let result = daemon.run(S, "'x' in globals()");
        assert_ended(&result, "success", "ok", 0);
        assert_eq!(text(&result, "/result/repr"), "True", "the cells so far have run again");
        is_told(&result);
    }
    assert_eq!(daemon.containers().len(), 1);
    gapless(&daemon, S);
    daemon.assert_sound();
}

#[test]
pub fn a_replay_right_after_the_end_of_the_sandbox_makes_a_new_one() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "x = 1");
    printed(&daemon, "y = x + 1");
    kill_sandbox(&daemon);
    let report = post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(list(&report, "cells").len(), 2, "{report:#}");
    assert_eq!(value(&daemon, "x, y"), "(1, 2)");
    // A reset has nothing to do then, and says so by its success.
    kill_sandbox(&daemon);
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(value(&daemon, "'x' in globals()"), "False");
    daemon.assert_sound();
}

#[test]
pub fn an_expression_does_not_take_the_news_away_from_the_next_cell() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "x = 1");
    kill_sandbox(&daemon);
    let seen = post(&daemon, "eval", &json!({"expression": "'x' in globals()"})).expect_status(200);
    assert_eq!(text(&seen, "/result/repr"), "True");
    is_told(&seen);
    is_told(&daemon.run(S, "y = 2"));
    assert!(daemon.run(S, "y")["state"]["note"].is_null());
}

#[test]
pub fn a_daemon_that_ends_before_it_could_tell_leaves_the_news_to_the_next() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "x = 1");
    daemon.remove_sandboxes();
    eventually("it is noticed", || {
        daemon.events(S, 0).into_iter().find(|event| event["type"] == "sandbox_gone")
    });
    end(&mut daemon, "KILL");
    daemon.restart();
    is_told(&daemon.run(S, "y = 2"));
    assert!(daemon.run(S, "y")["state"]["note"].is_null());
}

/// A `POST`; none if the daemon dies over it.
fn try_post(daemon: &Daemon, path: &str) -> Option<u16> {
    let mut stream = daemon.connect().ok()?;
    let head = format!("POST /v1/sessions/s/{path} HTTP/1.1\r\nHost: b\r\nConnection: close");
    write!(stream, "{head}\r\nContent-Length: 2\r\n\r\n{{}}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// How often all places are tried: what is written with one commit depends on which of the things that meet there is first.
const TURNS: usize = 4;

/// The first commits at which a daemon can die, before and after each.
fn places(commits: usize) -> Vec<String> {
    (1..=commits).flat_map(|n| [format!("{n}:before"), format!("{n}:after")]).collect()
}

/// The daemon dies at each commit around the undo in turn. Whatever the kernel did, the journal has it.
#[test]
pub fn an_undo_that_the_daemon_did_not_survive_is_told_by_the_next() {
    let Some(mut daemon) = base() else { return };
    let mut told_by_the_kernel = 0;
    let places = places(9);
    for (number, place) in places.iter().cycle().take(places.len() * TURNS).enumerate() {
        if number >= places.len() && told_by_the_kernel > 0 {
            break;
        }
        printed(&daemon, "x = 'old'");
        let last = printed_cell(&daemon, "x = 'new'");
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", place)]);
        let answer = if daemon.try_restart() { try_post(&daemon, "undo") } else { None };
        assert!(answer.is_none_or(|status| status == 200), "{place}: {answer:?}");
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        let undone = value(&daemon, "x") == "'old'";
        let events = gapless(&daemon, S);
        let ended =
            |event: &Value| event["type"] == "cell_finished" && event["result"]["cell"] == json!(last);
        let since = events.iter().position(ended).expect("it ended");
        let written = events[since..].iter().filter(|event| event["type"] == "undone").count();
        assert_eq!(written, usize::from(undone), "{place}");
        assert!(undone || answer.is_none(), "{place}: an undo that was reported is forgotten");
        told_by_the_kernel += usize::from(undone && answer.is_none() && place.ends_with("before"));
    }
    assert!(told_by_the_kernel > 0, "no death was between the undo and its event");
    // A replay comes to what the variables are.
    printed(&daemon, "x = 'old'");
    printed(&daemon, "x = 'new'");
    post(&daemon, "undo", &json!({})).expect_status(200);
    post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(value(&daemon, "x"), "'old'");
    daemon.assert_sound();
}

/// Likewise around a reset: the variables are there, or the journal says that they are gone.
#[test]
pub fn a_reset_that_the_daemon_did_not_survive_is_done_by_the_next_or_never_was() {
    let Some(mut daemon) = base() else { return };
    let mut finished = 0;
    let places = places(10);
    for (number, place) in places.iter().cycle().take(places.len() * TURNS).enumerate() {
        if number >= places.len() && finished > 0 {
            break;
        }
        let last = printed_cell(&daemon, "x = 'old'");
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", place)]);
        let answer = if daemon.try_restart() { try_post(&daemon, "reset") } else { None };
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        let gone = value(&daemon, "'x' in globals()") == "False";
        let events = gapless(&daemon, S);
        let ended =
            |event: &Value| event["type"] == "cell_finished" && event["result"]["cell"] == json!(last);
        let since = events.iter().position(ended).expect("it ended");
        let written = events[since..].iter().any(|event| event["type"] == "reset");
        assert_eq!(gone, written, "{place}");
        assert!(gone || answer.is_none(), "{place}: a reset that was reported is forgotten");
        finished += usize::from(gone && answer.is_none());
    }
    assert!(finished > 0, "no death was between the reset and its answer");
    daemon.assert_sound();
}

fn printed_cell(daemon: &Daemon, code: &str) -> u64 {
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    number(&result, "/cell")
}

/// A paused sandbox takes a while to be attached to; what is asked meanwhile waits.
#[test]
pub fn what_is_asked_of_a_sandbox_that_is_not_attached_yet_waits_for_it() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "import time; x = 1");
    printed(&daemon, "x = 2");
    let busy = "print('busy', flush=True)\nwait_for_go()";
    let cell = queue(&daemon, &json!({"code": with_go(busy), "timeout_s": 300}));
    wait_for_line(&daemon, cell, "busy");
    let again = |daemon: &mut Daemon| {
        end(daemon, "KILL");
        daemon.pause_sandbox();
        daemon.restart();
    };
    again(&mut daemon);
    let interrupted = post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_eq!(interrupted["cell"], json!(cell), "{interrupted}");
    assert_eq!(text(&outcome(&daemon, cell), "status"), "interrupted");
    again(&mut daemon);
    let undone = post(&daemon, "undo", &json!({"cells": 2})).expect_status(200);
    assert_eq!(undone["state_of"], 1, "{undone}");
    again(&mut daemon);
    daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
    again(&mut daemon);
    post(&daemon, "freeze", &json!({})).expect_status(200);
    post(&daemon, "thaw", &json!({})).expect_status(200);
    assert_eq!(value(&daemon, "x"), "1");
    go(&daemon);
    daemon.assert_sound();
}

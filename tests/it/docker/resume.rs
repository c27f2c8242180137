//! What is told of a cell that lasts longer than its daemon, or stands still for a while.

use serde_json::{Value, json};
use std::time::Duration;

use super::helpers::{
    S, assert_ended, base, end, gapless, list, number, outcome, post, printed, queue, replay_behind,
    restart_by, session_with, take_away, text, value, wait_for_line, with_go, workspace,
};
use crate::support::{Daemon, engine, eventually};

/// How long no daemon runs after the cell has ended.
const DOWN: Duration = Duration::from_secs(2);

/// Ends the daemon while a cell waits, lets the cell go on to the file `done`, and starts the next one.
fn over_a_restart(daemon: &mut Daemon, code: &str) -> u64 {
    let workspace = workspace(daemon);
    let cell = queue(daemon, &json!({"code": with_go(code), "timeout_s": 120}));
    wait_for_line(daemon, cell, "busy");
    end(daemon, "KILL");
    std::fs::write(workspace.join("go"), "").expect("written");
    eventually("the cell is at its end", || workspace.join("done").exists().then_some(()));
    std::thread::sleep(DOWN);
    daemon.restart();
    cell
}

#[test]
pub fn a_kill_for_memory_while_no_daemon_ran_is_told_as_one() {
    let request = json!({"image": "belljar/base", "memory_bytes": 128 << 20});
    let Some(mut daemon) = session_with("", request) else { return };
    printed(&daemon, "x = 'before'");
    let code = "print('busy')\nwait_for_go()\nopen('done', 'w').close()\nb = bytearray(4 << 30)\nb[::4096] = b'1' * len(b[::4096])";
    let cell = over_a_restart(&mut daemon, code);
    let result = outcome(&daemon, cell);
    assert_ended(&result, "crashed", "out_of_memory", -9);
    assert_eq!(value(&daemon, "x"), "'before'");
    gapless(&daemon, S);
}

/// Ends the daemon as soon as it has told the kernel to kill the cell, which does not end before it has to, and starts
/// the next one when the cell is gone.
fn killed_over_a_restart(daemon: &mut Daemon, timeout_s: u64, begin: impl FnOnce(&Daemon)) -> Value {
    let workspace = workspace(daemon);
    let code = "\
import signal, time
def stays(number, frame):
    open('told', 'w').close()
    while True: pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, stays)
print('busy')
while True: pass";
    let cell = queue(daemon, &json!({"code": code, "timeout_s": timeout_s}));
    wait_for_line(daemon, cell, "busy");
    begin(daemon);
    let told = workspace.join("told");
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !told.exists() {
        assert!(std::time::Instant::now() < deadline, "the kernel is told to kill the cell");
        std::thread::sleep(Duration::from_millis(1));
    }
    end(daemon, "KILL");
    std::thread::sleep(DOWN);
    daemon.restart();
    outcome(daemon, cell)
}

#[test]
fn a_cell_that_the_daemon_of_before_ended_is_told_as_that() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "x = 'before'");
    let late = killed_over_a_restart(&mut daemon, 3, |_| ());
    assert_ended(&late, "timeout", "cell_deadline", -9);
    std::fs::remove_file(workspace(&daemon).join("told")).expect("removed");
    let interrupted = killed_over_a_restart(&mut daemon, 600, |daemon| {
        post(daemon, "interrupt", &json!({})).expect_status(200);
    });
    assert_ended(&interrupted, "interrupted", "by_user", -9);
    assert_eq!(value(&daemon, "x"), "'before'");
    gapless(&daemon, S);
}

#[test]
pub fn files_tool_calls_and_threads_of_before_are_told_after() {
    let Some(mut daemon) = base() else { return };
    printed(
        &daemon,
        "import os, threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    );
    let code = "open('early', 'w').close(); session_info(); print('busy')\nwait_for_go()\nopen('done', 'w').close(); os._exit(3)";
    let cell = over_a_restart(&mut daemon, code);
    let result = outcome(&daemon, cell);
    assert_ended(&result, "crashed", "exit_call", 3);
    let paths: Vec<&str> = list(&result, "artifacts").iter().map(|file| text(file, "path")).collect();
    assert!(paths.contains(&"early") && paths.contains(&"done"), "{result:#}");
    assert_eq!(result["state"]["completed_tool_calls"], json!(["session_info"]), "{result:#}");
    assert!(text(&result, "/state/note").contains("1 thread and"), "{result:#}");
}

#[test]
pub fn the_time_without_a_daemon_does_not_count_for_a_cell_that_was_done() {
    let Some(mut daemon) = base() else { return };
    let cell = over_a_restart(&mut daemon, "print('busy')\nwait_for_go()\nopen('done', 'w').close()");
    let result = outcome(&daemon, cell);
    let events = gapless(&daemon, S);
    let at = |kind: &str| events.iter().position(|event| event["type"] == kind).expect("it is told");
    let took = result["duration_ms"].as_f64().expect("a number");
    let lasted = events_apart(&events[at("cell_started")], &events[at("cell_finished")]);
    assert!(took > 0.0 && took + DOWN.as_secs_f64() * 1000.0 <= lasted, "{took} of {lasted}");
}

/// Milliseconds between two events, within one hour.
fn events_apart(first: &serde_json::Value, second: &serde_json::Value) -> f64 {
    let millis = |event: &serde_json::Value| {
        let at = text(event, "at");
        let number = |range: std::ops::Range<usize>| at[range].parse::<f64>().expect("a time");
        ((number(11..13) * 60.0 + number(14..16)) * 60.0 + number(17..19)) * 1000.0 + number(20..23)
    };
    (millis(second) - millis(first)).rem_euclid(24.0 * 3_600_000.0)
}

#[test]
pub fn a_replay_that_the_daemon_did_not_survive_can_be_made_again_without_calling_tools() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "import time; a = 1");
    printed(
        &daemon,
        "b = session_info()['session']; print('called'); time.sleep(1.5); b2 = session_info()['session']",
    );
    printed(&daemon, "c = 3");
    let call =
        |daemon: &Daemon| daemon.events(S, 0).iter().filter(|event| event["type"] == "tool_called").count();
    assert_eq!(call(&daemon), 2);
    take_away(&daemon);
    let replay = replay_behind(&daemon);
    eventually("the second cell is replayed", || (call(&daemon) == 3).then_some(()));
    restart_by(&mut daemon, "KILL");
    replay.join().expect("it ends");
    // Its second call finds its recorded answer, too.
    eventually("it goes on", || (call(&daemon) == 4).then_some(()));
    let of_second = |event: &Value| event["type"] == "cell_queued" && event["replays"] == 2;
    let second = daemon.events(S, 0).into_iter().find(of_second).expect("it was queued");
    assert_ended(&outcome(&daemon, number(&second, "/cell")), "success", "ok", 0);
    let report = post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(list(&report, "cells").len(), 3, "{report:#}");
    assert!(list(&report, "cells").iter().all(|cell| cell["differences"] == json!([])), "{report:#}");
    assert_eq!(value(&daemon, "a, b, b2, c"), "(1, 's', 's', 3)");
    // Undoing what came after does not touch the list.
    printed(&daemon, "d = 4");
    post(&daemon, "undo", &json!({})).expect_status(200);
    take_away(&daemon);
    printed(&daemon, "e = 5");
    post(&daemon, "undo", &json!({})).expect_status(200);
    let report = post(&daemon, "replay", &json!({})).expect_status(200);
    assert!(list(&report, "cells").len() >= 3, "{report:#}");
    assert_eq!(value(&daemon, "a, b, b2, c"), "(1, 's', 's', 3)");
    daemon.assert_sound();
}

#[test]
pub fn a_stranger_who_pauses_the_sandbox_costs_nothing_but_time() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "import time; x = [1]");
    let container = daemon.containers()[0].clone();
    let code = "print('busy')\nfor n in range(20):\n    time.sleep(0.1)\nx.append(2)";
    let cell = queue(&daemon, &json!({"code": code, "timeout_s": 3}));
    wait_for_line(&daemon, cell, "busy");
    for _ in 0..3 {
        daemon.pause_sandbox();
        eventually("it goes on", || (!daemon.is_paused()).then_some(()));
    }
    assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
    daemon.pause_sandbox();
    assert_eq!(value(&daemon, "x"), "[1, 2]");
    assert_eq!(daemon.containers(), [container]);
    daemon.assert_sound();
}

#[test]
pub fn a_frozen_session_is_frozen_also_for_the_next_daemon() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "import time");
    let cell = queue(&daemon, &json!({"code": "print('busy')\ntime.sleep(1)\nx = 1", "timeout_s": 3}));
    wait_for_line(&daemon, cell, "busy");
    post(&daemon, "freeze", &json!({})).expect_status(200);
    let state =
        |daemon: &Daemon| daemon.http("GET", "/v1/sessions/s", b"").expect_status(200)["state"].clone();
    end(&mut daemon, "KILL");
    std::thread::sleep(Duration::from_secs(3));
    daemon.restart();
    eventually("it is frozen", || (state(&daemon) == "frozen" && daemon.is_paused()).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((state(&daemon), daemon.is_paused()), (json!("frozen"), true));
    post(&daemon, "thaw", &json!({})).expect_status(200);
    let result = outcome(&daemon, cell);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(value(&daemon, "x"), "1");
    let kinds: Vec<_> = gapless(&daemon, S).iter().map(|event| text(event, "type").to_owned()).collect();
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "frozen" || *kind == "thawed").collect::<Vec<_>>(),
        ["frozen", "thawed"]
    );
    daemon.assert_sound();
}

#[test]
pub fn what_was_lost_between_cells_is_told_with_the_next_one_as_past() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "import os, subprocess; x = 1");
    printed(&daemon, "subprocess.Popen(['sh', '-c', 'sleep 0.3; kill -9 -1'], start_new_session=True)");
    eventually("it is told", || daemon.events(S, 0).into_iter().find(|event| event["type"] == "state_lost"));
    let result = daemon.run(S, "y = 2; 'x' in globals()");
    assert_eq!((text(&result, "/result/repr"), text(&result, "/state/kind")), ("False", "kept"));
    assert!(
        text(&result, "/state/note").starts_with("Before this cell all variables were lost"),
        "{result:#}"
    );
    assert_eq!(value(&daemon, "y"), "2");
}

#[test]
pub fn a_session_without_a_sandbox_is_described_as_before() {
    let Some(mut daemon) = base() else { return };
    let view = |daemon: &Daemon| daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    let before = view(&daemon);
    take_away(&daemon);
    restart_by(&mut daemon, "KILL");
    let after = view(&daemon);
    for what in ["image", "backend", "python", "isolation"] {
        assert_eq!(before[what], after[what], "{what}");
    }
    assert_eq!(after["state"], "asleep");
}

/// A `POST` with a key; none if the daemon dies over it.
fn post_keyed(daemon: &Daemon, path: &str, key: &str, body: &Value) -> Option<(u16, Value)> {
    use std::io::{Read, Write};
    let mut stream = daemon.connect().ok()?;
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nHost: b\r\nConnection: close");
    let length = body.len();
    write!(stream, "{head}\r\nIdempotency-Key: {key}\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

#[test]
pub fn a_repeated_request_gets_what_the_first_would_have_got() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "ran = []");
    let mut unanswered = 0;
    for n in 1..=12 {
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", &format!("{n}:after"))]);
        let key = format!("key-{n}");
        let body = json!({"code": format!("ran.append({key:?})")});
        let post = |daemon: &Daemon| post_keyed(daemon, "/v1/sessions/s/cells", &key, &body);
        let first = if daemon.try_restart() { post(&daemon) } else { None };
        unanswered += usize::from(first.is_none());
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        let (status, view) = post(&daemon).expect("an answer");
        assert_eq!(status, 202, "{n}: {view}");
        let cell = view["cell"].as_u64().expect("a CellView");
        assert!(view["state"].is_string() && view["status"].is_null(), "{view}");
        assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
        assert_eq!(value(&daemon, &format!("ran.count({key:?})")), "1");
    }
    assert!(unanswered >= 3, "the daemon died {unanswered} times only");
}

#[test]
pub fn a_session_that_is_asked_for_again_with_its_key_is_made_once() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let body = json!({"name": "made", "image": daemon.image()});
    let post = |daemon: &Daemon, key: &str| post_keyed(daemon, "/v1/sessions", key, &body);
    let mut unanswered = 0;
    for n in 1..=12 {
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", &format!("{n}:after"))]);
        let key = format!("new-{n}");
        let first = if daemon.try_restart() { post(&daemon, &key) } else { None };
        unanswered += usize::from(first.is_none());
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        let (status, view) = post(&daemon, &key).expect("an answer");
        assert_eq!((status, &view["name"]), (201, &json!("made")), "{n}: {view}");
        if let Some((_, first)) = first {
            assert_eq!(first["id"], view["id"], "{n}");
        }
        // A client that asks once more gets the same session, and there is no other.
        assert_eq!(post(&daemon, &key).expect("an answer").1["id"], view["id"], "{n}");
        assert_eq!(daemon.run("made", "6 * 7")["result"]["repr"], "42", "{n}");
        let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
        assert_eq!(listed["sessions"].as_array().expect("a list").len(), 1, "{n}: {listed}");
        daemon.http("DELETE", "/v1/sessions/made?wait=true", b"").expect_status(200);
    }
    assert!(unanswered >= 4, "the daemon died {unanswered} times only");
    // A request that came to nothing gives its key back, for a better one too.
    let refused = json!({"name": "made", "cpus": 100_000});
    assert_eq!(post_keyed(&daemon, "/v1/sessions", "new", &refused).expect("an answer").0, 400);
    assert_eq!(post(&daemon, "new").expect("an answer").0, 201);
}

/// Commits of one creation and removal, with those of the daemon's start. Beyond them nothing dies.
const COMMITS: usize = 40;

/// The daemon dies at each commit around a creation with a key and the removal that follows. A client that repeats the
/// creation gets 201, one that repeats the removal finds it done, and the name is free for the next key.
pub fn whatever_dies_around_a_keyed_creation_and_its_removal_the_name_is_not_taken_twice() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let body = json!({"name": "made", "image": daemon.image()});
    let post = |daemon: &Daemon, key: &str| post_keyed(daemon, "/v1/sessions", key, &body);
    let mut died = 0;
    for (n, side) in (1..=COMMITS).flat_map(|n| [(n, "before"), (n, "after")]) {
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", &format!("{n}:{side}"))]);
        let key = format!("new-{n}-{side}");
        let first = if daemon.try_restart() { post(&daemon, &key) } else { None };
        if let Some((status, view)) = &first {
            assert_eq!(*status, 201, "{n}:{side}: {view}");
            // It may die over this.
            let mut socket = daemon.connect().expect("there is a socket");
            let request = "DELETE /v1/sessions/made HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n";
            let _ = std::io::Write::write_all(&mut socket, request.as_bytes());
            let _ = std::io::Read::read_to_end(&mut socket, &mut Vec::new());
        }
        let over = first.is_some() && !daemon.has_ended();
        died += usize::from(!over);
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        let (status, view) = post(&daemon, &key).expect("an answer");
        assert_eq!((status, &view["name"]), (201, &json!("made")), "{n}:{side}: {view}\n{}", daemon.log());
        if let Some((_, first)) = &first {
            assert_eq!(first["id"], view["id"], "{n}:{side}");
        }
        let removed = daemon.http("DELETE", "/v1/sessions/made?wait=true", b"");
        assert!([200, 404].contains(&removed.status), "{n}:{side}: {}", removed.text());
        let (status, view) = post(&daemon, &format!("next-{n}-{side}")).expect("an answer");
        assert_eq!(status, 201, "{n}:{side}: {view}\n{}", daemon.log());
        daemon.http("DELETE", "/v1/sessions/made?wait=true", b"").expect_status(200);
        if over {
            break;
        }
    }
    println!("the daemon died {died} times");
    assert!(died >= 10, "the daemon died {died} times only");
    daemon.assert_sound();
}

#[test]
pub fn a_cell_that_comes_while_cells_are_undone_is_not_undone_with_them() {
    let Some(daemon) = base() else { return };
    for n in 0..10 {
        printed(&daemon, "a = 1");
        printed(&daemon, "a = 2");
        let (undone, ran) = std::thread::scope(|scope| {
            let undone = scope.spawn(|| post(&daemon, "undo", &json!({})));
            let ran = scope.spawn(|| daemon.run(S, &format!("b = {n}")));
            (undone.join().expect("answered"), ran.join().expect("answered"))
        });
        assert!([200, 409].contains(&undone.status), "{}", undone.text());
        assert_ended(&ran, "success", "ok", 0);
        // The cell may have been over before the undo came, which then meant this very cell.
        if undone.status == 200 && undone.expect_status(200)["state_of"] == json!(number(&ran, "/cell") - 1) {
            continue;
        }
        assert_eq!(value(&daemon, "b"), n.to_string());
    }
}

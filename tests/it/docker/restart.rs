//! A daemon that was killed or stopped, and the next one in the same home.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::helpers::{
    S, Stream, assert_ended, base, end, gapless, number, outcome, post, printed, queue, restart_by,
    session_with, text, value, wait_for_line, with_go, workspace, written,
};
use crate::support::invariants::{self, Canary};
use crate::support::{
    Daemon, User, docker_group, engine, eventually, is_long_run, keeps_every_state, keeps_variables,
};

/// Prints 0 to 79, which takes a while.
const COUNT: &str =
    "import time\nfor n in range(80):\n    print(n, flush=True)\n    time.sleep(0.02)\nend = n";

fn counted() -> String {
    (0..80).map(|n| format!("{n}\n")).collect()
}

fn finished(events: &[Value], cell: u64) -> usize {
    let of_cell = |event: &&Value| event["type"] == "cell_finished" && event["result"]["cell"] == json!(cell);
    events.iter().filter(of_cell).count()
}

#[test]
pub fn a_running_cell_goes_on() {
    for signal in ["KILL", "TERM"] {
        let Some(mut daemon) = base() else { return };
        printed(&daemon, "x = [1]");
        let containers = daemon.containers();
        let cell = queue(&daemon, &json!({ "code": COUNT }));
        let waiting =
            [queue(&daemon, &json!({"code": "x.append(2)"})), queue(&daemon, &json!({"code": "print(x)"}))];
        wait_for_line(&daemon, cell, "3");
        restart_by(&mut daemon, signal);
        let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
        assert_eq!(view["name"], S);
        let result = outcome(&daemon, cell);
        assert_ended(&result, "success", "ok", 0);
        assert_eq!((text(&result, "stdout"), text(&result, "code")), (counted().as_str(), COUNT), "{signal}");
        assert_eq!(written(&daemon, Some(cell)), counted(), "{signal}");
        // What waited has its turn, in its order.
        for cell in waiting {
            assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
        }
        assert_eq!(text(&outcome(&daemon, waiting[1]), "stdout"), "[1, 2]\n");
        assert_eq!(value(&daemon, "(x, end)"), "([1, 2], 79)");
        let events = gapless(&daemon, S);
        for cell in [cell, waiting[0], waiting[1]] {
            assert_eq!(finished(&events, cell), 1);
        }
        assert_eq!(events.iter().filter(|event| event["type"] == "sandbox_attached").count(), 1);
        assert_eq!(daemon.containers(), containers);
        daemon.assert_sound();
    }
}

/// The next daemon could take the reset for one that the kernel has not heard of.
#[test]
pub fn a_copy_that_runs_after_a_reset_goes_on() {
    for signal in ["KILL", "TERM"] {
        let Some(mut daemon) = base() else { return };
        printed(&daemon, "x = [1]");
        daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
        let cell = queue(&daemon, &json!({ "code": COUNT, "mode": "fork" }));
        wait_for_line(&daemon, cell, "3");
        restart_by(&mut daemon, signal);
        let result = outcome(&daemon, cell);
        assert_ended(&result, "success", "ok", 0);
        assert_eq!(text(&result, "stdout"), counted(), "{signal}");
        let events = gapless(&daemon, S);
        assert_eq!(events.iter().filter(|event| event["type"] == "reset_done").count(), 1, "{signal}");
        daemon.assert_sound();
    }
}

#[test]
fn whoever_waits_or_looks_on_does_so_over_the_end_of_a_daemon() {
    let Some(mut daemon) = base() else { return };
    let cell = queue(
        &daemon,
        &json!({"code": with_go("print('busy', flush=True)\nwait_for_go()\nprint('fin')\n7")}),
    );
    wait_for_line(&daemon, cell, "busy");
    let begin = |arguments: &[&str]| {
        let (stdout, stderr) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        daemon.command(arguments).stdout(stdout).stderr(stderr).spawn().expect("belljar runs")
    };
    let (waiter, mut viewer) = (begin(&["wait", "-s", S]), begin(&["logs", "-f", S]));
    // Both have what there is so far.
    let mut seen = Vec::new();
    let viewed = viewer.stdout.as_mut().expect("piped");
    while !String::from_utf8_lossy(&seen).contains("busy\n") {
        let mut byte = [0];
        std::io::Read::read_exact(viewed, &mut byte).expect("it shows what was printed");
        seen.push(byte[0]);
    }
    std::thread::sleep(Duration::from_millis(300));
    restart_by(&mut daemon, "KILL");
    super::helpers::go(&daemon);
    let waited = waiter.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&waited.stdout);
    assert_eq!((waited.status.code(), &*text), (Some(0), "busy\nfin\n7\n"), "{waited:?}");
    outcome(&daemon, cell);
    daemon.http("DELETE", "/v1/sessions/s", b"").expect_status(200);
    let viewed = viewer.wait_with_output().expect("it ends");
    assert_eq!(
        (viewed.status.code(), &*String::from_utf8_lossy(&viewed.stdout)),
        (Some(0), "fin\n"),
        "{viewed:?}"
    );
}

#[test]
fn a_daemon_that_cannot_serve_takes_no_session_along() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "x = 41");
    end(&mut daemon, "TERM");
    let in_the_way = daemon.home().join("in-the-way");
    std::fs::write(&in_the_way, "").expect("written");
    for _ in 0..3 {
        daemon.set_environment(&[("BELLJAR_SOCKET", in_the_way.to_str().expect("UTF-8"))]);
        daemon.begin_restart();
        eventually("it gives up", || daemon.has_ended().then_some(()));
    }
    daemon.set_environment(&[]);
    daemon.restart();
    assert_eq!(value(&daemon, "x + 1"), "42");
}

/// Runs code that prints `busy`, waits to be let go on, and makes the file `done` while no daemon runs.
fn run_to_its_end_without_a_daemon(daemon: &mut Daemon, code: &str) -> (u64, Value) {
    let workspace = workspace(daemon);
    let cell = queue(daemon, &json!({"code": with_go(code)}));
    wait_for_line(daemon, cell, "busy");
    end(daemon, "KILL");
    std::fs::write(workspace.join("go"), "").expect("written");
    eventually("the cell is at its end", || workspace.join("done").exists().then_some(()));
    daemon.restart();
    (cell, outcome(daemon, cell))
}

#[test]
pub fn a_cell_that_ended_while_no_daemon_ran_has_its_result() {
    let Some(mut daemon) = base() else { return };
    let code = "print('busy')\nwait_for_go()\nx = 'left'\nprint('late', flush=True)\nopen('done', 'w').close()\n'value'";
    let (cell, result) = run_to_its_end_without_a_daemon(&mut daemon, code);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "/result/repr")), ("busy\nlate\n", "'value'"));
    assert_eq!(value(&daemon, "x"), "'left'");
    assert_eq!(finished(&gapless(&daemon, S), cell), 1);
    daemon.assert_sound();
}

#[test]
pub fn a_cell_that_died_while_no_daemon_ran_is_told() {
    if !keeps_variables() {
        return;
    }
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "import os; x = 'before'");
    let code = "x = 'lost'; print('busy')\nwait_for_go()\nopen('done', 'w').close()\nos._exit(9)";
    let (_, result) = run_to_its_end_without_a_daemon(&mut daemon, code);
    assert_ended(&result, "crashed", "exit_call", 9);
    assert_eq!((text(&result, "/state/kind"), text(&result, "stdout")), ("restored", "busy\n"));
    assert_eq!(value(&daemon, "x"), "'before'");
    gapless(&daemon, S);
}

#[test]
pub fn checkpoints_undo_and_time_limits_outlive_the_daemon() {
    if !keeps_variables() {
        return;
    }
    let Some(mut daemon) = base() else { return };
    for code in ["import os; x = 1", "x = 2", "x = 3"] {
        printed(&daemon, code);
    }
    restart_by(&mut daemon, "KILL");
    let result = daemon.run(S, "x = 4; os._exit(1)");
    assert_eq!((text(&result, "/state/kind"), number(&result, "/state/restored_to")), ("restored", 3));
    let undone = daemon.http("POST", "/v1/sessions/s/undo", br#"{"cells": 2}"#).expect_status(200);
    assert_eq!(undone["state_of"], 1);
    assert_eq!(value(&daemon, "x"), "1");
    // A cell whose time ran out meanwhile, or runs out later.
    let cell = queue(&daemon, &json!({"code": "print('busy')\nwhile True: pass", "timeout_s": 2}));
    wait_for_line(&daemon, cell, "busy");
    restart_by(&mut daemon, "KILL");
    assert_ended(&outcome(&daemon, cell), "timeout", "cell_deadline", -15);
    assert_eq!(value(&daemon, "x"), "1");
    gapless(&daemon, S);
}

#[test]
pub fn a_reader_of_events_goes_on_where_it_was() {
    let Some(mut daemon) = base() else { return };
    let cell = queue(&daemon, &json!({ "code": COUNT }));
    let mut seen: Vec<Value> = Vec::new();
    for round in 1..=3 {
        let last = seen.last().map_or(0, |event| number(event, "/seq"));
        let goal = format!("{}\n", round * 10);
        for event in Stream::of_session(&daemon, last) {
            // On a slow machine a piece may hold more than one goal, or the cell be over.
            let ended = event["type"] == "cell_finished";
            let reached = ended || event["type"] == "output" && text(&event, "text").contains(&goal);
            seen.push(event);
            if reached {
                break;
            }
        }
        restart_by(&mut daemon, "KILL");
    }
    while seen.last().is_none_or(|event| event["type"] != "cell_finished") {
        let last = seen.last().map_or(0, |event| number(event, "/seq"));
        seen.extend(Stream::of_session(&daemon, last).next());
    }
    let seqs: Vec<u64> = seen.iter().map(|event| number(event, "/seq")).collect();
    assert_eq!(seqs, (1..=seen.len() as u64).collect::<Vec<_>>());
    let output = seen.iter().filter(|event| event["type"] == "output" && event["cell"] == json!(cell));
    assert_eq!(output.map(|event| text(event, "text")).collect::<String>(), counted());
    assert_eq!(gapless(&daemon, S)[..seen.len()], seen[..], "the events are other ones when read again");
}

#[test]
pub fn a_sandbox_that_was_taken_away_meanwhile_is_replaced() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "x = 1; open('file', 'w').write('kept')");
    for busy in [false, true] {
        let cell = busy.then(|| {
            let cell = queue(&daemon, &json!({"code": "print('busy')\nwhile True: pass", "timeout_s": 300}));
            wait_for_line(&daemon, cell, "busy");
            cell
        });
        let old = daemon.containers();
        assert_eq!(old.len(), 1);
        end(&mut daemon, "KILL");
        daemon.remove_sandboxes();
        daemon.restart();
        if let Some(cell) = cell {
            let result = outcome(&daemon, cell);
            assert_eq!((text(&result, "status"), text(&result, "reason")), ("crashed", "sandbox_lost"));
            assert_eq!((text(&result, "stdout"), text(&result, "/state/kind")), ("busy\n", "lost"));
        }
        let result = daemon.run(S, "('x' in globals(), open('file').read())");
        assert_eq!(text(&result, "/result/repr"), "(True, 'kept')");
        assert!(text(&result, "/state/note").starts_with("The sandbox is a new one"), "{result:#}");
        let events = gapless(&daemon, S);
        let gone = events.iter().filter(|event| event["type"] == "sandbox_gone").count();
        assert_eq!(gone, 1 + usize::from(busy));
        assert_ne!(daemon.containers(), old);
        assert_eq!(daemon.containers().len(), 1);
        printed(&daemon, "x = 2");
    }
    daemon.assert_sound();
}

#[test]
pub fn a_sandbox_that_a_stranger_paused_is_taken_up_again() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "x = 1");
    let containers = daemon.containers();
    end(&mut daemon, "KILL");
    daemon.pause_sandbox();
    daemon.restart();
    assert_eq!(value(&daemon, "x"), "1");
    assert_eq!(daemon.containers(), containers);
    gapless(&daemon, S);
    daemon.assert_sound();
}

#[test]
pub fn restarts_one_after_the_other_lose_nothing() {
    // What waits in a pool ends with its daemon.
    let daemon = session_with("[pool]\nsize = 0\n", json!({"image": "belljar/base"}));
    let Some(mut daemon) = daemon else { return };
    let canary = Canary::set();
    daemon.session("t", json!({"image": "belljar/base"}));
    assert_eq!(daemon.run("t", "y = 2")["status"], "success");
    printed(&daemon, "x = 1");
    let containers = daemon.containers();
    let receipt = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
    for signal in ["KILL", "KILL", "TERM", "KILL"] {
        restart_by(&mut daemon, signal);
    }
    assert_eq!((value(&daemon, "x"), &daemon.run("t", "y")["result"]["repr"]), ("1".into(), &json!("2")));
    assert_eq!(daemon.containers(), containers);
    assert_eq!(daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200), receipt);
    for session in [S, "t"] {
        gapless(&daemon, session);
    }
    // Old cells and their results can still be asked for.
    assert_eq!(outcome(&daemon, 1)["code"], "x = 1");
    invariants::assert_hold(&daemon, &[daemon.owner()], &canary);
}

/// The n-th cell of a mixed load: the request, how it has to end and what it has to print.
fn mixed(n: usize) -> (Value, (&'static str, &'static str), String) {
    let printed = format!("cell {n}\n");
    let begin = format!("print('cell', {n}, flush=True); time.sleep(0.02)");
    match n % 5 {
        1 => (json!({"code": format!("{begin}; os._exit(3)")}), ("crashed", "exit_call"), printed),
        2 => (json!({"code": format!("{begin}; raise ValueError({n})")}), ("failure", "exception"), printed),
        3 => {
            (json!({"code": format!("ran.append(-1); {begin}"), "mode": "fork"}), ("success", "ok"), printed)
        }
        _ => {
            let code = format!("ran.append({n}); {begin}; print('end')");
            (json!({ "code": code }), ("success", "ok"), format!("{printed}end\n"))
        }
    }
}

/// How long the daemon is killed for.
fn under_fire() -> Duration {
    Duration::from_secs(if is_long_run() { 120 } else { 25 })
}

#[test]
pub fn no_cell_is_lost_or_run_twice_however_often_the_daemon_dies() {
    if !keeps_every_state() {
        return;
    }
    let Some(mut daemon) = base() else { return };
    let canary = Canary::set();
    printed(&daemon, "import os, time; ran = []");
    let mut queued = Vec::new();
    let mut random: u64 = 0x2545_f491_4f6c_dd1d;
    let since = Instant::now();
    while since.elapsed() < under_fire() {
        for _ in 0..6 {
            let answer = post(&daemon, "cells", &mixed(queued.len()).0);
            if answer.status == 409 {
                break;
            }
            queued.push(number(&answer.expect_status(202), "/cell"));
        }
        // Any moment will do: this one is drawn, not waited for.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(50 + (random >> 33) % 350));
        restart_by(&mut daemon, "KILL");
    }
    for cell in &queued {
        outcome(&daemon, *cell);
    }
    let events = gapless(&daemon, S);
    let gone = events.iter().find(|event| event["type"] == "sandbox_gone");
    assert_eq!(gone, None, "{}", daemon.log());
    let mut output: HashMap<u64, String> = HashMap::new();
    for event in events.iter().filter(|event| event["type"] == "output" && event["cell"].is_u64()) {
        output.entry(number(event, "/cell")).or_default().push_str(text(event, "text"));
    }
    for (n, cell) in queued.iter().enumerate() {
        let (_, ended, printed) = mixed(n);
        let of_cell = |event: &&Value| event["type"] == "cell_finished" && event["result"]["cell"] == *cell;
        let results: Vec<_> = events.iter().filter(of_cell).map(|event| &event["result"]).collect();
        assert_eq!(results.len(), 1, "{cell}");
        assert_eq!((text(results[0], "status"), text(results[0], "reason")), ended, "{:#}", results[0]);
        assert_eq!(text(results[0], "stdout"), printed, "{:#}", results[0]);
        assert_eq!(output.get(cell), Some(&printed), "{cell}");
    }
    assert!(queued.len() >= 40, "only {} cells", queued.len());
    let kept = (0..queued.len()).filter(|n| [0, 4].contains(&(n % 5))).count();
    assert_eq!(
        value(&daemon, "ran == sorted(set(ran)) and -1 not in ran, len(ran)"),
        format!("(True, {kept})")
    );
    invariants::assert_hold(&daemon, &[daemon.owner()], &canary);
}

#[test]
fn a_daemon_of_a_user_goes_on_too() {
    if !engine() {
        return;
    }
    let user = User { uid: 61_003, gid: 61_003, group: Some(docker_group()) };
    let mut daemon = Daemon::as_user(user);
    daemon.cli(["new", "a", "--image", "belljar/base"]).ok();
    daemon.cli(["exec", "-s", "a", "x = 41"]).ok();
    let containers = daemon.containers();
    let mut running = daemon
        .command(["exec", "-s", "a", COUNT])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let logs = |daemon: &Daemon| daemon.cli(["logs", "-s", "a"]).ok().stdout;
    eventually("the cell prints", || logs(&daemon).contains("3\n").then_some(()));
    restart_by(&mut daemon, "KILL");
    let _ = running.wait();
    assert_eq!(daemon.cli(["exec", "-s", "a", "(x + 1, end)"]).ok().stdout, "(42, 79)\n");
    assert!(logs(&daemon).contains(&counted()), "{}", logs(&daemon));
    assert_eq!(daemon.containers(), containers);
    daemon.cli(["rm", "a"]).ok();
    assert_eq!(daemon.containers(), Vec::<String>::new());
}

/// A session's life in commands; each may fail, because the daemon may have died.
fn scenario(daemon: &Daemon) {
    daemon.cli(["new", "a", "--image", daemon.image()]);
    daemon.cli(["exec", "-s", "a", "x = 1"]);
    daemon.cli(["exec", "-s", "a", "print('out')"]);
    daemon.cli(["undo", "-s", "a"]);
    daemon.cli(["reset", "-s", "a"]);
    daemon.cli(["rm", "a"]);
}

/// More commits than a scenario has.
const COMMITS: u32 = 60;

/// The daemon dies at each of its commits in turn, just before and just after it, until the scenario
/// has none left.
#[test]
pub fn a_death_at_any_commit_leaves_a_home_that_the_next_daemon_can_use() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let mut died = 0;
    for n in 1..=COMMITS {
        let before = died;
        for side in ["before", "after"] {
            let place = format!("{n}:{side}");
            daemon.kill();
            daemon.set_environment(&[("BELLJAR_CRASH_AT", &place)]);
            if daemon.try_restart() {
                scenario(&daemon);
            }
            died += usize::from(daemon.has_ended());
            daemon.kill();
            daemon.set_environment(&[]);
            daemon.restart();
            daemon.assert_sound();
            let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
            let sessions = listed["sessions"].as_array().expect("a list");
            assert!(daemon.containers().len() <= sessions.len(), "{place}: {sessions:?}");
            for session in sessions {
                gapless(&daemon, text(session, "name"));
            }
            daemon.session("b", json!({"image": "belljar/base"}));
            let result = daemon.run("b", "6 * 7");
            assert_eq!(result["result"]["repr"], "42", "{place}: {result}");
            for session in sessions.iter().map(|session| text(session, "name")).chain(["b"]) {
                gapless(&daemon, session);
                daemon.http("DELETE", &format!("/v1/sessions/{session}?wait=true"), b"").expect_status(200);
            }
            assert_eq!(daemon.containers(), Vec::<String>::new(), "{place}");
        }
        if died == before {
            assert!(n > 12, "the scenario has no more than {n} commits");
            return;
        }
    }
    panic!("the scenario has more than {COMMITS} commits");
}

#[test]
pub fn a_client_that_shows_a_cell_goes_on_after_a_restart() {
    if !keeps_variables() {
        return;
    }
    let Some(mut daemon) = base() else { return };
    for signal in ["KILL", "TERM"] {
        let before = daemon.events(S, 0).len() as u64;
        let mut command = daemon.command(["exec", "-s", S, COUNT]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let client = command.spawn().expect("a client");
        eventually("the cell has begun to print", || {
            let events = daemon.events(S, before);
            let text: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
            text.contains("9\n").then_some(())
        });
        restart_by(&mut daemon, signal);
        let output = client.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
        assert_eq!(String::from_utf8_lossy(&output.stdout), counted());
    }
    daemon.assert_sound();
}

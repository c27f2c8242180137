//! Sandboxes that are lost behind the daemon's back, all at once, with the engine, with the folder that the daemon
//! served from, or while variables are loaded or branched: sessions have their variables in the next one.

use serde_json::{Value, json};
use std::io::{Read as _, Write as _};

use super::engine::OwnEngine;
use super::helpers::{S, assert_ended, list, number, outcome, post, queue, text, wait_for_line, workspace};
use super::snapshots::stored;
use crate::support::{Daemon, engine, eventually};

/// Sessions of these tests save only what the test asks for.
fn named() -> Value {
    json!({"image": "belljar/base", "snapshots": "named"})
}

#[track_caller]
fn runs(daemon: &Daemon, session: &str, code: &str) {
    assert_ended(&daemon.run(session, code), "success", "ok", 0);
}

#[track_caller]
fn repr(daemon: &Daemon, session: &str, code: &str) -> String {
    text(&daemon.run(session, code), "/result/repr").to_owned()
}

#[track_caller]
fn saves(daemon: &Daemon, session: &str) {
    daemon.http("POST", &format!("/v1/sessions/{session}/snapshots"), b"{}").expect_status(200);
}

fn count(daemon: &Daemon, session: &str, kind: &str) -> usize {
    daemon.events(session, 0).iter().filter(|event| event["type"] == kind).count()
}

#[test]
pub fn sessions_whose_sandboxes_are_all_taken_away_have_their_variables_again() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    for name in ["rests", "sleeps", S] {
        daemon.session(name, named());
        runs(&daemon, name, &format!("steps = [{name:?}]\nopen('file', 'w').write({name:?})"));
        saves(&daemon, name);
        runs(&daemon, name, "steps.append(2)");
    }
    daemon.session("unsaved", json!({"image": "belljar/base", "snapshots": "off"}));
    runs(&daemon, "unsaved", "steps = [1]");
    // It has not rested for long enough to have a snapshot.
    daemon.session("young", json!({"image": "belljar/base"}));
    runs(&daemon, "young", "import random\nwho = session_info()['session']\nsteps = []");
    runs(&daemon, "young", "steps.append(random.random() < 2)");
    daemon.http("POST", "/v1/sessions/sleeps/sleep", b"{}").expect_status(200);
    let busy = queue(&daemon, &json!({"code": "print('busy')\nwhile True: pass", "timeout_s": 300}));
    wait_for_line(&daemon, busy, "busy");
    daemon.remove_sandboxes();
    assert_eq!(text(&outcome(&daemon, busy), "reason"), "sandbox_lost");
    for name in ["rests", "sleeps", S] {
        assert_eq!(repr(&daemon, name, "steps, open('file').read()"), format!("(['{name}', 2], '{name}')"));
        assert_eq!(count(&daemon, name, "woken"), 1, "{name}");
        assert_eq!(count(&daemon, name, "wake_failed"), 0, "{name}");
    }
    assert_eq!(repr(&daemon, "unsaved", "'steps' in globals()"), "False");
    assert_eq!(repr(&daemon, "young", "who, steps"), "('young', [True])");
    assert_eq!((count(&daemon, "young", "woken"), count(&daemon, "young", "replay_finished")), (1, 1));
    // The cell that was running is not run again.
    assert_eq!(count(&daemon, S, "sandbox_gone"), 1);
    assert!(!daemon.events(S, 0).iter().any(|event| event["type"] == "woken" && ran_again(event, busy)));
    daemon.assert_sound();
}

/// Whether a session that woke has run that cell again.
fn ran_again(woken: &Value, cell: u64) -> bool {
    woken["replays"].as_array().is_some_and(|cells| cells.contains(&json!(cell)))
}

#[test]
pub fn a_home_that_was_moved_has_the_sessions_of_the_first_one() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    for name in ["rests", "sleeps"] {
        daemon.session(name, named());
        runs(&daemon, name, "class Point: x = 1\npoint = Point()\nsteps = [point, point]");
        runs(&daemon, name, "out = open('notes', 'w+'); _ = out.write('one'); out.flush()");
        saves(&daemon, name);
        runs(&daemon, name, "steps.append(2)");
    }
    daemon.http("POST", "/v1/sessions/sleeps/sleep", b"{}").expect_status(200);
    let before = daemon.home().to_owned();
    let daemon = daemon.moved();
    assert!(daemon.home() != before && !before.exists());
    for name in ["rests", "sleeps"] {
        let code = "_ = out.write(' two'); out.flush()\n\
                    steps[0] is point is steps[1], type(point) is Point, steps[2], open('notes').read()";
        assert_eq!(repr(&daemon, name, code), "(True, True, 2, 'one two')", "{name}");
        assert_eq!((count(&daemon, name, "woken"), count(&daemon, name, "wake_failed")), (1, 0), "{name}");
        // It is saved in the new home.
        daemon.http("POST", &format!("/v1/sessions/{name}/sleep"), b"{}").expect_status(200);
        assert_eq!(repr(&daemon, name, "steps[2]"), "2");
    }
    assert!(!before.exists(), "something still writes to where it was");
    daemon.assert_sound();
}

#[test]
fn variables_outlive_an_engine_that_is_started_anew() {
    if !engine() {
        return;
    }
    let Some(mut own) = OwnEngine::start() else { return };
    own.load("belljar/base");
    let daemon = Daemon::with_environment("", &[("DOCKER_HOST", &own.host())]);
    daemon.session(S, named());
    runs(&daemon, S, "steps = []");
    saves(&daemon, S);
    for (round, signal) in ["TERM", "KILL"].into_iter().enumerate() {
        runs(&daemon, S, &format!("steps.append({round})"));
        let cell = queue(&daemon, &json!({"code": "print('busy')\nwhile True: pass", "timeout_s": 300}));
        wait_for_line(&daemon, cell, "busy");
        own.end(signal);
        own.begin();
        assert_eq!(text(&outcome(&daemon, cell), "reason"), "sandbox_lost", "{signal}");
        let steps = (0..=round).map(|round| round.to_string()).collect::<Vec<_>>().join(", ");
        assert_eq!(repr(&daemon, S, "steps"), format!("[{steps}]"), "{signal}");
    }
    assert_eq!((count(&daemon, S, "woken"), count(&daemon, S, "wake_failed")), (2, 0));
    daemon.assert_sound();
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
}

/// Waits in the sandbox that wakes, and not where it is tried out before, until the test lets it go on.
const LOADS_SLOWLY: &str = "
import os, sys, time
def load():
    if not sys.modules['belljar_kernel.snapshot_make'].loading.is_trial:
        open('/workspace/loads', 'a').write('x')
        while not os.path.exists('/workspace/go'): time.sleep(0.01)
    return 3
class Slow:
    def __reduce__(self): return load, ()
slow = Slow()
steps = [1]
";

#[test]
pub fn a_daemon_that_is_killed_while_variables_are_loaded_leaves_them_to_the_next() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session(S, named());
    runs(&daemon, S, LOADS_SLOWLY);
    post(&daemon, "sleep", &json!({})).expect_status(200);
    let cell = queue(&daemon, &json!({"code": "steps.append(2)\nslow, steps"}));
    let loads = workspace(&daemon).join("loads");
    for died in 1..=2 {
        let begun = || std::fs::metadata(&loads).is_ok_and(|found| found.len() >= died);
        eventually("the variables are being loaded", || begun().then_some(()));
        daemon.kill();
        daemon.restart();
    }
    std::fs::write(workspace(&daemon).join("go"), "").expect("written");
    let result = outcome(&daemon, cell);
    assert_eq!(text(&result, "/result/repr"), "(3, [1, 2])", "{result:#}");
    assert_eq!((count(&daemon, S, "woken"), count(&daemon, S, "wake_failed")), (1, 0));
    eventually("the sandboxes that were not ready are gone", || {
        (daemon.containers().len() == 1).then_some(())
    });
    daemon.assert_sound();
}

/// A request that makes the session `b`.
struct Making<'a> {
    path: &'a str,
    kind: &'a str,
    body: &'a [u8],
}

impl Making<'_> {
    /// The status of the answer; none if the daemon dies over it.
    fn try_to(&self, daemon: &Daemon) -> Option<u16> {
        let mut stream = daemon.connect().ok()?;
        let (path, kind, length) = (self.path, self.kind, self.body.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Type: {kind}");
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n").ok()?;
        stream.write_all(self.body).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }
}

/// More commits than it takes to make a session of another one, with those of a daemon's start.
const COMMITS: u32 = 40;

/// The daemon dies at each of them in turn, just before and just after it. A session that is there then has all that it
/// was to begin with, one that was answered for is there, and of one that is not there nothing is left.
#[track_caller]
fn makes_a_whole_session_or_none(daemon: &mut Daemon, making: &Making<'_>) {
    let mut deaths = 0;
    for n in 1..=COMMITS {
        let before = deaths;
        for side in ["before", "after"] {
            let place = format!("{n}:{side}");
            daemon.kill();
            daemon.set_environment(&[("BELLJAR_CRASH_AT", &place)]);
            let answer = if daemon.try_restart() { making.try_to(daemon) } else { None };
            assert!(answer.is_none_or(|status| status == 201), "{place}: {answer:?}");
            deaths += usize::from(answer.is_none());
            daemon.kill();
            daemon.set_environment(&[]);
            daemon.restart();
            let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
            let is_there = list(&listed, "sessions").iter().any(|session| session["name"] == "b");
            assert!(is_there || answer.is_none(), "{place}: a session that was answered for is gone");
            if is_there {
                assert_eq!(repr(daemon, "b", "steps, open('file').read()"), "([1], 'text')", "{place}");
                daemon.http("DELETE", "/v1/sessions/b?wait=true", b"").expect_status(200);
            }
            assert_eq!(repr(daemon, S, "steps"), "[1]", "{place}");
            eventually("nothing is left of it", || is_alone(daemon).then_some(()));
        }
        if deaths == before {
            assert!(n > 2, "it has no more than {n} commits");
            return;
        }
    }
    panic!("it has more than {COMMITS} commits");
}

/// A session that others are made of.
fn original() -> Option<Daemon> {
    if !engine() {
        return None;
    }
    let daemon = Daemon::start();
    daemon.session(S, named());
    runs(&daemon, S, "steps = [1]\n_ = open('file', 'w').write('text')");
    Some(daemon)
}

#[test]
pub fn a_death_at_any_commit_of_a_branch_leaves_a_whole_one_or_none() {
    let Some(mut daemon) = original() else { return };
    let (path, body) = (format!("/v1/sessions/{S}/branch"), b"{\"name\": \"b\"}");
    makes_a_whole_session_or_none(&mut daemon, &Making { path: &path, kind: "application/json", body });
}

#[test]
pub fn a_death_at_any_commit_of_an_import_leaves_a_whole_session_or_none() {
    let Some(mut daemon) = original() else { return };
    let archive = daemon.http("GET", &format!("/v1/sessions/{S}/archive"), b"");
    assert_eq!(archive.status, 200, "{}", archive.text());
    let path = "/v1/archives?name=b";
    makes_a_whole_session_or_none(
        &mut daemon,
        &Making { path, kind: "application/x-tar", body: &archive.body },
    );
}

/// Whether the first session is all that there is.
fn is_alone(daemon: &Daemon) -> bool {
    let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
    let sessions = list(&quota, "quotas").iter().find(|quota| quota["kind"] == "sessions");
    let id = text(&daemon.http("GET", "/v1/sessions/s", b"").expect_status(200), "id").to_owned();
    let folders = |name: &str| std::fs::read_dir(daemon.home().join(name)).map_or(0, Iterator::count);
    let is_of_another = |path: &std::path::Path| !path.to_string_lossy().contains(&id);
    number(sessions.expect("that quota"), "/used") == 1
        && daemon.containers().len() == 1
        && folders("w") == 1
        && stored(daemon, is_of_another).is_empty()
}

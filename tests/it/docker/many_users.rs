//! Several users on one daemon of the machine: each has its own, administrators see all, and what
//! they do is written down.

use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;

use super::asking::{conversation, runs, says, write_script};
use crate::support::invariants::{self, Canary};
use crate::support::{Daemon, Pulse, Response, User, engine, eventually, http_as, in_own_home};

/// The groups that every Debian has: members of the first may use the daemon, of the second are
/// administrators.
pub const USERS: (&str, u32) = ("daemon", 1);
pub const ADMINS: (&str, u32) = ("games", 60);
pub const ALICE: User = User { uid: 61_001, gid: 61_001, group: Some(USERS.1) };
pub const BOB: User = User { uid: 61_002, gid: 61_002, group: Some(USERS.1) };
pub const CAROL: User = User { uid: 61_003, gid: ADMINS.1, group: Some(USERS.1) };
const STRANGER: User = User { uid: 61_004, gid: 61_004, group: None };

pub fn shared(config: &str) -> Daemon {
    Daemon::for_all(USERS.0, &format!("{config}\n[admin]\ngroup = \"{}\"\n", ADMINS.0))
}

pub fn ask(daemon: &Daemon, user: User, method: &str, path: &str, body: Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    http_as(user, &daemon.socket(), method, path, &[], body.as_bytes())
}

#[track_caller]
pub fn session(daemon: &Daemon, user: User, name: &str) -> Value {
    let request = json!({"name": name, "image": daemon.image()});
    ask(daemon, user, "POST", "/v1/sessions", request).expect_status(201)
}

#[track_caller]
pub fn run(daemon: &Daemon, user: User, session: &str, code: &str) -> Value {
    let path = format!("/v1/sessions/{session}/cells?wait=true");
    ask(daemon, user, "POST", &path, json!({"code": code})).expect_status(200)
}

pub fn used(daemon: &Daemon, user: User, kind: &str) -> u64 {
    let quota = ask(daemon, user, "GET", "/v1/quota", Value::Null).expect_status(200);
    let quotas = quota["quotas"].as_array().expect("a list").clone();
    let found = quotas.into_iter().find(|quota| quota["kind"] == kind).expect("that quota");
    found["used"].as_u64().expect("a number")
}

#[test]
fn the_configuration_is_for_those_who_run_the_daemon() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let file = daemon.home().join("config.toml");
    let told = |user: User| {
        let answer = ask(&daemon, user, "GET", "/v1/version", Value::Null);
        answer.header("belljar-config").map(str::to_owned)
    };
    assert_eq!((told(ALICE), told(CAROL).as_deref()), (None, file.to_str()));
    for (method, path) in [("GET", "/v1/config"), ("POST", "/v1/config/reload")] {
        ask(&daemon, ALICE, method, path, Value::Null).expect_status(403);
        let seen = ask(&daemon, CAROL, method, path, Value::Null).expect_status(200);
        assert_eq!(seen["file"].as_str(), file.to_str());
    }
}

#[test]
fn each_user_works_in_its_own_and_administrators_in_all() {
    if !engine() {
        return;
    }
    let canary = Canary::set();
    let mut daemon = shared("[quota]\nsessions = 2\n");
    let pulse = Pulse::of(&daemon);
    let socket = std::fs::metadata(daemon.socket()).expect("a socket");
    assert_eq!((socket.gid(), socket.permissions().mode() & 0o777), (USERS.1, 0o660));
    let refused = std::panic::catch_unwind(|| ask(&daemon, STRANGER, "GET", "/v1/sessions", Value::Null));
    assert!(refused.is_err(), "who is not in the group cannot connect");

    let alices = session(&daemon, ALICE, "data");
    session(&daemon, BOB, "data");
    run(&daemon, ALICE, "data", "secret = 'of alice'");
    run(&daemon, BOB, "data", "secret = 'of bob'");
    assert_eq!(run(&daemon, ALICE, "data", "secret")["result"]["repr"], "'of alice'");
    assert_eq!(run(&daemon, BOB, "data", "secret")["result"]["repr"], "'of bob'");
    assert_eq!(ask(&daemon, BOB, "GET", "/v1/health", Value::Null).expect_status(200)["sessions"], 1);
    let id = alices["id"].as_str().expect("an id");
    for path in [format!("/v1/sessions/{id}"), format!("/v1/sessions/{id}/variables")] {
        assert_eq!(ask(&daemon, BOB, "GET", &path, Value::Null).status, 404);
        assert_eq!(ask(&daemon, ALICE, "GET", &path, Value::Null).status, 200);
    }
    // The quota of one is not spent by the other.
    session(&daemon, ALICE, "more");
    let third = json!({"name": "third", "image": "belljar/base"});
    let problem = ask(&daemon, ALICE, "POST", "/v1/sessions", third.clone()).expect_status(429);
    assert_eq!(problem["code"], "quota_exceeded");
    let message = problem["message"].as_str().expect("a message");
    assert!(message.contains("quota of sessions") && message.contains("2 of 2"), "{message}");
    assert!(message.contains("`data`") && message.contains("`more`"), "{message}");
    assert_eq!(used(&daemon, BOB, "sessions"), 1);
    session(&daemon, BOB, "more");

    // Only administrators see all, and no user becomes one by saying so.
    for user in [ALICE, BOB] {
        let problem = ask(&daemon, user, "GET", "/v1/sessions?all=true", Value::Null).expect_status(403);
        assert_eq!(problem["code"], "forbidden");
        assert_eq!(ask(&daemon, user, "GET", "/v1/quota?user=61003", Value::Null).status, 403);
        assert_eq!(ask(&daemon, user, "GET", "/v1/quota?user=root", Value::Null).status, 403);
    }
    let all = ask(&daemon, CAROL, "GET", "/v1/sessions?all=true", Value::Null).expect_status(200);
    assert_eq!(all["sessions"].as_array().map(Vec::len), Some(4));
    let own = ask(&daemon, CAROL, "GET", "/v1/sessions", Value::Null).expect_status(200);
    assert_eq!(own["sessions"], json!([]));
    let quota = ask(&daemon, CAROL, "GET", "/v1/quota?user=61001", Value::Null).expect_status(200);
    assert_eq!((&quota["uid"], &quota["quotas"][0]["used"]), (&json!(61001), &json!(2)));

    // What an administrator does is in the events of the session, before what follows from it.
    assert_eq!(
        ask(&daemon, CAROL, "GET", "/v1/sessions/data", Value::Null).status,
        404,
        "names are per user"
    );
    assert_eq!(ask(&daemon, CAROL, "POST", &format!("/v1/sessions/{id}/reset"), Value::Null).status, 200);
    let events = ask(&daemon, ALICE, "GET", "/v1/sessions/data/events?follow=false", Value::Null).text();
    let acted = events.find("\"type\":\"admin_acted\"").expect("it is journaled");
    assert!(events.contains(&format!("\"admin\":{}", CAROL.uid)), "{events}");
    assert!(events.contains(&format!("POST /v1/sessions/{id}/reset")), "{events}");
    assert!(acted < events.find("\"type\":\"reset\"").expect("it was reset"));

    // They may name it with its owner; no other user can, except the owners themselves.
    let named = format!("/v1/sessions/data@{}", ALICE.uid);
    let view = ask(&daemon, CAROL, "GET", &named, Value::Null).expect_status(200);
    assert_eq!((&view["id"], &view["owner"]), (&json!(id), &json!(ALICE.uid)));
    assert_eq!(ask(&daemon, ALICE, "GET", &named, Value::Null).status, 200);
    let (real, none) = (
        ask(&daemon, BOB, "GET", &named, Value::Null),
        ask(&daemon, BOB, "GET", &format!("/v1/sessions/none@{}", ALICE.uid), Value::Null),
    );
    assert_eq!((real.status, real.text().replace("data@", "none@")), (404, none.text()));
    assert_eq!(ask(&daemon, CAROL, "GET", "/v1/sessions/data@no-such-user", Value::Null).status, 404);
    let events = ask(&daemon, ALICE, "GET", "/v1/sessions/data/events?follow=false", Value::Null).text();
    assert!(events.contains(&format!("GET {named}")), "{events}");
    assert_eq!(ask(&daemon, BOB, "GET", "/v1/approvals?all=true", Value::Null).status, 403);
    ask(&daemon, CAROL, "GET", "/v1/approvals?all=true", Value::Null).expect_status(200);
    pulse.assert_steady();

    // Everything is as it was after the daemon was killed.
    daemon.kill();
    daemon.restart();
    assert_eq!((used(&daemon, ALICE, "sessions"), used(&daemon, BOB, "sessions")), (2, 2));
    assert_eq!(ask(&daemon, ALICE, "POST", "/v1/sessions", third.clone()).status, 429);
    eventually("sandboxes are attached", || {
        (run(&daemon, BOB, "data", "secret")["result"]["repr"] == "'of bob'").then_some(())
    });
    invariants::assert_hold(&daemon, &[ALICE, BOB], &canary);
    assert_eq!(ask(&daemon, CAROL, "DELETE", &format!("/v1/sessions/{id}"), Value::Null).status, 200);
    assert_eq!(ask(&daemon, ALICE, "POST", "/v1/sessions", third).status, 201, "the place is free at once");
    for (user, name) in [(ALICE, "more"), (ALICE, "third"), (BOB, "data"), (BOB, "more")] {
        ask(&daemon, user, "DELETE", &format!("/v1/sessions/{name}?wait=true"), Value::Null)
            .expect_status(200);
    }
    for kind in ["sessions", "cells", "memory", "cpus", "workspace"] {
        assert_eq!((used(&daemon, ALICE, kind), used(&daemon, BOB, kind)), (0, 0), "{kind}");
    }
    invariants::assert_hold(&daemon, &[ALICE, BOB], &canary);
}

#[test]
fn what_waits_for_another_user_is_decided_by_administrators_alone() {
    if !engine() {
        return;
    }
    let daemon = shared("[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n");
    write_script(&daemon, &conversation("go", &[runs("x = 41"), says("done")]));
    session(&daemon, ALICE, "data");
    let request = json!({"text": "go", "approval": "ask"});
    ask(&daemon, ALICE, "POST", "/v1/sessions/data/asks", request).expect_status(202);
    let waiting = |user: User, query: &str| {
        let answer =
            ask(&daemon, user, "GET", &format!("/v1/approvals{query}"), Value::Null).expect_status(200);
        answer["approvals"].as_array().expect("a list").clone()
    };
    let wanted = eventually("a person is asked", || waiting(ALICE, "").pop());
    let path = format!("/v1/approvals/{}", wanted["id"].as_str().expect("an id"));
    for user in [BOB, CAROL] {
        assert_eq!(waiting(user, ""), Vec::<Value>::new(), "one's own only, unless asked otherwise");
    }
    assert_eq!(
        ask(&daemon, BOB, "POST", &path, json!({"accept": {}})).expect_status(404)["code"],
        "no_such_approval"
    );
    assert_eq!(waiting(CAROL, "?all=true"), [wanted]);
    ask(&daemon, CAROL, "POST", &path, json!({"accept": {}})).expect_status(200);
    let end =
        ask(&daemon, ALICE, "GET", "/v1/sessions/data/asks/1?wait=true", Value::Null).expect_status(200);
    assert_eq!(end["end"]["answer"], "done", "{end}");
    let events = ask(&daemon, ALICE, "GET", "/v1/sessions/data/events?follow=false", Value::Null).text();
    let noted = |act: &str| events.find(&format!("\"act\":\"{act}\"")).expect("it is journaled");
    assert!(noted("GET /v1/approvals") < noted(&format!("POST {path}")), "{events}");
    daemon.assert_sound();
}

#[test]
fn only_root_serves_the_machine_and_only_for_a_group_that_is_there() {
    let home = tempfile::tempdir().expect("a folder");
    let run = |flags: &[&str], user: Option<&str>| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", user.unwrap_or("0"), "--clear-groups"]).arg(crate::support::binary());
        command.arg("daemon").args(flags);
        in_own_home(&mut command, &home.path().join("h")).output().expect("it runs")
    };
    let nobody = run(&["--system"], Some("61001"));
    assert_eq!(nobody.status.code(), Some(64), "{nobody:?}");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("only root"), "{nobody:?}");
    let groupless = run(&["--system", "--group", "no-such-group"], None);
    assert_eq!(groupless.status.code(), Some(64), "{groupless:?}");
    assert!(String::from_utf8_lossy(&groupless.stderr).contains("groupadd"), "{groupless:?}");
    assert_eq!(run(&["--group", "daemon"], None).status.code(), Some(64), "a group is for a system daemon");
}

/// The test plays systemd, and hears what the daemon tells it.
#[test]
fn systemd_hears_when_it_is_ready_that_it_lives_and_that_it_stops() {
    let folder = tempfile::Builder::new().prefix("bjn").tempdir_in("/tmp").expect("a folder");
    let at = folder.path().join("notify");
    let listener = UnixDatagram::bind(&at).expect("a socket");
    listener.set_read_timeout(Some(crate::support::SOON)).expect("a timeout");
    let heard = || {
        let mut text = [0; 256];
        let length = listener.recv(&mut text).expect("systemd is told");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let at = at.to_str().expect("UTF-8");
    let daemon = Daemon::with_environment("", &[("NOTIFY_SOCKET", at), ("WATCHDOG_USEC", "200000")]);
    assert_eq!(heard(), "READY=1");
    daemon.http("GET", "/v1/health", b"").expect_status(200);
    assert_eq!([heard(), heard()], ["WATCHDOG=1", "WATCHDOG=1"]);
    daemon.signal("TERM");
    let last = eventually("it stops", || Some(heard()).filter(|text| text != "WATCHDOG=1"));
    assert_eq!(last, "STOPPING=1");
}

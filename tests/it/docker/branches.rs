//! Branches: sessions that begin with the variables and files of another one.

use serde_json::{Value, json};

use super::helpers::{S, base, list, number, post, printed, text};
use super::many_users::{ALICE, BOB, CAROL, ask, run, shared, used};
use crate::support::{Daemon, engine};

#[track_caller]
fn branch(daemon: &Daemon, request: &Value) -> Value {
    post(daemon, "branch", request).expect_status(201)
}

#[track_caller]
fn names_of(made: &Value) -> Vec<&str> {
    list(made, "sessions").iter().map(|session| text(session, "name")).collect()
}

#[track_caller]
fn repr(daemon: &Daemon, session: &str, code: &str) -> String {
    let result = daemon.run(session, code);
    text(&result, "/result/repr").to_owned()
}

#[test]
pub fn a_branch_has_the_variables_and_files_of_its_session_and_goes_its_own_way() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "shared = [1]\nalias = shared\ndef double(n): return 2 * n + len(shared)");
    printed(
        &daemon,
        "import os\nos.makedirs('d')\nopen('d/program', 'w').write('x')\nos.chmod('d/program', 0o750)\nos.symlink('d/program', 'link')",
    );
    let made = branch(&daemon, &json!({"name": "other"}));
    assert_eq!((names_of(&made), number(&made, "/cell"), number(&made, "/left_out")), (vec!["other"], 2, 0));
    // Objects are the same among each other, functions see the variables, files have their rights.
    let code = "alias.append(2)\nshared, shared is alias, double(20), oct(os.stat('d/program').st_mode & 0o777), os.readlink('link')";
    assert_eq!(repr(&daemon, "other", code), "([1, 2], True, 42, '0o750', 'd/program')");
    daemon.run("other", "open('d/program', 'w').write('of the branch')");
    assert_eq!(repr(&daemon, S, "shared, open('d/program').read()"), "([1], 'x')");
    daemon.run(S, "open('d/program', 'w').write('of the first')");
    assert_eq!(repr(&daemon, "other", "open('d/program').read()"), "'of the branch'");
    // The journal of the branch says where it comes from.
    let based =
        daemon.events("other", 0).into_iter().find(|event| event["type"] == "based").expect("an event");
    assert_eq!((text(&based, "/on/session/name"), number(&based, "/on/session/cell")), (S, 2));
    // A branch of a branch, when the first is gone.
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    daemon.http("POST", "/v1/sessions/other/branch", b"{\"name\": \"third\"}").expect_status(201);
    assert_eq!(repr(&daemon, "third", "shared, open('d/program').read()"), "([1, 2], 'of the branch')");
    daemon.assert_sound();
}

#[test]
pub fn branches_begin_at_an_earlier_cell_if_its_state_is_kept() {
    let Some(daemon) = base() else { return };
    if !crate::support::keeps_every_state() {
        return;
    }
    for value in 1..=3 {
        printed(&daemon, &format!("x = {value}"));
    }
    branch(&daemon, &json!({"name": "first", "at": 1}));
    assert_eq!(repr(&daemon, "first", "x"), "1");
    let refused = post(&daemon, "branch", &json!({"at": 99})).expect_status(409);
    assert_eq!(text(&refused, "code"), "out_of_reach");
    assert!(text(&refused, "message").contains("no cell 99 yet: the session has 3"), "{refused}");
    assert_eq!(repr(&daemon, S, "x"), "3");
    daemon.assert_sound();
}

#[test]
pub fn branches_begin_at_an_earlier_cell_if_exactly_its_variables_are_saved() {
    let Some(daemon) = base() else { return };
    for value in 1..=3 {
        printed(&daemon, &format!("x = {value}"));
        if value != 2 {
            post(&daemon, "snapshots", &json!({"name": format!("of-{value}")})).expect_status(200);
        }
    }
    // No checkpoint leads back behind it.
    post(&daemon, "reset", &json!({})).expect_status(200);
    branch(&daemon, &json!({"name": "first", "at": 1}));
    assert_eq!(repr(&daemon, "first", "x"), "1");
    assert_eq!(daemon.cli(["branch", "-s", S, "--at", "3", "third"]).ok().stdout, "third\n");
    assert_eq!(repr(&daemon, "third", "x"), "3");
    let refused = post(&daemon, "branch", &json!({"at": 2})).expect_status(409);
    assert_eq!(text(&refused, "code"), "out_of_reach");
    assert!(text(&refused, "hint").contains("belljar snapshots -s"), "{refused}");
    daemon.assert_sound();
}

#[test]
pub fn branches_begin_with_a_saved_snapshot() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "x = 1");
    post(&daemon, "snapshots", &json!({"name": "first"})).expect_status(200);
    let again = post(&daemon, "snapshots", &json!({"name": "first"})).expect_status(409);
    assert_eq!(text(&again, "code"), "snapshot_exists");
    printed(&daemon, "x = 2");
    branch(&daemon, &json!({"name": "b", "snapshot": "first"}));
    assert_eq!(repr(&daemon, "b", "x"), "1");
    let refused = post(&daemon, "branch", &json!({"snapshot": "none"})).expect_status(404);
    assert_eq!(text(&refused, "code"), "no_such_snapshot");
    assert!(text(&refused, "message").contains("no snapshot `none`"), "{refused}");
    assert!(text(&refused, "hint").contains("belljar snapshots -s"), "{refused}");
    post(&daemon, "branch", &json!({"snapshot": "first", "at": 1})).expect_status(400);
    assert_eq!(daemon.cli(["branch", "-s", S, "--snapshot", "first", "c"]).ok().stdout, "c\n");
    assert_eq!(repr(&daemon, "c", "x"), "1");
    daemon.assert_sound();
}

#[test]
pub fn of_several_branches_all_are_made_or_none() {
    let Some(daemon) = base() else { return };
    printed(&daemon, "x = 10");
    let made = daemon.cli(["branch", "-s", S, "--count", "8", "b"]).ok().stdout;
    let names: Vec<&str> = made.lines().collect();
    assert_eq!(names, ["b-1", "b-2", "b-3", "b-4", "b-5", "b-6", "b-7", "b-8"]);
    for (number, name) in names.into_iter().enumerate() {
        assert_eq!(repr(&daemon, name, &format!("x += {number}; x")), (10 + number).to_string());
    }
    // One name is taken, so there is none of the others.
    daemon.session("c-2", json!({"image": "belljar/base"}));
    let refused = post(&daemon, "branch", &json!({"name": "c", "count": 3})).expect_status(409);
    assert_eq!(text(&refused, "code"), "session_exists");
    crate::support::eventually("the others are gone", || {
        let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
        let names: Vec<String> =
            list(&listed, "sessions").iter().map(|session| text(session, "name").to_owned()).collect();
        (!names.contains(&"c-1".to_owned()) && !names.contains(&"c-3".to_owned())).then_some(())
    });
    for count in [0, 65] {
        post(&daemon, "branch", &json!({"count": count})).expect_status(400);
    }
    daemon.assert_sound();
}

#[test]
pub fn two_sessions_are_compared_by_what_they_hold() {
    let Some(daemon) = base() else { return };
    printed(
        &daemon,
        "same = 1\nchanged = 'a'\ngone = 2\nlate = dict.fromkeys(range(100), 0)\nobj = object()\nopen('same', 'w').write('s')\nopen('file', 'w').write('abc')",
    );
    branch(&daemon, &json!({"name": "other"}));
    daemon.run(
        "other",
        "changed = 'b'; del gone; new = 3; late[99] = 1\nopen('file', 'w').write('abd')\nopen('more', 'w').write('m')",
    );
    let diff = daemon.http("GET", "/v1/sessions/s/diff/other", b"").expect_status(200);
    let variables = &diff["variables"];
    assert_eq!(text(variables, "/only_in_first/0/name"), "gone");
    assert_eq!(text(variables, "/only_in_second/0/name"), "new");
    assert_eq!(
        (text(variables, "/changed/0/first/name"), &variables["changed"][0]["by"]),
        ("changed", &json!(["preview", "content"]))
    );
    // The preview ends before the item that differs, and nothing says what an object holds.
    assert_eq!(
        (text(variables, "/changed/1/first/name"), &variables["changed"][1]["by"]),
        ("late", &json!(["content"]))
    );
    assert_eq!((&variables["not_compared"], number(variables, "/same")), (&json!(["obj"]), 1));
    let said = daemon.cli(["diff", "s", "other"]).exits(1);
    assert!(
        said.stdout.contains("~ late: dict {0: 0, 1: 0, ") && said.stdout.contains("(content differs)"),
        "{said:?}"
    );
    assert!(said.stderr.contains("cannot be compared, but look the same: obj"), "{said:?}");
    let files = &diff["files"];
    assert_eq!(text(files, "/changed/0/path"), "file");
    assert_eq!(text(files, "/only_in_second/0/path"), "more");
    assert_eq!((number(files, "/same"), list(files, "only_in_first").len()), (1, 0));
    let same = daemon.http("GET", "/v1/sessions/s/diff/s", b"").expect_status(200);
    assert_eq!((&same["variables"]["changed"], &same["files"]["changed"]), (&json!([]), &json!([])));
    daemon.http("GET", "/v1/sessions/s/diff/none", b"").expect_status(404);
}

#[test]
pub fn an_administrator_who_looks_into_sessions_is_noted_in_each_of_them() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    for (user, name) in [(ALICE, "a"), (BOB, "b")] {
        let request = json!({"name": name, "image": daemon.image()});
        ask(&daemon, user, "POST", "/v1/sessions", request).expect_status(201);
        run(&daemon, user, name, "open('f', 'w').write('mine')\nx = 1");
    }
    let look =
        |path: &str| ask(&daemon, CAROL, "GET", &format!("/v1/sessions/a@{}/{path}", ALICE.uid), Value::Null);
    look("variables").expect_status(200);
    let diff = look(&format!("diff/b@{}", BOB.uid)).expect_status(200);
    assert_eq!((number(&diff["files"], "/same"), &diff["files"]["changed"]), (1, &json!([])));
    assert_eq!(look("archive").status, 200);
    let acts = |user, name: &str| {
        let path = format!("/v1/sessions/{name}/events?follow=false");
        ask(&daemon, user, "GET", &path, Value::Null).text()
    };
    let (of_alice, of_bob) = (acts(ALICE, "a"), acts(BOB, "b"));
    for path in ["variables", "diff/b@61002", "archive"] {
        assert!(of_alice.contains(&format!("GET /v1/sessions/a@61001/{path}")), "{path}: {of_alice}");
    }
    assert!(of_bob.contains("GET /v1/sessions/a@61001/diff/b@61002"), "{of_bob}");
    assert!(!of_bob.contains("archive"), "{of_bob}");
    // Nobody else sees any of it.
    let path = format!("/v1/sessions/b/diff/a@{}", ALICE.uid);
    assert_eq!(ask(&daemon, BOB, "GET", &path, Value::Null).status, 404);
    for (user, name) in [(ALICE, "a"), (BOB, "b")] {
        ask(&daemon, user, "DELETE", &format!("/v1/sessions/{name}?wait=true"), Value::Null)
            .expect_status(200);
    }
}

#[test]
pub fn branches_are_their_owners_and_charged_to_them() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let request = json!({"name": "a", "image": daemon.image()});
    ask(&daemon, ALICE, "POST", "/v1/sessions", request).expect_status(201);
    run(
        &daemon,
        ALICE,
        "a",
        "import os\nsecret = os.urandom(3 << 20)\nopen('f', 'wb').write(os.urandom(2 << 20))",
    );
    // Another user, an administrator too, has no session out of her variables.
    let refused = ask(&daemon, CAROL, "POST", "/v1/sessions/a@61001/branch", json!({})).status;
    assert!(matches!(refused, 403 | 404), "{refused}");
    let before = used(&daemon, ALICE, "workspace");
    ask(&daemon, ALICE, "POST", "/v1/sessions/a/branch", json!({"name": "b"})).expect_status(201);
    let after = used(&daemon, ALICE, "workspace");
    assert!(after >= before + (5 << 20), "{before} {after}");
    assert_eq!(text(&run(&daemon, ALICE, "b", "len(secret)"), "/result/repr"), (3 << 20).to_string());
    for name in ["a", "b"] {
        ask(&daemon, ALICE, "DELETE", &format!("/v1/sessions/{name}?wait=true"), Value::Null)
            .expect_status(200);
    }
    assert_eq!(used(&daemon, ALICE, "workspace"), 0);
}

//! What must not cost a session its variables: curious questions, large uploads, a full workspace.

use serde_json::json;

use crate::support::{Daemon, engine};

#[test]
pub fn a_variable_that_cannot_be_shown_costs_only_itself() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let code =
        "import os; keep = 1\nclass Deadly:\n    def __repr__(self): os._exit(1)\ndeadly = Deadly(); 0";
    assert_eq!(daemon.run("a", code)["status"], "success");
    let listed = daemon.http("GET", "/v1/sessions/a/variables", b"").expect_status(200);
    let shown = |name: &str| {
        let variables = listed["variables"].as_array().expect("a list");
        variables.iter().find(|each| each["name"] == name).map(|each| each["preview"].clone())
    };
    assert_eq!(shown("keep"), Some(json!("1")), "{listed}");
    assert!(
        shown("deadly").is_some_and(|shown| shown.as_str().expect("text").starts_with("<not shown")),
        "{listed}"
    );
    assert_eq!(daemon.run("a", "del deadly; keep")["result"]["repr"], "1");
    let listed = daemon.http("GET", "/v1/sessions/a/variables", b"").expect_status(200);
    assert!(listed.to_string().contains("keep"), "{listed}");
    // What a `repr` changes, it changes in a copy.
    let code =
        "class Sly:\n    def __repr__(self):\n        global keep; keep = 2; return 'sly'\nsly = Sly(); 0";
    daemon.run("a", code);
    daemon.http("GET", "/v1/sessions/a/variables", b"").expect_status(200);
    assert_eq!(daemon.run("a", "keep")["result"]["repr"], "1");
}

#[test]
pub fn an_upload_that_does_not_fit_is_refused_and_a_full_workspace_can_be_used_and_tidied() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\nworkspace = \"8MiB\"\n");
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "import os, time; keep = 1");
    let path = "/v1/sessions/a/files/big";
    let refused = daemon.http("PUT", path, &vec![b'x'; 20 << 20]).expect_status(413);
    assert_eq!(refused["code"], "too_large");
    assert_eq!(daemon.http("GET", path, b"").status, 404);
    daemon.http("PUT", path, &vec![b'x'; 6 << 20]).expect_status(200);
    // Two more of its own, and it is too large; but it does not grow while it is only used.
    daemon.run("a", "for n in 'bc': open(n, 'wb').write(b'x' * (2 << 20))");
    assert_eq!(daemon.run("a", "time.sleep(3); keep")["result"]["repr"], "1");
    assert_eq!(daemon.run("a", "os.remove('big'); keep")["result"]["repr"], "1");
    daemon.http("PUT", path, &vec![b'x'; 1 << 20]).expect_status(200);
}

#[test]
fn a_workspace_never_holds_what_is_the_daemons_own() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let home = daemon.home().display().to_string();
    for folder in [home.clone(), format!("{home}/kernel"), "/tmp".to_owned(), "/".to_owned()] {
        let request = json!({"name": "a", "workspace": folder}).to_string();
        let refused = daemon.http("POST", "/v1/sessions", request.as_bytes()).expect_status(403);
        assert_eq!(refused["code"], "forbidden", "{folder}: {refused}");
    }
    assert_eq!(daemon.containers(), Vec::<String>::new());
}

#[test]
fn requests_that_come_at_once_with_one_key_are_one() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "ran = 0");
    let body = json!({"code": "ran += 1; ran"}).to_string();
    for round in 1..=8 {
        let key = format!("round-{round}");
        let post = || {
            let path = "/v1/sessions/a/cells?wait=true";
            daemon.http_with("POST", path, &[("Idempotency-Key", &key)], body.as_bytes())
        };
        let answers = std::thread::scope(|scope| {
            let all = [(); 6].map(|()| scope.spawn(post));
            all.map(|one| one.join().expect("answered").expect_status(200))
        });
        for answer in answers {
            assert_eq!(answer["result"]["repr"], round.to_string(), "{answer}");
        }
    }
}

#[test]
fn a_stream_that_is_asked_for_again_with_its_key_is_the_same() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let post = || {
        let path = "/v1/sessions/a/cells?stream=true";
        let answer =
            daemon.http_with("POST", path, &[("Idempotency-Key", "once")], br#"{"code": "print(7)"}"#);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text().lines().filter(|line| line.starts_with("data:")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = post();
    assert!(first.last().is_some_and(|last| last.contains("cell_finished")), "{first:?}");
    assert_eq!(post(), first);
}

#[test]
fn events_after_one_that_never_was_are_refused() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    (0..5).for_each(|_| drop(daemon.run("a", "1")));
    let seen = daemon.events("a", 0).last().and_then(|event| event["seq"].as_u64()).expect("events");
    daemon.http("DELETE", "/v1/sessions/a", b"").expect_status(200);
    daemon.session("a", json!({"image": "belljar/base"}));
    let refused = daemon.http("GET", &format!("/v1/sessions/a/events?after={seen}"), b"").expect_status(400);
    assert!(refused["hint"].as_str().is_some_and(|hint| hint.contains("after=0")), "{refused}");
}

#[test]
fn a_key_whose_request_had_begun_is_never_free_again() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let body = json!({"code": "import time; time.sleep(2); open('ran', 'a').write('x'); 7"}).to_string();
    let post = |daemon: &Daemon| {
        let path = "/v1/sessions/a/cells?wait=true";
        daemon.http_with("POST", path, &[("Idempotency-Key", "once")], body.as_bytes())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The answer is cut off by the death of the daemon.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| post(&daemon)));
        });
        crate::support::eventually("the cell runs", || {
            daemon.events("a", 0).iter().any(|event| event["type"] == "cell_started").then_some(())
        });
        daemon.signal("KILL");
    });
    daemon.wait();
    daemon.restart();
    let again = post(&daemon).expect_status(200);
    assert_eq!(again["result"]["repr"], "7", "{again}");
    assert_eq!(daemon.run("a", "open('ran').read()")["result"]["repr"], "'x'");
}

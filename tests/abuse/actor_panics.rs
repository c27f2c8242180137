//! Actors that panic. At every message in turn: whatever dies over it, the session goes on from the journal, in the
//! sandbox that it has, and nothing is lost but perhaps the answer to the request that was being dealt with.
//!
//! `BELLJAR_PANIC_AT=KIND:n` is the n-th message of a kind. `make test` takes some of the numbers, with a stride that
//! is coprime to the rhythm of the clocks; `make test-long` takes all. Actors of jobs die in `jail::jobs`.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use crate::docker::asking::{notebook, notes, noting_tool, runs, says, write_script};
use crate::docker::helpers::{list, number, text};
use crate::support::invariants::{self, Canary};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, ROOT, SOON, eventually, is_long_run};

/// What a request that an actor died over is answered with; or one that asks for what a writer, which died over it and
/// is on a busy machine, had not written within the time that a request waits for the journal.
fn was_lost(status: u16, body: &str) -> bool {
    status == 500 && body.contains("\"internal\"") || status == 507 && body.contains("\"storage\"")
}

/// Asks until the answer is another than that something died over the request.
#[track_caller]
pub(super) fn ask(daemon: &Daemon, method: &str, path: &str, key: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers: &[(&str, &str)] = if key.is_empty() { &[] } else { &[("Idempotency-Key", key)] };
    eventually(&format!("{method} {path} is answered"), || {
        let answer = daemon.http_with(method, path, headers, body.as_bytes());
        (!was_lost(answer.status, &answer.text())).then(|| (answer.status, answer.json()))
    })
}

#[track_caller]
pub(super) fn get(daemon: &Daemon, path: &str) -> Value {
    let (status, view) = ask(daemon, "GET", path, "", &Value::Null);
    assert_eq!(status, 200, "{path}: {view}\n{}", daemon.log());
    view
}

#[track_caller]
fn queue(daemon: &Daemon, key: &str, code: &str) -> u64 {
    let (status, view) =
        ask(daemon, "POST", "/v1/sessions/s/cells", key, &json!({"code": code, "timeout_s": 60}));
    assert_eq!(status, 202, "{code}: {view}\n{}", daemon.log());
    number(&view, "/cell")
}

#[track_caller]
fn outcome(daemon: &Daemon, cell: u64) -> Value {
    let began = Instant::now();
    loop {
        // Whoever waits sends few messages, however slow the machine is: each one more is a place to die at.
        let view = get(daemon, &format!("/v1/sessions/s/cells/{cell}?wait=true"));
        if view["state"] == "done" {
            return view["result"].clone();
        }
        let events = || json!(daemon.events("s", 0));
        assert!(began.elapsed() < SOON, "cell {cell} does not end: {view}\n{}\n{}", events(), daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub(super) fn runs_well(daemon: &Daemon, key: &str, code: &str) -> Value {
    let result = outcome(daemon, queue(daemon, key, code));
    assert_eq!(result["status"], "success", "{code}: {result:#}\n{}", daemon.log());
    result
}

/// Reads the events of the session as they come, until the cell of that code has ended.
fn follow(daemon: &Daemon, last: &'static str) -> std::thread::JoinHandle<Vec<u64>> {
    let connect = || {
        let mut socket = daemon.connect().expect("the daemon serves");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        let head = "GET /v1/sessions/s/events HTTP/1.1\r\nHost: belljar\r\nConnection: close";
        write!(socket, "{head}\r\nLast-Event-ID: 0\r\n\r\n").expect("it takes requests");
        let mut lines = BufReader::new(socket).lines();
        let status = lines.next().and_then(Result::ok).unwrap_or_default();
        status.contains("200").then_some(lines)
    };
    let lines = eventually("the events are there to be read", connect);
    std::thread::spawn(move || {
        let mut numbers = Vec::new();
        for line in lines {
            let line = line.expect("the stream goes on");
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let event: Value = serde_json::from_str(data).expect("JSON");
            numbers.push(number(&event, "/seq"));
            if event["type"] == "cell_finished" && event["result"]["code"] == last {
                break;
            }
        }
        numbers
    })
}

/// Accepts what waits for a person next, and gives what it was.
#[track_caller]
fn accept(daemon: &Daemon) -> Value {
    let approval = eventually("a person is asked", || {
        let mut approvals = list(&get(daemon, "/v1/approvals"), "approvals").to_vec();
        assert!(approvals.len() < 2, "{approvals:#?}");
        approvals.pop()
    });
    let path = format!("/v1/approvals/{}", text(&approval, "id"));
    let (status, told) = ask(daemon, "POST", &path, "", &json!({"accept": {}}));
    // It may have been taken before the answer was lost.
    assert!(status == 200 || status == 404, "{told}\n{}", daemon.log());
    approval
}

/// Makes the reaper of a daemon look every other second.
const LOOKS_OFTEN: (&str, &str) = ("BELLJAR_PERIODS", "reaper:2");
/// Looks at which the reaper dies in an ordinary run, and more than a run has.
const FIRST_LOOKS: u32 = 3;
const MOST_LOOKS: u32 = 50;
const LAST: &str = "x.append('last')";

/// One run through all that a session does, with whatever dies in it.
fn play(daemon: &Daemon, file: &std::path::Path) {
    write_script(daemon, &[runs("x.append('asked')"), says("done")].concat());
    let (status, made) =
        ask(daemon, "POST", "/v1/sessions", "new", &json!({"name": "s", "image": daemon.image()}));
    assert_eq!(status, 201, "{made}\n{}", daemon.log());
    runs_well(daemon, "first", "import os, time; x = ['first']");
    let sandbox = |daemon: &Daemon| get(daemon, "/v1/sessions/s/receipt")["container"].clone();
    let before = sandbox(daemon);
    let followed = follow(daemon, LAST);
    let busy = queue(
        daemon,
        "busy",
        "print('busy', flush=True)\n\
         while not os.path.exists('/workspace/go'): time.sleep(0.01)\n\
         try: said = note(line='called')\n\
         except ToolError as error: said = error.code\n\
         x.append('busy'); print(said)",
    );
    let waiting = queue(daemon, "waiting", "x.append('waiting')");
    let home = daemon.home().join("w").join(text(&made, "id"));
    std::fs::write(home.join("go"), "").expect("written");
    // If everything died over a call before its question was in the journal, it is unknown whether the call was made:
    // the cell is told so, and no person is asked.
    let asked = eventually("a person is asked, or the cell ends", || {
        let waits = !list(&get(daemon, "/v1/approvals"), "approvals").is_empty();
        let ended = get(daemon, &format!("/v1/sessions/s/cells/{busy}"))["state"] == "done";
        (waits || ended).then_some(waits)
    });
    if asked {
        assert_eq!(accept(daemon)["subject"]["name"], "note");
    }
    let result = outcome(daemon, busy);
    let said = text(&result, "stdout").to_owned();
    assert_eq!(result["status"], "success", "{result:#}\n{}", daemon.log());
    // It is unknown whether a call that was under way took effect, so it is not made again.
    let noted = notes(file);
    match said.trim_end() {
        "busy\nnoted called" => assert_eq!(noted, ["called"]),
        "busy\ninterrupted" => assert!(noted.len() <= 1, "{noted:?}"),
        other => panic!("{other:?}: {result:#}\n{}", daemon.log()),
    }
    assert_eq!(outcome(daemon, waiting)["status"], "success");

    let asks = || list(&get(daemon, "/v1/sessions/s/asks"), "asks").to_vec();
    let request = json!({"text": "go on", "approval": "ask"});
    eventually("the ask is taken", || {
        let begun = daemon.http("POST", "/v1/sessions/s/asks", request.to_string().as_bytes());
        assert!(begun.status == 202 || was_lost(begun.status, &begun.text()), "{}", begun.text());
        // If the answer was lost, it may be there all the same.
        (!asks().is_empty()).then_some(())
    });
    assert_eq!(accept(daemon)["subject"]["kind"], "cell");
    let end = eventually("the ask ends", || {
        let asks = asks();
        assert_eq!(asks.len(), 1, "{asks:#?}");
        (asks[0]["state"] == "done").then(|| asks[0]["end"].clone())
    });
    assert_eq!(
        (&end["outcome"], &end["answer"]),
        (&json!("answered"), &json!("done")),
        "{end}\n{}",
        daemon.log()
    );

    stops_takes_back_and_sends(daemon);
    runs_well(daemon, "last", LAST);
    let value = runs_well(daemon, "value", "x");
    assert_eq!(
        text(&value, "/result/repr"),
        "['first', 'busy', 'waiting', 'asked', 'last']",
        "{value:#}\n{}",
        daemon.log()
    );
    assert_eq!(sandbox(daemon), before, "it is another sandbox\n{}", daemon.log());
    let numbers = followed.join().expect("the stream came to its end");
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "the stream has no gaps");

    let (status, told) = ask(daemon, "POST", "/v1/sessions/s/reset", "reset", &Value::Null);
    assert_eq!(status, 200, "{told}\n{}", daemon.log());
    let value = runs_well(daemon, "empty", "'x' in globals()");
    assert_eq!(text(&value, "/result/repr"), "False", "{value:#}\n{}", daemon.log());
    assert_eq!(sandbox(daemon), before, "a reset keeps the sandbox\n{}", daemon.log());
    replays(daemon);
}

/// A replay ends, or is begun again; either way the variables are those of the cells.
fn replays(daemon: &Daemon) {
    runs_well(daemon, "made", "y = list('a')");
    runs_well(daemon, "grown", "y.append('b')");
    eventually("the replay ends", || {
        let answer = daemon.http("POST", "/v1/sessions/s/replay", b"{}");
        let (status, body) = (answer.status, answer.text());
        // After an answer that was lost, the replay may still go on.
        assert!(status == 200 || status == 409 || was_lost(status, &body), "{body}\n{}", daemon.log());
        (status == 200).then_some(())
    });
    let value = runs_well(daemon, "replayed", "y");
    assert_eq!(text(&value, "/result/repr"), "['a', 'b']", "{value:#}\n{}", daemon.log());
}

/// An interrupt, an undo, a freeze and a file: none of them is done twice or half, and `x` is as before.
fn stops_takes_back_and_sends(daemon: &Daemon) {
    let endless = queue(daemon, "endless", "while True: time.sleep(0.01)");
    let interrupted = eventually("the cell is interrupted", || {
        let (status, told) = ask(daemon, "POST", "/v1/sessions/s/interrupt", "", &Value::Null);
        assert_eq!(status, 200, "{told}\n{}", daemon.log());
        let view = get(daemon, &format!("/v1/sessions/s/cells/{endless}"));
        (view["state"] == "done").then(|| view["result"].clone())
    });
    assert_eq!(interrupted["status"], "interrupted", "{interrupted:#}\n{}", daemon.log());

    runs_well(daemon, "wrong", "x.append('wrong')");
    let (status, undone) = ask(daemon, "POST", "/v1/sessions/s/undo", "undo", &json!({"cells": 1}));
    assert_eq!(status, 200, "{undone}\n{}", daemon.log());

    for (request, state) in [("freeze", "frozen"), ("thaw", "idle")] {
        eventually(state, || {
            let (status, told) = ask(daemon, "POST", &format!("/v1/sessions/s/{request}"), "", &Value::Null);
            assert!(status == 200 || status == 409, "{told}\n{}", daemon.log());
            (get(daemon, "/v1/sessions/s")["state"] == state).then_some(())
        });
    }

    let (status, told) = ask(daemon, "PUT", "/v1/sessions/s/files/sent", "", &json!("bytes"));
    assert_eq!(status, 200, "{told}\n{}", daemon.log());
    let read = runs_well(daemon, "sent", "open('/workspace/sent').read()");
    assert_eq!(text(&read, "/result/repr"), "'\"bytes\"'", "{read:#}\n{}", daemon.log());
}

/// Lets a kind die at some of its messages, until a run is over before it did.
fn dies_at_every_message(kind: &str, stride: usize, least: usize) {
    in_a_jail(None, || dies_at_messages(kind, stride, least));
    if is_long_run() && crate::support::engine() {
        dies_at_messages(kind, stride, least);
    }
}

fn dies_at_messages(kind: &str, stride: usize, least: usize) {
    let mut deaths = 0;
    for place in (1..).step_by(if is_long_run() { 1 } else { stride }) {
        let (_folder, file) = notebook();
        let tool = noting_tool("note", &file);
        let config = format!(
            "[agent]\napproval = [\"note\"]\n{tool}\n[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n"
        );
        let canary = Canary::set();
        let at = format!("{kind}:{place}");
        let began = Instant::now();
        let daemon = Daemon::with_environment(&config, &[("BELLJAR_PANIC_AT", &at)]);
        play(&daemon, &file);
        let died = daemon.stderr().contains("was to be the last one");
        println!(
            "{at}: {} after {:.1} s",
            if died { "died" } else { "lived" },
            began.elapsed().as_secs_f64()
        );
        if !died {
            break;
        }
        invariants::assert_hold_after_panics(&daemon, &[ROOT], &canary);
        let (status, gone) = ask(&daemon, "DELETE", "/v1/sessions/s?wait=true", "", &Value::Null);
        assert!(status == 200 || status == 404, "{gone}");
        deaths += 1;
    }
    assert!(deaths >= least, "it died {deaths} times only");
}

#[test]
fn a_session_that_panics_goes_on() {
    dies_at_every_message("session", 7, 6);
}

#[test]
fn an_executor_that_panics_is_followed_by_one_that_attaches_to_its_sandbox() {
    dies_at_every_message("executor", 7, 5);
}

/// The executor dies over the request before the kernel has it, or over the kernel's answer. The kernel tells the next
/// executor what it has done, and the caller, who waits all the time, hears it from there.
#[test]
fn an_undo_over_which_the_executor_panics_is_answered_with_its_outcome() {
    in_a_jail(None, || {
        for (at, is_undone) in [("undo:1", false), ("undo:2", true)] {
            let daemon = Daemon::with_environment("", &[("BELLJAR_PANIC_AT", at)]);
            daemon.session("s", json!({}));
            runs_well(&daemon, "first", "x = [1]");
            runs_well(&daemon, "second", "x.append(2); open('file', 'w').close()");
            let answer = daemon.http("POST", "/v1/sessions/s/undo", br#"{"cells": 1}"#);
            let told = answer.json();
            if is_undone {
                assert_eq!(answer.status, 200, "{told}\n{}", daemon.log());
                assert_eq!(
                    (&told["state_of"], &told["files_changed"]),
                    (&json!(1), &json!(["file"])),
                    "{told}"
                );
            } else {
                assert_eq!((answer.status, &told["code"]), (500, &json!("internal")), "{told}");
                assert!(text(&told, "message").contains("no cell was undone"), "{told}");
            }
            assert!(daemon.stderr().contains("was to be the last one"), "{}", daemon.stderr());
            let value = runs_well(&daemon, "value", "x");
            let left = if is_undone { "[1]" } else { "[1, 2]" };
            assert_eq!(text(&value, "/result/repr"), left, "{value:#}\n{}", daemon.log());
            let undone = daemon.events("s", 0).iter().filter(|event| event["type"] == "undone").count();
            assert_eq!(undone, usize::from(is_undone), "{at}");
        }
    });
}

#[test]
fn a_bridge_whose_task_panics_is_connected_again() {
    dies_at_every_message("bridge", 3, 3);
}

#[test]
fn asks_that_panic_go_on() {
    dies_at_every_message("asks", 5, 4);
}

#[test]
fn a_model_whose_actor_panics_is_asked_again() {
    dies_at_every_message("llm", 1, 2);
}

#[test]
fn a_writer_of_the_journal_that_panics_writes_what_it_had() {
    dies_at_every_message("writer", 7, 4);
}

/// The reaper dies at its first looks; sandboxes without a session go all the same, and those of sessions stay.
#[test]
fn a_reaper_that_panics_looks_again() {
    if !crate::support::engine() {
        return;
    }
    let looks = if is_long_run() { MOST_LOOKS } else { FIRST_LOOKS };
    let lived = (1..=looks).find(|look| !a_reaper_dies_at(*look));
    assert_eq!(
        lived.is_some(),
        is_long_run(),
        "a run has at least {FIRST_LOOKS} looks, and fewer than {MOST_LOOKS}"
    );
}

/// Whether the reaper died at that look, before the run was over. The first ones are waited for.
fn a_reaper_dies_at(look: u32) -> bool {
    let at = format!("reaper:{look}");
    let daemon = Daemon::with_environment("", &[("BELLJAR_PANIC_AT", &at), LOOKS_OFTEN]);
    daemon.session("s", json!({"image": "belljar/base"}));
    runs_well(&daemon, "first", "x = 'kept'");
    let instance = std::fs::read_to_string(daemon.home().join("instance")).expect("an id");
    let label = format!("belljar.instance={}", instance.trim());
    let stray = crate::support::docker(["create", "--label", &label, "belljar/base"]);
    eventually("what is nobody's is gone", || {
        (!crate::support::docker(["ps", "-aq", "--no-trunc"]).contains(&stray)).then_some(())
    });
    let has_died = || daemon.stderr().contains("was to be the last one");
    if look <= FIRST_LOOKS {
        eventually("it has died", || has_died().then_some(()));
    }
    assert_eq!(text(&runs_well(&daemon, "after", "x"), "/result/repr"), "'kept'");
    has_died()
}

/// A session with a variable, parked by three deaths in a row.
fn parked() -> (Daemon, Value) {
    let daemon = Daemon::with_environment("", &[("BELLJAR_PANIC_AT", "session:25*3"), LOOKS_OFTEN]);
    let (status, made) = ask(&daemon, "POST", "/v1/sessions", "new", &json!({"name": "s"}));
    assert_eq!(status, 201, "{made}\n{}", daemon.log());
    // It waits with one message: as many as it takes to look for the end again and again would park the session first.
    let first = json!({"code": "x = 'kept'", "timeout_s": 60});
    let (status, first) = ask(&daemon, "POST", "/v1/sessions/s/cells?wait=true", "first", &first);
    assert_eq!((status, &first["status"]), (200, &json!("success")), "{first}\n{}", daemon.log());
    let receipt = get(&daemon, "/v1/sessions/s/receipt");
    eventually("it is parked", || (get(&daemon, "/v1/sessions/s")["state"] == "parked").then_some(()));
    (daemon, receipt)
}

#[test]
fn a_session_that_dies_too_often_is_parked_with_its_sandbox() {
    in_a_jail(None, || {
        let (daemon, receipt) = parked();
        let refused = daemon.http("POST", "/v1/sessions/s/cells?wait=true", br#"{"code": "x"}"#);
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (500, &json!("internal")),
            "{}",
            refused.text()
        );
        let told = refused.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(told.contains("parked") && told.contains("sandbox is kept"), "{told}");
        let listed = get(&daemon, "/v1/sessions");
        assert_eq!(listed["sessions"][0]["state"], "parked", "{listed}");
        assert!(!daemon.events("s", 0).is_empty(), "its events can be read");
        // Longer than the reaper takes to find what has no owner.
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(daemon.containers().len(), 1, "its sandbox is there\n{}", daemon.log());
        daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
        assert_eq!(get(&daemon, "/v1/sessions/s/receipt")["container"], receipt["container"]);
        let result = runs_well(&daemon, "after", "'x' in globals()");
        assert_eq!(text(&result, "/result/repr"), "False", "{result:#}");
        daemon.http("DELETE", "/v1/sessions/s", b"").expect_status(200);
        eventually("its sandbox is gone", || daemon.containers().is_empty().then_some(()));
    });
}

#[test]
fn a_parked_session_can_be_removed() {
    in_a_jail(None, || {
        let (daemon, _) = parked();
        daemon.cli(["ps"]).ok();
        daemon.cli(["rm", "s"]).ok();
        eventually("its sandbox is gone", || daemon.containers().is_empty().then_some(()));
        assert_eq!(daemon.http("GET", "/v1/sessions/s", b"").status, 404);
        let (status, again) = ask(&daemon, "POST", "/v1/sessions", "again", &json!({"name": "s"}));
        assert_eq!(status, 201, "its name is free: {again}");
    });
}

#[test]
fn a_parked_session_is_the_next_daemons_with_its_variables() {
    in_a_jail(None, || {
        let (mut daemon, receipt) = parked();
        daemon.signal("TERM");
        assert_eq!(daemon.wait(), Some(0), "{}", daemon.stderr());
        daemon.set_environment(&[]);
        daemon.restart();
        let result = runs_well(&daemon, "after", "x");
        assert_eq!(text(&result, "/result/repr"), "'kept'", "{result:#}");
        assert_eq!(get(&daemon, "/v1/sessions/s/receipt")["container"], receipt["container"]);
    });
}

#[test]
fn a_writer_that_panics_too_often_ends_the_daemon_and_the_next_one_goes_on() {
    in_a_jail(None, || {
        // The first may be on the thread of a caller, and three of the writer's own are too many.
        let mut daemon = Daemon::with_environment("", &[("BELLJAR_PANIC_AT", "writer:20*4")]);
        daemon.session("s", json!({}));
        let body = json!({"code": "x = globals().get('x', 0) + 1"}).to_string();
        let began = Instant::now();
        while !daemon.has_ended() {
            assert!(began.elapsed() < SOON, "it goes on without a journal\n{}", daemon.log());
            // A client that waits is answered or hung up on at once.
            if let Ok(mut socket) = daemon.connect() {
                socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
                let head = "POST /v1/sessions/s/cells?wait=true HTTP/1.1\r\nHost: b\r\nConnection: close";
                let _ = write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let mut line = String::new();
                let read = BufReader::new(socket).read_line(&mut line);
                assert!(
                    !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
                    "nobody answers\n{}",
                    daemon.log()
                );
            }
        }
        assert_eq!(daemon.wait(), Some(125), "{}", daemon.stderr());
        daemon.set_environment(&[]);
        daemon.restart();
        runs_well(&daemon, "after", "assert x >= 1, x");
    });
}

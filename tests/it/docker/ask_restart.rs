//! Asks over the death of the daemon: they go on or end with a reason, and nothing happens twice.

use serde_json::{Value, json};

use super::asking::{
    answer, approval, approvals, begin, calls, conversation, decide, decide_next, end_of, events_of,
    notebook, notes, noting_tool, runs, says, scripted, served, told, wait_for_state,
};
use super::helpers::{
    S, end, gapless, go, list, number, outcome, queue, restart_by, session_with, text, with_go, workspace,
};
use crate::model_server::{Fault, ModelServer, Reply};
use crate::support::{Daemon, eventually};

#[test]
fn an_approval_of_a_cell_is_decided_after_a_restart() {
    let script = [runs("open('ran', 'a').write('x')"), says("done"), runs("2"), says("again")].concat();
    for signal in ["KILL", "TERM"] {
        let Some(mut daemon) = scripted("", &script) else { return };
        let ask = begin(&daemon, json!({"text": "do it", "approval": "ask"}));
        let before = approval(&daemon);
        for _ in 0..2 {
            restart_by(&mut daemon, signal);
            assert_eq!(approval(&daemon), before, "{signal}");
        }
        wait_for_state(&daemon, ask, "waiting");
        decide(&daemon, &before, json!({"accept": {}})).expect_status(200);
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
        // What was decided is no longer there, and no later one has its id.
        assert_eq!(decide(&daemon, &before, json!({"accept": {}})).status, 404);
        restart_by(&mut daemon, signal);
        let ask = begin(&daemon, json!({"text": "and again", "approval": "ask"}));
        assert_ne!(decide_next(&daemon, json!({"accept": {}}))["id"], before["id"]);
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "again");
        assert_eq!(std::fs::read_to_string(workspace(&daemon).join("ran")).expect("it ran"), "x");
        assert_eq!(events_of(&daemon, "cell_queued").len(), 2);
        gapless(&daemon, S);
        daemon.assert_sound();
    }
}

/// The last result of an expression belongs to its ask, as long as that lasts.
#[test]
fn the_last_result_of_an_ask_survives_a_restart_and_the_next_ask_has_none() {
    let compute = |code: &str| calls("compute_with_python", &json!({"code": code, "description": "d"}));
    let note = calls("note", &json!({"line": "once"}));
    let script = [
        conversation("first", &[compute("'ab' + 'c'"), note, compute("last_result * 2"), says("done")]),
        conversation("second", &[compute("last_result"), says("again")]),
    ]
    .concat();
    let (_folder, file) = notebook();
    let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let ask = begin(&daemon, json!({"text": "first", "approval": {"tools": ["note"]}}));
    wait_for_state(&daemon, ask, "waiting");
    restart_by(&mut daemon, "KILL");
    decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
    assert_eq!(told(&daemon)[2], "abcabc");
    assert_eq!(answer(&daemon, json!({"text": "second", "fresh": true})), "again");
    assert!(told(&daemon)[0].starts_with("PythonError: NameError"), "{:?}", told(&daemon));
}

#[test]
fn an_approval_of_a_call_in_a_cell_is_decided_after_a_restart() {
    for signal in ["KILL", "TERM"] {
        let (_folder, file) = notebook();
        let script = [runs("print(note(line='once'))"), says("done")].concat();
        let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
        let ask = begin(&daemon, json!({"text": "note it", "approval": {"tools": ["note"]}}));
        let before = approval(&daemon);
        assert_eq!(text(&before, "/subject/name"), "note");
        restart_by(&mut daemon, signal);
        assert_eq!(approval(&daemon), before, "{signal}");
        // The sandbox may not be attached yet; the decision counts nevertheless.
        decide(&daemon, &before, json!({"accept": {}})).expect_status(200);
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
        assert!(told(&daemon)[0].contains("noted once"), "{:?}", told(&daemon));
        assert_eq!(notes(&file), ["once"]);
        assert_eq!(events_of(&daemon, "approval_wanted").len(), 1);
        assert_eq!(events_of(&daemon, "cell_finished").len(), 1);
        gapless(&daemon, S);
        daemon.assert_sound();
    }
}

#[test]
fn a_call_in_a_cell_of_a_client_needs_its_approval_after_a_restart_too() {
    let (_folder, file) = notebook();
    let config = format!("[agent]\napproval = [\"note\"]\n{}", noting_tool("note", &file));
    let Some(mut daemon) = session_with(&config, json!({"image": "belljar/base"})) else { return };
    let code = "try:\n    note(line='a')\nexcept ToolError as error:\n    print(error.code, error)";
    let cells = [queue(&daemon, &json!({ "code": code })), queue(&daemon, &json!({ "code": code }))];
    let before = approval(&daemon);
    restart_by(&mut daemon, "KILL");
    eventually("it is attached", || (!events_of(&daemon, "sandbox_attached").is_empty()).then_some(()));
    assert_eq!(approval(&daemon), before);
    decide(&daemon, &before, json!({"reject": {"reason": "not today"}})).expect_status(200);
    let result = outcome(&daemon, cells[0]);
    assert!(text(&result, "stdout").starts_with("rejected") && text(&result, "stdout").contains("not today"));
    decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&outcome(&daemon, cells[1]), "stdout"), "");
    assert_eq!(notes(&file), ["a"]);
    daemon.assert_sound();
}

/// Writes events that a daemon got into its journal right before it died.
fn write_last(daemon: &Daemon, events: &[Value]) {
    let journal = rusqlite::Connection::open(daemon.home().join("journal.db")).expect("a journal");
    for event in events {
        let seq: i64 =
            journal.query_row("SELECT max(seq) + 1 FROM events", [], |row| row.get(0)).expect("events");
        let mut event = event.clone();
        (event["seq"], event["at"]) = (json!(seq), json!("2026-01-01T00:00:00.000Z"));
        let copied = "INSERT INTO events (session, seq, at, name, json) \
                      SELECT session, ?1, at, ?2, ?3 FROM events WHERE seq = ?1 - 1";
        let values = (seq, text(&event, "type"), event.to_string());
        assert_eq!(journal.execute(copied, values).expect("it is written"), 1);
    }
}

/// The daemon may die between the decision and the call: then nothing of the call has happened. Once the call has begun,
/// it is not known whether it took effect.
#[test]
fn a_call_that_was_allowed_is_made_after_a_restart_unless_it_was_begun() {
    let not_known = "it is not known whether it took effect";
    for (decision, begun, said, noted) in [
        (json!({"accept": {}}), false, "noted once", 1),
        (json!({"accept": {}}), true, not_known, 0),
        (json!({"reject": {"reason": "not today"}}), false, "not today", 0),
    ] {
        let (_folder, file) = notebook();
        let cell = "try:\n    print(note(line='once'))\nexcept ToolError as error:\n    print(error.message)";
        let script = [runs(cell), says("done")].concat();
        let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
        let ask = begin(&daemon, json!({"text": "note it", "approval": {"tools": ["note"]}}));
        let wanted = approval(&daemon);
        end(&mut daemon, "KILL");
        let decided = json!({"type": "approval_decided", "id": wanted["id"], "decision": decision, "by": 0});
        let call: u64 = text(&wanted, "call").parse().expect("a number");
        let made = json!({"type": "tool_begun", "cell": wanted["cell"], "call": call});
        write_last(&daemon, &[vec![decided], if begun { vec![made] } else { Vec::new() }].concat());
        daemon.restart();
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
        assert!(told(&daemon)[0].contains(said), "{:?}", told(&daemon));
        assert_eq!(notes(&file).len(), noted, "{decision} {begun}");
        assert_eq!(events_of(&daemon, "approval_wanted").len(), 1);
        gapless(&daemon, S);
        daemon.assert_sound();
    }
}

/// Whether the cell ends before the daemon does or while there is none: no person is asked for its call.
#[test]
fn a_call_of_a_cell_that_has_ended_is_neither_asked_for_again_nor_made() {
    let call = "import os, threading\nthreading.Thread(target=lambda: note(line='late')).start()\n";
    for (ending, status) in [("", "success"), ("os._exit(3)", "crashed")] {
        for ends_first in [true, false] {
            let (_folder, file) = notebook();
            let cell = with_go(&format!("{call}wait_for_go()\n{ending}"));
            let script = [runs(&cell), says("done")].concat();
            let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
            let ask = begin(&daemon, json!({"text": "note it", "approval": {"tools": ["note"]}}));
            let wanted = approval(&daemon);
            if ends_first {
                go(&daemon);
                end_of(&daemon, ask);
                restart_by(&mut daemon, "KILL");
            } else {
                let signal = workspace(&daemon).join("go");
                end(&mut daemon, "KILL");
                std::fs::write(signal, "").expect("a file");
                daemon.restart();
            }
            assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
            let result = outcome(&daemon, number(&wanted, "/cell"));
            assert_eq!(text(&result, "status"), status);
            // What a cell does after the restart comes after all that the restart did.
            assert_eq!(text(&outcome(&daemon, queue(&daemon, &json!({"code": "1"}))), "status"), "success");
            eventually("nothing waits", || approvals(&daemon).is_empty().then_some(()));
            let of_call = |name| events_of(&daemon, name).len();
            assert_eq!((of_call("approval_wanted"), of_call("approval_decided")), (1, 1), "{status}");
            let answered = events_of(&daemon, "tool_answered");
            let codes: Vec<&str> =
                answered.iter().map(|event| text(event, "/outcome/failure/code")).collect();
            assert_eq!(codes, ["cancelled"], "{status} {ends_first}");
            assert_eq!(notes(&file), Vec::<String>::new());
            gapless(&daemon, S);
            daemon.assert_sound();
        }
    }
}

/// The daemon dies at one commit of an approved call after the other.
#[test]
fn a_death_at_any_commit_of_an_approved_call_makes_it_once_at_most() {
    for place in ["1:after", "2:before", "2:after", "3:before", "4:before"] {
        let (_folder, file) = notebook();
        let script = [runs("print(note(line='once'))"), says("done")].concat();
        let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
        let ask = begin(&daemon, json!({"text": "note it", "approval": {"tools": ["note"]}}));
        let wanted = approval(&daemon);
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", place)]);
        if daemon.try_restart() {
            daemon.cli(["approve", text(&wanted, "id"), "--accept"]);
            daemon.cli(["wait", "-s", S, "--ask", &ask.to_string()]);
        }
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        if !approvals(&daemon).is_empty() {
            decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
        }
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done", "{place}");
        let said = told(&daemon);
        let unknown = said[0].contains("it is not known whether it took effect");
        assert!(unknown || notes(&file) == ["once"], "{place}: {said:?} {:?}", notes(&file));
        assert!(notes(&file).len() <= 1, "{place}: {:?}", notes(&file));
        assert_eq!(events_of(&daemon, "approval_wanted").len(), 1, "{place}");
        gapless(&daemon, S);
    }
}

/// The cell that asked is gone, so the model is not asked for it again.
#[test]
fn an_ask_within_a_cell_ends_with_the_daemon() {
    let cell = "try:\n    ask('the inner one')\nexcept ToolError as error:\n    print('broke:', error.code)";
    let call =
        Reply::call("execute_python_code", json!({"python_code_snippet": cell, "tool_call_purpose": "p"}));
    let server = ModelServer::start([
        call.into(),
        Fault::StallInStream.into(),
        Reply::text("outer done").into(),
        Reply::text("never").into(),
    ]);
    let config = served(&server, "idle = \"60s\"").replacen("idle = \"1s\"\n", "", 1);
    let Some(mut daemon) = session_with(&config, json!({"image": "belljar/base"})) else { return };
    let ask = begin(&daemon, json!({"text": "go"}));
    eventually("the inner one is asked", || (server.received().len() == 2).then_some(()));
    restart_by(&mut daemon, "KILL");
    assert_eq!(text(&end_of(&daemon, ask), "answer"), "outer done");
    assert!(told(&daemon)[0].contains("broke: interrupted"), "{:?}", told(&daemon));
    eventually("the session of the inner one goes", || {
        let sessions = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
        (list(&sessions, "sessions").len() == 1).then_some(())
    });
    assert_eq!(server.received().len(), 3);
    daemon.assert_sound();
}

#[test]
fn a_model_that_was_speaking_is_asked_again() {
    let server = ModelServer::start([Fault::StallInStream.into(), Reply::text("whole").into()]);
    let Some(mut daemon) =
        session_with(&served(&server, "").replace("\"1s\"", "\"60s\""), json!({"image": "belljar/base"}))
    else {
        return;
    };
    let ask = begin(&daemon, json!({"text": "say something"}));
    eventually("it speaks", || (!events_of(&daemon, "model_text").is_empty()).then_some(()));
    restart_by(&mut daemon, "KILL");
    let end = end_of(&daemon, ask);
    assert_eq!((text(&end, "answer"), number(&end, "/steps")), ("whole", 1));
    let received = server.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].body, received[1].body, "the request is another one");
    assert!(text(&events_of(&daemon, "ask_noted")[0], "note").contains("asked again"));
    assert_eq!(events_of(&daemon, "ask_finished").len(), 1);
    gapless(&daemon, S);
    daemon.assert_sound();
}

#[test]
fn a_tool_that_ran_is_not_run_again() {
    let (_folder, file) = notebook();
    let in_cell =
        "try:\n    note(line='from code', wait=3)\nexcept ToolError as error:\n    print(error.code)";
    let script = [
        conversation("itself", &[calls("note", &json!({"line": "itself", "wait": 3})), says("done")]),
        conversation("code", &[runs(in_cell), says("done")]),
    ]
    .concat();
    for (text_of_ask, line, said) in
        [("itself", "itself", "whether it had its effect is not known"), ("code", "from code", "interrupted")]
    {
        let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
        let _ = std::fs::remove_file(&file);
        let ask = begin(&daemon, json!({"text": text_of_ask}));
        eventually("the tool runs", || (notes(&file) == [line]).then_some(()));
        restart_by(&mut daemon, "KILL");
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
        assert!(told(&daemon)[0].contains(said), "{:?}", told(&daemon));
        assert_eq!(notes(&file), [line]);
        gapless(&daemon, S);
        daemon.assert_sound();
    }
}

#[test]
fn a_program_may_end_when_the_daemon_is_told_to_stop() {
    let (_folder, file) = notebook();
    let script = [
        conversation("itself", &[calls("note", &json!({"line": "itself", "wait": 1})), says("done")]),
        conversation(
            "code",
            &[runs("said = note(line='from code', wait=1)"), runs("print(said)"), says("done")],
        ),
    ]
    .concat();
    for (text_of_ask, line) in [("itself", "itself"), ("code", "from code")] {
        let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
        let _ = std::fs::remove_file(&file);
        let ask = begin(&daemon, json!({"text": text_of_ask}));
        eventually("the tool runs", || (notes(&file) == [line]).then_some(()));
        daemon.cli(["daemon", "stop"]).ok();
        assert_eq!(daemon.wait(), Some(0), "{}", daemon.stderr());
        daemon.restart();
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
        let noted = format!("noted {line}");
        assert!(told(&daemon).iter().any(|told| told.contains(&noted)), "{:?}", told(&daemon));
        assert_eq!(notes(&file), [line]);
        gapless(&daemon, S);
        daemon.assert_sound();
    }
}

#[test]
fn a_program_that_does_not_end_in_time_is_killed_with_the_daemon() {
    let (_folder, file) = notebook();
    let script = [calls("note", &json!({"line": "$PID", "wait": 1_000})), says("done")].concat();
    let tool = noting_tool("note", &file)
        .replace("json.load(sys.stdin)", "json.load(sys.stdin); import os")
        .replace("wanted['line']", "str(os.getpid())");
    let Some(mut daemon) = scripted(&tool, &script) else { return };
    let ask = begin(&daemon, json!({"text": "go"}));
    let pid = eventually("the tool runs", || notes(&file).pop());
    restart_by(&mut daemon, "TERM");
    assert!(!std::path::Path::new("/proc").join(&pid).exists(), "{pid} lives on");
    assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
    assert!(told(&daemon)[0].contains("whether it had its effect is not known"), "{:?}", told(&daemon));
    assert_eq!(notes(&file), [pid]);
    daemon.assert_sound();
}

/// What was done stays done: with other tools or settings the same replies may mean something else.
#[test]
fn an_ask_that_would_go_another_way_after_a_restart_ends_and_nothing_is_called() {
    let (_folder, file) = notebook();
    let with = |line: &str| json!({"line": line, "tool_call_purpose": "p"});
    let fits = |name: &str| noting_tool(name, &file);
    let unfit = |name: &str| fits(name).replace("required = [\"line\"]", "required = [\"wait\"]");
    let tools = [fits("note"), unfit("later")].concat();
    for changed in [
        // A call that could not be made could be now.
        [fits("note"), fits("later")].concat(),
        // One that was made does not fit any more, so that the model would be told that it was not.
        [unfit("note"), unfit("later")].concat(),
    ] {
        let _ = std::fs::remove_file(&file);
        let reply = Reply::call("note", with("once")).and_call("later", with("never"));
        let server =
            ModelServer::start([reply.into(), Fault::StallInStream.into(), Reply::text("never").into()]);
        let model = served(&server, "").replace("\"1s\"", "\"60s\"");
        let Some(mut daemon) = session_with(&format!("{tools}{model}"), json!({"image": "belljar/base"}))
        else {
            return;
        };
        let ask = begin(&daemon, json!({"text": "note it"}));
        eventually("it is asked again", || (server.received().len() == 2).then_some(()));
        end(&mut daemon, "KILL");
        std::fs::write(daemon.home().join("config.toml"), format!("{changed}{model}"))
            .expect("a configuration");
        daemon.restart();
        let end = end_of(&daemon, ask);
        assert_eq!(text(&end, "outcome"), "cancelled");
        assert!(text(&end, "message").contains("its tools or the configuration have changed"), "{end}");
        assert_eq!((notes(&file), server.received().len()), (vec!["once".to_owned()], 2));
        gapless(&daemon, S);
        daemon.assert_sound();
    }
}

#[test]
fn a_cell_of_an_ask_goes_on_and_so_does_the_conversation() {
    let cell = with_go(
        "print('busy', flush=True)\nwait_for_go()\nran = globals().get('ran', 0) + 1\nprint('ran', ran)",
    );
    let script =
        [runs(&cell), says("first"), runs("print('still', ran, given)"), says("second"), says("third")]
            .concat();
    let Some(mut daemon) = scripted("", &script) else { return };
    let first = begin(&daemon, json!({"text": "one", "context": {"given": [1, 2]}}));
    let queued = begin(&daemon, json!({"text": "two"}));
    super::helpers::wait_for_line(&daemon, 1, "busy");
    restart_by(&mut daemon, "KILL");
    assert_eq!(super::asking::view(&daemon, queued)["state"], "queued");
    go(&daemon);
    assert_eq!(text(&end_of(&daemon, first), "answer"), "first");
    assert_eq!(text(&end_of(&daemon, queued), "answer"), "second");
    let told = told(&daemon);
    assert!(told[0].contains("ran 1") && told[1].contains("still 1 [1, 2]"), "{told:?}");
    // A daemon that finds only ended asks continues their conversation.
    restart_by(&mut daemon, "KILL");
    assert_eq!(answer(&daemon, json!({"text": "three"})), "third");
    let history = daemon.http("GET", "/v1/sessions/s/history", b"").expect_status(200);
    let said: Vec<&str> = list(&history, "messages")
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| text(message, "content"))
        .collect();
    assert_eq!(said, ["one", "two", "three"]);
    assert!(approvals(&daemon).is_empty());
    gapless(&daemon, S);
    daemon.assert_sound();
}

/// Between the reply that ends an ask and the end of it, nothing more has to happen.
#[test]
fn an_end_that_was_not_written_is_written_by_the_next_daemon() {
    let Some(mut daemon) = scripted("", &[says("first"), says("second")].concat()) else { return };
    assert_eq!(answer(&daemon, json!({"text": "one"})), "first");
    end(&mut daemon, "TERM");
    let journal = rusqlite::Connection::open(daemon.home().join("journal.db")).expect("a journal");
    let cut = "DELETE FROM events WHERE seq >= (SELECT max(seq) FROM events WHERE name = 'ask_finished')";
    assert_eq!(journal.execute(cut, []).expect("it is cut"), 1);
    drop(journal);
    daemon.restart();
    assert_eq!(text(&end_of(&daemon, 1), "answer"), "first");
    assert_eq!(answer(&daemon, json!({"text": "two"})), "second");
    gapless(&daemon, S);
    daemon.assert_sound();
}

/// The daemon dies at one commit of an ask after the other, just before or just after it.
#[test]
fn a_death_at_any_commit_of_an_ask_leaves_one_end_and_no_second_run() {
    let (_folder, file) = notebook();
    let script = [calls("note", &json!({"line": "x"})), runs("print('ran')"), says("done")].concat();
    let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let mut died = 0;
    for n in 3..=8 {
        let place = format!("{n}:{}", if n % 2 == 0 { "before" } else { "after" });
        let _ = std::fs::remove_file(&file);
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_CRASH_AT", &place)]);
        if daemon.try_restart() {
            let asked = daemon.cli(["ask", "-s", S, "--fresh", "--detach", "do it"]);
            daemon.cli(["wait", "-s", S, "--ask", asked.stdout.trim()]);
        }
        died += usize::from(daemon.has_ended());
        daemon.kill();
        daemon.set_environment(&[]);
        daemon.restart();
        eventually("every ask has ended", || {
            let asks = daemon.http("GET", "/v1/sessions/s/asks", b"");
            let asks = (asks.status == 200).then(|| asks.json())?;
            list(&asks, "asks").iter().all(|ask| ask["state"] == "done").then_some(())
        });
        assert!(notes(&file).len() <= 1, "{place}: {:?}", notes(&file));
        let events = gapless(&daemon, S);
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!(of("ask_started"), of("ask_finished"), "{place}");
        assert_eq!(of("cell_queued"), of("cell_finished"), "{place}");
    }
    // Several events may go into one commit, so that there are fewer of them.
    assert!(died >= 3, "the daemon died {died} times only");
    daemon.assert_sound();
}

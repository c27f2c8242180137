//! What a person is asked, and what follows from the answer.

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::asking::{
    answer, approval, approvals, ask, begin, calls, conversation, decide, decide_next, end_of, events_of,
    notebook, notes, noting_tool, runs, says, scripted, told, wait_for_state,
};
use super::helpers::{
    S, assert_ended, end, list, outcome, post, queue, session_with, text, with_go, workspace,
};
use super::repl::Step::{Keys, Shows};
use super::repl::play;
use crate::support::{Daemon, User, eventually, http_as};

const OWNER: User = User { uid: 61_001, gid: 61_001, group: None };
const STRANGER: User = User { uid: 61_002, gid: 61_002, group: None };

/// Starts an ask of its own conversation, before every cell of which a person is asked.
fn careful(daemon: &Daemon, text: &str) -> u64 {
    begin(daemon, json!({"text": text, "approval": "ask", "fresh": true}))
}

#[test]
fn a_person_may_accept_change_answer_suggest_or_refuse() {
    let replies = [runs("x = 'as written'; print(x)"), says("done")];
    let script: String = ["accept", "change", "answer", "suggest", "refuse"]
        .map(|first| conversation(first, &replies))
        .concat();
    let Some(daemon) = scripted("", &script) else { return };

    let number = careful(&daemon, "accept");
    wait_for_state(&daemon, number, "waiting");
    let wanted = approval(&daemon);
    assert_eq!(
        wanted["subject"],
        json!({"kind": "cell", "code": "x = 'as written'; print(x)", "timeout_s": 30.0, "purpose": "the test wants it"})
    );
    assert_eq!((text(&wanted, "session_name"), &wanted["ask"]), (S, &json!(number)));
    assert!(events_of(&daemon, "cell_queued").is_empty(), "it ran before anybody was asked");
    // A person uses the command line.
    let listed = daemon.cli(["approve"]).ok().stdout;
    assert!(listed.contains(text(&wanted, "id")) && listed.contains("as written"), "{listed}");
    daemon.cli(["approve", text(&wanted, "id"), "--accept"]).ok();
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert!(told(&daemon)[0].contains("as written"));
    assert_eq!(decide(&daemon, &wanted, json!({"accept": {}})).status, 404);

    let number = careful(&daemon, "change");
    decide_next(&daemon, json!({"accept": {"code": "print('as changed')"}}));
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    let said = &told(&daemon)[0];
    assert!(said.contains("A person changed the code") && said.contains("as changed\n"), "{said}");
    assert_eq!(text(&events_of(&daemon, "cell_queued")[1], "code"), "print('as changed')");

    for (first, decision, words) in [
        ("answer", json!({"respond": {"text": "there is no need"}}), "there is no need"),
        ("suggest", json!({"edit": {"text": "print('rather')"}}), "print('rather')"),
    ] {
        let number = careful(&daemon, first);
        decide_next(&daemon, decision);
        assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
        let said = &told(&daemon)[0];
        assert!(said.starts_with("It was not run") && said.contains(words), "{said}");
    }

    let number = careful(&daemon, "refuse");
    decide_next(&daemon, json!({"reject": {"reason": "too dear"}}));
    let end = end_of(&daemon, number);
    assert_eq!(text(&end, "outcome"), "rejected");
    assert!(text(&end, "message").contains("too dear"), "{end:#}");
    assert_eq!(events_of(&daemon, "cell_queued").len(), 2, "what was not accepted ran");

    // Nonsense is refused, and changes nothing.
    let number = careful(&daemon, "accept");
    let wanted = approval(&daemon);
    for nonsense in [json!({}), json!({"accept": {"cod": "x"}}), json!("accept it"), json!({"respond": {}})] {
        assert_eq!(decide(&daemon, &wanted, nonsense).status, 400);
    }
    assert_eq!(approval(&daemon), wanted);
    // A cancelled ask waits for no person.
    daemon.http("POST", &format!("/v1/sessions/s/asks/{number}/cancel"), b"").expect_status(200);
    assert_eq!(text(&end_of(&daemon, number), "outcome"), "cancelled");
    assert!(approvals(&daemon).is_empty());
    assert_eq!(decide(&daemon, &wanted, json!({"accept": {}})).status, 404);
    daemon.assert_sound();
}

#[test]
fn a_person_decides_in_the_terminal_of_the_ask() {
    let slowly = format!("{}delay_ms = 1500\n", says("All done."));
    let third = runs("print('third')");
    let script = [runs("print('first', 1)"), runs("x = 2"), third.clone(), third, slowly].concat();
    let Some(daemon) = scripted("", &script) else { return };
    let question =
        "\\[a\\]ccept, \\[e\\]dit and run, \\[s\\]uggest a change, \\[r\\]eject, \\[t\\]ell the model … > $";
    let shown = play(
        &daemon,
        &["ask", "-s", S, "--approval", "ask", "do it"],
        &[("VISUAL", ""), ("EDITOR", "sed -i s/third/edited/")],
        &[
            Shows("answers written by hand"),
            Shows("approval wanted"),
            Shows("^print\\('first', 1\\)$"),
            Shows(question),
            // What is no answer is asked for again.
            Keys("what?\r"),
            Shows(question),
            Keys("a\r"),
            Shows("^accepted$"),
            Shows("as approved"),
            Shows("^first 1$"),
            Shows("^x = 2$"),
            Shows(question),
            Keys("t\r"),
            Shows("what to tell the model > $"),
            Keys("rather not\r"),
            Shows("not run; the model is told: rather not"),
            Shows("^print\\('third'\\)$"),
            Shows(question),
            Keys("s\r"),
            Shows("not run; a change is suggested to the model"),
            Shows("^print\\('third'\\)$"),
            Shows(question),
            Keys("e\r"),
            Shows("accepted with changed code"),
            Shows("^edited$"),
            Shows("thinking · step 5 · [0-9]+ tokens · [0-9]+ s"),
            Shows("All done."),
        ],
    );
    assert!(!shown.contains("error:"), "{shown}");
    let ran: Vec<Value> =
        events_of(&daemon, "cell_queued").iter().map(|event| event["code"].clone()).collect();
    assert_eq!(ran, ["print('first', 1)", "print('edited')"]);
}

#[test]
fn after_the_deadline_the_default_holds() {
    for (default, outcome) in [("accept", "answered"), ("reject", "rejected")] {
        let config = format!("[agent]\napproval_deadline = \"1s\"\napproval_default = \"{default}\"\n");
        let Some(daemon) = scripted(&config, &[runs("print('ran')"), says("done")].concat()) else { return };
        let end = ask(&daemon, json!({"text": "do it", "approval": "ask"}));
        assert_eq!(text(&end, "outcome"), outcome, "{end:#}");
        assert_eq!(events_of(&daemon, "approval_decided")[0]["by"], Value::Null);
        assert_eq!(events_of(&daemon, "cell_queued").len(), usize::from(default == "accept"));
    }
}

#[test]
fn strangers_neither_see_nor_decide() {
    let Some(daemon) = scripted("", &[runs("print('ran')"), says("done")].concat()) else { return };
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let number = careful(&daemon, "do it");
    let wanted = approval(&daemon);
    let stranger = |method: &str, path: &str, body: &str| {
        http_as(STRANGER, &daemon.socket(), method, path, &[], body.as_bytes())
    };
    assert_eq!(stranger("GET", "/v1/approvals", "").expect_status(200), json!({"approvals": []}));
    let path = format!("/v1/approvals/{}", text(&wanted, "id"));
    let refused = stranger("POST", &path, r#"{"accept": {}}"#);
    assert_eq!((refused.status, text(&refused.json(), "code")), (404, "no_such_approval"));
    // Word for word what something that never was gets.
    assert_eq!(refused.text(), stranger("POST", "/v1/approvals/x.1", r#"{"accept": {}}"#).text());
    for (method, rest) in [
        ("POST", "asks"),
        ("GET", "asks"),
        ("GET", "asks/1"),
        ("POST", "asks/1/cancel"),
        ("GET", "history"),
        ("GET", "plan"),
        ("POST", "tools"),
        ("POST", "tool-calls/1"),
    ] {
        let body = match rest {
            "asks" if method == "POST" => r#"{"text": "x"}"#,
            "tools" => r#"{"tools": []}"#,
            "tool-calls/1" => r#"{"value": 1}"#,
            _ => "",
        };
        let refused = stranger(method, &format!("/v1/sessions/s/{rest}"), body);
        assert_eq!(refused.status, 404, "{method} {rest}: {}", refused.text());
    }
    assert_eq!(approval(&daemon), wanted);
    decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
}

#[test]
fn administrators_see_and_decide_what_waits_for_others() {
    let Some(daemon) = scripted("", &[runs("print('ran')"), says("done")].concat()) else { return };
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let owner = |method: &str, path: &str, body: &str| {
        http_as(OWNER, &daemon.socket(), method, path, &[], body.as_bytes())
    };
    owner("POST", "/v1/sessions", r#"{"name": "theirs", "image": "belljar/base"}"#).expect_status(201);
    owner("POST", "/v1/sessions/theirs/asks", r#"{"text": "do it", "approval": "ask"}"#).expect_status(202);
    let all = || daemon.http("GET", "/v1/approvals?all=true", b"").expect_status(200);
    let wanted = eventually("it waits", || list(&all(), "approvals").first().cloned());
    assert_eq!((text(&wanted, "session_name"), &wanted["owner"]), ("theirs", &json!(OWNER.uid)));
    assert!(approvals(&daemon).is_empty(), "it is not the administrator's own");
    let refused = http_as(STRANGER, &daemon.socket(), "GET", "/v1/approvals?all=true", &[], b"");
    assert_eq!((refused.status, text(&refused.json(), "code")), (403, "forbidden"));

    let id = text(&wanted, "id");
    let listed = daemon.cli(["approve", "--all"]).ok().stdout;
    assert!(listed.contains(id) && listed.contains(&OWNER.uid.to_string()), "{listed}");
    let ran = daemon.cli(["approve", id, "--accept"]).exits(125);
    assert!(ran.stderr.contains("--all"), "{ran:?}");
    daemon.cli(["approve", "--all", id, "--accept"]).ok();
    let end = owner("GET", "/v1/sessions/theirs/asks/1?wait=true", "").expect_status(200);
    assert_eq!(text(&end, "/end/answer"), "done");
    // Who looked and who decided is there for the owner to see.
    let events = owner("GET", "/v1/sessions/theirs/events?follow=false", "").text();
    for act in ["GET /v1/approvals".to_owned(), format!("POST /v1/approvals/{id}")] {
        assert!(events.contains(&act), "{act}: {events}");
    }
}

#[test]
fn a_person_may_take_longer_than_the_cell_and_the_ask() {
    let (_folder, file) = notebook();
    let cell = json!({"python_code_snippet": "print(note(line='slow'))", "timeout": 1});
    let script = [calls("execute_python_code", &cell), says("done")].concat();
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let request = json!({"text": "note", "approval": {"tools": ["note"]}, "limits": {"seconds": 2}});
    let number = begin(&daemon, request);
    let wanted = approval(&daemon);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(approval(&daemon), wanted);
    // A further look of the person costs nothing either.
    decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
    let end = end_of(&daemon, number);
    assert_eq!(text(&end, "outcome"), "answered", "{end:#}");
    assert_eq!(notes(&file), ["slow"]);
    assert_ended(&outcome(&daemon, 1), "success", "ok", 0);
}

#[test]
fn a_call_in_a_cell_is_refused_as_an_exception() {
    let (_folder, file) = notebook();
    let config = format!("[agent]\napproval = [\"note\"]\n{}", noting_tool("note", &file));
    let Some(daemon) = session_with(&config, json!({"image": "belljar/base"})) else { return };
    let code = "try:\n    note(line='x')\nexcept ToolError as error:\n    print(error.code, error.message)";
    for (decision, said) in [
        (json!({"reject": {"reason": "no"}}), "rejected no\n"),
        (json!({"respond": {"text": "later"}}), "responded later\n"),
    ] {
        let cell = queue(&daemon, &json!({ "code": code }));
        let wanted = decide_next(&daemon, decision);
        assert_eq!(wanted["cell"], json!(cell));
        assert_eq!(text(&outcome(&daemon, cell), "stdout"), said);
    }
    // Only a cell has code that could be changed.
    let cell = queue(&daemon, &json!({ "code": code }));
    let wanted = approval(&daemon);
    assert_eq!(decide(&daemon, &wanted, json!({"accept": {"code": "1"}})).status, 400);
    // When the cell goes, so does the question.
    daemon.http("POST", "/v1/sessions/s/interrupt", b"").expect_status(200);
    assert_eq!(text(&outcome(&daemon, cell), "status"), "interrupted");
    eventually("nothing waits", || approvals(&daemon).is_empty().then_some(()));
    assert_eq!(notes(&file), Vec::<String>::new());
}

/// A tool that is misspelt would run without a person being asked.
#[test]
fn approvals_of_a_tool_that_is_not_there_are_refused() {
    let (_folder, file) = notebook();
    let tool = noting_tool("note", &file);
    let script = [runs("print(note(line='x'))"), says("done")].concat();
    let Some(daemon) = scripted(&tool, &script) else { return };
    let refused = post(&daemon, "asks", &json!({"text": "x", "approval": {"tools": ["note", "noet"]}}));
    let problem = refused.json();
    assert_eq!((refused.status, text(&problem, "code")), (400, "bad_request"), "{problem:#}");
    assert!(text(&problem, "message").contains("`noet`"), "{problem:#}");
    assert!(text(&problem, "hint").contains("note"), "{problem:#}");
    let ran = daemon.cli(["ask", "-s", S, "--approval", "tools:noet", "x"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("`noet`"), "{ran:?}");
    assert!(events_of(&daemon, "ask_started").is_empty());
    drop(daemon);

    let mut daemon = Daemon::with_config("");
    end(&mut daemon, "TERM");
    std::fs::write(daemon.home().join("config.toml"), format!("[agent]\napproval = [\"noet\"]\n{tool}"))
        .expect("a configuration");
    assert!(!daemon.try_restart(), "it serves without the approval that was wanted");
    let said = daemon.stderr();
    assert!(said.contains("`agent.approval` names `noet`") && said.contains("hint: known are:"), "{said}");
    assert_eq!(daemon.wait(), Some(64));
}

/// A tool has other names, and one of them may stand in the configuration.
#[test]
fn an_approval_under_another_name_of_a_tool_holds_too() {
    let config = "[agent]\napproval = [\"file_read\"]\n";
    let Some(daemon) = session_with(config, json!({"image": "belljar/base"})) else { return };
    let code = "open('a', 'w').write('text')\nprint(file_reader(file_path='/workspace/a'))";
    let cell = queue(&daemon, &json!({ "code": code }));
    let wanted = decide_next(&daemon, json!({"reject": {"reason": "no"}}));
    assert_eq!(text(&wanted, "/subject/name"), "file_reader");
    assert_eq!(text(&outcome(&daemon, cell), "/exception/type"), "tools.ToolError");
}

/// It would speak in the name of the cell that runs then.
#[test]
fn a_thread_that_a_model_left_behind_asks_also_while_another_cell_runs() {
    let (_folder, file) = notebook();
    let later = with_go(
        "import threading\ndef later():\n    wait_for_go()\n    note(line='thread')\nthreading.Thread(target=later).start()",
    );
    let Some(daemon) =
        scripted(&noting_tool("note", &file), &conversation("thread", &[runs(&later), says("left")]))
    else {
        return;
    };
    assert_eq!(answer(&daemon, json!({"text": "thread", "approval": {"tools": ["note"]}})), "left");
    let cell = queue(&daemon, &json!({"code": "import time; print('busy', flush=True); time.sleep(600)"}));
    super::helpers::wait_for_line(&daemon, cell, "busy");
    super::helpers::go(&daemon);
    let wanted = decide_next(&daemon, json!({"reject": {"reason": "no"}}));
    assert_eq!(text(&wanted, "/subject/arguments/line"), "thread");
    assert_eq!(notes(&file), Vec::<String>::new());
    post(&daemon, "interrupt", &json!({})).expect_status(200);
}

/// A model may not get round a person by way of a thread, of another ask, or of the tools themselves.
#[test]
fn there_is_no_way_round_a_person() {
    let (_folder, file) = notebook();
    let later = "import threading, time\ndef later():\n    time.sleep(0.5)\n    try:\n        note(line='thread')\n\
                 \x20   except ToolError as error:\n        open('refused', 'w').write(error.code)\n\
                 threading.Thread(target=later).start()";
    let script = [
        conversation("thread", &[runs(later), says("left")]),
        conversation("inner", &[runs("print(note(line='nested'))"), says("inner done")]),
        conversation("nested", &[runs("print(ask('the inner one'))"), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let policy = json!({"tools": ["note"]});
    assert_eq!(answer(&daemon, json!({"text": "thread", "approval": policy})), "left");
    let refused = workspace(&daemon).join("refused");
    let said = eventually("the thread is refused", || {
        std::fs::read_to_string(&refused).ok().filter(|said| !said.is_empty())
    });
    assert_eq!(said, "not_allowed");
    let number = begin(&daemon, json!({"text": "nested", "approval": policy, "fresh": true}));
    let wanted = decide_next(&daemon, json!({"reject": {"reason": "no"}}));
    assert_eq!(text(&wanted, "/subject/arguments/line"), "nested");
    assert_eq!(text(&end_of(&daemon, number), "answer"), "outer done");
    assert_eq!(notes(&file), Vec::<String>::new());
    daemon.assert_sound();
}

//! The error catalogue through the whole daemon: what a model or its provider does wrong (E1 to E14),
//! and what the next request tells it. The words themselves are tested in `src/agent/tests`.

use serde_json::{Value, json};

use super::asking::{
    answer, ask, begin, conversation, end_of, events_of, notebook, notes, noting_tool, runs, says, scripted,
    served, told, wait_for_state,
};
use super::helpers::{S, end, list, number, session_with, text, value};
use crate::model_server::{Fault, ModelServer, Play, Reply};
use crate::support::{Daemon, engine};

/// A session whose model is behind a server that plays this.
fn playing(plays: impl IntoIterator<Item = Play>, model: &str, agent: &str) -> Option<(Daemon, ModelServer)> {
    let server = ModelServer::start(plays);
    let daemon =
        session_with(&format!("{agent}\n{}", served(&server, model)), json!({"image": "belljar/base"}))?;
    Some((daemon, server))
}

fn cell(code: &str) -> Reply {
    Reply::call("execute_python_code", json!({"python_code_snippet": code, "tool_call_purpose": "p"}))
}

fn called(name: &str, arguments: &str) -> Play {
    Reply { calls: vec![(name.into(), arguments.into())], ..Reply::default() }.into()
}

/// The messages of the newest request.
fn messages(server: &ModelServer) -> Vec<Value> {
    let newest = server.received().pop().expect("a request");
    list(&newest.body, "messages").to_vec()
}

#[track_caller]
fn last(server: &ModelServer) -> (String, String) {
    let message = messages(server).pop().expect("a message");
    (text(&message, "role").to_owned(), text(&message, "content").to_owned())
}

fn old_call(code: &str) -> Play {
    let arguments = json!({"python_code_snippet": code, "tool_call_purpose": "p"}).to_string();
    Reply { function_call: Some(("execute_python_code".into(), arguments)), ..Reply::default() }.into()
}

#[test]
fn e1_a_legacy_function_call_runs_or_is_corrected() {
    for (setting, role, said) in [(true, "function", "42"), (false, "user", "tool_calls")] {
        let agent = format!("[agent]\nlegacy_function_call = {setting}\n");
        let plays = [old_call("print(6 * 7)"), Reply::text("done").into()];
        let Some((daemon, server)) = playing(plays, "", &agent) else { return };
        assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
        let (told_as, told) = last(&server);
        assert!(told_as == role && told.contains(said), "{told_as}: {told}");
        assert_eq!(events_of(&daemon, "cell_queued").len(), usize::from(setting));
    }
}

#[test]
fn e2_no_request_goes_out_with_a_call_that_is_not_answered() {
    let two = cell("while True: pass").and_call("session_info", json!({"tool_call_purpose": "p"}));
    let Some((daemon, server)) = playing([two.into(), Reply::text("done").into()], "", "") else { return };
    let first = begin(&daemon, json!({"text": "go"}));
    wait_for_state(&daemon, first, "acting");
    daemon.http("POST", &format!("/v1/sessions/s/asks/{first}/cancel"), b"").expect_status(200);
    end_of(&daemon, first);
    assert_eq!(answer(&daemon, json!({"text": "and now?"})), "done");
    let messages = messages(&server);
    let calls: Vec<&str> = messages
        .iter()
        .flat_map(|message| message["tool_calls"].as_array().into_iter().flatten())
        .map(|call| text(call, "id"))
        .collect();
    let answers: Vec<&str> =
        messages.iter().filter(|m| m["role"] == "tool").map(|m| text(m, "tool_call_id")).collect();
    assert_eq!((calls.len(), &answers), (2, &calls), "{messages:#?}");
}

#[test]
fn e3_to_e6_wrong_calls_are_explained_and_the_model_goes_on() {
    let wrong = [
        ("E3", "execute_python_code", "{\"python_code_snippet\": \"1\",}", "no valid JSON object"),
        ("E3", "execute_python_code", "{\"n\": 99999999999999999999}", "does not fit into 64 bits"),
        ("E4", "execute_python_code", "{\"timeout\": 5}", "`/python_code_snippet`: is required"),
        (
            "E5",
            "execute_python_code",
            "{\"python_code_snippet\": 1, \"extra\": 2, \"tool_call_purpose\": \"p\"}",
            "`/python_code_snippet`: expected string, got 1",
        ),
        ("E6", "run_python", "{}", "execute_python_code"),
    ];
    let plays = wrong.iter().map(|(_, name, arguments, _)| called(name, arguments));
    let plays: Vec<Play> = plays.chain([Reply::text("done").into()]).collect();
    let Some((daemon, server)) = playing(plays, "", "[agent]\nfailures = 20\n") else { return };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    for ((place, .., expected), told) in wrong.iter().zip(told(&daemon)) {
        assert!(told.contains(expected), "{place}: {told}");
    }
    assert_eq!(told(&daemon).len(), wrong.len());
    assert!(events_of(&daemon, "cell_queued").is_empty());
    // People see them too.
    let noted = events_of(&daemon, "ask_noted").into_iter();
    let noted: Vec<Value> = noted.filter(|event| text(event, "note").contains("was not made")).collect();
    assert_eq!(noted.len(), wrong.len(), "{noted:#?}");
    for ((place, name, _, expected), event) in wrong.iter().zip(&noted) {
        let note = text(event, "note");
        assert!(note.contains(&format!("`{name}`")) && note.contains(expected), "{place}: {note}");
    }
    // What goes back to the provider can be parsed, whatever the model wrote.
    for message in messages(&server) {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = text(call, "/function/arguments");
            assert!(serde_json::from_str::<Value>(arguments).is_ok(), "{arguments}");
        }
    }
}

#[test]
fn e7_a_tool_that_is_not_there_is_found_at_the_start() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::with_config("");
    end(&mut daemon, "TERM");
    std::fs::write(daemon.home().join("config.toml"), "[agent]\ntools = [\"execute_pyton\"]\n")
        .expect("written");
    assert!(!daemon.try_restart());
    assert!(daemon.stderr().contains("execute_pyton"), "{}", daemon.stderr());
    assert_eq!(daemon.wait(), Some(64));
}

#[test]
fn e8_a_reply_of_only_calls_goes_back_with_an_empty_text() {
    let Some((daemon, server)) = playing([cell("1").into(), Reply::text("done").into()], "", "") else {
        return;
    };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    let said =
        messages(&server).into_iter().find(|message| message["role"] == "assistant").expect("it spoke");
    assert_eq!(said["content"], "", "{said:#}");
}

#[test]
fn e9_malformed_actions_are_fed_back_and_bounded() {
    let good = json!({"thought": "t", "action": "provide_answer", "final_answer": "done"}).to_string();
    let script = [
        conversation(
            "mends",
            &[says("{\"action\": \"execute_code\"}"), says("{\"action\": \"fly\"}"), says(&good)],
        ),
        conversation("never", &vec![says("I shall think about it."); 9]),
    ]
    .concat();
    let Some(daemon) = scripted("[agent]\nmalformed = 2\ndialect = \"json_action\"\n", &script) else {
        return;
    };
    assert_eq!(answer(&daemon, json!({"text": "mends"})), "done");
    let notes = events_of(&daemon, "ask_noted");
    assert!(
        text(&notes[0], "note").contains("code") && text(&notes[1], "note").contains("fly"),
        "{notes:#?}"
    );
    let end = ask(&daemon, json!({"text": "never", "fresh": true}));
    assert_eq!((text(&end, "outcome"), number(&end, "/steps")), ("malformed", 3), "{end:#}");
}

#[test]
fn e10_code_that_does_not_parse_is_told_and_the_session_survives() {
    let script = [runs("kept = 1"), runs("def broken(:\n    pass"), says("done")].concat();
    let Some(daemon) = scripted("", &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    assert!(told(&daemon)[1].contains("SyntaxError"), "{:?}", told(&daemon));
    assert_eq!(value(&daemon, "kept"), "1");
}

#[test]
fn e11_failures_in_a_row_are_advised_on_and_end_the_ask() {
    let Some(daemon) = scripted("", &vec![runs("1 / 0"); 9].concat()) else { return };
    let end = ask(&daemon, json!({"text": "go", "limits": {"failures": 3}}));
    assert_eq!((text(&end, "outcome"), number(&end, "/steps")), ("failure_limit", 3), "{end:#}");
    assert!(told(&daemon)[1].contains("Skip this sub-task"), "{:?}", told(&daemon));
}

#[test]
fn e12_a_conversation_that_grows_too_long_is_cut_and_the_journal_keeps_it() {
    let long = |letter: &str| Play::from(cell(&format!("print('{letter}' * 9000)")));
    let plays = [long("a"), long("b"), long("c"), long("d"), Reply::text("done").into()];
    let Some((daemon, server)) = playing(plays, "context_tokens = 8192", "") else { return };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    let sent = json!(messages(&server)).to_string();
    assert!(!sent.contains(&"a".repeat(8_000)) && sent.contains(&"d".repeat(2_000)), "{} bytes", sent.len());
    assert!(!events_of(&daemon, "ask_noted").is_empty());
    let kept = json!(events_of(&daemon, "cell_finished")).to_string();
    assert!(kept.contains(&"a".repeat(9_000)));
}

#[test]
fn e13_a_provider_that_cannot_be_used_ends_the_ask_with_its_reason() {
    let plays =
        [Fault::Status(401, None).into(), Fault::Status(500, None).into(), Reply::text("done").into()];
    let Some((daemon, server)) = playing(plays, "retries = 1", "") else { return };
    let end = ask(&daemon, json!({"text": "go"}));
    assert_eq!((text(&end, "outcome"), server.received().len()), ("model_failed", 1), "{end:#}");
    assert_eq!(answer(&daemon, json!({"text": "again"})), "done");
    let retried =
        events_of(&daemon, "model_failed").into_iter().filter(|event| event["retry_in_s"].is_number());
    assert_eq!(retried.count(), 1);
}

#[test]
fn e14_a_tool_that_breaks_is_told_and_logged() {
    let (_folder, file) = notebook();
    let broken = "[tool.broken]\ndescription = \"Breaks.\"\nparameters = { type = \"object\" }\n\
                  argv = [\"python3\", \"-c\", \"import sys; sys.exit('out of paper')\"]\n";
    let script = [
        super::asking::calls("broken", &json!({})),
        super::asking::calls("note", &json!({"line": "after"})),
        says("done"),
    ]
    .concat();
    let Some(daemon) = scripted(&format!("{broken}{}", noting_tool("note", &file)), &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    assert!(told(&daemon)[0].contains("out of paper"), "{:?}", told(&daemon));
    assert_eq!(notes(&file), ["after"]);
    let answered = &events_of(&daemon, "ask_tool_answered")[0];
    assert!(text(answered, "/outcome/failure/message").contains("out of paper"), "{answered:#}");
    let logged = daemon.cli(["logs", S]).ok().stderr;
    assert!(logged.contains("out of paper"), "{logged}");
}

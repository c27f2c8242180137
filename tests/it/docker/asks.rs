//! Asks from their text to their end: types, templates, limits, cancelling, dialects, recordings.

use serde_json::{Value, json};
use std::process::Stdio;

use super::asking::{
    answer, ask, begin, calls, conversation, end_of, events_of, runs, says, scripted, served, told, view,
    wait_for_state,
};
use super::helpers::{S, gapless, list, number, post, session_with, text, value, wait_for_line};
use crate::model_server::{ModelServer, Play, Reply};
use crate::support::{Daemon, eventually};

/// A reply of the script that takes its time.
fn slowly(words: &str) -> String {
    format!("{}delay_ms = 60000\n", says(words))
}

/// The ask as it is when that is done: ended, whatever it did before.
#[track_caller]
fn cancel(daemon: &Daemon, ask: u64) -> Value {
    let path = format!("/v1/sessions/s/asks/{ask}/cancel");
    let view = daemon.http("POST", &path, b"").expect_status(200);
    assert_eq!(text(&view, "state"), "done", "{view:#}");
    view["end"].clone()
}

#[test]
fn an_answer_has_the_type_that_was_asked_for() {
    let script = [
        conversation("right", &[says("It is two."), says("{\"n\": 2}")]),
        conversation("wrong", &vec![says("never"); 10]),
        conversation("add 3 and 4 to [1,2]", &[runs("print(sum(values) + 3 + 4)"), says("10")]),
    ]
    .concat();
    let template =
        "[template.add]\nprompt = \"add {a} and {b} to {list}\"\nschema = { type = \"integer\" }\n";
    let Some(daemon) = scripted(template, &script) else { return };
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    let end = ask(&daemon, json!({"text": "right", "schema": schema}));
    assert_eq!(
        (&end["outcome"], &end["value"], number(&end, "/steps")),
        (&json!("answered"), &json!({"n": 2}), 2)
    );
    let end = ask(&daemon, json!({"text": "wrong", "schema": schema, "fresh": true}));
    assert_eq!((text(&end, "outcome"), number(&end, "/steps")), ("malformed", 4), "{end:#}");
    assert_eq!(post(&daemon, "asks", &json!({"text": "x", "schema": {"type": 3}})).status, 400);

    // The command line: a template with parameters, and variables from a file.
    let context = daemon.home().join("context.json");
    std::fs::write(&context, r#"{"values": [1, 2]}"#).expect("written");
    let context = context.to_str().expect("UTF-8");
    let arguments = ["ask", "-s", S, "--fresh", "--context", context, "@add", "a=3", "b=4", "list=[1, 2]"];
    let ran = daemon.cli(arguments).ok();
    assert_eq!(ran.stdout, "10\n", "{ran:?}");
    assert_eq!(value(&daemon, "values"), "[1, 2]");
    for wrong in [vec!["@add", "a=3"], vec!["@nothing"], vec!["@add", "a=3", "b=4", "list=x", "more=1"]] {
        let ran = daemon.cli(["ask", "-s", S].iter().chain(&wrong));
        assert!(ran.code != Some(0) && ran.stderr.contains("error: "), "{ran:?}");
        assert!(ran.stderr.contains("hint: ") && ran.stderr.contains("add"), "{ran:?}");
    }
}

#[test]
fn an_ask_can_be_ended_without_its_session_and_whoever_removes_it_is_told() {
    let Some(daemon) = scripted("", &[slowly("late"), slowly("later")].concat()) else { return };
    let detached = daemon.cli(["ask", "-s", S, "--detach", "one"]).ok();
    let interrupt = ["interrupt", S, "--ask", detached.stdout.trim()];
    assert!(daemon.cli(interrupt).ok().stderr.contains("ask 1 is cancelled"));
    assert_eq!(text(&end_of(&daemon, 1), "outcome"), "cancelled");
    let mut asking = daemon.command(["ask", "-s", S, "two"]);
    let asking = asking.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("belljar runs");
    eventually("it speaks", || {
        events_of(&daemon, "model_text").iter().any(|event| event["ask"] == 2).then_some(())
    });
    daemon.cli(["rm", S]).ok();
    let ended = asking.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("`belljar interrupt s --ask 2`"), "{said}");
    assert_eq!(ended.status.code(), Some(125), "{said}");
}

#[test]
fn asks_wait_for_each_other_and_can_be_cancelled() {
    let endless = "print('busy', flush=True)\nwhile True: pass";
    let script = [
        conversation("think", &[slowly("late")]),
        conversation("run", &[runs(endless), says("late")]),
        conversation("quick", &[says("quick")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let thinking = begin(&daemon, json!({"text": "think"}));
    let queued = begin(&daemon, json!({"text": "run", "fresh": true}));
    let never = begin(&daemon, json!({"text": "never"}));
    let last = begin(&daemon, json!({"text": "quick", "fresh": true}));
    wait_for_state(&daemon, thinking, "thinking");
    assert_eq!(view(&daemon, queued)["state"], "queued");
    assert_eq!(text(&cancel(&daemon, never), "outcome"), "cancelled");
    assert_eq!(text(&cancel(&daemon, thinking), "outcome"), "cancelled");
    wait_for_line(&daemon, 1, "busy");
    wait_for_state(&daemon, queued, "acting");
    assert_eq!(text(&cancel(&daemon, queued), "outcome"), "cancelled");
    assert_eq!(text(&end_of(&daemon, last), "answer"), "quick");
    let finished = eventually("the cell is stopped", || events_of(&daemon, "cell_finished").pop());
    assert_eq!(text(&finished, "/result/status"), "interrupted");
    // An end stays as it is.
    assert_eq!(text(&cancel(&daemon, last), "outcome"), "answered");
    assert_eq!(daemon.http("POST", "/v1/sessions/s/asks/99/cancel", b"").status, 404);
    assert_eq!(events_of(&daemon, "ask_finished").len(), 4);
    gapless(&daemon, S);
    daemon.assert_sound();
}

#[test]
fn every_limit_ends_an_ask() {
    let script = [
        conversation("steps", &vec![runs("1"); 9]),
        conversation("failures", &vec![runs("1 / 0"); 9]),
        conversation("tokens", &vec![runs("print('long ' * 2000)"); 9]),
        conversation("time", &[slowly("late")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    for (limit, most, outcome) in [
        ("steps", json!(3), "step_limit"),
        ("failures", json!(2), "failure_limit"),
        ("tokens", json!(9000), "token_limit"),
        ("seconds", json!(1), "time_limit"),
    ] {
        let first = if limit == "seconds" { "time" } else { limit };
        let end = ask(&daemon, json!({"text": first, "fresh": true, "limits": {limit: most}}));
        assert_eq!(text(&end, "outcome"), outcome, "{end:#}");
        assert!(!text(&end, "message").is_empty());
    }
    daemon.assert_sound();
}

#[test]
fn values_come_with_the_turn_of_their_ask() {
    let look = runs("print('x is', x)");
    let later = look.replacen("[[reply]]\n", "[[reply]]\ndelay_ms = 1500\n", 1);
    let script = [
        conversation("first", &[runs("x"), later, says("done")]),
        conversation("second", &[look, says("done")]),
        conversation("never", &[says("done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let context = |x: u32| json!({ "x": x });
    let first = begin(&daemon, json!({"text": "first", "context": context(1)}));
    let second = begin(&daemon, json!({"text": "second", "context": context(2), "fresh": true}));
    let never = begin(&daemon, json!({"text": "never", "context": context(3), "fresh": true}));
    assert_eq!(text(&cancel(&daemon, never), "outcome"), "cancelled");
    for ask in [first, second] {
        assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
    }
    let printed: Vec<String> = events_of(&daemon, "cell_finished")
        .iter()
        .map(|event| text(event, "/result/stdout").to_owned())
        .collect();
    assert_eq!(printed, ["", "x is 1\n", "x is 2\n"]);
    assert_eq!(value(&daemon, "x"), "2");
}

/// An expression that is computed exactly sees what was given, not what cells made of it.
#[test]
fn an_expression_sees_what_was_given() {
    let compute = |code: &str| calls("compute_with_python", &json!({"code": code, "description": "d"}));
    let script = [
        runs("made = 1\nvalues.append(100)"),
        compute("sum(values) + 1"),
        compute("last_result * 2"),
        compute("made"),
        says("done"),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "x", "context": {"values": [1, 2]}})), "done");
    let told = told(&daemon);
    assert_eq!((told[1].as_str(), told[2].as_str()), ("4", "44"));
    assert!(told[3].starts_with("PythonError: NameError: `made` is not available"), "{told:?}");
}

/// Looking at what a session was asked does not keep it from expiring.
#[test]
fn looking_at_asks_is_no_activity() {
    let Some(daemon) = scripted("", &says("done")) else { return };
    assert_eq!(answer(&daemon, json!({"text": "x"})), "done");
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    for path in ["/v1/approvals", "/v1/sessions/s/history", "/v1/sessions/s/asks", "/v1/sessions/s/plan"] {
        daemon.http("GET", path, b"").expect_status(200);
    }
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert!(number(&view, "/idle_for_s") >= 2, "{view:#}");
}

/// A reply that would not fit is not paid for.
#[test]
fn a_reply_may_be_as_long_as_tokens_are_left() {
    let server = ModelServer::start([Reply::text("short").into(), Reply::text("short").into()]);
    let config = format!("[agent]\nmodel = \"script\"\n{}", served(&server, ""));
    let Some(daemon) = scripted(&config, &says("done")) else { return };
    // The script says nothing about tokens, so this is the estimate.
    let request = number(&ask(&daemon, json!({"text": "x"})), "/usage/prompt_tokens");
    for left in [1_000, 1_000_000] {
        let limits = json!({"tokens": request + left});
        let end = ask(&daemon, json!({"text": "x", "model": "served", "fresh": true, "limits": limits}));
        assert_eq!(text(&end, "answer"), "short", "{end:#}");
    }
    let sent: Vec<Value> =
        server.received().iter().map(|request| request.body["max_tokens"].clone()).collect();
    assert_eq!(sent, [json!(1_000), Value::Null]);
}

#[test]
fn what_cannot_be_meant_is_refused_with_a_hint() {
    let Some(daemon) = scripted("", &says("done")) else { return };
    for (request, what, hint) in [
        (json!({"limits": {"steps": 201}}), "201 steps", "agent.max_steps"),
        (json!({"limits": {"steps": 0}}), "0 steps", "more than 0"),
        (json!({"limits": {"seconds": 1e9}}), "1000000000 seconds", "agent.max_time"),
        (json!({"limits": {"seconds": -1}}), "-1 seconds", "more than 0"),
        (json!({"context": {"class": 1}}), "`class`", "Python names"),
        (json!({"context": {"a b": 1}}), "`a b`", "Python names"),
        (json!({"schema": {"$ref": "http://127.0.0.1/x"}}), "leads nowhere", ""),
        (json!({"schema": {"type": "thing"}}), "no JSON Schema", ""),
        (json!({"schema": 3}), "no JSON Schema", ""),
    ] {
        let mut request = request;
        request["text"] = json!("x");
        let refused = post(&daemon, "asks", &request);
        assert_eq!(refused.status, 400, "{request}");
        let problem = refused.json();
        assert!(
            text(&problem, "message").contains(what)
                && (hint.is_empty() || text(&problem, "hint").contains(hint)),
            "{problem:#}"
        );
    }
    let seeded = daemon.http("POST", "/v1/sessions", br#"{"seed": {"lambda": 1}}"#);
    assert!(seeded.status == 400 && seeded.text().contains("`lambda`"), "{}", seeded.text());
    // Numbers arrive as they are, or not at all.
    let whole = daemon.home().join("whole.json");
    let changed = daemon.home().join("changed.json");
    std::fs::write(&whole, r#"{"n": 18446744073709551615}"#).expect("written");
    std::fs::write(&changed, r#"{"n": 18446744073709551616}"#).expect("written");
    let ask = |file: &std::path::Path| {
        daemon.cli(["ask", "-s", S, "--context", file.to_str().expect("UTF-8"), "x"])
    };
    assert_eq!(ask(&whole).ok().stdout, "done\n");
    assert_eq!(value(&daemon, "n"), "18446744073709551615");
    let ran = ask(&changed);
    assert!(ran.code == Some(64) && ran.stderr.contains("does not fit into 64 bits"), "{ran:?}");
    let body = br#"{"text": "x", "context": {"n": -9223372036854775809}}"#;
    let refused = daemon.http("POST", "/v1/sessions/s/asks", body);
    assert!(refused.status == 400 && refused.text().contains("64 bits"), "{}", refused.text());
    let ran = daemon.cli(["ask", "-s", S, "--steps", "1000", "x"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("agent.max_steps"), "{ran:?}");
    assert_eq!(events_of(&daemon, "ask_started").len(), 1);
}

#[test]
fn a_conversation_goes_on_in_its_session_only() {
    let script = [
        conversation(
            "first",
            &[
                runs("x = 20"),
                runs("x += 1\nprint('x is', x)"),
                says("x is 21"),
                runs("print('twice', 2 * x)"),
                says("42"),
            ],
        ),
        conversation("other", &[runs("print('x' in globals())"), says("done")]),
        conversation("idle", &[says("nothing to do")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    // A cell runs when one is wanted, not before.
    assert_eq!(answer(&daemon, json!({"text": "idle"})), "nothing to do");
    assert!(events_of(&daemon, "cell_queued").is_empty());
    // Rounds of an ask, and further asks, share the variables.
    assert_eq!(answer(&daemon, json!({"text": "first", "fresh": true})), "x is 21");
    assert_eq!(answer(&daemon, json!({"text": "and twice that?"})), "42");
    assert!(
        told(&daemon)[1].contains("x is 21") && told(&daemon)[2].contains("twice 42"),
        "{:?}",
        told(&daemon)
    );
    // Another session has its own, and its own conversation.
    daemon.session("t", json!({"image": "belljar/base"}));
    let end =
        daemon.http("POST", "/v1/sessions/t/asks?wait=true", br#"{"text": "other"}"#).expect_status(200);
    assert_eq!(text(&end, "/end/answer"), "done");
    let history = daemon.http("GET", "/v1/sessions/t/history", b"").expect_status(200);
    let said = list(&history, "messages").iter().find(|message| message["role"] == "tool").expect("a result");
    assert!(text(said, "content").contains("False"), "{said:#}");
}

const WRONG: &str = "print(15000 * (1 + .06 / n) ** (n * 6))";
const RIGHT: &str = "n = 2\nprint(f'${15000 * (1 + .06 / n) ** (n * 6):,.2f}')";

/// The replies of a model that forgets a variable, sees the error, and mends it.
fn mending(dialect: &str) -> Vec<String> {
    let told = "It grows to $21,386.41.";
    match dialect {
        "tool_calls" => vec![runs(WRONG), runs(RIGHT), says(told)],
        "next_step" => {
            let step =
                |function: Value| says(&json!({"current_state": "So.", "function": function}).to_string());
            let cell = |code: &str| {
                let purpose = "to compute";
                step(
                    json!({"tool": "execute_python_code", "python_code_snippet": code, "tool_call_purpose": purpose}),
                )
            };
            vec![cell(WRONG), cell(RIGHT), step(json!({"tool": "report_task_completion", "answer": told}))]
        }
        "json_action" => {
            let cell = |action: &str, code: &str| {
                says(&json!({"thought": "So.", "action": action, "code": code}).to_string())
            };
            let last =
                json!({"thought": "So.", "action": "provide_answer", "final_answer": told}).to_string();
            vec![cell("execute_code", WRONG), cell("debug_error", RIGHT), says(&last)]
        }
        _ => {
            let cell = |code: &str| says(&format!("So.\n<execution-code>\n{code}\n</execution-code>"));
            vec![cell(WRONG), cell(RIGHT), says(told)]
        }
    }
}

#[test]
fn every_dialect_solves_the_same_task() {
    let dialects = ["tool_calls", "next_step", "json_action", "xml_tags"];
    let script: String = dialects.map(|dialect| conversation(dialect, &mending(dialect))).concat();
    let Some(daemon) = scripted("", &script) else { return };
    for (place, dialect) in dialects.iter().enumerate() {
        daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
        let end = ask(&daemon, json!({"text": dialect, "dialect": dialect, "fresh": true}));
        assert_eq!((text(&end, "outcome"), number(&end, "/steps")), ("answered", 3), "{dialect}: {end:#}");
        assert_eq!(text(&end, "answer"), "It grows to $21,386.41.");
        let finished = events_of(&daemon, "cell_finished");
        let results: Vec<&Value> = finished[2 * place..].iter().map(|event| &event["result"]).collect();
        assert_eq!(text(results[0], "/exception/type"), "NameError", "{dialect}");
        assert_eq!(text(results[1], "stdout"), "$21,386.41\n", "{dialect}");
    }
}

#[test]
fn a_recorded_ask_is_played_again() {
    let cell = |code: &str| {
        Play::from(Reply::call(
            "execute_python_code",
            json!({"python_code_snippet": code, "timeout": 30, "tool_call_purpose": "p"}),
        ))
    };
    let server = ModelServer::start([cell(WRONG), cell(RIGHT), Reply::text("It is $21,386.41.").into()]);
    let config = format!(
        "[agent]\nmodel = \"served\"\n{}[model.replayed]\nprovider = \"replay\"\nfile = \"cassette.jsonl\"\n",
        served(&server, "record = \"cassette.jsonl\"")
    );
    let Some(daemon) = session_with(&config, json!({"image": "belljar/base"})) else { return };
    let recorded = ask(&daemon, json!({"text": "how much?"}));
    assert_eq!(text(&recorded, "answer"), "It is $21,386.41.");
    let first = told(&daemon);
    // The recording is played as often as one likes, without the server.
    for name in ["t", "u"] {
        daemon.session(name, json!({"image": "belljar/base"}));
        let request = json!({"text": "how much?", "model": "replayed"}).to_string();
        let path = format!("/v1/sessions/{name}/asks?wait=true");
        let played = daemon.http("POST", &path, request.as_bytes()).expect_status(200);
        assert_eq!(played["end"], recorded, "{:#}", played["end"]);
    }
    assert_eq!(server.received().len(), 3);
    assert!(first[0].contains("NameError") && first[1].contains("$21,386.41"), "{first:?}");
    // What was not recorded is not made up.
    let end = ask(&daemon, json!({"text": "something else", "model": "replayed", "fresh": true}));
    assert_eq!(text(&end, "outcome"), "model_failed", "{end:#}");
    daemon.assert_sound();
}

/// A picture of one dot, and one that is larger than a model is shown.
const PICTURES: &str = "
import os, struct, zlib
class Picture:
    def __init__(self, side):
        self.side = side
    def _repr_png_(self):
        def chunk(kind, data):
            return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        head = struct.pack('>IIBBBBB', self.side, self.side, 8, 0, 0, 0, 0)
        rows = zlib.compress((b'\\0' + bytes(self.side)) * self.side)
        return b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', rows) + chunk(b'IEND', b'')
display(Picture(1), Picture(5000))
Picture(2)
";

#[test]
fn a_model_that_sees_is_shown_pictures() {
    let cell = || {
        Play::from(Reply::call(
            "execute_python_code",
            json!({"python_code_snippet": PICTURES, "timeout": 30, "tool_call_purpose": "p"}),
        ))
    };
    let server =
        ModelServer::start([cell(), Reply::text("a dot").into(), cell(), Reply::text("dark").into()]);
    let blind = served(&server, "").replace("model.served", "model.blind");
    let config = format!("[agent]\nmodel = \"served\"\n{}{blind}", served(&server, "vision = true"));
    let Some(daemon) = session_with(&config, json!({"image": "belljar/base"})) else { return };
    assert_eq!(text(&ask(&daemon, json!({"text": "what is it?"})), "answer"), "a dot");
    let blind = ask(&daemon, json!({"text": "what is it?", "model": "blind", "fresh": true}));
    assert_eq!(text(&blind, "answer"), "dark");
    let received = server.received();
    let messages = |request: usize| list(&received[request].body, "messages").to_vec();
    let last = messages(1).pop().expect("a message");
    let parts = list(&last, "content");
    assert_eq!((text(&last, "role"), parts.len()), ("user", 3), "{last:#}");
    for part in &parts[1..] {
        assert!(text(part, "/image_url/url").starts_with("data:image/png;base64,iVBORw0KGgo"), "{part}");
    }
    assert!(text(&parts[0], "text").contains("1 picture is not here"), "{last:#}");
    assert!(
        messages(3).iter().all(|message| message["content"].is_string()),
        "a blind model was shown pictures"
    );
    // The next ask has the conversation without them.
    let history = daemon.http("GET", "/v1/sessions/s/history", b"").expect_status(200).to_string();
    assert!(!history.contains("iVBORw0KGgo"), "{history}");
}

#[test]
fn a_model_that_sees_is_shown_a_small_copy_of_a_large_picture() {
    const CODE: &str = "\
import matplotlib.pyplot as plt
plt.figure(figsize=(30, 20), dpi=100)
plt.plot([1, 2])
plt.show()
from PIL import Image
Image.effect_noise((1500, 1500), 100)";
    let arguments = json!({"python_code_snippet": CODE, "timeout": 60, "tool_call_purpose": "p"});
    let cell = Play::from(Reply::call("execute_python_code", arguments));
    let server = ModelServer::start([cell, Reply::text("a line").into()]);
    let config = served(&server, "vision = true");
    let Some(daemon) = session_with(&config, json!({"image": "belljar/science"})) else { return };
    assert_eq!(text(&ask(&daemon, json!({"text": "what is it?"})), "answer"), "a line");
    let request = &server.received()[1].body;
    let last = list(request, "messages").last().expect("a message");
    let parts = list(last, "content");
    assert_eq!(parts.len(), 3, "{last:#}");
    for part in &parts[1..] {
        assert!(text(part, "/image_url/url").starts_with("data:image/png;base64,iVBORw0KGgo"), "{part}");
    }
    let result = daemon.http("GET", "/v1/sessions/s/cells/1", b"").expect_status(200).to_string();
    assert!(
        result.contains("small-picture"),
        "the picture was small enough, so that nothing is shown by this"
    );
}

/// By the estimate, which is rather too high. The example and its tools are those of `examples/spec2`.
#[test]
fn a_task_of_four_steps_takes_at_most_six_thousand_tokens() {
    const MOST_TOKENS: u64 = 6_000;
    let (_, tools) =
        include_str!("../../../examples/spec2/belljar.toml").split_once("[tool.").expect("tools");
    let mut config = format!("[tool.{tools}");
    for (tool, answer) in
        [("get_secret", json!({"value": "NcS9euQa"})), ("provide_answer", json!({"accepted": true}))]
    {
        let program = format!(r#"["python3", "task_tool.py", "{tool}"]"#);
        assert!(config.contains(&program), "{config}");
        config = config.replace(&program, &json!(["/bin/echo", answer.to_string()]).to_string());
    }
    let script = include_str!("../../../examples/spec2/backwards/script.toml");
    let Some(daemon) = scripted(&config, script) else { return };
    let request = include_str!("../../../examples/spec2/backwards/request.txt");
    let end = ask(&daemon, json!({"text": request, "dialect": "next_step"}));
    assert_eq!(text(&end, "outcome"), "answered", "{end:#}");
    let spent = number(&end, "/usage/prompt_tokens") + number(&end, "/usage/completion_tokens");
    assert!(spent <= MOST_TOKENS, "{spent}");
}

//! Asks that the code of an ask makes: what they share with it, and how they end with it.

use serde_json::{Value, json};
use std::time::Duration;

use super::asking::{
    approvals, ask, begin, calls, conversation, decide, decide_next, end_of, events_of, runs, says, scripted,
    served, view, wait_for_state,
};
use super::helpers::{
    S, assert_ended, list, number, outcome, post, printed, queue, session_with, text, wait_for_line,
};
use super::repl::Step::{Keys, Shows};
use super::repl::play;
use crate::model_server::{ModelServer, Play, Reply};
use crate::support::{Daemon, eventually};

fn tokens(usage: &Value) -> u64 {
    number(usage, "/prompt_tokens") + number(usage, "/completion_tokens")
}

fn spent_within(daemon: &Daemon) -> Vec<u64> {
    events_of(daemon, "ask_spent_within").iter().map(|event| tokens(&event["usage"])).collect()
}

/// Asks at once, and prints which were answered.
const AT_ONCE: &str = "\
from concurrent.futures import ThreadPoolExecutor
def inner(place):
    try:
        return ask('the inner one')
    except ToolError as error:
        return error.message
with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(inner, range(4)))
print(sum(answer == 'inner done' for answer in answers), 'of 4 were answered')
print(*answers, sep='\\n')";

#[test]
fn asks_within_an_ask_share_its_tokens() {
    let slowly = format!("{}delay_ms = 1500\n", says("inner done"));
    let script = [
        conversation("the inner one", &[slowly]),
        conversation("one", &[runs("print(ask('the inner one'))"), says("outer done")]),
        conversation("many", &[runs(AT_ONCE), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };

    let end = ask(&daemon, json!({"text": "one"}));
    assert_eq!(text(&end, "answer"), "outer done", "{end:#}");
    let (all, inner) = (tokens(&end["usage"]), spent_within(&daemon)[0]);
    assert!(inner > 100 && all > inner, "{all} with {inner} within");

    // Without the inner ask this would be enough by far.
    let end = ask(&daemon, json!({"text": "one", "fresh": true, "limits": {"tokens": all - 50}}));
    assert_eq!(text(&end, "outcome"), "token_limit", "{end:#}");

    // What that one has left would bind what its code may have left behind.
    post(&daemon, "reset", &json!({})).expect_status(200);
    // Each of the four alone would fit.
    let most = all + inner;
    let before = spent_within(&daemon).len();
    let end = ask(&daemon, json!({"text": "many", "fresh": true, "limits": {"tokens": most}}));
    let finished = events_of(&daemon, "cell_finished").pop().expect("a result");
    let said = text(&finished, "/result/stdout");
    let answered = spent_within(&daemon).len() - before;
    assert!((1..4).contains(&answered), "{said}");
    assert!(said.starts_with(&format!("{answered} of 4")) && said.contains("TokenLimit"), "{said}");
    assert!(tokens(&end["usage"]) <= most, "{end:#}");
    daemon.assert_sound();
}

/// A template of the configuration is asked for by code, as a tool, and by a client; its parameters are variables.
#[test]
fn a_template_is_asked_for_in_every_way() {
    let config = "\
[template.total]
prompt = \"total of {a}\"
parameters = { a = \"int\", b = \"int = 2\" }
schema = { type = \"integer\" }
system = \"You add.\"
[template.added]
prompt = \"total of {a}\"
parameters = { a = \"int\", b = \"int = 2\" }
schema = { type = \"integer\" }
description = \"Adds.\"
";
    let code = "print(ask('@total', parameters={'a': 1}) + added(a=40, b=1))\n\
                try:\n    ask(template='added', parameters={'a': 1})\nexcept ToolError as error:\n    print(error)";
    let sums = [runs("print(a + b)"), says("3")];
    let script = [
        conversation("go", &[runs(code), says("done")]),
        conversation("total of 1", &sums),
        conversation("total of 40", &[runs("print(a + b)"), says("41")]),
    ]
    .concat();
    let Some(daemon) = scripted(config, &script) else { return };
    let end = ask(&daemon, json!({"text": "go"}));
    assert_eq!(text(&end, "answer"), "done", "{end:#}");
    let finished = events_of(&daemon, "cell_finished").pop().expect("a result");
    let said = text(&finished, "/result/stdout");
    assert!(said.starts_with("44\n") && said.contains("`added` is a tool here"), "{finished:#}");
    let end = ask(&daemon, json!({"template": "total", "parameters": {"a": 1}, "fresh": true}));
    assert_eq!(end["value"], json!(3), "{end:#}");
    let finished = events_of(&daemon, "cell_finished").pop().expect("a result");
    assert_eq!(text(&finished, "/result/stdout"), "3\n", "{finished:#}");
    let history = daemon.http("GET", &format!("/v1/sessions/{S}/history"), b"").expect_status(200);
    assert_eq!(text(&history, "/messages/0/content"), "total of 1", "{history:#}");
    let refused = post(&daemon, "asks", &json!({"template": "total", "parameters": {"a": "x"}}));
    assert_eq!(refused.status, 400);
}

/// Asks one after the other, and prints what came of each.
const IN_TURN: &str = "\
for place in range(4):
    try:
        print(ask('the inner one'))
    except ToolError as error:
        print(error.message)";

#[test]
fn asks_within_an_ask_share_its_steps() {
    let script = [
        conversation("the inner one", &[runs("print(1)"), says("inner done")]),
        conversation("many", &[runs(IN_TURN), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    // One of its own, two each of the first two within, one of the third, which then has none, and the
    // last one, which is its own too.
    let end = ask(&daemon, json!({"text": "many", "limits": {"steps": 7}}));
    assert_eq!((text(&end, "answer"), number(&end, "/steps")), ("outer done", 7), "{end:#}");
    let finished = events_of(&daemon, "cell_finished").pop().expect("a result");
    let said: Vec<&str> = text(&finished, "/result/stdout").lines().collect();
    assert_eq!(said[..2], ["inner done"; 2], "{said:?}");
    assert!(said[2].contains("StepLimit"), "{said:?}");
    assert!(said[3].contains("of the 7 steps") && said[3].contains("--steps"), "{said:?}");
    let within: Vec<u64> =
        events_of(&daemon, "ask_spent_within").iter().map(|event| number(event, "/steps")).collect();
    assert_eq!(within, [1; 5]);
    // With as many as all of them want, all are answered; nothing of the one before is left to be bound by it.
    post(&daemon, "reset", &json!({})).expect_status(200);
    let end = ask(&daemon, json!({"text": "many", "fresh": true, "limits": {"steps": 10}}));
    assert_eq!((text(&end, "answer"), number(&end, "/steps")), ("outer done", 10), "{end:#}");
    daemon.assert_sound();
}

#[test]
fn a_person_may_take_longer_than_what_is_around_an_inner_ask() {
    let cell = json!({"python_code_snippet": "print(ask('the inner one'))", "timeout": 5});
    let script = [
        conversation("the inner one", &[runs("print('ran within')"), says("inner done")]),
        conversation("outer", &[calls("execute_python_code", &cell), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let number = begin(&daemon, json!({"text": "outer", "approval": "ask", "limits": {"seconds": 6}}));
    decide_next(&daemon, json!({"accept": {}}));
    let wanted = eventually("the call waits", || {
        approvals(&daemon).into_iter().find(|wanted| wanted["subject"]["name"] == "ask")
    });
    decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
    let wanted = eventually("the inner ask waits", || {
        approvals(&daemon)
            .into_iter()
            .find(|wanted| wanted["subject"]["code"].as_str().is_some_and(|code| code.contains("within")))
    });
    wait_for_state(&daemon, number, "waiting");
    assert_eq!(view(&daemon, number)["waits_for"], json!([wanted]));
    std::thread::sleep(Duration::from_millis(6500));
    assert_eq!(view(&daemon, number)["state"], "waiting");
    decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
    let end = end_of(&daemon, number);
    assert_eq!(text(&end, "answer"), "outer done", "{end:#}");
    let waited = events_of(&daemon, "ask_waits_within");
    let ids: Vec<Value> = waited.iter().map(|event| event["approvals"][0]["id"].clone()).collect();
    assert_eq!(ids, [wanted["id"].clone(), Value::Null], "{waited:#?}");
    daemon.assert_sound();
}

#[test]
fn an_ask_within_speaks_the_dialect_of_the_one_around_it() {
    let action = |action: &str, field: &str, value: &str| {
        says(&json!({"thought": "So.", "action": action, field: value}).to_string())
    };
    let script = [
        conversation("the inner one", &[action("provide_answer", "final_answer", "inner done")]),
        conversation(
            "outer",
            &[
                action("execute_code", "code", "print(ask('the inner one'))"),
                action("provide_answer", "final_answer", "outer done"),
            ],
        ),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let end = ask(&daemon, json!({"text": "outer", "dialect": "json_action"}));
    assert_eq!(text(&end, "answer"), "outer done", "{end:#}");
    let finished = events_of(&daemon, "cell_finished").pop().expect("a result");
    assert_eq!(text(&finished, "/result/stdout"), "inner done\n");
}

#[test]
fn a_person_decides_for_an_inner_ask_in_the_terminal_of_the_outer_one() {
    let script = [
        conversation("the inner one", &[runs("print('ran within')"), says("inner done")]),
        conversation("middle", &[runs("print(ask('the inner one'))"), says("middle done")]),
        conversation("outer", &[runs("print(ask('the middle one'))"), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let question = "\\[a\\]ccept, \\[e\\]dit.* > $";
    let call = "\\[a\\]ccept, \\[s\\]uggest a change, \\[r\\]eject.* > $";
    play(
        &daemon,
        &["ask", "-s", S, "--approval", "ask", "outer"],
        &[],
        &[
            Shows("^print\\(ask\\('the middle one'\\)\\)$"),
            Shows(question),
            Keys("a\r"),
            Shows("call the tool ask"),
            Shows(call),
            Keys("a\r"),
            Shows("approval wanted"),
            Shows("^print\\(ask\\('the inner one'\\)\\)$"),
            Shows(question),
            Keys("a\r"),
            Shows("call the tool ask"),
            Shows(call),
            Keys("a\r"),
            Shows("approval wanted"),
            Shows("^print\\('ran within'\\)$"),
            Shows(question),
            Keys("a\r"),
            Shows("^middle done$"),
            Shows("outer done"),
        ],
    );
    daemon.assert_sound();
}

/// A session whose model is behind a server that plays this.
fn playing(plays: Vec<Play>) -> Option<(Daemon, ModelServer)> {
    let server = ModelServer::start(plays);
    let daemon = session_with(&served(&server, ""), json!({"image": "belljar/base"}))?;
    Some((daemon, server))
}

fn cell(code: &str) -> Play {
    let arguments = json!({"python_code_snippet": code, "timeout": 30, "tool_call_purpose": "p"});
    Reply::call("execute_python_code", arguments).into()
}

fn call(name: &str, mut arguments: Value) -> Play {
    arguments["tool_call_purpose"] = json!("p");
    Reply::call(name, arguments).into()
}

/// The text of the last message of each request that the server got.
fn last_messages(server: &ModelServer) -> Vec<String> {
    let last =
        |request: &Value| list(request, "messages").last().map(|last| text(last, "content").to_owned());
    server.received().iter().filter_map(|request| last(&request.body)).collect()
}

const PRICES: &str = "\
prices, asked = {'tea': 3.5}, []
def price(name: str, **options) -> float:
    'The price of a thing.'
    asked.append(name)
    return prices[name]
";

#[test]
fn an_ask_calls_functions_of_the_cell_that_asks() {
    let Some((daemon, server)) = playing(vec![
        call("price", json!({"name": 5})),
        call("price", json!({"name": "tea", "colour": "green"})),
        call("price", json!({"name": "gold"})),
        cell("print(price(name='tea') * 2)"),
        Reply::text("two cost 7").into(),
    ]) else {
        return;
    };
    let code = format!("{PRICES}print(ask('what do two teas cost?', functions=[price]))\nprint(asked)");
    // The function ran in the cell, with its variables, and not with arguments that do not fit.
    assert_eq!(printed(&daemon, &code), "two cost 7\n['gold', 'tea']\n");
    let told = last_messages(&server);
    assert!(told[1].contains("expected string"), "{told:#?}");
    // What the function does not declare is refused, though its `**options` would take it.
    assert!(told[2].contains("colour"), "{told:#?}");
    assert!(told[3].contains("KeyError: 'gold'"), "{told:#?}");
    assert!(told[4].contains("7.0"), "{told:#?}");
    let first = &server.received()[0].body;
    let tools = list(first, "tools").iter();
    let price =
        tools.map(|tool| &tool["function"]).find(|tool| tool["name"] == "price").expect("the function");
    assert_eq!(price["description"], "The price of a thing.");
    assert_eq!(price["parameters"]["properties"]["name"]["type"], "string", "{price:#}");
    daemon.assert_sound();
}

#[test]
fn an_ask_finds_the_files_that_it_is_given_and_no_others() {
    const CODE: &str = "\
import os
os.makedirs('deep')
for path, words in [('a.csv', 'one'), ('deep/b.txt', 'two'), ('other.txt', 'three')]:
    with open(path, 'w') as file:
        file.write(words)
os.symlink('/etc/passwd', 'link')
print(ask('read them', files=['a.csv', '/workspace/deep/b.txt']))
for path in ['../x', '/etc/passwd', 'deep', 'link', 'missing']:
    try:
        ask('never', files=[path])
    except ToolError as error:
        print(error.message)
print(open('a.csv').read())";
    let Some((daemon, server)) = playing(vec![
        cell("import glob\nprint(open('a.csv').read(), open('deep/b.txt').read(), glob.glob('*'))"),
        cell("open('a.csv', 'w').write('changed')"),
        Reply::text("read").into(),
    ]) else {
        return;
    };
    let said = printed(&daemon, CODE);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("read", "one"), "{said}");
    assert!(lines[1].contains("leaves the folder"), "{said}");
    assert!(lines[2].contains("is not in the workspace"), "{said}");
    assert!(lines[3].contains("is a folder"), "{said}");
    assert_eq!((lines.len(), server.received().len()), (7, 3), "{said}");
    let told = last_messages(&server);
    assert!(told[0].contains("Files in your workspace: `a.csv`, `deep/b.txt`."), "{told:#?}");
    assert!(told[1].contains("one two") && !told[1].contains("other.txt"), "{told:#?}");
    daemon.assert_sound();
}

#[test]
fn an_interrupt_ends_the_function_and_the_ask_that_called_it() {
    let plays = vec![call("slow", json!({})), Reply::text("never").into()];
    let Some((daemon, server)) = playing(plays) else { return };
    let code = "import time\ndef slow():\n    print('begun', flush=True)\n    time.sleep(600)\n\
                ask('go', functions=[slow])";
    let waiting = queue(&daemon, &json!({"code": code, "timeout_s": 900}));
    wait_for_line(&daemon, waiting, "begun");
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_ended(&outcome(&daemon, waiting), "interrupted", "by_user", 0);
    assert_eq!(printed(&daemon, "print('on')"), "on\n");
    inner_session_goes(&daemon);
    assert_eq!(server.received().len(), 1);
    daemon.assert_sound();
}

fn inner_session_goes(daemon: &Daemon) {
    eventually("the session of the inner ask is gone", || {
        let sessions = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
        (list(&sessions, "sessions").len() == 1).then_some(())
    });
}

#[test]
fn an_ask_that_its_cell_does_not_wait_for_any_more_ends() {
    const CODE: &str = "\
import asyncio
try:
    await asyncio.wait_for(tools.aio.ask('go'), 5)
except asyncio.TimeoutError:
    print('gave up', flush=True)
await asyncio.sleep(600)";
    let sleeps = json!({"python_code_snippet": "import time\ntime.sleep(600)", "timeout": 500});
    let plays = vec![call("execute_python_code", sleeps), Reply::text("never").into()];
    let Some((daemon, server)) = playing(plays) else { return };
    let waiting = queue(&daemon, &json!({"code": CODE, "timeout_s": 900}));
    wait_for_line(&daemon, waiting, "gave up");
    inner_session_goes(&daemon);
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_ended(&outcome(&daemon, waiting), "interrupted", "by_user", 0);
    assert!(server.received().len() <= 1, "no model is asked about the end of its cell");
    daemon.assert_sound();
}

#[test]
fn a_person_allows_each_call_of_a_function_once() {
    let code = format!("{PRICES}print(ask('the inner one', functions=[price]))");
    let script = [
        conversation("the inner one", &[calls("price", &json!({"name": "tea"})), says("3.5")]),
        conversation("outer", &[runs(&code), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let number = begin(&daemon, json!({"text": "outer", "approval": "ask"}));
    decide_next(&daemon, json!({"accept": {}}));
    // What the function returned is no new ask, and goes to the ask without a person.
    for name in ["ask", "price"] {
        let wanted = eventually(&format!("a call of {name} waits"), || {
            approvals(&daemon).into_iter().find(|wanted| wanted["subject"]["name"] == name)
        });
        decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
    }
    let end = end_of(&daemon, number);
    assert_eq!(text(&end, "answer"), "outer done", "{end:#}");
    daemon.assert_sound();
}

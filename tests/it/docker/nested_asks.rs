//! Asks that the code of an ask makes: what they share with it, and how they end with it.

use serde_json::{Value, json};
use std::time::Duration;

use super::asking::{
    approvals, ask, begin, calls, conversation, decide, decide_next, end_of, events_of, runs, says, scripted,
    view, wait_for_state,
};
use super::helpers::{S, number, post, text};
use super::repl::Step::{Keys, Shows};
use super::repl::play;
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
                try:\n    ask('@added', parameters={'a': 1})\nexcept ToolError as error:\n    print(error)";
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
    let cell = json!({"python_code_snippet": "print(ask('the inner one'))", "timeout": 8});
    let script = [
        conversation("the inner one", &[runs("print('ran within')"), says("inner done")]),
        conversation("outer", &[calls("execute_python_code", &cell), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let number = begin(&daemon, json!({"text": "outer", "approval": "ask", "limits": {"seconds": 9}}));
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
    std::thread::sleep(Duration::from_secs(10));
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

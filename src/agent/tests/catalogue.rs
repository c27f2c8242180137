//! The error catalogue: the mistakes of a model, and the answers to them.

use serde_json::json;

use super::*;
use crate::agent::effects::SetupProblem;
use crate::protocol::ask::{AskOutcome, ReplyCount};
use crate::protocol::chat::{ModelFailure, ModelFailureKind};

fn tool_calls() -> (AskMachine, Vec<Effect>) {
    started(spec(Dialect::ToolCalls), setup())
}

/// The answer to a call with these arguments.
fn answer_to_call(name: &str, arguments: &str) -> String {
    let (mut machine, _) = tool_calls();
    let effects = reply(&mut machine, calls("", &[("a", name, arguments)]));
    let answer = last_message(&effects);
    assert_eq!((answer.role, answer.tool_call_id.as_deref()), (Role::Tool, Some("a")));
    answer.content.clone()
}

#[test]
fn e1_a_legacy_function_call_is_executed_and_answered_in_its_role() {
    let (mut machine, _) = tool_calls();
    assert_eq!(
        effect_names(&reply(&mut machine, legacy("get_secret", "{}"))),
        ["tool function_1 get_secret"]
    );
    let effects = gave(&mut machine, "function_1", json!({"value": "abc"}));
    let answer = last_message(&effects);
    assert_eq!(answer.role, Role::Function);
    assert_eq!(
        (answer.name.as_deref(), answer.content.as_str()),
        (Some("get_secret"), "{\"value\":\"abc\"}")
    );
}

#[test]
fn e1_a_legacy_function_call_is_corrected_where_the_setting_says_so() {
    let setup = Setup { legacy_function_call: false, ..setup() };
    let mut chinese = spec(Dialect::ToolCalls);
    chinese.language = Language::Chinese;
    let (mut machine, _) = started(chinese, setup);
    let effects = reply(&mut machine, legacy("file_read", "{\"file_path\": \"schema.json\"}"));
    let last = last_message(&effects);
    assert_eq!(last.role, Role::User);
    assert_eq!(
        last.content,
        "没有定义function_call工具调用，无法执行function_call，请使用tool_calls调用工具。"
    );
    assert_eq!(effect_names(&effects), ["note", "model 2"]);
}

#[test]
fn e1_a_reply_with_both_kinds_of_calls_has_both_answered() {
    let both = || {
        let mut reply = calls("", &[("a", "get_secret", "{}")]);
        reply.message.function_call = legacy("get_secret", "{}").message.function_call;
        reply
    };
    let (mut machine, _) = tool_calls();
    assert_eq!(
        effect_names(&reply(&mut machine, both())),
        ["tool a get_secret", "tool function_1 get_secret"]
    );
    gave(&mut machine, "function_1", json!("two"));
    let effects = gave(&mut machine, "a", json!("one"));
    let roles: Vec<Role> = request(&effects).messages.iter().skip(2).map(|message| message.role).collect();
    assert_eq!(roles, [Role::Assistant, Role::Tool, Role::Assistant, Role::Function]);

    let (mut machine, _) =
        started(spec(Dialect::ToolCalls), Setup { legacy_function_call: false, ..setup() });
    assert_eq!(effect_names(&reply(&mut machine, both())), ["tool a get_secret"]);
    let effects = gave(&mut machine, "a", json!("one"));
    let roles: Vec<Role> = request(&effects).messages.iter().skip(2).map(|message| message.role).collect();
    assert_eq!(roles, [Role::Assistant, Role::Tool, Role::User]);
}

#[test]
fn e2_a_history_with_unanswered_calls_is_repaired_before_it_is_sent() {
    let broken = calls("", &[("a", "get_secret", "{}")]).message;
    let mut machine =
        AskMachine::new(spec(Dialect::ToolCalls), setup(), vec![Message::new(Role::User, "x"), broken]);
    let effects = machine.step(Input::Begin);
    assert_eq!(effect_names(&effects), ["note", "model 1"]);
    let roles: Vec<Role> = request(&effects).messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::User]);
}

#[test]
fn e3_arguments_that_are_no_json_are_explained() {
    for arguments in ["{\"answer\": \"x\",}", "{'answer': 'x'}", "[1]", "nothing"] {
        let answer = answer_to_call("provide_answer", arguments);
        assert!(
            answer.starts_with("The tool call failed: the arguments are no valid JSON object"),
            "{answer}"
        );
        assert!(answer.contains("line 1 column") && answer.contains(arguments), "{answer}");
    }
    assert!(answer_to_call("provide_answer", "").contains("`/answer`: is required"));
}

#[test]
fn e3_the_history_holds_no_arguments_that_a_server_cannot_parse() {
    let (mut machine, _) = tool_calls();
    let effects = reply(&mut machine, calls("", &[("a", "bad name!", "{")]));
    let call = &request(&effects).messages[2].tool_calls[0];
    assert_eq!((call.name.as_str(), call.arguments.as_str()), ("bad_name_", "{}"));
}

#[test]
fn e4_a_missing_field_is_named() {
    let answer = answer_to_call("execute_python_code", "{\"timeout\": 5}");
    assert!(answer.contains("`/python_code_snippet`: is required, but missing"), "{answer}");
}

#[test]
fn e5_wrong_types_and_unknown_fields_are_named_with_what_was_expected() {
    let answer = answer_to_call(
        "execute_python_code",
        "{\"python_code_snippet\": 1, \"timeout\": \"ten\", \"extra\": true}",
    );
    insta::assert_snapshot!(answer, @r#"
    The tool call failed: the arguments do not fit the schema of `execute_python_code`:
    - `/python_code_snippet`: expected string, got 1
    - `/timeout`: expected integer, got "ten"
    - `/extra`: there is no such field
    "#);
}

#[test]
fn e6_an_unknown_tool_is_answered_with_the_known_ones() {
    insta::assert_snapshot!(answer_to_call("telepathy", "{}"), @"The tool call failed: there is no tool `telepathy`. Known tools: compute_with_python, execute_python_code, get_secret, provide_answer, recursive_plan_tree_todo.");
}

#[test]
fn e6_people_see_calls_that_were_not_made() {
    let (mut machine, _) = tool_calls();
    let effects =
        reply(&mut machine, calls("", &[("a", "tele\u{1b}pathy", "{}"), ("b", "get_secret", "{}")]));
    assert_eq!(effect_names(&effects), ["note", "tool b get_secret"]);
    let Effect::Note { text } = &effects[0] else { panic!("{effects:?}") };
    assert!(
        text.starts_with(
            "the call of `tele\\u{1b}pathy` was not made: The tool call failed: there is no tool"
        ),
        "{text}"
    );
    let (mut machine, _) = started(spec(Dialect::ToolCalls), Setup { python: false, ..setup() });
    assert_eq!(effect_names(&reply(&mut machine, cell_call("a", "1"))), ["note", "model 2"]);
}

#[test]
fn e7_a_tool_without_a_description_is_found_before_the_start() {
    let mut spec = spec(Dialect::ToolCalls);
    assert_eq!(setup().check(&spec), Ok(()));
    spec.tools.push("weather_query".into());
    let problem = SetupProblem::NotDescribed("weather_query".into());
    assert_eq!(setup().check(&spec), Err(problem.clone()));
    let (_, effects) = started(spec, setup());
    assert_eq!(end(&effects).message, Some(problem.to_string()));
}

#[test]
fn e8_a_reply_of_only_calls_has_an_empty_text() {
    let (mut machine, _) = tool_calls();
    reply(&mut machine, calls("", &[("a", "get_secret", "{}")]));
    let effects = gave(&mut machine, "a", json!("s"));
    let wire = serde_json::to_value(&request(&effects).messages[2]).unwrap();
    assert_eq!(wire["content"], json!(""));
}

#[test]
fn e9_malformed_actions_are_fed_back_a_bounded_number_of_times() {
    for (bad, why) in [
        ("I would rather talk.", "no JSON object"),
        ("{\"thought\": \"x\", \"action\": \"execute_code\"}", "`code` is missing or empty"),
        ("{\"thought\": \"x\", \"action\": \"debug_error\", \"code\": \" \"}", "`code` is missing or empty"),
        ("{\"thought\": \"x\", \"action\": \"execute_code\", \"code\": 1}", "`code` has to be a text"),
        ("{\"thought\": \"x\", \"action\": \"dance\"}", "`action` is \"dance\", but has to be one of"),
        ("{\"thought\": \"x\", \"action\": \"provide_answer\"}", "`final_answer` is missing or empty"),
        ("", "it was empty"),
    ] {
        let (mut machine, _) = started(spec(Dialect::JsonAction), setup());
        let effects = reply(&mut machine, text(bad));
        assert!(last_message(&effects).content.contains(why), "{bad}: {}", last_message(&effects).content);
        reply(&mut machine, text(bad));
        let effects = reply(&mut machine, text(bad));
        assert_eq!(end(&effects).outcome, AskOutcome::Malformed, "{bad}");
    }
}

#[test]
fn e9_malformed_steps_and_tags_are_fed_back_too() {
    for (dialect, bad, why) in [
        (Dialect::NextStep, "{\"function\": {\"tool\": \"get_secret\"}}", "`current_state` has to be a text"),
        (Dialect::NextStep, "{\"current_state\": \"\", \"function\": 1}", "`function` has to be an object"),
        (
            Dialect::NextStep,
            "{\"current_state\": \"\", \"function\": {}}",
            "`function/tool` has to be a text",
        ),
        (
            Dialect::NextStep,
            "{\"current_state\": \"\", \"function\": {\"tool\": \"report_task_completion\"}}",
            "`function/answer`",
        ),
        (Dialect::XmlTags, "<execution-code> </execution-code>", "`execution-code` is missing or empty"),
        (
            Dialect::XmlTags,
            "<pip-dependencies-to-install>numpy</pip-dependencies-to-install>",
            "`execution-code` is missing or empty",
        ),
        (Dialect::XmlTags, "<execution-code>print(1)", "`<execution-code>` is not closed"),
        (Dialect::XmlTags, "print(1)</Execution-Code>", "`</execution-code>` closes nothing"),
        (
            Dialect::XmlTags,
            "It is 4.<pip-dependencies-to-install> </pip-dependencies-to-install>",
            "`pip-dependencies-to-install` is missing or empty",
        ),
        (
            Dialect::XmlTags,
            "<pip-dependencies-to-install>numpy",
            "`<pip-dependencies-to-install>` is not closed",
        ),
        (
            Dialect::XmlTags,
            "</pip-dependencies-to-install>",
            "`</pip-dependencies-to-install>` closes nothing",
        ),
    ] {
        let (mut machine, _) = started(spec(dialect), setup());
        let effects = reply(&mut machine, text(bad));
        assert!(last_message(&effects).content.contains(why), "{bad}: {}", last_message(&effects).content);
    }
    let (mut machine, _) = started(spec(Dialect::XmlTags), setup());
    let effects = reply(&mut machine, calls("", &[("a", "get_secret", "{}")]));
    assert!(last_message(&effects).content.contains("it used tool calls, which do not exist here"));
}

#[test]
fn e9_a_good_reply_clears_the_count() {
    let (mut machine, _) = started(spec(Dialect::JsonAction), setup());
    for step in 0..3 {
        reply(&mut machine, text("hm"));
        reply(&mut machine, text("hm"));
        reply(&mut machine, text("{\"action\": \"continue_debugging\", \"code\": \"1\"}"));
        let id = format!("step_{}", 2 + 3 * step);
        assert_eq!(effect_names(&ran(&mut machine, &id, "1")), [format!("model {}", 4 + 3 * step)]);
    }
}

#[test]
fn replies_that_have_not_the_agreed_form_are_counted_once_each() {
    let (mut machine, _) = tool_calls();
    reply(&mut machine, calls("", &[("a", "no_such_tool", "{}"), ("b", "provide_answer", "{}")]));
    reply(&mut machine, cell_call("c", "print("));
    let mut result = cell_result("", Some("SyntaxError: '(' was never closed"));
    result.reason = Reason::Syntax;
    machine.step(Input::CellFinished { id: "c".into(), result });
    let effects = reply(&mut machine, text("It is done."));
    assert_eq!(end(&effects).replies, ReplyCount { all: 3, valid: 1 });
}

#[test]
fn e10_code_that_does_not_parse_is_told_and_the_ask_goes_on() {
    let (mut machine, _) = tool_calls();
    reply(&mut machine, cell_call("a", "print("));
    let mut result = cell_result("", Some("SyntaxError: '(' was never closed"));
    result.reason = Reason::Syntax;
    let effects = machine.step(Input::CellFinished { id: "a".into(), result });
    let answer = &last_message(&effects).content;
    assert!(
        answer.contains("SyntaxError: '(' was never closed") && answer.contains("Nothing of the cell ran"),
        "{answer}"
    );
}

#[test]
fn e11_failures_in_a_row_lead_to_advice_and_then_to_the_end() {
    let (mut machine, _) = tool_calls();
    let mut advice = Vec::new();
    for attempt in 1..4 {
        let id = format!("c{attempt}");
        reply(&mut machine, cell_call(&id, &format!("{attempt}/0")));
        let effects = raised(&mut machine, &id, "ZeroDivisionError: division by zero");
        advice.push(last_message(&effects).content.lines().last().unwrap().to_owned());
    }
    assert!(!advice[0].contains("in a row"), "{advice:#?}");
    assert!(advice[1].starts_with("`execute_python_code` failed 2 times in a row."), "{advice:#?}");
    assert!(advice[2].contains("Mark this sub-task as skipped in the plan tree"), "{advice:#?}");
    // The success of another tool, or a failure of another one, says nothing about this one.
    reply(&mut machine, calls("", &[("s", "get_secret", "{}"), ("t", "telepathy", "{}")]));
    assert_eq!(effect_names(&gave(&mut machine, "s", json!(1))), ["model 5"]);
    reply(&mut machine, calls("still", &[("d", "execute_python_code", r#"{"python_code_snippet": "4/0"}"#)]));
    let effects = machine.step(Input::CellRefused { id: "d".into(), message: "the queue is full".into() });
    assert_eq!(end(&effects).outcome, AskOutcome::FailureLimit);
    assert_eq!(end(&effects).answer.as_deref(), Some("still"));
    assert_eq!(end(&effects).message.as_deref(), Some("`execute_python_code` failed 4 times in a row"));
}

#[test]
fn e11_calls_of_one_reply_fail_together_and_the_model_hears_of_it() {
    let mut limited = spec(Dialect::ToolCalls);
    limited.limits.failures = 3;
    let (mut machine, _) = started(limited, Setup { degrade_after: 2, ..setup() });
    let unknown = ["a", "b", "c", "d", "e"].map(|id| (id, "telepathy", "{}"));
    let effects = reply(&mut machine, calls("", &unknown));
    assert_eq!(request(&effects).messages.iter().filter(|message| message.role == Role::Tool).count(), 5);
    // The success of another tool is no progress with this one.
    reply(&mut machine, calls("", &[("f", "get_secret", "{}"), ("g", "telepathy", "{}")]));
    let effects = gave(&mut machine, "f", json!(1));
    assert!(last_message(&effects).content.contains("Mark this sub-task as skipped"), "{effects:#?}");
    let code = json!({"python_code_snippet": "open('x')"}).to_string();
    reply(&mut machine, calls("", &["h", "i", "j"].map(|id| (id, "execute_python_code", code.as_str()))));
    let mut effects = Vec::new();
    for id in ["h", "i", "j"] {
        effects = raised(&mut machine, id, "FileNotFoundError: x");
    }
    assert!(!last_message(&effects).content.contains("switched off"), "{effects:#?}");
    let effects = reply(&mut machine, calls("still", &[("k", "telepathy", "{}")]));
    assert_eq!(
        end(&effects).message.as_deref(),
        Some("3 times in a row a tool was called that is not there")
    );
}

#[test]
fn e11_what_broke_off_counts_among_the_tokens() {
    let (mut machine, effects) = tool_calls();
    let [Effect::AskModel { tokens: asked, .. }] = &effects[..] else { panic!("{effects:#?}") };
    assert!(machine.step(Input::Unanswered { tokens: asked + 7 }).is_empty());
    let effects = machine.step(Input::Cancel);
    assert_eq!(end(&effects).usage, Usage { prompt_tokens: *asked, completion_tokens: 7 });
}

#[test]
fn e11_steps_are_bounded() {
    let (mut machine, mut effects) = tool_calls();
    for step in 1..=10 {
        assert_eq!(effect_names(&effects), [format!("model {step}")]);
        reply(&mut machine, calls("", &[("a", "get_secret", "{}")]));
        let id = if step == 1 { "a".to_owned() } else { format!("a_{step}") };
        effects = gave(&mut machine, &id, json!(1));
    }
    assert_eq!(end(&effects).outcome, AskOutcome::StepLimit);
    assert_eq!((end(&effects).steps, end(&effects).usage.total()), (10, 1_100));
}

#[test]
fn e12_a_conversation_that_grows_too_long_is_cut() {
    let mut limited = spec(Dialect::ToolCalls);
    limited.limits.steps = 40;
    let setup = Setup { context_tokens: 6_000, tools: setup().tools[..1].to_vec(), ..setup() };
    limited.tools.truncate(1);
    let (mut machine, mut effects) = started(limited, setup);
    let mut notes = Vec::new();
    for step in 0..30 {
        let mut long = cell_call("c", &format!("print({step})"));
        long.usage = None;
        let run = reply(&mut machine, long);
        let [Effect::RunCell { id, .. }] = &run[..] else { panic!("{run:#?}") };
        effects = ran(&mut machine, id, &"output ".repeat(300));
        notes.extend(effects.iter().filter_map(|effect| match effect {
            Effect::Note { text } => Some(text.clone()),
            _ => None,
        }));
        let size: usize = request(&effects).messages.iter().map(|message| message.content.len()).sum();
        assert!(size < 6_000 * 3, "{size}");
    }
    assert!(notes.len() > 2 && notes[0].contains("shortened"), "{notes:#?}");
    let messages = &request(&effects).messages;
    assert_eq!(messages[1].content, "Return the secret backwards.");
    assert!(messages[2].content.starts_with("[Summary of earlier turns"), "{}", messages[2].content);
    assert!(messages[2].content.contains("- assistant: execute_python_code"), "{}", messages[2].content);
    assert!(
        crate::agent::history::repair(&mut messages.clone(), crate::agent::words::Words(Language::English))
            .is_empty()
    );
}

#[test]
fn e12_a_provider_that_finds_it_too_long_gets_half() {
    let (mut machine, _) = tool_calls();
    for id in ["a", "b", "c", "d"] {
        reply(&mut machine, cell_call(id, "x"));
        ran(&mut machine, id, &"y".repeat(1_500));
    }
    let too_long = |machine: &mut AskMachine| {
        let failure =
            ModelFailure { kind: ModelFailureKind::ContextTooLong, message: "too long".into(), attempts: 1 };
        machine.step(Input::ModelFailed { step: machine.steps(), failure })
    };
    assert_eq!(effect_names(&too_long(&mut machine)), ["note", "model 6"]);
    let mut effects = Vec::new();
    for _ in 0..10 {
        effects = too_long(&mut machine);
        if machine.has_ended() {
            break;
        }
    }
    assert_eq!(end(&effects).outcome, AskOutcome::ModelFailed);
}

#[test]
fn e12_tokens_are_bounded_also_where_nobody_counts_them() {
    let mut limited = spec(Dialect::ToolCalls);
    limited.limits.tokens = 5_000;
    let (mut machine, mut effects) = started(limited, setup());
    for step in 1..10 {
        let mut uncounted = calls("", &[("a", "get_secret", "{}")]);
        uncounted.usage = None;
        reply(&mut machine, uncounted);
        let id = if step == 1 { "a".to_owned() } else { format!("a_{step}") };
        effects = gave(&mut machine, &id, json!("x".repeat(1_000)));
        if machine.has_ended() {
            break;
        }
    }
    assert_eq!(end(&effects).outcome, AskOutcome::TokenLimit);
    assert!(end(&effects).usage.total() <= 5_000);
}

#[test]
fn e12_tokens_of_asks_within_count_too() {
    let mut limited = spec(Dialect::ToolCalls);
    limited.limits.tokens = 5_000;
    let (mut machine, _) = started(limited, setup());
    reply(&mut machine, cell_call("a", "ask('x')"));
    let usage = Usage { prompt_tokens: 4_500, completion_tokens: 400 };
    assert_eq!(machine.step(Input::SpentWithin { usage, steps: 1 }), []);
    assert_eq!(machine.usage().total(), 5_010);
    let effects = machine.step(Input::CellFinished { id: "a".into(), result: cell_result("", None) });
    assert_eq!(end(&effects).outcome, AskOutcome::TokenLimit);
}

#[test]
fn e11_steps_of_asks_within_count_too() {
    let mut limited = spec(Dialect::ToolCalls);
    limited.limits.steps = 4;
    let (mut machine, _) = started(limited, setup());
    reply(&mut machine, cell_call("a", "ask('x')"));
    assert_eq!(machine.step(Input::SpentWithin { usage: Usage::default(), steps: 2 }), []);
    let effects = machine.step(Input::CellFinished { id: "a".into(), result: cell_result("", None) });
    assert_eq!(
        (effect_names(&effects), machine.steps(), machine.steps_in_all()),
        (vec!["model 2".to_owned()], 2, 4)
    );
    let effects = reply(&mut machine, cell_call("b", "1"));
    assert_eq!(effect_names(&effects), ["cell b 1"]);
    let effects = machine.step(Input::CellFinished { id: "b".into(), result: cell_result("", None) });
    assert_eq!((end(&effects).outcome, end(&effects).steps), (AskOutcome::StepLimit, 4));
}

#[test]
fn e14_a_tool_that_fails_is_told_and_the_ask_goes_on() {
    let (mut machine, _) = tool_calls();
    reply(&mut machine, calls("", &[("a", "get_secret", "{}")]));
    let effects = broke(&mut machine, "a", "connection refused");
    assert_eq!(last_message(&effects).content, "The tool call failed: connection refused");
}

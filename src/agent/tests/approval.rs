//! The order of calls, and the decisions of people about them.

use serde_json::json;

use super::*;
use crate::protocol::ask::{AskOutcome, Decision, Subject};

fn asking(cells: bool, tools: &[&str]) -> AskMachine {
    started(spec(Dialect::ToolCalls), Setup { approvals: approvals(cells, tools), ..setup() }).0
}

fn decided(machine: &mut AskMachine, id: &str, decision: Decision) -> Vec<Effect> {
    machine.step(Input::Decided { id: id.into(), decision })
}

fn code(text: &str) -> String {
    json!({"python_code_snippet": text}).to_string()
}

#[test]
fn cells_run_in_their_order_and_other_tools_at_once() {
    let mut machine = asking(false, &[]);
    let effects = reply(
        &mut machine,
        calls(
            "",
            &[
                ("a", "execute_python_code", &code("1")),
                ("b", "get_secret", "{}"),
                ("c", "exec_code", &json!({"code": "2", "timeout": null}).to_string()),
                ("d", "get_secret", "{}"),
            ],
        ),
    );
    assert_eq!(effect_names(&effects), ["cell a 1", "tool b get_secret", "tool d get_secret"]);
    assert_eq!(machine.outstanding(), effects);
    assert_eq!(effect_names(&gave(&mut machine, "d", json!("4"))), Vec::<String>::new());
    assert_eq!(effect_names(&ran(&mut machine, "a", "one")), ["cell c 2"]);
    assert_eq!(effect_names(&ran(&mut machine, "a", "again")), Vec::<String>::new());
    assert_eq!(effect_names(&gave(&mut machine, "b", json!("2"))), Vec::<String>::new());
    assert_eq!(effect_names(&machine.outstanding()), ["cell c 2"]);
    let effects = ran(&mut machine, "c", "three");
    let ids: Vec<_> =
        request(&effects).messages.iter().filter_map(|message| message.tool_call_id.clone()).collect();
    assert_eq!(ids, ["a", "b", "c", "d"]);
}

#[test]
fn cells_and_named_tools_wait_for_a_person() {
    let mut machine = asking(true, &["get_secret"]);
    let calls = calls(
        "",
        &[
            ("a", "execute_python_code", &code("1")),
            ("b", "execute_python_code", &code("2")),
            ("c", "get_secret", "{}"),
            ("d", "recursive_plan_tree_todo", "{\"recursive_plan_tree\": {}}"),
        ],
    );
    let effects = reply(&mut machine, calls);
    assert_eq!(effect_names(&effects), ["person a", "person c", "tool d recursive_plan_tree_todo"]);
    gave(&mut machine, "d", json!({}));
    assert_eq!(
        effect_names(&decided(&mut machine, "c", Decision::Accept { code: None })),
        ["tool c get_secret"]
    );
    assert_eq!(
        effects[0],
        Effect::AskPerson {
            id: "a".into(),
            subject: Subject::Cell { code: "1".into(), timeout_s: 30.0, purpose: None }
        }
    );
    assert_eq!(effect_names(&ran(&mut machine, "a", "not yet")), Vec::<String>::new());
    let accept = Decision::Accept { code: Some("one".into()) };
    assert_eq!(effect_names(&decided(&mut machine, "a", accept.clone())), ["cell a one"]);
    assert_eq!(effect_names(&decided(&mut machine, "a", accept)), Vec::<String>::new());
    assert_eq!(effect_names(&ran(&mut machine, "a", "done")), ["person b"]);
    gave(&mut machine, "c", json!("s"));
    let effects = decided(&mut machine, "b", Decision::Edit { text: "b = 3".into() });
    let answers: Vec<&str> = request(&effects)
        .messages
        .iter()
        .filter(|message| message.role == Role::Tool)
        .map(|message| message.content.as_str())
        .collect();
    assert!(answers[0].starts_with("A person changed the code before it ran."), "{answers:#?}");
    assert!(
        answers[1].starts_with("It was not run. A person would rather have it like this"),
        "{answers:#?}"
    );
    assert!(answers[1].ends_with("b = 3"), "{answers:#?}");
}

#[test]
fn named_tools_wait_for_a_person_and_a_rejection_ends_the_ask() {
    let mut machine = asking(false, &["provide_answer"]);
    let both = || {
        calls("", &[("a", "provide_answer", "{\"answer\": \"x\"}"), ("b", "execute_python_code", &code("1"))])
    };
    assert_eq!(effect_names(&reply(&mut machine, both())), ["person a", "cell b 1"]);
    ran(&mut machine, "b", "");
    let effects = decided(&mut machine, "a", Decision::Respond { text: "ask me later".into() });
    assert_eq!(
        request(&effects).messages[3].content,
        "It was not run. A person answered instead:\nask me later"
    );

    reply(&mut machine, both());
    let effects = decided(&mut machine, "a_2", Decision::Reject { reason: Some("no".into()) });
    assert_eq!((end(&effects).outcome, end(&effects).message.as_deref()), (AskOutcome::Rejected, Some("no")));
    assert_eq!(machine.outstanding(), []);
    assert_eq!(machine.step(Input::Cancel), []);
    let roles: Vec<Role> = machine.into_history().iter().rev().take(3).map(|message| message.role).collect();
    assert_eq!(roles, [Role::Tool, Role::Tool, Role::Assistant]);
}

#[test]
fn other_names_of_tools_and_parameters_are_understood() {
    let mut machine = asking(false, &[]);
    for (name, arguments, wanted) in [
        ("execute_python_code", json!({"code": "1"}), "cell c1 1"),
        ("exec_code", json!({"code_snippet": "1"}), "cell c2 1"),
        ("update_recursive_plan_tree", json!({"current_plan_tree": {}}), "tool c3 recursive_plan_tree_todo"),
    ] {
        let id = wanted.split(' ').nth(1).unwrap();
        let effects = reply(&mut machine, calls("", &[(id, name, &arguments.to_string())]));
        assert_eq!(effect_names(&effects), [wanted]);
        ran(&mut machine, id, "");
    }
    let effects = reply(&mut asking(false, &[]), calls("", &[("c", "GetSecretTool", "{}")]));
    assert_eq!(effect_names(&effects), ["tool c get_secret"]);
}

#[test]
fn a_time_limit_is_kept_within_bounds() {
    let mut machine = asking(false, &[]);
    for (timeout, wanted) in [(json!(5), 5.0), (json!(100_000), 3_600.0), (json!(null), 30.0)] {
        let arguments = json!({"python_code_snippet": "1", "timeout": timeout}).to_string();
        let effects = reply(&mut machine, calls("", &[("a", "execute_python_code", &arguments)]));
        let [Effect::RunCell { id, timeout_s, .. }] = &effects[..] else { panic!("{effects:#?}") };
        assert_eq!(timeout_s.total_cmp(&wanted), std::cmp::Ordering::Equal);
        ran(&mut machine, &id.clone(), "");
    }
}

#[test]
fn python_that_is_switched_off_is_said_to_be() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), Setup { python: false, ..setup() });
    let effects = reply(&mut machine, cell_call("a", "1"));
    assert!(last_message(&effects).content.starts_with("Python is switched off"));
    assert!(request(&effects).tools.iter().any(|tool| tool.name == "execute_python_code"));

    let (mut machine, _) = started(spec(Dialect::ToolCalls), Setup { degrade_after: 2, ..setup() });
    for id in ["a", "b"] {
        reply(&mut machine, cell_call(id, "1/0"));
        raised(&mut machine, id, "ZeroDivisionError: division by zero");
    }
    let effects = reply(&mut machine, cell_call("c", "1"));
    assert!(last_message(&effects).content.starts_with("Python is switched off"), "{effects:#?}");
    assert_eq!(end(&reply(&mut machine, text("by reasoning: 0"))).outcome, AskOutcome::Answered);
}

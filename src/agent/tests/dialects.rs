//! The same task in every dialect, with the shape of its history.

use serde_json::json;

use super::*;
use crate::protocol::ask::AskOutcome;

/// The messages after the system prompt, as they are sent.
fn history(effects: &[Effect]) -> String {
    serde_json::to_string_pretty(&request(effects).messages[1..]).unwrap()
}

fn answered(effects: &[Effect]) {
    let end = end(effects);
    assert_eq!((end.outcome, end.steps), (AskOutcome::Answered, 3), "{end:#?}");
    assert!(end.answer.as_ref().unwrap().contains("$21,386.41"), "{end:#?}");
}

fn asked(dialect: Dialect) -> AskMachine {
    let text = "15,000 at 6 %, compounded twice a year, after 6 years?".into();
    let mut spec = AskSpec { text, ..spec(dialect) };
    spec.tools = vec!["execute_python_code".into()];
    started(spec, setup()).0
}

const NAME_ERROR: &str = "NameError: name 'n' is not defined";
const WRONG: &str = "print(15000 * (1 + .06 / n) ** (n * 6))";
const RIGHT: &str = "n = 2\nprint(f'${15000 * (1 + .06 / n) ** (n * 6):,.2f}')";

#[test]
fn compound_interest_by_tool_calls() {
    let mut machine = asked(Dialect::ToolCalls);
    assert_eq!(
        effect_names(&reply(&mut machine, cell_call("call_1", WRONG))),
        [format!("cell call_1 {WRONG}")]
    );
    raised(&mut machine, "call_1", NAME_ERROR);
    reply(&mut machine, cell_call("call_2", RIGHT));
    let effects = ran(&mut machine, "call_2", "$21,386.41\n");
    insta::assert_snapshot!(history(&effects));
    answered(&reply(&mut machine, text("It grows to $21,386.41.")));
}

#[test]
fn compound_interest_by_next_step() {
    let mut machine = asked(Dialect::NextStep);
    let step = |state: &str, code: &str| {
        let function = json!({"tool": "execute_python_code", "python_code_snippet": code});
        text(&json!({"current_state": state, "function": function}).to_string())
    };
    assert_eq!(
        effect_names(&reply(&mut machine, step("Compute it.", WRONG))),
        [format!("cell step_0 {WRONG}")]
    );
    raised(&mut machine, "step_0", NAME_ERROR);
    reply(&mut machine, step("n was missing.", RIGHT));
    let effects = ran(&mut machine, "step_1", "$21,386.41\n");
    insta::assert_snapshot!(history(&effects));
    let done = json!({"current_state": "Done.", "function": {"tool": "report_task_completion", "answer": "It grows to $21,386.41."}});
    answered(&reply(&mut machine, text(&done.to_string())));
}

#[test]
fn compound_interest_by_json_action() {
    let mut machine = asked(Dialect::JsonAction);
    let first = json!({"thought": "Use the formula.", "action": "execute_code", "code": WRONG}).to_string();
    assert_eq!(effect_names(&reply(&mut machine, text(&first))), [format!("cell step_0 {WRONG}")]);
    raised(&mut machine, "step_0", NAME_ERROR);
    let second = json!({"thought": "n was missing.", "action": "debug_error", "code": RIGHT}).to_string();
    reply(&mut machine, text(&format!("```json\n{second}\n```")));
    let effects = ran(&mut machine, "step_1", "$21,386.41\n");
    insta::assert_snapshot!(history(&effects));
    answered(&reply(
        &mut machine,
        text(
            "{\"thought\": \"Done.\", \"action\": \"provide_answer\", \"final_answer\": \"It grows to $21,386.41.\",}",
        ),
    ));
}

#[test]
fn compound_interest_by_xml_tags() {
    let mut machine = asked(Dialect::XmlTags);
    let code = |code: &str| text(&format!("I compute it.\n<execution-code>\n{code}\n</execution-code>"));
    assert_eq!(effect_names(&reply(&mut machine, code(WRONG))), [format!("cell step_0 {WRONG}")]);
    raised(&mut machine, "step_0", NAME_ERROR);
    reply(&mut machine, code(RIGHT));
    let effects = ran(&mut machine, "step_1", "$21,386.41\n");
    insta::assert_snapshot!(history(&effects));
    answered(&reply(&mut machine, text("It grows to $21,386.41.")));
}

/// The original task of this dialect, with its own tools.
#[test]
fn a_secret_backwards_by_next_step() {
    let (mut machine, _) = started(spec(Dialect::NextStep), setup());
    let step = |state: &str, function: serde_json::Value| {
        text(&json!({"current_state": state, "function": function}).to_string())
    };
    assert_eq!(
        effect_names(&reply(&mut machine, step("I need the secret.", json!({"tool": "get_secret"})))),
        ["tool step_0 get_secret"]
    );
    gave(&mut machine, "step_0", json!({"value": "NcS9euQa"}));
    let function =
        json!({"tool": "compute_with_python", "code": "'NcS9euQa'[::-1]", "description": "Reverse it."});
    reply(&mut machine, step("Now reverse it.", function));
    gave(&mut machine, "step_1", json!("aQue9ScN"));
    reply(&mut machine, step("Hand it in.", json!({"tool": "provide_answer", "answer": "aQue9ScN"})));
    let effects = gave(&mut machine, "step_2", json!("accepted"));
    insta::assert_snapshot!(history(&effects));
    let schema = &request(&effects).answer.as_ref().unwrap().schema;
    let members: Vec<&str> = schema["properties"]["function"]["anyOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["properties"]["tool"]["enum"][0].as_str().unwrap())
        .collect();
    assert_eq!(
        members,
        [
            "execute_python_code",
            "compute_with_python",
            "get_secret",
            "provide_answer",
            "recursive_plan_tree_todo",
            "report_task_completion"
        ]
    );
}

#[test]
fn packages_that_the_image_lacks_are_named_and_the_code_does_not_run() {
    let mut machine = asked(Dialect::XmlTags);
    let with = |packages: &str| {
        text(&format!(
            "<pip-dependencies-to-install>{packages}</pip-dependencies-to-install><execution-code>1</execution-code>"
        ))
    };
    let effects = reply(&mut machine, with("numpy, torch, json, torch"));
    let answer = &last_message(&effects).content;
    assert!(
        answer.contains(
            "cannot be installed here: torch. Beside the standard library there is: numpy, pandas."
        ),
        "{answer}"
    );
    // A package that only another one needs is there, too, though the model is not told of it.
    assert_eq!(effect_names(&reply(&mut machine, with("Pandas>=2, pytz"))), ["cell step_1 1"]);
    let (mut machine, effects) =
        started(spec(Dialect::XmlTags), Setup { dependencies: ImagePackages::default(), ..setup() });
    let none = "Beside the standard library there is: no package that is known of.";
    let asked_with = |effects: &[Effect]| format!("{effects:?}");
    assert!(asked_with(&effects).contains(none), "{effects:?}");
    let effects = reply(&mut machine, with("torch"));
    assert!(last_message(&effects).content.contains(none), "{effects:?}");
}

#[test]
fn packages_that_the_image_lacks_are_installed_by_the_cell_if_the_model_may() {
    let mut may = setup();
    may.tools.push(tool("install_packages", json!({"packages": {"type": "array"}}), &["packages"]));
    let tools: Vec<String> = may.tools.iter().map(|tool| tool.name.clone()).collect();
    let spec = AskSpec { tools, ..spec(Dialect::XmlTags) };
    let (mut machine, effects) = started(spec.clone(), may.clone());
    let prompt = format!("{effects:?}");
    assert!(
        prompt.contains("`%pip install NAME` in a cell installs a package for the session. Beside"),
        "{prompt}"
    );
    let reply = reply(
        &mut machine,
        text(
            "<pip-dependencies-to-install>numpy, torch>=2, <3, argparse, x\"y</pip-dependencies-to-install><execution-code>1</execution-code>",
        ),
    );
    assert_eq!(effect_names(&reply), ["cell step_0 install_packages([\"torch>=2,<3\",\"x\\\"y\"])\n1"]);
    // With a person in between the prompt says so, and without the tool that nothing can be installed.
    let asked = AskSpec { also_approve: vec!["install_packages".into()], ..spec.clone() };
    let (_, effects) = started(asked, may.clone());
    assert!(format!("{effects:?}").contains("a person decides about each request"), "{effects:?}");
    let none = AskSpec { tools: vec!["execute_python_code".into()], ..spec };
    let (_, effects) = started(none, may);
    assert!(format!("{effects:?}").contains("There is no network. Nothing can be installed."), "{effects:?}");
}

#[test]
fn a_model_without_tool_messages_sees_results_as_text() {
    let spec = AskSpec { tools: vec!["execute_python_code".into()], ..spec(Dialect::XmlTags) };
    let (mut machine, _) = started(spec, Setup { model_tools: false, ..setup() });
    reply(&mut machine, text("<execution-code>1</execution-code>"));
    let effects = ran(&mut machine, "step_0", "one");
    let [_, _, reply, result] = &request(&effects).messages[..] else { panic!() };
    assert_eq!(*reply, Message::new(Role::Assistant, "<execution-code>1</execution-code>"));
    assert_eq!(result.role, Role::User);
}

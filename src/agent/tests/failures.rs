//! Failures in a row, and what a model and a person hear of them.

use serde_json::json;

use super::*;
use crate::protocol::ask::AskOutcome;

#[test]
fn e11_a_step_that_failed_and_is_repeated_is_pointed_out_once_and_then_ends_the_ask() {
    let mut patient = spec(Dialect::XmlTags);
    patient.limits.failures = 9;
    let (mut machine, _) = started(patient, setup());
    let mut told = Vec::new();
    for attempt in 0..3 {
        reply(&mut machine, text("<execution-code>1/0</execution-code>"));
        let effects = raised(&mut machine, &format!("step_{attempt}"), "ZeroDivisionError: division by zero");
        if machine.has_ended() {
            assert_eq!(end(&effects).outcome, AskOutcome::RepeatedFailure);
        } else {
            told.push(last_message(&effects).content.clone());
        }
    }
    assert!(machine.has_ended());
    assert_eq!(told[0], "ZeroDivisionError: division by zero\n");
    assert!(told[1].contains("This is the same step that failed before"), "{told:#?}");
}

#[test]
fn e11_a_repeated_step_is_known_also_by_another_purpose_and_lean_asks_hear_of_no_plan() {
    let mut patient = AskSpec { lean: true, ..spec(Dialect::ToolCalls) };
    patient.limits.failures = 3;
    let (mut machine, _) = started(patient, setup());
    let call = |id: &str, purpose: &str| {
        let arguments = json!({"python_code_snippet": "1/0", "tool_call_purpose": purpose}).to_string();
        calls("", &[(id, "execute_python_code", arguments.as_str())])
    };
    reply(&mut machine, call("a", "try it"));
    raised(&mut machine, "a", "ZeroDivisionError");
    reply(&mut machine, call("b", "try it again"));
    let effects = raised(&mut machine, "b", "ZeroDivisionError");
    let told = &last_message(&effects).content;
    assert!(told.contains("Skip this sub-task") && !told.contains("plan tree"), "{told}");
    let mut patient = spec(Dialect::ToolCalls);
    patient.limits.failures = 9;
    let (mut machine, _) = started(patient, setup());
    for (id, purpose) in [("a", "try"), ("b", "again")] {
        reply(&mut machine, call(id, purpose));
        let effects = raised(&mut machine, id, "ZeroDivisionError");
        assert_eq!(last_message(&effects).content.contains("the same step that failed"), id == "b");
    }
}

#[test]
fn e11_failed_expressions_count_and_python_is_given_up_for_them() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), Setup { degrade_after: 2, ..setup() });
    let compute = |id: &str, code: &str| {
        calls("", &[(id, "compute_with_python", &json!({"code": code, "description": "d"}).to_string())])
    };
    let error = "PythonError: NameError: name 'x' is not defined";
    let fails = |machine: &mut AskMachine, id: &str| {
        let failure = ToolFailure { code: "python_error".into(), message: error.into() };
        machine.step(Input::ToolFinished { id: id.into(), outcome: ToolOutcome::Failure(failure) })
    };
    reply(&mut machine, compute("a", "x"));
    assert_eq!(last_message(&fails(&mut machine, "a")).content, error);
    reply(&mut machine, cell_call("b", "1"));
    ran(&mut machine, "b", "1\n");
    reply(&mut machine, compute("c", "x + 1"));
    let effects = fails(&mut machine, "c");
    assert!(last_message(&effects).content.contains("Python failed 2 times in a row"), "{effects:#?}");
    let effects = reply(&mut machine, cell_call("d", "2"));
    assert!(last_message(&effects).content.contains("Python is switched off"), "{effects:#?}");
}

#[test]
fn a_wish_for_time_that_was_cut_is_told() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), setup());
    let call = |id: &str, timeout: u32| {
        let arguments = json!({"python_code_snippet": "1", "timeout": timeout}).to_string();
        calls("", &[(id, "execute_python_code", arguments.as_str())])
    };
    reply(&mut machine, call("a", 7_200));
    let effects = ran(&mut machine, "a", "1");
    let told = &last_message(&effects).content;
    assert!(
        told.ends_with("7200 seconds were asked for; 3600 seconds are the most that a cell may take here.\n"),
        "{told}"
    );
    reply(&mut machine, call("b", 60));
    let effects = ran(&mut machine, "b", "1");
    assert!(!last_message(&effects).content.contains("were asked for"), "{effects:#?}");
}

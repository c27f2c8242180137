//! Typed answers, follow-ups, refusals, prompts, ends.

use serde_json::json;

use super::*;
use crate::protocol::ask::AskOutcome;
use crate::protocol::chat::{ModelFailure, ModelFailureKind};

fn typed_spec(dialect: Dialect) -> AskSpec {
    let mut spec = spec(dialect);
    spec.schema = Some(json!({
        "type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"],
        "additionalProperties": false,
    }));
    spec
}

fn machine_with_schema(dialect: Dialect) -> AskMachine {
    started(typed_spec(dialect), setup()).0
}

#[test]
fn a_typed_answer_is_corrected_until_it_fits() {
    let mut machine = machine_with_schema(Dialect::ToolCalls);
    let effects = reply(&mut machine, text("It is {\"count\": \"two\"}."));
    assert!(last_message(&effects).content.contains("- `/count`: expected integer, got \"two\""));
    let effects = reply(&mut machine, text("```json\n{\"count\": 2}\n```"));
    assert_eq!(end(&effects).outcome, AskOutcome::Answered);
    assert_eq!(end(&effects).value, Some(json!({"count": 2})));
}

#[test]
fn a_typed_answer_that_never_fits_ends_as_malformed() {
    let mut machine = machine_with_schema(Dialect::NextStep);
    let done = json!({"current_state": "", "function": {"tool": "report_task_completion", "answer": {"count": 1.5}}});
    reply(&mut machine, text(&done.to_string()));
    reply(&mut machine, text(&done.to_string()));
    let effects = reply(&mut machine, text(&done.to_string()));
    assert_eq!(end(&effects).outcome, AskOutcome::Malformed);
    assert!(end(&effects).message.as_ref().unwrap().contains("`/count`"));
}

#[test]
fn the_schema_of_the_answer_is_asked_for_where_no_tool_is_in_the_way() {
    assert_eq!(request(&machine_with_schema(Dialect::ToolCalls).outstanding()).answer, None);
    let (_, effects) = started(AskSpec { tools: Vec::new(), ..typed_spec(Dialect::ToolCalls) }, setup());
    assert_eq!(request(&effects).answer.as_ref().unwrap().name, "answer");
    let mut machine = machine_with_schema(Dialect::JsonAction);
    let effects = reply(
        &mut machine,
        text("{\"thought\": \"\", \"action\": \"provide_answer\", \"final_answer\": {\"count\": 2}}"),
    );
    assert_eq!(end(&effects).value, Some(json!({"count": 2})));
}

#[test]
fn the_next_ask_goes_on_where_the_last_one_ended() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), setup());
    reply(&mut machine, cell_call("a", "1"));
    machine.step(Input::TimeUp);
    let mut next = AskMachine::new(spec(Dialect::ToolCalls), setup(), machine.into_history());
    let effects = next.step(Input::Begin);
    assert_eq!(effect_names(&effects), ["model 1"]);
    let roles: Vec<Role> = request(&effects).messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::User]);
    assert_eq!(effect_names(&reply(&mut next, cell_call("a", "2"))), ["cell a_2 2"]);

    let fresh = AskSpec { fresh: true, ..spec(Dialect::ToolCalls) };
    let mut fresh = AskMachine::new(fresh, setup(), next.into_history());
    assert_eq!(request(&fresh.step(Input::Begin)).messages.len(), 2);
}

#[test]
fn a_dialect_without_calls_is_told_of_earlier_ones_in_text() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), setup());
    reply(&mut machine, cell_call("a", "1"));
    ran(&mut machine, "a", "one");
    let mut next = AskMachine::new(spec(Dialect::JsonAction), setup(), machine.into_history());
    let effects = next.step(Input::Begin);
    let roles: Vec<Role> = request(&effects).messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User, Role::User]);
}

#[test]
fn every_other_end_has_its_outcome() {
    let failure = |kind| Input::ModelFailed {
        step: 1,
        failure: ModelFailure { kind, message: "gone".into(), attempts: 3 },
    };
    let refusing = ChatReply { refusal: Some("I may not".into()), ..text("") };
    let filtered = ChatReply { finish: Finish::ContentFilter, ..text("") };
    let replied = |reply| Input::ModelReplied { step: 1, reply: Box::new(reply) };
    for (input, outcome) in [
        (Input::Cancel, AskOutcome::Cancelled),
        (Input::TimeUp, AskOutcome::TimeLimit),
        (Input::SandboxFailed { message: "no image".into() }, AskOutcome::SandboxFailed),
        (failure(ModelFailureKind::Authentication), AskOutcome::ModelFailed),
        (failure(ModelFailureKind::Cancelled), AskOutcome::Cancelled),
        (replied(refusing), AskOutcome::ModelFailed),
        (replied(filtered), AskOutcome::ModelFailed),
    ] {
        let (mut machine, _) = started(spec(Dialect::ToolCalls), setup());
        let effects = machine.step(input);
        assert_eq!(end(&effects).outcome, outcome);
        assert_eq!(reply(&mut machine, text("too late")), []);
    }
}

#[test]
fn a_reply_that_was_cut_or_is_for_another_step_is_no_answer() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), setup());
    assert_eq!(machine.step(Input::ModelReplied { step: 2, reply: Box::new(text("early")) }), []);
    let cut = ChatReply { finish: Finish::Length, ..text("The answer is") };
    assert!(last_message(&reply(&mut machine, cut)).content.contains("cut off"));
    assert!(last_message(&reply(&mut machine, text(" "))).content.contains("empty"));
    assert_eq!(end(&reply(&mut machine, text("42"))).answer.as_deref(), Some("42"));
}

#[test]
fn too_many_calls_in_one_reply_are_not_all_made() {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), setup());
    let many = calls("", &[("a", "get_secret", "{}"); 40]);
    let effects = reply(&mut machine, many);
    assert_eq!(effects.len(), 32);
    let mut last = Vec::new();
    for effect in effects {
        let Effect::CallTool { id, .. } = effect else { panic!() };
        last = gave(&mut machine, &id, json!(1));
    }
    assert!(last_message(&last).content.starts_with("8 further calls of your last reply were not executed"));
}

/// The result of a cell that shows a number of pictures, and one that is none.
fn result_with_pictures(stdout: &str, pictures: usize) -> Box<ExecutionResult> {
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x09\0\0\0\x09rest";
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, png);
    let display = |content: &str| {
        let mime = json!({"image/png": content, "text/plain": "figure"}).as_object().unwrap().clone();
        crate::protocol::result::Display { mime }
    };
    let mut result = cell_result(stdout, None);
    result.displays = (0..pictures).map(|_| display(&base64)).collect();
    result.displays.push(display("no"));
    result
}

/// A machine of a model that sees, and its request after a cell with this result.
fn shown(result: Box<ExecutionResult>) -> (AskMachine, Vec<Effect>) {
    let (mut machine, _) = started(spec(Dialect::ToolCalls), Setup { vision: true, ..setup() });
    reply(&mut machine, cell_call("a", "plot()"));
    let effects = machine.step(Input::CellFinished { id: "a".into(), result });
    (machine, effects)
}

fn refused(machine: &mut AskMachine, kind: ModelFailureKind) -> Vec<Effect> {
    let failure = ModelFailure { kind, message: "no".into(), attempts: 1 };
    machine.step(Input::ModelFailed { step: machine.steps(), failure })
}

#[test]
fn a_request_that_is_too_long_loses_its_pictures_first() {
    let output = "y".repeat(1_500);
    let (mut machine, effects) = shown(result_with_pictures(&output, 4));
    assert_eq!(last_message(&effects).pictures.len(), 4);
    let effects = refused(&mut machine, ModelFailureKind::ContextTooLong);
    assert_eq!(effect_names(&effects), ["note", "model 3"]);
    let messages = &request(&effects).messages;
    assert!(messages.iter().all(|message| message.pictures.is_empty()));
    assert!(messages.iter().any(|message| message.content.contains(&output)), "{messages:#?}");
    // Then the result is shortened, until nothing is left to cut.
    let mut effects = refused(&mut machine, ModelFailureKind::ContextTooLong);
    assert_eq!(effect_names(&effects), ["note", "model 4"]);
    for _ in 0..4 {
        if !machine.has_ended() {
            effects = refused(&mut machine, ModelFailureKind::ContextTooLong);
        }
    }
    assert_eq!(end(&effects).outcome, AskOutcome::ModelFailed);
}

#[test]
fn a_request_that_is_refused_is_made_once_more_without_pictures() {
    // A restart of the daemon drops the pictures, but the ask has to take the same path.
    for is_restarted in [false, true] {
        let mut result = result_with_pictures("", 1);
        if is_restarted {
            result.leave_out_displays();
        }
        let (mut machine, effects) = shown(result);
        assert_eq!(last_message(&effects).pictures.is_empty(), is_restarted);
        let effects = refused(&mut machine, ModelFailureKind::InvalidRequest);
        assert_eq!(effect_names(&effects), ["note", "model 3"]);
        let last = last_message(&effects);
        assert!(last.pictures.is_empty() && last.content.starts_with("[Pictures that the code showed, "));
        assert_eq!(last.content.contains("refused"), !is_restarted);
        let effects = refused(&mut machine, ModelFailureKind::InvalidRequest);
        assert_eq!(end(&effects).outcome, AskOutcome::ModelFailed);
    }
}

#[test]
fn a_broken_picture_is_told_with_the_result() {
    let (mut machine, effects) = shown(result_with_pictures("", 0));
    let told = last_message(&effects);
    assert_eq!(told.role, Role::Tool);
    assert!(told.content.contains("1 picture is not here, because"), "{}", told.content);
    assert!(!told.content.contains("smaller"), "{}", told.content);
    let effects = refused(&mut machine, ModelFailureKind::InvalidRequest);
    assert_eq!(end(&effects).outcome, AskOutcome::ModelFailed);
}

#[test]
fn pictures_are_shown_to_models_that_see_and_the_newest_stay() {
    for vision in [false, true] {
        let (mut machine, _) = started(spec(Dialect::ToolCalls), Setup { vision, ..setup() });
        let mut last = Vec::new();
        for id in ["a", "b"] {
            reply(&mut machine, cell_call(id, "plot()"));
            let result = result_with_pictures("", 3);
            last = machine.step(Input::CellFinished { id: id.into(), result });
        }
        let messages = &request(&last).messages;
        let shown: Vec<(usize, &str)> = messages
            .iter()
            .filter(|message| message.content.to_lowercase().contains("pictures that the code showed"))
            .map(|message| (message.pictures.len(), message.content.lines().next().unwrap()))
            .collect();
        let expected = [
            (0, "[Pictures that the code showed, no longer here]"),
            (3, "The pictures that the code showed:"),
        ];
        assert_eq!(shown, if vision { expected.to_vec() } else { Vec::new() });
        let history = machine.into_history();
        assert!(history.iter().all(|message| message.pictures.is_empty()));
    }
}

#[test]
fn a_file_may_replace_the_prompt() {
    let setup = Setup {
        prompt: Some("W={workspace} D={dependencies} C={context} J={\"a\": {tools}} {unknown}".into()),
        ..setup()
    };
    let mut spec = spec(Dialect::XmlTags);
    spec.tools = vec!["execute_python_code".into(), "provide_answer".into()];
    spec.context = json!({"readings": [1]}).as_object().unwrap().clone();
    let (_, effects) = started(spec, setup);
    assert_eq!(
        request(&effects).messages[0].content,
        "W=/workspace D=numpy, pandas C=`readings` J={\"a\": - `provide_answer(answer: str)`: Does provide_answer.} {unknown}"
    );
}

#[test]
fn prompts_say_what_a_model_has_to_know_in_both_languages() {
    for dialect in [Dialect::ToolCalls, Dialect::NextStep, Dialect::JsonAction, Dialect::XmlTags] {
        for language in [Language::English, Language::Chinese] {
            let mut spec = AskSpec { language, ..spec(dialect) };
            spec.schema = Some(json!({"type": "integer"}));
            spec.context = json!({"readings": [1]}).as_object().unwrap().clone();
            let (_, effects) = started(spec, setup());
            let prompt = &request(&effects).messages[0].content;
            for word in [
                "/workspace",
                "numpy, pandas",
                "last_result",
                "UTF-8",
                "`readings`",
                "recursive_plan_tree_todo",
                "{\"type\":\"integer\"}",
            ] {
                assert!(prompt.contains(word), "{word} is not in {prompt}");
            }
            // A tool is described once: in the prompt, or beside the messages.
            let beside = request(&effects).tools.iter().any(|tool| tool.name == "get_secret");
            assert_ne!(prompt.contains("get_secret"), beside, "{prompt}");
            let contract = match dialect {
                Dialect::ToolCalls => "tool_calls",
                Dialect::NextStep => "\"tool\": \"report_task_completion\"",
                Dialect::JsonAction => "debug_error",
                Dialect::XmlTags => "<pip-dependencies-to-install>",
            };
            assert!(prompt.contains(contract) && !prompt.contains("{tools}"), "{prompt}");
        }
    }
}

/// Providers reuse the work on a beginning that they have seen.
#[test]
fn what_changes_from_ask_to_ask_comes_last_in_the_prompt() {
    for dialect in [Dialect::ToolCalls, Dialect::NextStep, Dialect::JsonAction, Dialect::XmlTags] {
        let prompt = |schema: Option<Value>, context: Value| {
            let context = context.as_object().unwrap().clone();
            let (_, effects) = started(AskSpec { schema, context, ..spec(dialect) }, setup());
            request(&effects).messages[0].content.clone()
        };
        let usual = prompt(None, json!({}));
        let full = prompt(Some(json!({"type": "integer"})), json!({"readings": [1]}));
        assert!(full.len() > usual.len() && full.starts_with(&usual), "{full}");
    }
}

#[test]
fn a_system_prompt_of_the_ask_leaves_the_model_its_means() {
    let own = AskSpec { system: Some("You write plainly.".into()), ..spec(Dialect::JsonAction) };
    let (_, effects) = started(own, Setup { prompt: Some("the file's".into()), ..setup() });
    let prompt = &request(&effects).messages[0].content;
    assert!(prompt.starts_with("You write plainly.\n"), "{prompt}");
    assert!(prompt.contains("provide_answer") && prompt.contains("/workspace"), "{prompt}");
    assert!(!prompt.contains("the file's") && !prompt.contains("# How you work"), "{prompt}");
}

//! Random models, sandboxes and people: no behaviour of theirs breaks a guarantee of the machine.

use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;

use super::*;
use crate::protocol::ask::Decision;
use crate::protocol::chat::{ModelFailure, ModelFailureKind};

/// An event; the numbers choose among the outstanding effects.
#[derive(Clone, Debug)]
enum Event {
    Reply(Box<ChatReply>),
    /// Answers one of the outstanding effects.
    Answer(usize, u8),
    /// An answer to no outstanding effect.
    Junk(u8),
    Stop(u8),
}

fn replies() -> impl Strategy<Value = ChatReply> {
    let names = prop_oneof![
        Just("execute_python_code"),
        Just("exec_code"),
        Just("get_secret"),
        Just("compute_with_python"),
        Just("nonsense"),
        Just(""),
    ];
    let arguments = prop_oneof![
        Just("{\"python_code_snippet\": \"1\"}".to_owned()),
        Just("{\"code\": \"1\", \"description\": \"\"}".to_owned()),
        Just("{}".to_owned()),
        "\\PC{0,8}",
    ];
    let ids = prop_oneof![Just(String::new()), Just("a".to_owned()), "\\PC{0,3}"];
    let contents = prop_oneof![
        Just(String::new()),
        Just("{\"thought\": \"t\", \"action\": \"execute_code\", \"code\": \"1\"}".to_owned()),
        Just("{\"current_state\": \"t\", \"function\": {\"tool\": \"get_secret\"}}".to_owned()),
        Just("<execution-code>1</execution-code>".to_owned()),
        "\\PC{0,20}",
    ];
    let finish =
        prop_oneof![8 => Just(Finish::ToolCalls), 1 => Just(Finish::Length), 1 => Just(Finish::Stop)];
    let usage = proptest::option::of(
        (0..2_000_u64).prop_map(|tokens| Usage { prompt_tokens: tokens, completion_tokens: 1 }),
    );
    let calls = proptest::collection::vec((ids, names, arguments), 0..5);
    (contents, calls, any::<bool>(), finish, usage).prop_map(|(content, calls, function, finish, usage)| {
        let mut reply = text(&content);
        for (id, name, arguments) in calls {
            reply.message.tool_calls.push(ToolCall { id, name: name.to_owned(), arguments });
        }
        if function {
            reply.message.function_call = legacy("get_secret", "{}").message.function_call;
        }
        reply.finish = finish;
        reply.usage = usage;
        reply
    })
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        30 => replies().prop_map(|reply| Event::Reply(Box::new(reply))),
        60 => (any::<usize>(), any::<u8>()).prop_map(|(which, how)| Event::Answer(which, how)),
        9 => any::<u8>().prop_map(Event::Junk),
        1 => any::<u8>().prop_map(Event::Stop),
    ]
}

fn asks() -> impl Strategy<Value = (AskSpec, Setup)> {
    let dialects = prop_oneof![
        3 => Just(Dialect::ToolCalls), 1 => Just(Dialect::NextStep), 1 => Just(Dialect::JsonAction), 1 => Just(Dialect::XmlTags),
    ];
    let approvals = prop_oneof![
        Just(approvals(false, &[])),
        Just(approvals(true, &["compute_with_python", "get_secret"])),
        Just(approvals(false, &["get_secret"])),
    ];
    (dialects, approvals, 0..8_u32, 0..6_u32, any::<bool>(), 0..3_u32, 1_500..20_000_u64).prop_map(
        |(dialect, approvals, steps, failures, legacy, degrade_after, context_tokens)| {
            let mut spec = spec(dialect);
            spec.limits.steps = steps;
            spec.limits.failures = failures;
            spec.limits.tokens = context_tokens * 5;
            let setup =
                Setup { approvals, legacy_function_call: legacy, degrade_after, context_tokens, ..setup() };
            (spec, setup)
        },
    )
}

fn answer_to(effect: &Effect, how: u8) -> Input {
    match effect {
        Effect::AskModel { step, .. } => {
            let kind =
                if how < 128 { ModelFailureKind::ContextTooLong } else { ModelFailureKind::ServerError };
            Input::ModelFailed {
                step: *step,
                failure: ModelFailure { kind, message: "m".into(), attempts: 1 },
            }
        }
        Effect::RunCell { id, .. } => match how % 4 {
            0 => Input::CellRefused { id: id.clone(), message: "full".into() },
            1 => Input::CellFinished { id: id.clone(), result: cell_result("", Some("E: e")) },
            _ => Input::CellFinished {
                id: id.clone(),
                result: cell_result(&"o".repeat(usize::from(how) * 8), None),
            },
        },
        Effect::CallTool { id, .. } => {
            let failure = ToolFailure { code: "failed".into(), message: "f".into() };
            let outcome = if how.is_multiple_of(3) {
                ToolOutcome::Failure(failure)
            } else {
                ToolOutcome::Value(json!(how))
            };
            Input::ToolFinished { id: id.clone(), outcome }
        }
        Effect::AskPerson { id, .. } => {
            let decision = match how % 16 {
                0 => Decision::Reject { reason: None },
                1..4 => Decision::Respond { text: "r".into() },
                4..6 => Decision::Edit { text: "e".into() },
                6..8 => Decision::Accept { code: Some("edited".into()) },
                _ => Decision::Accept { code: None },
            };
            Input::Decided { id: id.clone(), decision }
        }
        Effect::Note { .. } | Effect::Finish { .. } => Input::Begin,
    }
}

fn junk(how: u8) -> Input {
    let id = ["", "a", "step_0", "function_1"][usize::from(how % 4)].to_owned();
    match how / 4 % 7 {
        0 => Input::Begin,
        1 => Input::ModelReplied { step: 1_000, reply: Box::new(text("late")) },
        2 => Input::CellFinished { id: format!("{id}!"), result: cell_result("", None) },
        3 => Input::ToolFinished { id: format!("{id}!"), outcome: ToolOutcome::Value(json!(null)) },
        4 => Input::CellRefused { id: format!("{id}!"), message: String::new() },
        5 => Input::SpentWithin {
            usage: Usage { prompt_tokens: u64::from(how) * 20, completion_tokens: u64::from(how) },
            steps: u32::from(how % 2),
        },
        _ => Input::Decided { id: format!("{id}!"), decision: Decision::Accept { code: None } },
    }
}

/// Written independently of `history`, so that it cannot share a mistake with it.
fn assert_valid(request: &ChatRequest) {
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut function = false;
    for message in &request.messages {
        match message.role {
            Role::Tool => assert!(open.remove(message.tool_call_id.as_deref().unwrap()), "{request:#?}"),
            Role::Function => assert!(std::mem::take(&mut function), "{request:#?}"),
            Role::System | Role::User | Role::Assistant => {
                assert!(open.is_empty() && !function, "{request:#?}");
                open.extend(message.tool_calls.iter().map(|call| call.id.as_str()));
                assert_eq!(open.len(), message.tool_calls.len(), "{request:#?}");
                function = message.function_call.is_some();
            }
        }
    }
    assert!(open.is_empty() && !function, "{request:#?}");
}

fn is_cell(effect: &Effect) -> bool {
    match effect {
        Effect::RunCell { .. } => true,
        Effect::AskPerson { subject, .. } => matches!(subject, crate::protocol::ask::Subject::Cell { .. }),
        Effect::AskModel { .. } | Effect::CallTool { .. } | Effect::Note { .. } | Effect::Finish { .. } => {
            false
        }
    }
}

/// Checks what has to hold after each input.
fn check(machine: &AskMachine, spec: &AskSpec, effects: &[Effect], ended: bool) {
    if ended {
        assert_eq!(effects, [], "an ended ask stays ended");
    }
    let outstanding = machine.outstanding();
    assert!(
        outstanding.iter().filter(|effect| is_cell(effect)).count() <= 1,
        "cells run one after the other"
    );
    assert!(machine.steps() <= spec.limits.steps);
    for effect in effects {
        match effect {
            Effect::AskModel { request, .. } => {
                assert_valid(request);
                assert_eq!(&outstanding, std::slice::from_ref(effect), "all calls are answered first");
            }
            Effect::RunCell { .. } | Effect::CallTool { .. } | Effect::AskPerson { .. } => {
                assert!(outstanding.contains(effect) || machine.has_ended());
            }
            Effect::Note { .. } => {}
            Effect::Finish { .. } => assert!(machine.has_ended() && outstanding.is_empty()),
        }
    }
    assert!(machine.has_ended() || !outstanding.is_empty(), "somebody always has the next move");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_sequence_of_inputs_breaks_a_promise((spec, setup) in asks(), events in proptest::collection::vec(events(), 0..120)) {
        let mut machine = AskMachine::new(spec.clone(), setup.clone(), Vec::new());
        let mut log = Vec::new();
        let mut give = |machine: &mut AskMachine, input: Input| {
            let ended = machine.has_ended();
            let effects = machine.step(input.clone());
            check(machine, &spec, &effects, ended);
            log.push((input, effects));
        };
        give(&mut machine, Input::Begin);
        for event in events {
            let outstanding = machine.outstanding();
            let input = match event {
                Event::Reply(reply) => Input::ModelReplied { step: machine.steps(), reply },
                Event::Answer(which, how) => match outstanding.get(which.checked_rem(outstanding.len()).unwrap_or(0)) {
                    Some(effect @ Effect::AskModel { .. }) if how > 20 => {
                        let _ = effect;
                        continue;
                    }
                    Some(effect) => answer_to(effect, how),
                    None => continue,
                },
                Event::Junk(how) => junk(how),
                Event::Stop(how) => match how % 5 {
                    0 => Input::Cancel,
                    1 => Input::TimeUp,
                    2 => Input::OutOfTokens,
                    3 => Input::OutOfSteps,
                    _ => Input::SandboxFailed { message: "s".into() },
                },
            };
            give(&mut machine, input);
        }

        let mut again = AskMachine::new(spec.clone(), setup.clone(), Vec::new());
        for (input, effects) in log {
            prop_assert_eq!(again.step(input), effects);
        }
        prop_assert_eq!(again.outstanding(), machine.outstanding());
        let history = machine.into_history();
        prop_assert_eq!(&again.into_history(), &history);
        assert_valid(&ChatRequest { messages: history, tools: Vec::new(), answer: None, reply_tokens: None });
    }

    /// A limit stops a model that never gives a final answer.
    #[test]
    fn every_ask_comes_to_its_end((spec, setup) in asks(), reply in replies(), how in any::<u8>()) {
        let mut machine = AskMachine::new(spec.clone(), setup, Vec::new());
        machine.step(Input::Begin);
        let mut inputs = 0;
        while !machine.has_ended() {
            let effect = machine.outstanding().remove(0);
            machine.step(match &effect {
                Effect::AskModel { step, .. } => Input::ModelReplied { step: *step, reply: Box::new(reply.clone()) },
                other => answer_to(other, how),
            });
            inputs += 1;
            prop_assert!(inputs < 200);
        }
    }
}

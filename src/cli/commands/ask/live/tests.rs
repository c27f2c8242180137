//! Recorded events, and what a person sees of them.

use serde_json::{Value, json};

use super::*;
use crate::cli::commands::ask::approval::tests::{approval, cell};
use crate::cli::render::block::render;
use crate::protocol::ask::{AskNumber, AskState};
use crate::protocol::chat::{Message, ModelFailure, Role, ToolCall};
use crate::protocol::event::{CellOrigin, Counters};
use crate::protocol::exit_codes::tests::result;
use crate::protocol::frames::ToolFailure;
use crate::protocol::principal::Principal;
use crate::protocol::result::{Artifact, Change, ExceptionView, Mode, Reason, Status, Stream, ValueView};

fn live(dialect: Dialect) -> LiveView {
    LiveView::new(&AskView {
        ask: 1,
        state: AskState::Queued,
        text: "how much?".into(),
        model: "m".into(),
        dialect,
        steps: 0,
        usage: Usage::default(),
        waits_for: Vec::new(),
        events_after: 0,
        end: None,
    })
}

/// The text that a stream without colours would show.
fn text(live: &mut LiveView, events: &[EventBody]) -> String {
    let mut out = String::new();
    for event in events.iter().filter(|event| live.concerns(event)).collect::<Vec<_>>() {
        for block in live.show(event) {
            let flows = matches!(block, Block::Flow(_));
            if !flows && !out.is_empty() && !out.ends_with('\n') {
                out.push('\n');
            }
            match block {
                Block::Flow(text) => out.push_str(&text),
                block => {
                    out.push_str(&render(&block, false));
                    out.push('\n');
                }
            }
        }
    }
    out
}

fn asked(step: u32) -> EventBody {
    EventBody::ModelAsked { ask: 1, step }
}

fn delta(text: &str) -> EventBody {
    EventBody::ModelText { ask: 1, step: 1, text: text.into(), is_reasoning: false }
}

fn replied(content: &str, calls: usize) -> EventBody {
    let mut message = Message::new(Role::Assistant, content);
    let call = ToolCall { id: "c1".into(), name: "x".into(), arguments: "{}".into() };
    message.tool_calls = vec![call; calls];
    let usage = Some(Usage { prompt_tokens: 1_000, completion_tokens: 234 });
    let reply = ChatReply { message, reasoning: None, refusal: None, finish: Finish::Stop, usage };
    EventBody::ModelReplied { ask: 1, step: 1, reply: Box::new(reply) }
}

fn queued(cell: CellNumber, code: &str, ask: AskNumber) -> EventBody {
    queued_for(cell, code, ask, None)
}

fn queued_for(cell: CellNumber, code: &str, ask: AskNumber, purpose: Option<&str>) -> EventBody {
    let origin = Some(CellOrigin { ask, id: "c1".into(), purpose: purpose.map(Into::into) });
    EventBody::CellQueued {
        cell,
        mode: Mode::Main,
        code: code.into(),
        command: None,
        expression: false,
        timeout_s: 30.0,
        origin,
        bound_by: None,
        replays: None,
        commands_ahead: 0,
    }
}

fn output(cell: CellNumber, text: &str) -> EventBody {
    EventBody::Output { cell: Some(cell), stream: Stream::Stdout, text: text.into(), base64: None }
}

fn arguments(value: Value) -> serde_json::Map<String, Value> {
    let Value::Object(map) = value else { panic!("no object") };
    map
}

fn name_error(cell: CellNumber) -> EventBody {
    let mut failed = result(Status::Failure, Reason::Exception, Some(0));
    failed.cell = cell;
    failed.exception = Some(ExceptionView {
        type_name: "NameError".into(),
        value: "name 'y' is not defined".into(),
        repr: "NameError(\"name 'y' is not defined\")".into(),
        traceback:
            "Traceback (most recent call last):\n  cell 2, line 1\nNameError: name 'y' is not defined\n"
                .into(),
    });
    EventBody::CellFinished { result: Box::new(failed) }
}

#[test]
fn an_ask_is_told_in_sections() {
    let mut done = result(Status::Success, Reason::Ok, Some(0));
    done.result =
        Some(ValueView { repr: "21386.41".into(), type_name: "float".into(), mime: serde_json::Map::new() });
    done.artifacts = vec![Artifact { path: "plot.png".into(), bytes: 2048, change: Change::New }];
    let call = EventBody::ToolCalled {
        cell: Some(1),
        call: 7,
        name: "session_info".into(),
        arguments: arguments(json!({})),
        refused_bytes: None,
        lent: None,
        held: false,
    };
    let own = EventBody::AskToolCalled {
        ask: 1,
        id: "c2".into(),
        name: "get_secret".into(),
        arguments: arguments(json!({"name": "first", "n": 3})),
    };
    let failure = ToolFailure { code: "failed".into(), message: "it is locked".into() };
    let plan = PlanVersion {
        version: 2,
        tree: json!({}),
        changes: vec!["a: pending → completed".into()],
        markdown: "- [✅] **a**\n  > result: 6\n- [⏳] **b**".into(),
        statistics: serde_json::Map::new(),
    };
    let mut watched = live(Dialect::ToolCalls);
    let output = text(
        &mut watched,
        &[
            asked(1),
            delta("I comp"),
            delta("ute it."),
            replied("I compute it.", 1),
            queued(1, "import math\n15_000 * 1.0425\n", 1),
            EventBody::CellStarted { cell: 1, command: false, before: Counters::default() },
            output(1, "half a li"),
            output(1, "ne\nand"),
            call,
            EventBody::ToolAnswered { call: 7, outcome: ToolOutcome::Value(json!({"cells": 1})) },
            output(1, "more"),
            // These belong to another ask.
            queued(3, "print('other')", 2),
            output(3, "other"),
            EventBody::ModelText { ask: 2, step: 1, text: "other".into(), is_reasoning: false },
            EventBody::CellFinished { result: Box::new(done) },
            asked(2),
            queued(2, "y", 1),
            name_error(2),
            own,
            EventBody::AskToolAnswered { ask: 1, id: "c2".into(), outcome: ToolOutcome::Failure(failure) },
            EventBody::PlanChanged { ask: Some(1), plan: Box::new(plan) },
            EventBody::AskNoted { ask: 1, note: "the history was shortened".into() },
            asked(3),
            delta("It is $21,386.41."),
            replied("It is $21,386.41.", 0),
        ],
    );
    insta::assert_snapshot!(output, @r#"
    ── model
    I compute it.
    ── code · cell 1
    import math
    15_000 * 1.0425
    ── output
    half a line
    and
    ── tool session_info()
    ── tool answer
    {"cells":1}
    ── output
    more
    ── result
    21386.41
    file: /workspace/plot.png (new, 2 KiB)
    ── code · cell 2
    y
    ── exception
    Traceback (most recent call last):
      cell 2, line 1
    NameError: name 'y' is not defined
    ── tool get_secret(n=3, name="first")
    ── tool answer get_secret · failed
    it is locked
    ── plan · version 2
    - [✅] **a**
      > result: 6
    - [⏳] **b**
    the history was shortened
    ── model
    It is $21,386.41.
    "#);
    assert!(watched.has_shown("It is $21,386.41.\n") && !watched.has_shown("It is"));
    assert_eq!(watched.status(), "thinking · step 3 · 2468 tokens");
}

#[test]
fn restored_variables_are_not_said_to_be_gone() {
    let lost =
        |restored_to| EventBody::StateLost { reason: "the worker died".into(), restored_to, gone: None };
    let output = text(&mut live(Dialect::ToolCalls), &[lost(Some(2)), lost(Some(0)), lost(None)]);
    insta::assert_snapshot!(output, @r"
    warning: the variables are as after cell 2: the worker died
    warning: the variables are as at the start: the worker died
    warning: all variables are gone: the worker died
    ");
}

#[test]
fn json_is_shown_as_thought_and_code() {
    let reply = r#"{"thought": "I add.", "action": "execute_code", "code": "1 + 1"}"#;
    let output = text(
        &mut live(Dialect::JsonAction),
        &[asked(1), delta(&reply[..20]), delta(&reply[20..]), replied(reply, 0), queued(1, "1 + 1", 1)],
    );
    insta::assert_snapshot!(output, @r"
    ── thought
    I add.
    ── code
    1 + 1
    ── code · cell 1 · as above
    ");
}

#[test]
fn an_answer_in_json_that_was_shown_is_not_shown_again() {
    let reply = r#"{"thought": "Done.", "action": "provide_answer", "final_answer": "It is 2."}"#;
    let mut live = live(Dialect::JsonAction);
    let output = text(&mut live, &[asked(1), delta(&reply[..60]), delta(&reply[60..]), replied(reply, 0)]);
    insta::assert_snapshot!(output, @r"
    ── thought
    Done.
    ── model
    It is 2.
    ");
    assert!(live.has_shown("It is 2.") && !live.has_shown("It is 3."));
}

#[test]
fn the_purpose_of_a_cell_is_shown() {
    let reply = r#"{"thought": "I add.", "action": "execute_code", "code": "1 + 1"}"#;
    let output = text(
        &mut live(Dialect::JsonAction),
        &[
            queued_for(1, "x = 1", 1, Some("Set x")),
            asked(1),
            delta(reply),
            replied(reply, 0),
            queued_for(2, "1 + 1", 1, Some("Add")),
        ],
    );
    insta::assert_snapshot!(output, @r"
    ── code · cell 1 · Set x
    x = 1
    ── thought
    I add.
    ── code
    1 + 1
    ── code · cell 2 · as above · Add
    ");
}

#[test]
fn a_reply_that_broke_off_is_told_anew() {
    let failure = ModelFailure {
        kind: crate::protocol::chat::ModelFailureKind::CutOff,
        message: "the stream broke off".into(),
        attempts: 1,
    };
    let failed = EventBody::ModelFailed { ask: 1, step: 1, failure, retry_in_s: Some(0.52) };
    let output = text(
        &mut live(Dialect::ToolCalls),
        &[asked(1), delta("It"), failed, delta("It is 4."), replied("It is 4.", 0)],
    );
    insta::assert_snapshot!(output, @r"
    ── model
    It
    warning: the model failed: the stream broke off; it is asked again in 0.5 s
    ── model
    It is 4.
    ");
}

#[test]
fn code_that_was_approved_is_not_shown_twice() {
    let wanted = |id: &str| EventBody::ApprovalWanted { approval: Box::new(approval(id, cell("x = 1"))) };
    let decided = |id: &str, code: Option<&str>| EventBody::ApprovalDecided {
        id: id.into(),
        decision: Decision::Accept { code: code.map(Into::into) },
        by: Some(Principal::new(1000)),
    };
    let output = text(
        &mut live(Dialect::ToolCalls),
        &[
            wanted("1a"),
            decided("1a", None),
            queued(1, "x = 1", 1),
            wanted("1b"),
            decided("zz", None),
            decided("1b", Some("x = 2")),
            queued(2, "x = 2", 1),
            queued(3, "x = 1", 1),
        ],
    );
    insta::assert_snapshot!(output, @r"
    ── approval wanted · 1a · run this
    x = 1
    accepted
    ── code · cell 1 · as approved
    ── approval wanted · 1b · run this
    x = 1
    accepted with changed code
    ── code · cell 2
    x = 2
    ── code · cell 3
    x = 1
    ");
}

#[test]
fn reasoning_is_shown_by_lines_as_it_comes_and_only_once() {
    let mut live = live(Dialect::ToolCalls);
    let thinks = |text: &str| EventBody::ModelText { ask: 1, step: 1, text: text.into(), is_reasoning: true };
    assert_eq!(live.show(&thinks("I nee")), []);
    let first = live.show(&thinks("d two.\nThen"));
    assert_eq!(first, [Block::Head(Section::Reasoning, String::new()), Block::Aside("I need two.".into())]);
    let last = live.show(&delta("It is"));
    assert_eq!(last[0], Block::Aside("Then".into()));
    let mut reply = replied("It is 2.", 0);
    if let EventBody::ModelReplied { reply, .. } = &mut reply {
        reply.reasoning = Some("I need two.\nThen".into());
    }
    let shown = live.show(&reply);
    assert!(!shown.iter().any(|block| matches!(block, Block::Aside(_))), "{shown:?}");
}

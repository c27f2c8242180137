//! Tests of the fold of asks, with that of the session beside it.

use super::*;
use crate::protocol::ask::{Approval, Decision};
use crate::protocol::ask::{ApprovalPolicy, AskLimits, Dialect, Language, ReplyCount, Subject};
use crate::protocol::ids::{SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::result::{ExecutionResult, Mode};
use crate::session::restore::Fold;
use std::sync::Arc;

const TOLD_CHARS: usize = 200;

fn at(second: u64) -> String {
    format!("2026-01-01T00:00:{second:02}.000Z")
}

fn started() -> EventBody {
    let spec = AskSpec {
        text: "t".into(),
        model: "m".into(),
        dialect: Dialect::ToolCalls,
        language: Language::English,
        approval: ApprovalPolicy::Ask,
        also_approve: Vec::new(),
        tools: Vec::new(),
        lean: false,
        schema: None,
        context: serde_json::Map::new(),
        system: None,
        restricted: false,
        limits: AskLimits { steps: 1, failures: 1, tokens: 1, seconds: 1.0 },
        fresh: false,
        depth: 0,
    };
    EventBody::AskStarted { ask: 1, spec: Box::new(spec) }
}

fn wanted(id: &str, second: u64) -> EventBody {
    let approval = Approval {
        id: id.into(),
        session: SessionId::fresh(),
        session_name: SessionName::parse("s").unwrap(),
        owner: Principal::ANN,
        ask: Some(1),
        call: Some(id.into()),
        cell: None,
        bound_by: None,
        subject: Subject::Cell { code: "1".into(), timeout_s: 1.0, purpose: None },
        asked_at: at(second),
        deadline_s: None,
        by_default: None,
    };
    EventBody::ApprovalWanted { approval: Box::new(approval) }
}

fn decided(id: &str) -> EventBody {
    EventBody::ApprovalDecided {
        id: id.into(),
        decision: Decision::Accept { code: None },
        by: Some(Principal::ANN),
    }
}

fn memory(events: impl IntoIterator<Item = (u64, EventBody)>) -> RecalledAsks {
    let (mut session, mut asks) = (Fold::new(&Arc::default()), AsksFold::new(TOLD_CHARS));
    for (second, body) in events {
        let event = Event { seq: second, at: at(second), body };
        let decided = session.take(&event, Moment::now());
        asks.take(event, decided, &session.so_far().approvals);
    }
    asks.end(session.end(&BTreeMap::new(), Moment::now()).approvals)
}

/// How long the ask has worked by the last of the events.
fn worked(events: impl IntoIterator<Item = (u64, EventBody)>) -> Duration {
    let cancelled = AskEnd {
        outcome: AskOutcome::Cancelled,
        answer: None,
        value: None,
        message: None,
        steps: 1,
        usage: Usage::default(),
        replies: ReplyCount::default(),
    };
    let events =
        events.into_iter().chain([(20, EventBody::AskFinished { ask: 1, end: Box::new(cancelled) })]);
    memory(events).asks[&1].work_time(Moment::now())
}

#[test]
fn waiting_for_people_is_no_work_and_neither_is_the_queue() {
    let begun = || [(1, started()), (5, EventBody::ModelAsked { ask: 1, step: 1 })];
    assert_eq!(worked(begun()), Duration::from_secs(15));
    assert_eq!(worked([(1, started())]), Duration::ZERO);
    let one_by_one = [(6, wanted("a", 6)), (8, decided("a")), (10, wanted("b", 10)), (13, decided("b"))];
    assert_eq!(worked(begun().into_iter().chain(one_by_one)), Duration::from_secs(10));
    for order in [["a", "b"], ["b", "a"]] {
        let together =
            [(6, wanted("a", 6)), (8, wanted("b", 8)), (10, decided(order[0])), (13, decided(order[1]))];
        assert_eq!(worked(begun().into_iter().chain(together)), Duration::from_secs(8), "{order:?}");
    }
    let EventBody::ApprovalWanted { approval } = wanted("inner", 6) else { panic!() };
    let within = |approvals| EventBody::AskWaitsWithin { ask: 1, approvals };
    let nested = [(6, within(vec![*approval])), (16, within(Vec::new()))];
    assert_eq!(worked(begun().into_iter().chain(nested)), Duration::from_secs(5));
}

#[test]
fn approvals_without_a_decision_wait() {
    let memory = memory([(1, started()), (2, wanted("a", 2)), (3, decided("a")), (4, wanted("b", 4))]);
    assert_eq!(memory.approvals.iter().map(|approval| approval.id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(matches!(memory.asks[&1].inputs.as_slice(), [Input::Begin, Input::Decided { .. }]));
}

#[test]
fn no_more_is_kept_of_results_than_a_model_is_told() {
    const LARGE: usize = 100_000;
    let large = "x".repeat(LARGE);
    let result = serde_json::json!({
        "cell": 1, "mode": "main", "status": "success", "reason": "ok", "exit_code": 0,
        "code": "1", "timeout_s": 30.0, "stdout": large, "stderr": "",
        "output": [{"stream": "stdout", "text": "short"}],
        "result": {"repr": "1", "type": "int", "mime": {"text/html": large}},
        "displays": [{"mime": {"image/png": large}}], "artifacts": [], "exception": null, "duration_ms": 1.0,
        "truncated": {
            "stdout_bytes": 0, "stderr_bytes": 0, "dropped_bytes": 0, "displays": 0, "artifacts": false
        },
        "state": { "kind": "kept" },
    });
    let result: Box<ExecutionResult> = serde_json::from_value(result).unwrap();
    let report = |result: &ExecutionResult| crate::agent::report(result, Language::English, 1_000);
    let expected = report(&result);
    let queued = EventBody::CellQueued {
        cell: 1,
        mode: Mode::Main,
        code: "1".into(),
        command: None,
        expression: false,
        timeout_s: 30.0,
        replays: None,
        origin: Some(crate::protocol::event::CellOrigin { ask: 1, id: "a".into(), purpose: None }),
        bound_by: None,
        commands_ahead: 0,
    };
    let answered = |value: serde_json::Value| EventBody::AskToolAnswered {
        ask: 1,
        id: "b".into(),
        outcome: ToolOutcome::Value(value),
    };
    let events = [started(), queued, EventBody::CellFinished { result }, answered(large.into())];
    let memory = memory((1..).zip(events));
    assert!(format!("{memory:?}").len() < LARGE / 10, "{}", format!("{memory:?}").len());
    let [_, Input::CellFinished { result, .. }, Input::ToolFinished { outcome, .. }] =
        memory.asks[&1].inputs.as_slice()
    else {
        panic!("{:?}", memory.asks[&1].inputs)
    };
    assert_eq!(report(result), expected);
    assert!(result.result.as_ref().unwrap().mime["text/html"].is_null());
    let ToolOutcome::Value(serde_json::Value::String(text)) = outcome else { panic!("{outcome:?}") };
    assert!(text.chars().count() <= TOLD_CHARS);
}

//! For any calls of a cell: a replay that makes the same calls gets the same answers, and one that differs gets none that
//! belongs to another call.

use proptest::prelude::*;

use super::*;
use crate::protocol::clock::Moment;
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::exit_codes;
use crate::protocol::result::{Mode, Reason};
use crate::session::restore::{Fold, Recording};
use std::collections::BTreeMap;
use std::sync::Arc;

const TOOLS: [&str; 3] = ["mail", "pay", "read"];

fn arguments(value: u8) -> Map<String, Value> {
    Map::from_iter([("a".to_owned(), value.into())])
}

/// The names and arguments of calls.
fn calls() -> impl Strategy<Value = Vec<(&'static str, u8)>> {
    prop::collection::vec((prop::sample::select(TOOLS.as_slice()), 0..3_u8), 0..12)
}

/// Records a cell whose calls overlap: each call is made before the one before it is answered.
fn recorded(calls: &[(&'static str, u8)]) -> RecordedCell {
    let queued = EventBody::CellQueued {
        cell: 1,
        mode: Mode::Main,
        code: "c".into(),
        command: None,
        expression: false,
        timeout_s: 1.0,
        replays: None,
        origin: None,
        bound_by: None,
        commands_ahead: 0,
    };
    let called = calls.iter().zip(0_u64..).map(|((name, value), call)| EventBody::ToolCalled {
        cell: Some(1),
        call,
        name: (*name).into(),
        arguments: arguments(*value),
        refused_bytes: None,
        lent: None,
        held: false,
    });
    let answer = |call| EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(call.into()) };
    let mut recording = Recording::of(1);
    let answered = (0..calls.len() as u64).rev().map(answer);
    for body in [queued].into_iter().chain(called).chain(answered) {
        recording.take(Event { seq: 1, at: String::new(), body });
    }
    recording.end().unwrap()
}

proptest! {
    #[test]
    fn the_same_calls_get_the_same_answers(calls in calls()) {
        let mut record = recorded(&calls).calls;
        for ((name, value), call) in calls.iter().zip(0_u64..) {
            prop_assert_eq!(record.answer(name, &arguments(*value)), Some(Ok(Value::from(call))));
        }
        let one_more = record.answer("read", &arguments(0)).unwrap();
        prop_assert_eq!(one_more.unwrap_err().code, "replay_differs");
    }

    #[test]
    fn other_calls_get_no_answer_of_another(calls in calls(), again in calls()) {
        let mut record = recorded(&calls).calls;
        for (position, (name, value)) in again.iter().enumerate() {
            let answer = record.answer(name, &arguments(*value)).unwrap();
            if calls.get(position) == Some(&(name, *value)) {
                prop_assert_eq!(answer, Ok(Value::from(position as u64)));
            } else {
                prop_assert_eq!(answer.unwrap_err().code, "replay_differs");
            }
        }
    }

    /// Every cell of a replay is run once, or is still on the list.
    #[test]
    fn no_cell_of_a_replay_is_lost(cells in 0..8_u64, stops_after in prop::option::of(0..8_usize)) {
        let restored = Restored { replayable: (1..=cells).collect(), ..Fold::new(&Arc::default()).end(&BTreeMap::new(), Moment::now()) };
        let mut replay = Replay::of(&restored);
        let mut ran = Vec::new();
        while let Some(cell) = replay.next_cell() {
            ran.push(cell);
            let status = if stops_after == Some(ran.len()) { Status::Crashed } else { Status::Success };
            let goes_on = replay.ran(cell, None, &result(cell + 100, status, ""));
            prop_assert_eq!(goes_on, status == Status::Success);
            if !goes_on {
                break;
            }
        }
        let report = replay.report();
        let reported: Vec<CellNumber> = report.cells.iter().map(|cell| cell.cell).collect();
        prop_assert_eq!(&reported, &ran);
        prop_assert_eq!(ran.into_iter().chain(report.not_run).collect::<Vec<_>>(), restored.replayable);
    }
}

fn result(cell: CellNumber, status: Status, stdout: &str) -> ExecutionResult {
    ExecutionResult { cell, stdout: stdout.into(), ..exit_codes::tests::result(status, Reason::Ok, Some(0)) }
}

/// Such as one that waited only for so long: an answer that comes at once would be another end of the wait.
#[test]
fn a_call_that_was_given_up_has_no_answer_again() {
    let call = |outcome| RecordedCall {
        name: "mail".into(),
        arguments: digest(&arguments(1)),
        refused_bytes: None,
        outcome,
    };
    let refused = ToolFailure { code: "cancelled".into(), message: "the person said no".into() };
    let outcomes = [Err(given_up()), Err(cell_ended()), Err(refused.clone()), Ok(1.into())];
    let mut record = RecordedCalls(outcomes.map(call).into());
    let answers: Vec<_> = (0..4).map(|_| record.answer("mail", &arguments(1))).collect();
    assert_eq!(answers, [None, None, Some(Err(refused)), Some(Ok(1.into()))]);
}

#[test]
fn what_a_person_would_see_differ_is_reported() {
    let restored = Restored { replayable: vec![1, 2], ..Restored::default() };
    let mut replay = Replay::of(&restored);
    let before = Some(ResultDigest::of(&result(1, Status::Success, "a")));
    assert!(replay.ran(1, before, &result(3, Status::Success, "a")));
    assert!(replay.ran(2, before, &result(4, Status::Failure, "b")));
    let differences: Vec<_> = replay.report().cells.into_iter().map(|cell| cell.differences).collect();
    assert_eq!(differences, [vec![], vec!["status".to_owned(), "stdout".to_owned()]]);
}

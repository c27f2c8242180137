//! Tests of the fold: events in, the present state out.

mod ends;
mod given_up;
mod lent;
mod packages;
mod saved;

use super::*;
use crate::protocol::ask::Decision;
use crate::protocol::event::{Counters, Event, EventBody, ToolOutcome};
use crate::protocol::exit_codes;
use crate::protocol::result::{Mode, Reason, StateKind, Status};
use crate::session::rules::CallOrigin;

fn event(seq: u64, body: EventBody) -> Event {
    Event { seq, at: format!("t{seq}"), body }
}

fn queued(cell: CellNumber, mode: Mode) -> EventBody {
    EventBody::CellQueued {
        cell,
        mode,
        code: format!("c{cell}"),
        command: None,
        expression: false,
        timeout_s: 2.0,
        replays: None,
        origin: None,
        bound_by: None,
        commands_ahead: 0,
    }
}

fn replayed(cell: CellNumber, of: CellNumber) -> EventBody {
    let EventBody::CellQueued { mode, code, expression, timeout_s, origin, bound_by, .. } =
        queued(cell, Mode::Main)
    else {
        unreachable!()
    };
    EventBody::CellQueued {
        cell,
        mode,
        code,
        command: None,
        expression,
        timeout_s,
        replays: Some(of),
        origin,
        bound_by,
        commands_ahead: 0,
    }
}

fn started(cell: CellNumber) -> EventBody {
    EventBody::CellStarted { cell, command: false, before: Counters { oom_kills: cell, forks_refused: 0 } }
}

fn called(call: u64, cell: CellNumber) -> EventBody {
    EventBody::ToolCalled {
        cell: Some(cell),
        call,
        name: format!("tool{call}"),
        arguments: serde_json::Map::new(),
        refused_bytes: None,
        lent: None,
        held: false,
    }
}

fn answered(call: u64) -> EventBody {
    EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(call.into()) }
}

fn done(cell: CellNumber) -> EventBody {
    finished(cell, Status::Success, StateKind::Kept)
}

fn lost() -> EventBody {
    EventBody::StateLost { reason: String::new(), restored_to: None, gone: None }
}

fn restored(events: &[Event]) -> Restored {
    let mut fold = Fold::new(&Arc::default());
    for event in events {
        fold.take(event, Moment::now());
    }
    let recorded = fold.replayed().filter_map(|(cell, span)| {
        let mut recording = Recording::of(cell);
        let within = events.iter().filter(|event| (span.first..=span.last).contains(&event.seq));
        within.for_each(|event| recording.take(event.clone()));
        Some((cell, recording.end()?))
    });
    let recorded = recorded.collect();
    fold.end(&recorded, Moment::now())
}

fn restored_from(bodies: &[EventBody]) -> Restored {
    let numbered = bodies.iter().cloned().zip(1..);
    restored(&numbered.map(|(body, seq)| event(seq, body)).collect::<Vec<_>>())
}

fn finished(cell: CellNumber, status: Status, kind: StateKind) -> EventBody {
    let mut result = Box::new(exit_codes::tests::result(status, Reason::Ok, Some(0)));
    (result.cell, result.state.kind) = (cell, kind);
    EventBody::CellFinished { result }
}

#[test]
fn open_cells_and_kept_ones_are_told_apart() {
    let bodies = vec![
        queued(1, Mode::Main),
        started(1),
        finished(1, Status::Success, StateKind::Kept),
        queued(2, Mode::Main),
        started(2),
        finished(2, Status::Timeout, StateKind::Restored),
        queued(3, Mode::Main),
        started(3),
        finished(3, Status::Failure, StateKind::Kept),
        queued(4, Mode::Main),
        started(4),
        queued(5, Mode::Fork),
    ];
    let restored = restored_from(&bodies);
    assert_eq!((restored.cells, &restored.replayable[..]), (5, &[1, 3][..]));
    let running: Vec<_> =
        restored.running.iter().map(|begun| (begun.start.cell, begun.at.as_str())).collect();
    assert_eq!(running, [(4, "t11")]);
    assert_eq!(restored.running[0].start.before.oom_kills, 4);
    assert_eq!(restored.queued.iter().map(|start| start.cell).collect::<Vec<_>>(), [5]);
    assert_eq!(restored.queued[0].timeout, Duration::from_secs(2));
}

#[test]
fn undo_and_reset_take_cells_back() {
    let mut bodies = vec![];
    for cell in 1..=3 {
        bodies.extend([queued(cell, Mode::Main), finished(cell, Status::Success, StateKind::Kept)]);
    }
    bodies.push(EventBody::Undone { state_of: 1 });
    assert_eq!(restored_from(&bodies).replayable, [1]);
    bodies.push(EventBody::Reset);
    assert_eq!(restored_from(&bodies).replayable, Vec::<CellNumber>::new());
}

#[test]
fn an_undo_in_a_fresh_worker_does_not_reach_the_cells_of_before() {
    for fresh in [lost(), finished(3, Status::Crashed, StateKind::Lost)] {
        let mut bodies = vec![queued(1, Mode::Main), done(1), queued(2, Mode::Main), done(2)];
        bodies.extend([queued(3, Mode::Main), fresh, queued(4, Mode::Main), done(4)]);
        assert_eq!(restored_from(&bodies).replayable, [1, 2, 4]);
        bodies.push(EventBody::Undone { state_of: 0 });
        assert_eq!(restored_from(&bodies).replayable, [1, 2]);
    }
}

#[test]
fn a_cell_that_a_later_one_passed_is_marked() {
    let mut bodies: Vec<_> = (1..=3).map(|cell| queued(cell, Mode::Main)).collect();
    bodies.extend([started(1), started(3), started(2)]);
    let passed =
        |bodies: &[EventBody]| restored_from(bodies).running.iter().map(|b| b.passed).collect::<Vec<_>>();
    assert_eq!(passed(&bodies), [false, true, false]);
    // Cell 3 was put back and begins again.
    bodies.push(started(3));
    assert_eq!(passed(&bodies), [false, true, true]);
}

#[test]
fn a_cell_that_never_ran_is_not_kept() {
    let EventBody::CellFinished { mut result } = finished(1, Status::Interrupted, StateKind::Kept) else {
        unreachable!()
    };
    result.reason = Reason::ByCancel;
    assert!(
        restored_from(&[queued(1, Mode::Main), EventBody::CellFinished { result }]).replayable.is_empty()
    );
}

#[test]
fn a_replay_that_is_broken_off_can_be_made_again() {
    let mut bodies = vec![];
    for cell in 1..=3 {
        bodies.extend([queued(cell, Mode::Main), done(cell)]);
    }
    bodies.extend([EventBody::ReplayStarted { cells: vec![1, 2, 3] }, replayed(4, 1), done(4)]);
    bodies.extend([replayed(5, 2), finished(5, Status::Crashed, StateKind::Lost)]);
    assert_eq!(restored_from(&bodies).replayable, [4, 2, 3]);
    bodies.extend([EventBody::ReplayStarted { cells: vec![4, 2, 3] }, replayed(6, 4), done(6)]);
    bodies.extend([replayed(7, 2), done(7), replayed(8, 3), done(8), EventBody::ReplayFinished]);
    bodies.extend([queued(9, Mode::Main), done(9)]);
    assert_eq!(restored_from(&bodies).replayable, [6, 7, 8, 9]);
}

#[test]
fn what_tools_said_is_known_for_markers_to_come() {
    let answered_call =
        |call: u64| EventBody::ToolAnswered { call, outcome: ToolOutcome::Value("noted".into()) };
    let mut bodies = vec![queued(1, Mode::Main), started(1), called(1, 1), answered_call(1)];
    assert_eq!(restored_from(&bodies).tool_responses.text(1), Some("noted"));
    bodies.push(done(1));
    assert_eq!(restored_from(&bodies).tool_responses.text(1), Some("noted"));
    bodies.extend([EventBody::Reset, EventBody::ResetDone { cells: 1 }]);
    assert_eq!(restored_from(&bodies).tool_responses.text(1), None);
}

/// A repeated reset would end cells that came after it.
#[test]
fn a_reset_that_the_kernel_has_confirmed_is_not_repeated() {
    let (reset, reset_done) = (|| EventBody::Reset, || EventBody::ResetDone { cells: 1 });
    let is_repeated = |more: &[EventBody]| {
        restored_from(&[&[queued(1, Mode::Main), started(1), done(1)], more].concat()).reset
    };
    assert!(is_repeated(&[reset()]));
    assert!(!is_repeated(&[reset(), reset_done()]));
    assert!(!is_repeated(&[reset(), reset_done(), queued(2, Mode::Fork), started(2)]));
    assert!(is_repeated(&[reset(), queued(2, Mode::Fork), started(2)]));
    assert!(is_repeated(&[reset(), reset(), reset_done()]));
    assert!(!is_repeated(&[reset(), reset(), reset_done(), reset_done()]));
    assert!(is_repeated(&[reset(), queued(2, Mode::Main), started(2), reset(), reset_done()]));
    // A daemon that ended in between did not learn whether the reset was done, and the next one sent it
    // again.
    let again = [reset(), EventBody::SandboxAttached];
    assert!(is_repeated(&again));
    assert!(!is_repeated(&[&again[..], &[reset_done()]].concat()));
    let forgotten =
        [reset(), queued(2, Mode::Main), started(2), EventBody::SandboxAttached, reset(), reset_done()];
    assert!(!is_repeated(&forgotten));
}

/// If the daemon ends between the two, an answer may be in the journal but not in the kernel.
#[test]
fn answers_to_cells_that_run_are_known_by_their_events() {
    let bodies =
        [queued(1, Mode::Main), started(1), called(1, 1), answered(1), done(1), queued(2, Mode::Main)];
    let bodies = [&bodies[..], &[started(2), called(2, 2), called(3, 2), answered(3)]].concat();
    let restored = restored_from(&bodies);
    assert_eq!(restored.answered_calls, [(3, 10)]);
    assert_eq!(restored.open_calls.iter().map(|open| open.call).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_replay_that_goes_on_does_not_call_tools() {
    let mut bodies = vec![queued(1, Mode::Main), started(1)];
    for call in 1..=3 {
        bodies.extend([called(call, 1), answered(call)]);
    }
    bodies.extend([done(1), EventBody::ReplayStarted { cells: vec![1] }, replayed(2, 1), started(2)]);
    bodies.extend([called(4, 2), answered(4), called(5, 2)]);
    let restored = restored_from(&bodies);
    let open = OpenCall {
        call: 5,
        recorded: Some(Ok(2.into())),
        given_up: None,
        waits: None,
        lent: None,
        held: None,
    };
    assert_eq!(restored.open_calls, [open]);
    let begun = &restored.running[0];
    assert_eq!(begun.completed, ["tool4"]);
    let left: Vec<_> =
        begun.start.replay.iter().flat_map(|calls| &calls.0).map(|call| call.name.as_str()).collect();
    assert_eq!(left, ["tool3"]);
}

#[test]
fn the_time_in_which_a_cell_was_frozen_is_not_its_own() {
    let at =
        |second: u64, body| Event { seq: second, at: format!("2026-01-01T00:00:{second:02}.000Z"), body };
    let mut events = vec![at(1, queued(1, Mode::Main)), at(2, started(1)), at(5, EventBody::Frozen)];
    assert_eq!(restored(&events).frozen_since.as_deref(), Some("2026-01-01T00:00:05.000Z"));
    events.push(at(9, EventBody::Thawed));
    let restored = restored(&events);
    assert_eq!((restored.frozen_since, restored.running[0].frozen), (None, Duration::from_secs(4)));
}

/// Calls that wait at the same time, and a freeze meanwhile.
#[test]
fn pauses_of_a_cell_that_overlap_count_once() {
    let moment = |second: u64| format!("2026-01-01T00:00:{second:02}.000Z");
    let at = |second: u64, body| Event { seq: second, at: moment(second), body };
    let asked = |second: u64, id: &str| {
        let approval = serde_json::json!({"id": id, "session": uuid::Uuid::nil(), "session_name": "s", "ask": null,
            "call": "1", "cell": 1, "subject": {"kind": "tool", "name": "t", "arguments": {}},
            "asked_at": moment(second), "deadline_s": null, "by_default": null});
        at(second, EventBody::ApprovalWanted { approval: serde_json::from_value(approval).unwrap() })
    };
    let decided = |second: u64, id: &str| {
        let decision = Decision::Accept { code: None };
        at(second, EventBody::ApprovalDecided { id: id.into(), decision, by: None })
    };
    let began = [at(1, queued(1, Mode::Main)), at(2, started(1))];
    let frozen = |more: &[Event]| restored(&[&began[..], more].concat()).running[0].frozen;
    let both = [asked(3, "a"), asked(4, "b"), decided(6, "a"), decided(8, "b")];
    assert_eq!(frozen(&both), Duration::from_secs(5));
    let across = [asked(3, "a"), at(5, EventBody::Frozen), at(7, EventBody::Thawed), decided(9, "a")];
    assert_eq!(frozen(&across), Duration::from_secs(6));
    let within = [at(3, EventBody::Frozen), asked(4, "a"), decided(6, "a"), at(9, EventBody::Thawed)];
    assert_eq!(frozen(&within), Duration::from_secs(6));
    // A freeze that lasts is counted when it ends.
    assert_eq!(frozen(&[asked(3, "a"), at(5, EventBody::Frozen)]), Duration::from_secs(2));
}

#[test]
fn an_undo_in_a_replay_that_was_broken_off_leaves_the_rest_to_the_next_one() {
    let mut bodies = vec![];
    for cell in 1..=3 {
        bodies.extend([queued(cell, Mode::Main), done(cell)]);
    }
    bodies.extend([EventBody::ReplayStarted { cells: vec![1, 2, 3] }, replayed(4, 1), done(4)]);
    bodies.extend([replayed(5, 2), done(5), queued(6, Mode::Main), done(6)]);
    assert_eq!(restored_from(&bodies).replayable, [4, 5, 3, 6]);
    bodies.push(EventBody::Undone { state_of: 4 });
    assert_eq!(restored_from(&bodies).replayable, [4, 2, 3]);
    bodies.push(EventBody::Undone { state_of: 0 });
    assert_eq!(restored_from(&bodies).replayable, [1, 2, 3]);
}

#[test]
fn what_was_replayed_to_the_end_is_undone_for_good() {
    let mut bodies = vec![queued(1, Mode::Main), done(1), EventBody::ReplayStarted { cells: vec![1] }];
    bodies.extend([replayed(2, 1), done(2), EventBody::ReplayFinished]);
    assert!(!restored_from(&bodies).replaying);
    bodies.push(EventBody::Undone { state_of: 0 });
    assert!(restored_from(&bodies).replayable.is_empty());
}

#[test]
fn what_was_interrupted_is_not_kept() {
    let EventBody::CellFinished { mut result } = finished(2, Status::Interrupted, StateKind::Kept) else {
        unreachable!()
    };
    result.reason = Reason::ByUser;
    let mut bodies = vec![queued(1, Mode::Main), done(1), queued(2, Mode::Main), started(2)];
    bodies.push(EventBody::CellFinished { result });
    assert_eq!(restored_from(&bodies).replayable, [1]);
}

#[test]
fn what_went_with_the_variables_is_told_also_after_a_restart() {
    let gone = Some("2 threads are gone.".to_owned());
    let note =
        restored_from(&[EventBody::StateLost { reason: "it died".into(), restored_to: Some(1), gone }])
            .pending_note;
    assert!(note.expect("it was not told").ends_with("it died. 2 threads are gone."));
}

#[test]
fn news_wait_for_a_cell_of_the_main_line() {
    let mut bodies = vec![lost(), queued(1, Mode::Fork)];
    let EventBody::CellFinished { mut result } = done(1) else { unreachable!() };
    result.mode = Mode::Fork;
    bodies.push(EventBody::CellFinished { result });
    let note = restored_from(&bodies).pending_note.expect("they were not told");
    assert!(note.starts_with("Before this cell all variables were lost"), "{note}");
    bodies.extend([queued(2, Mode::Main), started(2), done(2)]);
    assert_eq!(restored_from(&bodies).pending_note, None);
}

#[test]
fn a_cell_that_a_lost_sandbox_never_took_waits_again() {
    let gone = EventBody::SandboxGone { reason: "why".into() };
    let restored = restored_from(&[queued(1, Mode::Main), started(1), gone]);
    assert!(restored.running.is_empty());
    assert_eq!(restored.queued.iter().map(|start| start.cell).collect::<Vec<_>>(), [1]);
}

fn died(after: StateAfter, killed: bool) -> EventBody {
    EventBody::CellDied { cell: 1, exit_code: -9, after, killed, rolled_back: !killed }
}

#[test]
fn a_cell_that_begins_again_has_nothing_of_its_earlier_run() {
    let died = died(StateAfter::Kept, true);
    let first = [
        replayed(1, 7),
        started(1),
        called(1, 1),
        answered(1),
        EventBody::Interrupting { cell: 1, command: false },
    ];
    let gone = EventBody::SandboxGone { reason: "why".into() };
    for between in [vec![died.clone(), gone], vec![died]] {
        let restored = restored_from(&[&first[..], &between, &[started(1)]].concat());
        let [begun] = &restored.running[..] else { panic!("{restored:?}") };
        assert_eq!((&begun.to_end, begun.died, begun.completed.len()), (&None, None, 0));
    }
}

/// A running cell of an ask that wants a person to allow the tool `danger`.
fn cell_of_ask() -> (Vec<EventBody>, CellRules) {
    let spec = serde_json::json!({
        "text": "", "model": "m", "dialect": "tool_calls", "language": "en", "approval": {"tools": ["danger"]},
        "tools": ["danger"], "schema": null, "context": {}, "restricted": false, "fresh": false, "depth": 0,
        "limits": {"steps": 1, "failures": 1, "tokens": 1, "seconds": 1.0},
    });
    let spec: crate::protocol::ask::AskSpec = serde_json::from_value(spec).unwrap();
    let rules = CellRules::of_ask(&spec);
    let mut of_ask = queued(1, Mode::Main);
    if let EventBody::CellQueued { origin, .. } = &mut of_ask {
        *origin = Some(crate::protocol::event::CellOrigin { ask: 1, id: "a".into(), purpose: None });
    }
    (vec![EventBody::AskStarted { ask: 1, spec: Box::new(spec) }, of_ask, started(1)], rules)
}

/// The journal has only the size of what a refused call brought, so a person would be asked about something else.
#[test]
fn no_person_is_asked_about_a_call_that_was_refused_before() {
    let danger = |call, refused_bytes| {
        let (name, arguments) = ("danger".into(), serde_json::Map::new());
        let (cell, lent, held) = (Some(1), None, false);
        EventBody::ToolCalled { cell, call, name, arguments, refused_bytes, lent, held }
    };
    let bodies = [&cell_of_ask().0[..], &[danger(1, None), danger(2, Some(70))]].concat();
    let open = restored_from(&bodies).open_calls;
    assert_eq!(
        open.iter().map(|open| (open.call, open.waits.is_some())).collect::<Vec<_>>(),
        [(1, true), (2, false)]
    );
}

#[test]
fn rules_of_before_a_reset_hold_until_the_kernel_has_done_it() {
    let (mut bodies, rules) = cell_of_ask();
    bodies.push(done(1));
    let bound = |bodies: &[EventBody]| restored_from(bodies).sandbox_rules.combined(CallOrigin::Cell(None));
    assert_eq!(bound(&bodies), rules);
    // Neither the request for a reset, nor later cells, nor an undo proves that the reset is done.
    let unclear =
        [EventBody::Reset, EventBody::ReplayStarted { cells: vec![] }, EventBody::Undone { state_of: 0 }];
    for fresh in unclear {
        let after = [bodies.as_slice(), &[fresh, queued(2, Mode::Main), started(2)]].concat();
        assert_eq!(bound(&after), rules);
    }
    bodies.extend([EventBody::Reset, EventBody::ResetDone { cells: 1 }]);
    assert_eq!(bound(&bodies), CellRules::default());
}

#[test]
fn what_cells_showed_printed_and_gave_to_tools_is_not_kept() {
    const LARGE: usize = 100_000;
    let large = || serde_json::Value::String("x".repeat(LARGE));
    let mut fold = Fold::new(&Arc::default());
    let mut recording = Recording::of(1);
    let mut seq = 0;
    let mut happens = |body: EventBody| {
        seq += 1;
        fold.take(&event(seq, body.clone()), Moment::now());
        recording.take(event(seq, body));
    };
    for cell in 1..=50 {
        let mut called = called(cell, cell);
        if let EventBody::ToolCalled { arguments, .. } = &mut called {
            arguments.insert("large".into(), large());
        }
        let EventBody::CellFinished { mut result } = done(cell) else { unreachable!() };
        result.stdout = "x".repeat(LARGE);
        result.displays = vec![crate::protocol::result::Display {
            mime: [("text/plain".to_owned(), large())].into_iter().collect(),
        }];
        // No call has an answer.
        for body in [queued(cell, Mode::Main), started(cell), called, EventBody::CellFinished { result }] {
            happens(body);
        }
    }
    assert!(format!("{fold:?}").len() < LARGE, "{}", format!("{fold:?}").len());
    assert!(format!("{recording:?}").len() < LARGE);
    assert_eq!(fold.end(&BTreeMap::new(), Moment::now()).replayable.len(), 50);
}

#[test]
fn an_answer_that_came_after_the_end_of_its_cell_is_recorded_with_it() {
    let mut bodies =
        vec![queued(1, Mode::Main), started(1), called(1, 1), done(1), queued(2, Mode::Main), done(2)];
    bodies.extend([answered(1), EventBody::ReplayStarted { cells: vec![1, 2] }, replayed(3, 1), started(3)]);
    let restored = restored_from(&bodies);
    let recorded = restored.running[0].start.replay.iter().flat_map(|calls| &calls.0);
    let calls: Vec<_> = recorded.map(|call| call.outcome.clone()).collect();
    assert_eq!(calls, [Ok(1.into())]);
}

#[test]
fn code_of_an_ask_that_is_not_known_may_do_nothing() {
    let mut of_ask = queued(1, Mode::Main);
    if let EventBody::CellQueued { bound_by, .. } = &mut of_ask {
        *bound_by = Some(7);
    }
    let restored = restored_from(&[of_ask, started(1)]);
    assert_eq!(*restored.running[0].start.rules, CellRules::strictest());
    assert_eq!(restored.sandbox_rules.combined(CallOrigin::Cell(Some(7))), CellRules::strictest());
}

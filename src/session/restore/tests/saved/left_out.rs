//! What does not come back: cells that do not run again, and what could not be loaded.

use super::*;
use crate::protocol::result::Reason;
use crate::protocol::snapshot::{MISSING_NAMES, MissingVariable};
use crate::session::replay::{Replay, ResultDigest};

/// A tool that code calls which no cell runs.
fn called_by_what_is_left(call: u64, refused_bytes: Option<u64>) -> EventBody {
    let EventBody::ToolCalled { call, name, arguments, lent, held, .. } = called(call, 1) else {
        unreachable!()
    };
    EventBody::ToolCalled { cell: None, call, name, arguments, refused_bytes, lent, held }
}

#[test]
fn cells_that_left_code_behind_which_called_a_tool_do_not_run_again() {
    let begin = [vec![ready()], ran(1..=1)].concat();
    let called = vec![called_by_what_is_left(1, None), answered(1)];
    let on = [begin.clone(), called.clone(), ran(2..=2)].concat();
    assert_eq!(wakes(&restored_from(&on)), None, "the tool would be called once more");
    // What is not made does not happen twice.
    let refused = vec![called_by_what_is_left(1, Some(9)), answered(1)];
    let on = [begin.clone(), refused, ran(2..=2)].concat();
    assert_eq!(wakes(&restored_from(&on)), with(NONE, &[1, 2]));
    let saved = [begin, vec![taken("s1", 1)]].concat();
    // The thread is one of before the snapshot, so no cell after it leaves that thread behind.
    let on = [saved.clone(), called.clone(), ran(2..=2)].concat();
    assert_eq!(wakes(&restored_from(&on)), with("s1", &[2]));
    let on = [saved, ran(2..=2), called, ran(3..=3)].concat();
    let restored = restored_from(&on);
    assert_eq!((wakes(&restored), loads(&restored).left_out), (with("s1", &[]), vec![2, 3]));
}

/// The session woke without some of what its snapshot has.
fn woken_without(id: &str, cell: CellNumber, names: &[&str]) -> EventBody {
    let EventBody::Woken { snapshot, reopened, replays, left_out, .. } = woken(id, cell, &[]) else {
        unreachable!()
    };
    EventBody::Woken { snapshot, cell, missing: missing(names), reopened, replays, left_out }
}

fn missing(names: &[&str]) -> Vec<MissingVariable> {
    names.iter().map(|name| MissingVariable { name: (*name).to_owned(), reason: "slow".into() }).collect()
}

#[test]
fn what_could_be_loaded_only_in_part_is_kept_until_a_person_does_without_it() {
    let mut first = snapshot("s1", 1, None);
    first.missing = missing(&["thread"]);
    let first = EventBody::SnapshotTaken { snapshot: Box::new(first) };
    let begin = [vec![ready()], ran(1..=1), vec![first, gone(), ready()]].concat();
    let then = |names: &[&str], more: Vec<EventBody>| {
        let woke = vec![woken_without("s1", 1, names)];
        let restored = restored_from(&[begin.clone(), woke, ran(2..=2), more].concat());
        kept(&restored).join(" ")
    };
    assert_eq!(then(&["thread"], vec![taken("s2", 2)]), "s2", "nothing is in it that the session has not");
    assert_eq!(then(&["thread", "large"], vec![taken("s2", 2)]), "s1 s2");
    let later = [vec![taken("s2", 2)], ran(3..=3), vec![taken("s3", 3)]].concat();
    assert_eq!(then(&["large"], later.clone()), "s1 s3", "for as long as nobody removes it");
    let removed = EventBody::SnapshotRemoved { snapshot: "s1".into() };
    assert_eq!(then(&["large"], [later, vec![removed]].concat()), "s3");
    let reset = vec![taken("s2", 2), EventBody::Reset, EventBody::ResetDone { cells: 2 }];
    assert_eq!(then(&["large"], [reset, ran(3..=3), vec![taken("s3", 3)]].concat()), "s3");
    // One at a time: the next one takes its place.
    let again = vec![taken("s2", 2), gone(), ready(), woken_without("s2", 2, &["frame"])];
    assert_eq!(then(&["large"], [again, ran(3..=3), vec![taken("s3", 3)]].concat()), "s2 s3");
}

#[test]
fn a_snapshot_that_could_be_loaded_only_in_part_is_not_what_the_session_has() {
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1), gone(), ready()]].concat();
    let up_to_date = |more: Vec<EventBody>| {
        let restored = restored_from(&[begin.clone(), more].concat());
        restored.saved.up_to_date().map(|snapshot| snapshot.id.clone())
    };
    assert_eq!(up_to_date(vec![woken("s1", 1, &[])]).as_deref(), Some("s1"));
    assert_eq!(up_to_date(vec![woken_without("s1", 1, &["large"])]), None);
    let again = vec![woken_without("s1", 1, &["large"]), taken("s2", 1)];
    assert_eq!(up_to_date(again).as_deref(), Some("s2"), "it is of what is there");
}

#[test]
fn the_snapshot_of_a_cell_is_the_one_that_has_what_could_not_be_loaded() {
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1), gone(), ready()]].concat();
    let then = |woke: EventBody| {
        let restored = restored_from(&[begin.clone(), vec![woke, taken("s2", 1)], ran(2..=2)].concat());
        restored.saved.saved_after(1).map(|snapshot| snapshot.id.clone())
    };
    assert_eq!(then(woken_without("s1", 1, &["large"])).as_deref(), Some("s1"));
    assert_eq!(then(woken("s1", 1, &[])).as_deref(), Some("s2"), "else the newest");
}

#[test]
fn what_could_not_be_loaded_is_told_even_if_a_snapshot_lacks_as_much_as_can_be_told() {
    let mut first = snapshot("s1", 1, None);
    let unsaved: Vec<String> = (0..MISSING_NAMES).map(|number| format!("v{number}")).collect();
    first.missing = missing(&unsaved.iter().map(String::as_str).collect::<Vec<_>>());
    let first = EventBody::SnapshotTaken { snapshot: Box::new(first) };
    let begin = [vec![ready()], ran(1..=1), vec![first, gone()]].concat();
    let told = loads(&restored_from(&begin)).lacks(missing(&["large"]));
    assert_eq!((told.len(), told[0].name.as_str()), (MISSING_NAMES, "large"));
    let names: Vec<&str> = told.iter().map(|missing| missing.name.as_str()).collect();
    let woke = vec![ready(), woken_without("s1", 1, &names)];
    let restored = restored_from(&[begin, woke, ran(2..=2), vec![taken("s2", 2)]].concat());
    assert_eq!(kept(&restored), ["s1", "s2"]);
}

#[test]
fn cells_that_end_otherwise_when_they_run_again_are_told() {
    let failed = |cell| finished(cell, Status::Failure, StateKind::Kept);
    let fails = vec![queued(2, Mode::Main), started(2), failed(2)];
    let begin = [vec![ready()], ran(1..=1), fails, ran(3..=3), vec![gone(), ready(), rebuilds(&[1, 2, 3])]];
    // The first fails, the second does again, the third succeeds again.
    let first = vec![replayed(4, 1), started(4), failed(4)];
    let rest = [vec![replayed(5, 2), started(5), failed(5)], ran_again(6, 3)].concat();
    let halfway = restored_from(&[begin.concat(), first.clone()].concat());
    assert_eq!((&halfway.ran_otherwise[..], &halfway.waking[..]), (&[1][..], &[2, 3][..]));
    let is_told = |note: Option<String>| note.unwrap().contains("so variables may differ: cell 1.");
    assert!(!is_told(halfway.pending_note), "it is told with the others");
    let woke = [begin.concat(), first, rest, vec![EventBody::ReplayFinished]].concat();
    assert!(is_told(restored_from(&woke).pending_note));
    // A result has told that cell 1 failed. When its run, cell 4, runs again and fails again, there is nothing new to tell.
    let again = [ran(20..=20), vec![gone(), ready(), rebuilds(&[4, 5, 6])]].concat();
    let as_before = [vec![replayed(7, 4), started(7), failed(7)], ran_again(8, 6)].concat();
    let restored = restored_from(&[woke, again, as_before].concat());
    assert_eq!((restored.ran_otherwise, restored.waking), (vec![], vec![5]));
}

/// The cell after it was refused for want of memory, for example, so that no result has told of it.
#[test]
fn cells_that_ended_otherwise_in_a_wake_that_was_broken_off_are_told_by_the_next_one() {
    let failed = |cell| finished(cell, Status::Failure, StateKind::Kept);
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1)], ran(2..=3)].concat();
    let fails = |cell, of| vec![replayed(cell, of), started(cell), failed(cell)];
    let slept = EventBody::Slept { reason: "no room".into(), snapshot: None };
    let refused = vec![slept, gone(), ready()];
    let first = [vec![gone(), ready(), woken("s1", 1, &[2, 3])], fails(5, 2), refused].concat();
    let second = [begin, first, vec![woken("s1", 1, &[5, 3])]].concat();
    let restored = restored_from(&second);
    assert_eq!((&restored.waking[..], &restored.replayable[..]), (&[5, 3][..], &[1, 5, 3][..]));
    // The daemon that runs them again finds it out, and so does the next one.
    let otherwise = |result: &EventBody| {
        let EventBody::CellFinished { result } = result else { unreachable!() };
        let mut replay = Replay::again(&restored);
        replay.next_cell();
        replay.ran(5, Some(ResultDigest::of(result)), result);
        replay.ended_otherwise(&restored)
    };
    assert_eq!((otherwise(&failed(6)), otherwise(&done(6))), (vec![5], vec![]));
    let woke = [second.clone(), fails(6, 5)].concat();
    assert_eq!(restored_from(&woke).ran_otherwise, [5]);
    let as_at_first = [second, ran_again(6, 5)].concat();
    assert!(restored_from(&as_at_first).ran_otherwise.is_empty(), "what the first one made is there");
    // The result of a cell that was cancelled before it ran has no note, so the failure is still to be told.
    let EventBody::CellFinished { mut result } = finished(4, Status::Interrupted, StateKind::Kept) else {
        unreachable!()
    };
    result.reason = Reason::ByCancel;
    let unrun = vec![queued(4, Mode::Main), EventBody::CellFinished { result }];
    let third = |told: Vec<EventBody>| {
        let again = vec![gone(), ready(), woken("s1", 1, &[6, 3])];
        restored_from(&[woke.clone(), told, again, fails(7, 6)].concat()).ran_otherwise
    };
    assert_eq!((third(unrun), third(ran(8..=8))), (vec![6], vec![]));
}

#[test]
fn what_did_not_run_again_does_not_do_so_later_either_before_what_ran_without_it() {
    let left_out = |restored: &Restored| loads(restored).left_out;
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1)], ran(2..=3)].concat();
    // Those of which the event says so.
    let EventBody::Woken { snapshot, cell, missing, reopened, replays, .. } = woken("s1", 1, &[]) else {
        unreachable!()
    };
    let without = EventBody::Woken { snapshot, cell, missing, reopened, replays, left_out: vec![2, 3] };
    let on = [begin.clone(), vec![gone(), ready(), without], ran(4..=4), vec![gone()]].concat();
    let restored = restored_from(&on);
    assert_eq!((wakes(&restored), left_out(&restored)), (with("s1", &[4]), vec![2, 3]));
    assert_eq!(restored.replayable, [1, 2, 3, 4], "a replay is asked for by somebody, and runs all of them");
    // One that died when it ran again, and those after it.
    let again = [begin, vec![gone(), ready(), woken("s1", 1, &[2, 3]), replayed(4, 2), started(4)]].concat();
    let died = vec![finished(4, Status::Crashed, StateKind::Restored)];
    let on = [again.clone(), died, ran(5..=5), vec![gone()]].concat();
    let restored = restored_from(&on);
    assert_eq!((wakes(&restored), left_out(&restored)), (with("s1", &[5]), vec![2, 3]));
    // With the sandbox nothing of it went on.
    let EventBody::CellFinished { mut result } = finished(4, Status::Crashed, StateKind::Lost) else {
        unreachable!()
    };
    result.exit_code = None;
    let on = [again.clone(), vec![EventBody::CellFinished { result }, gone()]].concat();
    assert_eq!(wakes(&restored_from(&on)), with("s1", &[2, 3]));
    // One that never ran, for a reason that passes, and those after it.
    let EventBody::CellFinished { mut result } = finished(4, Status::Interrupted, StateKind::Kept) else {
        unreachable!()
    };
    result.reason = Reason::ByCancel;
    let refused = [again.clone(), vec![EventBody::CellFinished { result }]].concat();
    let restored = restored_from(&refused);
    assert_eq!((&restored.waking[..], restored.ran_otherwise.len()), (&[2, 3][..], 0));
    assert!(!restored.pending_note.unwrap().contains("broken off"));
    assert_eq!(wakes(&restored_from(&[refused, vec![gone()]].concat())), with("s1", &[2, 3]));
    // Those that a daemon could not run.
    let begin = [vec![ready()], ran(1..=2), vec![gone(), ready(), rebuilds(&[1, 2])]].concat();
    let on = [begin, ran_again(3, 1), ran(4..=4), vec![gone()]].concat();
    assert_eq!(wakes(&restored_from(&on)), with(NONE, &[3, 4]));
}

/// The memory of the whole sandbox was used up, for example.
#[test]
fn a_sandbox_that_ends_with_a_cell_takes_nothing_from_a_snapshot() {
    let EventBody::CellFinished { mut result } = finished(2, Status::Crashed, StateKind::Lost) else {
        unreachable!()
    };
    (result.reason, result.exit_code) = (Reason::OutOfMemory, None);
    let died = vec![queued(2, Mode::Main), started(2), EventBody::CellFinished { result }, gone()];
    let begin = [vec![ready()], ran(1..=1)].concat();
    assert_eq!(wakes(&restored_from(&[begin.clone(), died.clone()].concat())), with(NONE, &[1]));
    let saved = [begin, vec![taken("s1", 1)], died].concat();
    assert_eq!(wakes(&restored_from(&saved)), with("s1", &[]));
}

#[test]
fn sandboxes_that_ended_for_another_reason_do_not_count_against_the_cells_that_ran_again() {
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1)], ran(2..=2)].concat();
    let slept = EventBody::Slept { reason: "it was not used".into(), snapshot: Some("s1".into()) };
    let mut sleeps = begin.clone();
    let mut dies_later = begin;
    for before in 2..7 {
        // The cell after the snapshot has a new number in each sandbox.
        let (again, other) = (before + 1, before + 20);
        let woke = [vec![gone(), ready(), woken("s1", 1, &[before])], ran_again(again, before)].concat();
        let woke = [woke, vec![EventBody::ReplayFinished]].concat();
        sleeps.extend([woke.clone(), vec![slept.clone()]].concat());
        assert_eq!(wakes(&restored_from(&sleeps)), with("s1", &[again]));
        let EventBody::CellFinished { mut result } = finished(other, Status::Crashed, StateKind::Lost) else {
            unreachable!()
        };
        (result.reason, result.exit_code) = (Reason::SandboxLost, None);
        dies_later.extend(woke);
        dies_later.extend([queued(other, Mode::Main), started(other), EventBody::CellFinished { result }]);
        assert_eq!(wakes(&restored_from(&dies_later)), with("s1", &[again]));
    }
}

/// Somebody has only looked at the variables in each of them, for example.
#[test]
fn sandboxes_without_a_snapshot_that_were_not_used_do_not_count_against_their_cells() {
    let slept = EventBody::Slept { reason: "it was not used".into(), snapshot: None };
    let mut sleeps = [vec![ready()], ran(1..=1)].concat();
    let mut ends = sleeps.clone();
    for before in 1..6 {
        let woke = [vec![gone(), ready(), rebuilds(&[before])], ran_again(before + 1, before)].concat();
        let woke = [woke, vec![EventBody::ReplayFinished]].concat();
        ends.extend(woke.clone());
        sleeps.extend([woke, vec![slept.clone()]].concat());
        assert_eq!(wakes(&restored_from(&sleeps)), with(NONE, &[before + 1]));
    }
    assert_eq!(wakes(&restored_from(&ends)), None);
    // Earlier versions always named a snapshot.
    let earlier = serde_json::json!({"type": "slept", "reason": "it was not used", "snapshot": "s1"});
    let named = EventBody::Slept { reason: "it was not used".into(), snapshot: Some("s1".into()) };
    assert_eq!(serde_json::from_value::<EventBody>(earlier).unwrap(), named);
}

#[test]
fn cells_before_a_given_variable_do_not_run_again_with_it() {
    let (mut of_ask, _) = cell_of_ask();
    let without = of_ask[0].clone();
    let EventBody::AskStarted { spec, .. } = &mut of_ask[0] else { panic!("an ask begins") };
    spec.context.insert("given".into(), 1.into());
    let gives = of_ask.swap_remove(0);
    let wakes_after = |bodies: [Vec<EventBody>; 3]| wakes(&restored_from(&bodies.concat()));
    let begin = vec![ready()];
    assert_eq!(wakes_after([begin.clone(), vec![gives.clone()], ran(1..=2)]), with(NONE, &[1, 2]));
    let first = [begin, ran(1..=1)].concat();
    assert_eq!(wakes_after([first.clone(), vec![gives.clone()], ran(2..=2)]), None);
    assert_eq!(wakes_after([first.clone(), vec![without], ran(2..=2)]), with(NONE, &[1, 2]));
    let saved = [first, vec![taken("s1", 1)]].concat();
    assert_eq!(wakes_after([saved.clone(), vec![gives.clone()], ran(2..=2)]), with("s1", &[2]));
    let later = [saved, ran(2..=2)].concat();
    assert_eq!(wakes_after([later, vec![gives], ran(3..=3)]), with("s1", &[]));
}

#[test]
fn an_ask_gives_its_variables_when_its_turn_comes() {
    let begins = |number, context: &[&str]| {
        let EventBody::AskStarted { mut spec, .. } = cell_of_ask().0.swap_remove(0) else { unreachable!() };
        spec.context = context.iter().map(|name| ((*name).to_owned(), serde_json::Value::from(1))).collect();
        EventBody::AskStarted { ask: number, spec }
    };
    let asked = |ask| EventBody::ModelAsked { ask, step: 1 };
    let cancelled = |ask| {
        let end = serde_json::json!({
            "outcome": "cancelled", "answer": null, "value": null, "message": null, "steps": 0,
            "usage": {"prompt_tokens": 0, "completion_tokens": 0},
        });
        EventBody::AskFinished { ask, end: serde_json::from_value(end).unwrap() }
    };
    let both = vec![ready(), begins(1, &[]), asked(1), begins(2, &["given"])];
    let saved = [both.clone(), ran(1..=1), vec![taken("s1", 1)]].concat();
    let keep = |events: &[EventBody]| loads(&restored_from(events)).keep;
    // The cells of the first ask see and change the variable before the second one gives it.
    let first = [both, ran(1..=1)].concat();
    assert_eq!(wakes(&restored_from(&first)), with(NONE, &[1]));
    let second = [first.clone(), vec![asked(2)], ran(2..=2)].concat();
    assert_eq!(wakes(&restored_from(&second)), None, "cell 1 would run with it");
    let second = [first, vec![cancelled(2)], ran(2..=2)].concat();
    assert_eq!(wakes(&restored_from(&second)), with(NONE, &[1, 2]), "it never gave anything");
    assert!(keep(&saved).is_empty());
    let given = [saved, vec![asked(2)]].concat();
    assert_eq!(keep(&given), ["given"]);
    // Later requests of the same ask give nothing anew.
    let later = [given, ran(2..=2), vec![taken("s2", 2), asked(2)]].concat();
    assert!(keep(&later).is_empty());
}

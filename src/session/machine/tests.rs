//! For any inputs in any order: every cell ends once, every list of variables is answered once, the sandbox
//! never gets a forbidden request, variables are not let go that could have been saved, and no state is a dead end.

mod ops;
mod world;

use proptest::prelude::*;
use std::time::Duration;

use super::*;
use crate::protocol::result::Mode;
use crate::session::outcome::CellStart;
use crate::session::replay::RecordedCalls;
use ops::{Left, Op, left, op};
use world::{World, restored};

const NEVER: Expiry = Expiry { idle: Duration::MAX, max_age: Duration::MAX, at_rest: None, saves: false };

proptest! {
    #[test]
    fn no_order_of_events_loses_a_cell_or_ends_one_twice(left in left(), ops in prop::collection::vec(op(), 0..120)) {
        let mut world = World::new(left.as_ref());
        for op in &ops {
            world.happens(op);
        }
        world.calms_down();
        prop_assert!(world.machine.queue().is_idle(), "something is stuck");
        prop_assert!(world.machine.may_replay().is_ok(), "a replay, an undo or a reset never ends");
        prop_assert!(world.cells.values().all(|times| *times == 1), "{:?}", world.cells);
        prop_assert!(world.views.values().all(|times| *times == 1), "{:?}", world.views);
    }

    #[test]
    fn a_removal_ends_everything(left in left(), ops in prop::collection::vec(op(), 0..60)) {
        let mut world = World::new(left.as_ref());
        for op in &ops {
            world.happens(op);
        }
        world.in_sandbox.clear();
        world.take(Input::Remove);
        prop_assert!(world.cells.values().all(|times| *times == 1), "{:?}", world.cells);
        prop_assert!(world.views.values().all(|times| *times == 1), "{:?}", world.views);
        for way in [Op::Place, Op::Permit(true), Op::Written { which: 0, in_time: true }, Op::Thaw] {
            world.happens(&way);
        }
        prop_assert!(world.machine.queue().is_idle());
    }

    #[test]
    fn a_daemon_that_leaves_ends_nothing(left in left(), ops in prop::collection::vec(op(), 0..60)) {
        let mut world = World::new(left.as_ref());
        for op in &ops {
            world.happens(op);
        }
        let before = world.cells.clone();
        world.take(Input::Leave);
        for way in [Op::Place, Op::Permit(true), Op::Written { which: 0, in_time: true }] {
            world.happens(&way);
        }
        prop_assert_eq!(world.cells, before);
    }
}

#[test]
fn what_is_cancelled_before_its_sandbox_is_attached_to_is_interrupted_then() {
    let left = Left {
        queued: 0,
        copies: 0,
        commands: 0,
        main: true,
        sandbox: true,
        frozen: false,
        reset: false,
        replaying: false,
        unsaved: false,
    };
    let now = Instant::now();
    let mut machine = restored(&left, now);
    machine.step(Input::Placed, now);
    assert!(machine.step(Input::CancelCells(1), now).is_empty(), "nothing is there that could be told");
    let effects = machine.step(Input::SandboxAttached, now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Interrupt(1))));
}

#[test]
fn a_replay_that_is_being_prepared_is_the_only_one() {
    let now = Instant::now();
    let mut machine = SessionMachine::<u32>::new(NEVER, now);
    assert!(machine.may_reset(Some(1)).is_err(), "nobody has prepared it");
    machine.may_replay().unwrap();
    machine.step(Input::ReplayWanted, now);
    assert!(machine.may_replay().is_err() && machine.may_run(Mode::Main, None, 8).is_err());
    assert!(machine.may_run(Mode::Main, Some(1), 8).is_err(), "its reset comes first");
    // The events of the cells to replay could not be read.
    machine.step(Input::ReplayEnded { number: 1, finished: false }, now);
    machine.may_replay().unwrap();
    machine.step(Input::ReplayWanted, now);
    // A plain reset by another client ends the replay.
    machine.step(Input::Reset { replay: false }, now);
    assert!(machine.may_reset(Some(2)).is_err());
}

/// The start of a cell that runs again.
fn again(cell: CellNumber) -> CellStart {
    CellStart { cell, replay: Some(RecordedCalls::default()), ..CellStart::default() }
}

/// A session that waits for its sandbox, with a cell that is to run again in it.
fn replays_a_cell(now: Instant) -> SessionMachine<u32> {
    let mut machine = SessionMachine::new(NEVER, now);
    machine.step(Input::Placed, now);
    machine.step(Input::ReplayWanted, now);
    machine.step(Input::Reset { replay: true }, now);
    machine.step(Input::ResetNoted, now);
    machine.step(Input::Cell(again(1)), now);
    machine
}

fn gone() -> Input<u32> {
    Input::SandboxGone { reason: "it was removed".into() }
}

fn ends_unrun(effects: &[Effect<u32>], cell: CellNumber) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Unrun(start) if start.cell == cell))
}

#[test]
fn no_cell_runs_again_without_what_its_replay_begins_with() {
    let now = Instant::now();
    let mut machine = replays_a_cell(now);
    assert!(ends_unrun(&machine.step(Input::NotWoken { reason: "it was changed".into() }, now), 1));
    assert!(!machine.is_replaying() && machine.may_run(Mode::Main, Some(1), 8).is_err());
}

#[test]
fn a_sandbox_takes_the_rest_of_a_replay_with_it_that_has_rebuilt_something_there() {
    let now = Instant::now();
    let mut machine = replays_a_cell(now);
    machine.step(Input::SandboxReady, now);
    assert!(!ends_unrun(&machine.step(gone(), now), 1) && machine.is_replaying(), "the next one is as good");
    machine.step(Input::SandboxReady, now);
    let begins = machine.step(Input::MayRun, now);
    let [Effect::Begin { begin, .. }] = &begins[..] else { panic!("{begins:?}") };
    machine.step(Input::Started { begin: *begin, is_written: true }, now);
    machine.step(Input::Finished(1), now);
    machine.step(Input::Cell(again(2)), now);
    assert!(ends_unrun(&machine.step(gone(), now), 2) && !machine.is_replaying());
    machine.may_replay().unwrap();
}

/// A session that waits until a cell of before has run again, and another cell that waits for that.
fn wakes(now: Instant) -> SessionMachine<u32> {
    let mut machine = SessionMachine::new(NEVER, now);
    machine.step(Input::Placed, now);
    machine.step(Input::Cell(CellStart { cell: 2, ..CellStart::default() }), now);
    machine.step(Input::Woken { note: "it woke".into(), replays: true }, now);
    machine.step(Input::SandboxReady, now);
    machine
}

#[test]
fn cells_that_run_again_need_no_place_among_those_that_wait_for_them() {
    let machine = wakes(Instant::now());
    assert_eq!(machine.may_run(Mode::Main, None, 1).unwrap_err().code, Code::Busy);
    machine.may_run(Mode::Main, Some(1), 1).unwrap();
}

#[test]
fn what_an_earlier_replay_still_says_is_not_meant_for_a_newer_one_or_a_waking() {
    let now = Instant::now();
    let mut machine = SessionMachine::<u32>::new(NEVER, now);
    machine.step(Input::Placed, now);
    machine.step(Input::ReplayWanted, now);
    // A plain reset by another client ends it, which its own client has not learnt yet.
    machine.step(Input::Reset { replay: false }, now);
    machine.step(Input::ResetNoted, now);
    machine.step(Input::ReplayWanted, now);
    machine.step(Input::ReplayEnded { number: 1, finished: false }, now);
    assert!(machine.may_reset(Some(1)).is_err());
    machine.may_reset(Some(2)).unwrap();
    machine.step(Input::ReplayEnded { number: 2, finished: false }, now);
    machine.step(Input::Woken { note: "it woke".into(), replays: true }, now);
    machine.step(Input::SandboxReady, now);
    assert!(machine.may_run(Mode::Main, Some(2), 8).is_err(), "it would run among those of the waking");
    for finished in [false, true] {
        assert!(machine.step(Input::ReplayEnded { number: 2, finished }, now).is_empty());
    }
    assert!(machine.is_waking());
    machine.may_run(Mode::Main, Some(3), 8).unwrap();
    machine.step(Input::ReplayEnded { number: 3, finished: true }, now);
    assert!(!machine.is_waking());
}

#[test]
fn the_end_of_an_ask_leaves_its_cells_alone_that_run_again() {
    let now = Instant::now();
    let mut machine = wakes(now);
    machine.step(Input::Cell(CellStart { ask: Some(1), ..again(3) }), now);
    let begins = machine.step(Input::MayRun, now);
    let [Effect::Begin { begin, cell: 3 }] = &begins[..] else { panic!("{begins:?}") };
    assert!(machine.step(Input::CancelCells(1), now).is_empty(), "it is about to run");
    machine.step(Input::Started { begin: *begin, is_written: true }, now);
    assert!(machine.step(Input::CancelCells(1), now).is_empty(), "it runs");
    machine.step(Input::Cell(CellStart { ask: Some(1), ..again(4) }), now);
    machine.step(Input::Cell(CellStart { cell: 5, ask: Some(1), ..CellStart::default() }), now);
    let effects = machine.step(Input::CancelCells(1), now);
    assert!(ends_unrun(&effects, 5) && effects.len() == 1, "what waits to run again stays: {effects:?}");
    assert!(machine.is_waking());
}

#[test]
fn where_cells_cannot_run_again_no_other_cell_runs_and_the_sandbox_ends() {
    let now = Instant::now();
    let mut machine = wakes(now);
    let effects = machine.step(Input::NotRebuilt(Problem::new(Code::Busy, "no room")), now);
    assert!(ends_unrun(&effects, 2), "{effects:?}");
    let sleeps = effects.iter().position(|effect| matches!(effect, Effect::Sleeps { .. }));
    let ends = effects.iter().position(|effect| matches!(effect, Effect::EndSandbox));
    let is_gone = |effect: &Effect<u32>| matches!(effect, Effect::Append(EventBody::SandboxGone { .. }));
    let gone = effects.iter().position(is_gone);
    assert!(sleeps.is_some() && sleeps < ends && ends < gone, "{effects:?}");
    assert!(machine.phase() == Phase::None && !machine.is_waking());
    let next = machine.step(Input::Cell(CellStart { cell: 3, ..CellStart::default() }), now);
    assert!(matches!(next[..], [Effect::StartSandbox]), "{next:?}");
    // What comes late changes nothing.
    assert!(machine.step(Input::NotRebuilt(Problem::new(Code::Busy, "no room")), now).is_empty());
}

const SAVED: Expiry = Expiry {
    idle: Duration::from_secs(60),
    max_age: Duration::MAX,
    at_rest: Some(Duration::from_secs(30)),
    saves: true,
};

/// A session in whose sandbox a cell runs.
fn running(mode: Mode, now: Instant) -> SessionMachine<u32> {
    let mut machine = SessionMachine::new(SAVED, now);
    machine.step(Input::Placed, now);
    machine.step(Input::SandboxReady, now);
    machine.step(Input::Cell(CellStart { cell: 1, mode, ..CellStart::default() }), now);
    let begins = machine.step(Input::MayRun, now);
    let [Effect::Begin { begin, .. }] = &begins[..] else { panic!("{begins:?}") };
    machine.step(Input::Started { begin: *begin, is_written: true }, now);
    machine
}

/// A session in whose sandbox a cell has run.
fn changed_by(mode: Mode, now: Instant) -> SessionMachine<u32> {
    let mut machine = running(mode, now);
    machine.step(Input::Finished(1), now);
    machine
}

fn saves(effects: &[Effect<u32>]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Save { .. }))
}

fn stops(effects: &[Effect<u32>]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::StopSaving { .. }))
}

#[test]
fn every_cell_that_has_the_variables_is_a_reason_to_save_them() {
    let now = Instant::now();
    let later = now + Duration::from_secs(40);
    for (mode, is_saved) in
        [(Mode::Main, true), (Mode::Scratch, true), (Mode::Background, true), (Mode::Fork, false)]
    {
        assert_eq!(saves(&changed_by(mode, now).step(Input::Tick, later)), is_saved, "{mode:?}");
    }
}

#[test]
fn a_session_in_whose_background_a_cell_runs_neither_falls_asleep_nor_expires() {
    let now = Instant::now();
    let mut machine = running(Mode::Background, now);
    let refused = machine.may_sleep().unwrap_err();
    assert!(refused.code == Code::Busy && refused.hint.is_some(), "{refused}");
    let much_later = now + Duration::from_secs(60 * 60 * 24 * 365);
    assert!(machine.step(Input::Tick, much_later).is_empty(), "its cell would be lost");
    machine.step(Input::Finished(1), much_later);
    assert!(machine.may_sleep().is_ok());
}

#[test]
fn a_session_whose_newest_snapshot_was_removed_is_saved_again() {
    let now = Instant::now();
    let mut machine = changed_by(Mode::Main, now);
    assert!(saves(&machine.step(Input::Tick, now + Duration::from_secs(40))));
    machine.step(Input::SnapshotEnded { number: 1, is_taken: true }, now + Duration::from_secs(41));
    assert!(!saves(&machine.step(Input::Tick, now + Duration::from_secs(45))));
    machine.step(Input::Unsaved, now);
    assert!(saves(&machine.step(Input::Tick, now + Duration::from_secs(45))));
}

#[test]
fn the_time_in_which_a_snapshot_waits_for_others_is_not_its_own() {
    let now = Instant::now();
    let minutes = |minutes: u64| now + Duration::from_secs(60 * minutes);
    let mut machine = changed_by(Mode::Main, now);
    assert!(saves(&machine.step(Input::Tick, minutes(2))));
    assert!(machine.step(Input::Tick, minutes(60)).is_empty(), "it has not begun");
    machine.step(Input::SaveBegins { number: 1 }, minutes(60));
    assert!(machine.step(Input::Tick, minutes(70)).is_empty());
    assert!(stops(&machine.step(Input::Tick, minutes(76))), "the sandbox does not stay for ever");
}

#[test]
fn a_frozen_session_is_not_being_saved_and_is_thawed_to_fall_asleep() {
    let now = Instant::now();
    let mut machine = changed_by(Mode::Main, now);
    let later = now + Duration::from_secs(40);
    assert!(saves(&machine.step(Input::Tick, later)));
    assert!(stops(&machine.step(Input::Freeze, later)));
    let effects = machine.step(Input::Sleep, later);
    assert!(saves(&effects) && effects.iter().any(|effect| matches!(effect, Effect::Thaw)));
}

#[test]
fn a_session_falls_asleep_only_with_a_snapshot_that_is_not_out_of_date() {
    let now = Instant::now();
    let mut machine = changed_by(Mode::Main, now);
    assert!(saves(&machine.step(Input::Sleep, now)));
    machine.step(Input::Unsaved, now);
    let effects = machine.step(Input::SnapshotEnded { number: 1, is_taken: true }, now);
    assert!(saves(&effects) && machine.falls_asleep());
    let effects = machine.step(Input::SnapshotEnded { number: 2, is_taken: true }, now);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::EndSandbox)));
}

//! Which snapshot a session wakes from, and what runs again after it.

mod left_out;

use super::packages::ready;
use super::{
    answered, called, cell_of_ask, done, event, finished, lost, queued, replayed, restored, restored_from,
    started,
};
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{Mode, StateKind, Status};
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::{MissingVariable, SnapshotRecord};
use crate::session::restore::{Fold, Restored, Wake, Waking};

fn snapshot(id: &str, cell: CellNumber, name: Option<&str>) -> SnapshotRecord {
    SnapshotRecord {
        id: id.into(),
        digest: id.into(),
        cell,
        bytes: 1,
        stored_bytes: 1,
        new_bytes: 1,
        name: name.map(str::to_owned),
        at: String::new(),
        python: "3.12.0".into(),
        variables: 1,
        missing: Vec::new(),
        files: Vec::new(),
    }
}

fn taken(id: &str, cell: CellNumber) -> EventBody {
    EventBody::SnapshotTaken { snapshot: Box::new(snapshot(id, cell, None)) }
}

fn ran(cells: std::ops::RangeInclusive<CellNumber>) -> Vec<EventBody> {
    cells.flat_map(|cell| [queued(cell, Mode::Main), started(cell), done(cell)]).collect()
}

fn ran_again(cell: CellNumber, of: CellNumber) -> Vec<EventBody> {
    vec![replayed(cell, of), started(cell), done(cell)]
}

#[test]
fn a_snapshot_of_a_cell_is_one_of_this_session() {
    let based = EventBody::Based {
        on: BaseSource::Archive { name: "other".into(), cell: 2 },
        snapshot: Some(Box::new(snapshot("base", 2, None))),
        bound: Box::default(),
    };
    let has = |events: &[EventBody], cell| {
        restored_from(events).saved.saved_after(cell).map(|snapshot| snapshot.id.clone())
    };
    let mut events = vec![based];
    assert_eq!(has(&events, 2), None, "the second cell of another session");
    events.extend(ran(1..=2));
    events.extend([taken("mine", 2), EventBody::Reset]);
    assert_eq!((has(&events, 2).as_deref(), has(&events, 1)), (Some("mine"), None));
    let based = vec![events[0].clone(), EventBody::Reset];
    assert_eq!(has(&based, 2), None, "nor after a reset");
}

fn gone() -> EventBody {
    EventBody::SandboxGone { reason: "it died".into() }
}

fn woken(id: &str, cell: CellNumber, replays: &[CellNumber]) -> EventBody {
    EventBody::Woken {
        snapshot: Some(id.into()),
        cell,
        missing: Vec::new(),
        reopened: Vec::new(),
        replays: replays.to_vec(),
        left_out: Vec::new(),
    }
}

/// No snapshot is there, so that these cells make the variables again.
fn rebuilds(replays: &[CellNumber]) -> EventBody {
    let EventBody::Woken { cell, missing, reopened, replays, left_out, .. } = woken("", 0, replays) else {
        unreachable!()
    };
    EventBody::Woken { snapshot: None, cell, missing, reopened, replays, left_out }
}

/// The snapshot, of which [`NONE`] is none, and the cells that run again.
fn wakes(restored: &Restored) -> Option<(String, Vec<CellNumber>)> {
    restored.wake.clone().map(|waking| match waking {
        Waking::Loads(wake) => (wake.snapshot.id, wake.replays),
        Waking::Rebuilds(cells) => (NONE.to_owned(), cells.replays),
    })
}

const NONE: &str = "none";

fn loads(restored: &Restored) -> Wake {
    let Some(Waking::Loads(wake)) = restored.wake.clone() else { panic!("{:?}", restored.wake) };
    *wake
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with what may be nothing")]
fn with(id: &str, replays: &[CellNumber]) -> Option<(String, Vec<CellNumber>)> {
    Some((id.to_owned(), replays.to_vec()))
}

#[test]
fn what_a_session_woke_without_is_kept_until_a_cell_of_the_main_line_has_told_it() {
    let missing = MissingVariable { name: "k".into(), reason: "its module is gone".into() };
    let untold = |events: &[EventBody]| {
        let untold = restored_from(events).saved.untold;
        (untold.not_loaded().map(str::to_owned), untold.missing().to_vec())
    };
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1), gone(), ready()]].concat();
    let failed = EventBody::WakeFailed { snapshot: "s1".into(), reason: "it is damaged".into() };
    let failed = [begin.clone(), vec![failed]].concat();
    let reason = (Some("it is damaged".to_owned()), Vec::new());
    assert_eq!(untold(&failed), reason);
    let slept = EventBody::Slept { reason: String::new(), snapshot: None };
    let slept = [failed, vec![slept, gone(), ready()]].concat();
    assert_eq!(untold(&slept), reason, "whatever comes in between");
    let EventBody::Woken { snapshot, cell, reopened, replays, left_out, .. } = woken("s1", 1, &[2]) else {
        unreachable!()
    };
    let missing = vec![missing];
    let woke = EventBody::Woken { snapshot, cell, missing: missing.clone(), reopened, replays, left_out };
    let woke = [begin, vec![woke]].concat();
    assert_eq!(untold(&woke), (None, missing.clone()));
    let again = [woke.clone(), ran_again(3, 2)].concat();
    assert_eq!(untold(&again), (None, missing), "nobody has waited for that cell");
    for events in [slept, woke] {
        let copied = vec![queued(4, Mode::Fork), started(4), of_mode(4, Mode::Fork)];
        assert_eq!(untold(&[events.clone(), copied].concat()), untold(&events));
        assert_eq!(untold(&[events.clone(), vec![EventBody::Reset]].concat()), (None, Vec::new()));
        let told = [events, vec![EventBody::ReplayFinished], ran(5..=5)].concat();
        assert_eq!(untold(&told), (None, Vec::new()));
    }
}

fn of_mode(cell: CellNumber, mode: Mode) -> EventBody {
    let EventBody::CellFinished { mut result } = done(cell) else { unreachable!() };
    result.mode = mode;
    EventBody::CellFinished { result }
}

#[test]
fn variables_go_with_a_sandbox_only_where_there_can_be_some() {
    let are_gone = |events: &[Vec<EventBody>]| {
        let note = restored_from(&[events.concat(), vec![gone()]].concat()).pending_note.unwrap();
        note.contains("Variables of earlier cells are gone")
    };
    let begin = vec![ready()];
    assert!(!are_gone(std::slice::from_ref(&begin)));
    assert!(are_gone(&[begin.clone(), ran(1..=1)]));
    assert!(are_gone(&[begin.clone(), ran(1..=1), vec![gone(), ready()]]), "nobody was told yet");
    assert!(!are_gone(&[begin.clone(), ran(1..=1), vec![EventBody::Reset]]));
    let replay = EventBody::ReplayStarted { cells: vec![1] };
    assert!(are_gone(&[begin.clone(), ran(1..=1), vec![replay]]));
    assert!(are_gone(&[vec![based(Some(snapshot("b", 1, None)))], begin]), "those that it began with");
}

#[test]
fn a_session_wakes_from_its_newest_snapshot_with_the_cells_after_it() {
    let begin = [vec![ready()], ran(1..=2), vec![taken("s2", 2)]].concat();
    let restored = restored_from(&begin);
    assert_eq!((wakes(&restored), restored.unsaved), (with("s2", &[]), false));
    let restored = restored_from(&[begin.clone(), ran(3..=4)].concat());
    assert_eq!((wakes(&restored), restored.unsaved), (with("s2", &[3, 4]), true));
    // It was begun before cell 4.
    let restored = restored_from(&[begin.clone(), ran(3..=4), vec![taken("s3", 3)]].concat());
    assert_eq!((wakes(&restored), restored.unsaved), (with("s3", &[4]), true));
    let crashed = vec![queued(3, Mode::Main), started(3), finished(3, Status::Timeout, StateKind::Restored)];
    assert_eq!(wakes(&restored_from(&[begin, crashed, vec![gone()]].concat())), with("s2", &[]));
}

#[test]
fn a_snapshot_of_variables_that_were_taken_back_is_of_no_use() {
    let begin = [vec![ready()], ran(1..=3), vec![taken("s2", 2)]].concat();
    let after = |event: EventBody| wakes(&restored_from(&[begin.clone(), vec![event]].concat()));
    assert_eq!(after(EventBody::Undone { state_of: 2 }), with("s2", &[]));
    // What cells have made without it, they can make again.
    assert_eq!(after(EventBody::Undone { state_of: 1 }), with(NONE, &[1]));
    assert_eq!(after(EventBody::SnapshotRemoved { snapshot: "s2".into() }), with(NONE, &[1, 2, 3]));
    for event in [
        EventBody::Reset,
        EventBody::ReplayStarted { cells: vec![1, 2, 3] },
        lost(),
        EventBody::WakeFailed { snapshot: "s2".into(), reason: "no".into() },
        ready(),
    ] {
        assert_eq!(after(event.clone()), None, "{event:?}");
    }
    let died = finished(4, Status::Crashed, StateKind::Lost);
    let with_a_death = [begin.clone(), vec![queued(4, Mode::Main), started(4), died]].concat();
    assert_eq!(wakes(&restored_from(&with_a_death)), None);
    // What comes after that is saved as before.
    let again = [with_a_death, ran(5..=6), vec![taken("s5", 5)]].concat();
    assert_eq!(wakes(&restored_from(&again)), with("s5", &[6]));
}

#[test]
fn cells_that_ran_again_take_the_places_of_the_first_ones() {
    let begin =
        [vec![ready()], ran(1..=2), vec![taken("s1", 1), gone(), queued(3, Mode::Main), ready()]].concat();
    let woke = [begin, vec![woken("s1", 1, &[2])]].concat();
    let restored = restored_from(&woke);
    assert_eq!((&restored.waking[..], &restored.replayable[..]), (&[2][..], &[1, 2][..]));
    assert!(restored.pending_note.unwrap().contains("as after cell 1"));
    let halfway = [woke.clone(), vec![replayed(4, 2), started(4)]].concat();
    assert_eq!(restored_from(&halfway).waking, [2], "it goes on with it");
    let rebuilt = [woke.clone(), ran_again(4, 2)].concat();
    let restored = restored_from(&rebuilt);
    assert_eq!((restored.waking.len(), &restored.replayable[..]), (0, &[1, 4][..]));
    assert!(restored.pending_note.is_some(), "nobody has waited for a cell since");
    let on = [rebuilt, vec![EventBody::ReplayFinished, started(3), done(3)]].concat();
    let restored = restored_from(&on);
    assert_eq!((&restored.replayable[..], wakes(&restored)), (&[1, 4, 3][..], with("s1", &[4, 3])));
    // Cell 3 began after cell 4, so it is what an undo takes back.
    let restored = restored_from(&[on, vec![EventBody::Undone { state_of: 4 }]].concat());
    assert_eq!((&restored.replayable[..], wakes(&restored)), (&[1, 4][..], with("s1", &[4])));
    // One that dies is the last.
    let died = finished(4, Status::Crashed, StateKind::Restored);
    let restored = restored_from(&[woke, vec![replayed(4, 2), started(4), died]].concat());
    assert_eq!((restored.waking.len(), &restored.replayable[..]), (0, &[1, 2][..]));
    assert!(restored.pending_note.unwrap().contains("broken off"));
}

#[test]
fn of_snapshots_without_a_name_the_newest_is_kept() {
    let named = EventBody::SnapshotTaken { snapshot: Box::new(snapshot("n1", 1, Some("mine"))) };
    let events = [vec![ready()], ran(1..=3), vec![taken("s1", 1), named, taken("s2", 2), taken("s3", 3)]];
    let restored = restored_from(&events.concat());
    let ids: Vec<&str> = restored.saved.snapshots().iter().map(|kept| kept.id.as_str()).collect();
    assert_eq!((ids, wakes(&restored)), (vec!["n1", "s3"], with("s3", &[])));
}

#[test]
fn a_session_with_the_variables_of_another_one_has_them_until_a_reset() {
    let based = based(Some(snapshot("b", 7, None)));
    let begin = vec![EventBody::SessionCreated { name: "x".into() }, based];
    let restored = restored_from(&begin);
    assert_eq!(wakes(&restored), with("b", &[]));
    assert_eq!(loads(&restored).state_of, 0, "no cell of this session made them");
    let woke = [begin, vec![ready(), woken("b", 0, &[])], ran(1..=1)].concat();
    let restored = restored_from(&woke);
    assert_eq!(wakes(&restored), with("b", &[1]));
    assert!(restored.sandbox_rules.an_ask_names("mail"), "their rules came with them");
    let saved = [woke.clone(), vec![taken("s1", 1)]].concat();
    assert_eq!(restored_from(&saved).saved.snapshots().len(), 2, "a replay begins with them");
    let reset = [woke, vec![EventBody::Reset, EventBody::ResetDone { cells: 1 }]].concat();
    let restored = restored_from(&reset);
    assert_eq!((wakes(&restored), restored.saved.base()), (None, None));
    assert!(!restored.sandbox_rules.an_ask_names("mail"));
}

#[test]
fn the_rules_of_code_go_on_with_its_variables() {
    let (of_ask, rules) = cell_of_ask();
    let tool = rules.approve.first().expect("a tool that a person has to allow").clone();
    let ran = [vec![ready()], of_ask, vec![done(1), taken("s1", 1), gone(), ready()]].concat();
    assert!(!restored_from(&ran).sandbox_rules.an_ask_names(&tool), "nothing of that code is in it");
    let again = [ran, vec![woken("s1", 1, &[])]].concat();
    assert!(restored_from(&again).sandbox_rules.an_ask_names(&tool));
}

/// A session that begins with another one's variables, or with its files alone.
fn based(snapshot: Option<SnapshotRecord>) -> EventBody {
    let bound = BoundRules { approve: vec!["mail".into()], ..BoundRules::default() };
    let on = BaseSource::Archive { name: "lab".into(), cell: 0 };
    EventBody::Based { on, snapshot: snapshot.map(Box::new), bound: Box::new(bound) }
}

#[test]
fn rules_that_a_session_began_with_outlast_its_sandboxes_and_replays_but_no_reset() {
    for snapshot in [None, Some(snapshot("b", 0, None))] {
        let holds = |events: &[EventBody]| restored_from(events).sandbox_rules.an_ask_names("mail");
        let begin = vec![based(snapshot), ready()];
        assert!(holds(&begin));
        let ran = [begin, ran(1..=1)].concat();
        assert!(holds(&ran));
        assert!(holds(&[ran.clone(), vec![gone(), ready()]].concat()), "a new sandbox");
        let replays = EventBody::ReplayStarted { cells: vec![1] };
        let replayed = [ran, vec![replays, EventBody::ResetDone { cells: 1 }]].concat();
        assert!(holds(&replayed), "a replay brings that code back");
        let replayed = [replayed, ran_again(2, 1), vec![EventBody::ReplayFinished]].concat();
        assert!(holds(&replayed));
        let reset = [replayed, vec![EventBody::Reset]].concat();
        assert!(holds(&reset), "code of before may still run");
        let reset = [reset, vec![EventBody::ResetDone { cells: 2 }]].concat();
        assert!(!holds(&reset));
        assert!(!holds(&[reset, vec![gone(), ready()]].concat()));
    }
}

#[test]
fn code_that_may_do_everything_binds_nothing_where_it_goes() {
    let on = BaseSource::Archive { name: "lab".into(), cell: 0 };
    let based = EventBody::Based { on, snapshot: None, bound: Box::default() };
    assert_eq!(restored_from(&[based, ready()]).sandbox_rules.asks().count(), 0);
}

fn ended_as(cell: CellNumber, mode: Mode) -> EventBody {
    let EventBody::CellFinished { mut result } = done(cell) else { unreachable!() };
    result.mode = mode;
    EventBody::CellFinished { result }
}

fn kept(restored: &Restored) -> Vec<&str> {
    restored.saved.snapshots().iter().map(|kept| kept.id.as_str()).collect()
}

#[test]
fn a_snapshot_of_earlier_variables_leaves_the_one_that_the_session_wakes_from() {
    let begin = [vec![ready()], ran(1..=3), vec![taken("s3", 3), taken("s2", 2)]].concat();
    let restored = restored_from(&begin);
    assert_eq!((kept(&restored), wakes(&restored)), (vec!["s3", "s2"], with("s3", &[])));
    let restored = restored_from(&[begin, vec![taken("s1", 1)]].concat());
    assert_eq!((kept(&restored), wakes(&restored)), (vec!["s3", "s1"], with("s3", &[])));
}

#[test]
fn without_its_newest_snapshot_a_session_is_not_saved() {
    let removed = |id: &str| EventBody::SnapshotRemoved { snapshot: id.into() };
    let named = EventBody::SnapshotTaken { snapshot: Box::new(snapshot("n1", 1, Some("mine"))) };
    let begin = [vec![ready()], ran(1..=2), vec![named, taken("s2", 2)]].concat();
    assert!(!restored_from(&[begin.clone(), vec![removed("n1")]].concat()).unsaved);
    assert!(restored_from(&[begin.clone(), vec![removed("s2")]].concat()).unsaved);
    // It may be removed while it is loaded.
    let while_loaded = vec![gone(), removed("s2"), ready()];
    let loading = [begin, while_loaded].concat();
    assert!(!restored_from(&loading).unsaved, "nothing is there yet");
    assert!(restored_from(&[loading, vec![woken("s2", 2, &[])]].concat()).unsaved);
}

#[test]
fn scratch_and_background_cells_change_the_variables_and_are_named_if_a_snapshot_lacks_them() {
    let begin = [vec![ready()], ran(1..=1), vec![taken("s1", 1)]].concat();
    let left_out = |restored: &Restored| loads(restored).left_out;
    for mode in [Mode::Scratch, Mode::Background] {
        let cell = vec![queued(2, mode), started(2), ended_as(2, mode)];
        let restored = restored_from(&[begin.clone(), cell.clone()].concat());
        assert!(restored.unsaved, "{mode:?}");
        assert_eq!((wakes(&restored), left_out(&restored)), (with("s1", &[]), vec![2]));
        let saved = [begin.clone(), cell, vec![taken("s2", 2)]].concat();
        let restored = restored_from(&saved);
        assert!(!restored.unsaved && left_out(&restored).is_empty(), "{mode:?}");
    }
    let beside = vec![queued(2, Mode::Background), started(2)];
    let beside = [begin, beside, ran(3..=3), vec![taken("s3", 3)]].concat();
    assert!(!restored_from(&beside).unsaved);
    let on = [beside, vec![ended_as(2, Mode::Background)]].concat();
    let restored = restored_from(&on);
    assert!(restored.unsaved, "it went on after the snapshot");
    assert_eq!((wakes(&restored), left_out(&restored)), (with("s3", &[]), vec![2]));
}

#[test]
fn a_replay_goes_on_from_what_the_session_began_with() {
    let on = BaseSource::Archive { name: "lab".into(), cell: 7 };
    let bound = BoundRules { approve: vec!["mail".into()], ..BoundRules::default() };
    let based =
        EventBody::Based { on, snapshot: Some(Box::new(snapshot("b", 7, None))), bound: Box::new(bound) };
    let begin = [vec![based, ready(), woken("b", 0, &[])], ran(1..=1), vec![taken("s1", 1)]].concat();
    let replay = vec![EventBody::ReplayStarted { cells: vec![1] }, EventBody::ResetDone { cells: 1 }];
    let replaying = [begin, replay].concat();
    let restored = restored_from(&replaying);
    assert_eq!(wakes(&restored), with("b", &[]));
    assert!(restored.sandbox_rules.an_ask_names("mail"), "the variables are there again");
    let rebuilt = [replaying, ran_again(2, 1), vec![EventBody::ReplayFinished, gone()]].concat();
    let restored = restored_from(&rebuilt);
    assert_eq!(wakes(&restored), with("b", &[2]));
    assert!(restored.sandbox_rules.an_ask_names("mail"));
}

#[test]
fn what_an_ask_gives_is_newer_than_an_earlier_snapshot() {
    let (mut of_ask, _) = super::cell_of_ask();
    let EventBody::AskStarted { spec, .. } = &mut of_ask[0] else { panic!("an ask begins") };
    spec.context.insert("given".into(), 1.into());
    let ask = of_ask.swap_remove(0);
    let turn = EventBody::ModelAsked { ask: 1, step: 1 };
    let begin = [vec![ready()], ran(1..=1)].concat();
    let keep = |events: &[EventBody]| loads(&restored_from(events)).keep;
    let holds_all = |events: &[EventBody]| restored_from(events).saved.up_to_date().is_some();
    let saved = [begin.clone(), vec![taken("s1", 1)]].concat();
    assert!(holds_all(&saved));
    let later = [saved, vec![ask.clone(), turn.clone()]].concat();
    assert_eq!(keep(&later), ["given"]);
    assert!(!holds_all(&later), "a branch would not have it");
    let before = [begin, vec![ask, turn], ran(2..=2), vec![taken("s2", 2)]].concat();
    assert!(keep(&before).is_empty(), "cells may have changed it since");
    assert!(holds_all(&before));
}

/// The daemon dies while it imports an archive, whose cells have numbers that cells of this session have as well.
#[test]
fn a_cell_of_an_archive_is_never_taken_for_one_of_the_session() {
    let mut bodies =
        vec![ready(), EventBody::ReplayStarted { cells: Vec::new() }, replayed(1, 2), started(1)];
    bodies.extend([called(1, 1), answered(1), done(1)]);
    // Its second cell has the number of the first one here, and its third one the number that it has here.
    bodies.extend([replayed(2, 1), started(2), called(2, 2), answered(2), called(3, 2)]);
    let events: Vec<_> = bodies.iter().cloned().zip(1..).map(|(body, seq)| event(seq, body)).collect();
    let mut fold = Fold::new(&std::sync::Arc::default());
    for event in &events {
        fold.take(event, crate::protocol::clock::Moment::now());
    }
    assert_eq!(fold.replayed().count(), 0, "the records are in the archive");
    let restored = restored(&events);
    assert_eq!(restored.replayable, [1], "and the cells that have run stay");
    let calls = restored.running[0].start.replay.as_ref().map(|calls| calls.0.len());
    assert_eq!(calls, Some(0), "it makes no real calls, and no answer is made up for it");
    assert!(restored.open_calls.iter().all(|call| call.recorded.is_none()));
    bodies.extend([done(2), replayed(3, 3), started(3), done(3)]);
    assert_eq!(restored_from(&bodies).replayable, [1, 2, 3]);
}

#[test]
fn without_a_snapshot_the_cells_since_the_start_run_again() {
    let begin = [vec![ready()], ran(1..=2)].concat();
    let after = |more: Vec<EventBody>| wakes(&restored_from(&[begin.clone(), more, vec![gone()]].concat()));
    assert_eq!(after(Vec::new()), with(NONE, &[1, 2]));
    assert_eq!(wakes(&restored_from(&[ready(), gone()])), None, "nothing has run");
    let reset = vec![EventBody::Reset, EventBody::ResetDone { cells: 2 }];
    assert_eq!(after([reset, ran(3..=3)].concat()), with(NONE, &[3]));
    assert_eq!(after([vec![lost()], ran(3..=3)].concat()), None, "no cell says what was lost");
    // A sandbox that began without them has only what was made in it.
    assert_eq!(after([vec![gone(), ready()], ran(3..=3)].concat()), with(NONE, &[3]));
    let beside = vec![queued(3, Mode::Background), started(3), ended_as(3, Mode::Background)];
    let restored = restored_from(&[begin.clone(), beside].concat());
    let Some(Waking::Rebuilds(cells)) = &restored.wake else { panic!("{:?}", restored.wake) };
    assert_eq!((&cells.replays[..], &cells.left_out[..]), (&[1, 2][..], &[3][..]));
    // Nobody is made to wait for what took long.
    let EventBody::CellFinished { mut result } = done(3) else { unreachable!() };
    result.duration_ms = 10.0 * 60.0 * 1e3;
    let long = vec![queued(3, Mode::Main), started(3), EventBody::CellFinished { result }];
    assert_eq!(after(long), None);
}

#[test]
fn cells_that_ran_again_from_nothing_do_so_again_but_not_for_ever() {
    let begin = [vec![ready()], ran(1..=2), vec![gone(), ready(), rebuilds(&[1, 2])]].concat();
    let restored = restored_from(&begin);
    assert_eq!(restored.waking, [1, 2]);
    assert!(restored.pending_note.unwrap().starts_with("The sandbox is a new one"));
    let halfway = [begin.clone(), ran_again(3, 1), vec![gone()]].concat();
    assert_eq!(wakes(&restored_from(&halfway)), with(NONE, &[3, 2]));
    let again = [begin, ran_again(3, 1), ran_again(4, 2), vec![EventBody::ReplayFinished]].concat();
    let on = [again.clone(), ran(5..=5), vec![gone()]].concat();
    assert_eq!(wakes(&restored_from(&on)), with(NONE, &[3, 4, 5]));
    // Perhaps it is they that end the sandbox.
    let twice = [again, vec![gone(), ready(), rebuilds(&[3, 4])]].concat();
    assert_eq!(wakes(&restored_from(&[twice.clone(), vec![gone()]].concat())), with(NONE, &[3, 4]));
    let thrice = [twice, vec![gone(), ready(), rebuilds(&[3, 4])]].concat();
    assert_eq!(wakes(&restored_from(&[thrice.clone(), vec![gone()]].concat())), None);
    let on = [thrice, ran_again(5, 3), ran_again(6, 4), ran(7..=7), vec![gone()]].concat();
    assert_eq!(wakes(&restored_from(&on)), with(NONE, &[5, 6, 7]), "it was not they");
}

#[test]
fn cells_after_a_snapshot_in_which_sandboxes_end_again_and_again_are_left_out() {
    let mut bodies = [vec![ready()], ran(1..=1), vec![taken("s1", 1)], ran(2..=2)].concat();
    for _ in 0..3 {
        assert_eq!(wakes(&restored_from(&bodies)), with("s1", &[2]));
        bodies.extend([gone(), ready(), woken("s1", 1, &[2])]);
    }
    let wake = loads(&restored_from(&bodies));
    assert_eq!((&wake.replays[..], &wake.left_out[..]), (&[][..], &[2][..]));
}

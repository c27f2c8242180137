//! What surrounds the machine in its random tests: it keeps the machine's promises in mind and holds the machine to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::ops::{Left, Op};
use crate::protocol::api::VariablesFilter;
use crate::protocol::ask::AskNumber;
use crate::protocol::command::EndCommand;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Mode;
use crate::session::machine::{Effect, Expiry, Input, Replays, SessionMachine, Unfinished};
use crate::session::outcome::CellStart;
use crate::session::replay::RecordedCalls;

const IDLE: Duration = Duration::from_secs(60);
const MAX_AGE: Duration = Duration::from_secs(600);
const AT_REST: Duration = Duration::from_secs(30);
const EXPIRY: Expiry = Expiry { idle: IDLE, max_age: MAX_AGE, at_rest: Some(AT_REST), saves: true };

/// Everything around the machine: the requests to it, and the facts that it relies on.
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct World {
    pub machine: SessionMachine<u32>,
    now: Instant,
    /// The requested cells, and how often each has ended.
    pub cells: BTreeMap<CellNumber, u32>,
    /// Cells that were running before, if their sandbox is found.
    resumed: BTreeMap<CellNumber, Mode>,
    pub views: BTreeMap<u32, u32>,
    starting: bool,
    there: bool,
    /// False while the sandbox is about to end and takes no more requests.
    takes: bool,
    frozen: bool,
    wants_permit: bool,
    permit: bool,
    begins: Vec<(u64, CellNumber)>,
    journaled: BTreeSet<CellNumber>,
    pub in_sandbox: BTreeMap<CellNumber, Mode>,
    undoing: usize,
    resetting: usize,
    placed: bool,
    /// The snapshot that is being taken, and whether nothing has changed since it was begun.
    saving: Option<(u64, bool)>,
    unsaved: bool,
    /// Whether the last attempt to save the variables failed.
    unsavable: bool,
    /// Whether cells run again in a sandbox that woke, before any other.
    waking: bool,
    /// Whether the next cell of the main line has to report that the variables changed before it.
    changed: bool,
    /// The cell of the main line that ran when it became known that the variables had changed before it.
    changed_before: Option<CellNumber>,
}

pub fn restored(left: &Left, now: Instant) -> SessionMachine<u32> {
    let cells = |from: u64, to: u64, mode| {
        let start = move |cell| CellStart { cell, mode, ask: Some(cell % 3), ..CellStart::default() };
        (from + 1..=to).map(start).collect::<Vec<_>>()
    };
    let main = u64::from(left.main);
    let (copies, all) = (main + left.copies, main + left.copies + left.commands);
    let mut running = cells(0, main, Mode::Main);
    running.extend(cells(main, copies, Mode::Fork));
    running.extend(cells(copies, all, Mode::Command));
    let before = Unfinished {
        cells: all + left.queued,
        queued: cells(all, all + left.queued, Mode::Main),
        running,
        note: None,
        not_loaded: None,
        has_variables: left.main,
        idle: Duration::ZERO,
        frozen: left.frozen,
        replays: Replays { newest: u64::from(left.replaying), is_running: left.replaying },
        waking: false,
        unsaved: left.unsaved,
        sandbox: left.sandbox,
        reset: left.reset,
    };
    SessionMachine::restored(EXPIRY, before, now)
}

impl World {
    pub fn new(left: Option<&Left>) -> Self {
        let now = Instant::now();
        let machine = match left {
            Some(left) => restored(left, now),
            None => SessionMachine::new(EXPIRY, now),
        };
        let main = left.is_some_and(|left| left.main);
        let mode = |cell| match cell {
            cell if machine.is_command(cell) => Mode::Command,
            1 if main => Mode::Main,
            _ => Mode::Fork,
        };
        Self {
            cells: (1..=machine.cells()).map(|cell| (cell, 0)).collect(),
            resumed: machine.queue().runs().map(|cell| (cell, mode(cell))).collect(),
            machine,
            now,
            views: BTreeMap::new(),
            starting: false,
            there: false,
            takes: true,
            frozen: left.is_some_and(|left| left.frozen),
            wants_permit: false,
            permit: false,
            begins: Vec::new(),
            journaled: BTreeSet::new(),
            in_sandbox: BTreeMap::new(),
            undoing: 0,
            resetting: 0,
            placed: false,
            saving: None,
            unsaved: left.is_some_and(|left| left.unsaved),
            unsavable: false,
            waking: false,
            changed: false,
            changed_before: None,
        }
    }

    fn ended(&mut self, cell: CellNumber) {
        let times = self.cells.get_mut(&cell).expect("nobody wanted this cell");
        *times += 1;
        assert_eq!(*times, 1, "cell {cell} ended twice");
    }

    pub fn take(&mut self, input: Input<u32>) {
        for effect in self.machine.step(input, self.now) {
            self.carry_out(effect);
        }
        self.permit = false;
    }

    fn carry_out(&mut self, effect: Effect<u32>) {
        match effect {
            Effect::StartSandbox => {
                assert!(!self.starting && !self.there, "two sandboxes");
                self.starting = true;
            }
            Effect::EndSandbox => {
                assert!(self.there && self.in_sandbox.is_empty(), "a sandbox in use is let go");
                let can_be_lost = self.unsavable || self.waking;
                assert!(!self.unsaved || can_be_lost, "variables are let go that could have been saved");
                (self.there, self.takes) = (false, true);
            }
            Effect::Save { number, .. } => {
                assert!(self.there && !self.frozen, "nothing is there to be saved");
                let main = self.in_sandbox.values().any(|mode| *mode == Mode::Main);
                assert!(!main && self.unsaved, "it does not rest, or has not changed");
                assert_eq!(self.saving.replace((number, true)), None, "two snapshots at once");
            }
            Effect::StopSaving { number } => {
                assert_eq!(self.saving.take().map(|(number, _)| number), Some(number));
                // It may have been waited for long enough.
                self.unsavable = true;
            }
            Effect::WantPermit => {
                assert!(!self.wants_permit, "two permits are wanted");
                self.wants_permit = true;
            }
            Effect::Begin { cell, begin } => {
                assert!(std::mem::take(&mut self.permit), "cell {cell} has no permit");
                self.journaled.remove(&cell);
                self.begins.push((begin, cell));
            }
            Effect::Run(start) => {
                assert!(self.there && !self.frozen, "cell {} has no sandbox that runs", start.cell);
                assert!(self.journaled.contains(&start.cell), "cell {} is not in the journal", start.cell);
                assert!(
                    !self.waking || start.replay.is_some(),
                    "cell {} runs before the session woke",
                    start.cell
                );
                let main = self.in_sandbox.values().any(|mode| *mode == Mode::Main);
                assert!(start.mode != Mode::Main || !main, "two cells of the main line");
                // An undo leaves commands alone; a reset ends them.
                let undoing = if start.mode == Mode::Command { 0 } else { self.undoing };
                assert_eq!(undoing + self.resetting, 0, "cell {} is in the way", start.cell);
                if start.mode == Mode::Main && !self.waking && std::mem::take(&mut self.changed) {
                    assert!(start.note.is_some(), "cell {} does not say what changed before it", start.cell);
                }
                if self.takes {
                    assert_eq!(self.in_sandbox.insert(start.cell, start.mode), None, "sent twice");
                }
            }
            Effect::Show { which, reply_to } => {
                assert!(self.there && !self.frozen, "nothing is there to be shown");
                if self.takes {
                    *self.views.get_mut(&reply_to).unwrap() += 1;
                } else {
                    self.machine.step(Input::NotShown { which, reply_to }, self.now);
                }
            }
            Effect::Interrupt(cell) | Effect::Kill(cell) => {
                assert!(!self.takes || self.in_sandbox.contains_key(&cell), "cell {cell} is not there");
            }
            Effect::Thaw => assert!(self.there || self.starting),
            Effect::Append(EventBody::Frozen) => self.frozen = true,
            Effect::Append(EventBody::Thawed | EventBody::SandboxGone { .. }) => self.frozen = false,
            Effect::Append(_) | Effect::Sleeps { .. } => {}
            Effect::Unrun(start) => {
                assert!(!self.in_sandbox.contains_key(&start.cell), "cell {} did run", start.cell);
                self.ended(start.cell);
            }
            Effect::Lost(start, _) => {
                // A sandbox that only commands use expires with them, and one that cannot wake ends with what was to run again.
                let expires = start.mode == Mode::Command || (self.waking && start.replay.is_some());
                let has_sandbox = self.there && !self.machine.is_ending() && !expires;
                assert!(!has_sandbox, "cell {} has its sandbox", start.cell);
                self.in_sandbox.remove(&start.cell);
                self.ended(start.cell);
            }
            Effect::Refuse(view, _) => *self.views.get_mut(&view).unwrap() += 1,
        }
    }

    fn nth(&self, which: usize) -> Option<CellNumber> {
        self.in_sandbox.keys().nth(which).copied()
    }

    /// The variables are others than the newest snapshot holds.
    fn is_changed(&mut self) {
        (self.unsaved, self.unsavable) = (true, false);
        if let Some((_, is_same)) = &mut self.saving {
            *is_same = false;
        }
    }

    fn finish(&mut self, cell: CellNumber) {
        if self.in_sandbox.remove(&cell).is_some_and(Mode::has_variables) {
            self.is_changed();
        }
        self.ended(cell);
        if self.changed_before.take_if(|changed| *changed == cell).is_some() {
            assert!(
                self.machine.take_late_note(cell).is_some(),
                "cell {cell} does not say what changed before it"
            );
        }
        self.take(Input::Finished(cell));
    }

    fn commit_begin(&mut self, index: usize, in_time: bool) {
        let (begin, _) = self.begins[index];
        if in_time {
            // The journal keeps the order of its events.
            let before = self.begins.iter().filter(|(other, _)| *other <= begin);
            self.journaled.extend(before.map(|(_, cell)| *cell));
        }
        self.begins.remove(index);
        self.take(Input::Started { begin, is_written: in_time });
    }

    fn attaches(&mut self, good: bool) {
        if good {
            self.in_sandbox = std::mem::take(&mut self.resumed);
            self.take(Input::SandboxAttached);
        } else {
            self.take(Input::NotAttached { reason: "it is gone".into() });
        }
    }

    fn dies(&mut self, reported: bool) {
        self.takes = false;
        for cell in std::mem::take(&mut self.in_sandbox).into_keys() {
            if reported {
                self.finish(cell);
            }
        }
        (self.there, self.takes, self.waking) = (false, true, false);
        self.take(Input::SandboxGone { reason: "it died".into() });
    }

    fn cell_comes(&mut self, mode: Mode, ask: Option<AskNumber>) {
        if self.machine.is_waking() {
            assert!(
                self.machine.may_run(Mode::Main, None, usize::MAX).is_ok(),
                "cells wait until it is awake"
            );
        }
        let replays = (self.machine.is_replaying() || self.machine.is_waking()) && mode == Mode::Main;
        let by_client = self.machine.may_run(mode, None, usize::MAX);
        let is_replay = self.machine.is_replaying() && mode == Mode::Main;
        assert!(!is_replay || by_client.is_err(), "a client's cell comes between those of a replay");
        let newest = self.machine.replays().newest;
        if self.machine.may_run(mode, replays.then_some(newest), 8).is_ok() {
            let cell = self.machine.cells() + 1;
            self.cells.insert(cell, 0);
            let replay = replays.then(RecordedCalls::default);
            let start = CellStart { cell, mode, replay, ask, ..CellStart::default() };
            self.take(Input::Cell(start));
        }
    }

    fn may_reset(&self, replay: bool) -> bool {
        self.machine.may_reset(replay.then(|| self.machine.replays().newest)).is_ok()
    }

    fn is_ready(&mut self, good: bool, wakes: Option<bool>) {
        (self.starting, self.there) = (false, good);
        if self.machine.is_attaching() {
            return self.attaches(good);
        }
        if !good {
            return self.take(Input::SandboxFailed(Problem::new(Code::SandboxFailed, "no")));
        }
        (self.unsaved, self.unsavable) = (false, false);
        if let Some(replays) = wakes {
            self.waking = replays && self.machine.may_run_again();
            self.take(Input::Woken { note: "it woke".into(), replays });
        }
        self.take(Input::SandboxReady);
    }

    fn snapshot_ends(&mut self, is_taken: bool) {
        let Some((number, is_same)) = self.saving.take() else { return };
        self.unsavable = !is_taken;
        self.unsaved &= !(is_taken && is_same);
        self.take(Input::SnapshotEnded { number, is_taken });
    }

    /// The kernel reports that the variables changed between cells.
    fn variables_change(&mut self) {
        if self.machine.is_ready() && self.takes {
            let main = self.in_sandbox.iter().find(|(_, mode)| **mode == Mode::Main);
            (self.changed_before, self.changed) = match main {
                Some((cell, _)) => (Some(*cell), self.changed),
                None => (self.changed_before, true),
            };
        }
        self.is_changed();
        self.take(Input::Changed { note: "the worker died".into() });
    }

    fn end_command(&mut self, which: usize, how: EndCommand) {
        let command = self.machine.queue().commands().get(which).map(|(start, _)| start.cell);
        // A number that no command has is no command's end.
        let cell = command.unwrap_or(CellNumber::MAX);
        self.take(Input::EndCommand { cell, how });
        let ended = command.is_none_or(|cell| self.cells[&cell] == 1 || self.machine.runs(cell));
        assert!(ended, "command {cell} waits on");
    }

    #[expect(clippy::too_many_lines, reason = "one arm an operation")]
    pub fn happens(&mut self, op: &Op) {
        match *op {
            Op::Cell { mode, ask } => self.cell_comes(mode, ask),
            Op::View { patient, taken } => {
                let view = u32::try_from(self.views.len()).unwrap();
                self.views.insert(view, 0);
                // A sandbox that is about to end stays so until it dies.
                self.takes &= taken || !self.there;
                self.take(Input::Variables { which: VariablesFilter::default(), patient, reply_to: view });
            }
            Op::Place => {
                self.placed = true;
                self.take(Input::Placed);
            }
            Op::WantSandbox => {
                self.take(Input::SandboxWanted);
                assert!(!self.placed || self.starting || self.there, "no sandbox comes");
            }
            Op::Changed => self.variables_change(),
            Op::EndCommand { which, how } => self.end_command(which, how),
            Op::Ready { good, wakes } if self.starting => self.is_ready(good, wakes),
            Op::SnapshotEnds(is_taken) => self.snapshot_ends(is_taken),
            Op::SnapshotBegins => {
                if let Some((number, _)) = self.saving {
                    self.take(Input::SaveBegins { number });
                }
            }
            Op::SnapshotRemoved if self.there => {
                self.is_changed();
                self.take(Input::Unsaved);
            }
            Op::Sleep if self.machine.may_sleep().is_ok() => self.take(Input::Sleep),
            Op::Dies { reported } if self.there => self.dies(reported),
            Op::Permit(may) if self.wants_permit => {
                (self.wants_permit, self.permit) = (false, may);
                self.take(if may { Input::MayRun } else { Input::MayNotRun(Problem::new(Code::Busy, "no")) });
            }
            Op::Written { which, in_time } if which < self.begins.len() => self.commit_begin(which, in_time),
            Op::Finish(which) => {
                if let Some(cell) = self.nth(which).filter(|_| !self.frozen) {
                    self.finish(cell);
                }
            }
            Op::PutBack(which) => {
                if let Some(cell) = self.nth(which).filter(|cell| self.in_sandbox[cell] == Mode::Fork) {
                    self.in_sandbox.remove(&cell);
                    self.take(Input::PutBack(cell));
                }
            }
            Op::CellUnwritten(which) => {
                let open = self.cells.iter().filter(|(_, times)| **times == 0).nth(which);
                if let Some(cell) = open.map(|(cell, _)| *cell) {
                    self.take(Input::CellUnwritten(cell));
                }
            }
            Op::Interrupt => self.take(Input::Interrupt),
            Op::CancelCells(ask) => self.take(Input::CancelCells(ask)),
            Op::Undo if self.machine.may_undo().is_ok() => {
                self.take(Input::Undo);
                self.undoing += 1;
            }
            Op::UndoDone if self.undoing > 0 => {
                self.undoing -= 1;
                self.is_changed();
                self.take(Input::UndoDone);
            }
            Op::ReplayWanted if self.machine.may_replay().is_ok() => self.take(Input::ReplayWanted),
            Op::Reset { replay } if self.may_reset(replay) => {
                self.take(Input::Reset { replay });
                self.resetting += 1;
                (self.changed, self.waking) = (false, false);
            }
            Op::ResetNoted if self.resetting > 0 => {
                self.resetting -= 1;
                // The sandbox ends all running cells.
                for cell in self.in_sandbox.keys().copied().collect::<Vec<_>>() {
                    self.finish(cell);
                }
                self.unsaved = false;
                self.take(Input::ResetNoted);
            }
            Op::ReplayEnded(finished) => {
                self.waking = false;
                let number = self.machine.replays().newest;
                self.take(Input::ReplayEnded { number, finished });
            }
            Op::NotRebuilt if self.waking && self.there => {
                self.take(Input::NotRebuilt(Problem::new(Code::Busy, "no room")));
                assert!(!self.there, "cells would run without the variables of before");
                self.waking = false;
            }
            Op::Freeze if self.machine.may_freeze().is_ok() => self.take(Input::Freeze),
            Op::FreezeFailed if self.frozen => self.take(Input::FreezeFailed(self.machine.freezes())),
            Op::Thaw => self.take(Input::Thaw),
            Op::Tick(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.take(Input::Tick);
            }
            Op::Ready { .. }
            | Op::SnapshotRemoved
            | Op::Sleep
            | Op::Dies { .. }
            | Op::Permit(_)
            | Op::Written { .. }
            | Op::Undo
            | Op::UndoDone
            | Op::Reset { .. }
            | Op::ResetNoted
            | Op::ReplayWanted
            | Op::NotRebuilt
            | Op::Freeze
            | Op::FreezeFailed => {}
        }
    }

    /// Lets everything that was begun come to its end, without new requests.
    pub fn calms_down(&mut self) {
        let ways = [
            Op::Place,
            Op::Ready { good: true, wakes: None },
            Op::SnapshotEnds(true),
            Op::Permit(true),
            Op::Written { which: 0, in_time: true },
            Op::Finish(0),
            Op::UndoDone,
            Op::ResetNoted,
            Op::ReplayEnded(false),
            Op::Thaw,
        ];
        for _ in 0..self.cells.len() * 2 + self.views.len() + self.undoing + self.resetting + 4 {
            if !self.takes {
                self.dies(true);
            }
            for way in &ways {
                self.happens(way);
            }
        }
    }
}

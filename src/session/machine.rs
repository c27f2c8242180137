//! Decides what a session does next, as a pure machine: inputs in, effects out.
//!
//! The machine owns the queue, the phase of the sandbox, the permits that cells wait for, and all reasons to
//! hold cells back: an undo or a reset under way, a replay, a freeze, the end. A cell begins in three steps:
//! its owner may run one more (`WantPermit`), its start is in the journal (`Begin`), and then it goes to the
//! sandbox (`Run`).

mod commands;
mod effects;
mod ending;
mod freezing;
mod pending_note;
mod questions;
mod saving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::outcome::EndedBy;
use super::queue::{Next, Queue, QueueItem};
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};

use effects::ReplayPhase;
pub use effects::{Effect, Expiry, Input, Replays, Unfinished};
use pending_note::PendingNote;
use saving::Saving;

/// The most lists of variables that wait for the main line.
const LISTINGS_WAITING: usize = 16;
/// The number of sandboxes that may end before they take a cell, until the cell is given up.
const SANDBOXES_MISSED: u32 = 3;
/// The note on a cell that did not run because the journal could not be written.
const UNWRITTEN: &str = "The journal could not be written, so the cell was not run.";
const RESET: &str = "The session was reset before this cell ran.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    None,
    Starting,
    Ready { since: Instant },
}

/// A cell whose start is on its way into the journal.
struct BeginningCell {
    cell: CellNumber,
    /// Whether the start is in the journal, so that the cell only waits for a frozen sandbox.
    is_written: bool,
    /// Whether a client interrupted the cell meanwhile.
    interrupted: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct SessionMachine<W> {
    expiry: Expiry,
    phase: Phase,
    queue: Queue<W>,
    /// The cells that have not ended.
    open: BTreeSet<CellNumber>,
    /// Cells that are beginning, in the order in which they began.
    beginning: BTreeMap<u64, BeginningCell>,
    begun: u64,
    cells: CellNumber,
    note: PendingNote,
    /// A note for the result of the cell of the main line that was sent before its reason was known.
    late_note: Option<(CellNumber, String)>,
    wants_permit: bool,
    active_at: Instant,
    placed: bool,
    /// Whether to start a sandbox as soon as the workspace is ready.
    wants_sandbox: bool,
    /// Whether an earlier sandbox may exist, which is not known yet.
    attaching: bool,
    /// Whether the last reset has to be sent to the kernel again.
    reset_again: bool,
    /// Cells to interrupt as soon as their sandbox is attached.
    cancelled: BTreeSet<CellNumber>,
    /// Whether the session is being removed, or left to the next daemon.
    ending: bool,
    /// The number of undos and resets under way; cells that arrive meanwhile wait.
    going_back: usize,
    replay: ReplayPhase,
    /// The number of replays and wakings so far, so that the late end of an earlier one is told from that of a newer one.
    replays: u64,
    /// Whether a cell of the replay has run, so that a sandbox that ends takes something of it away.
    rebuilt: bool,
    /// What of the variables is saved, and the saving that goes on.
    saving: Saving,
    frozen: bool,
    /// The number of freezes so far, so that a freeze that fails late is told from a newer one.
    freezes: u64,
}

impl<W> SessionMachine<W> {
    #[must_use]
    pub fn new(expiry: Expiry, now: Instant) -> Self {
        Self {
            expiry,
            phase: Phase::None,
            queue: Queue::default(),
            open: BTreeSet::new(),
            beginning: BTreeMap::new(),
            begun: 0,
            cells: 0,
            note: PendingNote::default(),
            late_note: None,
            wants_permit: false,
            active_at: now,
            placed: false,
            wants_sandbox: true,
            attaching: false,
            reset_again: false,
            cancelled: BTreeSet::new(),
            ending: false,
            going_back: 0,
            replay: ReplayPhase::None,
            replays: 0,
            rebuilt: false,
            saving: Saving::new(now),
            frozen: false,
            freezes: 0,
        }
    }

    /// Restores unfinished work. Cells that ran count as running until their sandbox is known to be gone.
    #[must_use]
    pub fn restored(expiry: Expiry, before: Unfinished, now: Instant) -> Self {
        let mut machine = Self::new(expiry, now);
        let (again, queued): (Vec<_>, Vec<_>) =
            before.queued.into_iter().partition(|start| before.waking && start.replay.is_some());
        for start in again.into_iter().chain(queued) {
            machine.open.insert(start.cell);
            machine.queue.push(QueueItem::Cell { start, patient: false });
        }
        for start in before.running {
            machine.open.insert(start.cell);
            machine.queue.resume(start);
        }
        Self {
            cells: before.cells,
            note: PendingNote::of(before.note, before.not_loaded, before.has_variables),
            active_at: now.checked_sub(before.idle).unwrap_or(now),
            wants_sandbox: before.sandbox,
            attaching: before.sandbox,
            reset_again: before.sandbox && before.reset,
            replay: match (before.waking, before.replays.is_running) {
                (true, _) => ReplayPhase::Waking,
                (false, true) => ReplayPhase::Running,
                (false, false) => ReplayPhase::None,
            },
            replays: before.replays.newest + u64::from(before.waking),
            // It is not known whether one has.
            rebuilt: before.replays.is_running,
            saving: Saving::of_before(before.unsaved, now),
            frozen: before.frozen,
            ..machine
        }
    }

    /// Takes an input and gives the effects to carry out, in this order.
    #[expect(clippy::too_many_lines, reason = "one arm an input; most of the work is in the methods")]
    pub fn step(&mut self, input: Input<W>, now: Instant) -> Vec<Effect<W>> {
        let mut effects = Vec::new();
        let out = &mut effects;
        match input {
            Input::Placed => self.placed(out),
            Input::SandboxWanted => {
                self.touch(now);
                self.stay(out);
                self.thaw(out);
                self.start_sandbox(out);
            }
            Input::Woken { note, replays } => self.woken(note, replays),
            Input::RanOtherwise { cells } => self.ran_otherwise(&cells),
            Input::NotRunAgain { cells, problem } => self.not_run_again(&cells, &problem),
            Input::NotWoken { reason } => {
                self.note.did_not_wake(reason);
                self.replays_no_more("What its replay begins with could not be loaded.", out);
            }
            Input::SandboxReady if self.phase == Phase::Starting => {
                self.phase = Phase::Ready { since: now };
                self.attaching = false;
                self.saving.is_clean(now);
                self.touch(now);
            }
            Input::SandboxAttached if self.phase == Phase::Starting => {
                self.phase = Phase::Ready { since: now };
                self.attaching = false;
                out.push(Effect::Append(EventBody::SandboxAttached));
                let cancelled = std::mem::take(&mut self.cancelled);
                out.extend(cancelled.into_iter().filter(|cell| self.runs(*cell)).map(Effect::Interrupt));
            }
            Input::SandboxReady | Input::SandboxAttached => {}
            Input::SandboxFailed(problem) => self.sandbox_failed(&problem, out),
            Input::SandboxGone { reason } => self.sandbox_gone(reason, out),
            Input::NotAttached { reason } => {
                self.attaching = false;
                self.lose_running(None, out);
                self.sandbox_gone(reason, out);
            }
            Input::Changed { note } => {
                self.drop_saving(out);
                self.saving.changed(now);
                match self.queue.main().filter(|cell| self.runs(*cell)) {
                    // The variables changed before it began: the process ended between cells.
                    Some(cell) => self.late_note = Some((cell, note)),
                    None => self.note.set(note),
                }
            }
            Input::Cell(start) => {
                self.touch(now);
                self.thaw(out);
                self.cells = self.cells.max(start.cell);
                self.open.insert(start.cell);
                if self.replay == ReplayPhase::Waking && start.replay.is_some() {
                    // The cells that wait are to find the variables as they were.
                    self.queue.push_front(QueueItem::Cell { start, patient: false });
                } else {
                    self.queue.push(QueueItem::Cell { start, patient: false });
                }
            }
            Input::CellUnwritten(cell) => {
                if !self.runs(cell) {
                    self.give_up(cell, UNWRITTEN, out);
                }
            }
            Input::Variables { which, patient, reply_to } => {
                self.touch(now);
                if self.queue.views() >= LISTINGS_WAITING {
                    let problem =
                        Problem::new(Code::Busy, format!("{LISTINGS_WAITING} such requests wait already"));
                    out.push(Effect::Refuse(reply_to, problem.hint("wait for one of them to be answered")));
                } else if self.ending {
                    out.push(Effect::Refuse(reply_to, removed()));
                } else {
                    self.thaw(out);
                    self.queue.push(QueueItem::Variables { which, patient, reply_to });
                }
            }
            // Not pumped: the sandbox, which is ending, would refuse the request again.
            Input::NotShown { which, reply_to } => {
                self.queue.push_front(QueueItem::Variables { which, patient: false, reply_to });
                return effects;
            }
            Input::MayRun => {
                self.wants_permit = false;
                self.pump(true, out);
                return effects;
            }
            Input::MayNotRun(problem) => {
                self.wants_permit = false;
                self.cancel_queue(&format!("The cell was not run: {}.", problem.message), &problem, out);
            }
            Input::Started { begin, is_written } => self.started(begin, is_written, out),
            Input::PutBack(cell) => self.queue.put_back(cell, true),
            Input::Finished(cell) => {
                if !self.is_command(cell) {
                    self.touch(now);
                }
                self.open.remove(&cell);
                let ended = self.queue.take(cell);
                self.rebuilt |= ended.as_ref().is_some_and(|start| start.replay.is_some());
                if let Some(start) = ended.filter(|start| start.mode.has_variables()) {
                    self.saving.changed(now);
                    if start.mode.is_in_line() && start.replay.is_none() {
                        self.note.is_told();
                    }
                }
                self.beginning.retain(|_, beginning| beginning.cell != cell);
            }
            Input::Interrupt => {
                self.touch(now);
                self.thaw(out);
                if let Some(cell) = self.interruptible() {
                    self.interrupt(cell, out);
                }
            }
            Input::EndCommand { cell, how } => {
                self.touch(now);
                self.end_command(cell, how, out);
            }
            Input::CancelCells(ask) => self.cancel_cells(ask, out),
            Input::Undo => {
                self.touch(now);
                self.drop_saving(out);
                self.going_back += 1;
            }
            Input::UndoDone => {
                self.saving.changed(now);
                self.going_back = self.going_back.saturating_sub(1);
            }
            Input::ResetNoted => {
                self.saving.is_clean(now);
                self.going_back = self.going_back.saturating_sub(1);
                // A sandbox that is being attached to gets the reset once it is attached.
                self.reset_again |= self.attaching;
            }
            Input::Reset { replay } => {
                self.touch(now);
                self.drop_saving(out);
                self.thaw(out);
                self.cancel_queue(RESET, &Problem::new(Code::Busy, "the session was reset"), out);
                // These cells would reach the sandbox after the reset.
                for cell in self.not_sent(|_| true) {
                    self.give_up(cell, RESET, out);
                }
                self.replay = if replay { ReplayPhase::Running } else { ReplayPhase::None };
                self.rebuilt = false;
                self.note.is_reset(replay);
                self.going_back += 1;
            }
            Input::ReplayWanted => {
                self.stay(out);
                self.replays += 1;
                self.replay = ReplayPhase::Prepared;
            }
            Input::ReplayEnded { number, finished } => self.replay_ended(number, finished, out),
            Input::NotRebuilt(problem) => self.not_rebuilt(&problem, out),
            Input::Freeze => {
                // Its copy would be frozen with the rest, and hold up those of other sessions.
                self.drop_saving(out);
                self.freeze(out);
                // Not pumped: starting the next item would thaw the sandbox.
                return effects;
            }
            Input::FreezeFailed(number) => self.freeze_failed(number, out),
            Input::Thaw => {
                self.touch(now);
                self.thaw(out);
            }
            Input::Remove => {
                self.ending = true;
                self.drop_saving(out);
                self.cancel_queue("The session was removed before this cell ran.", &removed(), out);
                self.lose_running(Some(&EndedBy::Cancel), out);
                self.phase = Phase::None;
            }
            Input::Leave => {
                self.ending = true;
                self.beginning.clear();
                self.phase = Phase::None;
            }
            Input::Sleep => self.sleep_now(now, out),
            Input::SnapshotEnded { number, is_taken } => self.snapshot_ended(number, is_taken, now, out),
            Input::Saved { changes } => self.saving.holds(changes),
            Input::SaveBegins { number } => self.save_begins(number, now),
            Input::Unsaved => self.saving.changed(now),
            Input::Tick => self.expire(now, out),
        }
        self.pump(false, out);
        effects
    }

    fn placed(&mut self, out: &mut Vec<Effect<W>>) {
        if std::mem::replace(&mut self.placed, true) || self.ending {
            return;
        }
        if self.wants_sandbox {
            self.start_sandbox(out);
        } else {
            self.lose_running(None, out);
        }
    }

    fn start_sandbox(&mut self, out: &mut Vec<Effect<W>>) {
        if self.phase == Phase::None && self.placed && !self.ending {
            self.phase = Phase::Starting;
            self.wants_sandbox = false;
            out.push(Effect::StartSandbox);
        }
    }

    fn sandbox_failed(&mut self, problem: &Problem, out: &mut Vec<Effect<W>>) {
        self.phase = Phase::None;
        self.attaching = false;
        self.lose_running(None, out);
        out.push(Effect::Append(EventBody::SandboxGone { reason: problem.message.clone() }));
        self.cancel_queue(&format!("No sandbox could be started: {}.", problem.message), problem, out);
    }

    fn sandbox_gone(&mut self, reason: String, out: &mut Vec<Effect<W>>) {
        self.phase = Phase::None;
        self.frozen = false;
        self.drop_saving(out);
        self.beginning.clear();
        self.note.sandbox_is_gone(&reason);
        out.push(Effect::Append(EventBody::SandboxGone { reason }));
        self.wakes_no_more(out);
        if self.rebuilt {
            self.replays_no_more("The sandbox ended while earlier cells ran again in it.", out);
        }
        // Cells that were not reported never reached the kernel, so the next sandbox gets them.
        for cell in self.queue.runs().rev().collect::<Vec<_>>() {
            let Some(start) = self.queue.running(cell) else { continue };
            start.sandboxes_missed += 1;
            if start.sandboxes_missed < SANDBOXES_MISSED {
                self.queue.put_back(cell, false);
            } else {
                self.give_up(cell, "Again and again the sandbox ended before the cell could run in it.", out);
            }
        }
    }

    /// Starts waiting items as far as the sandbox can take them. `permit`: one more cell may run.
    fn pump(&mut self, mut permit: bool, out: &mut Vec<Effect<W>>) {
        if !self.queue.has_waiting() || self.ending || self.going_back > 0 {
            return;
        }
        self.stay(out);
        match self.phase {
            Phase::Ready { .. } => {}
            Phase::Starting => return,
            Phase::None => return self.start_sandbox(out),
        }
        while let Some(is_cell) = self.queue.next_is_cell() {
            // Until the session is awake, only the cells that rebuild its variables run.
            if self.replay == ReplayPhase::Waking && !self.queue.replays_next() {
                return;
            }
            if is_cell && !std::mem::take(&mut permit) {
                if !std::mem::replace(&mut self.wants_permit, true) {
                    out.push(Effect::WantPermit);
                }
                return;
            }
            self.thaw(out);
            match self.queue.next() {
                Some(Next::Variables { which, reply_to }) => out.push(Effect::Show { which, reply_to }),
                Some(Next::Cell(cell)) => {
                    self.begun += 1;
                    let beginning = BeginningCell { cell, is_written: false, interrupted: false };
                    self.beginning.insert(self.begun, beginning);
                    out.push(Effect::Begin { cell, begin: self.begun });
                }
                None => return,
            }
        }
    }

    /// Handles the commit of a cell's start. The journal keeps the order, so all earlier starts are written
    /// as well.
    fn started(&mut self, begin: u64, is_written: bool, out: &mut Vec<Effect<W>>) {
        if !is_written {
            if let Some(beginning) = self.beginning.remove(&begin) {
                self.give_up(beginning.cell, UNWRITTEN, out);
            }
            return;
        }
        self.beginning.range_mut(..=begin).for_each(|(_, beginning)| beginning.is_written = true);
        if !self.frozen {
            self.run_written(out);
        }
    }

    fn run_written(&mut self, out: &mut Vec<Effect<W>>) {
        while let Some(first) = self.beginning.first_entry().filter(|first| first.get().is_written) {
            let BeginningCell { cell, interrupted, .. } = first.remove();
            let Some(start) = self.queue.running(cell) else { continue };
            let mut start = start.clone();
            let rebuilds = self.replay == ReplayPhase::Waking && start.replay.is_some();
            // The note is for the first cell that a client waits for.
            start.note = if rebuilds { None } else { self.note.told_by(start.mode) };
            out.push(Effect::Run(start));
            if interrupted {
                out.push(Effect::Interrupt(cell));
            }
        }
    }

    /// What the result of a cell has to say of what happened before the cell began, and was learnt later.
    pub fn take_late_note(&mut self, cell: CellNumber) -> Option<String> {
        self.late_note.take_if(|(noted, _)| *noted == cell).map(|(_, note)| note)
    }

    /// The cells that have begun but were not sent to the sandbox yet.
    fn not_sent(&self, is_meant: impl Fn(CellNumber) -> bool) -> Vec<CellNumber> {
        self.beginning.values().map(|beginning| beginning.cell).filter(|cell| is_meant(*cell)).collect()
    }

    fn interrupt(&mut self, cell: CellNumber, out: &mut Vec<Effect<W>>) {
        match self.beginning.values_mut().find(|beginning| beginning.cell == cell) {
            Some(beginning) => beginning.interrupted = true,
            None => out.push(Effect::Interrupt(cell)),
        }
    }
}

fn removed() -> Problem {
    Problem::new(Code::NoSuchSession, "the session was removed")
}

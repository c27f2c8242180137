//! Cells: begin, interrupt, kill, end.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

use super::super::session::SessionMsg;
use super::permits::Asked;
use super::{ExecutorMsg, ExecutorRef, ExecutorState, Overdue, request_number};
use crate::bridge::{Delivery, SendError, Turn};
use crate::controls;
use crate::deaths::watched;
use crate::protocol::event::EventBody;
use crate::protocol::frames::{HostFrame, KernelFrame, Live, StateAfter};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{INTERRUPT_GRACE, KILL_GRACE, KILL_REPORT, NAMES, NAMES_WITHIN};
use crate::protocol::quota::Kind;
use crate::protocol::result::Mode;
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::artifacts::{self, Snapshot};
use crate::sandbox::workspace::owner::Lane;
use crate::sandbox::workspace::usage::{self, Hidden, Usage};
use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use crate::store::{Applied, CellRecord, Exceeded};

/// Looks in a row that find a too large workspace growing, with no cell to blame.
const GROWING_LOOKS: u32 = 3;
/// Why what writes is ended where others need the space.
const DISK_SHORT: &str = "The disk that all workspaces share is nearly full, and this one still grew.";
/// What is said of a cell that the daemon of before had ended, for a reason that only that daemon knew.
const ENDED_BEFORE: &str =
    "The daemon ended the cell, because of a quota or a policy, and was then itself started anew.";
/// Time until a cell is sent again that found no worker.
const WORKER_PAUSE: Duration = Duration::from_millis(100);
/// Characters of a name that a lost cell may have assigned.
const NAME_CHARS: usize = 100;

pub(super) struct Running {
    pub start: CellStart,
    pub since: Instant,
    /// It began before the daemon did; the kernel says how long it took.
    pub resumed: bool,
    pub reported: Option<Duration>,
    pub interrupted: bool,
    pub ended_by: Option<EndedBy>,
    /// Why the daemon of before wanted it to end, as far as the journal knows.
    pub to_end: Option<EndedBy>,
    /// The guardian says that it took too much memory.
    pub out_of_memory: bool,
    /// Names of completed tool calls.
    pub completed: Vec<String>,
    pub timers: Vec<AbortHandle>,
    /// Ends it when its time is over.
    pub deadline: Option<AbortHandle>,
    /// Of the frame with which the kernel got it.
    pub delivery: Delivery,
    /// Calls of it that wait for a person, and since when one does.
    pub persons: u32,
    pub asked: Option<Asked>,
}

impl Running {
    pub fn of(start: CellStart, since: Instant) -> Self {
        Self {
            start,
            since,
            resumed: false,
            reported: None,
            interrupted: false,
            ended_by: None,
            to_end: None,
            out_of_memory: false,
            completed: Vec::new(),
            timers: Vec::new(),
            deadline: None,
            delivery: Delivery::default(),
            persons: 0,
            asked: None,
        }
    }

    pub fn resumed(
        start: CellStart,
        since: Instant,
        completed: Vec<String>,
        to_end: Option<EndedBy>,
    ) -> Self {
        let mut running = Self::of(start, since);
        (running.resumed, running.completed, running.to_end) = (true, completed, to_end);
        running
    }

    /// The kernel ended it because it was told to. If this daemon did not tell it, the one before did, whose reason is
    /// in the journal, or is that its time was over.
    pub fn was_killed(&mut self) {
        if self.ended_by.is_some() || !self.resumed {
            return;
        }
        let is_late = self.since.elapsed() >= self.start.timeout;
        let reason = self.to_end.take().or_else(|| is_late.then_some(EndedBy::Deadline));
        self.ended_by = Some(reason.unwrap_or_else(|| EndedBy::Policy(ENDED_BEFORE.into())));
    }

    /// Of a cell that ended while no daemon looked on, only the kernel knows it.
    pub fn elapsed(&self) -> Duration {
        let elapsed = self.since.elapsed();
        self.reported.filter(|_| self.resumed).map_or(elapsed, |reported| reported.min(elapsed))
    }

    pub fn stop_clocks(&mut self) {
        self.timers.drain(..).chain(self.deadline.take()).for_each(|timer| timer.abort());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_clocks();
    }
}

/// A cell that has ended, with all that its result is made of.
pub(super) struct Finishing {
    pub start: CellStart,
    pub ending: Ending,
    pub cause: Cause,
    pub record: CellRecord,
    pub elapsed: Duration,
    /// Held until the result is in the journal, so that the kernel keeps the frame until then.
    pub turn: Option<Turn>,
}

impl ExecutorState {
    /// What other hands changed before a cell is not the cell's doing.
    pub(super) async fn look_before_cell(&mut self) {
        if self.cage.is_some() && std::mem::take(&mut self.snapshot_is_old) {
            self.snapshot = scanned(&self.args.workspace).await;
            self.snapshot_unnoted = true;
        }
    }

    pub(super) fn run(&mut self, myself: &ExecutorRef, start: CellStart) {
        let cell = start.cell;
        if self.cage.is_none() {
            // The session hears of the end of the sandbox next, and gives it to another one.
            return;
        }
        self.note_snapshot();
        let frame = HostFrame::Cell {
            cell,
            code: start.code.clone(),
            mode: start.mode,
            expression: start.expression,
            restricted: start.rules.restricted,
        };
        self.args.recorder.begin(cell);
        let sent = self.cage.as_ref().map(|cage| cage.link.send(&frame));
        let timeout = start.timeout;
        self.bound.bind(start.ask, &start.rules, cell);
        let mut running = Running::of(start, Instant::now());
        running.delivery = sent.as_ref().and_then(|sent| sent.as_ref().ok()).cloned().unwrap_or_default();
        self.running.insert(cell, running);
        self.arm(myself, cell, timeout);
        match sent {
            Some(Err(SendError::TooLarge)) => {
                let why = "The sandbox could not run the cell: its code is too large.";
                self.cannot_run(myself, cell, EndedBy::Policy(why.into()));
            }
            Some(Err(SendError::Gone)) => {
                self.give_up(myself, "the kernel does not take cells any more".into());
            }
            Some(Ok(_)) | None => {}
        }
    }

    /// Starts the clocks of a cell.
    pub(super) fn arm(&mut self, myself: &ExecutorRef, cell: CellNumber, timeout: Duration) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        // A person decides on a call of it: its time goes on when that is done.
        if running.persons > 0 {
            return;
        }
        let overdue = move || ExecutorMsg::Overdue(Overdue::Deadline(cell));
        let deadline = myself.send_after(timeout, overdue).abort_handle();
        if let Some(before) = running.deadline.replace(deadline) {
            before.abort();
        }
    }

    pub(super) fn interrupt(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        self.args.log.append(EventBody::Interrupting { cell });
        running.interrupted = true;
        self.expect_interrupted(myself, cell);
        self.send(myself, &HostFrame::Interrupt { cell });
    }

    /// Tells the guardian to kill the cell's runner, once.
    pub(super) fn end_cell(&mut self, myself: &ExecutorRef, cell: CellNumber, why: EndedBy) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        if running.ended_by.is_some() {
            return;
        }
        running.ended_by = Some(why);
        self.expect_killed(myself, cell);
        let grace_ms = u64::try_from(KILL_GRACE.as_millis()).unwrap_or(0);
        self.send(myself, &HostFrame::Kill { cell, grace_ms });
    }

    /// More than its owner may have stored: what runs in this sandbox made it, or was about to.
    pub(super) fn over_quota(&mut self, myself: &ExecutorRef, why: &Exceeded) {
        if !controls::holds("cell_ends_over_quota") {
            return;
        }
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        for cell in cells {
            self.end_cell(myself, cell, EndedBy::Quota(why.to_string()));
        }
    }

    pub(super) fn expect_interrupted(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        let overdue =
            myself.send_after(INTERRUPT_GRACE, move || ExecutorMsg::Overdue(Overdue::Interrupt(cell)));
        running.timers.push(overdue.abort_handle());
    }

    pub(super) fn expect_killed(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        let overdue =
            myself.send_after(KILL_GRACE + KILL_REPORT, move || ExecutorMsg::Overdue(Overdue::Kill(cell)));
        running.timers.push(overdue.abort_handle());
    }

    /// Before a reset, which ends the main line; copies of it have to be ended one by one.
    pub(super) fn cancel_running(&mut self, myself: &ExecutorRef) {
        let mut copies = Vec::new();
        for (cell, running) in &mut self.running {
            match running.start.mode {
                Mode::Main => {
                    running.ended_by.get_or_insert(EndedBy::Cancel);
                }
                Mode::Fork => copies.push(*cell),
            }
        }
        for cell in copies {
            self.end_cell(myself, cell, EndedBy::Cancel);
        }
    }

    /// The kernel's word on the end of a cell.
    pub(super) fn cell_ended(&mut self, myself: &ExecutorRef, frame: KernelFrame, turn: Turn) {
        match frame {
            KernelFrame::CellDone {
                cell,
                status,
                reason,
                exit_code,
                result,
                exception,
                displays_dropped,
                protected,
                as_before,
                live,
                duration_ms,
            } => {
                self.unrecorded.remove(&cell);
                let main = self.running.get(&cell).is_some_and(|running| running.start.mode == Mode::Main);
                if let Some(running) = self.running.get_mut(&cell) {
                    running.reported = Duration::try_from_secs_f64(duration_ms / 1000.0).ok();
                }
                let ending = Ending::Done {
                    status,
                    reason,
                    exit_code,
                    result,
                    exception,
                    displays_dropped,
                    protected,
                    as_before,
                };
                self.finish(myself, cell, ending, Some(turn));
                if main {
                    self.set_live(live);
                }
            }
            KernelFrame::CellLost { cell, exit_code, after, out_of_memory, older, killed } => {
                self.unrecorded.remove(&cell);
                if let Some(running) = self.running.get_mut(&cell) {
                    running.out_of_memory = out_of_memory;
                    if killed {
                        running.was_killed();
                    }
                }
                let ending = Ending::Lost { exit_code, after, older, names: Vec::new() };
                self.finish(myself, cell, ending, Some(turn));
                if after != StateAfter::Kept {
                    self.set_live(Live::default());
                }
            }
            _ => {}
        }
    }

    /// A result for a cell that does not run is forged or late: it is dropped.
    pub(super) fn finish(
        &mut self,
        myself: &ExecutorRef,
        cell: CellNumber,
        ending: Ending,
        turn: Option<Turn>,
    ) {
        let Some(mut running) = self.running.remove(&cell) else { return };
        self.cell_ended_since_look = true;
        let unanswered = self.cancel_calls(cell);
        let before = running.start.before;
        let after = self.cage.as_ref().map_or(before, |cage| cage.sandbox.counters());
        let cause = Cause {
            ended_by: running.ended_by.take(),
            out_of_memory: running.out_of_memory || after.oom_kills > before.oom_kills,
            forks_refused: after.forks_refused > before.forks_refused,
            completed_tool_calls: std::mem::take(&mut running.completed),
            unanswered_tool_calls: unanswered,
            live: self.live,
        };
        let asks_names =
            matches!(ending, Ending::Lost { after: StateAfter::Restored(_) | StateAfter::Lost, .. });
        let mut ending = ending;
        let mut record = self.args.recorder.finish(cell);
        let value = match &mut ending {
            Ending::Done { result, .. } => result.as_mut(),
            Ending::Lost { .. } | Ending::SandboxGone { .. } | Ending::Cancelled => None,
        };
        self.expand(&mut record, value);
        let finishing = Finishing {
            record,
            elapsed: running.elapsed(),
            start: running.start.clone(),
            ending,
            cause,
            turn,
        };
        drop(running);
        if asks_names {
            self.ask_for_names(myself, finishing);
        } else {
            self.complete(myself, finishing);
        }
    }

    /// Which names a lost cell may have assigned only a Python parser knows.
    /// The turn has to be given back for the answer to arrive, so that the kernel will not tell of the
    /// end again: first the journal has it.
    fn ask_for_names(&mut self, myself: &ExecutorRef, mut finishing: Finishing) {
        if let (Some(turn), Ending::Lost { exit_code, after, .. }, Some(cage)) =
            (finishing.turn.take(), &finishing.ending, &self.cage)
        {
            let (cell, killed) = (finishing.start.cell, finishing.cause.ended_by.is_some());
            let died = EventBody::CellDied { cell, exit_code: *exit_code, after: *after, killed };
            let applied = Applied { sandbox: cage.sandbox.id().clone(), received: turn.number };
            self.args.log.append_applied(died, applied);
        }
        let request = request_number();
        let code = finishing.start.code.clone();
        self.finishing.insert(request, finishing);
        myself.send_after(NAMES_WITHIN, move || ExecutorMsg::Overdue(Overdue::Request(request)));
        self.send(myself, &HostFrame::Names { request, code });
    }

    pub(super) fn names_arrived(&mut self, myself: &ExecutorRef, request: u64, found: Vec<String>) {
        let Some(mut finishing) = self.finishing.remove(&request) else { return };
        if let Ending::Lost { names, .. } = &mut finishing.ending {
            names.extend(
                found.into_iter().take(NAMES).map(|name| name.chars().take(NAME_CHARS).collect::<String>()),
            );
        }
        self.complete(myself, finishing);
    }

    /// Nothing of it ran, so nothing but the cell is lost.
    pub(super) fn cannot_run(&mut self, myself: &ExecutorRef, cell: CellNumber, why: EndedBy) {
        if let Some(running) = self.running.get_mut(&cell) {
            running.ended_by.get_or_insert(why);
        }
        let ending = Ending::Lost { exit_code: 1, after: StateAfter::Kept, older: false, names: Vec::new() };
        self.finish(myself, cell, ending, None);
    }

    /// Compares the workspace, off the actor's thread, and reports the cell as ended.
    pub(super) fn complete(&mut self, myself: &ExecutorRef, mut finishing: Finishing) {
        self.concluding += 1;
        let (workspace, executor, before) =
            (Arc::clone(&self.args.workspace), myself.clone(), self.snapshot.clone());
        let unchanged = before.clone();
        let look = async move {
            let snapshot = scanned(&workspace).await;
            let (artifacts, cut) = artifacts::compare(&before, &snapshot);
            (snapshot, Changes { artifacts, cut })
        };
        watched(look, move |seen| {
            // The files of a guest must not keep the end of its cell from being told.
            let (snapshot, changes) =
                seen.unwrap_or_else(|| (unchanged, Changes { artifacts: Vec::new(), cut: true }));
            let turn = finishing.turn.take();
            let result = Box::new(finishing.conclude(changes));
            let _ = executor.cast(ExecutorMsg::Concluded { result, snapshot, turn });
        });
    }

    /// After a fork bomb it takes the kernel a while until it can have a process again. Nothing of
    /// the cell ran, so it is sent once more; its own deadline ends the waiting.
    pub(super) fn waits_for_worker(&mut self, myself: &ExecutorRef, cell: CellNumber) -> bool {
        let waiting = |running: &&mut Running| running.ended_by.is_none() && running.start.mode == Mode::Main;
        let Some(running) = self.running.get_mut(&cell).filter(waiting) else { return false };
        let again = myself.send_after(WORKER_PAUSE, move || ExecutorMsg::SendAgain(cell));
        running.timers.push(again.abort_handle());
        true
    }

    pub(super) fn send_again(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(start) = self.running.get(&cell).map(|running| &running.start) else { return };
        let (code, mode, expression) = (start.code.clone(), start.mode, start.expression);
        let restricted = start.rules.restricted;
        self.send(myself, &HostFrame::Cell { cell, code, mode, expression, restricted });
    }

    /// The kernel could not take a cell now: it waits for the main line.
    pub(super) fn put_back(&mut self, cell: CellNumber) {
        if self.running.remove(&cell).is_some() {
            let _ = self.args.recorder.finish(cell);
            self.tell(SessionMsg::PutBack(cell));
        }
    }

    /// One look at a time: a guest decides how long it takes. The longer it took, the later is the next, and
    /// until then this one counts as going on.
    pub(super) fn look_at_quota(&mut self, myself: &ExecutorRef) {
        if self.quota_look.as_ref().is_some_and(|look| !look.is_finished()) {
            return;
        }
        let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
        let reserve = self.args.launcher.settings.sandbox.disk_reserve_bytes;
        let first = self.cage.as_ref().and_then(|cage| cage.sandbox.pid());
        self.quota_look = Some(tokio::spawn(async move {
            let Some((usage, took)) = measured(workspace, first, reserve).await else { return };
            let _ = executor.cast(ExecutorMsg::QuotaLooked(usage));
            tokio::time::sleep(usage::pause_after(took)).await;
        }));
    }

    /// Only growth is held against anybody: a workspace that is too large and stays as it is may still
    /// be read and tidied up. A cell under which it grew is ended. Growth that no running cell can be
    /// blamed for ends the sandbox if it goes on: something that an earlier cell left behind writes.
    /// What cannot be seen grows; but a folder of the caller's is the caller's disk, and what the caller has there
    /// may be more than is looked at. Folders that a guest closes to the watch are never so.
    pub(super) fn quota_looked(&mut self, myself: &ExecutorRef, usage: Usage) {
        let before = self.usage.replace(usage);
        let cell_ended = std::mem::take(&mut self.cell_ended_since_look);
        // What is written and not to be seen matters when the disk is full.
        let seen = |before: Usage| {
            usage.bytes > before.bytes
                || usage.entries > before.entries
                || usage.is_disk_short && usage.written > before.written
        };
        let managed = self.args.workspace.managed;
        let hides = usage.hidden.is_some_and(|hidden| managed || hidden == Hidden::Closed);
        let grew = before.is_some_and(seen) || hides;
        let limit = self.args.launcher.settings.sandbox.workspace_bytes;
        let of_user = self.args.gauge.as_ref();
        let of_user = of_user.and_then(|gauge| gauge.measure(Kind::Workspace, usage.counted(limit)).err());
        let short = usage.is_disk_short.then(|| DISK_SHORT.to_owned());
        let why = usage.beyond(limit).or_else(|| of_user.map(|refusal| refusal.sentence())).or(short);
        let Some(why) = why.filter(|_| grew) else {
            self.growing_looks = 0;
            return;
        };
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        if !cells.is_empty() && !cell_ended {
            for cell in &cells {
                self.end_cell(myself, *cell, EndedBy::Policy(format!("{why} Remove some files.")));
            }
            return;
        }
        self.growing_looks += 1;
        if self.growing_looks >= GROWING_LOOKS {
            self.give_up(myself, why);
        }
    }
}

/// How large the workspace is, with what the sandbox of that first process holds, and how long it took to see;
/// nothing if the machine has trouble of its own.
pub(super) async fn measured(
    workspace: Arc<Workspace>,
    first: Option<i32>,
    disk_reserve: u64,
) -> Option<(Usage, Duration)> {
    let measured = workspace.measure(first, disk_reserve).await.map_err(|problem| problem.message);
    let measured = measured.and_then(|measured| measured.map_err(|error| error.to_string()));
    measured.inspect_err(|error| tracing::warn!(error, "a workspace cannot be measured")).ok()
}

/// The files of the workspace. Of a folder that does not answer nothing is known.
pub(super) async fn scanned(workspace: &Workspace) -> Snapshot {
    let scanned = workspace.access(Lane::Look, artifacts::scan).await;
    scanned.unwrap_or_else(|problem| {
        tracing::warn!(problem = problem.message, "a workspace cannot be looked at");
        Snapshot::unseen()
    })
}

impl Finishing {
    pub(super) fn conclude(self, changes: Changes) -> crate::protocol::result::ExecutionResult {
        conclude(self.start, self.ending, self.cause, self.record, changes, self.elapsed)
    }
}

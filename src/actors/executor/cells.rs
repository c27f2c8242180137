//! The cells of a sandbox: how they begin, the deadline of each (`arm`, `end_cell`), how they are interrupted and killed,
//! and how they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kernel::request_number;
use super::messages::{ExecutorMsg, ExecutorRef, Overdue};
use super::running::{FinishedCell, RunningCell};
use super::state::ExecutorState;
use super::workspace::scanned;
use crate::actors::session::messages::SessionMsg;
use crate::bridge::{FrameGuard, SendError};
use crate::panics::spawn_reporting;
use crate::protocol::command::{CommandSpec, TerminalSize};
use crate::protocol::event::EventBody;
use crate::protocol::frames::{HostFrame, KernelFrame, LiveResources, RefusedCode, StateAfter};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{
    BACKGROUND_GRACE, INTERRUPT_GRACE, KILL_GRACE, KILL_REPORT, NAMES, NAMES_WITHIN, TOOL_CALLS_LISTED,
};
use crate::protocol::periods::period;
use crate::protocol::result::Mode;
use crate::sandbox::workspace::artifacts::{self, Snapshot};
use crate::security_controls;
use crate::session::machine::Input;
use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending};
use crate::store::{AppliedFrame, Exceeded};

/// The pause until a cell that found no worker is sent again.
const WORKER_PAUSE: Duration = Duration::from_millis(100);
/// A guardian that gets CPU time finishes sooner than this, even if it gives the cell time to clean up.
const HURRY_AFTER: Duration = KILL_GRACE.saturating_mul(2);
/// The most characters of a name that a lost cell may have assigned.
const NAME_CHARS: usize = 100;

/// The time for the guardian to obey a command before the CPU limit is lifted.
pub(super) fn hurry_after() -> Duration {
    period("hurry", HURRY_AFTER)
}

/// The time that a cell of this mode has to end by itself, once it is to be killed.
fn kill_grace(mode: Mode) -> Duration {
    match mode {
        Mode::Background => BACKGROUND_GRACE,
        Mode::Main | Mode::Scratch | Mode::Fork | Mode::Command => KILL_GRACE,
    }
}

impl ExecutorState {
    fn frame_of(&self, start: &CellStart) -> HostFrame {
        if let Some(command) = &start.command {
            let CommandSpec { argv, line, cwd, env, stdin, terminal } = CommandSpec::clone(command);
            let TerminalSize { rows, columns } = terminal.unwrap_or_default();
            let (cell, tty) = (start.cell, terminal.is_some());
            return HostFrame::Command { cell, argv, line, cwd, env, stdin, tty, rows, columns };
        }
        HostFrame::Cell {
            cell: start.cell,
            code: start.code.clone(),
            mode: start.mode,
            expression: start.expression,
            restricted: start.rules.restricted && security_controls::holds("restricted_code_is_checked"),
            no_packages: self.why_no_packages(start),
        }
    }

    pub(super) fn run(&mut self, myself: &ExecutorRef, start: CellStart) {
        let cell = start.cell;
        if self.connected.is_none() {
            // The session is about to learn that the sandbox ended, and gives the cell to another one.
            return;
        }
        self.replacements = 0;
        if start.mode.has_variables() {
            self.replays = start.replay.is_some();
        }
        self.note_snapshot();
        let frame = self.frame_of(&start);
        self.args.recorder.begin(cell);
        let sent = self.connected.as_ref().map(|connected| connected.link.send(&frame));
        self.bound.bind(start.ask, &start.rules, cell);
        self.count_computed();
        let mut running = RunningCell::of(start, Instant::now());
        running.delivery = sent.as_ref().and_then(|sent| sent.as_ref().ok()).cloned().unwrap_or_default();
        running.had_company = !self.running.is_empty();
        self.running.values_mut().for_each(|other| other.had_company = true);
        self.running.insert(cell, running);
        self.arm(myself, cell);
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

    /// Starts the deadline of a cell.
    pub(super) fn arm(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        // A person decides on a call of this cell: its time continues after the decision.
        if running.pending_approvals > 0 {
            return;
        }
        let overdue = move || ExecutorMsg::Overdue(Overdue::Deadline(cell));
        let deadline = myself.send_after(running.left(), overdue).abort_handle();
        if let Some(before) = running.deadline.replace(deadline) {
            before.abort();
        }
    }

    pub(super) fn interrupt(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        // A client may interrupt a cell as often as it likes: the journal has it once, and the cell is killed
        // some time after the first.
        if !std::mem::replace(&mut running.interrupted, true) {
            let command = running.start.mode == Mode::Command;
            self.args.log.append(EventBody::Interrupting { cell, command });
            self.expect_interrupted(myself, cell);
        }
        self.send(myself, &HostFrame::Interrupt { cell });
    }

    /// Kills a command, because a client wants it.
    pub(super) fn kill(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        if let Some(running) = self.running.get_mut(&cell)
            && !std::mem::replace(&mut running.interrupted, true)
        {
            // So that the next daemon knows why it ended, if this one does not live to tell.
            self.args.log.append(EventBody::Interrupting { cell, command: true });
        }
        self.end_cell(myself, cell, EndedBy::Interrupt);
    }

    /// Tells the guardian to kill the cell's runner, once.
    pub(super) fn end_cell(&mut self, myself: &ExecutorRef, cell: CellNumber, why: EndedBy) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        if running.ended_by.is_some() {
            return;
        }
        if running.waits_for_worker {
            // The kernel does not know this cell, so it would not report its end.
            self.cannot_run(myself, cell, why);
            return;
        }
        running.ended_by = Some(why);
        let grace_ms = u64::try_from(kill_grace(running.start.mode).as_millis()).unwrap_or(0);
        self.expect_killed(myself, cell);
        self.send(myself, &HostFrame::Kill { cell, grace_ms });
    }

    /// Ends all cells, because the owner's stored bytes exceed the quota: code in this sandbox caused it, or
    /// was about to.
    pub(super) fn over_quota(&mut self, myself: &ExecutorRef, why: &Exceeded) {
        if !security_controls::holds("cell_ends_over_quota") {
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
        let reported_by = kill_grace(running.start.mode) + KILL_REPORT;
        let overdue = myself.send_after(reported_by, move || ExecutorMsg::Overdue(Overdue::Kill(cell)));
        let slow = myself.send_after(hurry_after(), move || ExecutorMsg::Overdue(Overdue::SlowKill(cell)));
        running.timers.extend([overdue.abort_handle(), slow.abort_handle()]);
    }

    /// Lifts the CPU limit until the cell has ended, because the guardian gets too little CPU time to kill
    /// it.
    pub(super) fn hurry_kill(&mut self, cell: CellNumber) {
        if let (Some(running), Some(connected)) = (self.running.get_mut(&cell), &self.connected) {
            running.cpu_boost.get_or_insert_with(|| connected.sandbox.lift_cpu_limit());
        }
    }

    /// Ends the running cells before a reset. The reset itself ends the main line; forks have to be ended one
    /// by one.
    pub(super) fn cancel_running(&mut self, myself: &ExecutorRef) {
        let mut to_end = Vec::new();
        for (cell, running) in &mut self.running {
            match running.start.mode {
                Mode::Main | Mode::Scratch | Mode::Background | Mode::Command
                    if !running.waits_for_worker =>
                {
                    running.ended_by.get_or_insert(EndedBy::Cancel);
                }
                // The reset does not end a cell that the kernel does not know: that cell would run after the
                // reset.
                Mode::Main | Mode::Scratch | Mode::Background | Mode::Fork | Mode::Command => {
                    to_end.push(*cell);
                }
            }
        }
        for cell in to_end {
            self.end_cell(myself, cell, EndedBy::Cancel);
        }
    }

    /// Handles the kernel's report that a cell has ended.
    pub(super) fn cell_ended(&mut self, myself: &ExecutorRef, frame: KernelFrame, frame_guard: FrameGuard) {
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
                harmless,
                live,
                duration_ms,
            } => {
                self.unrecorded.remove(&cell);
                let main = self.running.get(&cell).is_some_and(|running| running.start.mode.is_in_line());
                if let Some(running) = self.running.get_mut(&cell) {
                    running.reported = Duration::try_from_secs_f64(duration_ms / 1000.0).ok();
                    running.harmless = harmless;
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
                self.finish(myself, cell, ending, Some(frame_guard));
                if main {
                    self.set_live(live);
                }
            }
            KernelFrame::CellLost { cell, exit_code, after, out_of_memory, older, rolled_back, killed } => {
                self.unrecorded.remove(&cell);
                if let Some(running) = self.running.get_mut(&cell) {
                    running.out_of_memory = out_of_memory;
                    running.rolled_back = rolled_back;
                    if killed {
                        running.was_killed();
                    }
                }
                let ending = Ending::Lost { exit_code, after, older, names: Vec::new() };
                self.finish(myself, cell, ending, Some(frame_guard));
                if after != StateAfter::Kept {
                    self.set_live(LiveResources::default());
                }
            }
            _ => {}
        }
    }

    /// Ends a cell. A result for a cell that does not run is forged or late, and is dropped.
    pub(super) fn finish(
        &mut self,
        myself: &ExecutorRef,
        cell: CellNumber,
        ending: Ending,
        frame_guard: Option<FrameGuard>,
    ) {
        self.count_computed();
        let Some(mut running) = self.running.remove(&cell) else { return };
        let elapsed = running.elapsed(self.freezing.at);
        self.cell_ended_since_look = true;
        self.ended_beside_snapshot(running.start.mode);
        let mut unanswered = std::mem::take(&mut running.unanswered);
        unanswered.extend(self.cancel_calls(cell));
        unanswered.truncate(TOOL_CALLS_LISTED);
        let before = running.start.before;
        let after = self.connected.as_ref().map_or(before, |connected| connected.sandbox.counters().read());
        let cause = Cause {
            ended_by: running.ended_by.take(),
            interrupted: running.interrupted || running.to_end == Some(EndedBy::Interrupt),
            rolled_back: running.rolled_back,
            out_of_memory: running.out_of_memory || after.oom_kills > before.oom_kills,
            forks_refused: after.forks_refused > before.forks_refused,
            had_company: running.had_company,
            told_by_guardian: running.out_of_memory,
            completed_tool_calls: std::mem::take(&mut running.completed),
            unanswered_tool_calls: unanswered,
            live: self.live,
        };
        if ending.is_kill() {
            // The kernel counts kills of the whole sandbox. One of them is accounted for, so no other cell is blamed for
            // it; more of them may be of another cell, whose end is told next. What the guardian kills is not counted.
            let counted = after.oom_kills.saturating_sub(before.oom_kills);
            let kills = if cause.told_by_guardian { 0 } else { counted.min(1) };
            self.running.values_mut().for_each(|other| other.leave_out_kills(kills, after.oom_kills));
        }
        let asks_names =
            matches!(ending, Ending::Lost { after: StateAfter::Restored(_) | StateAfter::Lost, .. });
        let mut ending = ending;
        let mut record = self.args.recorder.finish(cell);
        let value = match &mut ending {
            Ending::Done { result, .. } => result.as_mut(),
            Ending::Lost { .. } | Ending::SandboxGone { .. } | Ending::Cancelled => None,
        };
        self.expand(&mut record, value);
        let finished = FinishedCell {
            record,
            elapsed,
            start: running.start.clone(),
            ending,
            cause,
            frame_guard,
            cpu_boost: running.cpu_boost.take(),
            harmless: running.harmless,
        };
        drop(running);
        if asks_names {
            self.ask_for_names(myself, finished);
        } else {
            self.complete(myself, finished);
        }
    }

    /// Asks the kernel which names a lost cell may have assigned, because only a Python parser knows. The
    /// answer arrives only after the frame guard is dropped, and then the kernel does not repeat the end of
    /// the cell; so the end goes into the journal first.
    fn ask_for_names(&mut self, myself: &ExecutorRef, mut finished: FinishedCell) {
        if let (Some(frame_guard), Ending::Lost { exit_code, after, .. }, Some(connected)) =
            (finished.frame_guard.take(), &finished.ending, &self.connected)
        {
            let (cell, killed) = (finished.start.cell, finished.cause.ended_by.is_some());
            let rolled_back = finished.cause.rolled_back;
            let died =
                EventBody::CellDied { cell, exit_code: *exit_code, after: *after, killed, rolled_back };
            let applied =
                AppliedFrame { sandbox: connected.sandbox.id().clone(), received: frame_guard.number };
            self.args.log.append_applied(died, applied);
        }
        let request = request_number();
        let code = finished.start.code.clone();
        self.finished.insert(request, finished);
        myself.send_after(NAMES_WITHIN, move || ExecutorMsg::Overdue(Overdue::Request(request)));
        self.send(myself, &HostFrame::Names { request, code });
    }

    pub(super) fn names_arrived(&mut self, myself: &ExecutorRef, request: u64, found: Vec<String>) {
        let Some(mut finished) = self.finished.remove(&request) else { return };
        if let Ending::Lost { names, .. } = &mut finished.ending {
            names.extend(
                found.into_iter().take(NAMES).map(|name| name.chars().take(NAME_CHARS).collect::<String>()),
            );
        }
        self.complete(myself, finished);
    }

    /// Ends a cell that could not run; the state of the session is unaffected.
    pub(super) fn cannot_run(&mut self, myself: &ExecutorRef, cell: CellNumber, why: EndedBy) {
        if let Some(running) = self.running.get_mut(&cell) {
            running.ended_by.get_or_insert(why);
        }
        let ending = Ending::Lost { exit_code: 1, after: StateAfter::Kept, older: false, names: Vec::new() };
        self.finish(myself, cell, ending, None);
    }

    /// Compares the workspace, off the actor's thread, and reports the cell as ended.
    ///
    /// After a cell that changes only plain values there is nothing to compare. If the guest lies about that, or other
    /// processes of it have written files meanwhile, the next comparison finds them.
    pub(super) fn complete(&mut self, myself: &ExecutorRef, mut finished: FinishedCell) {
        finished.cpu_boost = None;
        if finished.harmless {
            let changes = Changes { artifacts: Vec::new(), cut: self.snapshot.cut };
            self.report(myself, finished, changes);
            return;
        }
        let finished = Box::new(finished);
        self.concluding += 1;
        let (workspace, executor, before) =
            (Arc::clone(&self.args.workspace), myself.clone(), self.snapshot.clone());
        let unchanged = before.clone();
        let scan = async move {
            let snapshot = scanned(&workspace).await;
            let (artifacts, cut) = artifacts::compare(&before, &snapshot);
            (snapshot, Changes { artifacts, cut })
        };
        spawn_reporting(scan, move |seen| {
            // A guest's files must not prevent the report of the end of its cell.
            let (snapshot, changes) =
                seen.unwrap_or_else(|| (unchanged, Changes { artifacts: Vec::new(), cut: true }));
            let _ = executor.cast(ExecutorMsg::Concluded { finished, snapshot, changes });
        });
    }

    /// Reports a cell whose workspace was compared.
    pub(super) fn concluded(
        &mut self,
        myself: &ExecutorRef,
        finished: FinishedCell,
        snapshot: Snapshot,
        changes: Changes,
    ) {
        self.snapshot_unnoted |= self.snapshot != snapshot;
        self.snapshot = snapshot;
        self.concluding -= 1;
        self.report(myself, finished, changes);
    }

    fn report(&mut self, myself: &ExecutorRef, mut finished: FinishedCell, changes: Changes) {
        let frame_guard = finished.frame_guard.take();
        self.tell(SessionMsg::CellFinished(Box::new(finished.conclude(changes)), frame_guard));
        self.end_if_done(myself);
    }

    /// After a fork bomb the kernel needs a while until it can start a process again, and after a reset until
    /// it has a worker. The cell has not run, so it is sent again; its own deadline bounds the waiting.
    pub(super) fn waits_for_worker(
        &mut self,
        myself: &ExecutorRef,
        cell: CellNumber,
        code: RefusedCode,
    ) -> bool {
        let can_wait = |mode: Mode| match code {
            RefusedCode::NoWorker => true,
            RefusedCode::NoProcess => mode.is_in_line() || mode == Mode::Background,
            RefusedCode::Busy
            | RefusedCode::NoDescriptors
            | RefusedCode::NotListed
            | RefusedCode::NoShell
            | RefusedCode::OutOfReach
            | RefusedCode::Malformed => false,
        };
        let waiting = |running: &&mut RunningCell| running.ended_by.is_none() && can_wait(running.start.mode);
        let Some(running) = self.running.get_mut(&cell).filter(waiting) else { return false };
        running.waits_for_worker = true;
        // Not among the cell's timers, which a freeze stops: a frozen sandbox takes the cell when it is
        // thawed.
        drop(myself.send_after(WORKER_PAUSE, move || ExecutorMsg::SendAgain(cell)));
        true
    }

    pub(super) fn send_again(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        if !std::mem::take(&mut running.waits_for_worker) {
            return;
        }
        let start = running.start.clone();
        let frame = self.frame_of(&start);
        self.send(myself, &frame);
    }

    /// Returns a cell that the kernel could not take now to the session, where it waits for the main line.
    pub(super) fn put_back(&mut self, cell: CellNumber) {
        if self.running.remove(&cell).is_some() {
            let _ = self.args.recorder.finish(cell);
            self.tell(SessionMsg::Input(Input::PutBack(cell)));
        }
    }
}

//! Tool calls that a person has to allow. The waiting does not count towards the cell's deadline, but CPU
//! time that it uses meanwhile does, so that a question to a person is no way around a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

use super::messages::{ExecutorMsg, ExecutorRef};
use super::running::{ApprovalWait, CpuSample, RunningCell};
use super::state::ExecutorState;
use crate::actors::asks::messages::{AsksMsg, AsksRef};
use crate::actors::calls;
use crate::protocol::ask::Decision;
use crate::protocol::event::EventBody;
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::UNDECIDED_QUESTIONS;
use crate::protocol::result::Mode;
use crate::protocol::tool::LentAnswer;
use crate::security_controls;
use crate::session::approvals::Question;
use crate::session::outcome::EndedBy;
use crate::store::{Durability, EventLog};
use crate::tools::OnWaiting;

/// How long to wait until an asks actor that dropped a question has stopped, if it is dying.
const ASKS_END: Duration = Duration::from_millis(500);

pub(super) struct CallApproval {
    pub asks: AsksRef,
    pub log: Arc<EventLog>,
    pub executor: ExecutorRef,
    /// Set when the executor ends and leaves the sandbox to the next one, which asks the same question again.
    pub left: Arc<AtomicBool>,
    /// The places for questions of the cell.
    pub places: Arc<Semaphore>,
    pub cell: CellNumber,
    pub call: u64,
    pub question: Question,
}

/// Withdraws the question when the call is dropped.
struct OpenQuestion {
    asks: AsksRef,
    executor: ExecutorRef,
    left: Arc<AtomicBool>,
    cell: CellNumber,
    call: u64,
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        let _ = self.asks.cast(AsksMsg::CallerEnded { cell: self.cell, call: Some(self.call) });
        let _ = self.executor.cast(ExecutorMsg::WaitsForPerson { cell: self.cell, waits: false });
    }
}

impl CallApproval {
    /// Waits for the decision. Every decision but an acceptance becomes an error for the code.
    pub async fn wait_for_decision(self) -> Result<(), ToolFailure> {
        let Self { asks, log, executor, left, places, cell, call, question } = self;
        let failure = |code: &str, message: String| Err(ToolFailure { code: code.into(), message });
        if let Ok(place) = places.try_acquire() {
            place.forget();
        } else if security_controls::holds("questions_given_up_are_bounded") {
            let message = format!(
                "{UNDECIDED_QUESTIONS} questions of this cell to people have no decision, because its code does not wait \
                 for them; it may ask no more: wait for the decisions, in another cell"
            );
            return failure("not_allowed", message);
        }
        let _ = executor.cast(ExecutorMsg::WaitsForPerson { cell, waits: true });
        let waiting = OpenQuestion { asks, executor, left, cell, call };
        let permit = |reply_to| AsksMsg::Permit { question, reply_to };
        let decision = calls::call_own(&waiting.asks, permit).await;
        if decision.is_ok() {
            places.add_permits(1);
        }
        match decision {
            Ok(Decision::Accept { .. }) => record_start(&log, (Some(cell), call), None).await,
            Ok(Decision::Reject { reason: Some(reason) }) => failure("rejected", reason),
            Ok(Decision::Reject { reason: None }) => {
                failure("rejected", "a person did not allow this call".into())
            }
            Ok(Decision::Respond { text } | Decision::Edit { text }) => failure("responded", text),
            Err(problem) => {
                // If the asks actor died, this executor ends too, and the next one asks the same question
                // again.
                if waiting.asks.wait(Some(ASKS_END)).await.is_ok() {
                    std::future::pending::<()>().await;
                }
                failure("cancelled", problem.message)
            }
        }
    }
}

/// The callback of a call that itself waits for a person now and then.
pub(super) fn on_waiting(executor: &ExecutorRef, cell: CellNumber) -> OnWaiting {
    let executor = executor.clone();
    Arc::new(move |waits| {
        let _ = executor.cast(ExecutorMsg::WaitsForPerson { cell, waits });
    })
}

/// Puts the start of the call into the journal first, so that the next daemon knows that the call may have
/// been made.
pub(super) async fn record_start(
    log: &EventLog,
    (cell, call): (Option<CellNumber>, u64),
    lent: Option<LentAnswer>,
) -> Result<(), ToolFailure> {
    let (committed, is_written) = tokio::sync::oneshot::channel();
    let begun = EventBody::ToolBegun { cell, call, lent };
    log.append_intent_then(Durability::Full, begun, None, None, move || {
        let _ = committed.send(());
    });
    let unwritten = |_| ToolFailure { code: "cancelled".into(), message: "the journal is closed".into() };
    is_written.await.map_err(unwritten)
}

impl ExecutorState {
    fn cpu_time(&self) -> Option<Duration> {
        self.connected.as_ref().and_then(|connected| connected.sandbox.cpu_time())
    }

    /// Counts the CPU time so far for the cells that wait for a person. It is called before any cell starts, ends, or
    /// begins or stops to wait, because which cell the time belongs to depends on which of them ran.
    pub(super) fn count_computed(&mut self) {
        if self.running.values().all(|running| running.asked.is_none()) {
            return;
        }
        // A command or a cell in the background would take away all that the cell computes, for as long as it sleeps.
        let goes_beside = |running: &RunningCell| {
            matches!(running.start.mode, Mode::Command | Mode::Background)
                && security_controls::holds("commands_excuse_no_cell")
        };
        let another_runs =
            self.running.values().any(|running| running.asked.is_none() && !goes_beside(running));
        let sample = CpuSample {
            at: Instant::now(),
            cpu_time: self.cpu_time(),
            cpus_of_others: if another_runs { self.args.wanted.cpus } else { 0.0 },
            is_frozen: self.freezing.at.is_some(),
        };
        for asked in self.running.values_mut().filter_map(|running| running.asked.as_mut()) {
            asked.add_sample(sample);
        }
    }

    /// While a person decides on a call of a cell, only CPU time counts towards its deadline, where it can be measured.
    pub(super) fn person_asked(&mut self, cell: CellNumber) {
        self.count_computed();
        let cpu_time = self.cpu_time();
        let Some(running) = self.running.get_mut(&cell) else { return };
        running.pending_approvals += 1;
        if running.pending_approvals == 1 {
            running.asked = Some(ApprovalWait::new(Instant::now(), cpu_time));
            if let Some(deadline) = running.deadline.take() {
                deadline.abort();
            }
        }
    }

    pub(super) fn person_answered(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        self.count_computed();
        let frozen_at = self.freezing.at;
        let Some(running) = self.running.get_mut(&cell) else { return };
        running.pending_approvals = running.pending_approvals.saturating_sub(1);
        if running.pending_approvals > 0 {
            return;
        }
        if let Some(asked) = running.asked.take() {
            // The time since a freeze is given back when the sandbox is thawed.
            let waited = frozen_at.unwrap_or_else(Instant::now).saturating_duration_since(asked.since);
            running.since += waited.saturating_sub(asked.computed);
        }
        if running.ended_by.is_none() && frozen_at.is_none() {
            self.arm(myself, cell);
        }
    }

    /// Ends cells that exceeded their time by computing while a question to a person was open.
    pub(super) fn end_overdue_asked(&mut self, myself: &ExecutorRef) {
        self.count_computed();
        let is_over = |running: &RunningCell| {
            running.asked.is_some() && running.elapsed(self.freezing.at) > running.start.timeout
        };
        let over = self.running.iter().filter(|(_, running)| is_over(running));
        for cell in over.map(|(cell, _)| *cell).collect::<Vec<CellNumber>>() {
            self.end_cell(myself, cell, EndedBy::Deadline);
        }
    }
}

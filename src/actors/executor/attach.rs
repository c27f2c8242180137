//! Takes over a sandbox that an earlier daemon left running.

use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::messages::{ExecutorMsg, ExecutorRef, ResumedCell};
use super::pending::Fence;
use super::pending::Request;
use super::running::RunningCell;
use super::state::ExecutorState;
use super::tool_calls::StartedCall;
use crate::actors::launch::ReadySandbox;
use crate::actors::session::messages::SessionMsg;
use crate::actors::session::restore::fold;
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::frames::{HostFrame, StateAfter, ToolFailure};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::problem::Problem;
use crate::session::machine::Input;
use crate::session::outcome::Ending;
use crate::session::replay::cell_ended;
use crate::session::restore::{OpenCall, ProcessDeath, WaitingCall};
use crate::store::Overdraft;
use crate::tools::{ExpectedAnswer, ToolOutput};

/// The longest time for the kernel to end a cell that is not in the journal, after this daemon told it to
/// kill that cell. Until then the kernel may refuse other cells.
const UNRECORDED_PATIENCE: Duration = Duration::from_secs(10);

impl ExecutorState {
    pub(super) fn attached(&mut self, myself: &ExecutorRef, outcome: Result<Option<ReadySandbox>, Problem>) {
        let Some(attach) = self.args.attach.take() else { return };
        let ready = match outcome {
            Ok(Some(ready)) => ready,
            Ok(None) => return self.not_attached(myself, "it ended while no daemon ran"),
            Err(problem) => return self.not_attached(myself, &problem.message),
        };
        let (hello, receipt) = (ready.hello.clone(), Box::new(ready.receipt.clone()));
        let (known, unknown): (Vec<_>, Vec<_>) =
            attach.running.into_iter().partition(|resumed| resumed.start.cell <= hello.last_cell);
        let counters = Arc::clone(ready.sandbox.counters());
        self.tell(SessionMsg::SandboxAttached { receipt, counters });
        *self.responses.0.lock() = attach.responses;
        self.take_in(myself, ready);
        self.recall_notes(!known.is_empty());
        self.freezing.again = attach.frozen;
        self.bound = attach.bound;
        self.replays = attach.replays;
        // The tools may have changed since.
        self.configure(myself);
        self.give_clients_time(myself);
        let mut fence = Fence { ended: Vec::new(), unclear: Vec::new(), state_of: hello.state_of };
        let mut dead = Vec::new();
        for ResumedCell { start, ran, completed, passed, to_end, died } in known {
            let cell = start.cell;
            if let Some(died) = died {
                dead.push((cell, died));
            } else if !hello.running.contains(&cell) {
                let list = if passed { &mut fence.unclear } else { &mut fence.ended };
                list.push(cell);
            }
            let since = Instant::now().checked_sub(ran).unwrap_or_else(Instant::now);
            self.running.insert(cell, RunningCell::resumed(start, since, completed, to_end));
            // What ran beside it before is not known.
            self.running.values_mut().for_each(|running| running.had_company = true);
            self.arm(myself, cell);
        }
        for (cell, ProcessDeath { exit_code, after, killed, rolled_back }) in dead {
            if let Some(running) = self.running.get_mut(&cell) {
                running.rolled_back = rolled_back;
                if killed {
                    running.was_killed();
                }
            }
            self.finish(
                myself,
                cell,
                Ending::Lost { exit_code, after, older: false, names: Vec::new() },
                None,
            );
        }
        self.kill_unrecorded(myself, &hello.running);
        self.answer_open_calls(myself, (attach.open_calls, attach.expected), &hello.running);
        self.read_answers(myself, attach.answered_calls);
        // The journal has these cells, but the kernel never received them.
        for ResumedCell { start, .. } in unknown {
            self.run(myself, start);
        }
        // The kernel answers this after it has sent all unacknowledged frames again.
        let frame = |request| HostFrame::Names { request, code: String::new() };
        self.request(myself, Request::Fence(fence), frame, Duration::ZERO);
    }

    /// The journal has the start of a cell before the kernel gets the cell. So where the kernel runs one that the journal
    /// does not know, the journal has lost its end: an older home was put back, for example. This daemon knows neither
    /// the rules nor the deadline of such a cell, and kills it.
    fn kill_unrecorded(&mut self, myself: &ExecutorRef, running: &[CellNumber]) {
        for cell in
            running.iter().copied().filter(|cell| !self.running.contains_key(cell)).collect::<Vec<_>>()
        {
            self.unrecorded.insert(cell, Instant::now());
            self.send(myself, &HostFrame::Kill { cell, grace_ms: 0 });
        }
    }

    /// Whether a cell that is missing in the journal may still block others.
    pub(super) fn waits_for_unrecorded(&self) -> bool {
        self.unrecorded.values().any(|killed| killed.elapsed() < UNRECORDED_PATIENCE)
    }

    fn not_attached(&mut self, myself: &ExecutorRef, why: &str) {
        // Released before the session is told, because the session may start another sandbox at once.
        self.args.permit = None;
        self.tell(SessionMsg::Input(Input::NotAttached { reason: why.to_owned() }));
        myself.stop(None);
    }

    /// Answers the calls that were open when the earlier daemon ended. `running` are the cells that the
    /// kernel reports as running; no person is asked about calls of other cells.
    fn answer_open_calls(
        &mut self,
        myself: &ExecutorRef,
        (calls, mut expected): (Vec<OpenCall>, HashMap<u64, ExpectedAnswer>),
        running: &[CellNumber],
    ) {
        for OpenCall { call, recorded, given_up, waits, lent, held } in calls {
            if let Some((cell, name)) = given_up {
                self.leave_open(myself, call, cell, name);
                continue;
            }
            if let Some((lent, expected)) = lent.zip(expected.remove(&call)) {
                self.wait_for_client(myself, call, lent, expected);
                continue;
            }
            if let Some(unmade) = held {
                self.hold_again(myself, call, unmade);
                continue;
            }
            match (waits, recorded) {
                (Some(WaitingCall { cell, name, arguments }), _)
                    if running.contains(&cell) && self.running.contains_key(&cell) =>
                {
                    self.tool_called_again(myself, call, cell, name, arguments);
                }
                (Some(_), _) => self.settle(call, cell_ended()),
                (None, Some(Ok(value))) => {
                    let outcome = ToolOutcome::Value(value.clone());
                    self.args.log.append(EventBody::ToolAnswered { call, outcome });
                    self.send(myself, &HostFrame::ToolResult { call, value });
                }
                (None, Some(Err(error))) => self.settle(call, error),
                (None, None) => {
                    let message = "the daemon was started anew while the tool ran; it is not known whether \
                                   it took effect";
                    let (code, message) = ("interrupted".into(), message.into());
                    self.settle(call, ToolFailure { code, message });
                }
            }
        }
    }

    /// Leaves a call of a replay open that its code gave up when it first ran.
    fn leave_open(&mut self, myself: &ExecutorRef, call: u64, cell: CellNumber, name: String) {
        if !self.running.contains_key(&cell) || self.calls.admit(call).is_err() {
            return self.settle(call, cell_ended());
        }
        let guard = StartedCall::Unanswered.spawn(myself, call, None, None, self.args.memory.clone());
        self.calls.begin(call, Some(cell), name, guard);
    }

    /// Sends answers from the journal to the kernel again. An answer goes to the journal and to the kernel at
    /// the same time, so a daemon that ended in between may have done only the former. The kernel drops
    /// answers that it has already.
    fn read_answers(&self, myself: &ExecutorRef, answered: Vec<(u64, Seq)>) {
        let (executor, log) = (myself.clone(), Arc::clone(&self.args.log));
        tokio::spawn(async move {
            for (call, seq) in answered {
                let take = |found: &mut Option<ToolOutcome>, event: Event| {
                    if let EventBody::ToolAnswered { outcome, .. } = event.body {
                        *found = Some(outcome);
                    }
                    Ok(())
                };
                match fold(&log, (seq.saturating_sub(1), seq), Overdraft::Allowed, None, take).await {
                    Ok(Some(outcome)) => {
                        let _ = executor.cast(ExecutorMsg::AnswerAgain { call, outcome });
                    }
                    Ok(None) => {}
                    Err(error) => tracing::warn!(%error, call, "the answer to a tool call cannot be read"),
                }
            }
        });
    }

    pub(super) fn answer_again(&mut self, myself: &ExecutorRef, call: u64, outcome: ToolOutcome) {
        let frame = match outcome {
            ToolOutcome::Value(Value::String(text)) => {
                HostFrame::ToolResult { call, value: self.answer(call, ToolOutput::Text(text)) }
            }
            ToolOutcome::Value(value) => HostFrame::ToolResult { call, value },
            ToolOutcome::Failure(error) => HostFrame::ToolFailed { call, error },
        };
        self.send(myself, &frame);
    }

    /// A cell that neither runs nor was reported as ended died at the moment the daemon ended, or the kernel
    /// never received it. It counts as never received if it has no output.
    pub(super) fn fence_passed(&mut self, myself: &ExecutorRef, fence: &Fence) {
        for cell in fence.unclear.iter().chain(&fence.ended) {
            let never_sent = fence.unclear.contains(cell) && !self.args.recorder.has_output(*cell);
            if never_sent && let Some(running) = self.running.remove(cell) {
                self.run(myself, running.start.clone());
                continue;
            }
            let after = StateAfter::Restored(fence.state_of);
            self.finish(
                myself,
                *cell,
                Ending::Lost { exit_code: -9, after, older: false, names: Vec::new() },
                None,
            );
        }
        self.tell(SessionMsg::CaughtUp);
        if std::mem::take(&mut self.freezing.again) {
            self.freeze(myself, None);
        }
    }
}

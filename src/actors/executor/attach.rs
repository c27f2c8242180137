//! Going on with a sandbox that an earlier daemon left running.

use std::time::{Duration, Instant};

use super::super::launch::Ready;
use super::super::session::SessionMsg;
use super::calls::cell_ended;
use super::cells::Running;
use super::requests::Request;
use super::{ExecutorRef, ExecutorState, Resumed};
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::frames::{HostFrame, StateAfter, ToolFailure};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::session::outcome::Ending;
use crate::session::restore::{Died, OpenCall, WaitingCall};

/// Longest time for the kernel to end a cell that is not in the journal, after this daemon told it to kill that cell.
/// Until then the kernel may refuse other cells.
const UNRECORDED_PATIENCE: Duration = Duration::from_secs(10);

/// Cells that the kernel knew of and did not run any more when it said hello.
pub(super) struct Fence {
    pub ended: Vec<CellNumber>,
    /// Cells of which it may never have heard, because it was sent later ones before.
    pub unclear: Vec<CellNumber>,
    pub state_of: CellNumber,
}

impl ExecutorState {
    pub(super) fn attached(&mut self, myself: &ExecutorRef, outcome: Result<Option<Ready>, Problem>) {
        let Some(attach) = self.args.attach.take() else { return };
        let ready = match outcome {
            Ok(Some(ready)) => ready,
            Ok(None) => return self.not_attached(myself, "it ended while no daemon ran"),
            Err(problem) => return self.not_attached(myself, &problem.message),
        };
        let (hello, receipt) = (ready.hello.clone(), Box::new(ready.receipt.clone()));
        let (known, unknown): (Vec<_>, Vec<_>) =
            attach.running.into_iter().partition(|resumed| resumed.start.cell <= hello.last_cell);
        self.tell(SessionMsg::SandboxAttached(receipt));
        *self.said.lock() = attach.said;
        self.take_in(myself, ready);
        self.recall_notes(!known.is_empty());
        self.frost.again = attach.frozen;
        self.bound = attach.bound;
        // The tools may be others by now.
        self.configure(myself);
        let mut fence = Fence { ended: Vec::new(), unclear: Vec::new(), state_of: hello.state_of };
        let mut dead = Vec::new();
        for Resumed { start, ran, completed, passed, to_end, died } in known {
            let (cell, left) = (start.cell, start.timeout.saturating_sub(ran));
            if let Some(died) = died {
                dead.push((cell, died));
            } else if !hello.running.contains(&cell) {
                let list = if passed { &mut fence.unclear } else { &mut fence.ended };
                list.push(cell);
            }
            let since = Instant::now().checked_sub(ran).unwrap_or_else(Instant::now);
            self.running.insert(cell, Running::resumed(start, since, completed, to_end));
            self.arm(myself, cell, left);
        }
        for (cell, Died { exit_code, after, killed }) in dead {
            if killed && let Some(running) = self.running.get_mut(&cell) {
                running.was_killed();
            }
            self.finish(
                myself,
                cell,
                Ending::Lost { exit_code, after, older: false, names: Vec::new() },
                None,
            );
        }
        self.kill_unrecorded(myself, &hello.running);
        self.answer_open_calls(myself, attach.open_calls, &hello.running);
        // The journal knew of these before the kernel did.
        for Resumed { start, .. } in unknown {
            self.run(myself, start);
        }
        // When this is answered, all that the kernel had to tell again has been told.
        let frame = |request| HostFrame::Names { request, code: String::new() };
        self.request(myself, Request::Fence(fence), frame, Duration::ZERO);
    }

    /// A cell is sent to the kernel while its start is being written down, so the daemon may die in between and leave a
    /// cell that runs and is not in the journal. Its client was not told that it began, and the next daemon knows neither
    /// its rules nor its deadline: it kills the cell.
    fn kill_unrecorded(&mut self, myself: &ExecutorRef, running: &[CellNumber]) {
        for cell in
            running.iter().copied().filter(|cell| !self.running.contains_key(cell)).collect::<Vec<_>>()
        {
            self.unrecorded.insert(cell, Instant::now());
            self.send(myself, &HostFrame::Kill { cell, grace_ms: 0 });
        }
    }

    /// Whether a cell of which the journal knows nothing may still be in the way of others.
    pub(super) fn waits_for_unrecorded(&self) -> bool {
        self.unrecorded.values().any(|killed| killed.elapsed() < UNRECORDED_PATIENCE)
    }

    fn not_attached(&mut self, myself: &ExecutorRef, why: &str) {
        self.tell(SessionMsg::NotAttached { reason: why.to_owned() });
        myself.stop(None);
    }

    /// `running` are the cells of which the kernel says that they run: nobody is asked for the others.
    fn answer_open_calls(&mut self, myself: &ExecutorRef, calls: Vec<OpenCall>, running: &[CellNumber]) {
        for OpenCall { call, recorded, waits } in calls {
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

    /// A cell that neither runs nor was told to have ended died in the moment in which the daemon did;
    /// or it was never sent, of which its silence is the sign.
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
        if std::mem::take(&mut self.frost.again) {
            self.freeze(myself, None);
        }
    }
}

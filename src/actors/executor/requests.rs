//! Requests to the kernel beside cells, and their answers.

use std::time::Duration;

use super::cells::hurry_after;
use super::kernel::request_number;
use super::messages::{ExecutorMsg, ExecutorRef, Overdue, UndoneState};
use super::pending::Request;
use super::state::ExecutorState;
use crate::actors::session::messages::SessionMsg;
use crate::bridge::FrameGuard;
use crate::protocol::api::{Computed, VariableList};
use crate::protocol::event::EventBody;
use crate::protocol::frames::{ComputeOutcome, HostFrame, KernelFrame, LiveResources, RefusedCode};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Mode;
use crate::protocol::text::brief;
use crate::security_controls;
use crate::session::outcome::EndedBy;
use crate::tools::Responses;

/// Time a request without a cell (variables, reset, compute) may take on top of its own limit.
const REQUEST_SLACK: Duration = Duration::from_secs(10);
/// The most characters of a kernel's message that reach a log or a client.
const MESSAGE_CHARS: usize = 500;

impl ExecutorState {
    pub(super) fn request(
        &mut self,
        myself: &ExecutorRef,
        request: Request,
        frame: impl FnOnce(u64) -> HostFrame,
        own_limit: Duration,
    ) {
        let number = request_number();
        if matches!(request, Request::Reset { .. }) {
            myself.send_after(hurry_after(), move || ExecutorMsg::Overdue(Overdue::SlowReset(number)));
        }
        self.requests.insert(number, request);
        myself.send_after(own_limit + REQUEST_SLACK, move || ExecutorMsg::Overdue(Overdue::Request(number)));
        self.send(myself, &frame(number));
    }

    /// Lifts the CPU limit until the reset is done, because all processes of earlier cells have to end first.
    pub(super) fn hurry_reset(&mut self, request: u64) {
        if let (Some(Request::Reset { cpu_boost, .. }), Some(connected)) =
            (self.requests.get_mut(&request), &self.connected)
        {
            cpu_boost.get_or_insert_with(|| connected.sandbox.lift_cpu_limit());
        }
    }

    pub(super) fn request_overdue(&mut self, myself: &ExecutorRef, request: u64) {
        if self.finished.contains_key(&request) {
            self.names_arrived(myself, request, Vec::new());
        } else if matches!(self.requests.get(&request), Some(Request::Variables { .. })) {
            // The listing runs in a copy of the worker, so the rest of the kernel is unaffected.
            if let Some(listing) = self.requests.remove(&request) {
                listing.fail(Problem::new(Code::TooSlow, "the variables could not be listed in time"));
            }
        } else if self.requests.contains_key(&request) {
            self.give_up(myself, "the kernel did not answer a request".into());
        }
    }

    /// Handles an answer of the kernel. An answer that matches no request is dropped.
    pub(super) fn answered(&mut self, myself: &ExecutorRef, frame: KernelFrame, frame_guard: FrameGuard) {
        match frame {
            KernelFrame::Variables { request, variables, total, as_before, of } => {
                if let Some(Request::Variables { which, reply_to }) = self.requests.remove(&request) {
                    let list = VariableList { variables, total, as_before };
                    let _ = reply_to.send(Ok(of_question(list, which.of.as_deref(), of.as_deref())));
                }
            }
            KernelFrame::Computed { request, outcome } => {
                if let Some(Request::Compute(reply_to)) = self.requests.remove(&request) {
                    let _ = reply_to.send(Ok(match outcome {
                        ComputeOutcome::Value(value) => Computed { result: Some(value), error: None },
                        ComputeOutcome::Error(error) => Computed { result: None, error: Some(error) },
                    }));
                }
            }
            KernelFrame::ResetDone { request } => {
                if matches!(self.requests.get(&request), Some(Request::Unload)) {
                    self.requests.remove(&request);
                    self.unloaded(myself);
                } else if let Some(Request::Reset { up_to, base, inherited, reply_to, cpu_boost }) =
                    self.requests.remove(&request)
                {
                    drop(cpu_boost);
                    // Nothing is left behind of cells that ran again before. One of a replay that began with this reset may
                    // run already.
                    self.replays = self.runs_a_cell_again();
                    self.bound.reset(up_to, inherited.as_deref());
                    self.args.inherited = inherited;
                    // The answers of tools to the earlier code are forgotten with it.
                    *self.responses.0.lock() = Responses::default();
                    self.args.log.append(EventBody::ResetDone { cells: up_to });
                    let resets_again =
                        self.requests.values().any(|next| matches!(next, Request::Reset { .. }));
                    match base {
                        // It would come into what the next reset leaves.
                        Some(_) if resets_again => drop(reply_to.send(Err(reset_meanwhile()))),
                        Some(base) => self.load_base(myself, *base, reply_to),
                        None => drop(reply_to.send(Ok(()))),
                    }
                }
            }
            KernelFrame::Preloaded { request, names, failed, skipped } => {
                // Later workers answer the same request again; those answers are ignored.
                if let Some(Request::Preload) = self.requests.remove(&request) {
                    self.preloaded(myself, names, failed, skipped);
                }
            }
            KernelFrame::Undone { request, state_of } => {
                crate::panics::panic_if_requested("undo");
                match self.requests.remove(&request) {
                    Some(Request::Undo(reply_to)) => {
                        let back = UndoneState { state_of, gone: self.live, frame_guard };
                        self.set_live(LiveResources::default());
                        let _ = reply_to.send(Ok(back));
                    }
                    // The kernel repeats a frame that the earlier daemon did not put into the journal.
                    None if self.is_catching_up() => {
                        self.tell(SessionMsg::UndoneBefore { state_of, frame_guard });
                    }
                    _ => {}
                }
            }
            KernelFrame::Names { request, names } => {
                if let Some(Request::Fence(fence)) = self.requests.remove(&request) {
                    self.fence_passed(myself, &fence);
                } else {
                    self.names_arrived(myself, request, names);
                }
            }
            KernelFrame::Refused { code, message, request, cell } => {
                self.refused(myself, code, &message, request, cell);
            }
            _ => {}
        }
    }

    fn refused(
        &mut self,
        myself: &ExecutorRef,
        code: RefusedCode,
        message: &str,
        request: Option<u64>,
        cell: Option<CellNumber>,
    ) {
        let message = brief(message, MESSAGE_CHARS);
        tracing::debug!(?code, message, "a kernel refused a frame");
        if let Some(number) = request {
            if self.refused_transfer(myself, number, code, &message) {
                return;
            }
            if self.finished.contains_key(&number) {
                self.names_arrived(myself, number, Vec::new());
                return;
            }
            let Some(request) = self.requests.remove(&number) else { return };
            match (code, request) {
                (RefusedCode::Busy, Request::Variables { which, reply_to }) => {
                    self.tell(SessionMsg::Variables { which, patient: true, reply_to });
                }
                (_, Request::Preload) => self.preload_failed(myself, message),
                // What is loaded in part, and the code that ran for it, cannot be dropped in any other way.
                (_, Request::Unload) => {
                    self.give_up(myself, format!("a snapshot that was not loaded stays in part: {message}"));
                }
                // The refusal follows all repeated frames, as the names would have.
                (_, Request::Fence(fence)) => self.fence_passed(myself, &fence),
                (_, request) => request.fail(refusal(code, &message)),
            }
        } else if let Some(cell) = cell {
            if code == RefusedCode::Busy {
                let needs_line = |mode: Mode| mode.is_in_line() || mode == Mode::Background;
                let running = self.running.get(&cell);
                if running.is_some_and(|running| needs_line(running.start.mode))
                    && !self.waits_for_unrecorded()
                    && security_controls::holds("busy_for_a_main_cell_is_a_violation")
                {
                    self.give_up(myself, "the kernel refused a cell that nothing was in the way of".into());
                } else {
                    self.put_back(cell);
                }
                return;
            }
            if self.waits_for_worker(myself, cell, code) {
                return;
            }
            let why = format!("The sandbox could not run the cell: {message}.");
            let ended_by = match code {
                RefusedCode::NoProcess | RefusedCode::NoWorker => EndedBy::Pids(format!(
                    "{why} End the threads and processes that earlier cells left running, or start the session with more `--pids`."
                )),
                RefusedCode::NoDescriptors => EndedBy::Descriptors(format!(
                    "{why} Close files and connections that earlier cells left open."
                )),
                RefusedCode::NoShell => EndedBy::NoShell(why),
                RefusedCode::Busy
                | RefusedCode::NotListed
                | RefusedCode::OutOfReach
                | RefusedCode::Malformed => EndedBy::Policy(why),
            };
            self.cannot_run(myself, cell, ended_by);
        }
    }

    /// Fails all requests, because the sandbox is gone. A reset succeeds: nothing is left to reset.
    pub(super) fn fail_requests(&mut self, problem: &Problem) {
        for (_, request) in self.requests.drain() {
            match request {
                Request::Reset { reply_to, .. } => drop(reply_to.send(Ok(()))),
                request => request.fail(problem.clone()),
            }
        }
    }

    /// Whether the kernel may still repeat frames from before this daemon attached.
    fn is_catching_up(&self) -> bool {
        self.requests.values().any(|request| matches!(request, Request::Fence(_)))
    }
}

/// The list, if it is of the value that was asked for. A kernel of an earlier version does not know that question, and
/// lists the session's variables instead.
fn of_question(list: VariableList, asked: Option<&str>, answered: Option<&str>) -> VariableList {
    if asked == answered { list } else { VariableList { variables: Vec::new(), total: 0, ..list } }
}

/// Why the variables that belong to a reset are not loaded after it.
pub(super) fn reset_meanwhile() -> Problem {
    Problem::new(Code::Busy, "the session was reset meanwhile")
}

fn refusal(code: RefusedCode, message: &str) -> Problem {
    match code {
        RefusedCode::Busy | RefusedCode::NoWorker => {
            Problem::new(Code::Busy, format!("the kernel is busy: {message}")).hint("ask again soon")
        }
        RefusedCode::OutOfReach => Problem::new(Code::OutOfReach, message.to_owned())
            .hint("undo fewer cells; `sandbox.checkpoints` says how many are kept from now on"),
        RefusedCode::NoProcess => Problem::new(Code::SandboxFull, message.to_owned()).hint(
            "end the threads and processes that cells left running, or start the session with more `--pids`",
        ),
        RefusedCode::NoDescriptors => Problem::new(Code::SandboxFull, message.to_owned())
            .hint("close files and connections that cells left open"),
        RefusedCode::NotListed => Problem::new(Code::VariablesFailed, message.to_owned())
            .hint("delete the variable whose `__repr__` ends or holds up the process that shows it"),
        RefusedCode::NoShell | RefusedCode::Malformed => {
            Problem::new(Code::SandboxFailed, format!("the kernel refused: {message}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_not_taken_for_attributes() {
        let list = VariableList { variables: Vec::new(), total: 3, as_before: Some(2) };
        let total = |asked, answered| of_question(list.clone(), asked, answered).total;
        assert_eq!(total(None, None), 3);
        assert_eq!(total(Some("a.b"), Some("a.b")), 3);
        assert_eq!(total(Some("a.b"), None), 0);
    }
}

//! Tool calls that are cancelled before they have an answer: their cell has ended, or their code does not wait any more.

use super::messages::{ExecutorMsg, ExecutorRef};
use super::state::ExecutorState;
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::TOOL_CALLS_LISTED;
use crate::session::replay::{cell_ended, given_up};

impl ExecutorState {
    /// Cancels the calls of a cell that has ended, and gives their names. The journal gets an answer for
    /// each, so that no later daemon considers it open, and a thread that the cell left behind does not wait
    /// for ever.
    pub(super) fn cancel_calls(&mut self, cell: CellNumber) -> Vec<String> {
        let cancelled = self.calls.cancel_cell(cell);
        self.lending.end_unless(|cell| self.running.contains_key(&cell));
        for (call, _) in &cancelled {
            self.settle(*call, cell_ended());
        }
        self.last_program_done(None);
        cancelled.into_iter().map(|(_, call)| call.name).take(TOOL_CALLS_LISTED).collect()
    }

    /// Cancels a call whose answer nobody waits for, with the question that it waits for. Its work ends, and gives back what
    /// it holds.
    ///
    /// The kernel is answered when the journal has the answer: until then the call counts as in flight, so that code that
    /// makes calls and gives them up again and again makes them no faster than the journal takes them.
    pub(super) fn call_abandoned(&mut self, myself: &ExecutorRef, call: u64) {
        let Some(ended) = self.calls.end(call) else { return };
        if let Some(running) = ended.cell.and_then(|cell| self.running.get_mut(&cell))
            && (running.interrupted || running.ended_by.is_some())
            && running.unanswered.len() < TOOL_CALLS_LISTED
        {
            running.unanswered.push(ended.name.clone());
        }
        let outcome = ToolOutcome::Failure(given_up());
        let answered = EventBody::ToolAnswered { call, outcome: outcome.clone() };
        let executor = myself.clone();
        self.args.log.append_then(answered, None, move || {
            let _ = executor.cast(ExecutorMsg::AnswerAgain { call, outcome });
        });
        self.last_program_done(None);
    }
}

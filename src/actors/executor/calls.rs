//! Tool calls that code in the sandbox makes.

use serde_json::{Map, Value};
use tokio::task::JoinHandle;

use super::{ExecutorMsg, ExecutorRef, ExecutorState};
use crate::bridge::{Refusal, Turn};
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::frames::{HostFrame, ToolFailure};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{TOOL_CALLS_LISTED, TOOL_NAME_CHARS};
use crate::store::Applied;
use crate::tools::{Caller, ToolFuture, ToolOutput};

/// Stops a tool when nobody waits for it any more.
pub(super) struct CallGuard(JoinHandle<()>);

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum Begun {
    Recorded(Result<Value, ToolFailure>),
    Called(Result<ToolFuture, ToolFailure>),
}

impl ExecutorState {
    pub(super) fn tool_called(
        &mut self,
        myself: &ExecutorRef,
        call: u64,
        cell: Option<CellNumber>,
        name: &str,
        arguments: Map<String, Value>,
        turn: &Turn,
    ) {
        let cell = cell.filter(|cell| self.running.contains_key(cell));
        match self.calls.admit(call) {
            Ok(()) => {}
            Err(Refusal::Duplicate) => {
                self.give_up(myself, "the kernel used the number of a tool call twice".into());
                return;
            }
            Err(Refusal::TooMany) => {
                let error =
                    ToolFailure { code: "busy".into(), message: "too many tool calls at once".into() };
                self.send(myself, &HostFrame::ToolFailed { call, error });
                return;
            }
        }
        let shown: String = name.chars().filter(|c| !c.is_control()).take(TOOL_NAME_CHARS).collect();
        let called = EventBody::ToolCalled { cell, call, name: shown.clone(), arguments: arguments.clone() };
        let applied = self
            .cage
            .as_ref()
            .map(|cage| Applied { sandbox: cage.sandbox.id().clone(), received: turn.number });
        self.args.log.append_then(called, applied, || {});
        let executor = myself.clone();
        let recorded = self.recorded(cell, name, &arguments);
        let begun = match recorded {
            Some(outcome) => Begun::Recorded(outcome),
            None => {
                Begun::Called(self.args.tools.call(name, arguments, Caller::Code, self.args.context.clone()))
            }
        };
        let task = tokio::spawn(async move {
            let outcome = match begun {
                Begun::Recorded(outcome) => outcome,
                Begun::Called(Ok(work)) => work.await.map(ToolOutput::into_value),
                Begun::Called(Err(failure)) => Err(failure),
            };
            let _ = executor.cast(ExecutorMsg::ToolDone { call, outcome });
        });
        self.calls.begin(call, cell, shown, CallGuard(task));
    }

    /// In a replay nothing outside happens again: the answer is the recorded one, and a call that is
    /// not the recorded one fails.
    fn recorded(
        &mut self,
        cell: Option<CellNumber>,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Value, ToolFailure>> {
        let replay = self.running.get_mut(&cell?)?.start.replay.as_mut()?;
        Some(match replay.pop_front() {
            Some(call) if call.name == name && call.arguments == *arguments => call.outcome,
            _ => Err(ToolFailure {
                code: "replay_differs".into(),
                message: "this call was not made when the cell first ran, so there is no answer to replay"
                    .into(),
            }),
        })
    }

    pub(super) fn tool_done(&mut self, call: u64, outcome: Result<Value, ToolFailure>) {
        let Some(ended) = self.calls.end(call) else { return };
        let told = match &outcome {
            Ok(value) => ToolOutcome::Value(value.clone()),
            Err(failure) => ToolOutcome::Failure(failure.clone()),
        };
        self.args.log.append(EventBody::ToolAnswered { call, outcome: told });
        if outcome.is_ok()
            && let Some(running) = ended.cell.and_then(|cell| self.running.get_mut(&cell))
            && running.completed.len() < TOOL_CALLS_LISTED
        {
            running.completed.push(ended.name.clone());
        }
        let frame = match outcome {
            Ok(value) => HostFrame::ToolResult { call, value },
            Err(error) => HostFrame::ToolFailed { call, error },
        };
        if let Some(cage) = &self.cage
            && cage.link.send(&frame).is_err()
        {
            let error =
                ToolFailure { code: "failed".into(), message: "the tool's answer is too large".into() };
            let _ = cage.link.send(&HostFrame::ToolFailed { call, error });
        }
    }
}

//! A replay of earlier cells: which recorded answer a call gets, what differs from the first run, and when the replay
//! stops. Of output, value, exception and arguments there are only digests.

pub(in crate::session) mod volatile;

use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::time::Duration;

use self::volatile::without_volatile;
use super::digest::{Digest, digest, json_bytes};
use super::restore::Restored;
use crate::protocol::api::{ReplayReport, ReplayedCell};
use crate::protocol::ask::AskNumber;
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{ExecutionResult, Status};

/// The recorded tool calls of a cell that are still to come, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedCalls(pub VecDeque<RecordedCall>);

impl RecordedCalls {
    /// The answer to the next call; none if its code gave the call up and never had one, as it does again. In a replay no call
    /// has an outside effect again, so a call that differs from the recorded one fails.
    pub fn answer(
        &mut self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Value, ToolFailure>> {
        match self.0.pop_front() {
            Some(call) if call.name == name && call.had(arguments) => {
                (!call.was_given_up()).then_some(call.outcome)
            }
            _ => Some(Err(ToolFailure {
                code: "replay_differs".into(),
                message: "this call was not made when the cell first ran, so there is no answer to replay"
                    .into(),
            })),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordedCall {
    pub name: String,
    /// The digest of the arguments.
    pub arguments: Digest,
    /// Set for a refused call: only the size of its arguments is known.
    pub refused_bytes: Option<u64>,
    pub outcome: Result<Value, ToolFailure>,
}

impl RecordedCall {
    /// Whether its code did not wait for the answer.
    #[must_use]
    pub fn was_given_up(&self) -> bool {
        self.outcome.as_ref().is_err_and(|failure| *failure == given_up() || *failure == cell_ended())
    }

    /// Whether the call was made with these arguments, as far as that is known.
    fn had(&self, arguments: &Map<String, Value>) -> bool {
        match self.refused_bytes {
            None => self.arguments == digest(arguments),
            Some(bytes) => json_bytes(arguments) == bytes,
        }
    }
}

/// The end of a call for which its code does not wait any more.
#[must_use]
pub fn given_up() -> ToolFailure {
    let message = "the code that made this call does not wait for it any more".into();
    ToolFailure { code: "cancelled".into(), message }
}

/// The end of a call whose cell has ended before.
#[must_use]
pub fn cell_ended() -> ToolFailure {
    ToolFailure { code: "cancelled".into(), message: "the cell that made this call has ended".into() }
}

/// The record of an earlier cell.
#[derive(Debug)]
pub struct RecordedCell {
    pub code: String,
    pub timeout: Duration,
    pub calls: RecordedCalls,
    pub result: Option<ResultDigest>,
    /// The ask whose rules bound the cell.
    pub ask: Option<AskNumber>,
}

/// The parts of a result that a person would compare, without what differs each time the same code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultDigest {
    status: Status,
    stdout: Digest,
    stderr: Digest,
    value: Option<Digest>,
    exception: Option<Digest>,
}

impl ResultDigest {
    #[must_use]
    pub fn of(result: &ExecutionResult) -> Self {
        Self {
            status: result.status,
            stdout: digest(&without_volatile(&result.stdout)),
            stderr: digest(&without_volatile(&result.stderr)),
            value: result.result.as_ref().map(|value| digest(&without_volatile(&value.repr))),
            exception: result.exception.as_ref().map(|exception| digest(&without_volatile(&exception.repr))),
        }
    }

    /// The differences that a person would see; times in the text count too.
    fn differences(&self, after: &Self) -> Vec<String> {
        let checks = [
            ("status", self.status == after.status),
            ("stdout", self.stdout == after.stdout),
            ("stderr", self.stderr == after.stderr),
            ("result", self.value == after.value),
            ("exception", self.exception == after.exception),
        ];
        checks.into_iter().filter(|(_, same)| !same).map(|(name, _)| name.to_owned()).collect()
    }
}

/// The course of a replay.
#[derive(Debug)]
pub struct Replay {
    report: ReplayReport,
    /// How the cells ended that have run.
    ended: Vec<(CellNumber, Status)>,
}

impl Replay {
    /// The replay of all cells whose changes the variables hold.
    #[must_use]
    pub fn of(past: &Restored) -> Self {
        let (not_run, left_out) = (past.replayable.clone(), past.interrupted.clone());
        Self { report: ReplayReport { cells: Vec::new(), not_run, left_out }, ended: Vec::new() }
    }

    /// The cells that run again after the session woke.
    #[must_use]
    pub fn again(past: &Restored) -> Self {
        let not_run = past.waking.clone();
        let report = ReplayReport { cells: Vec::new(), not_run, left_out: Vec::new() };
        Self { report, ended: Vec::new() }
    }

    /// The cells that are still to run.
    #[must_use]
    pub fn to_run(&self) -> &[CellNumber] {
        &self.report.not_run
    }

    /// The next cell to run.
    pub fn next_cell(&mut self) -> Option<CellNumber> {
        (!self.report.not_run.is_empty()).then(|| self.report.not_run.remove(0))
    }

    /// Takes the result of a cell. Gives whether the replay goes on: after a cell that died or was interrupted, the cells
    /// that have not run stay on the list for the next replay.
    pub fn ran(&mut self, cell: CellNumber, before: Option<ResultDigest>, result: &ExecutionResult) -> bool {
        let differences = before.map(|before| before.differences(&ResultDigest::of(result)));
        let differences = differences.unwrap_or_default();
        self.report.cells.push(ReplayedCell { cell, replayed_as: result.cell, differences });
        self.ended.push((cell, result.status));
        !matches!(result.status, Status::Timeout | Status::Crashed | Status::Interrupted)
    }

    /// The cells so far that ended with another status than before. The record of a cell does not say that: it may be of an
    /// earlier wake, which was broken off before a result told how the cell ended then.
    #[must_use]
    pub fn ended_otherwise(&self, past: &Restored) -> Vec<CellNumber> {
        let differs = |(cell, status): &&(CellNumber, Status)| past.status_before(*cell) != *status;
        self.ended.iter().filter(differs).map(|(cell, _)| *cell).collect()
    }

    #[must_use]
    pub fn report(self) -> ReplayReport {
        self.report
    }
}

#[cfg(test)]
mod tests;

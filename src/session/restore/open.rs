//! What has not ended yet while events are folded: cells, and tool calls of theirs.

use serde_json::{Map, Value};
use std::time::Duration;

use super::{LentCall, OpenCall, ProcessDeath, UnmadeCall, WaitingCall};
use crate::protocol::clock;
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::tool::LentAnswer;
use crate::session::outcome::{CellStart, EndedBy};
use crate::session::replay::RecordedCall;

/// A cell that has not ended.
#[derive(Debug, Default)]
pub(super) struct OpenCell {
    pub start: CellStart,
    /// The cell that it runs again; it makes no real calls.
    pub replays: Option<CellNumber>,
    /// The same if it is a cell of this journal. That of an archive only has the number of one of this session.
    pub original: Option<CellNumber>,
    pub began: Option<String>,
    /// How long the cell was frozen or waited for a person, without a pause that still lasts.
    pub frozen: Duration,
    /// The number of present pauses (a freeze, decisions of persons), and since when.
    pub pauses: u32,
    pub paused_since: Option<String>,
    pub completed: Vec<String>,
    pub passed: bool,
    pub to_end: Option<EndedBy>,
    pub died: Option<ProcessDeath>,
    /// The number of tool calls that the cell has made.
    pub calls: usize,
}

impl OpenCell {
    /// Returns the cell to the queue: nothing of its run counts any more.
    pub fn put_back(&mut self) {
        (self.began, self.frozen, self.pauses, self.paused_since) = (None, Duration::ZERO, 0, None);
        (self.to_end, self.died, self.calls) = (None, None, 0);
        self.completed.clear();
    }

    /// Begins a pause. Overlapping pauses count once.
    pub fn pause(&mut self, at: &str) {
        self.pauses += 1;
        self.paused_since.get_or_insert_with(|| at.to_owned());
    }

    pub fn resume(&mut self, at: &str) {
        self.pauses = self.pauses.saturating_sub(1);
        if self.pauses == 0
            && let Some(since) = self.paused_since.take()
        {
            self.frozen += clock::between(&since, at);
        }
    }
}

/// A tool call without an answer.
#[derive(Debug)]
pub(super) struct Call {
    pub cell: Option<CellNumber>,
    pub name: String,
    /// The arguments, if the call waits for a person; otherwise they are not needed.
    pub arguments: Map<String, Value>,
    /// The position among the calls of the cell.
    pub position: usize,
    /// Whether the call waits for a person's permission; `ToolBegun` ends the waiting.
    pub waits: bool,
    /// What a client has promised to answer with, if the tool is a client's.
    pub lent: Option<LentAnswer>,
    /// Whether the call waits for its client to come back; `ToolBegun` ends this waiting, too.
    pub held: bool,
    /// The number of the event with the arguments.
    pub seq: Seq,
}

impl Call {
    /// The call after the last event. In a replay, it has the recorded answer or none, and is not made.
    pub fn end(self, call: u64, is_replayed: bool, recorded: Option<&RecordedCall>) -> OpenCall {
        let Self { cell, name, arguments, waits, lent, held, seq, .. } = self;
        let is_of_client = !is_replayed && !waits;
        let lent = lent.filter(|_| is_of_client);
        let lent = lent.map(|answer| LentCall { cell, name: name.clone(), answer, seq });
        let held = (held && is_of_client).then(|| UnmadeCall { cell, name: name.clone(), seq });
        let was_given_up = recorded.is_some_and(RecordedCall::was_given_up);
        let given_up = cell.filter(|_| was_given_up).map(|cell| (cell, name.clone()));
        let recorded = recorded.filter(|_| !was_given_up).map(|once| once.outcome.clone());
        let waits = cell.filter(|_| waits).map(|cell| WaitingCall { cell, name, arguments });
        OpenCall { call, recorded, given_up, waits, lent, held }
    }
}

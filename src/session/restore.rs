//! The present state of a session, folded from its events: the state from which it continues after a restart
//! of the daemon.

mod asks;
mod fold;
mod open;
mod recorded;
mod saved;
#[cfg(test)]
mod tests;
mod untold;

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ask::AskNumber;
use crate::protocol::clock::Moment;
use crate::protocol::command::CommandSummary;
use crate::protocol::frames::{StateAfter, ToolFailure};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::packages::PackageSet;
use crate::protocol::preload::Preloaded;
use crate::protocol::principal::Principal;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::Status;
use crate::protocol::tool::LentAnswer;
use crate::session::approvals::Approvals;
use crate::session::outcome::{CellStart, EndedBy};
use crate::session::rules::{CellRules, SandboxRules};
use crate::store::act_bytes;
use crate::tools::Responses;

pub use asks::{AsksFold, CELL_REFUSED, RecalledAsk, RecalledAsks, queued_view};
pub use fold::Fold;
pub use recorded::{Recording, Span};
pub use saved::{CellsAgain, SavedStates, Wake, Waking};
pub use untold::Untold;

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own that the journal tells")]
pub struct Restored {
    /// The number of the newest cell.
    pub cells: CellNumber,
    /// When the session was last active (RFC 3339).
    pub active_at: Option<String>,
    /// Cells that were queued and had not begun, in order.
    pub queued: Vec<CellStart>,
    /// Cells that were running.
    pub running: Vec<BegunCell>,
    /// The last sandbox, unless it was reported as gone.
    pub sandbox: Option<Receipt>,
    /// The last sandbox, even if it is gone.
    pub last_sandbox: Option<Receipt>,
    /// The modules that the sandbox preloaded.
    pub preloaded: Option<Preloaded>,
    /// The packages that were installed.
    pub packages: Option<PackageSet>,
    /// Whether an installation had begun and not ended.
    pub installing: bool,
    /// Whether the session was to be reset, because packages gave way to others.
    pub reset_due: bool,
    /// Since when the sandbox is frozen (RFC 3339), if it is.
    pub frozen_since: Option<String>,
    /// Tool calls without an answer.
    pub open_calls: Vec<OpenCall>,
    /// Calls of running cells whose answers are in the journal, but may not have reached the kernel: the
    /// number of the call and that of the event.
    pub answered_calls: Vec<(u64, Seq)>,
    /// The answers of tools in the sandbox, for which its code may hold markers.
    pub tool_responses: Responses,
    /// Whether a replay had begun and not ended.
    pub replaying: bool,
    /// Whether the last reset may not have reached the kernel.
    pub reset: bool,
    /// What happened to the variables since the last cell: a note for the next one.
    pub pending_note: Option<String>,
    /// Cells whose changes the variables hold, if no state was lost since: `replay` runs them again.
    pub replayable: Vec<CellNumber>,
    /// Cells whose changes the variables hold as well, but which are not run again, because a user
    /// interrupted them.
    pub interrupted: Vec<CellNumber>,
    /// The spans of the events of cells that can be replayed, or have not ended.
    pub spans: BTreeMap<CellNumber, Span>,
    /// Cells after the snapshot that the session woke from which have to run again, in their order.
    pub waking: Vec<CellNumber>,
    /// Those of them that have run again and ended with another status than before.
    pub ran_otherwise: Vec<CellNumber>,
    /// Cells that can be replayed and that failed, as far as results have told so.
    pub failed: BTreeSet<CellNumber>,
    /// Whether the variables have changed since the newest snapshot.
    pub unsaved: bool,
    /// The snapshots, and what a new sandbox wakes from.
    pub saved: SavedStates,
    pub wake: Option<Waking>,
    /// The rules of all code that has run in the sandbox since its last reset.
    pub sandbox_rules: SandboxRules,
    /// The rules of the asks so far.
    pub rules_of_asks: BTreeMap<AskNumber, Arc<CellRules>>,
    pub approvals: Approvals,
    /// The last commands that have ended, oldest first.
    pub ended_commands: VecDeque<CommandSummary>,
    /// The bytes that the records of what each administrator did take.
    pub admin_acts: BTreeMap<Principal, u64>,
}

/// A cell that had begun.
#[derive(Clone, Debug)]
pub struct BegunCell {
    pub start: CellStart,
    /// When it began (RFC 3339).
    pub at: String,
    /// How long it has been paused since, without a freeze that still lasts.
    pub frozen: Duration,
    /// The names of completed tool calls.
    pub completed: Vec<String>,
    /// Whether a later cell, or this one itself, had begun before: then the kernel may not know this cell,
    /// even if it knows later ones.
    pub passed: bool,
    /// Why the earlier daemon wanted to end the cell, if the journal has the reason.
    pub to_end: Option<EndedBy>,
    pub died: Option<ProcessDeath>,
}

/// How the process of a cell ended that has no result yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessDeath {
    pub exit_code: i32,
    /// What is left of the state.
    pub after: StateAfter,
    /// Whether the daemon had told the kernel to end the cell.
    pub killed: bool,
    /// Whether it ended on account of something else.
    pub rolled_back: bool,
}

impl BegunCell {
    /// How long the cell has run by now, without pauses.
    pub fn ran(&self, frozen_since: Option<&str>, now: Moment) -> Duration {
        let frozen_now = frozen_since.map_or(Duration::ZERO, |since| now.since(since));
        now.since(&self.at).saturating_sub(self.frozen + frozen_now)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpenCall {
    pub call: u64,
    /// In a replay, the recorded answer to the call.
    pub recorded: Option<Result<Value, ToolFailure>>,
    /// Set in a replay if the code gave the call up when it first ran, so that there is no answer: the cell and the tool.
    pub given_up: Option<(CellNumber, String)>,
    /// Set if a person has to allow the call, or just has allowed it; it has not been made.
    pub waits: Option<WaitingCall>,
    /// Set if a client got the call, or was about to get it.
    pub lent: Option<LentCall>,
    /// Set if the call waited for its client to come back, and was not made.
    pub held: Option<UnmadeCall>,
}

/// A tool call that waits for its client.
#[derive(Clone, Debug, PartialEq)]
pub struct UnmadeCall {
    pub cell: Option<CellNumber>,
    pub name: String,
    /// The number of the event with the arguments.
    pub seq: Seq,
}

/// A tool call that a client may still answer.
#[derive(Clone, Debug, PartialEq)]
pub struct LentCall {
    pub cell: Option<CellNumber>,
    pub name: String,
    /// What the client has promised to answer with.
    pub answer: LentAnswer,
    /// The number of the event with the arguments.
    pub seq: Seq,
}

/// A tool call of a cell that a person has to allow.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingCall {
    pub cell: CellNumber,
    pub name: String,
    pub arguments: Map<String, Value>,
}

impl Restored {
    fn admin_acted(&mut self, admin: Principal, act: &str) {
        let bytes = self.admin_acts.entry(admin).or_default();
        *bytes = bytes.saturating_add(act_bytes(act));
    }

    /// How a cell that can be replayed ended when a result last told of it.
    #[must_use]
    pub fn status_before(&self, cell: CellNumber) -> Status {
        if self.failed.contains(&cell) { Status::Failure } else { Status::Success }
    }

    /// The rules for the cells of an ask; the strictest ones for an unknown ask.
    #[must_use]
    pub fn rules_of(&self, ask: AskNumber) -> Arc<CellRules> {
        self.rules_of_asks.get(&ask).map_or_else(|| Arc::new(CellRules::strictest()), Arc::clone)
    }
}

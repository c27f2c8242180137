//! What a session's events say about its present: the fold from which a session goes on after the
//! daemon was started anew.

mod fold;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ask::AskNumber;
use crate::protocol::clock;
use crate::protocol::frames::{StateAfter, ToolFailure};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::preload::Preloaded;
use crate::protocol::receipt::Receipt;
use crate::session::outcome::{CellStart, EndedBy};
use crate::session::recorded::Span;
use crate::session::rules::{CellRules, SandboxRules};
use crate::tools::Responses;

pub use fold::Fold;

#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The number of the newest cell.
    pub cells: CellNumber,
    /// When something last happened (RFC 3339).
    pub active_at: Option<String>,
    /// Cells that were to run and had not begun, in order.
    pub queued: Vec<CellStart>,
    /// Cells that ran.
    pub running: Vec<Begun>,
    /// The sandbox that was last there, if it was not said to be gone.
    pub sandbox: Option<Receipt>,
    /// The same, gone or not.
    pub last_sandbox: Option<Receipt>,
    /// What it began with.
    pub preloaded: Option<Preloaded>,
    /// Since when its processes are stopped (RFC 3339), if they are.
    pub frozen_since: Option<String>,
    /// Tool calls without an answer.
    pub open_calls: Vec<OpenCall>,
    /// Calls of cells that run whose answers are in the journal, and may not have come to the kernel: the number of each
    /// and that of the event.
    pub answered_calls: Vec<(u64, Seq)>,
    /// What tools said to the sandbox, for which its code may hold markers.
    pub tool_responses: Responses,
    /// A replay had begun and not ended.
    pub replaying: bool,
    /// A reset came last; the kernel may not have heard of it.
    pub reset: bool,
    /// What became of the variables since the last cell: the next one has to tell.
    pub pending_note: Option<String>,
    /// Cells whose changes the variables hold, if nothing was lost since: what `replay` runs again.
    pub replayable: Vec<CellNumber>,
    /// Cells whose changes they hold too, and which are not run again, because somebody interrupted them.
    pub interrupted: Vec<CellNumber>,
    /// Where the events of the cells are that can be replayed, or have not ended.
    pub spans: BTreeMap<CellNumber, Span>,
    /// Of all code that has run in the sandbox since its last reset.
    pub sandbox_rules: SandboxRules,
    /// Of the asks so far.
    pub rules_of_asks: BTreeMap<AskNumber, Arc<CellRules>>,
}

/// A cell that had begun.
#[derive(Clone, Debug)]
pub struct Begun {
    pub start: CellStart,
    /// RFC 3339.
    pub at: String,
    /// How long it was frozen since, without a freeze that lasts.
    pub frozen: Duration,
    /// Names of completed tool calls.
    pub completed: Vec<String>,
    /// A later cell had begun before it, or it had itself: that the kernel knows of later ones does not
    /// mean that it knows of this one.
    pub passed: bool,
    /// Why the daemon of before wanted it to end, as far as the journal knows.
    pub to_end: Option<EndedBy>,
    pub died: Option<Died>,
}

/// How the process of a cell ended that had no result yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died {
    pub exit_code: i32,
    /// What was left of the state.
    pub after: StateAfter,
    /// The daemon had told the kernel to end it.
    pub killed: bool,
}

impl Begun {
    /// How long it has run by now.
    pub fn ran(&self, frozen_since: Option<&str>) -> Duration {
        let frozen_now = frozen_since.map_or(Duration::ZERO, clock::since);
        clock::since(&self.at).saturating_sub(self.frozen + frozen_now)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpenCall {
    pub call: u64,
    /// In a replay, the answer that it once got.
    pub recorded: Option<Result<Value, ToolFailure>>,
    /// A person has to allow it, or just has; it was not made.
    pub waits: Option<WaitingCall>,
}

/// A tool call of a cell that a person has to allow.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingCall {
    pub cell: CellNumber,
    pub name: String,
    pub arguments: Map<String, Value>,
}

impl Restored {
    /// What the cells of an ask keep to; of one that is not known, as little as there is.
    #[must_use]
    pub fn rules_of(&self, ask: AskNumber) -> Arc<CellRules> {
        self.rules_of_asks.get(&ask).map_or_else(|| Arc::new(CellRules::strictest()), Arc::clone)
    }
}

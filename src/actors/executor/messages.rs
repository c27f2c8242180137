//! What the executor is told, and what it begins with if there was a sandbox before.

use ractor::{ActorRef, RpcReplyPort};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

use super::super::launch::Ready;
use crate::bridge::{Closed, Turn};
use crate::memory::Charge;
use crate::protocol::api::{Computed, VariableList, Which};
use crate::protocol::frames::{KernelFrame, Live, ToolFailure};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::ExecutionResult;
use crate::sandbox::launch::SandboxEnd;
use crate::sandbox::workspace::artifacts::Snapshot;
use crate::sandbox::workspace::usage::Usage;
use crate::session::outcome::{CellStart, EndedBy};
use crate::session::restore::{Died, OpenCall};
use crate::session::rules::SandboxRules;
use crate::store::Exceeded;
use crate::tools::{self, Responses, ToolOutput};

pub type ExecutorRef = ActorRef<ExecutorMsg>;

pub(in super::super) type Answer<T> = RpcReplyPort<Result<T, Problem>>;

/// Cells were undone.
#[derive(Debug)]
pub struct Back {
    pub state_of: CellNumber,
    /// What ran beside cells, and does not come back.
    pub gone: Live,
    pub turn: Turn,
}

pub enum ExecutorMsg {
    /// The launching task is done.
    Launched(Box<Result<Ready, Problem>>),
    /// The attaching task is done; none if the sandbox is gone.
    Attached(Box<Result<Option<Ready>, Problem>>),
    /// Run a cell; its end is reported to the session as `CellFinished`. In `main` mode only after
    /// the previous one has ended.
    Run(CellStart),
    Interrupt(CellNumber),
    Variables {
        which: Which,
        reply_to: Answer<VariableList>,
    },
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        reply_to: Answer<Computed>,
    },
    /// The seed or the tools have changed; the names are those of new values.
    Configure {
        seed: Map<String, Value>,
        tools: Arc<tools::Registry>,
        given: Vec<String>,
    },
    /// Not by a cell: the next one is not to be credited with it.
    FilesChanged,
    Reset {
        reply_to: Answer<()>,
    },
    /// Answered with the newest cell whose changes are still there, and the turn of the kernel's word.
    Undo {
        cells: u64,
        reply_to: Answer<Back>,
    },
    /// Stop all processes of the sandbox and the clocks of its cells.
    Freeze {
        reply_to: Answer<()>,
    },
    Thaw,
    /// The engine has let them go on.
    Thawed,
    /// The daemon ends: take nothing more from the kernel, which tells it the next daemon. Answered when
    /// no program of the host runs for a call any more and the kernel has its answer.
    EndPrograms {
        reply_to: RpcReplyPort<()>,
    },
    /// Leave the sandbox running for the next daemon, and end.
    Leave {
        reply_to: RpcReplyPort<()>,
    },
    /// Remove the sandbox and end. Answered when it is gone.
    Shutdown {
        reply_to: RpcReplyPort<()>,
    },

    /// The next frame comes when the turn is given back.
    Arrived(Box<KernelFrame>, Turn),
    /// A cell that came while its worker was being replaced.
    SendAgain(CellNumber),
    Closed(Closed),
    Overdue(Overdue),
    /// Time to look at what strangers and guests do to the sandbox.
    Look,
    /// Something that the sandbox sent was too much to be kept.
    OverQuota(Exceeded),
    QuotaLooked(Usage),
    ToolDone {
        call: u64,
        outcome: Result<ToolOutput, ToolFailure>,
        /// What it takes of its owner's part of the memory.
        memory: Option<Charge>,
    },
    /// A call of this cell waits for a person; no longer.
    PersonAsked(CellNumber),
    PersonAnswered(CellNumber),
    /// The workspace was compared; the cell is over.
    Concluded {
        result: Box<ExecutionResult>,
        snapshot: Snapshot,
        turn: Option<Turn>,
    },
    /// The engine said what became of a sandbox whose bridge closed.
    Ended {
        why: String,
        end: Option<SandboxEnd>,
    },
}

/// What took too long.
#[derive(Clone, Copy, Debug)]
pub enum Overdue {
    /// A cell.
    Deadline(CellNumber),
    /// A cell that was told to stop by itself.
    Interrupt(CellNumber),
    /// The news that a cell was killed.
    Kill(CellNumber),
    /// The answer to a request.
    Request(u64),
}

/// A sandbox that an earlier daemon left running, and what is known of it.
pub struct Attach {
    pub receipt: Receipt,
    /// Frames of its kernel that had their effect.
    pub received: u64,
    pub running: Vec<Resumed>,
    /// Tool calls that wait for an answer which nobody works on any more.
    pub open_calls: Vec<OpenCall>,
    /// What tools have said to it.
    pub said: Responses,
    /// Of all code that has run in it since its last reset.
    pub bound: SandboxRules,
    /// It is to be frozen again when it has told what it had to tell.
    pub frozen: bool,
}

/// A cell that was running.
pub struct Resumed {
    pub start: CellStart,
    /// How long it had been, without the time in which it was frozen.
    pub ran: Duration,
    /// Names of completed tool calls.
    pub completed: Vec<String>,
    /// A later cell was sent before it.
    pub passed: bool,
    /// Why the daemon of before wanted it to end, as far as the journal knows.
    pub to_end: Option<EndedBy>,
    pub died: Option<Died>,
}

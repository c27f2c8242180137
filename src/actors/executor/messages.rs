//! What the executor is told, and what it begins with if there was a sandbox before.

use ractor::{ActorRef, RpcReplyPort};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

use crate::actors::calls::Reply;
use crate::actors::launch::Ready;
use crate::bridge::{Closed, FrameGuard};
use crate::memory::Charge;
use crate::protocol::api::{Computed, VariableList, VariablesFilter};
use crate::protocol::event::ToolOutcome;
use crate::protocol::frames::{KernelFrame, LiveResources, ToolFailure};
use crate::protocol::ids::{CellNumber, Seq};
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

/// Cells were undone.
#[derive(Debug)]
pub struct Undoing {
    pub state_of: CellNumber,
    /// What ran beside cells, and does not come back.
    pub gone: LiveResources,
    pub frame_guard: FrameGuard,
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
        which: VariablesFilter,
        reply_to: Reply<VariableList>,
    },
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        reply_to: Reply<Computed>,
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
        reply_to: Reply<()>,
    },
    /// Answered with the newest cell whose changes remain, and with the guard of the frame in which the kernel said so.
    Undo {
        cells: u64,
        reply_to: Reply<Undoing>,
    },
    /// Stop all processes of the sandbox and the clocks of its cells.
    Freeze {
        reply_to: Reply<()>,
    },
    Thaw,
    /// The engine has let them go on.
    Thawed,
    /// The daemon ends: take no more frames from the kernel, which sends them to the next daemon. Answered when no
    /// program of the host runs for a tool call any more and the kernel has the answers to all of them.
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

    /// The next frame comes when the frame guard is dropped.
    Arrived(Box<KernelFrame>, FrameGuard),
    /// The files of the workspace.
    Scanned(Snapshot),
    /// A cell that came while its worker was being replaced.
    SendAgain(CellNumber),
    /// The answer to a tool call, which the journal has and the kernel may not have.
    AnswerAgain {
        call: u64,
        outcome: ToolOutcome,
    },
    Closed(Closed),
    Overdue(Overdue),
    /// The regular look at the sandbox: size of its workspace, CPU time while an approval waits, pauses by strangers.
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
        frame_guard: Option<FrameGuard>,
    },
    /// The engine said what became of a sandbox whose bridge closed.
    Ended {
        why: String,
        end: Option<SandboxEnd>,
    },
}

impl ExecutorMsg {
    /// The session wants something of what runs in the sandbox; these have to be done in their order.
    pub fn is_command(&self) -> bool {
        match self {
            Self::Run(_)
            | Self::Interrupt(_)
            | Self::Variables { .. }
            | Self::Compute { .. }
            | Self::Configure { .. }
            | Self::FilesChanged
            | Self::Reset { .. }
            | Self::Undo { .. }
            | Self::Freeze { .. }
            | Self::Thaw => true,
            Self::Launched(_)
            | Self::Attached(_)
            | Self::Thawed
            | Self::EndPrograms { .. }
            | Self::Leave { .. }
            | Self::Shutdown { .. }
            | Self::Arrived(..)
            | Self::Scanned(_)
            | Self::SendAgain(_)
            | Self::AnswerAgain { .. }
            | Self::Closed(_)
            | Self::Overdue(_)
            | Self::Look
            | Self::OverQuota(_)
            | Self::QuotaLooked(_)
            | Self::ToolDone { .. }
            | Self::PersonAsked(_)
            | Self::PersonAnswered(_)
            | Self::Concluded { .. }
            | Self::Ended { .. } => false,
        }
    }
}

/// What took too long.
#[derive(Clone, Copy, Debug)]
pub enum Overdue {
    /// A cell.
    Deadline(CellNumber),
    /// A cell that was told to stop by itself.
    Interrupt(CellNumber),
    /// That a cell was killed has not been confirmed yet: the CPU limit of the sandbox is lifted until it is.
    SlowKill(CellNumber),
    /// It has still not been confirmed: the sandbox is given up.
    Kill(CellNumber),
    /// A reset has not been confirmed yet: the CPU limit of the sandbox is lifted until it is.
    SlowReset(u64),
    /// A request to the kernel has no answer.
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
    /// Tool calls whose answers are in the journal, and where: the kernel may not have them.
    pub answered_calls: Vec<(u64, Seq)>,
    /// What tools have said to it.
    pub responses: Responses,
    /// The rules of all code that has run in it since its last reset.
    pub bound: SandboxRules,
    /// Freeze the sandbox again once the kernel has sent every frame anew that was not acknowledged.
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

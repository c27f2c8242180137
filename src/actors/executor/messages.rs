//! The messages to the executor, and the state that it takes over from an earlier sandbox.

use ractor::{ActorRef, RpcReplyPort};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::pending::HeldCall;
use super::running::FinishedCell;
use crate::actors::calls::Reply;
use crate::actors::launch::ReadySandbox;
use crate::actors::snapshots::TakenSnapshot;
use crate::bridge::{Closed, FrameGuard};
use crate::memory::Charge;
use crate::protocol::api::{Computed, VariableList, VariablesFilter};
use crate::protocol::command::TerminalSize;
use crate::protocol::event::ToolOutcome;
use crate::protocol::frames::{KernelFrame, LiveResources, ToolFailure};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::packages::PackageSet;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Receipt;
use crate::protocol::saved_state::BoundRules;
use crate::protocol::snapshot::MissingVariable;
use crate::sandbox::launch::SandboxEnd;
use crate::sandbox::workspace::artifacts::Snapshot;
use crate::sandbox::workspace::measuring::MeasuredFolder;
use crate::session::outcome::{CellStart, Changes, EndedBy};
use crate::session::restore::{OpenCall, ProcessDeath, Wake, Waking};
use crate::session::rules::SandboxRules;
use crate::store::Exceeded;
use crate::tools::{self, ExpectedAnswer, Responses, ToolOutput};

pub type ExecutorRef = ActorRef<ExecutorMsg>;

/// What a new sandbox wakes with, and the rules of the code that had made it; none if it begins anew.
pub type WakePlan = Option<(Waking, SandboxRules)>;

/// A snapshot that is to be taken.
#[derive(Clone, Debug)]
pub struct WantedSnapshot {
    /// The session's number of it.
    pub ticket: u64,
    pub name: Option<String>,
    /// Only of the state after this cell; of the newest state at rest without it.
    pub state_of: Option<CellNumber>,
    /// The work for it goes on while cells run.
    pub urgent: bool,
    /// A client waits for it: the work goes on in turns with cells that follow each other.
    pub is_for_a_client: bool,
    /// The version of Python in the sandbox.
    pub python: String,
    /// What the session woke without, if nobody was told yet: whoever gets the variables is told the same.
    pub missing: Vec<MissingVariable>,
}

/// The outcome of undoing cells.
#[derive(Debug)]
pub struct UndoneState {
    pub state_of: CellNumber,
    /// Resources that were running beside the cells and are gone.
    pub gone: LiveResources,
    pub frame_guard: FrameGuard,
}

/// What the terminal of a command gets from a client.
#[derive(Clone, Debug)]
pub enum ToTerminal {
    /// What a person typed, as base64.
    Typed(String),
    Resized(TerminalSize),
}

/// A command of the session; commands are carried out in their order.
pub enum Command {
    /// Run a cell; its end is reported to the session as `CellFinished`. In `main` mode only after
    /// the previous one has ended.
    Run(CellStart),
    /// The cells that were to run again have.
    Replayed,
    Interrupt(CellNumber),
    Kill(CellNumber),
    ToTerminal(CellNumber, ToTerminal),
    Variables {
        which: VariablesFilter,
        reply_to: Reply<VariableList>,
    },
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        /// The charge for the client's request, until it is a frame.
        memory: Option<Charge>,
        reply_to: Reply<Computed>,
    },
    /// The seed or the tools have changed; `given` names the new values.
    Configure {
        seed: Map<String, Value>,
        tools: Arc<tools::Registry>,
        given: Vec<String>,
    },
    /// Files were changed by something other than a cell, so the next cell must not be credited with them.
    FilesChanged,
    Reset {
        /// The variables that are there after it.
        base: Option<Box<Wake>>,
        /// The rules of what the session began with, if they hold after it.
        inherited: Option<Box<BoundRules>>,
        reply_to: Reply<()>,
    },
    /// Answered with the newest cell whose changes remain, and with the guard of the kernel's frame.
    Undo {
        cells: u64,
        reply_to: Reply<UndoneState>,
    },
    /// Stop all processes of the sandbox and the clocks of its cells.
    Freeze {
        reply_to: Reply<()>,
    },
    Thaw,
    /// Save the variables. Answered when they are on the disk.
    Snapshot {
        wanted: WantedSnapshot,
        reply_to: Reply<TakenSnapshot>,
    },
    /// End the snapshot with this ticket, if it is being taken.
    EndSnapshot {
        ticket: u64,
    },
    /// Let the packages of the session appear. Answered when code can import them.
    ShowPackages {
        set: Box<PackageSet>,
        reply_to: Reply<()>,
    },
}

pub enum ExecutorMsg {
    /// The launching task is done.
    Launched(Box<Result<ReadySandbox, Problem>>, Box<WakePlan>),
    /// The attaching task is done; none if the sandbox is gone.
    Attached(Box<Result<Option<ReadySandbox>, Problem>>),
    Command(Command),
    /// The freeze with this number has failed.
    FreezeFailed(u64),
    /// The engine has resumed the processes.
    Thawed,
    /// The daemon shuts down: take no more frames from the kernel, which sends them to the next daemon.
    /// Answered when no host program runs for a tool call any more and the kernel has all their answers.
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

    /// A frame of the kernel. The next one arrives when the frame guard is dropped.
    Arrived(Box<KernelFrame>, FrameGuard),
    /// The files of the workspace have been scanned.
    Scanned(Snapshot),
    /// Send a cell again for which the kernel had no worker or process.
    SendAgain(CellNumber),
    /// The journal has this answer to a tool call, and the kernel may not have it.
    AnswerAgain {
        call: u64,
        outcome: ToolOutcome,
    },
    /// The arguments of a call that the earlier daemon held are read.
    HeldAgain {
        call: u64,
        held: Box<HeldCall>,
    },
    /// Clients that lent tools to the earlier daemon's session had the time to come back.
    ClientsAreLate,
    /// The task that takes a snapshot is done.
    SnapshotReceived {
        request: u64,
        outcome: Box<Result<TakenSnapshot, Problem>>,
    },
    /// The task that sends a snapshot to the kernel is done.
    SnapshotSent {
        request: u64,
        outcome: Result<(), Problem>,
    },
    Closed(Closed),
    Overdue(Overdue),
    /// The regular check: size of the workspace, CPU time while an approval waits, pauses from outside.
    Check,
    /// Data that the sandbox sent exceeded the quota and was not kept.
    OverQuota(Exceeded),
    Measured(Vec<MeasuredFolder>),
    ToolDone {
        call: u64,
        outcome: Result<ToolOutput, ToolFailure>,
        /// The memory charged for the outcome to the owner's share.
        memory: Option<Charge>,
    },
    /// A call of this cell begins to wait for a person, or no longer does.
    WaitsForPerson {
        cell: CellNumber,
        waits: bool,
    },
    /// The workspace was compared; the cell is over.
    Concluded {
        finished: Box<FinishedCell>,
        snapshot: Snapshot,
        changes: Changes,
    },
    /// The engine reported how a sandbox ended whose bridge closed.
    Ended {
        why: String,
        end: Option<SandboxEnd>,
    },
}

/// A cell or request that took too long.
#[derive(Clone, Copy, Debug)]
pub enum Overdue {
    /// A cell is past its deadline.
    Deadline(CellNumber),
    /// An interrupted cell has not stopped by itself.
    Interrupt(CellNumber),
    /// The kill of a cell has not been confirmed yet: the CPU limit of the sandbox is lifted until it is.
    SlowKill(CellNumber),
    /// The kill has still not been confirmed: the sandbox is given up.
    Kill(CellNumber),
    /// A reset has not been confirmed yet: the CPU limit of the sandbox is lifted until it is.
    SlowReset(u64),
    /// A request to the kernel has no answer.
    Request(u64),
}

/// A sandbox that an earlier daemon left running, with its recorded state.
pub struct Attach {
    pub receipt: Receipt,
    /// The number of the kernel's frames that have been processed.
    pub received: u64,
    pub running: Vec<ResumedCell>,
    /// Tool calls that wait for an answer, but whose tools ended with the earlier daemon.
    pub open_calls: Vec<OpenCall>,
    /// The answers of clients to those among them that clients have got.
    pub expected: HashMap<u64, ExpectedAnswer>,
    /// Tool calls whose answers are in the journal, with their place there: the kernel may not have them.
    pub answered_calls: Vec<(u64, Seq)>,
    /// The answers of tools to code in this sandbox.
    pub responses: Responses,
    /// The rules of all code that has run in it since its last reset.
    pub bound: SandboxRules,
    /// Freeze the sandbox again once the kernel has sent all unacknowledged frames again.
    pub frozen: bool,
    /// Cells run again, also if none of them runs at this moment.
    pub replays: bool,
}

/// A cell that was running when the earlier daemon ended.
pub struct ResumedCell {
    pub start: CellStart,
    /// How long it had run, without the time in which it was frozen.
    pub ran: Duration,
    /// The names of its completed tool calls.
    pub completed: Vec<String>,
    /// Whether a later cell was sent to the kernel before this one.
    pub passed: bool,
    /// Why the earlier daemon wanted to end the cell, if the journal has the reason.
    pub to_end: Option<EndedBy>,
    pub died: Option<ProcessDeath>,
}

//! The words between the machine and the actor that carries its wishes out.

use std::time::Duration;

use crate::protocol::api::VariablesFilter;
use crate::protocol::ask::AskNumber;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::session::outcome::{CellStart, EndedBy};

/// What happened. `W` is whoever waits for a list of variables.
pub enum Input<W> {
    /// The workspace is there, so a sandbox can be.
    Placed,
    /// Something needs a sandbox that is no cell.
    SandboxWanted,
    SandboxReady,
    /// The sandbox of before is there, with its variables.
    SandboxAttached,
    /// There is no sandbox, and the next try is for the next cell.
    SandboxFailed(Problem),
    /// What ran in it and is not reported never reached it.
    SandboxGone {
        reason: String,
    },
    /// The sandbox of before is gone, with what ran in it.
    NotAttached {
        reason: String,
    },
    /// The variables changed between cells, of which the next one tells.
    Changed {
        note: String,
    },
    /// A cell that `may_run` allowed.
    Cell(CellStart),
    /// The journal did not take that cell in time.
    CellUnwritten(CellNumber),
    Variables {
        which: VariablesFilter,
        patient: bool,
        reply_to: W,
    },
    /// The sandbox did not take the request; it is about to be said to be gone.
    NotShown {
        which: VariablesFilter,
        reply_to: W,
    },
    /// The owner may run one more cell.
    MayRun,
    /// The owner may not, whatever ends.
    MayNotRun(Problem),
    /// Whether the start of a cell got into the journal in time.
    Started {
        begin: u64,
        written: bool,
    },
    /// The kernel cannot run this copy now.
    PutBack(CellNumber),
    Finished(CellNumber),
    Interrupt,
    /// An ask has ended: its cells are not wanted any more.
    CancelCells(AskNumber),
    /// An undo that `may_undo` allowed begins, and ends.
    Undo,
    UndoDone,
    /// A reset that `may_reset` allowed is on its way into the journal, and there.
    Reset {
        replay: bool,
    },
    ResetNoted,
    /// A replay that `may_replay` allowed: until it has ended, nothing else changes the variables.
    ReplayWanted,
    ReplayEnded {
        finished: bool,
    },
    /// A freeze that `may_freeze` allowed.
    Freeze,
    FreezeFailed,
    Thaw,
    Remove,
    /// The daemon ends; what waits and runs is left to the next one.
    Leave,
    Tick,
}

/// What has to be done, in this order.
#[derive(Debug)]
pub enum Effect<W> {
    /// Answered by `SandboxReady`, `SandboxAttached`, `SandboxFailed`, `SandboxGone` or `NotAttached`.
    StartSandbox,
    /// Let the sandbox go, which is not used any more.
    EndSandbox,
    /// Answered by `MayRun` or `MayNotRun`.
    WantPermit,
    /// Write the start of this cell, which has the permit that came last; answered by `Started`.
    Begin {
        cell: CellNumber,
        begin: u64,
    },
    Run(CellStart),
    Show {
        which: VariablesFilter,
        reply_to: W,
    },
    Interrupt(CellNumber),
    Thaw,
    Append(EventBody),
    /// The cell has ended without having run.
    Unrun(CellStart),
    /// The cell has ended with its sandbox.
    Lost(CellStart, Option<EndedBy>),
    Refuse(W, Problem),
}

/// Whether somebody runs the cells of before again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplayPhase {
    #[default]
    None,
    /// Somebody looks up what there is to run.
    Prepared,
    Running,
}

/// When a sandbox is let go.
#[derive(Clone, Copy, Debug)]
pub struct Expiry {
    pub idle: Duration,
    pub life: Duration,
}

/// What a session has that was there before.
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Unfinished {
    pub cells: CellNumber,
    /// In the order in which they came.
    pub queued: Vec<CellStart>,
    pub running: Vec<CellStart>,
    pub note: Option<String>,
    /// For how long nothing has happened.
    pub idle: Duration,
    pub frozen: bool,
    pub replaying: bool,
    /// There may be a sandbox.
    pub sandbox: bool,
    /// It may not have heard of the last reset.
    pub reset: bool,
}

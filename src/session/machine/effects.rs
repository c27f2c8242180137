//! The inputs and effects between the machine and the actor that carries the effects out.

use std::time::Duration;

use crate::protocol::api::VariablesFilter;
use crate::protocol::ask::AskNumber;
use crate::protocol::command::EndCommand;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::session::outcome::{CellStart, EndedBy};

/// What happened. `W` is the reply port of a list of variables.
pub enum Input<W> {
    /// The workspace is ready, so a sandbox can be started.
    Placed,
    /// A request other than a cell needs a sandbox.
    SandboxWanted,
    SandboxReady,
    /// The sandbox that is about to be ready has the variables of a snapshot; `replays` if later cells run again.
    Woken {
        note: String,
        replays: bool,
    },
    /// These of the cells that run again because the session wakes ended with another status than before.
    RanOtherwise {
        cells: Vec<CellNumber>,
    },
    /// These of them did not run, because they cannot.
    NotRunAgain {
        cells: Vec<CellNumber>,
        problem: Problem,
    },
    /// The sandbox that is about to be ready has no variables, because the snapshot could not be loaded.
    NotWoken {
        reason: String,
    },
    /// The earlier sandbox is attached, with its variables.
    SandboxAttached,
    /// No sandbox could be started; the next cell causes the next attempt.
    SandboxFailed(Problem),
    /// The sandbox is gone. Cells that were not reported never reached it.
    SandboxGone {
        reason: String,
    },
    /// The earlier sandbox is gone, with all cells that ran in it.
    NotAttached {
        reason: String,
    },
    /// The variables changed between cells, which the next cell reports.
    Changed {
        note: String,
    },
    /// A cell that `may_run` allowed.
    Cell(CellStart),
    /// The journal did not commit that cell in time.
    CellUnwritten(CellNumber),
    Variables {
        which: VariablesFilter,
        patient: bool,
        reply_to: W,
    },
    /// The sandbox did not take the request, because it is ending; `SandboxGone` follows.
    NotShown {
        which: VariablesFilter,
        reply_to: W,
    },
    /// The owner may run one more cell.
    MayRun,
    /// The owner may not run the cell, and no end of another cell would change that.
    MayNotRun(Problem),
    /// Whether the start of a cell got into the journal in time.
    Started {
        begin: u64,
        is_written: bool,
    },
    /// The kernel cannot run this cell now.
    PutBack(CellNumber),
    Finished(CellNumber),
    Interrupt,
    /// A client wants a command to end.
    EndCommand {
        cell: CellNumber,
        how: EndCommand,
    },
    /// An ask has ended, so its cells are no longer wanted.
    CancelCells(AskNumber),
    /// An undo that `may_undo` allowed begins, and ends.
    Undo,
    UndoDone,
    /// A reset that `may_reset` allowed is on its way into the journal, and has arrived there.
    Reset {
        replay: bool,
    },
    ResetNoted,
    /// A replay that `may_replay` allowed begins: until it has ended, no other cell changes the variables.
    ReplayWanted,
    /// The replay or waking with this number is over.
    ReplayEnded {
        number: u64,
        finished: bool,
    },
    /// The cells of a session that wakes could not run again, for a reason that may pass.
    NotRebuilt(Problem),
    /// A freeze that `may_freeze` allowed; `freezes` gives its number.
    Freeze,
    /// The freeze with this number has failed.
    FreezeFailed(u64),
    Thaw,
    /// A client wants the sandbox to end, which `may_sleep` allowed.
    Sleep,
    /// The snapshot with this number was taken and is in the journal, or was not taken.
    SnapshotEnded {
        number: u64,
        is_taken: bool,
    },
    /// The snapshot with this number has waited for its turn, and is being taken now.
    SaveBegins {
        number: u64,
    },
    /// The snapshot that the session wakes from is removed.
    Unsaved,
    /// A snapshot that a client wanted holds this many changes of the variables.
    Saved {
        changes: u64,
    },
    Remove,
    /// The daemon shuts down; waiting and running cells are left to the next one.
    Leave,
    Tick,
}

/// What has to be done, in this order.
#[derive(Debug)]
pub enum Effect<W> {
    /// Answered by `SandboxReady`, `SandboxAttached`, `SandboxFailed`, `SandboxGone` or `NotAttached`.
    StartSandbox,
    /// Remove the sandbox, which is no longer used.
    EndSandbox,
    /// Say that the sandbox ends and its session can wake, if it can.
    Sleeps {
        reason: String,
    },
    /// Take a snapshot of the variables; answered by `SnapshotEnded`. `urgent`: the sandbox ends after it.
    Save {
        number: u64,
        urgent: bool,
    },
    /// Stop taking the snapshot with this number.
    StopSaving {
        number: u64,
    },
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
    Kill(CellNumber),
    Thaw,
    Append(EventBody),
    /// The cell has ended without having run.
    Unrun(CellStart),
    /// The cell has ended with its sandbox.
    Lost(CellStart, Option<EndedBy>),
    Refuse(W, Problem),
}

/// Whether a replay of earlier cells is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplayPhase {
    #[default]
    None,
    /// The replay reads which cells it has to run.
    Prepared,
    Running,
    /// The cells after a snapshot run again in a new sandbox; all others wait.
    Waking,
}

/// The replays and wakings of a session so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replays {
    /// The number of the newest.
    pub newest: u64,
    /// Whether that is a replay that goes on.
    pub is_running: bool,
}

/// When a sandbox is removed: after a time without use, or at an age; and when its variables are saved.
#[derive(Clone, Copy, Debug)]
pub struct Expiry {
    pub idle: Duration,
    pub max_age: Duration,
    /// How long the variables rest until they are saved; none if the session is not saved by itself.
    pub at_rest: Option<Duration>,
    /// Whether it is saved before somebody puts it to sleep.
    pub saves: bool,
}

/// The unfinished work of a session that existed before.
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Unfinished {
    pub cells: CellNumber,
    /// The queued cells in the order of their arrival.
    pub queued: Vec<CellStart>,
    pub running: Vec<CellStart>,
    pub note: Option<String>,
    /// Why a snapshot could not be loaded, if no result has told it.
    pub not_loaded: Option<String>,
    /// Whether there can be variables of earlier cells, or of what the session began with.
    pub has_variables: bool,
    /// How long the session has been idle.
    pub idle: Duration,
    pub frozen: bool,
    pub replays: Replays,
    /// Whether cells after a snapshot run again.
    pub waking: bool,
    /// Whether the variables have changed since the newest snapshot.
    pub unsaved: bool,
    /// Whether a sandbox may exist.
    pub sandbox: bool,
    /// Whether the sandbox may not have received the last reset.
    pub reset: bool,
}

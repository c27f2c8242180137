//! The kinds of events and what each carries. A new kind is added here, gets its sentence in `sentence.rs`,
//! its line in `about.rs` if it is about a cell, an ask or the whole session, and its arm in `session/restore/fold.rs`;
//! then `make schemas`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::protocol::ask::{Approval, AskEnd, AskNumber, AskSpec, Decision, PlanVersion};
use crate::protocol::chat::{ChatReply, ModelFailure, Usage};
use crate::protocol::command::CommandSpec;
use crate::protocol::frames::{StateAfter, ToolFailure};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::packages::{InstallEnd, PackageSet};
use crate::protocol::preload::Preloaded;
use crate::protocol::principal::Principal;
use crate::protocol::receipt::{Backend, ImageFact, Receipt};
use crate::protocol::result::{ExecutionResult, Mode, Stream};
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::{MissingVariable, ReopenedFile, SnapshotRecord};
use crate::protocol::text::truncate;
use crate::protocol::tool::LentAnswer;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    pub seq: Seq,
    /// RFC 3339, for display only.
    pub at: String,
    #[serde(flatten)]
    pub body: EventBody,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    /// The session is made: the first event of each.
    SessionCreated { name: String },
    /// A sandbox is being made for the session.
    SandboxStarting { backend: Backend, image: String },
    /// The image is not there and is being fetched.
    ImagePulling { status: String },
    /// The sandbox runs, and was found to be as isolated as it has to be.
    SandboxReady {
        backend: Backend,
        image: ImageFact,
        python: String,
        isolation: String,
        /// All facts that were read back from the sandbox.
        receipt: Box<Receipt>,
        /// The modules that were imported when the sandbox started, if any were asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preloaded: Option<Preloaded>,
    },
    /// A restarted daemon found the sandbox alive, with its variables.
    SandboxAttached,
    /// The sandbox is gone, and with it all variables that no snapshot holds.
    SandboxGone { reason: String },
    /// The variables were saved to the disk, as they are after a cell.
    SnapshotTaken { snapshot: Box<SnapshotRecord> },
    /// The variables could not be saved; they are saved later, if they can.
    SnapshotFailed { reason: String },
    /// A snapshot was removed because somebody asked for it.
    SnapshotRemoved { snapshot: String },
    /// The session gives its sandbox up until it is needed again, and will wake from this snapshot; `sandbox_gone` follows.
    Slept {
        reason: String,
        /// None if there is none: then the cells that made the variables run again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<String>,
    },
    /// A new sandbox has the variables of a snapshot, or makes those of before anew, because none was taken yet.
    Woken {
        /// None if there was none: then `replays` are all cells that made the variables.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<String>,
        /// The cell after which the snapshot was taken; 0 for the start.
        cell: CellNumber,
        /// Variables that could not be saved or loaded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<MissingVariable>,
        /// Files that were open and are open again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reopened: Vec<ReopenedFile>,
        /// Later cells, which run again now, with the recorded answers of their tools.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        replays: Vec<CellNumber>,
        /// Later cells that do not run again: they were interrupted, are scratch or background cells, cannot be repeated, or
        /// sandboxes ended again and again while they ran.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<CellNumber>,
    },
    /// A snapshot could not be loaded, so that a new sandbox has none of the variables.
    WakeFailed { snapshot: String, reason: String },
    /// The session begins with what another one had: variables, or cells that are run again, or files alone.
    Based {
        on: BaseSource,
        /// The variables; none if the session begins without any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<Box<SnapshotRecord>>,
        /// The rules of all code that comes from there; they hold here, too, until a reset.
        bound: Box<BoundRules>,
    },
    /// Packages are being installed: which, then how far it is, or why it has ended without any.
    PackagesInstalling {
        status: String,
        /// Set for the last of these events, if no packages were installed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<InstallEnd>,
    },
    /// Packages are installed; the set is all that the session has beside its image.
    PackagesInstalled {
        set: Box<PackageSet>,
        /// Whether nothing had to be downloaded.
        cached: bool,
        /// Whether other versions gave way, so that the session is to be reset.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resets: bool,
    },
    /// The packages of the session could not be put into a new sandbox.
    PackagesMissing { reason: String },
    /// A cell or a command was accepted; it runs when its turn comes.
    CellQueued {
        cell: CellNumber,
        mode: Mode,
        /// The code; for a command, what a person would type.
        code: String,
        /// What to run, for a command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<Box<CommandSpec>>,
        /// The code has to be one expression.
        #[serde(default)]
        expression: bool,
        timeout_s: f64,
        /// The cell that this cell replays: tools are not called, their recorded answers are given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replays: Option<CellNumber>,
        /// The ask that queued the cell; none if a client did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<CellOrigin>,
        /// The ask whose rules bind a cell without `origin`: the cell reads a variable for it, or replays a cell of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bound_by: Option<AskNumber>,
        /// For a command: how many others have to end before it runs, because only so many run at once.
        #[serde(default, skip_serializing_if = "is_zero")]
        commands_ahead: usize,
    },
    /// The cell or the command begins to run.
    CellStarted {
        cell: CellNumber,
        /// Whether it is a command.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        command: bool,
        /// The counters when the cell started; the cell caused every later increase.
        #[serde(default)]
        before: Counters,
    },
    /// Output; without a cell if it was written while no cell ran.
    Output {
        cell: Option<CellNumber>,
        stream: Stream,
        /// With U+FFFD in place of what is no UTF-8.
        text: String,
        /// The bytes themselves, if they are no UTF-8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// From here on output of this cell or command is counted, not kept.
    OutputCut { cell: CellNumber },
    /// The cell shows something: a figure, a table.
    Display { cell: CellNumber, mime: Map<String, Value> },
    /// Code calls a tool.
    ToolCalled {
        cell: Option<CellNumber>,
        call: u64,
        name: String,
        /// Empty if the call was refused: the arguments of refused calls are not kept.
        arguments: Map<String, Value>,
        /// Bytes of the arguments of a refused call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused_bytes: Option<u64>,
        /// Set if the call goes to a client that lends the tool, without a person's permission: the client may answer it to
        /// the next daemon, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lent: Option<LentAnswer>,
        /// The tool is not there yet, because its client has not come back after a restart of the daemon. The call is
        /// made later, and `tool_begun` follows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        held: bool,
    },
    /// The call is being made: a person has allowed it, or its client has come back. Before this event the call has had no
    /// effect.
    ToolBegun {
        cell: Option<CellNumber>,
        call: u64,
        /// As in `tool_called`, for a call whose client has come back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lent: Option<LentAnswer>,
    },
    /// The call of a tool has an answer.
    ToolAnswered { call: u64, outcome: ToolOutcome },
    /// Somebody interrupts the cell or the command.
    Interrupting {
        cell: CellNumber,
        /// Whether it is a command.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        command: bool,
    },
    /// The cell's process ended without an answer; the outcome follows with `cell_finished`.
    CellDied {
        cell: CellNumber,
        exit_code: i32,
        after: StateAfter,
        /// The daemon had told the kernel to end the process.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        killed: bool,
        /// It ended on account of another cell, or of an undo.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        rolled_back: bool,
    },
    /// The cell or the command has ended: the last event of it.
    CellFinished { result: Box<ExecutionResult> },
    /// The process that held the variables died outside of any cell.
    StateLost {
        reason: String,
        /// The variables are as after this cell again (0: as at the start); none if all are gone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restored_to: Option<CellNumber>,
        /// Which threads, tasks and processes were lost with the process, in a sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gone: Option<String>,
    },
    /// The variables are as after this cell again; later cells are undone.
    Undone { state_of: CellNumber },
    /// Somebody wants all variables forgotten.
    Reset,
    /// The kernel has done a reset: nothing is left of the cells up to this one, and their rules end.
    ResetDone { cells: CellNumber },
    /// These cells run again, in this order, in a fresh worker, to recreate the variables. None are named if the cells of an
    /// archive run: they are not this session's.
    ReplayStarted { cells: Vec<CellNumber> },
    /// All cells of the replay have run. Without this event, the replay can be repeated.
    ReplayFinished,
    /// All processes of the sandbox are stopped, and the clocks of its cells with them.
    Frozen,
    /// The processes of the sandbox go on.
    Thawed,
    /// The session is removed: the last event of each.
    SessionRemoved,
    /// An administrator did something with the session; who, and what request it was.
    AdminActed { admin: Principal, act: String },

    /// A model begins to work on a request.
    AskStarted { ask: AskNumber, spec: Box<AskSpec> },
    /// Request number `step` goes to the model.
    ModelAsked { ask: AskNumber, step: u32 },
    /// Text of the model while it streams. The whole reply follows with `model_replied`.
    ModelText {
        ask: AskNumber,
        step: u32,
        text: String,
        /// Whether the model thinks, and does not speak yet.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_reasoning: bool,
    },
    /// The reply of the model to request number `step` is complete.
    ModelReplied { ask: AskNumber, step: u32, reply: Box<ChatReply> },
    /// The request failed; it is sent again, or the ask ends.
    ModelFailed { ask: AskNumber, step: u32, failure: ModelFailure, retry_in_s: Option<f64> },
    /// A request brought no reply, because it broke off or was cancelled; `tokens` is its estimated cost.
    ModelSpent { ask: AskNumber, step: u32, tokens: u64 },
    /// A nested ask, made by code of this ask, used tokens and steps. They count for this ask, too.
    AskSpentWithin {
        ask: AskNumber,
        usage: Usage,
        #[serde(default)]
        steps: u32,
    },
    /// The approvals that wait for a person in nested asks; empty when none waits any more.
    AskWaitsWithin { ask: AskNumber, approvals: Vec<Approval> },
    /// A tool call that the model made directly, not through a cell.
    AskToolCalled { ask: AskNumber, id: String, name: String, arguments: Map<String, Value> },
    /// The call that the model made has an answer.
    AskToolAnswered { ask: AskNumber, id: String, outcome: ToolOutcome },
    /// Something for people to know: what was cut from the history, repaired or fed back.
    AskNoted { ask: AskNumber, note: String },
    /// Something waits for a person to decide.
    ApprovalWanted { approval: Box<Approval> },
    /// What waited for a person is decided.
    ApprovalDecided {
        id: String,
        decision: Decision,
        /// User id; none if no person decided: the time for it is over, or the call does not wait any more.
        by: Option<Principal>,
    },
    /// The plan tree has a new version.
    PlanChanged { ask: Option<AskNumber>, plan: Box<PlanVersion> },
    /// The ask has ended: the last event of it.
    AskFinished { ask: AskNumber, end: Box<AskEnd> },
}

/// What the host's kernel has counted in a sandbox so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Processes killed for memory.
    pub oom_kills: u64,
    /// Forks refused because of the limit on processes.
    pub forks_refused: u64,
}

/// Which tool call of which ask made a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CellOrigin {
    pub ask: AskNumber,
    pub id: String,
    /// What the model says that the code is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
}

/// How a tool call ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    Value(Value),
    Failure(ToolFailure),
}

/// Characters that are kept of a text whose rest is dropped.
const LEAN_CHARS: usize = 200;

fn cut(text: &mut String) {
    if truncate(text, LEAN_CHARS) > 0 {
        text.push('…');
    }
}

impl ToolOutcome {
    fn lean(self) -> Self {
        let (code, mut message) = match self {
            Self::Value(_) => ("not_kept".to_owned(), "there was no room to keep the answer".to_owned()),
            Self::Failure(ToolFailure { code, message }) => (code, message),
        };
        cut(&mut message);
        Self::Failure(ToolFailure { code, message })
    }
}

impl EventBody {
    /// The event without its large parts, for when there is no room for all of it. What a restarted daemon needs to
    /// continue is kept.
    #[must_use]
    pub fn lean(mut self) -> Self {
        match &mut self {
            Self::CellFinished { result } => result.make_lean(),
            Self::ModelText { text, .. } => text.clear(),
            Self::AskNoted { note, .. } => cut(note),
            Self::SandboxGone { reason }
            | Self::StateLost { reason, .. }
            | Self::SnapshotFailed { reason }
            | Self::WakeFailed { reason, .. } => cut(reason),
            Self::Woken { missing, reopened, .. } => (*missing, *reopened) = (Vec::new(), Vec::new()),
            Self::SnapshotTaken { snapshot } => {
                (snapshot.missing, snapshot.files) = (Vec::new(), Vec::new());
            }
            Self::ToolAnswered { outcome, .. } | Self::AskToolAnswered { outcome, .. } => {
                let empty = ToolOutcome::Value(Value::Null);
                *outcome = std::mem::replace(outcome, empty).lean();
            }
            _ => {}
        }
        self
    }

    /// The value of the `type` tag; also the `event:` line of the stream.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SessionCreated { .. } => "session_created",
            Self::SandboxStarting { .. } => "sandbox_starting",
            Self::ImagePulling { .. } => "image_pulling",
            Self::SandboxReady { .. } => "sandbox_ready",
            Self::SandboxAttached => "sandbox_attached",
            Self::SandboxGone { .. } => "sandbox_gone",
            Self::SnapshotTaken { .. } => "snapshot_taken",
            Self::SnapshotFailed { .. } => "snapshot_failed",
            Self::SnapshotRemoved { .. } => "snapshot_removed",
            Self::Slept { .. } => "slept",
            Self::Woken { .. } => "woken",
            Self::WakeFailed { .. } => "wake_failed",
            Self::Based { .. } => "based",
            Self::PackagesInstalling { .. } => "packages_installing",
            Self::PackagesInstalled { .. } => "packages_installed",
            Self::PackagesMissing { .. } => "packages_missing",
            Self::CellQueued { .. } => "cell_queued",
            Self::CellStarted { .. } => "cell_started",
            Self::Output { .. } => "output",
            Self::OutputCut { .. } => "output_cut",
            Self::Display { .. } => "display",
            Self::ToolCalled { .. } => "tool_called",
            Self::ToolBegun { .. } => "tool_begun",
            Self::ToolAnswered { .. } => "tool_answered",
            Self::Interrupting { .. } => "interrupting",
            Self::CellDied { .. } => "cell_died",
            Self::CellFinished { .. } => "cell_finished",
            Self::StateLost { .. } => "state_lost",
            Self::Undone { .. } => "undone",
            Self::Reset => "reset",
            Self::ResetDone { .. } => "reset_done",
            Self::ReplayStarted { .. } => "replay_started",
            Self::ReplayFinished => "replay_finished",
            Self::Frozen => "frozen",
            Self::Thawed => "thawed",
            Self::SessionRemoved => "session_removed",
            Self::AdminActed { .. } => "admin_acted",
            Self::AskStarted { .. } => "ask_started",
            Self::ModelAsked { .. } => "model_asked",
            Self::ModelText { .. } => "model_text",
            Self::ModelReplied { .. } => "model_replied",
            Self::ModelFailed { .. } => "model_failed",
            Self::ModelSpent { .. } => "model_spent",
            Self::AskSpentWithin { .. } => "ask_spent_within",
            Self::AskWaitsWithin { .. } => "ask_waits_within",
            Self::AskToolCalled { .. } => "ask_tool_called",
            Self::AskToolAnswered { .. } => "ask_tool_answered",
            Self::AskNoted { .. } => "ask_noted",
            Self::ApprovalWanted { .. } => "approval_wanted",
            Self::ApprovalDecided { .. } => "approval_decided",
            Self::PlanChanged { .. } => "plan_changed",
            Self::AskFinished { .. } => "ask_finished",
        }
    }
}

//! Events of a session: one ordered sequence, 1, 2, 3, … that clients can resume anywhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::frames::ToolFailure;
use super::ids::{CellNumber, Seq};
use super::receipt::{Backend, ImageFact, Receipt};
use super::result::{ExecutionResult, Mode, Stream};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    pub seq: Seq,
    /// RFC 3339, for display only.
    pub at: String,
    #[serde(flatten)]
    pub body: EventBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    SessionCreated {
        name: String,
    },
    SandboxStarting {
        backend: Backend,
        image: String,
    },
    /// The image is not there and is being fetched.
    ImagePulling {
        status: String,
    },
    SandboxReady {
        backend: Backend,
        image: ImageFact,
        python: String,
        isolation: String,
        /// All that was read back from it.
        receipt: Box<Receipt>,
    },
    /// A daemon that was started anew found the sandbox alive, with its variables.
    SandboxAttached,
    /// The sandbox is gone and the variables with it.
    SandboxGone {
        reason: String,
    },
    CellQueued {
        cell: CellNumber,
        mode: Mode,
        code: String,
        /// It has to be one expression.
        #[serde(default)]
        expression: bool,
        timeout_s: f64,
    },
    CellStarted {
        cell: CellNumber,
    },
    /// Output; without a cell if it was written while none ran.
    Output {
        cell: Option<CellNumber>,
        stream: Stream,
        text: String,
    },
    /// From here on output of this cell is counted, not kept.
    OutputCut {
        cell: CellNumber,
    },
    Display {
        cell: CellNumber,
        mime: Map<String, Value>,
    },
    ToolCalled {
        cell: Option<CellNumber>,
        call: u64,
        name: String,
        arguments: Map<String, Value>,
    },
    ToolAnswered {
        call: u64,
        outcome: ToolOutcome,
    },
    Interrupting {
        cell: CellNumber,
    },
    CellFinished {
        result: Box<ExecutionResult>,
    },
    /// The process that held the variables died outside of any cell.
    StateLost {
        reason: String,
    },
    /// The variables are as after this cell again; later cells are undone.
    Undone {
        state_of: CellNumber,
    },
    Reset,
    SessionRemoved,
}

/// How a tool call ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    Value(Value),
    Failure(ToolFailure),
}

impl EventBody {
    /// The value of the `type` tag; also the `event:` line of the stream.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::SessionCreated { .. } => "session_created",
            Self::SandboxStarting { .. } => "sandbox_starting",
            Self::ImagePulling { .. } => "image_pulling",
            Self::SandboxReady { .. } => "sandbox_ready",
            Self::SandboxAttached => "sandbox_attached",
            Self::SandboxGone { .. } => "sandbox_gone",
            Self::CellQueued { .. } => "cell_queued",
            Self::CellStarted { .. } => "cell_started",
            Self::Output { .. } => "output",
            Self::OutputCut { .. } => "output_cut",
            Self::Display { .. } => "display",
            Self::ToolCalled { .. } => "tool_called",
            Self::ToolAnswered { .. } => "tool_answered",
            Self::Interrupting { .. } => "interrupting",
            Self::CellFinished { .. } => "cell_finished",
            Self::StateLost { .. } => "state_lost",
            Self::Undone { .. } => "undone",
            Self::Reset => "reset",
            Self::SessionRemoved => "session_removed",
        }
    }

    /// The cell it is about, for streams of one cell.
    #[must_use]
    pub fn cell(&self) -> Option<CellNumber> {
        match self {
            Self::CellQueued { cell, .. }
            | Self::CellStarted { cell }
            | Self::OutputCut { cell }
            | Self::Display { cell, .. }
            | Self::Interrupting { cell } => Some(*cell),
            Self::Output { cell, .. } | Self::ToolCalled { cell, .. } => *cell,
            Self::CellFinished { result } => Some(result.cell),
            Self::SessionCreated { .. }
            | Self::SandboxStarting { .. }
            | Self::ImagePulling { .. }
            | Self::SandboxReady { .. }
            | Self::SandboxAttached
            | Self::SandboxGone { .. }
            | Self::ToolAnswered { .. }
            | Self::StateLost { .. }
            | Self::Undone { .. }
            | Self::Reset
            | Self::SessionRemoved => None,
        }
    }
}

//! The answer to a cell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::CellNumber;
use super::text::truncate;
use super::word_enums::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The cell ran to its end.
    Success,
    /// The code raised; the state is as at the exception.
    Failure,
    /// The deadline passed and the runner was killed.
    Timeout,
    /// The process that ran the cell ended without an answer.
    Crashed,
    /// A user interrupted the cell, or its session was reset, removed or taken back.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Ran to the end.
    Ok,
    /// `sys.exit(0)` or a bare `sys.exit()`.
    Exit0,
    /// An exception reached the top.
    Exception,
    /// The code does not parse; nothing of it ran.
    Syntax,
    /// The restricted policy does not allow the code; nothing of it ran.
    Policy,
    /// `sys.exit(n)` with n other than 0; for a command, its exit code is not 0.
    Exit,
    /// The cell's own time ran out.
    CellDeadline,
    /// A signal ended the process.
    Signal,
    /// `os._exit` or similar ended the process.
    ExitCall,
    /// The cell took too much memory: the kernel's OOM killer ended it, as counted by the cgroup, or the guardian did.
    OutOfMemory,
    /// The limit on processes was hit.
    Pids,
    /// No descriptors were left for the process of the cell: earlier cells hold as many open files as they may.
    Descriptors,
    /// A line for a shell was to run, and the image has none.
    NoShell,
    /// The sandbox as a whole is gone.
    SandboxLost,
    /// A guard of the host ended the cell.
    PolicyViolation,
    /// The cell printed, showed or handed to tools more than its owner may have stored.
    JournalQuota,
    /// A user interrupted the cell.
    ByUser,
    /// The session was reset or removed while the cell ran or waited.
    ByCancel,
    /// The session went back to earlier variables, on account of another cell or of an undo, and the process of the cell
    /// ended with the later ones.
    RolledBack,
}

words! {
    /// Where a cell runs.
    #[derive(Default)]
    pub enum Mode {
        /// The notebook line: state is kept.
        #[default]
        Main = "main",
        /// A forked copy whose changes are dropped.
        Fork = "fork",
        /// On the notebook line, but with names of its own, which are dropped at its end. The objects are the session's.
        Scratch = "scratch",
        /// A thread of the notebook line, which goes on beside the cells after it and shares their variables.
        Background = "background",
        /// A program beside the cells, which has nothing to do with the variables.
        Command = "command",
    }
}

impl Mode {
    /// Whether it is one of the cells of the notebook line that run one after the other.
    #[must_use]
    pub fn is_in_line(self) -> bool {
        matches!(self, Self::Main | Self::Scratch)
    }

    /// Whether its code has the variables of the session, and can change them.
    #[must_use]
    pub fn has_variables(self) -> bool {
        self.is_in_line() || self == Self::Background
    }
}

words! {
    #[derive(Hash)]
    pub enum Stream {
        Stdout = "stdout",
        Stderr = "stderr",
    }
}

/// A run of output of one stream, in the order in which it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputSegment {
    pub stream: Stream,
    pub text: String,
}

/// The value of a last expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValueView {
    pub repr: String,
    #[serde(rename = "type")]
    pub type_name: String,
    /// Other forms of the value by MIME type: text as a string, binary as base64, JSON as itself.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub mime: Map<String, Value>,
}

/// The form of a picture that the kernel adds where the picture is too large for models: a PNG or a JPEG in base64.
pub const SMALL_PICTURE: &str = "application/vnd.belljar.small-picture";

/// Something the code showed: a figure, a table, an object given to `display()`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Display {
    /// By MIME type: text as a string, binary as base64, JSON as itself.
    pub mime: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExceptionView {
    #[serde(rename = "type")]
    pub type_name: String,
    pub value: String,
    pub repr: String,
    /// Only frames of the user's code, with the source lines of earlier cells.
    pub traceback: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    New,
    Modified,
    Removed,
}

/// Where code finds the workspace.
pub const WORKSPACE: &str = "/workspace";

/// A file of the workspace that is new or other than before the cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// Relative to the workspace.
    pub path: String,
    pub bytes: u64,
    pub change: Change,
}

impl Artifact {
    /// The path by which code, people and models find the file, whatever their working directory is.
    #[must_use]
    pub fn full_path(&self) -> String {
        format!("{WORKSPACE}/{}", self.path)
    }
}

/// What did not fit. All zero when nothing was cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Truncated {
    /// Bytes of each stream that are not in `stdout` and `stderr` of the result.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Bytes that are not even in the spill file; the rest can be read with `logs`.
    pub dropped_bytes: u64,
    /// Displays, and forms of values, that were too many or too large.
    pub displays: u64,
    /// The scan for artifacts stopped at its limit.
    pub artifacts: bool,
}

/// What is left of the session's Python state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateKind {
    /// Variables are as the cell left them.
    Kept,
    /// The cell's changes to variables are gone, everything before it is there.
    Restored,
    /// All variables are gone; files in the workspace are not.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateReport {
    pub kind: StateKind,
    /// The last cell whose changes are still there, if the state went back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_to: Option<CellNumber>,
    /// The cell ran without a checkpoint to go back to, and the session is to have one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unprotected: bool,
    /// A `fork` cell saw the state before this cell, which was running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_before: Option<CellNumber>,
    /// Names that the lost cell may have assigned; they are as before it, or do not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maybe_assigned: Vec<String>,
    /// Tool calls of the cell that had completed; their effects outside remain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completed_tool_calls: Vec<String>,
    /// A sentence for people and models, where there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionResult {
    pub cell: CellNumber,
    pub mode: Mode,
    pub status: Status,
    pub reason: Reason,
    /// Exit code of the process: 0 also if the code raised, n for `sys.exit(n)` and `os._exit(n)`,
    /// negative for a signal; null if the sandbox was lost.
    pub exit_code: Option<i32>,
    pub code: String,
    pub timeout_s: f64,
    pub stdout: String,
    pub stderr: String,
    /// Both streams in the order in which they were written.
    pub output: Vec<OutputSegment>,
    pub result: Option<ValueView>,
    pub displays: Vec<Display>,
    pub artifacts: Vec<Artifact>,
    pub exception: Option<ExceptionView>,
    /// Run time, without waiting in the queue.
    pub duration_ms: f64,
    pub truncated: Truncated,
    pub state: StateReport,
}

/// Characters that `make_lean` keeps of each text.
const LEAN_CHARS: usize = 1_000;

impl ExecutionResult {
    /// Drops what is only to look at, and duplicates. The report of it to a model stays the same, and it is still known
    /// what forms there were.
    pub fn leave_out_displays(&mut self) {
        let value = self.result.iter_mut().map(|value| &mut value.mime);
        for forms in self.displays.iter_mut().map(|display| &mut display.mime).chain(value) {
            forms.values_mut().for_each(|content| *content = Value::Null);
        }
        if !self.output.is_empty() {
            self.stdout.clear();
            self.stderr.clear();
        }
    }

    /// Drops what is large and counts it. How the cell ended and what is left of the variables stays.
    pub fn make_lean(&mut self) {
        truncate(&mut self.code, LEAN_CHARS);
        let truncated = &mut self.truncated;
        truncated.stdout_bytes =
            truncated.stdout_bytes.saturating_add(truncate(&mut self.stdout, LEAN_CHARS));
        truncated.stderr_bytes =
            truncated.stderr_bytes.saturating_add(truncate(&mut self.stderr, LEAN_CHARS));
        truncated.displays = truncated.displays.saturating_add(self.displays.len() as u64);
        truncated.artifacts |= !self.artifacts.is_empty();
        self.output.clear();
        self.displays.clear();
        self.artifacts.clear();
        if let Some(value) = &mut self.result {
            truncate(&mut value.repr, LEAN_CHARS);
            truncate(&mut value.type_name, LEAN_CHARS);
        }
        if let Some(exception) = &mut self.exception {
            for text in [
                &mut exception.type_name,
                &mut exception.value,
                &mut exception.repr,
                &mut exception.traceback,
            ] {
                truncate(text, LEAN_CHARS);
            }
        }
        if let Some(note) = &mut self.state.note {
            truncate(note, LEAN_CHARS);
        }
        self.state.maybe_assigned.clear();
        self.state.completed_tool_calls.clear();
    }
}

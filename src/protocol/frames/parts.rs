//! Types that frames are made of.

use crate::protocol::ids::CellNumber;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DoneStatus {
    Success,
    Failure,
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DoneReason {
    Ok,
    Exit0,
    Exception,
    Syntax,
    /// The restricted policy does not allow the code; nothing of it ran.
    Policy,
    Exit,
    ByUser,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusedCode {
    /// The main line runs a cell.
    Busy,
    /// The sandbox cannot start another process.
    NoProcess,
    /// No descriptors are left in the sandbox for another process.
    NoDescriptors,
    /// The process that was to list the variables ended, or took too long.
    NotListed,
    /// The worker has ended, and the next one is not there yet.
    NoWorker,
    /// A line for a shell was given, and the image has none.
    NoShell,
    /// `undo` cannot go back that far.
    OutOfReach,
    /// The frame is not understood.
    Malformed,
}

/// Bounds the kernel keeps to, so that the daemon need not drop what it sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelLimits {
    /// Output of one cell that is forwarded; beyond it only the last `output_tail_bytes` are.
    pub output_bytes: u64,
    pub output_tail_bytes: u64,
    pub repr_chars: u64,
    pub preview_chars: u64,
    pub variables: u64,
    pub exception_chars: u64,
    pub traceback_chars: u64,
    pub displays: u64,
    pub display_bytes: u64,
    pub displays_bytes: u64,
    pub tool_calls: u64,
    /// Names that are listed for one cell.
    pub names: u64,
    /// Checkpoints in the ring; 0 switches them off.
    pub checkpoints: u64,
    /// Checkpoints are made when the session rests, and not after every cell of a quick succession.
    pub checkpoints_at_rest: bool,
    /// Memory that all checkpoints together may hold on top of the session's own.
    pub checkpoint_bytes: u64,
    /// The session's own memory.
    pub memory_bytes: u64,
    /// Bytes of frames that may wait for an `ack` before the kernel stops reading output.
    pub unacknowledged_bytes: u64,
    /// Seconds the guardian goes on without a daemon before it ends the sandbox.
    pub orphan_s: u64,
    /// A cell begins in the folder that the cell before it left, and not in the workspace.
    pub keep_cwd: bool,
}

/// What is left of the main line's state after a runner died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StateAfter {
    /// The main line is not affected.
    Kept,
    /// As after this cell; 0 for the state at the start.
    Restored(CellNumber),
    /// Only the seed is left.
    Lost,
}

/// Things of user code that a checkpoint cannot hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LiveResources {
    /// Threads beside the main one.
    pub threads: u32,
    /// Pending asyncio tasks.
    pub tasks: u32,
    /// Child processes.
    pub children: u32,
}

/// A tool as the code in a cell sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments: an object.
    pub parameters: Value,
    /// JSON Schema of the value that a call returns. Without one it returns a marker, a string that is
    /// replaced by the tool's text in the cell's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The kernel implements the tool and runs it in the worker, without a call to the daemon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
}

/// The code of a tool failure whose message is an exception of Python, in full.
pub const PYTHON_ERROR: &str = "python_error";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolFailure {
    /// Stable, for programs: `unknown_tool`, `bad_arguments`, `failed`, `python_error`, `cancelled`, `busy`,
    /// `timed_out`, `too_large`, `client_gone`, `unavailable`.
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    pub name: String,
    #[serde(rename = "type")]
    pub type_name: String,
    /// The start of its `repr`, or a summary where that would be costly.
    pub preview: String,
    /// Size by `sys.getsizeof`, or `nbytes` of an array.
    pub bytes: Option<u64>,
    /// `(3, 4)` for arrays and frames, `[7]` for things with a length.
    pub shape: Option<String>,
    /// Of what it holds, if that was asked for and can be had: how it was made, a colon, and the digest. Only digests
    /// that were made in the same way can be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ComputeOutcome {
    /// `str()` of the value.
    Value(String),
    /// `PythonError: <type>: <message>`.
    Error(String),
}

/// What the kernel found out about its own isolation before any code ran. `true` means contained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "a list of yes-or-no findings")]
pub struct Probe {
    /// Only `lo` is there.
    pub no_network: bool,
    /// An `AF_ALG` socket is refused.
    pub no_kernel_crypto: bool,
    /// A file cannot be made in `/`.
    pub read_only_root: bool,
    /// `prlimit` on another process is refused by the filter.
    pub no_foreign_prlimit: bool,
    /// `unshare` of a user namespace is refused.
    pub no_new_namespaces: bool,
    /// The guardian is pid 1 of its namespace.
    pub is_init: bool,
    /// The guardian's memory cannot be read by processes of its own uid.
    pub not_dumpable: bool,
}

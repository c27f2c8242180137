//! Frames of the bridge between the daemon (websocket client) and the kernel (websocket server).
//!
//! Text frames are JSON of [`HostFrame`] or [`KernelFrame`], at most [`limits::FRAME_BYTES`].
//! Binary frames go from kernel to daemon only. Most carry output: one byte for the stream (1 stdout,
//! 2 stderr), eight for the cell (big endian, 0 while no cell runs), then at most
//! [`limits::OUTPUT_FRAME_BYTES`] of data. The others, which begin with a 3, carry a message of a runner, a process
//! in which user code runs: four bytes for the length of the guardian's part (big endian), the guardian's part and
//! the runner's part, each a JSON object. Merged they are a [`KernelFrame`]; where both have a field, the guardian's
//! value is used. So user code can report how its own cell ended, show something, call a tool and answer what its
//! process was asked, but nothing else, no matter what it writes to its channel.
//!
//! [`limits::FRAME_BYTES`]: super::limits::FRAME_BYTES
//! [`limits::OUTPUT_FRAME_BYTES`]: super::limits::OUTPUT_FRAME_BYTES

mod parts;
mod wrapped;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::ids::CellNumber;
use super::limits::{OUTPUT_FRAME_BYTES, OUTPUT_HEADER_BYTES};
use super::preload::{Family, NotImported};
use super::result::{ExceptionView, Mode, Stream, ValueView};
use super::snapshot::RestoreReport;

pub use parts::{
    ComputeOutcome, DoneReason, DoneStatus, KernelLimits, LiveResources, PYTHON_ERROR, Probe, RefusedCode,
    StateAfter, ToolFailure, ToolSpec, Variable,
};
#[cfg(test)]
pub(crate) use wrapped::RUNNER_FRAME_KIND;

/// Daemon to kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum HostFrame {
    /// First frame after the upgrade, also after a reconnect.
    Hello {
        /// Protocol versions the daemon speaks; the kernel picks one or hangs up.
        versions: Vec<u32>,
        sandbox: String,
        limits: KernelLimits,
        /// Frames of the kernel that the daemon has dealt with for good, text and binary, counted
        /// from the start of the sandbox. The kernel sends the later ones again.
        received: u64,
    },
    /// The daemon has dealt for good with that many frames: the kernel may forget them.
    Ack {
        received: u64,
    },
    /// The tools, and the initial values of the namespace. A fresh worker gets all of them. A worker that was
    /// configured before may have changed the values since, so it gets only the new ones, between cells.
    Configure {
        seed: Map<String, Value>,
        tools: Vec<ToolSpec>,
        /// Names of the seed that are new.
        #[serde(default)]
        given: Vec<String>,
    },
    /// Import modules into the namespace, now and in every later worker. The first checkpoint is made after it.
    Preload {
        request: u64,
        /// Import statements.
        imports: Vec<String>,
        families: Vec<Family>,
        /// False: the modules are imported once, in this worker, and no name is bound.
        bind: bool,
    },
    /// Run code. In `main` mode only while no other `main` cell runs: the daemon holds the queue.
    Cell {
        cell: CellNumber,
        code: String,
        mode: Mode,
        /// The code has to be one expression.
        expression: bool,
        /// The code runs only if it passes the check of the restricted policy.
        #[serde(default)]
        restricted: bool,
        /// Why the code can have no packages installed, if it cannot: hints say it below an import that fails.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        no_packages: Option<String>,
    },
    /// Start a program beside the cells. Its output and its end are told as those of the cell of this number: every
    /// end is a `cell_lost`.
    Command {
        cell: CellNumber,
        /// The program and its arguments; if empty, a shell.
        argv: Vec<String>,
        /// What the shell is to run.
        line: Option<String>,
        cwd: Option<String>,
        env: BTreeMap<String, String>,
        /// Base64.
        stdin: String,
        /// The program has a terminal, of this size.
        tty: bool,
        rows: u16,
        columns: u16,
    },
    /// What a person typed into the terminal of a command, as base64; ignored if it has ended.
    Typed {
        cell: CellNumber,
        data: String,
    },
    /// The terminal of a command has this size now.
    Resize {
        cell: CellNumber,
        rows: u16,
        columns: u16,
    },
    /// SIGINT to the runner of that cell; ignored if it has ended.
    Interrupt {
        cell: CellNumber,
    },
    /// SIGTERM, a moment, SIGKILL to the runner of that cell; ignored if it has ended.
    Kill {
        cell: CellNumber,
        grace_ms: u64,
    },
    /// An expression that sees only the given values, checked against an allow-list and evaluated
    /// in a process of its own.
    Compute {
        request: u64,
        expression: String,
        values: Map<String, Value>,
        timeout_ms: u64,
        memory_bytes: u64,
    },
    /// List the variables of the main line.
    Variables {
        request: u64,
        /// List names that start with `_`, too.
        private: bool,
        /// List modules, tools and preloaded names, too.
        #[serde(default)]
        imports: bool,
        /// List the names alone of what this value has, instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<String>,
        /// With `of`: its keys and not its attributes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keys: bool,
        /// With `of`: only names that begin with this.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        begins: String,
        /// With digests of what they hold.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        digests: bool,
    },
    /// Start a fresh worker with only the seed and the preloaded modules; no `undo` goes back before it.
    Reset {
        request: u64,
    },
    /// Go back to the state before the last `cells` cells of the main line.
    Undo {
        request: u64,
        cells: u64,
    },
    /// Pack the variables of the newest state at rest, in a copy, and send them over the data socket.
    ///
    /// The copy is stopped while cells of the main line run or have just run, and ended before any checkpoint where memory is short.
    Snapshot {
        request: u64,
        /// What the copy shows at the data socket: [`TOKEN_DIGITS`](super::snapshot::TOKEN_DIGITS) hex digits.
        token: String,
        /// The data socket as the guest sees it.
        path: String,
        /// Only the state after this cell; without it the newest that is at rest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state_of: Option<CellNumber>,
        /// The copy goes on while cells run.
        urgent: bool,
        /// It does so in turns only, and is stopped for most of the time in which cells follow each other.
        takes_turns: bool,
        /// The most bytes that may be sent.
        bytes: u64,
    },
    /// Give the snapshot up; ignored if its copy has ended.
    EndSnapshot {
        request: u64,
    },
    /// Load a snapshot into the worker, which has run no cell. What it holds is then the state after `state_of`.
    Restore {
        request: u64,
        token: String,
        path: String,
        state_of: CellNumber,
        /// Names that keep the value that they have.
        keep: Vec<String>,
        /// What cannot be loaded is left out by name. Otherwise all is loaded, or nothing.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        partial: bool,
    },
    /// List the names that the code would assign at its top level.
    Names {
        request: u64,
        code: String,
    },
    ToolResult {
        call: u64,
        value: Value,
    },
    ToolFailed {
        call: u64,
        error: ToolFailure,
    },
    /// End the sandbox.
    Bye {},
}

/// Kernel to daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum KernelFrame {
    /// First frame after the upgrade, in answer to the daemon's.
    Hello {
        version: u32,
        python: String,
        probe: Probe,
        /// Cells whose runners still work, after a reconnect.
        running: Vec<CellNumber>,
        /// The newest cell of the main line whose changes the worker holds; 0 if it is fresh.
        state_of: CellNumber,
        /// The newest cell that the kernel was ever sent; 0 if none.
        last_cell: CellNumber,
        /// Frames up to this number were acknowledged and are not sent again. The number is higher than the
        /// daemon's own if some of those frames left no trace in its journal.
        resumes_after: u64,
    },
    /// A cell ended; its runner continues (`main`) or ended normally (`fork`).
    CellDone {
        cell: CellNumber,
        status: DoneStatus,
        reason: DoneReason,
        exit_code: i32,
        result: Option<ValueView>,
        exception: Option<ExceptionView>,
        duration_ms: f64,
        /// Displays, and forms of values, that were too many or too large.
        displays_dropped: u64,
        /// There was a checkpoint to go back to, had the cell died, or the session wants none.
        protected: bool,
        /// For a `fork` cell: it ran on the state before this cell, which was running.
        as_before: Option<CellNumber>,
        /// The runner says that the cell can have changed nothing but plain values of names.
        #[serde(default)]
        harmless: bool,
        /// What still runs in the worker and would be lost by going back to a checkpoint.
        live: LiveResources,
    },
    /// The runner of a cell ended without an answer.
    CellLost {
        cell: CellNumber,
        /// How the process ended: n for `_exit(n)`, negative for a signal.
        exit_code: i32,
        /// A `kill` frame ended the process.
        killed: bool,
        /// The guardian ended the process, because memory was used up and the system itself did not end one.
        #[serde(default)]
        out_of_memory: bool,
        /// The restored state is older than the state right before this cell.
        #[serde(default)]
        older: bool,
        /// The cell ended on account of something else: another cell of the same process, or an undo.
        #[serde(default)]
        rolled_back: bool,
        /// The state of the main line now. The next cell can be sent at once.
        after: StateAfter,
    },
    /// The worker died while no cell of the main line ran; another has taken its place.
    WorkerReplaced {
        exit_code: i32,
        after: StateAfter,
    },
    Display {
        cell: CellNumber,
        mime: Map<String, Value>,
    },
    /// Output of this cell that the kernel counted and dropped, because it was beyond
    /// `KernelLimits::output_bytes`. Followed by binary frames with the last bytes of it.
    OutputGap {
        cell: CellNumber,
        stdout_bytes: u64,
        stderr_bytes: u64,
    },
    ToolCall {
        call: u64,
        /// The cell that made the call; none if no cell ran.
        cell: Option<CellNumber>,
        name: String,
        arguments: Map<String, Value>,
        /// A program of the sandbox made the call, which can choose the cell that it seems to belong to.
        #[serde(default)]
        from_program: bool,
    },
    /// The program that made the call ended before it had an answer, or code in a cell does not wait for it any more.
    ToolAbandoned {
        call: u64,
    },
    Variables {
        request: u64,
        variables: Vec<Variable>,
        total: u64,
        /// The variables are as before this cell, which is running.
        as_before: Option<CellNumber>,
        /// The value whose names are listed, as the question has it. Earlier kernels do not know that question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<String>,
    },
    Computed {
        request: u64,
        outcome: ComputeOutcome,
    },
    ResetDone {
        request: u64,
    },
    /// Later workers send it again, for the same request.
    Preloaded {
        request: u64,
        /// Number of names that were bound.
        names: u64,
        /// Single imports that failed.
        failed: Vec<NotImported>,
        /// Modules of families that could not be imported.
        skipped: Vec<NotImported>,
    },
    /// `state_of` is the newest cell whose changes the worker now holds; 0 for the state at the start.
    Undone {
        request: u64,
        state_of: CellNumber,
    },
    Names {
        request: u64,
        names: Vec<String>,
    },
    /// The copy that packs a snapshot is there: `state_of` is the newest cell whose changes it holds.
    Snapshotting {
        request: u64,
        state_of: CellNumber,
    },
    /// That copy has ended: without a reason, if it did so by itself.
    SnapshotEnded {
        request: u64,
        reason: Option<String>,
    },
    /// The worker has loaded a snapshot, or says why it could not.
    Restored {
        request: u64,
        report: RestoreReport,
    },
    /// A frame of the daemon was not accepted.
    Refused {
        code: RefusedCode,
        message: String,
        request: Option<u64>,
        cell: Option<CellNumber>,
    },
}

/// A parsed binary frame with output.
#[derive(Debug, PartialEq, Eq)]
pub struct OutputFrame<'a> {
    pub stream: Stream,
    /// None while no cell runs.
    pub cell: Option<CellNumber>,
    pub data: &'a [u8],
}

impl<'a> OutputFrame<'a> {
    /// None if the frame is malformed.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let (header, data) = frame.split_at_checked(OUTPUT_HEADER_BYTES)?;
        if data.len() > OUTPUT_FRAME_BYTES {
            return None;
        }
        let stream = match header.first()? {
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            _ => return None,
        };
        let number = u64::from_be_bytes(header.get(1..)?.try_into().ok()?);
        Some(Self { stream, cell: (number != 0).then_some(number), data })
    }
}

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

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::ids::CellNumber;
use super::limits::{OUTPUT_FRAME_BYTES, OUTPUT_HEADER_BYTES};
use super::preload::{Family, NotImported};
use super::result::{ExceptionView, Mode, Stream, ValueView};

pub use parts::{
    ComputeOutcome, DoneReason, DoneStatus, KernelLimits, LiveResources, PYTHON_ERROR, Probe, RefusedCode,
    StateAfter, ToolFailure, ToolSpec, Variable,
};

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
        /// Displays that were too many or too large.
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
    /// The program that made the call ended before it had an answer.
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
    /// A frame of the daemon was not accepted.
    Refused {
        code: RefusedCode,
        message: String,
        request: Option<u64>,
        cell: Option<CellNumber>,
    },
}

impl KernelFrame {
    /// Reads a text frame, all of which the guardian itself wrote.
    ///
    /// # Errors
    /// The text is not a frame that the guardian makes without a runner.
    pub fn of_guardian(text: &str) -> Result<Self, String> {
        let frame: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if frame.may_come_from_runner() {
            return Err("what a runner says came as the guardian's word".into());
        }
        Ok(frame)
    }

    /// Reads a binary frame that is not output. If the runner's part is malformed, the result is None where the daemon
    /// waits for no answer, and an empty or failed answer where it does: only the runner's own cell or call suffers.
    ///
    /// # Errors
    /// The guardian's part of the frame is malformed.
    pub fn of_runner(frame: &[u8]) -> Result<Option<Self>, String> {
        let (own, content) = unwrapped(frame).ok_or_else(wrongly_wrapped)?;
        let own: Map<String, Value> = serde_json::from_slice(own).map_err(|error| error.to_string())?;
        let content = serde_json::from_slice(content).ok();
        match content.and_then(|content| Self::whole(own, content)) {
            Some(frame) => Ok(Some(frame)),
            None => Self::unread(frame),
        }
    }

    /// As `of_runner`, but the runner's part is treated as malformed.
    ///
    /// # Errors
    /// The guardian's part of the frame is malformed.
    pub fn unread(frame: &[u8]) -> Result<Option<Self>, String> {
        let (own, _) = unwrapped(frame).ok_or_else(wrongly_wrapped)?;
        let own: Map<String, Value> = serde_json::from_slice(own).map_err(|error| error.to_string())?;
        let kind = own.get("type").and_then(Value::as_str).unwrap_or_default();
        match unread(kind).ok_or_else(wrongly_wrapped)? {
            Value::Object(unread) => Self::whole(own, unread).ok_or_else(wrongly_wrapped).map(Some),
            _ => Ok(None),
        }
    }

    /// The runner's part of a binary frame that is not output, as text.
    pub fn runner_part(frame: &[u8]) -> Option<&str> {
        std::str::from_utf8(unwrapped(frame)?.1).ok()
    }

    /// Merges both parts. The guardian's part is added last, so that the runner's part cannot override it.
    fn whole(own: Map<String, Value>, mut content: Map<String, Value>) -> Option<Self> {
        content.extend(own);
        serde_json::from_value::<Self>(Value::Object(content)).ok().filter(Self::may_come_from_runner)
    }

    /// Whether the frame carries a message of a runner, in which user code runs.
    fn may_come_from_runner(&self) -> bool {
        match self {
            Self::CellDone { .. }
            | Self::Display { .. }
            | Self::ToolCall { .. }
            | Self::Variables { .. }
            | Self::Preloaded { .. } => true,
            Self::Hello { .. }
            | Self::CellLost { .. }
            | Self::WorkerReplaced { .. }
            | Self::OutputGap { .. }
            | Self::Computed { .. }
            | Self::ResetDone { .. }
            | Self::Undone { .. }
            | Self::Names { .. }
            | Self::Refused { .. }
            | Self::ToolAbandoned { .. } => false,
        }
    }
}

/// The guardian's part and the runner's part of a binary frame that is not output.
fn unwrapped(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = frame.split_at_checked(RUNNER_FRAME_HEADER_BYTES)?;
    let (&[RUNNER_FRAME_KIND], length) = header.split_at(1) else { return None };
    rest.split_at_checked(u32::from_be_bytes(length.try_into().ok()?) as usize)
}

fn wrongly_wrapped() -> String {
    "what a runner said is not wrapped as agreed".into()
}

/// What replaces a malformed part of a runner, by the type of the frame: null if the frame can be dropped, none if
/// runners send no frames of that type.
fn unread(kind: &str) -> Option<Value> {
    const TEXT: &str = "what the sandbox said of it was not understood";
    Some(match kind {
        "display" => Value::Null,
        "tool_call" => serde_json::json!({"name": "", "arguments": {}}),
        "cell_done" => serde_json::json!({
            "status": "failure", "reason": "exception", "exit_code": 0, "result": null,
            "exception": {"type": "KernelError", "value": TEXT, "repr": "", "traceback": ""},
            "duration_ms": 0.0, "displays_dropped": 0, "live": {"threads": 0, "tasks": 0, "children": 0},
        }),
        "variables" => serde_json::json!({"variables": [], "total": 0}),
        "preloaded" => {
            serde_json::json!({"names": 0, "failed": [{"import": "", "error": TEXT}], "skipped": []})
        }
        _ => return None,
    })
}
/// First byte of a binary frame with a message of a runner.
pub(crate) const RUNNER_FRAME_KIND: u8 = 3;
/// The bytes of a runner's frame before the guardian's part: its first byte, and the length of that part.
const RUNNER_FRAME_HEADER_BYTES: usize = 5;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped_frame(own: &str, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(own.len()).unwrap().to_be_bytes();
        [&[RUNNER_FRAME_KIND][..], &length, own.as_bytes(), content].concat()
    }

    #[test]
    fn the_guardians_word_on_what_a_runner_said_holds() {
        let own = r#"{"type":"tool_call","call":7,"cell":3,"from_program":true}"#;
        let forged =
            br#"{"type":"refused","call":1,"cell":1,"name":"t","arguments":{"x":1},"from_program":false}"#;
        let frame = KernelFrame::of_runner(&wrapped_frame(own, forged)).unwrap().unwrap();
        let arguments = serde_json::json!({"x": 1}).as_object().unwrap().clone();
        let (cell, name) = (Some(3), "t".into());
        assert_eq!(frame, KernelFrame::ToolCall { call: 7, cell, name, arguments, from_program: true });
    }

    #[test]
    fn words_that_mean_nothing_cost_only_what_they_are_about() {
        let deep = vec![b'['; 100_000];
        for nonsense in [&b""[..], b"[", b"[1]", b"\xff\xff", br#"{"mime":{}},"cell":9"#, &deep] {
            let display = wrapped_frame(r#"{"type":"display","cell":3}"#, nonsense);
            assert_eq!(KernelFrame::of_runner(&display), Ok(None));
            let own = r#"{"type":"cell_done","cell":3,"protected":true,"as_before":null}"#;
            let done = KernelFrame::of_runner(&wrapped_frame(own, nonsense)).unwrap();
            assert!(matches!(done, Some(KernelFrame::CellDone { cell: 3, status: DoneStatus::Failure, .. })));
        }
    }

    #[test]
    fn what_the_guardian_alone_may_say_is_not_taken_from_a_runner_nor_the_other_way_round() {
        let busy = r#"{"type":"refused","code":"busy","message":"","request":null,"cell":1}"#;
        assert!(KernelFrame::of_guardian(busy).is_ok());
        assert!(KernelFrame::of_runner(&wrapped_frame(busy, b"{}")).is_err());
        assert!(KernelFrame::of_runner(&wrapped_frame("{}", busy.as_bytes())).is_err());
        let display = r#"{"type":"display","cell":1,"mime":{}}"#;
        assert!(KernelFrame::of_guardian(display).is_err());
        for broken in [&[][..], &[3], &[3, 0, 0, 0, 9, b'{'], &[3, 255, 255, 255, 255, b'{', b'}']] {
            assert!(KernelFrame::of_runner(broken).is_err());
        }
    }
}

//! The outcome of a cell, as a pure function of all facts that are known when it ends.

use std::sync::Arc;
use std::time::Duration;

use super::replay::RecordedCalls;
use super::rules::CellRules;
use crate::memory::Charge;
use crate::protocol::ask::AskNumber;
use crate::protocol::command::CommandSpec;
use crate::protocol::event::Counters;
use crate::protocol::frames::{DoneReason, DoneStatus, LiveResources, StateAfter};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{EXCEPTION_CHARS, REPR_CHARS, TRACEBACK_CHARS};
use crate::protocol::result::{
    Artifact, ExceptionView, ExecutionResult, Mode, Reason, StateKind, StateReport, Status, Truncated,
    ValueView,
};
use crate::protocol::text::truncate;
use crate::protocol::tool_names::INSTALL_TOOL;
use crate::sandbox::launch::SandboxEnd;
use crate::store::CellRecord;

/// A cell as it is sent to a kernel.
#[derive(Clone, Debug, Default)]
pub struct CellStart {
    pub cell: CellNumber,
    pub code: String,
    pub mode: Mode,
    /// What to run, for a command.
    pub command: Option<Arc<CommandSpec>>,
    /// Whether the code has to be a single expression.
    pub expression: bool,
    pub timeout: Duration,
    /// The sandbox's counters when the cell began.
    pub before: Counters,
    /// A note for the result, for example that the sandbox is a new one.
    pub note: Option<String>,
    /// The record that tool calls are answered from, instead of being made.
    pub replay: Option<RecordedCalls>,
    /// The ask that wants the cell, or wanted it when it ran first.
    pub ask: Option<AskNumber>,
    pub rules: Arc<CellRules>,
    /// The number of sandboxes that ended before they took the cell.
    pub sandboxes_missed: u32,
    /// The memory charged for the code to the owner's share.
    pub memory: Option<Arc<Charge>>,
}

impl CellStart {
    /// Whether the cell runs for this ask. One that runs again does so for the session, whose variables it makes.
    #[must_use]
    pub fn is_wanted_by(&self, ask: AskNumber) -> bool {
        self.ask == Some(ask) && self.replay.is_none()
    }
}

/// How the kernel, or its absence, reported the end.
#[derive(Clone, Debug)]
pub enum Ending {
    Done {
        status: DoneStatus,
        reason: DoneReason,
        exit_code: i32,
        result: Option<ValueView>,
        exception: Option<ExceptionView>,
        displays_dropped: u64,
        protected: bool,
        as_before: Option<CellNumber>,
    },
    Lost {
        exit_code: i32,
        after: StateAfter,
        /// Whether there was no checkpoint of the state right before the cell, only an older one.
        older: bool,
        /// Names that the cell may have assigned.
        names: Vec<String>,
    },
    SandboxGone {
        end: Option<SandboxEnd>,
    },
    /// The cell never started, because the session was reset or removed.
    Cancelled,
}

/// What the daemon did or observed while the cell ran.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Cause {
    /// Why the daemon ended the cell, if it did. The first reason counts.
    pub ended_by: Option<EndedBy>,
    /// Whether a user has interrupted it.
    pub interrupted: bool,
    /// The cgroup counted a kill for memory, or the guardian made one.
    pub out_of_memory: bool,
    /// Its process ended on account of another cell, or of an undo.
    pub rolled_back: bool,
    /// The cgroup counted a refused fork.
    pub forks_refused: bool,
    /// Whether something else ran in the sandbox meanwhile, which the cgroup counts, too.
    pub had_company: bool,
    /// Whether the guardian itself ended this cell for its memory.
    pub told_by_guardian: bool,
    pub completed_tool_calls: Vec<String>,
    /// The names of the calls that ended with the cell.
    pub unanswered_tool_calls: Vec<String>,
    /// The resources that earlier cells had left running in the worker.
    pub live: LiveResources,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedBy {
    Deadline,
    Interrupt,
    Cancel,
    Policy(String),
    /// The owner's stored bytes exceeded the quota.
    Quota(String),
    /// The process limit left no process for the cell.
    Pids(String),
    /// The limit on open files left no descriptors for the process of the cell.
    Descriptors(String),
    /// The image has no shell for the line of a command.
    NoShell(String),
}

impl Ending {
    /// Whether the process was killed, or a shell tells that its program was.
    pub fn is_kill(&self) -> bool {
        matches!(self, Self::Lost { exit_code: KILLED | SHELL_KILLED, .. })
    }
}

impl Cause {
    /// What the limits of the whole sandbox may have had to do with the end of a process that was not alone in it.
    fn of_sandbox(&self, reason: Reason) -> Option<&'static str> {
        if !self.had_company {
            return None;
        }
        match reason {
            Reason::OutOfMemory if !self.told_by_guardian => Some(
                "The sandbox ran out of memory, and other code ran in it as well: which of them took it is not known.",
            ),
            Reason::Signal if self.forks_refused => {
                Some("The sandbox was at its limit on processes meanwhile, and other code ran in it as well.")
            }
            _ => None,
        }
    }

    /// Whether the limit on processes is what ended it: nothing else could have met it.
    fn is_short_of_pids(&self) -> bool {
        self.forks_refused && !self.had_company
    }
}

/// The exit codes of a process that was killed, and of a shell whose program was.
const KILLED: i32 = -9;
const SHELL_KILLED: i32 = 137;

pub struct Changes {
    pub artifacts: Vec<Artifact>,
    pub cut: bool,
}

#[must_use]
pub fn conclude(
    start: CellStart,
    ending: Ending,
    cause: Cause,
    record: CellRecord,
    changes: Changes,
    elapsed: Duration,
) -> ExecutionResult {
    let (status, reason, exit_code) = verdict(start.mode, &ending, &cause);
    let mut state = state_after(&start, &ending, &cause);
    if let Some(note) = cause.of_sandbox(reason) {
        state.note = Some(state.note.map_or_else(|| note.to_owned(), |before| format!("{before} {note}")));
    }
    let (result, exception, displays_dropped) = match ending {
        Ending::Done { result, exception, displays_dropped, .. } => {
            (result.map(bounded_value), exception.map(bounded_exception), displays_dropped)
        }
        Ending::Lost { .. } | Ending::SandboxGone { .. } | Ending::Cancelled => (None, None, 0),
    };
    ExecutionResult {
        cell: start.cell,
        mode: start.mode,
        status,
        reason,
        exit_code,
        code: start.code,
        timeout_s: start.timeout.as_secs_f64(),
        stdout: record.captured.stdout,
        stderr: record.captured.stderr,
        output: record.captured.output,
        result,
        displays: record.displays,
        artifacts: changes.artifacts,
        exception,
        duration_ms: elapsed.as_secs_f64() * 1000.0,
        truncated: Truncated {
            stdout_bytes: record.captured.stdout_cut,
            stderr_bytes: record.captured.stderr_cut,
            dropped_bytes: record.dropped_bytes,
            displays: record.displays_dropped.saturating_add(displays_dropped),
            artifacts: changes.cut,
        },
        state,
    }
}

fn verdict(mode: Mode, ending: &Ending, cause: &Cause) -> (Status, Reason, Option<i32>) {
    match ending {
        Ending::Lost { exit_code, .. } if mode == Mode::Command => {
            let (status, reason) = killed_by(cause).unwrap_or_else(|| command_verdict(*exit_code, cause));
            (status, reason, Some(*exit_code))
        }
        Ending::Done { status, reason, exit_code, .. } => {
            let (status, reason) = match (status, reason) {
                (DoneStatus::Success, DoneReason::Exit0) => (Status::Success, Reason::Exit0),
                (DoneStatus::Success, _) => (Status::Success, Reason::Ok),
                (DoneStatus::Failure, DoneReason::Syntax) => (Status::Failure, Reason::Syntax),
                (DoneStatus::Failure, DoneReason::Policy) => (Status::Failure, Reason::Policy),
                (DoneStatus::Failure, DoneReason::Exit) => (Status::Failure, Reason::Exit),
                (DoneStatus::Failure, _) => (Status::Failure, Reason::Exception),
                (DoneStatus::Interrupted, _) => (Status::Interrupted, Reason::ByUser),
            };
            (status, reason, Some(*exit_code))
        }
        Ending::Cancelled => (Status::Interrupted, Reason::ByCancel, None),
        Ending::Lost { exit_code, .. } => {
            let (status, reason) = killed_by(cause).unwrap_or(if cause.rolled_back {
                (Status::Interrupted, Reason::RolledBack)
            } else if cause.out_of_memory && *exit_code == KILLED {
                (Status::Crashed, Reason::OutOfMemory)
            } else if *exit_code < 0 && cause.is_short_of_pids() {
                (Status::Crashed, Reason::Pids)
            } else if *exit_code < 0 {
                (Status::Crashed, Reason::Signal)
            } else {
                (Status::Crashed, Reason::ExitCall)
            });
            (status, reason, Some(*exit_code))
        }
        Ending::SandboxGone { end } => {
            let out_of_memory = cause.out_of_memory || end.as_ref().is_some_and(|end| end.out_of_memory);
            let (status, reason) = killed_by(cause).unwrap_or(if out_of_memory {
                (Status::Crashed, Reason::OutOfMemory)
            } else {
                (Status::Crashed, Reason::SandboxLost)
            });
            (status, reason, None)
        }
    }
}

/// How a command ended by itself. A shell tells the signal that ended its program as 128 and its number.
fn command_verdict(exit_code: i32, cause: &Cause) -> (Status, Reason) {
    match exit_code {
        0 => (Status::Success, Reason::Ok),
        KILLED | SHELL_KILLED if cause.out_of_memory => (Status::Crashed, Reason::OutOfMemory),
        -2 | 130 if cause.interrupted => (Status::Interrupted, Reason::ByUser),
        ..0 if cause.is_short_of_pids() => (Status::Crashed, Reason::Pids),
        ..0 => (Status::Crashed, Reason::Signal),
        _ => (Status::Failure, Reason::Exit),
    }
}

fn killed_by(cause: &Cause) -> Option<(Status, Reason)> {
    Some(match cause.ended_by.as_ref()? {
        EndedBy::Deadline => (Status::Timeout, Reason::CellDeadline),
        EndedBy::Interrupt => (Status::Interrupted, Reason::ByUser),
        EndedBy::Cancel => (Status::Interrupted, Reason::ByCancel),
        EndedBy::Policy(_) => (Status::Crashed, Reason::PolicyViolation),
        EndedBy::Quota(_) => (Status::Crashed, Reason::JournalQuota),
        EndedBy::Pids(_) => (Status::Crashed, Reason::Pids),
        EndedBy::Descriptors(_) => (Status::Crashed, Reason::Descriptors),
        EndedBy::NoShell(_) => (Status::Failure, Reason::NoShell),
    })
}

fn counted(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The note on threads and tasks that were lost with their process.
#[must_use]
pub fn gone(live: LiveResources) -> Option<String> {
    (live.threads > 0 || live.tasks > 0).then(|| {
        format!(
            "What earlier cells had left running is gone: {} and {}, with their connections. Locks, queues and open files that they were using may be stuck: make new ones.",
            counted(live.threads, "thread"),
            counted(live.tasks, "asyncio task")
        )
    })
}

fn state_after(start: &CellStart, ending: &Ending, cause: &Cause) -> StateReport {
    let (kind, restored_to) = match ending {
        Ending::Done { .. } | Ending::Cancelled | Ending::Lost { after: StateAfter::Kept, .. } => {
            (StateKind::Kept, None)
        }
        Ending::Lost { after: StateAfter::Restored(cell), .. } => (StateKind::Restored, Some(*cell)),
        Ending::Lost { after: StateAfter::Lost, .. } | Ending::SandboxGone { .. } => (StateKind::Lost, None),
    };
    let mut notes: Vec<String> = start.note.iter().cloned().collect();
    match &cause.ended_by {
        Some(EndedBy::Policy(why) | EndedBy::Quota(why) | EndedBy::Pids(why) | EndedBy::Descriptors(why)) => {
            notes.push(why.clone());
        }
        Some(_) if start.mode == Mode::Command => {}
        Some(EndedBy::Cancel) => notes.push("The session was reset or removed while the cell ran.".into()),
        // A thread that ended by its exception has left its process alone.
        Some(_) if start.mode == Mode::Background && kind == StateKind::Kept => {}
        Some(EndedBy::Interrupt) if !matches!(ending, Ending::Done { .. }) => {
            notes.push("The cell did not stop when it was interrupted, so its process was killed.".into());
        }
        Some(EndedBy::Interrupt | EndedBy::Deadline | EndedBy::NoShell(_)) | None => {}
    }
    if matches!(ending, Ending::Lost { after: StateAfter::Lost, .. })
        && cause.ended_by != Some(EndedBy::Cancel)
    {
        notes.push("No checkpoint was left to go back to.".into());
    }
    if matches!(ending, Ending::Lost { older: true, after: StateAfter::Restored(_), .. }) {
        notes.push(
            "There was no checkpoint of the state right before this cell: what the cells since then assigned is gone too."
                .into(),
        );
    }
    if cause.rolled_back && cause.ended_by.is_none() {
        notes.push(
            "It was not to blame: another cell ended the process that both ran in, or the session was taken back."
                .into(),
        );
    }
    if kind != StateKind::Kept {
        notes.extend(gone(cause.live));
    }
    if !cause.unanswered_tool_calls.is_empty() {
        notes.push(format!(
            "Tool calls that had no answer yet ended with the cell: {}. How far they came is not known.",
            cause.unanswered_tool_calls.join(", ")
        ));
    }
    if cause.unanswered_tool_calls.iter().any(|name| name == INSTALL_TOOL) {
        notes.push(
            "Installing takes of a cell's time: `--timeout` gives it more, and `belljar install` takes none of it."
                .into(),
        );
    }
    let (unprotected, as_before) = match ending {
        Ending::Done { protected, as_before, .. } => (start.mode.is_in_line() && !protected, *as_before),
        Ending::Lost { .. } | Ending::SandboxGone { .. } | Ending::Cancelled => (false, None),
    };
    StateReport {
        kind,
        restored_to,
        unprotected,
        as_before,
        maybe_assigned: match ending {
            Ending::Lost { names, .. } => names.clone(),
            Ending::Done { .. } | Ending::SandboxGone { .. } | Ending::Cancelled => Vec::new(),
        },
        completed_tool_calls: if kind == StateKind::Kept {
            Vec::new()
        } else {
            cause.completed_tool_calls.clone()
        },
        note: (!notes.is_empty()).then(|| notes.join(" ")),
    }
}

/// The kernel keeps to the limits itself; text of a forged frame is cut here.
fn bounded_value(mut value: ValueView) -> ValueView {
    cut(&mut value.repr, REPR_CHARS);
    cut(&mut value.type_name, EXCEPTION_CHARS);
    value
}

fn bounded_exception(mut exception: ExceptionView) -> ExceptionView {
    cut(&mut exception.type_name, EXCEPTION_CHARS);
    cut(&mut exception.value, EXCEPTION_CHARS);
    cut(&mut exception.repr, EXCEPTION_CHARS);
    cut(&mut exception.traceback, TRACEBACK_CHARS);
    exception
}

/// Cuts with some slack, so that the kernel's own «cut» notice survives.
fn cut(text: &mut String, chars: usize) {
    truncate(text, chars + 200);
}

#[cfg(test)]
mod tests;

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
    /// The ask that wants the cell.
    pub ask: Option<AskNumber>,
    pub rules: Arc<CellRules>,
    /// The number of sandboxes that ended before they took the cell.
    pub sandboxes_missed: u32,
    /// The memory charged for the code to the owner's share.
    pub memory: Option<Arc<Charge>>,
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
pub struct Cause {
    /// Why the daemon ended the cell, if it did. The first reason counts.
    pub ended_by: Option<EndedBy>,
    /// Whether a user has interrupted it.
    pub interrupted: bool,
    /// The cgroup counted a kill for memory.
    pub out_of_memory: bool,
    /// The cgroup counted a refused fork.
    pub forks_refused: bool,
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
    let state = state_after(&start, &ending, &cause);
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
            let (status, reason) = killed_by(cause).unwrap_or(if cause.out_of_memory && *exit_code == -9 {
                (Status::Crashed, Reason::OutOfMemory)
            } else if *exit_code < 0 && cause.forks_refused {
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
        -9 | 137 if cause.out_of_memory => (Status::Crashed, Reason::OutOfMemory),
        -2 | 130 if cause.interrupted => (Status::Interrupted, Reason::ByUser),
        ..0 if cause.forks_refused => (Status::Crashed, Reason::Pids),
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
    if kind != StateKind::Kept {
        notes.extend(gone(cause.live));
    }
    if !cause.unanswered_tool_calls.is_empty() {
        notes.push(format!(
            "Tool calls that had no answer yet ended with the cell: {}. How far they came is not known.",
            cause.unanswered_tool_calls.join(", ")
        ));
    }
    let (unprotected, as_before) = match ending {
        Ending::Done { protected, as_before, .. } => (start.mode == Mode::Main && !protected, *as_before),
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
mod tests {
    use super::*;

    fn start(mode: Mode) -> CellStart {
        let timeout = Duration::from_secs(3);
        CellStart { cell: 4, code: "x".into(), mode, timeout, ..CellStart::default() }
    }

    fn ended(mode: Mode, ending: Ending, cause: Cause) -> (Status, Reason, Option<i32>, StateKind) {
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let result = conclude(start(mode), ending, cause, CellRecord::default(), changes, Duration::ZERO);
        (result.status, result.reason, result.exit_code, result.state.kind)
    }

    fn by(ended_by: EndedBy) -> Cause {
        Cause { ended_by: Some(ended_by), ..Cause::default() }
    }

    #[test]
    fn a_lost_worker_is_told_by_its_cause() {
        use Mode::{Fork, Main};
        let lost = |exit_code, after| Ending::Lost { exit_code, after, older: false, names: Vec::new() };
        let back = |exit_code| lost(exit_code, StateAfter::Restored(3));
        let none = Cause::default;
        let oom = Cause { out_of_memory: true, ..Cause::default() };
        let pids = Cause { forks_refused: true, ..Cause::default() };
        let (crashed, kept, restored) = (Status::Crashed, StateKind::Kept, StateKind::Restored);
        let cases = [
            (Main, back(139), none(), (crashed, Reason::ExitCall, Some(139), restored)),
            (Main, back(0), none(), (crashed, Reason::ExitCall, Some(0), restored)),
            (Main, back(-11), none(), (crashed, Reason::Signal, Some(-11), restored)),
            (Main, back(-9), oom.clone(), (crashed, Reason::OutOfMemory, Some(-9), restored)),
            (Main, back(-11), oom, (crashed, Reason::Signal, Some(-11), restored)),
            (Main, back(-6), pids, (crashed, Reason::Pids, Some(-6), restored)),
            (
                Main,
                back(-15),
                by(EndedBy::Deadline),
                (Status::Timeout, Reason::CellDeadline, Some(-15), restored),
            ),
            (Main, lost(-9, StateAfter::Lost), none(), (crashed, Reason::Signal, Some(-9), StateKind::Lost)),
            (
                Fork,
                lost(-9, StateAfter::Kept),
                by(EndedBy::Deadline),
                (Status::Timeout, Reason::CellDeadline, Some(-9), kept),
            ),
            (
                Fork,
                lost(0, StateAfter::Kept),
                by(EndedBy::Descriptors(String::new())),
                (crashed, Reason::Descriptors, Some(0), kept),
            ),
            (
                Main,
                back(-9),
                by(EndedBy::Interrupt),
                (Status::Interrupted, Reason::ByUser, Some(-9), restored),
            ),
            (
                Main,
                back(-9),
                by(EndedBy::Cancel),
                (Status::Interrupted, Reason::ByCancel, Some(-9), restored),
            ),
        ];
        for (mode, ending, cause, expected) in cases {
            assert_eq!(ended(mode, ending.clone(), cause), expected, "{ending:?}");
        }
    }

    #[test]
    fn the_end_of_a_command_is_that_of_its_process() {
        let lost =
            |exit_code| Ending::Lost { exit_code, after: StateAfter::Kept, older: false, names: Vec::new() };
        let (none, kept) = (Cause::default(), StateKind::Kept);
        let oom = Cause { out_of_memory: true, ..Cause::default() };
        let interrupted = Cause { interrupted: true, ..Cause::default() };
        for (exit_code, cause, status, reason) in [
            (0, &oom, Status::Success, Reason::Ok),
            (3, &interrupted, Status::Failure, Reason::Exit),
            (-15, &none, Status::Crashed, Reason::Signal),
            (-9, &oom, Status::Crashed, Reason::OutOfMemory),
            (137, &oom, Status::Crashed, Reason::OutOfMemory),
            (137, &none, Status::Failure, Reason::Exit),
            (130, &interrupted, Status::Interrupted, Reason::ByUser),
            (-2, &none, Status::Crashed, Reason::Signal),
            (0, &by(EndedBy::Deadline), Status::Timeout, Reason::CellDeadline),
            (-9, &by(EndedBy::Interrupt), Status::Interrupted, Reason::ByUser),
            (1, &by(EndedBy::NoShell(String::new())), Status::Failure, Reason::NoShell),
        ] {
            let found = ended(Mode::Command, lost(exit_code), cause.clone());
            assert_eq!(found, (status, reason, Some(exit_code), kept), "{exit_code} {cause:?}");
        }
    }

    #[test]
    fn calls_that_ended_with_the_cell_are_named() {
        let cause = Cause { unanswered_tool_calls: vec!["pay".into(), "mail".into()], ..Cause::default() };
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let (start, record) = (start(Mode::Main), CellRecord::default());
        let result = conclude(start, Ending::Cancelled, cause, record, changes, Duration::ZERO);
        let note = result.state.note.unwrap_or_default();
        assert!(note.contains("ended with the cell: pay, mail."), "{note}");
    }

    #[test]
    fn a_lost_sandbox_loses_the_state_in_every_mode() {
        let end = SandboxEnd { running: false, exit_code: Some(137), out_of_memory: true };
        let gone = Ending::SandboxGone { end: Some(end) };
        assert_eq!(
            ended(Mode::Fork, gone, Cause::default()),
            (Status::Crashed, Reason::OutOfMemory, None, StateKind::Lost)
        );
        let gone = Ending::SandboxGone { end: None };
        assert_eq!(ended(Mode::Main, gone, Cause::default()).1, Reason::SandboxLost);
    }
}

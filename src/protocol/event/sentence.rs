//! One sentence for people per event, with its severity. A view selects sentences by severity, and ignores the
//! sentences of the few events that it shows in a form of its own (output, code, approvals).

use std::fmt::Write as _;

use super::phrases::{approval_subject, call, decision, steps, why_unanswered};
use super::{EventBody, ToolOutcome};
use crate::protocol::ask::AskNumber;
use crate::protocol::chat::ChatReply;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::RUNNING_COMMANDS;
use crate::protocol::packages::{InstallEnd, PackageSet};
use crate::protocol::result::{ExecutionResult, Mode, Status};
use crate::protocol::saved_state::BaseSource;
use crate::protocol::snapshot::SnapshotRecord;
use crate::protocol::text::{brief, one_line};

/// Characters of a text of a model, a tool or a person that a sentence quotes. The event holds the whole text.
const QUOTE_CHARS: usize = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Ordinary progress, for readers of the log.
    Progress,
    /// A person who watches is told.
    Notice,
    /// A person has to know it.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    pub severity: Severity,
    /// The ask that the sentence is about, if the text does not name it.
    pub ask: Option<AskNumber>,
    pub text: String,
}

impl Sentence {
    fn new(severity: Severity, text: impl Into<String>) -> Self {
        Self { severity, ask: None, text: text.into() }
    }

    fn of_ask(severity: Severity, ask: AskNumber, text: impl Into<String>) -> Self {
        Self { severity, ask: Some(ask), text: text.into() }
    }
}

/// Names the ask, for views that show several asks.
impl std::fmt::Display for Sentence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.ask {
            Some(ask) => write!(f, "ask {ask}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl EventBody {
    /// None for events that carry content (output, displays, text of a model while it streams) or only precede another.
    #[expect(clippy::too_many_lines, reason = "a table of one sentence for each kind of event")]
    pub fn sentence(&self) -> Option<Sentence> {
        let progress = |text: String| Sentence::new(Severity::Progress, text);
        let notice = |text: String| Sentence::new(Severity::Notice, text);
        let warning = |text: String| Sentence::new(Severity::Warning, text);
        let of_ask = |ask: &AskNumber, text: String| Sentence::of_ask(Severity::Progress, *ask, text);
        Some(match self {
            Self::SessionCreated { name } => progress(format!("session {name} was made")),
            Self::SandboxStarting { backend, image } => {
                progress(format!("a sandbox starts: {}, {image}", backend.name()))
            }
            Self::ImagePulling { status } => progress(format!("pulling the image: {status}")),
            Self::SandboxReady { python, isolation, .. } => {
                progress(format!("the sandbox is ready: Python {python}, {isolation}"))
            }
            Self::SandboxAttached => notice("the daemon was started anew; the sandbox goes on".to_owned()),
            Self::SandboxGone { reason } => warning(format!("the sandbox is gone: {reason}")),
            Self::SnapshotTaken { snapshot } => progress(snapshot_taken(snapshot)),
            Self::SnapshotFailed { reason } => {
                warning(format!("the variables could not be saved: {}", one_line(reason)))
            }
            Self::SnapshotRemoved { snapshot } => progress(format!("snapshot {snapshot} was removed")),
            Self::Slept { reason, .. } => {
                notice(format!("the session sleeps, and the next cell wakes it: {reason}"))
            }
            Self::Woken { snapshot, cell, missing, reopened, replays, left_out } => {
                let counts = [missing.len(), replays.len(), left_out.len(), reopened.len()];
                notice(woken(snapshot.as_ref().map(|_| *cell), counts))
            }
            Self::WakeFailed { snapshot, reason } => {
                warning(format!("snapshot {snapshot} could not be loaded: {}", one_line(reason)))
            }
            Self::Based { on, snapshot, .. } => progress(based(on, snapshot.is_some())),
            Self::PackagesInstalling { status, end: Some(InstallEnd::Interrupted) } => {
                warning(installing(status))
            }
            Self::PackagesInstalling { status, .. } => progress(installing(status)),
            Self::PackagesInstalled { set, .. } => progress(installed(set)),
            Self::PackagesMissing { reason } => warning(packages_missing(reason)),
            Self::CellQueued { cell, commands_ahead: ahead @ 1.., .. } => {
                notice(commands_ahead(*cell, *ahead))
            }
            Self::CellQueued { cell, mode: Mode::Command, .. } => progress(format!("command {cell} waits")),
            Self::CellQueued { cell, .. } => progress(format!("cell {cell} waits")),
            Self::CellStarted { cell, command, .. } => progress(format!("{} {cell} runs", kind(*command))),
            Self::OutputCut { .. } => warning("further output is not kept".to_owned()),
            Self::ToolCalled { call, name, .. } => progress(format!("tool call {call}: {name}")),
            Self::ToolBegun { call, .. } => progress(format!("tool call {call} is made")),
            Self::ToolAnswered { call, outcome: ToolOutcome::Value(_) } => {
                progress(format!("tool call {call} was answered"))
            }
            Self::ToolAnswered { call, outcome: ToolOutcome::Failure(failure) } => {
                progress(format!("tool call {call} failed: {}", failure.code))
            }
            Self::Interrupting { cell, command } => {
                notice(format!("{} {cell} is being interrupted", kind(*command)))
            }
            Self::CellFinished { result } => progress(finished(result)),
            Self::StateLost { reason, restored_to: None, .. } => {
                warning(format!("all variables are gone: {reason}"))
            }
            Self::StateLost { reason, restored_to: Some(0), .. } => {
                warning(format!("the variables are as at the start: {reason}"))
            }
            Self::StateLost { reason, restored_to: Some(cell), .. } => {
                warning(format!("the variables are as after cell {cell}: {reason}"))
            }
            Self::Undone { state_of: 0 } => progress("all cells were undone".to_owned()),
            Self::Undone { state_of } => progress(format!("cells after {state_of} were undone")),
            Self::Reset => warning("the session was reset".to_owned()),
            Self::ReplayStarted { cells } if cells.is_empty() => {
                progress("the variables are made anew".to_owned())
            }
            Self::ReplayStarted { cells } => progress(format!("{} cells are run again", cells.len())),
            Self::ReplayFinished => progress("all of them have run again".to_owned()),
            Self::Frozen => progress("the sandbox is frozen".to_owned()),
            Self::Thawed => progress("the sandbox goes on".to_owned()),
            Self::SessionRemoved => notice("the session was removed".to_owned()),
            Self::AdminActed { admin, act } => warning(format!("administrator {admin}: {act}")),
            Self::AskStarted { ask, spec } => {
                progress(format!("ask {ask} to {}: {}", spec.model, quote(&spec.text)))
            }
            Self::ModelAsked { ask, step } => of_ask(ask, format!("request {step} to the model")),
            Self::ModelReplied { ask, reply, .. } => of_ask(ask, replied(reply)),
            Self::ModelFailed { ask, failure, retry_in_s: Some(seconds), .. } => {
                let message = one_line(&failure.message);
                let text = format!("the model failed: {message}; it is asked again in {seconds:.1} s");
                Sentence::of_ask(Severity::Warning, *ask, text)
            }
            // The end of the ask follows and reports the failure.
            Self::ModelFailed { ask, failure, retry_in_s: None, .. } => {
                of_ask(ask, format!("the model failed: {}", one_line(&failure.message)))
            }
            Self::ModelSpent { ask, tokens, .. } => {
                of_ask(ask, format!("a request without a reply cost about {tokens} tokens"))
            }
            Self::AskSpentWithin { ask, usage, .. } => {
                of_ask(ask, format!("an ask within it used {} tokens", usage.total()))
            }
            Self::AskWaitsWithin { ask, approvals } => {
                of_ask(ask, format!("{} decisions are wanted by asks within it", approvals.len()))
            }
            Self::AskToolCalled { ask, id, name, arguments } => {
                of_ask(ask, format!("{id} calls {}", call(name, arguments)))
            }
            Self::AskToolAnswered { ask, id, outcome } => of_ask(ask, format!("{id} {}", answer(outcome))),
            Self::AskNoted { ask, note } => Sentence::of_ask(Severity::Notice, *ask, quote(note)),
            Self::ApprovalWanted { approval } => {
                let what = quote(&approval_subject(&approval.subject));
                progress(format!("approval {} is wanted: {what}", approval.id))
            }
            Self::ApprovalDecided { id, decision: decided, by } => {
                let by = by.map_or_else(String::new, |by| format!(", by user {by}"));
                progress(format!("approval {id}: {}{by}", quote(&decision(decided))))
            }
            Self::PlanChanged { plan, .. } => {
                progress(format!("plan version {}: {}", plan.version, quote(&plan.changes.join("; "))))
            }
            Self::AskFinished { ask, end } => {
                let how = why_unanswered(end)
                    .unwrap_or_else(|| format!("answered: {}", end.answer.as_deref().unwrap_or_default()));
                let (steps, tokens) = (steps(end.steps), end.usage.total());
                progress(format!("ask {ask} ended after {steps}, {tokens} tokens: {}", quote(&how)))
            }
            Self::Output { .. }
            | Self::Display { .. }
            | Self::ModelText { .. }
            | Self::CellDied { .. }
            | Self::ResetDone { .. } => return None,
        })
    }
}

fn kind(command: bool) -> &'static str {
    if command { "command" } else { "cell" }
}

fn commands_ahead(command: CellNumber, ahead: usize) -> String {
    let others = if ahead == 1 { "another has".to_owned() } else { format!("{ahead} others have") };
    format!("command {command} waits until {others} ended: {RUNNING_COMMANDS} of a session run at once")
}

fn quote(text: &str) -> String {
    brief(text, QUOTE_CHARS)
}

fn installing(status: &str) -> String {
    format!("installing packages: {}", one_line(status))
}

fn packages_missing(reason: &str) -> String {
    format!("the packages of the session are missing: {}", one_line(reason))
}

fn installed(set: &PackageSet) -> String {
    let names = set.packages.iter().map(|package| format!("{} {}", package.name, package.version));
    format!("installed: {}", quote(&names.collect::<Vec<_>>().join(", ")))
}

fn snapshot_taken(snapshot: &SnapshotRecord) -> String {
    let SnapshotRecord { id, cell, name, .. } = snapshot;
    let name = name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
    format!("the variables after cell {cell} were saved: snapshot {id}{name}")
}

/// `cell` is that of the snapshot, if there was one.
fn woken(cell: Option<CellNumber>, [missing, replays, left_out, reopened]: [usize; 4]) -> String {
    let mut text = match cell {
        None => "no snapshot was taken yet, so the session begins anew".to_owned(),
        Some(0) => "the session has the variables that it began with".to_owned(),
        Some(cell) => format!("the session woke: the variables are as after cell {cell}"),
    };
    if missing > 0 {
        let _ = write!(text, ", without {missing} that could not be kept");
    }
    let cells = if cell.is_some() { "later cells" } else { "cells" };
    for (count, what) in [
        (replays, format!("{cells} run again")),
        (left_out, format!("{cells} do not run again")),
        (reopened, "files were opened again".to_owned()),
    ] {
        if count > 0 {
            let _ = write!(text, "; {count} {what}");
        }
    }
    text
}

fn based(on: &BaseSource, has_variables: bool) -> String {
    let (from, cell) = match on {
        BaseSource::Session { name, cell, .. } => (format!("session {name}"), cell),
        BaseSource::Archive { name, cell } => (format!("the archive of session {}", quote(name)), cell),
    };
    if has_variables {
        format!("the variables are those of {from} after cell {cell}")
    } else {
        format!("the session begins with the files of {from}")
    }
}

fn finished(result: &ExecutionResult) -> String {
    let how = match result.status {
        Status::Success => "succeeded",
        Status::Failure => "failed",
        Status::Timeout => "ran out of time",
        Status::Crashed => "crashed",
        Status::Interrupted => "was interrupted",
    };
    let why = result.exception.as_ref().map(|e| format!(": {}", e.repr)).unwrap_or_default();
    let what = kind(result.mode == Mode::Command);
    format!("{what} {} {how} after {:.0} ms{why}", result.cell, result.duration_ms)
}

fn replied(reply: &ChatReply) -> String {
    let message = &reply.message;
    let legacy = message.function_call.iter().map(|call| call.name.as_str());
    let calls: Vec<&str> = message.tool_calls.iter().map(|call| call.name.as_str()).chain(legacy).collect();
    let calls = if calls.is_empty() { String::new() } else { format!(" [calls {}]", calls.join(", ")) };
    let tokens = reply.usage.map(|usage| format!(" ({} tokens)", usage.total())).unwrap_or_default();
    format!("the model says{tokens}: {}{calls}", quote(&message.content))
}

/// `was answered: …` or `failed: …`
fn answer(outcome: &ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Value(value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            format!("was answered: {}", quote(&text))
        }
        ToolOutcome::Failure(failure) => format!("failed: {}: {}", failure.code, quote(&failure.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exit_codes::tests::result;
    use crate::protocol::result::Reason;

    #[test]
    fn a_session_that_woke_says_what_it_has_and_what_not() {
        assert_eq!(woken(Some(0), [0; 4]), "the session has the variables that it began with");
        assert_eq!(
            woken(None, [0, 2, 0, 0]),
            "no snapshot was taken yet, so the session begins anew; 2 cells run again"
        );
        assert_eq!(
            woken(Some(3), [1, 2, 3, 4]),
            "the session woke: the variables are as after cell 3, without 1 that could not be kept; 2 later cells run \
             again; 3 later cells do not run again; 4 files were opened again"
        );
    }

    #[test]
    fn events_are_told_in_sentences() {
        let lost =
            |restored_to| EventBody::StateLost { reason: "the worker died".into(), restored_to, gone: None };
        let sentences = [
            EventBody::SessionCreated { name: "lab".into() },
            EventBody::CellFinished { result: Box::new(result(Status::Timeout, Reason::CellDeadline, None)) },
            lost(None),
            lost(Some(0)),
            lost(Some(2)),
            EventBody::Undone { state_of: 0 },
            EventBody::ModelAsked { ask: 2, step: 3 },
            EventBody::AskNoted { ask: 2, note: "a\nb\u{1b}[2J c".into() },
            EventBody::ResetDone { cells: 1 },
        ]
        .map(|event| match event.sentence() {
            Some(sentence) => format!("{:?}: {sentence}", sentence.severity),
            None => "nothing".to_owned(),
        });
        insta::assert_snapshot!(sentences.join("\n"), @r"
        Progress: session lab was made
        Progress: cell 1 ran out of time after 0 ms
        Warning: all variables are gone: the worker died
        Warning: the variables are as at the start: the worker died
        Warning: the variables are as after cell 2: the worker died
        Progress: all cells were undone
        Progress: ask 2: request 3 to the model
        Notice: ask 2: a b c
        nothing
        ");
    }

    #[test]
    fn what_is_quoted_is_bounded() {
        let event = EventBody::AskNoted { ask: 1, note: "x".repeat(10_000) };
        assert_eq!(event.sentence().unwrap().text.chars().count(), QUOTE_CHARS);
    }
}

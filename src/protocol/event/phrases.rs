//! Parts of sentences for people that are needed in more than one place: about calls, approvals, and how cells and
//! asks ended.

use serde_json::{Map, Value};

use crate::protocol::ask::{Approval, AskEnd, AskOutcome, Decision, Subject};
use crate::protocol::exit_codes::signal_name;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{ExecutionResult, Mode, Reason, StateKind, Status};
use crate::protocol::text::{brief, one_line, visible};

/// Characters of a tool's arguments that are shown, so that a call fits on one line.
const ARGUMENTS_CHARS: usize = 200;

/// `name(a=1, b="x")`, on one line and cut if need be.
pub fn call(name: &str, arguments: &Map<String, Value>) -> String {
    let given: Vec<String> = arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{}({})", one_line(name), brief(&visible(&given.join(", ")), ARGUMENTS_CHARS))
}

/// `code: import os …` or `tool: name(…)`
pub fn approval_subject(subject: &Subject) -> String {
    match subject {
        Subject::Cell { code, .. } => format!("code: {code}"),
        Subject::Tool { name, arguments } => format!("tool: {}", call(name, arguments)),
    }
}

/// Why an approval is required although the running cell by itself would need none.
pub fn bound_by(approval: &Approval) -> Option<String> {
    let ask = approval.bound_by?;
    Some(format!(
        "code of ask {ask} may still run in this session, and its rules want this; `belljar reset` ends them"
    ))
}

pub fn decision(decision: &Decision) -> String {
    match decision {
        Decision::Accept { code: None } => "accepted".to_owned(),
        Decision::Accept { code: Some(_) } => "accepted with changed code".to_owned(),
        Decision::Reject { reason: None } => "rejected".to_owned(),
        Decision::Reject { reason: Some(reason) } => format!("rejected: {reason}"),
        Decision::Respond { text } => format!("not run; the model is told: {text}"),
        Decision::Edit { .. } => "not run; a change is suggested to the model".to_owned(),
    }
}

pub fn steps(number: u32) -> String {
    if number == 1 { "1 step".to_owned() } else { format!("{number} steps") }
}

/// Why an ask has no answer.
pub fn why_unanswered(end: &AskEnd) -> Option<String> {
    let what = match end.outcome {
        AskOutcome::Answered => return None,
        AskOutcome::StepLimit => format!("no answer after {}, which is the limit", steps(end.steps)),
        AskOutcome::FailureLimit => "no answer: too many failures in a row".to_owned(),
        AskOutcome::RepeatedFailure => "no answer: the model repeats what fails".to_owned(),
        AskOutcome::TokenLimit => "no answer: too few tokens are left".to_owned(),
        AskOutcome::TimeLimit => "no answer within the time limit".to_owned(),
        AskOutcome::Cancelled => "the ask was cancelled".to_owned(),
        AskOutcome::Rejected => "no answer: what the model wanted to run was rejected".to_owned(),
        AskOutcome::Malformed => "no answer: the model's replies cannot be understood".to_owned(),
        AskOutcome::ModelFailed => "no answer: the model failed".to_owned(),
        AskOutcome::SandboxFailed => "no answer: there is no sandbox to be had".to_owned(),
    };
    Some(match &end.message {
        Some(message) => format!("{what}: {message}"),
        None => what,
    })
}

/// How a cell or a command ended; none for ends that need no explanation.
pub fn what_happened(result: &ExecutionResult) -> Option<String> {
    if result.reason == Reason::NoShell {
        return Some("the image has no shell; name a program and its arguments instead".to_owned());
    }
    let text = how_cell_ended(result)?;
    if result.mode != Mode::Command {
        return Some(text);
    }
    // The exit code of a command is its own matter.
    (result.reason != Reason::Exit).then(|| text.replacen("the cell", "the command", 1))
}

fn how_cell_ended(result: &ExecutionResult) -> Option<String> {
    Some(match result.status {
        Status::Failure if result.reason == Reason::Exit => {
            format!("the cell ended by `sys.exit` with code {}", result.exit_code.unwrap_or(1))
        }
        Status::Success | Status::Failure => return None,
        Status::Timeout => format!("the cell ran longer than {} s and was stopped", result.timeout_s),
        Status::Interrupted => match result.reason {
            Reason::ByCancel => "the cell was cancelled, because its session was reset or removed".to_owned(),
            Reason::RolledBack => {
                "the cell ended, because the session went back to earlier variables".to_owned()
            }
            _ => "the cell was interrupted".to_owned(),
        },
        Status::Crashed => match (result.reason, result.exit_code) {
            (Reason::OutOfMemory, _) => {
                "the cell crashed: it needed more memory than the session has".to_owned()
            }
            (Reason::Pids, _) => "the cell crashed: it hit the limit on processes".to_owned(),
            (Reason::Descriptors, _) => "the cell could not run: too many files are open".to_owned(),
            (Reason::SandboxLost, _) => "the cell crashed: its sandbox is gone".to_owned(),
            (Reason::PolicyViolation, _) => {
                "the cell was stopped for breaking the rules of its sandbox".to_owned()
            }
            (Reason::JournalQuota, _) => {
                "the cell was stopped: what it printed, showed or handed to tools is more than may be stored"
                    .to_owned()
            }
            (Reason::ExitCall, Some(code)) => {
                format!("the cell crashed: it ended its process with code {code}")
            }
            (_, Some(code)) => match signal_name(code) {
                Some(signal) => format!("the cell crashed: {signal}"),
                None => format!("the cell crashed: its process ended with code {code}"),
            },
            (_, None) => "the cell crashed".to_owned(),
        },
    })
}

/// The note for a copy of the session: it has the state before the running cell, not that cell's changes.
pub fn as_before(cell: CellNumber) -> String {
    format!("the variables are as before cell {cell}, which was running")
}

/// What the user would not expect about the variables after a cell.
pub fn state_note(result: &ExecutionResult) -> Option<String> {
    let mut note = match (result.mode, result.state.kind, result.state.restored_to) {
        // If the session was removed, its files may be gone, too.
        (_, StateKind::Lost, _) if result.reason == Reason::ByCancel => "all variables are gone".to_owned(),
        (_, StateKind::Lost, _) => "all variables are gone; files in the workspace remain".to_owned(),
        (Mode::Main | Mode::Scratch | Mode::Background, StateKind::Restored, None) => {
            "variables are back as before the cell".to_owned()
        }
        (Mode::Main | Mode::Scratch | Mode::Background, StateKind::Restored, Some(0)) => {
            "variables are back as at the start".to_owned()
        }
        (Mode::Main | Mode::Scratch | Mode::Background, StateKind::Restored, Some(cell)) => {
            format!("variables are back as after cell {cell}")
        }
        (Mode::Main | Mode::Scratch | Mode::Background, StateKind::Kept, _)
        | (Mode::Fork | Mode::Command, StateKind::Kept | StateKind::Restored, _) => {
            let unprotected = "the cell ran without a checkpoint to go back to".to_owned();
            return result
                .state
                .as_before
                .map(as_before)
                .or_else(|| result.state.note.clone())
                .or(result.state.unprotected.then_some(unprotected));
        }
    };
    if let Some(more) = &result.state.note {
        note.push_str(": ");
        note.push_str(more);
    }
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ask::ReplyCount;
    use crate::protocol::chat::Usage;
    use crate::protocol::exit_codes::tests::result;
    use serde_json::json;

    #[test]
    fn calls_are_one_line() {
        let Value::Object(arguments) = json!({"path": "a\nb", "text": "x".repeat(500)}) else { panic!() };
        let line = call("file_reader", &arguments);
        assert!(line.starts_with("file_reader(path=\"a\\nb\", text=\"xxx") && line.ends_with("…)"), "{line}");
        assert!(line.chars().count() < 220);
    }

    #[test]
    fn ends_are_told_in_words() {
        let phrase = |status, reason, code| what_happened(&result(status, reason, code)).unwrap_or_default();
        insta::assert_snapshot!([
            phrase(Status::Success, Reason::Ok, Some(0)),
            phrase(Status::Timeout, Reason::CellDeadline, Some(-15)),
            phrase(Status::Crashed, Reason::Signal, Some(-11)),
            phrase(Status::Crashed, Reason::ExitCall, Some(139)),
            phrase(Status::Crashed, Reason::OutOfMemory, Some(-9)),
            phrase(Status::Crashed, Reason::SandboxLost, None),
            phrase(Status::Interrupted, Reason::ByUser, Some(0)),
        ].join("\n"), @r#"

        the cell ran longer than 30 s and was stopped
        the cell crashed: signal 11 (SIGSEGV)
        the cell crashed: it ended its process with code 139
        the cell crashed: it needed more memory than the session has
        the cell crashed: its sandbox is gone
        the cell was interrupted
        "#);
    }

    #[test]
    fn only_what_surprises_is_told_about_the_state() {
        let mut cell = result(Status::Crashed, Reason::Signal, Some(-11));
        assert_eq!(state_note(&cell), None);
        let mut copy = result(Status::Success, Reason::Ok, None);
        (copy.mode, copy.state.as_before) = (Mode::Fork, Some(3));
        assert_eq!(
            state_note(&copy).as_deref(),
            Some("the variables are as before cell 3, which was running")
        );
        cell.state.kind = StateKind::Restored;
        cell.state.restored_to = Some(4);
        assert_eq!(state_note(&cell).as_deref(), Some("variables are back as after cell 4"));
        cell.state.kind = StateKind::Lost;
        cell.state.note = Some("a new worker was started".into());
        assert_eq!(
            state_note(&cell).as_deref(),
            Some("all variables are gone; files in the workspace remain: a new worker was started")
        );
    }

    #[test]
    fn every_end_without_an_answer_is_explained() {
        let why = |outcome, message: Option<&str>| {
            why_unanswered(&AskEnd {
                outcome,
                answer: None,
                value: None,
                message: message.map(Into::into),
                steps: 30,
                usage: Usage { prompt_tokens: 90, completion_tokens: 10 },
                replies: ReplyCount::default(),
            })
            .unwrap_or_default()
        };
        insta::assert_snapshot!([
            why(AskOutcome::Answered, None),
            why(AskOutcome::StepLimit, None),
            why(AskOutcome::TokenLimit, None),
            why(AskOutcome::TimeLimit, None),
            why(AskOutcome::Rejected, Some("not on my disk")),
            why(AskOutcome::ModelFailed, Some("the key is wrong")),
        ].join("\n"), @r"

        no answer after 30 steps, which is the limit
        no answer: too few tokens are left
        no answer within the time limit
        no answer: what the model wanted to run was rejected: not on my disk
        no answer: the model failed: the key is wrong
        ");
    }
}

//! A cell while it runs, shown as it happens: shared by `exec` and `run`.

use serde_json::{Map, Value};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::protocol::api::RunCell;
use crate::protocol::event::EventBody;
use crate::protocol::exit_codes::signal_name;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{Artifact, Change, ExecutionResult, Mode, Reason, StateKind, Status, Stream};

use super::approval;
use super::client::{Client, Events};
use super::context::Context;
use super::exit;
use super::failure::Failure;
use super::follow::Trail;
use super::human;
use super::sanitize::one_line;
use super::screen::Screen;
use super::session_key::SessionKey;

/// How a cell's end reached us.
pub(super) enum End {
    Finished(Box<ExecutionResult>),
    /// We were told to stop waiting; the cell may run on. The exit code says by what.
    Left(u8),
}

/// Ctrl-C and the request to end, from the moment of construction on.
pub(super) struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl Stops {
    pub fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|e| Failure::io("failed to listen for signals", &e));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// The exit code that the next signal asks for.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => exit::INTERRUPTED,
            _ = self.terminate.recv() => exit::TERMINATED,
        }
    }
}

/// Sends the cell and shows its output until it ends. A first Ctrl-C interrupts the cell, a second
/// leaves it.
pub(super) async fn stream(
    context: &mut Context,
    client: &Client,
    session: &SessionKey,
    cell: &RunCell,
    stops: &mut Stops,
) -> Result<End, Failure> {
    let path = format!("/v1/sessions/{session}/cells?stream=true");
    let mut events: Events = tokio::select! {
        biased;
        code = stops.next() => return Ok(End::Left(code)),
        events = client.events(&path, Some(cell)) => events?,
    };
    let mut interrupted = false;
    let mut seen: Option<Seen> = None;
    loop {
        let event = tokio::select! {
            code = stops.next() => {
                if interrupted || code == exit::TERMINATED {
                    return Ok(End::Left(code));
                }
                interrupted = true;
                context.screen.note("interrupting the cell; press Ctrl-C again to leave it")?;
                client.post_empty(&format!("/v1/sessions/{session}/interrupt")).await?;
                continue;
            }
            event = events.next() => event,
        };
        let event = match (event, &mut seen) {
            (Ok(Some(event)), _) => event,
            (Ok(None), None) => {
                return Err(Failure::new("the daemon ended the stream before it told of the cell"));
            }
            (Err(failure), None) => return Err(failure),
            // The daemon itself says why there is no more to come.
            (Err(failure), Some(_)) if failure.problem.is_some() => return Err(failure),
            (Ok(None) | Err(_), Some(seen)) => {
                let hint =
                    format!("the cell goes on: `belljar wait -s {session} {}` shows its end", seen.cell);
                events = tokio::select! {
                    code = stops.next() => return Ok(End::Left(code)),
                    resumed = seen.trail.resume(client, session, &hint) => resumed?,
                };
                continue;
            }
        };
        let Some(cell) = event.body.cell().or(seen.as_ref().map(|seen| seen.cell)) else { continue };
        let seen = seen.get_or_insert(Seen { cell, trail: Trail::after(event.seq) });
        seen.trail.saw(event.seq);
        if event.body.cell().is_some_and(|of| of != seen.cell) {
            continue;
        }
        match event.body {
            EventBody::CellFinished { result } => return Ok(End::Finished(result)),
            body if !context.json => show_event(&mut context.screen, &body)?,
            _ => {}
        }
    }
}

/// The cell that the stream is about, and how far it has come.
struct Seen {
    cell: CellNumber,
    trail: Trail,
}

/// What of an event is shown while its cell runs.
pub(super) fn show_event(screen: &mut Screen, event: &EventBody) -> Result<(), Failure> {
    match event {
        EventBody::Output { stream, text, .. } => screen.guest(*stream, text),
        EventBody::OutputCut { .. } => screen.warn("further output of this cell is not kept"),
        EventBody::Display { mime, .. } => match plain_display(mime) {
            Some(text) => screen.guest_line(text),
            None => screen.note(&display_line(mime)),
        },
        EventBody::SandboxGone { reason } => screen.warn(&format!("the sandbox is gone: {reason}")),
        EventBody::ApprovalWanted { approval } => {
            let why = approval::bound_by(approval).map(|why| format!(": {why}")).unwrap_or_default();
            let what = approval::summary(&approval.subject);
            screen.note(&format!("{what} waits for `belljar approve {}`{why}", approval.id))
        }
        EventBody::StateLost { reason, restored_to: None } => {
            screen.warn(&format!("all variables are gone: {reason}"))
        }
        EventBody::StateLost { reason, restored_to: Some(cell) } => {
            screen.warn(&format!("the variables are as after cell {cell}: {reason}"))
        }
        EventBody::SessionCreated { .. }
        | EventBody::SandboxStarting { .. }
        | EventBody::ImagePulling { .. }
        | EventBody::SandboxReady { .. }
        | EventBody::SandboxAttached
        | EventBody::CellQueued { .. }
        | EventBody::CellStarted { .. }
        | EventBody::ToolCalled { .. }
        | EventBody::ToolBegun { .. }
        | EventBody::ToolAnswered { .. }
        | EventBody::Interrupting { .. }
        | EventBody::CellDied { .. }
        | EventBody::CellFinished { .. }
        | EventBody::Reset
        | EventBody::ResetDone { .. }
        | EventBody::ReplayStarted { .. }
        | EventBody::ReplayFinished
        | EventBody::Frozen
        | EventBody::Thawed
        | EventBody::Undone { .. }
        | EventBody::SessionRemoved
        | EventBody::AdminActed { .. }
        | EventBody::AskStarted { .. }
        | EventBody::ModelAsked { .. }
        | EventBody::ModelText { .. }
        | EventBody::ModelReplied { .. }
        | EventBody::ModelFailed { .. }
        | EventBody::ModelSpent { .. }
        | EventBody::AskSpentWithin { .. }
        | EventBody::AskWaitsWithin { .. }
        | EventBody::AskToolCalled { .. }
        | EventBody::AskToolAnswered { .. }
        | EventBody::AskNoted { .. }
        | EventBody::ApprovalDecided { .. }
        | EventBody::PlanChanged { .. }
        | EventBody::AskFinished { .. } => Ok(()),
    }
}

/// Of what is no picture, the form that a terminal can show.
fn plain_display(mime: &Map<String, Value>) -> Option<&str> {
    let is_picture = mime.keys().any(|form| form.starts_with("image/"));
    mime.get("text/plain").filter(|_| !is_picture)?.as_str()
}

/// `display: image/png (12 KiB), text/plain`: only binary forms have a size worth telling.
pub(super) fn display_line(mime: &Map<String, Value>) -> String {
    let forms: Vec<String> = mime
        .iter()
        .map(|(name, value)| match value {
            Value::String(data) if !name.starts_with("text/") => {
                // Base64 takes four characters for three bytes.
                format!("{name} ({})", human::size((data.len() / 4 * 3) as u64))
            }
            _ => name.clone(),
        })
        .collect();
    format!("display: {}", forms.join(", "))
}

/// What is left to say when a cell has ended, its output being shown already. Like Python itself, a
/// script shows neither the value of its last line nor that it ended by `sys.exit`.
pub(super) fn show_end(screen: &mut Screen, result: &ExecutionResult, script: bool) -> Result<(), Failure> {
    if let (false, Some(value)) = (script, &result.result) {
        screen.guest_line(&value.repr)?;
    }
    if let Some(exception) = &result.exception {
        screen.end_line(Stream::Stderr)?;
        let text = if exception.traceback.is_empty() { &exception.repr } else { &exception.traceback };
        screen.guest(Stream::Stderr, text)?;
        screen.end_line(Stream::Stderr)?;
    }
    if let Some(text) = what_happened(result).filter(|_| !(script && result.reason == Reason::Exit)) {
        screen.error(&text)?;
    }
    for artifact in &result.artifacts {
        screen.note(&artifact_line(artifact))?;
    }
    if result.truncated.artifacts {
        screen.note("file: … the list is incomplete, there are too many files to look at")?;
    }
    // The variables of a script go with it; why it was ended may still be said.
    let note = if script { result.state.note.clone() } else { state_note(result) };
    match note {
        Some(note) => screen.warn(&note),
        None => Ok(()),
    }
}

pub(super) fn artifact_line(artifact: &Artifact) -> String {
    // A name may hold line breaks, and what follows one would look like words of ours.
    let path = one_line(&artifact.path);
    let change = match artifact.change {
        Change::New => "new",
        Change::Modified => "modified",
        Change::Removed => return format!("file: {path} (removed)"),
    };
    format!("file: {path} ({change}, {})", human::size(artifact.bytes))
}

/// Nothing for ends that explain themselves.
pub(super) fn what_happened(result: &ExecutionResult) -> Option<String> {
    Some(match result.status {
        Status::Failure if result.reason == Reason::Exit => {
            format!("the cell ended by `sys.exit` with code {}", result.exit_code.unwrap_or(1))
        }
        Status::Success | Status::Failure => return None,
        Status::Timeout => format!("the cell ran longer than {} s and was stopped", result.timeout_s),
        Status::Interrupted => match result.reason {
            Reason::ByCancel => "the cell was cancelled, because its session was reset or removed".to_owned(),
            _ => "the cell was interrupted".to_owned(),
        },
        Status::Crashed => match (result.reason, result.exit_code) {
            (Reason::OutOfMemory, _) => {
                "the cell crashed: it needed more memory than the session has".to_owned()
            }
            (Reason::Pids, _) => "the cell crashed: it hit the limit on processes".to_owned(),
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

/// What the user would not expect about the variables.
/// Of a copy, which cannot see what a cell is doing just then.
pub(super) fn as_before(cell: CellNumber) -> String {
    format!("the variables are as before cell {cell}, which was running")
}

pub(super) fn state_note(result: &ExecutionResult) -> Option<String> {
    let mut note = match (result.mode, result.state.kind, result.state.restored_to) {
        // With the session its files may be gone.
        (_, StateKind::Lost, _) if result.reason == Reason::ByCancel => "all variables are gone".to_owned(),
        (_, StateKind::Lost, _) => "all variables are gone; files in the workspace remain".to_owned(),
        (Mode::Main, StateKind::Restored, None) => "variables are back as before the cell".to_owned(),
        (Mode::Main, StateKind::Restored, Some(0)) => "variables are back as at the start".to_owned(),
        (Mode::Main, StateKind::Restored, Some(cell)) => format!("variables are back as after cell {cell}"),
        (Mode::Main, StateKind::Kept, _) | (Mode::Fork, StateKind::Kept | StateKind::Restored, _) => {
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
    use crate::cli::exit::tests::result;
    use serde_json::json;

    #[test]
    fn displays_are_named_with_their_size() {
        let mime = json!({"image/png": "A".repeat(16_384), "text/plain": "a figure"});
        let line = display_line(mime.as_object().unwrap());
        assert_eq!(line, "display: image/png (12 KiB), text/plain");
    }

    #[test]
    fn ends_are_told_in_words() {
        let told = |status, reason, code| what_happened(&result(status, reason, code)).unwrap_or_default();
        insta::assert_snapshot!([
            told(Status::Success, Reason::Ok, Some(0)),
            told(Status::Timeout, Reason::CellDeadline, Some(-15)),
            told(Status::Crashed, Reason::Signal, Some(-11)),
            told(Status::Crashed, Reason::ExitCall, Some(139)),
            told(Status::Crashed, Reason::OutOfMemory, Some(-9)),
            told(Status::Crashed, Reason::SandboxLost, None),
            told(Status::Interrupted, Reason::ByUser, Some(0)),
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
}

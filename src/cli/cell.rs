//! A cell while it runs, shown as it happens: shared by `exec` and `run`.

use serde_json::{Map, Value};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::protocol::api::RunCell;
use crate::protocol::event::phrases::{approval_subject, state_note, what_happened};
use crate::protocol::event::{EventBody, Severity};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{Artifact, Change, ExecutionResult, Reason, Stream};
use crate::protocol::text::one_line;

use super::approval;
use super::client::{Client, Events};
use super::context::Context;
use super::failure::Failure;
use super::follow::Trail;
use super::human;
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
        // A stream that was resumed tells of the whole session.
        if event.body.cell() != Some(seen.cell) && !event.body.befalls_session() {
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
        EventBody::Display { mime, .. } => match plain_display(mime) {
            Some(text) => screen.guest_line(text),
            None => screen.note(&display_line(mime)),
        },
        EventBody::ApprovalWanted { approval } => {
            let why = approval::bound_by(approval).map(|why| format!(": {why}")).unwrap_or_default();
            let what = approval_subject(&approval.subject);
            screen.note(&format!("{what} waits for `belljar approve {}`{why}", approval.id))
        }
        event => match event.sentence().filter(|told| told.severity == Severity::Warning) {
            Some(told) => screen.warn(&told.text),
            None => Ok(()),
        },
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn displays_are_named_with_their_size() {
        let mime = json!({"image/png": "A".repeat(16_384), "text/plain": "a figure"});
        let line = display_line(mime.as_object().unwrap());
        assert_eq!(line, "display: image/png (12 KiB), text/plain");
    }
}

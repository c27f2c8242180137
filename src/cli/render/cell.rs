//! How a cell is shown: its events while it runs, and its end.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::human;
use super::screen::Screen;
use crate::cli::failure::Failure;
use crate::protocol::event::phrases::{approval_subject, bound_by, state_note, what_happened};
use crate::protocol::event::{EventBody, Severity};
use crate::protocol::result::{Artifact, Change, ExecutionResult, Reason, SMALL_PICTURE, Stream};
use crate::protocol::text::one_line;

/// Shows the part of an event that is of interest while its cell runs.
pub(in crate::cli) fn show_event(screen: &mut Screen, event: &EventBody) -> Result<(), Failure> {
    match event {
        EventBody::Output { stream, text, base64, .. } => {
            let bytes = base64.as_ref().and_then(|base64| BASE64.decode(base64).ok());
            screen.guest_bytes(*stream, text, bytes.as_deref())
        }
        EventBody::Display { mime, .. } => match plain_display(mime) {
            Some(text) => screen.guest_line(text),
            None => screen.note(&display_line(mime)),
        },
        EventBody::ApprovalWanted { approval } => {
            let why = bound_by(approval).map(|why| format!(": {why}")).unwrap_or_default();
            let what = approval_subject(&approval.subject);
            screen.note(&format!("{what} waits for `belljar approve {}`{why}", approval.id))
        }
        EventBody::CellQueued { commands_ahead: 1.., .. } => {
            event.sentence().map_or(Ok(()), |sentence| screen.note(&sentence.text))
        }
        event => match event.sentence().filter(|sentence| sentence.severity == Severity::Warning) {
            Some(sentence) => screen.warn(&sentence.text),
            None => Ok(()),
        },
    }
}

/// The form of a display that a terminal can show; none for a picture.
fn plain_display(mime: &Map<String, Value>) -> Option<&str> {
    let is_picture = mime.keys().any(|form| form.starts_with("image/"));
    mime.get("text/plain").filter(|_| !is_picture)?.as_str()
}

/// `display: image/png (12 KiB), text/plain`: only binary forms are shown with a size, and what is for models only is not
/// shown.
pub(in crate::cli) fn display_line(mime: &Map<String, Value>) -> String {
    let forms: Vec<String> = mime
        .iter()
        .filter(|(name, _)| *name != SMALL_PICTURE)
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

/// Shows a cell that has ended, with its output.
pub(in crate::cli) fn show_whole(screen: &mut Screen, result: &ExecutionResult) -> Result<(), Failure> {
    result.output.iter().try_for_each(|segment| screen.guest(segment.stream, &segment.text))?;
    show_end(screen, result, false)
}

/// Shows the end of a cell whose output is already shown. As with Python itself, for a script neither the value
/// of its last line nor the fact that it ended by `sys.exit` is shown.
pub(in crate::cli) fn show_end(
    screen: &mut Screen,
    result: &ExecutionResult,
    script: bool,
) -> Result<(), Failure> {
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
    // The variables of a script are gone afterwards anyway, but the note may say why it was ended.
    let note = if script { result.state.note.clone() } else { state_note(result) };
    match note {
        Some(note) => screen.warn(&note),
        None => Ok(()),
    }
}

pub(in crate::cli) fn artifact_line(artifact: &Artifact) -> String {
    // A file name may contain line breaks, and text after one would look like a message of Belljar.
    let path = one_line(&artifact.full_path());
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
        let mime = json!({"image/png": "A".repeat(16_384), "text/plain": "a figure", SMALL_PICTURE: "A"});
        let line = display_line(mime.as_object().unwrap());
        assert_eq!(line, "display: image/png (12 KiB), text/plain");
    }
}

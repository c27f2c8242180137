//! The report for a model on the result of a cell.
//!
//! The text has fixed parts (headings, exit code, state of the session) and elastic parts with the guest's
//! own text. Only the elastic parts are shortened, each in its middle, and all of them stand in fences that
//! their text cannot close: output is data, and cannot pass for a heading.

mod report_texts;
mod text;

use super::words::Words;
use crate::protocol::ask::Language;
use crate::protocol::result::{Change, ExecutionResult, Mode, Reason, SMALL_PICTURE, StateKind, Status};
use crate::protocol::text::visible_line;
pub(super) use text::shortened;
use text::{Draft, number_lines};

/// The most names listed per kind; the rest is only counted.
const LISTED: usize = 40;

/// A report of at most `limit_chars` characters for any result.
pub fn report(result: &ExecutionResult, language: Language, limit_chars: usize) -> String {
    let words = Words(language);
    let mut draft = Draft::default();
    draft.line(words.title(result.status));

    draft.line(words.output());
    let output = output_of(result);
    if output.is_empty() {
        draft.line(words.nothing());
    } else {
        draft.fenced(&output);
    }
    match result.status {
        Status::Success => {}
        Status::Failure => {
            draft.line(words.source());
            draft.fenced(&number_lines(&result.code));
            draft.line(words.error());
            exception(&mut draft, words, result);
        }
        Status::Timeout | Status::Crashed | Status::Interrupted => end(&mut draft, words, result),
    }
    if let Some(value) = &result.result {
        draft.line(words.value());
        draft.fenced(&value.repr);
    }
    displays(&mut draft, words, result);
    artifacts(&mut draft, words, result);
    truncation(&mut draft, words, result);
    state(&mut draft, words, result);
    draft.render(limit_chars, |left_out| words.left_out(left_out))
}

/// A report that begins with the output itself and says no more than it has to, for dialects whose models copy what is
/// around it.
pub fn plain_report(result: &ExecutionResult, language: Language, limit_chars: usize) -> String {
    let words = Words(language);
    let mut draft = Draft::bare();
    let output = output_of(result);
    if !output.is_empty() {
        draft.fenced(&output);
    }
    if let Some(value) = &result.result {
        draft.fenced(&value.repr);
    }
    match result.status {
        Status::Success if output.is_empty() && result.result.is_none() => {
            draft.line(words.printed_nothing());
        }
        Status::Success => {}
        Status::Failure => exception(&mut draft, words, result),
        Status::Timeout | Status::Crashed | Status::Interrupted => end(&mut draft, words, result),
    }
    displays(&mut draft, words, result);
    artifacts(&mut draft, words, result);
    truncation(&mut draft, words, result);
    let after = &result.state;
    if after.kind != StateKind::Kept || !after.completed_tool_calls.is_empty() || after.note.is_some() {
        state(&mut draft, words, result);
    }
    draft.render(limit_chars, |left_out| words.left_out(left_out))
}

/// Both streams in the order in which they were written.
fn output_of(result: &ExecutionResult) -> String {
    if result.output.is_empty() {
        return [result.stdout.as_str(), result.stderr.as_str()].concat();
    }
    result.output.iter().map(|segment| segment.text.as_str()).collect()
}

/// How a cell ended that neither succeeded nor raised an exception.
fn end(draft: &mut Draft, words: Words, result: &ExecutionResult) {
    match (result.status, result.reason) {
        (Status::Timeout, _) => {
            draft.line(&words.time_limit(result.timeout_s));
            draft.line(words.timeout_advice());
        }
        (Status::Interrupted, Reason::ByCancel) => draft.line(words.cancelled()),
        (Status::Interrupted, Reason::RolledBack) => draft.line(words.rolled_back()),
        (Status::Interrupted, _) => draft.line(words.interrupted()),
        (Status::Crashed | Status::Success | Status::Failure, reason) => {
            draft.line(&words.exit_code(result.exit_code));
            draft.line(&words.crash(reason, result.exit_code));
        }
    }
}

fn exception(draft: &mut Draft, words: Words, result: &ExecutionResult) {
    match &result.exception {
        Some(exception) if exception.traceback.is_empty() => draft.fenced(&exception.repr),
        Some(exception) => draft.fenced(&exception.traceback),
        None => match (result.reason, result.exit_code) {
            (Reason::Exit, Some(code)) => draft.fenced(&format!("SystemExit: {code}")),
            _ => draft.line(words.nothing()),
        },
    }
}

fn displays(draft: &mut Draft, words: Words, result: &ExecutionResult) {
    if result.displays.is_empty() {
        return;
    }
    draft.line(words.displays());
    let names = result.displays.iter().map(|display| {
        // The small copy is the daemon's own affair, and code that asked for it would get nothing.
        let types = display.mime.keys().filter(|mime| *mime != SMALL_PICTURE);
        let types: Vec<String> = types.map(|mime| visible_line(mime)).collect();
        types.join(", ")
    });
    list(draft, words, names);
}

fn artifacts(draft: &mut Draft, words: Words, result: &ExecutionResult) {
    if result.artifacts.is_empty() {
        return;
    }
    draft.line(words.artifacts());
    let lines = result.artifacts.iter().map(|artifact| {
        let path = visible_line(&artifact.full_path());
        match artifact.change {
            Change::New => format!("{path} ({}, {})", words.new_file(), words.bytes(artifact.bytes)),
            Change::Modified => format!("{path} ({}, {})", words.modified(), words.bytes(artifact.bytes)),
            Change::Removed => format!("{path} ({})", words.removed()),
        }
    });
    list(draft, words, lines);
}

/// Lists names in a fence, because the guest chooses them.
fn list(draft: &mut Draft, words: Words, items: impl ExactSizeIterator<Item = String>) {
    let total = items.len();
    let mut lines: Vec<String> = items.take(LISTED).collect();
    if total > LISTED {
        lines.push(words.more(total - LISTED));
    }
    draft.fenced(&lines.join("\n"));
}

fn truncation(draft: &mut Draft, words: Words, result: &ExecutionResult) {
    let cut = &result.truncated;
    let bytes = cut.stdout_bytes.saturating_add(cut.stderr_bytes);
    let mut lines = Vec::new();
    if bytes > 0 {
        lines.push(words.output_cut(bytes));
    }
    if cut.dropped_bytes > 0 {
        lines.push(words.output_dropped(cut.dropped_bytes));
    }
    if cut.displays > 0 {
        lines.push(words.displays_cut(cut.displays));
    }
    if cut.artifacts {
        lines.push(words.artifacts_cut().to_owned());
    }
    if !lines.is_empty() {
        draft.line(words.truncated());
        for line in &lines {
            draft.line(line);
        }
    }
}

fn state(draft: &mut Draft, words: Words, result: &ExecutionResult) {
    draft.line(words.state());
    let state = &result.state;
    match (result.mode, state.kind) {
        (Mode::Fork, StateKind::Kept | StateKind::Restored) => draft.line(words.forked()),
        (Mode::Command, StateKind::Kept | StateKind::Restored) => draft.line(words.variables_kept()),
        (_, StateKind::Lost) => draft.line(words.lost()),
        (Mode::Main | Mode::Scratch | Mode::Background, StateKind::Restored) => {
            draft.line(&words.restored(state.restored_to));
        }
        (Mode::Main | Mode::Scratch | Mode::Background, StateKind::Kept) => {
            draft.line(match (result.status, result.reason) {
                (_, Reason::Syntax | Reason::Policy) => words.kept_unrun(),
                (Status::Failure, _) => words.kept_failed(),
                (Status::Interrupted, _) => words.kept_interrupted(),
                (Status::Success | Status::Timeout | Status::Crashed, _) => words.variables_kept(),
            });
        }
    }
    if !state.maybe_assigned.is_empty() {
        draft.line(words.maybe_assigned());
        list(draft, words, state.maybe_assigned.iter().map(|name| visible_line(name)));
    }
    if state.unprotected {
        draft.line(words.unprotected());
    }
    if !state.completed_tool_calls.is_empty() {
        draft.line(words.tools_completed());
        list(draft, words, state.completed_tool_calls.iter().map(|name| visible_line(name)));
    }
    if let Some(note) = &state.note {
        draft.line(&visible_line(note));
    }
}

#[cfg(test)]
mod tests;

//! The line editor. It blocks, so it runs on a thread of its own.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ColorMode, CompletionType, ConditionalEventHandler, Config, Editor, Event, EventContext,
    EventHandler, Helper, KeyEvent, RepeatCount,
};
use tokio::sync::{mpsc, oneshot};

use super::command;
use super::complete::{indent_after, is_complete};
use super::names::{self, Question};
use crate::cli::commands::cell::stream::Stops;
use crate::cli::failure::Failure;
use crate::cli::render::highlight::highlighted;
use crate::cli::render::screen::Tint;
use crate::protocol::exit_codes as exit;

const PROMPT: &str = ">>> ";
const HISTORY: usize = 10_000;
/// The longest that the Tab key waits for what the session knows; a little longer than the session is waited for.
const ANSWER: Duration = Duration::from_secs(3);

type Inner = Editor<Python, FileHistory>;

pub struct LineEditor {
    /// None only while the editing thread has it.
    inner: Option<Box<Inner>>,
    history: PathBuf,
    color: bool,
    /// What Tab wants to know of the session.
    questions: mpsc::Receiver<AskedBySession>,
    /// The terminal's settings before editing, to restore them if the process has to end during an edit.
    before: Option<Termios>,
}

pub enum ReplInput {
    Cell(String),
    /// Ctrl-C: the line is discarded.
    Nothing,
    /// Ctrl-D, or the end of input.
    End,
    /// SIGTERM was received; the exit code for it.
    Terminated(u8),
}

impl LineEditor {
    /// A history that cannot be read is started anew.
    pub fn new(history: PathBuf, color: bool) -> Result<Self, Failure> {
        let config = Config::builder()
            .max_history_size(HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .map_err(|e| wrong(&e))?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .color_mode(if color { ColorMode::Enabled } else { ColorMode::Disabled })
            .build();
        let past = FileHistory::with_config(&config);
        let mut inner = Inner::with_history(config, past).map_err(|e| wrong(&e))?;
        let (asks, questions) = mpsc::channel(1);
        inner.set_helper(Some(Python { names: BTreeSet::new(), asks, color }));
        inner.bind_sequence(KeyEvent::from('\r'), EventHandler::Conditional(Box::new(Indent)));
        if let Some(folder) = history.parent() {
            // Without the folder, the history is not kept for the next time, which is acceptable.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        }
        let _ = inner.load_history(&history);
        let before = tcgetattr(io::stdin()).ok();
        Ok(Self { inner: Some(Box::new(inner)), history, color, questions, before })
    }

    /// Names that Tab offers from now on.
    pub fn set_names(&mut self, names: BTreeSet<String>) {
        if let Some(helper) = self.inner.as_mut().and_then(|inner| inner.helper_mut()) {
            helper.names = names;
        }
    }

    /// Reads what is typed next. `answer` finds out what Tab wants to know of the session.
    pub async fn read(
        &mut self,
        stops: &mut Stops,
        answer: impl AsyncFn(Question) -> Vec<String>,
    ) -> Result<ReplInput, Failure> {
        let Some(mut inner) = self.inner.take() else {
            return Err(Failure::new("the line editor is gone"));
        };
        let styled = if self.color { Tint::Green.paint(PROMPT) } else { PROMPT.to_owned() };
        let (sender, mut receiver) = oneshot::channel();
        std::thread::spawn(move || {
            let read = inner.readline(&(PROMPT, styled));
            // If the receiver is gone, the process is about to end.
            let _ = sender.send((inner, read));
        });
        let (mut inner, read) = loop {
            tokio::select! {
                read = &mut receiver => break read.map_err(|_| Failure::new("the line editor broke"))?,
                Some((question, reply)) = self.questions.recv() => {
                    // Nobody waits for an answer that took too long.
                    let _ = reply.try_send(answer(question).await);
                }
                // At the prompt Ctrl-C is read as a key, so SIGINT has nothing to interrupt.
                code = stops.next() => if code == exit::TERMINATED { return Ok(ReplInput::Terminated(code)) },
            }
        };
        let input = match read {
            Ok(text) => {
                if inner.add_history_entry(text.as_str()).is_ok_and(|added| added) {
                    let _ = inner.append_history(&self.history);
                }
                Ok(ReplInput::Cell(text))
            }
            Err(ReadlineError::Interrupted) => Ok(ReplInput::Nothing),
            Err(ReadlineError::Eof) => Ok(ReplInput::End),
            Err(error) => Err(wrong(&error)),
        };
        self.inner = Some(inner);
        input
    }
}

impl Drop for LineEditor {
    fn drop(&mut self) {
        // The terminal's settings are changed only while a thread is still editing.
        if let (None, Some(before)) = (&self.inner, &self.before) {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn wrong(error: &ReadlineError) -> Failure {
    Failure::new(format!("failed to read from the terminal: {error}"))
}

/// On Enter, if the text is not complete, begins the next line with the indentation that it needs.
struct Indent;

impl ConditionalEventHandler for Indent {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let text = context.line();
        // With the cursor inside of the text, the editor's default applies.
        let goes_on = context.pos() == text.len() && command::parse(text).is_none() && !is_complete(text);
        goes_on.then(|| Cmd::Insert(1, format!("\n{}", indent_after(text))))
    }
}

/// A question and where its answer goes.
type AskedBySession = (Question, std::sync::mpsc::SyncSender<Vec<String>>);

/// The editor's knowledge of Python.
struct Python {
    names: BTreeSet<String>,
    asks: mpsc::Sender<AskedBySession>,
    color: bool,
}

impl Helper for Python {}

impl Hinter for Python {
    type Hint = String;
}

impl Validator for Python {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let input = context.input();
        let whole = command::parse(input).is_some() || is_complete(input);
        Ok(if whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Python {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let Some((start, question)) = names::question(line, at) else {
            return Ok(names::offers(&self.names, line, at));
        };
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let asked = self.asks.try_send((question, reply)).is_ok();
        let known = if asked { answer.recv_timeout(ANSWER).unwrap_or_default() } else { Vec::new() };
        let before = line.get(..start).unwrap_or(line);
        let word = names::unescaped(line.get(start..at).unwrap_or_default(), before);
        // Names that are nobody's business are offered to those who begin them.
        let is_begun =
            |name: &String| name.starts_with(&word) && (!word.is_empty() || !name.starts_with('_'));
        let begun = known.into_iter().filter(is_begun);
        Ok((start, begun.filter_map(|name| names::inert(&name, before)).collect()))
    }
}

impl Highlighter for Python {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if self.color { Cow::Owned(highlighted(line)) } else { Cow::Borrowed(line) }
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.color
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tab_offers_no_file_whose_name_would_run() {
        let (asks, mut questions) = mpsc::channel::<AskedBySession>(1);
        std::thread::spawn(move || {
            while let Some((_, reply)) = questions.blocking_recv() {
                let files = ["data.csv", "data{tools.touch()}", "data$(id)", "data 2.csv"];
                reply.send(files.map(str::to_owned).into()).unwrap();
            }
        });
        let python = Python { names: BTreeSet::new(), asks, color: false };
        let history = rustyline::history::MemHistory::new();
        let offered = |line: &str| {
            let context = rustyline::Context::new(&history);
            python.complete(line, line.len(), &context).unwrap().1
        };
        assert_eq!(offered("%cd da"), ["data.csv"]);
        for line in ["!cat \"da", "open(f'da"] {
            assert_eq!(offered(line), ["data.csv", "data 2.csv"], "{line}");
        }
        assert_eq!(offered("!cat da"), ["data.csv", "data\\ 2.csv"]);
        // What Tab has put there goes on.
        assert_eq!(offered("!cat data\\ "), ["data\\ 2.csv"]);
        assert_eq!(offered("open('da").len(), 4);
    }
}

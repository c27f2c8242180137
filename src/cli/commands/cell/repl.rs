//! `belljar repl`: a person types Python into a session.

mod command;
mod complete;
mod editor;
mod names;
mod picture;

use std::time::Duration;

use clap::Args;

use crate::protocol::api::{
    FileKind, FolderView, NewSession, RunCell, SessionView, Undo, Undone, VariableList,
};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::SessionName;
use crate::protocol::problem::Code;
use crate::protocol::result::{ExecutionResult, Mode, Stream};

use self::command::Command;
use self::editor::{LineEditor, ReplInput};
use self::names::Question;
use self::picture::Protocol;
use crate::cli::args::{SandboxArgs, SessionFlag};
use crate::cli::client::http::{Client, escaped_path};
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::cell::missing_package;
use crate::cli::commands::cell::run::{FirstSandbox, ThrowAway};
use crate::cli::commands::cell::silence::MoreTime;
use crate::cli::commands::cell::stream::{End, Stops, stream};
use crate::cli::commands::session::act::show_undone;
use crate::cli::commands::session::inspect::show_variables;
use crate::cli::commands::session::install::begin_with;
use crate::cli::commands::session::ls::show_files;
use crate::cli::commands::session::new::{made_of, note_preloaded};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_end;

/// Longest wait for the names that the Tab key offers.
const NAMES: Duration = Duration::from_secs(2);

/// Type Python into a session.
///
/// Ctrl-C interrupts the cell that runs; Ctrl-D leaves. A named session lives on, and is made if it is not there;
/// one without a name is removed at the end. `:help` lists what else can be typed.
#[derive(Debug, Args)]
pub(in crate::cli) struct Repl {
    #[command(flatten)]
    session: SessionFlag,
    /// Keep the session at the end, also if it was not named.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    sandbox: SandboxArgs,
}

impl Repl {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        if context.json {
            return Err(Failure::usage("`repl` is for people and has no JSON")
                .hint("programs use `belljar exec --json`"));
        }
        let client = context.client();
        let named = self.session.named()?;
        let (passing, session) = if named.is_none() && !self.keep {
            let (passing, view) = ThrowAway::hold(&client, self.sandbox, FirstSandbox::AtOnce).await?;
            (Some(passing), view)
        } else {
            (None, self.open(&client, named.as_ref()).await?)
        };
        context.screen.note(&made_of(&session))?;
        note_preloaded(&mut context.screen, &session)?;
        let editor =
            LineEditor::new(context.paths.home().join("repl").join("history"), context.screen.colors_data())?;
        let protocol =
            Protocol::of_terminal(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        let terminal = context.screen.is_one_terminal();
        let key = named.unwrap_or_else(|| session.name.into());
        if terminal {
            context.screen.note(&format!("session `{key}`; `:help` for help, Ctrl-D to leave"))?;
        }
        let talk = ReplDialog {
            client: context.client(),
            session: key.clone(),
            timeout_s: None,
            protocol: protocol.filter(|_| terminal),
            stops: Stops::new()?,
        };
        let end = talk.run(context, editor).await;
        let end_note = match passing {
            Some(passing) => {
                let warning = passing.remove(&client).await;
                warning.iter().try_for_each(|warning| context.screen.warn(warning))?;
                "the session is removed; `--keep`, or `-s NAME`, keeps it".to_owned()
            }
            None => format!(
                "the session lives on: `belljar repl -s {key}` comes back to it, `belljar rm {key}` removes it"
            ),
        };
        if matches!(end, Ok(exit::SUCCESS)) {
            context.screen.note(&end_note)?;
        }
        end
    }

    /// Opens the named session, and creates it if it does not exist; creates a new one if none is named.
    async fn open(self, client: &Client, named: Option<&SessionKey>) -> Result<SessionView, Failure> {
        if let Some(name) = named {
            match client.get(&format!("/v1/sessions/{name}")).await {
                Ok(_) if self.sandbox.is_given() => {
                    return Err(Failure::usage(
                        "a session that is there keeps the sandbox that it was made with",
                    )
                    .hint("leave the flags of the sandbox out, or name another session"));
                }
                Ok(answer) => return answer.parse(),
                Err(failure) if failure.has_code(Code::NoSuchSession) => {}
                Err(failure) => return Err(failure),
            }
        }
        let name = named.map(|key| SessionName::parse(key.as_str())).transpose().map_err(Failure::usage)?;
        let with = self.sandbox.with.clone();
        let new = NewSession { name, ..self.sandbox.session()? };
        let made: SessionView = client.post("/v1/sessions", &new).await?.parse()?;
        begin_with(client, &made.name.clone().into(), with).await?;
        Ok(made)
    }
}

/// What a session answers to a question of the Tab key; nothing if it does not answer soon.
async fn known(client: &Client, session: &SessionKey, question: Question) -> Vec<String> {
    let answer = async {
        match question {
            Question::Members { of, keys, begins } => {
                // Private names would take the room of others in the answer.
                let private = begins.starts_with('_');
                let (of, begins) = (escaped_path(&of), escaped_path(&begins));
                let asked = format!("of={of}&keys={keys}&begins={begins}&private={private}");
                let path = format!("/v1/sessions/{session}/variables?{asked}");
                let list: VariableList = client.get(&path).await?.parse()?;
                Ok(names::usable_members(&list.variables, keys))
            }
            Question::Files { folder } => {
                let path = format!("/v1/sessions/{session}/files/{}", escaped_path(&folder));
                let list: FolderView = client.get(&path).await?.parse()?;
                let entries = list.entries.into_iter().filter(|entry| names::can_be_quoted(&entry.name));
                let shown = entries.map(|entry| match entry.kind {
                    FileKind::Folder => format!("{}/", entry.name),
                    FileKind::File | FileKind::Other => entry.name,
                });
                Ok::<_, Failure>(shown.collect())
            }
        }
    };
    tokio::time::timeout(NAMES, answer).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// The dialog between a person and a session.
struct ReplDialog {
    client: Client,
    session: SessionKey,
    /// The time limit of each cell; none for the session's own.
    timeout_s: Option<f64>,
    /// How pictures are shown; none if they cannot be.
    protocol: Option<Protocol>,
    stops: Stops,
}

impl ReplDialog {
    async fn run(mut self, context: &mut Context, mut editor: LineEditor) -> Result<u8, Failure> {
        loop {
            editor.set_names(self.names().await);
            context.screen.end_line(Stream::Stdout)?;
            context.screen.end_line(Stream::Stderr)?;
            let (client, session) = (&self.client, &self.session);
            let read = editor.read(&mut self.stops, async |question| known(client, session, question).await);
            let text = match read.await? {
                ReplInput::Cell(text) => text,
                ReplInput::Nothing => continue,
                ReplInput::Terminated(code) => return Ok(code),
                ReplInput::End => break,
            };
            // The words that leave Python's own prompt leave this one, too.
            if matches!(text.trim(), "exit" | "exit()" | "quit" | "quit()") {
                break;
            }
            match self.answer(context, text).await {
                Ok(None) => {}
                Ok(Some(code)) => return Ok(code),
                // Without a session or a screen the dialog cannot continue.
                Err(failure) if failure.has_code(Code::NoSuchSession) || failure.is_quiet() => {
                    return Err(failure);
                }
                Err(failure) => context.screen.failure(&failure, false),
            }
        }
        Ok(exit::SUCCESS)
    }

    /// Names of variables, modules and tools for the Tab key. Without them it still offers Python's keywords.
    async fn names(&self) -> std::collections::BTreeSet<String> {
        let path = format!("/v1/sessions/{}/variables?imports=true", self.session);
        let answer = tokio::time::timeout(NAMES, self.client.get(&path)).await;
        let list = answer.ok().and_then(Result::ok).and_then(|answer| answer.parse::<VariableList>().ok());
        list.map(|list| names::usable(&list.variables)).unwrap_or_default()
    }

    /// Handles one input. Returns an exit code if the dialog has to end.
    async fn answer(&mut self, context: &mut Context, text: String) -> Result<Option<u8>, Failure> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        match command::parse(&text) {
            Some(Ok(command)) => self.obey(context, command).await.map(|()| None),
            Some(Err(message)) => context.screen.error(&message).map(|()| None),
            None => self.cell(context, text).await,
        }
    }

    async fn cell(&mut self, context: &mut Context, code: String) -> Result<Option<u8>, Failure> {
        let cell = RunCell { code, timeout_s: self.timeout_s, mode: Mode::Main };
        match stream(context, &self.client, &self.session, (&cell, MoreTime::REPL), &mut self.stops).await? {
            End::Left(exit::TERMINATED) => Ok(Some(exit::TERMINATED)),
            End::Left(_) => {
                let name = &self.session;
                let note = format!("the cell runs on; follow it with `belljar logs -f -s {name}`");
                context.screen.note(&note).map(|()| None)
            }
            End::Finished(result) => {
                show_end(&mut context.screen, &result, false)?;
                missing_package::name_image(context, &self.client, &result).await?;
                self.show_pictures(context, &result).map(|()| None)
            }
        }
    }

    fn show_pictures(&self, context: &mut Context, result: &ExecutionResult) -> Result<(), Failure> {
        let folder = context.paths.home().join("repl");
        for (index, png) in picture::pictures(result).iter().enumerate() {
            if let Some(protocol) = self.protocol.filter(|_| picture::fits_terminal(png)) {
                context.screen.end_line(Stream::Stdout)?;
                context.screen.raw(protocol.sequence(png).as_bytes())?;
            }
            let saved = picture::save(&folder, &self.session, result.cell, index + 1, png);
            let path = saved.map_err(|e| {
                Failure::io(format_args!("failed to save a picture in `{}`", folder.display()), &e)
            })?;
            context.screen.note(&format!("picture: {}", path.display()))?;
        }
        Ok(())
    }

    async fn obey(&mut self, context: &mut Context, command: Command) -> Result<(), Failure> {
        let session = &self.session;
        match command {
            Command::Undo(cells) => {
                let path = format!("/v1/sessions/{session}/undo");
                let undone: Undone = self.client.post(&path, &Undo { cells }).await?.parse()?;
                show_undone(&mut context.screen, &undone)
            }
            Command::Vars => {
                let path = format!("/v1/sessions/{session}/variables");
                show_variables(&mut context.screen, &self.client.get(&path).await?.parse()?)
            }
            Command::Timeout(None) => context.screen.note(&match self.timeout_s {
                Some(seconds) => format!("a cell may run for {seconds} s"),
                None => "a cell may run as long as the configuration says".to_owned(),
            }),
            Command::Timeout(Some(seconds)) => {
                self.timeout_s = Some(seconds);
                context.screen.note(&format!("from now on a cell may run for {seconds} s"))
            }
            Command::Reset => {
                self.client.post_empty(&format!("/v1/sessions/{session}/reset")).await?;
                context.screen.note("the variables are gone; files remain")
            }
            Command::Files => {
                let path = format!("/v1/sessions/{session}/files");
                show_files(&mut context.screen, &self.client.get(&path).await?.parse()?)
            }
            Command::Help => {
                let width = command::WORDS.iter().map(|(usage, _)| usage.len()).max().unwrap_or(0);
                command::WORDS
                    .iter()
                    .try_for_each(|(usage, what)| context.screen.line(&format!("{usage:<width$}  {what}")))?;
                context.screen.note("an empty line ends a block, `NAME?` shows what something is, Tab completes names, attributes, columns \
                     and paths, Ctrl-C interrupts")
            }
        }
    }
}

//! `belljar run`: run a script or a notebook in a session of its own that is removed afterwards.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;

use crate::cli::args::{SandboxArgs, read_text, seconds};
use crate::cli::client::http::{Client, Events};
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::cell::missing_package;
use crate::cli::commands::cell::notebook;
use crate::cli::commands::cell::silence::MoreTime;
use crate::cli::commands::cell::stream::{End, Stops, stream};
use crate::cli::commands::session::install::begin_with;
use crate::cli::commands::session::new::made_of;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_end;
use crate::protocol::api::{NewSession, RunCell, SessionView};
use crate::protocol::exit_codes::{self as exit, script_exit_code};
use crate::protocol::ids::CellNumber;
use crate::protocol::receipt::Backend;
use crate::protocol::result::{Change, ExecutionResult, Mode, Reason, Status};

/// Run a script or a notebook in a sandbox of its own, which is removed afterwards.
///
/// The exit code is the script's own. It has its arguments in `sys.argv`, as with `python FILE ARGS`;
/// those that begin with a hyphen have to follow `--`. The cells of a notebook (`FILE.ipynb`) run one after
/// the other, until one does not succeed.
#[derive(Debug, Args)]
pub(in crate::cli) struct Run {
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// How long it may run, or each cell of a notebook, for example 30s or 5min.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// The script or notebook, or `-` to read a script from stdin.
    file: PathBuf,
    /// Arguments for the script.
    #[arg(value_name = "ARGS")]
    args: Vec<String>,
}

/// The shortest flag that may be one of ours with a slip of the hand.
const TYPO_BYTES: usize = "--abcd".len();

/// What to say of a flag that `run` and `job run` do not have and that follows a script: it is most likely the script's.
pub(in crate::cli) fn script_argument(words: &[OsString], error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let words: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    let at = words.iter().position(|word| word == flag)?;
    let (ours, its) = (words.get(..at)?.join(" "), words.get(at..)?.join(" "));
    let mut named = ours.split(' ').filter(|word| !word.starts_with('-')).skip_while(|word| *word == "job");
    let has_script = named.next() == Some("run") && named.next().is_some();
    let near = match error.get(ContextKind::SuggestedArg) {
        // A flag of a few letters is near to any.
        Some(ContextValue::String(near)) if flag.len() >= TYPO_BYTES => format!(" (did you mean `{near}`?)"),
        _ => String::new(),
    };
    (error.kind() == ErrorKind::UnknownArgument && has_script).then(|| {
        Failure::usage(format!(
            "`{flag}` is no flag of `run`{near}; arguments of the script that begin with a hyphen follow `--`: `belljar {ours} -- {its}`"
        ))
    })
}

impl Run {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let (program, circumstances) = (self.program()?, self.circumstances());
        let client = context.client();
        // From here on no signal may end this process before the session is removed again.
        let mut stops = Stops::new()?;
        let session = ThrowAway::make(context, &client, self.sandbox, FirstSandbox::AtOnce).await?;
        let end = match prepare(&client, &session.name, circumstances).await {
            Ok(()) => program.run(context, &client, &session.name, &mut stops).await,
            Err(failure) => Err(failure),
        };
        let not_removed = session.remove(&client).await;
        let code = end?;
        not_removed.iter().try_for_each(|warning| context.screen.warn(warning))?;
        Ok(code)
    }

    fn program(&self) -> Result<Program, Failure> {
        let is_notebook = notebook::is_notebook(&self.file);
        Ok(Program {
            file: self.file.display().to_string(),
            cells: if is_notebook { notebook::read(&self.file)? } else { vec![self.code()?] },
            is_notebook,
            timeout_s: self.timeout,
            keeps_files: self.sandbox.workspace.is_some(),
        })
    }

    /// Code that sets what a script expects when Python itself runs it. It is a cell of its own, so that the script's
    /// lines keep their numbers, and statements that have to come first in a file can.
    fn circumstances(&self) -> String {
        let file = self.file.display().to_string();
        let argv: Vec<&str> =
            std::iter::once(file.as_str()).chain(self.args.iter().map(String::as_str)).collect();
        let mut code = format!("__import__('sys').argv = {}", json!(argv));
        let is_script = !notebook::is_notebook(&self.file);
        if let Some(name) = self.file.file_name().filter(|name| is_script && *name != "-") {
            // The script itself is not in the workspace, but files next to it may be.
            let _ = write!(code, "\n__file__ = {}", json!(format!("/workspace/{}", name.to_string_lossy())));
        }
        code
    }

    fn code(&self) -> Result<String, Failure> {
        let code = read_text(&self.file, "script")?;
        // Some editors put a byte order mark before the text, which Python does not accept in code.
        Ok(code.strip_prefix('\u{feff}').map(ToOwned::to_owned).unwrap_or(code))
    }
}

async fn prepare(client: &Client, session: &SessionKey, code: String) -> Result<(), Failure> {
    let cell = RunCell { code, timeout_s: None, mode: Mode::Main };
    let answer = client.post(&format!("/v1/sessions/{session}/cells?wait=true"), &cell).await?;
    let result: ExecutionResult = answer.parse()?;
    match result.status {
        Status::Success => Ok(()),
        status => Err(Failure::new(format!("the script could not be given its arguments: {status:?}"))),
    }
}

/// What is run: a script as a single cell, or the cells of a notebook.
struct Program {
    /// The file as the caller named it.
    file: String,
    cells: Vec<String>,
    is_notebook: bool,
    /// The time of each cell; none for the usual time.
    timeout_s: Option<f64>,
    /// Whether the files that it leaves outlive the session.
    keeps_files: bool,
}

impl Program {
    /// Runs the cells one after the other, up to the first that does not succeed. Returns the exit code.
    async fn run(
        &self,
        context: &mut Context,
        client: &Client,
        session: &SessionKey,
        stops: &mut Stops,
    ) -> Result<u8, Failure> {
        let (mut ran, mut leaves_files, mut code) = (Vec::new(), false, exit::SUCCESS);
        for source in &self.cells {
            let cell = RunCell { code: source.clone(), timeout_s: self.timeout_s, mode: Mode::Main };
            let end = stream(context, client, session, (&cell, MoreTime::RUN), stops).await?;
            let mut result = match end {
                End::Left(code) => return Ok(code),
                End::Finished(result) => result,
            };
            ran.push(result.cell);
            self.name_cells(&mut result, &ran);
            leaves_files |= result.artifacts.iter().any(|artifact| artifact.change != Change::Removed);
            context.show_value(&result, |screen, result| show_end(screen, result, !self.is_notebook))?;
            code = script_exit_code(&result);
            if result.status != Status::Success {
                missing_package::name_image(context, client, &result).await?;
                if self.is_notebook && !context.json {
                    let (number, all) = (ran.len(), self.cells.len());
                    context.screen.error(&format!("stopped at code cell {number} of {all}"))?;
                }
                break;
            }
            // As in a script, `sys.exit()` is the end.
            if result.reason == Reason::Exit0 {
                break;
            }
        }
        if leaves_files && !self.keeps_files && !context.json {
            context.screen.note("files are gone with the session; `--workspace DIR` keeps them")?;
        }
        Ok(code)
    }

    /// Shows in tracebacks the file whose cells ran under these numbers, and in hints how to run it, because the user knows
    /// neither the numbers nor the session.
    fn name_cells(&self, result: &mut ExecutionResult, ran: &[CellNumber]) {
        let Some(exception) = &mut result.exception else { return };
        for (index, cell) in ran.iter().enumerate() {
            let place = if self.is_notebook { format!(", code cell {}", index + 1) } else { String::new() };
            let named = format!("File \"{}{place}\"", self.file);
            exception.traceback = exception.traceback.replace(&format!("File \"<cell {cell}>\""), &named);
        }
        if let Some(hinted) = missing_package::for_run(&exception.traceback) {
            exception.traceback = hinted;
        }
    }
}

/// When a session gets its first sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum FirstSandbox {
    AtOnce,
    WhenNeeded,
}

/// A session that is removed when this process ends, no matter how it ends.
pub(in crate::cli) struct ThrowAway {
    pub name: SessionKey,
    /// If this process is killed, the connection closes, and the daemon removes the session.
    _hold_stream: Events,
}

impl ThrowAway {
    pub async fn make(
        context: &mut Context,
        client: &Client,
        sandbox: SandboxArgs,
        first: FirstSandbox,
    ) -> Result<Self, Failure> {
        let (made, view) = Self::hold(client, sandbox, first).await?;
        // Weaker isolation than usual is never used silently.
        if view.backend != Backend::Docker && !context.json {
            context.screen.note(&made_of(&view))?;
        }
        Ok(made)
    }

    /// Makes a session that the daemon removes when this process ends, however that happens.
    pub async fn hold(
        client: &Client,
        sandbox: SandboxArgs,
        first: FirstSandbox,
    ) -> Result<(Self, SessionView), Failure> {
        let with = sandbox.with.clone();
        let lazy = first == FirstSandbox::WhenNeeded;
        let new = NewSession { ephemeral: true, lazy, ..sandbox.session()? };
        let session: SessionView = client.post("/v1/sessions", &new).await?.parse()?;
        match client.events::<()>(&format!("/v1/sessions/{}/hold", session.id), None).await {
            Ok(hold_stream) => {
                let name: SessionKey = session.name.clone().into();
                begin_with(client, &name, with).await?;
                Ok((Self { name, _hold_stream: hold_stream }, session))
            }
            Err(failure) => {
                let _ = client.delete(&format!("/v1/sessions/{}?wait=true", session.id)).await;
                Err(Failure::new(format!("the session cannot be held: {failure}")))
            }
        }
    }

    /// Lets the session stay for its idle time when this process ends.
    pub async fn leave(&self, client: &Client) -> Result<(), Failure> {
        client.post_empty(&format!("/v1/sessions/{}/linger", self.name)).await.map(drop)
    }

    /// Removes the session. Returns a warning if that failed.
    pub async fn remove(self, client: &Client) -> Option<String> {
        let failure = client.delete(&format!("/v1/sessions/{}?wait=true", self.name)).await.err()?;
        Some(format!("the session `{}` was not removed: {failure}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::entry::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn a_flag_that_is_the_scripts_is_said_to_be() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            script_argument(&words, &Cli::try_parse_from(&words).unwrap_err()).map(|failure| failure.message)
        };
        assert_eq!(
            said("belljar run s.py a --c -d").unwrap(),
            "`--c` is no flag of `run`; arguments of the script that begin with a hyphen follow `--`: \
             `belljar run s.py a -- --c -d`"
        );
        assert!(said("belljar job run s.py --c").unwrap().ends_with("`belljar job run s.py -- --c`"));
        assert_eq!(
            said("belljar run s.py --timout 3").unwrap(),
            "`--timout` is no flag of `run` (did you mean `--timeout`?); arguments of the script that begin with a hyphen \
             follow `--`: `belljar run s.py -- --timout 3`"
        );
        for other in ["belljar run --c s.py", "belljar ps --c", "belljar run", "belljar new run --c"] {
            assert_eq!(said(other), None, "{other}");
        }
    }

    #[test]
    fn a_script_has_the_arguments_that_are_not_ours() {
        let circumstances = |line: &[&str]| match Cli::try_parse_from(line).unwrap().command {
            Command::Run(run) => (run.timeout, run.circumstances()),
            _ => unreachable!(),
        };
        let given = ["belljar", "run", "a/b.py", "é\"\n", "--timeout", "2s", "--", "--timeout", "-"];
        let expected = r#"__import__('sys').argv = ["a/b.py","é\"\n","--timeout","-"]"#;
        let file = "\n__file__ = \"/workspace/b.py\"";
        assert_eq!(circumstances(&given), (Some(2.0), format!("{expected}{file}")));
        let stdin = circumstances(&["belljar", "run", "-"]);
        assert_eq!(stdin.1, r#"__import__('sys').argv = ["-"]"#);
        // Notebooks have no `__file__`.
        let notebook = circumstances(&["belljar", "run", "a.ipynb"]);
        assert_eq!(notebook.1, r#"__import__('sys').argv = ["a.ipynb"]"#);
    }
}

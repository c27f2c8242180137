//! `belljar jupyter`: the kernel by which Jupyter runs notebooks in sessions. It is a module of the Python package, which
//! also writes what Jupyter has to know of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tokio::time::timeout;

use crate::cli::args::seconds;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::SessionName;
use crate::protocol::text::sanitized;

/// Longest wait for Python, which reads and writes some small files.
const INSTALL: Duration = Duration::from_secs(60);
/// What Python exits with if it has no package `belljar`.
const NO_PACKAGE: i32 = 69;
/// Python would look for modules in the working directory first, whatever lies there.
const ENTRY: &str = "import sys
sys.path[:] = filter(None, sys.path)
try:
    from belljar.jupyter import main
except ModuleNotFoundError as error:
    if error.name not in ('belljar', 'belljar.jupyter'):
        raise
    sys.exit(69)
main()";

/// Run notebooks of Jupyter in sessions.
#[derive(Debug, Args)]
pub(in crate::cli) struct Jupyter {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Install(Install),
}

/// Tell Jupyter of a kernel whose notebooks run in sessions.
///
/// The kernel is part of the Python package `belljar`: `pip install 'belljar[jupyter]'`.
#[derive(Debug, Args)]
struct Install {
    /// The name of the kernel.
    #[arg(long, default_value = "belljar", value_parser = SessionName::parse)]
    name: SessionName,
    /// A session that its notebooks share, and that stays; otherwise each has one, which goes with its kernel.
    #[arg(long, value_name = "SESSION", value_parser = SessionName::parse)]
    session: Option<SessionName>,
    /// The image of sessions that it makes; see `belljar image list`.
    #[arg(long)]
    image: Option<String>,
    /// How long a cell may run, for example 5min; otherwise as long as the daemon allows.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// Below this folder, such as that of an environment of Python.
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    prefix: Option<PathBuf>,
    /// For your user, which is the default.
    #[arg(long)]
    user: bool,
    /// The Python that has the package, and that runs the kernel.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
}

impl Jupyter {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let Action::Install(install) = self.action;
        let path = install.run().await?;
        context.show_value(&json!({"kernel": install.name, "path": path}), |screen, _| {
            screen.line(&path)?;
            screen.note(&format!("notebooks find it as the kernel `{}`", install.name))
        })
    }
}

impl Install {
    /// Returns the folder that tells Jupyter of the kernel.
    async fn run(&self) -> Result<String, Failure> {
        let python = self.python.display();
        let mut command = tokio::process::Command::new(&self.python);
        command.arg("-c").arg(ENTRY).args(self.words()).stdin(Stdio::null()).kill_on_drop(true);
        let late = |_| Failure::new(format!("`{python}` did not answer within {} s", INSTALL.as_secs()));
        let output = timeout(INSTALL, command.output()).await.map_err(late)?.map_err(|e| {
            Failure::io(format_args!("failed to run `{python}`"), &e)
                .hint("name the Python that has the package `belljar`, with `--python PROGRAM`")
        })?;
        if output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout);
            let path = said.trim().lines().last().map(sanitized);
            return path.ok_or_else(|| Failure::new(format!("`{python}` did not say where the kernel is")));
        }
        if output.status.code() == Some(NO_PACKAGE) {
            return Err(Failure::new(format!("`{python}` has no package `belljar`, or an old one")).hint(format!(
                "`{python} -m pip install 'belljar[jupyter]'` installs it; `--python PROGRAM` names another Python"
            )));
        }
        let failure = failure_of(&String::from_utf8_lossy(&output.stderr));
        let is_usage = output.status.code() == Some(i32::from(exit::USAGE));
        Err(Failure { exit: if is_usage { exit::USAGE } else { failure.exit }, ..failure })
    }

    /// The arguments for Python.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["install".into(), format!("--name={}", self.name).into()];
        let timeout = self.timeout.map(|seconds| seconds.to_string());
        let session = self.session.as_ref().map(ToString::to_string);
        for (flag, value) in [("session", &session), ("image", &self.image), ("timeout", &timeout)] {
            words.extend(value.iter().map(|value| format!("--{flag}={value}").into()));
        }
        if let Some(prefix) = &self.prefix {
            words.push("--prefix".into());
            // The folder is this process's to find, however it is written.
            words.push(std::path::absolute(prefix).unwrap_or_else(|_| prefix.clone()).into());
        }
        words
    }
}

/// What Python says before it exits: `error: …` and perhaps `hint: …`, or a traceback.
fn failure_of(stderr: &str) -> Failure {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let after = |word: &str| lines.iter().find_map(|line| line.strip_prefix(word)).map(sanitized);
    let last = || lines.last().map_or_else(|| "it said nothing".to_owned(), |line| sanitized(line));
    let message = after("error: ").unwrap_or_else(|| format!("the kernel was not installed: {}", last()));
    let failure = Failure::new(message);
    match after("hint: ") {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::entry::{Cli, Command};
    use clap::Parser as _;

    fn words(line: &str) -> Vec<String> {
        let Command::Jupyter(Jupyter { action: Action::Install(install) }) =
            Cli::try_parse_from(line.split(' ')).unwrap().command
        else {
            panic!("not jupyter install")
        };
        install.words().into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn python_gets_what_was_asked_for() {
        assert_eq!(words("belljar jupyter install"), ["install", "--name=belljar"]);
        let line = "belljar jupyter install --name a --session b --image c --timeout 2min --prefix /d";
        assert_eq!(
            words(line),
            ["install", "--name=a", "--session=b", "--image=c", "--timeout=120", "--prefix", "/d"]
        );
        for wrong in ["--user --prefix /a", "--session a/b", "--timeout 0"] {
            let line = format!("belljar jupyter install {wrong}");
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_python_says_is_told() {
        let failure = failure_of("error: there is no `ipykernel`\n  hint: pip install ipykernel\n");
        assert_eq!(failure.message, "there is no `ipykernel`");
        assert_eq!(failure.hint.as_deref(), Some("pip install ipykernel"));
        let failure = failure_of("Traceback:\n  File\nImportError: no\n");
        assert_eq!(
            (failure.message.as_str(), failure.hint),
            ("the kernel was not installed: ImportError: no", None)
        );
    }

    #[test]
    fn the_code_for_python_has_the_exit_code_that_is_looked_for() {
        assert!(ENTRY.contains(&format!("sys.exit({NO_PACKAGE})")));
    }
}

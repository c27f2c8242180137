//! From the command line to an exit code.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;

use crate::config::{Paths, Serving};
use crate::protocol::exit_codes as exit;

use super::args::{Cli, Command};
use super::client::Client;
use super::failure::Failure;
use super::screen::{Color, Screen};
use super::start::Starter;
use super::welcome::welcome;

/// What `main` has to do. Becoming the daemon is left to it: the command line knows no daemon.
pub enum Start {
    Done(ExitCode),
    Daemon { config: Option<PathBuf>, serving: Serving },
}

/// What every command gets.
pub(super) struct Context {
    pub screen: Screen,
    pub json: bool,
    pub paths: Paths,
    config: Option<PathBuf>,
}

impl Context {
    /// For commands that need a daemon: one is started if there is none.
    pub fn client(&self) -> Client {
        let allowed =
            std::env::var_os("BELLJAR_NO_AUTOSTART").is_none_or(|value| value.is_empty() || value == "0");
        let starter = allowed.then(|| Starter {
            logs_dir: self.paths.logs_dir(),
            config: self.config.clone(),
            announce: self.screen.is_watched(),
        });
        Client::new(self.paths.socket().to_owned(), starter)
    }

    /// The configuration file that was named, if one was.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// For commands about the daemon itself.
    pub fn client_of_running_daemon(&self) -> Client {
        Client::new(self.paths.socket().to_owned(), None)
    }
}

/// Runs the command that the arguments ask for.
pub fn start(args: impl IntoIterator<Item = OsString>) -> Start {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.len() <= 1 {
        let said = welcome(&mut Screen::new(Color::Auto));
        return Start::Done(ExitCode::from(said.map_or_else(|failure| failure.exit, |()| exit::SUCCESS)));
    }
    let json = asks_for_json(&args);
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() && json {
                Screen::new(Color::Never).failure(&Failure::from(&error), true);
            } else {
                // If nobody reads it, nobody needs it.
                let _ = error.print();
            }
            return Start::Done(ExitCode::from(exit_of(&error)));
        }
    };
    if let Command::Daemon(daemon) = &cli.command
        && daemon.is_foreground()
    {
        return Start::Daemon { config: cli.config, serving: daemon.serving() };
    }
    let mut screen = Screen::new(cli.color);
    let json = cli.json;
    let code = match prepare(&cli) {
        Ok((runtime, paths, config)) => {
            let mut context = Context { screen, json, paths, config };
            let outcome = runtime.block_on(dispatch(&mut context, cli.command));
            screen = context.screen;
            // A read of stdin may still wait on its thread; nobody needs it any more.
            runtime.shutdown_background();
            outcome
        }
        Err(failure) => Err(failure),
    };
    Start::Done(ExitCode::from(code.unwrap_or_else(|failure| {
        screen.failure(&failure, json);
        failure.exit
    })))
}

/// Known also where the rest of the line makes no sense.
fn asks_for_json(args: &[OsString]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// Help and version are asked for; all else is a mistake.
fn exit_of(error: &clap::Error) -> u8 {
    if error.use_stderr() { exit::USAGE } else { exit::SUCCESS }
}

fn prepare(cli: &Cli) -> Result<(tokio::runtime::Runtime, Paths, Option<PathBuf>), Failure> {
    let paths = Paths::of_this_process().map_err(|e| Failure::usage(e.to_string()).hint(e.fix()))?;
    // A daemon that is started runs elsewhere, so its path must hold there too.
    let named =
        cli.config.clone().or_else(|| paths.config_is_named().then(|| paths.config_file().to_owned()));
    let config = named
        .map(std::path::absolute)
        .transpose()
        .map_err(|e| Failure::io("failed to find the configuration file", &e))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::io("failed to start", &e))?;
    Ok((runtime, paths, config))
}

async fn dispatch(context: &mut Context, command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(command) => command.run(context).await,
        Command::New(command) => command.run(context).await,
        Command::Exec(command) => command.run(context).await,
        Command::Repl(command) => command.run(context).await,
        Command::Eval(command) => command.run(context).await,
        Command::Ask(command) => command.run(context).await,
        Command::Approve(command) => command.run(context).await,
        Command::Plan(command) => command.run(context).await,
        Command::History(command) => command.run(context).await,
        Command::Models(command) => command.run(context).await,
        Command::Tools(command) => command.run(context).await,
        Command::Ps(command) => command.run(context).await,
        Command::Top(command) => command.run(context).await,
        Command::Quota(command) => command.run(context).await,
        Command::Show(command) => command.run(context).await,
        Command::Receipt(command) => command.run(context).await,
        Command::Vars(command) => command.run(context).await,
        Command::Logs(command) => command.run(context).await,
        Command::Cp(command) => command.run(context).await,
        Command::Interrupt(command) => command.run(context).await,
        Command::Reset(command) => command.run(context).await,
        Command::Undo(command) => command.run(context).await,
        Command::Replay(command) => command.run(context).await,
        Command::Freeze(command) => command.run(context).await,
        Command::Thaw(command) => command.run(context).await,
        Command::Wait(command) => command.run(context).await,
        Command::Rm(command) => command.run(context).await,
        Command::Job(command) => command.run(context).await,
        Command::Image(command) => command.run(context).await,
        Command::Daemon(command) => command.run(context).await,
        Command::Doctor(command) => command.run(context).await,
        Command::Config(command) => command.run(context),
        Command::Completions(command) => command.run(&mut context.screen),
        Command::Man(command) => command.run(),
        Command::Version(command) => command.run(context).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_on_the_command_line_exit_with_64() {
        let exit = |line: &str| exit_of(&Cli::try_parse_from(line.split(' ')).unwrap_err());
        for wrong in [
            "belljar --json",
            "belljar nope",
            "belljar exec",
            "belljar rm",
            "belljar rm --all x",
            "belljar ps --x",
        ] {
            assert_eq!(exit(wrong), 64, "{wrong}");
        }
        for asked in ["belljar --help", "belljar --version", "belljar help exec", "belljar exec --help"] {
            assert_eq!(exit(asked), 0, "{asked}");
        }
    }

    #[test]
    fn only_the_bare_word_becomes_the_daemon() {
        let foreground = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Daemon(daemon) => daemon.is_foreground(),
            _ => false,
        };
        assert!(foreground("belljar daemon") && foreground("belljar --config c daemon"));
        assert!(!foreground("belljar daemon status") && !foreground("belljar daemon stop --remove"));
    }
}

//! From the command line to an exit code: its grammar, and the dispatch to the commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::client::machine_daemon;
use super::commands::ask::{approve, inspect as conversation, stats, submit};
use super::commands::cell::{once, repl, run};
use super::commands::command;
use super::commands::job;
use super::commands::machine::welcome::welcome;
use super::commands::machine::{completion, daemon, doctor, image, inspect as machine, jupyter, manual};
use super::commands::session::{
    act, branch, cp, diff, export, import, inspect, install, logs, ls, new, packages, receipt, replay,
    snapshot, top, volume, wait,
};
use super::context::Context;
use super::failure::Failure;
use super::render::screen::{Color, Screen};
use crate::config::{Paths, Serving};
use crate::protocol::exit_codes as exit;

/// What `main` has to do. `main` itself becomes the daemon, so that this module does not depend on the daemon.
pub enum Start {
    Done(ExitCode),
    Daemon { config: Option<PathBuf>, serving: Serving },
}

/// Runs model-written Python under glass: stateful sessions in hardened, network-less containers.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, subcommand_required = true, arg_required_else_help = true)]
#[command(infer_long_args = false, max_term_width = 100)]
pub(in crate::cli) struct Cli {
    /// Print JSON: one document, or one a line for streams.
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: Color,
    /// Configuration of a daemon that this command starts. [env: `BELLJAR_CONFIG`]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

/// Lists the commands once, for the grammar and for the dispatch.
macro_rules! commands {
    ($($(#[$attribute:meta])* $name:ident($arguments:ty),)*) => {
        #[derive(Debug, Subcommand)]
        pub(in crate::cli) enum Command {
            $($(#[$attribute])* $name($arguments),)*
        }

        impl Command {
            async fn run(self, context: &mut Context) -> Result<u8, Failure> {
                match self {
                    $(Self::$name(command) => command.run(context).await,)*
                }
            }
        }
    };
}

commands! {
    Run(run::Run),
    New(new::New),
    Exec(once::Exec),
    Repl(repl::Repl),
    Sh(command::Sh),
    Commands(command::Commands),
    Kill(command::Kill),
    Eval(once::Eval),
    // Boxed, because the command has many flags.
    Ask(Box<submit::Ask>),
    Approve(approve::Approve),
    Plan(conversation::Plan),
    History(conversation::History),
    Stats(stats::Stats),
    Models(conversation::Models),
    Tools(conversation::Tools),
    Ps(inspect::Ps),
    Top(top::Top),
    Quota(machine::Quota),
    Show(inspect::Show),
    Receipt(receipt::Receipt),
    Vars(inspect::Vars),
    Logs(logs::Logs),
    Branch(branch::Branch),
    Diff(diff::Diff),
    Export(export::Export),
    Import(import::Import),
    Ls(ls::Ls),
    Cp(cp::Cp),
    Install(install::Install),
    Interrupt(act::Interrupt),
    Reset(act::Reset),
    Undo(act::Undo),
    Replay(replay::Replay),
    Freeze(act::Freeze),
    Thaw(act::Thaw),
    Snapshot(snapshot::Snapshot),
    Snapshots(snapshot::Snapshots),
    Sleep(snapshot::Sleep),
    Wait(wait::Wait),
    Rm(act::Rm),
    Job(job::Job),
    Packages(packages::Packages),
    Volume(volume::Volume),
    Image(image::Image),
    Jupyter(jupyter::Jupyter),
    Daemon(daemon::Daemon),
    Doctor(doctor::Doctor),
    Config(machine::Config),
    Completions(completion::Completions),
    #[command(hide = true)]
    CompleteNames(completion::CompleteNames),
    #[command(hide = true)]
    Man(manual::Man),
    Version(machine::Version),
}

impl Command {
    /// Whether it matters to the command which daemon its user has.
    fn talks_to_a_daemon(&self) -> bool {
        !matches!(self, Self::Completions(_) | Self::Man(_) | Self::Jupyter(_))
    }
}

/// Runs the command that the arguments ask for.
pub fn start(args: impl IntoIterator<Item = OsString>) -> Start {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.len() <= 1 {
        let outcome = welcome(&mut Screen::new(Color::Auto));
        return Start::Done(ExitCode::from(outcome.map_or_else(|failure| failure.exit, |()| exit::SUCCESS)));
    }
    let json = asks_for_json(&args);
    let cli = match Cli::try_parse_from(args.clone()) {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(failure) = run::script_argument(&args, &error) {
                Screen::new(Color::Auto).failure(&failure, json);
            } else if error.use_stderr() && json {
                Screen::new(Color::Never).failure(&Failure::from(&error), true);
            } else {
                // A closed stdout or stderr has no reader who would miss the message.
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
            let (paths, closed) = if cli.command.talks_to_a_daemon() {
                runtime.block_on(machine_daemon::choose(paths))
            } else {
                (paths, None)
            };
            let mut context = Context::new(screen, json, paths, config, closed);
            let outcome = runtime.block_on(cli.command.run(&mut context));
            screen = context.screen;
            // A thread may still wait for stdin; it must not delay the exit.
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

/// Looks at the raw arguments, so that it also works where the rest of the line cannot be parsed.
fn asks_for_json(args: &[OsString]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// Help and version were asked for and are a success; everything else is a mistake in the command line.
fn exit_of(error: &clap::Error) -> u8 {
    if error.use_stderr() { exit::USAGE } else { exit::SUCCESS }
}

fn prepare(cli: &Cli) -> Result<(tokio::runtime::Runtime, Paths, Option<PathBuf>), Failure> {
    let paths = Paths::of_this_process().map_err(|e| Failure::usage(e.to_string()).hint(e.fix()))?;
    // A daemon that is started has another working directory, so the path has to be absolute.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::receipt::Backend;
    use clap::CommandFactory as _;

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

    #[test]
    fn no_daemon_is_looked_for_where_none_is_needed() {
        let talks = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap().command.talks_to_a_daemon();
        for alone in ["belljar completions bash", "belljar man /tmp/x", "belljar jupyter install"] {
            assert!(!talks(alone), "{alone}");
        }
        assert!(talks("belljar ps") && talks("belljar complete-names -- session"));
    }

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_session_is_named_by_place_or_flag() {
        let parsed = Cli::try_parse_from(["belljar", "show", "a"]).unwrap();
        let Command::Show(show) = parsed.command else { panic!("not show") };
        assert_eq!(show.session.resolve().unwrap().as_str(), "a");
        let parsed = Cli::try_parse_from(["belljar", "show", "-s", "b", "--json"]).unwrap();
        assert!(parsed.json);
        let Command::Show(show) = parsed.command else { panic!("not show") };
        assert_eq!(show.session.resolve().unwrap().as_str(), "b");
        assert!(Cli::try_parse_from(["belljar", "show", "a", "-s", "b"]).is_err());
        assert!(Cli::try_parse_from(["belljar", "show", "a/b"]).is_err());
        // Only an existing session can belong to another user.
        assert!(Cli::try_parse_from(["belljar", "show", "a@alice"]).is_ok());
        assert!(Cli::try_parse_from(["belljar", "new", "a@alice"]).is_err());
    }

    #[test]
    fn flags_are_read_with_their_units() {
        let line = "belljar new n --memory 512MiB --cpus 1.5 --idle 5min --backend docker --pids 9";
        let Command::New(new) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("not new")
        };
        assert_eq!(new.sandbox.memory, Some(512 << 20));
        assert_eq!((new.sandbox.cpus, new.idle, new.pids), (Some(1.5), Some(300), Some(9)));
        assert_eq!(new.sandbox.backend, Some(Backend::Docker));
        for wrong in [
            "--memory 12x",
            "--cpus 0",
            "--cpus NaN",
            "--idle 0",
            "--backend chroot",
            "--seed [1]",
            "--preload 1",
        ] {
            let line = format!("belljar new n {wrong}");
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{wrong}");
        }
    }
}

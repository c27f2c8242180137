//! The grammar of the command line. What belongs to one command is in that command's file.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value};

use crate::config::{parse_duration, parse_size};
use crate::protocol::api::NewSession;
use crate::protocol::ids::SessionName;
use crate::protocol::preload::{Preload, entries_of};
use crate::protocol::receipt::Backend;
use crate::protocol::result::Mode;
use crate::protocol::values;

use super::failure::Failure;
use super::screen::Color;
use super::session_key::SessionKey;
use super::{
    approve, ask, config_show, cp, daemon, doctor, eval, exec, frost, history, image, interrupt, job, logs,
    models, new, plan, ps, quota, receipt, repl, replay, reset, rm, run, shell, show, tools, top, undo, vars,
    version, wait,
};

/// Runs model-written Python under glass: stateful sessions in hardened, network-less containers.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, subcommand_required = true, arg_required_else_help = true)]
#[command(infer_long_args = false, max_term_width = 100)]
pub(super) struct Cli {
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

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Run(run::Run),
    New(new::New),
    Exec(exec::Exec),
    Repl(repl::Repl),
    Eval(eval::Eval),
    // Boxed, because it has many flags.
    Ask(Box<ask::Ask>),
    Approve(approve::Approve),
    Plan(plan::Plan),
    History(history::History),
    Models(models::Models),
    Tools(tools::Tools),
    Ps(ps::Ps),
    Top(top::Top),
    Quota(quota::Quota),
    Show(show::Show),
    Receipt(receipt::Receipt),
    Vars(vars::Vars),
    Logs(logs::Logs),
    Cp(cp::Cp),
    Interrupt(interrupt::Interrupt),
    Reset(reset::Reset),
    Undo(undo::Undo),
    Replay(replay::Replay),
    Freeze(frost::Freeze),
    Thaw(frost::Thaw),
    Wait(wait::Wait),
    Rm(rm::Rm),
    Job(job::Job),
    Image(image::Image),
    Daemon(daemon::Daemon),
    Doctor(doctor::Doctor),
    Config(config_show::Config),
    Completions(shell::Completions),
    #[command(hide = true)]
    Man(shell::Man),
    Version(version::Version),
}

/// A session that is named by `-s`.
#[derive(Debug, Args)]
pub(super) struct SessionFlag {
    /// The session. [env: `BELLJAR_SESSION`]
    #[arg(short, long, value_name = "NAME", value_parser = session_key)]
    session: Option<SessionKey>,
}

impl SessionFlag {
    pub fn resolve(&self) -> Result<SessionKey, Failure> {
        self.named()?.ok_or_else(|| {
            Failure::usage("no session is named").hint("name it with `-s NAME`, or set `BELLJAR_SESSION`")
        })
    }

    /// For commands that can do without.
    pub fn named(&self) -> Result<Option<SessionKey>, Failure> {
        named(self.session.as_ref(), std::env::var("BELLJAR_SESSION").ok())
    }
}

/// A session that is named by its place or by `-s`.
#[derive(Debug, Args)]
pub(super) struct SessionArg {
    /// The session.
    #[arg(value_parser = session_key, conflicts_with = "session")]
    name: Option<SessionKey>,
    #[command(flatten)]
    flag: SessionFlag,
}

impl SessionArg {
    pub fn resolve(&self) -> Result<SessionKey, Failure> {
        self.name.clone().map_or_else(|| self.flag.resolve(), Ok)
    }
}

fn named(flag: Option<&SessionKey>, env: Option<String>) -> Result<Option<SessionKey>, Failure> {
    if let Some(name) = flag {
        return Ok(Some(name.clone()));
    }
    env.filter(|name| !name.is_empty())
        .map(|name| SessionKey::parse(&name).map_err(|e| Failure::usage(format!("`BELLJAR_SESSION`: {e}"))))
        .transpose()
}

/// What a sandbox is made of.
#[derive(Debug, Args)]
pub(super) struct SandboxArgs {
    /// What holds the Python processes.
    #[arg(long, value_parser = backend())]
    pub backend: Option<Backend>,
    /// One of the allowed images; see `belljar image list`.
    #[arg(long)]
    pub image: Option<String>,
    /// Memory, for example 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub memory: Option<u64>,
    /// CPUs, for example 1.5.
    #[arg(long, value_name = "N", value_parser = cpus, allow_negative_numbers = true)]
    pub cpus: Option<f64>,
    /// A folder of yours as the workspace, instead of a new one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Begin with a module, as in 'numpy as np', a family ('stdlib', 'third-party') or `@FILE` with
    /// one a line; can be repeated.
    #[arg(long, value_name = "IMPORT", value_parser = preload)]
    pub preload: Vec<Entries>,
}

/// What one `--preload` stands for.
#[derive(Clone, Debug)]
pub(super) struct Entries(Vec<String>);

impl SandboxArgs {
    /// A session with a made-up name and all else by default.
    pub fn session(self) -> Result<NewSession, Failure> {
        Ok(NewSession {
            workspace: self.workspace()?,
            preload: (!self.preload.is_empty())
                .then(|| self.preload.into_iter().flat_map(|entries| entries.0).collect()),
            backend: self.backend,
            image: self.image,
            memory_bytes: self.memory,
            cpus: self.cpus,
            ..NewSession::default()
        })
    }

    pub fn is_given(&self) -> bool {
        let Self { backend, image, memory, cpus, workspace, preload } = self;
        let limited = memory.is_some() || cpus.is_some();
        backend.is_some() || image.is_some() || limited || workspace.is_some() || !preload.is_empty()
    }

    /// Links and relative parts are resolved here, where the caller's own rights hold.
    fn workspace(&self) -> Result<Option<String>, Failure> {
        let Some(folder) = &self.workspace else {
            return Ok(None);
        };
        let named = |e| {
            Failure::io(format_args!("failed to find the workspace `{}`", folder.display()), &e)
                .hint("name a folder of yours that is there; without `--workspace` the session gets its own")
        };
        let folder = folder.canonicalize().map_err(named)?;
        let text = folder.to_str().ok_or_else(|| Failure::new("the workspace's path is not UTF-8"))?;
        Ok(Some(text.to_owned()))
    }
}

/// Of a session that is to be made.
pub(super) fn session_name(text: &str) -> Result<SessionName, String> {
    SessionName::parse(text)
}

/// Of a session that is there.
pub(super) fn session_key(text: &str) -> Result<SessionKey, String> {
    SessionKey::parse(text)
}

/// Seconds for the API.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    if time == Duration::ZERO { Err("it has to be more than 0".to_owned()) } else { Ok(time.as_secs_f64()) }
}

/// Whole seconds for the API; a started one counts.
pub(super) fn whole_seconds(text: &str) -> Result<u64, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    match time.as_secs() + u64::from(time.subsec_nanos() > 0) {
        0 => Err("it has to be more than 0".to_owned()),
        seconds => Ok(seconds),
    }
}

pub(super) fn cpus(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "it has to be a number above 0, as in `1.5`".to_owned())
}

pub(super) fn backend() -> impl TypedValueParser<Value = Backend> {
    let all = Backend::ALL;
    PossibleValuesParser::new(all.map(Backend::name))
        .map(move |name| all.into_iter().find(|backend| backend.name() == name).unwrap_or_default())
}

pub(super) fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["main", "fork"])
        .map(|name| if name == "fork" { Mode::Fork } else { Mode::Main })
}

/// A JSON object, given itself or as `@FILE`.
pub(super) fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    let read;
    let json = match text.strip_prefix('@') {
        Some(path) => {
            read = std::fs::read_to_string(path).map_err(|e| format!("failed to read `{path}`: {e}"))?;
            read.as_str()
        }
        None => text,
    };
    match values::from_json(json).map_err(|e| format!("this JSON cannot be used: {e}"))? {
        Value::Object(map) => Ok(map),
        _ => Err("this is JSON, but no object such as `{\"x\": 1}`".to_owned()),
    }
}

/// An entry of `--preload`, or those of a file.
fn preload(text: &str) -> Result<Entries, String> {
    let entries = match text.strip_prefix('@') {
        Some(path) => {
            let read = std::fs::read_to_string(path).map_err(|e| format!("failed to read `{path}`: {e}"))?;
            entries_of(&read)
        }
        None => vec![text.to_owned()],
    };
    Preload::parse(&entries).map(|_| Entries(entries))
}

/// The code to run: given itself, or `-` for stdin.
pub(super) fn code_or_stdin(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    std::io::read_to_string(std::io::stdin())
        .map_err(|e| Failure::io("failed to read stdin", &e).hint("send the code as UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_session_is_named_by_place_flag_or_environment() {
        let parsed = Cli::try_parse_from(["belljar", "show", "a"]).unwrap();
        let Command::Show(show) = parsed.command else { panic!("not show") };
        assert_eq!(show.session.resolve().unwrap().as_str(), "a");
        let parsed = Cli::try_parse_from(["belljar", "show", "-s", "b", "--json"]).unwrap();
        assert!(parsed.json);
        let Command::Show(show) = parsed.command else { panic!("not show") };
        assert_eq!(show.session.resolve().unwrap().as_str(), "b");
        assert_eq!(named(None, Some("c".into())).unwrap().unwrap().as_str(), "c");
        assert_eq!(named(None, Some("../c".into())).unwrap_err().exit, 64);
        assert_eq!(named(None, None).unwrap(), None);
        assert!(Cli::try_parse_from(["belljar", "show", "a", "-s", "b"]).is_err());
        assert!(Cli::try_parse_from(["belljar", "show", "a/b"]).is_err());
        // Only one that is there can be somebody else's.
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

    #[test]
    fn seeds_are_objects() {
        assert_eq!(json_object("{\"x\": 1}").unwrap().len(), 1);
        assert!(json_object("[1]").unwrap_err().contains("no object"));
        assert!(json_object("@/does/not/exist").unwrap_err().contains("failed to read"));
    }
}

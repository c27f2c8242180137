//! Arguments that several commands share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cli::client::session_key::SessionKey;
use crate::cli::failure::Failure;
use crate::config::{parse_duration, parse_size};
use crate::protocol::api::{Checkpointing, NewSession};
use crate::protocol::environment::{self, Environment};
use crate::protocol::labels;
use crate::protocol::mounts::{self, FolderMount, VolumeMount};
use crate::protocol::preload::{Preload, entries_of};
use crate::protocol::receipt::Backend;
use crate::protocol::saved_state::SnapshotPolicy;
use crate::protocol::values;
use crate::protocol::word_enums::Word;

/// A session that is named by `-s`.
#[derive(Debug, Args)]
pub(in crate::cli) struct SessionFlag {
    /// The session. [env: `BELLJAR_SESSION`]
    #[arg(short, long, value_name = "NAME", value_parser = SessionKey::parse)]
    session: Option<SessionKey>,
}

impl SessionFlag {
    pub fn resolve(&self) -> Result<SessionKey, Failure> {
        self.named()?.ok_or_else(|| {
            Failure::usage("no session is named").hint("name it with `-s NAME`, or set `BELLJAR_SESSION`")
        })
    }

    /// Whether the command line names it.
    pub fn is_given(&self) -> bool {
        self.session.is_some()
    }

    /// The session that is named, for commands that also work without one.
    pub fn named(&self) -> Result<Option<SessionKey>, Failure> {
        named(self.session.as_ref(), std::env::var("BELLJAR_SESSION").ok())
    }
}

/// A session that is named by its place or by `-s`.
#[derive(Debug, Args)]
pub(in crate::cli) struct SessionArg {
    /// The session.
    #[arg(value_parser = SessionKey::parse, conflicts_with = "session")]
    name: Option<SessionKey>,
    #[command(flatten)]
    flag: SessionFlag,
}

impl SessionArg {
    pub fn resolve(&self) -> Result<SessionKey, Failure> {
        self.name.clone().map_or_else(|| self.flag.resolve(), Ok)
    }

    /// The path of something that belongs to the session.
    pub fn path(&self, rest: &str) -> Result<String, Failure> {
        self.resolve().map(|session| format!("/v1/sessions/{session}{rest}"))
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

/// The properties of a sandbox.
#[derive(Debug, Args)]
pub(in crate::cli) struct SandboxArgs {
    /// What holds the Python processes.
    #[arg(long, value_parser = word::<Backend>())]
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
    /// When the state is kept, for a cell that dies to go back to.
    #[arg(long, value_parser = word::<Checkpointing>())]
    pub checkpointing: Option<Checkpointing>,
    /// Let a cell begin in the folder that the cell before it left by `os.chdir`, and not in the workspace.
    #[arg(long)]
    pub keep_cwd: bool,
    /// When the variables are saved to the disk, to wake from when the sandbox is gone.
    #[arg(long, value_parser = word::<SnapshotPolicy>())]
    pub snapshots: Option<SnapshotPolicy>,
    /// A folder of yours as the workspace, instead of a new one.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Begin with a module, as in 'numpy as np', a family ('stdlib', 'third-party') or `@FILE` with
    /// one a line; can be repeated.
    #[arg(long, value_name = "IMPORT", value_parser = preload)]
    pub preload: Vec<Entries>,
    /// Install a package first, as in 'polars' or 'numpy<3'; can be repeated.
    #[arg(long, value_name = "PACKAGE")]
    pub with: Vec<String>,
    /// Set a variable of the environment, `NAME=VALUE`, or `NAME` with the value that it has here; can be repeated. No
    /// place for secrets.
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// A volume of yours at a path in the sandbox; can be repeated. See `belljar volume`.
    #[arg(long, value_name = "NAME:/PATH[:ro]", value_parser = mounts::parse_volume)]
    pub volume: Vec<VolumeMount>,
    /// A folder of yours that the session can read at a path in the sandbox; can be repeated.
    #[arg(long, value_name = "DIR:/PATH:ro", value_parser = mounts::parse_folder)]
    pub mount: Vec<FolderMount>,
    /// A word to find the session by with `belljar ps --label`; can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    pub label: Vec<(String, String)>,
}

/// The entries that one `--preload` stands for.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Entries(Vec<String>);

impl SandboxArgs {
    /// A new session whose name the daemon makes up, with defaults for all that is not given.
    pub fn session(self) -> Result<NewSession, Failure> {
        Ok(NewSession {
            workspace: self.workspace()?,
            env: self.environment()?,
            mounts: self.mounts()?,
            preload: (!self.preload.is_empty())
                .then(|| self.preload.into_iter().flat_map(|entries| entries.0).collect()),
            volumes: self.volume,
            labels: self.label.into_iter().collect(),
            backend: self.backend,
            image: self.image,
            memory_bytes: self.memory,
            cpus: self.cpus,
            checkpointing: self.checkpointing,
            keep_cwd: self.keep_cwd,
            snapshots: self.snapshots,
            ..NewSession::default()
        })
    }

    pub fn is_given(&self) -> bool {
        let Self {
            backend,
            image,
            memory,
            cpus,
            checkpointing,
            keep_cwd,
            snapshots,
            workspace,
            preload,
            with,
            env,
            label,
            volume,
            mount,
        } = self;
        let limited = memory.is_some() || cpus.is_some() || checkpointing.is_some() || *keep_cwd;
        let limited = limited || snapshots.is_some();
        let begun = !preload.is_empty() || !with.is_empty() || !env.is_empty() || !label.is_empty();
        let begun = begun || !volume.is_empty() || !mount.is_empty();
        backend.is_some() || image.is_some() || limited || workspace.is_some() || begun
    }

    fn environment(&self) -> Result<Environment, Failure> {
        let variables = variables(&self.env, |name| std::env::var(name).ok())?;
        environment::check(&variables).map_err(Failure::usage)?;
        Ok(variables)
    }

    /// Resolves links and relative parts here, where the caller's own permissions apply.
    fn workspace(&self) -> Result<Option<String>, Failure> {
        let hint = "name a folder of yours that is there; without `--workspace` the session gets its own";
        self.workspace.as_deref().map(|folder| resolved(folder, "workspace", hint)).transpose()
    }

    fn mounts(&self) -> Result<Vec<FolderMount>, Failure> {
        let resolve = |FolderMount { folder, target }: &FolderMount| {
            let folder = resolved(Path::new(folder), "folder", "name a folder of yours that is there")?;
            Ok(FolderMount { folder, target: target.clone() })
        };
        self.mount.iter().map(resolve).collect()
    }
}

/// The absolute path of a folder, without links.
fn resolved(folder: &Path, what: &str, hint: &str) -> Result<String, Failure> {
    let not_found =
        |e| Failure::io(format_args!("failed to find the {what} `{}`", folder.display()), &e).hint(hint);
    let folder = folder.canonicalize().map_err(not_found)?;
    let text = folder.to_str().ok_or_else(|| Failure::new(format!("the {what}'s path is not UTF-8")))?;
    Ok(text.to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    if time == Duration::ZERO { Err("it has to be more than 0".to_owned()) } else { Ok(time) }
}

/// Seconds for the API.
pub(in crate::cli) fn seconds(text: &str) -> Result<f64, String> {
    duration(text).map(|time| time.as_secs_f64())
}

/// Whole seconds for the API, rounded up.
pub(in crate::cli) fn whole_seconds(text: &str) -> Result<u64, String> {
    duration(text).map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

pub(in crate::cli) fn cpus(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "it has to be a number above 0, as in `1.5`".to_owned())
}

/// One of the words that an enum has in the API.
pub(in crate::cli) fn word<T: Word + DeserializeOwned + Send + Sync>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::WORDS.iter().map(|(word, _)| *word))
        .try_map(|word| serde_json::from_value(Value::String(word)))
}

/// The text of the file that `@FILE` names; none for any other argument.
fn named_file(text: &str) -> Result<Option<String>, String> {
    let read = |path| std::fs::read_to_string(path).map_err(|e| format!("failed to read `{path}`: {e}"));
    text.strip_prefix('@').map(read).transpose()
}

/// A JSON object, given itself or as `@FILE`.
pub(in crate::cli) fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    let file = named_file(text)?;
    let json = file.as_deref().unwrap_or(text);
    match values::from_json(json).map_err(|e| format!("this JSON cannot be used: {e}"))? {
        Value::Object(map) => Ok(map),
        _ => Err("this is JSON, but no object such as `{\"x\": 1}`".to_owned()),
    }
}

/// An entry of `--preload`, or the entries of a file.
fn preload(text: &str) -> Result<Entries, String> {
    let entries = named_file(text)?.map_or_else(|| vec![text.to_owned()], |file| entries_of(&file));
    Preload::parse(&entries).map(|_| Entries(entries))
}

/// `NAME=VALUE`, or `NAME` for the value that it has in the caller's environment.
pub(in crate::cli) fn variables(
    given: &[String],
    own: impl Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    for text in given {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (
                text.as_str(),
                own(text).ok_or_else(|| {
                    Failure::usage(format!("the variable `{text}` is not set"))
                        .hint(format!("set it, or give its value: `--env {text}=VALUE`"))
                })?,
            ),
        };
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}

/// A text file, or stdin for `-`. `kind` says in the error what kind of file it has to be.
pub(in crate::cli) fn read_text(path: &Path, kind: &str) -> Result<String, Failure> {
    let is_stdin = path.as_os_str() == "-";
    let text =
        if is_stdin { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    text.map_err(|e| {
        Failure::io(format_args!("failed to read `{}`", path.display()), &e)
            .hint(format!("name a {kind} in UTF-8, or `-` to read it from stdin"))
    })
}

/// The code to run: given itself, or `-` for stdin.
pub(in crate::cli) fn code_or_stdin(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    std::io::read_to_string(std::io::stdin())
        .map_err(|e| Failure::io("failed to read stdin", &e).hint("send the code as UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_by_flag_or_environment() {
        let flag = SessionKey::parse("a").unwrap();
        assert_eq!(named(Some(&flag), Some("c".into())).unwrap().unwrap().as_str(), "a");
        assert_eq!(named(None, Some("c".into())).unwrap().unwrap().as_str(), "c");
        assert_eq!(named(None, Some("../c".into())).unwrap_err().exit, 64);
        assert_eq!(named(None, None).unwrap(), None);
    }

    #[test]
    fn variables_are_given_or_passed_on() {
        let own = |name: &str| (name == "HERE").then(|| "1".to_owned());
        let found = variables(&["A=b=c".into(), "HERE".into()], own).unwrap();
        assert_eq!((found["A"].as_str(), found["HERE"].as_str()), ("b=c", "1"));
        assert_eq!(variables(&["AWAY".into()], own).unwrap_err().exit, 64);
    }

    #[test]
    fn seeds_are_objects() {
        assert_eq!(json_object("{\"x\": 1}").unwrap().len(), 1);
        assert!(json_object("[1]").unwrap_err().contains("no object"));
        assert!(json_object("@/does/not/exist").unwrap_err().contains("failed to read"));
    }
}

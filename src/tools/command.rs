//! Programs of the host as tools: `[tool.NAME]` of the configuration.
//!
//! A program is started directly, never through a shell, as the owner of the session: a daemon of root sets the owner's
//! uid and gid and drops all other groups (the standard library empties them when it sets a uid as root); for any other
//! daemon, the owner has to be the daemon's own user. The program gets its arguments as JSON on stdin, a bare
//! environment with what the configuration adds, limits (see `process_limits`), a session and process group of its own, and a keeper (see `keeper`). The keeper
//! kills all processes that the program started when the program ends, when its time is up, or when the call is
//! cancelled.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command as Process};
use tokio_util::sync::CancellationToken;

use super::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use super::foreign_schemas;
use super::keeper::{self, ProgramEnd, ProgramOrder};
use super::port::{Owner, as_failure};
use super::process_limits::ProgramSlot;
use super::registry::RegistryError;
use crate::config::CommandTool;
use crate::protocol::frames::ToolFailure;
use crate::protocol::problem::Problem;
use crate::protocol::values;
use crate::security_controls;

/// The last bytes of the program's stderr that are quoted in the failure.
const STDERR_BYTES: usize = 4 * 1024;
const READ_BYTES: usize = 16 * 1024;
/// The most bytes of a file with variables that are read.
const ENV_FILE_BYTES: u64 = 64 * 1024;
/// The most bytes of a keeper's answer that are read.
const VERDICT_BYTES: u64 = 4 * 1024;
/// How long a call waits until all processes that its program started are gone. This takes milliseconds, unless a
/// process is stuck in the kernel.
const ENDING: Duration = Duration::from_secs(10);
/// How long output is still read after the program has ended.
const LINGER: Duration = Duration::from_millis(250);

pub struct Command {
    definition: Definition,
    settings: Arc<CommandTool>,
}

impl Command {
    pub fn new(name: &str, settings: &CommandTool) -> Result<Self, RegistryError> {
        let bad = |problem| RegistryError::BadSchema { tool: name.to_owned(), problem };
        let parameters = foreign_schemas::parameters(&settings.parameters).map_err(bad)?;
        if settings.argv.first().is_none_or(String::is_empty) {
            return Err(bad("`argv` names no program".into()));
        }
        let definition = Definition {
            output: settings.output.clone(),
            outside: true,
            program: true,
            read_only: settings.read_only,
            ..Definition::new(name, settings.description.clone(), parameters)
        };
        Ok(Self { definition, settings: Arc::new(settings.clone()) })
    }
}

impl Tool for Command {
    fn definition(&self) -> Definition {
        self.definition.clone()
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let owner = context.port()?.owner().await.map_err(not_allowed)?;
            let stdout = run(&settings, Value::Object(arguments).to_string(), owner).await?;
            let text = String::from_utf8_lossy(&stdout);
            if settings.output.is_none() {
                let text = text.strip_suffix('\n').unwrap_or(&text);
                return Ok(ToolOutput::Text(text.to_owned()));
            }
            values::from_json(&text)
                .map(ToolOutput::Value)
                .map_err(|problem| failure("failed", format!("the program did not print JSON: {problem}")))
        })
    }
}

/// The stdout of the program, if it ended successfully and in time.
async fn run(settings: &CommandTool, input: String, owner: Owner) -> Result<Vec<u8>, ToolFailure> {
    let failed = |error: std::io::Error| failure("failed", format!("the program cannot be run: {error}"));
    let order = order(settings, input, owner, environment(settings).await?)?;
    let slot = ProgramSlot::take(owner.principal)?;
    let (line, far) = UnixStream::pair().map_err(failed)?;
    let mut child = keeper(far).and_then(|mut keeper| keeper.spawn()).map_err(failed)?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failure("failed", "the program has no pipes"));
    };
    let mut kept_program = KeptProgram { line: Some(line), keeper: Some((child, slot)) };
    let ended = CancellationToken::new();
    let most = usize::try_from(settings.output_bytes).unwrap_or(usize::MAX);
    let (stdout, stderr) = (Pipe { pipe: stdout, ended: &ended }, Pipe { pipe: stderr, ended: &ended });
    let end = async {
        let verdict = kept_program.verdict(&order).await.map_err(failed);
        ended.cancel();
        verdict
    };
    let whole = |read: &mut Vec<u8>| {
        let too_large = || failure("too_large", format!("the program printed more than {most} bytes"));
        if read.len() > most { Err(too_large()) } else { Ok(()) }
    };
    let tail = |read: &mut Vec<u8>| {
        read.drain(..read.len().saturating_sub(STDERR_BYTES));
        Ok(())
    };
    let work = async { tokio::try_join!(read_to_end(stdout, whole), read_to_end(stderr, tail), end) };
    let done = tokio::time::timeout(settings.timeout, work).await;
    kept_program.end().await;
    let (output, complaint, verdict) = done.map_err(|_| timed_out(settings.timeout))??;
    match verdict.status() {
        Ok(status) if status.success() => Ok(output),
        Ok(status) => Err(unsuccessful(status, &complaint)),
        Err(why) => Err(failure("failed", format!("the program cannot be run: {why}"))),
    }
}

/// The session may run no program as its owner.
fn not_allowed(problem: Problem) -> ToolFailure {
    ToolFailure { code: "unavailable".into(), ..as_failure(problem) }
}

/// The variables that the configuration gives to the program.
async fn environment(settings: &CommandTool) -> Result<BTreeMap<String, String>, ToolFailure> {
    let mut variables = BTreeMap::new();
    if let Some(path) = &settings.env_file {
        let unreadable =
            |why: &dyn std::fmt::Display| failure("unavailable", format!("`{}`: {why}", path.display()));
        let file = tokio::fs::File::open(path).await.map_err(|error| unreadable(&error))?;
        let mut text = String::new();
        file.take(ENV_FILE_BYTES).read_to_string(&mut text).await.map_err(|error| unreadable(&error))?;
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, value)) = line.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
                return Err(unreadable(&format_args!("line {} is not `NAME=VALUE`", index + 1)));
            };
            variables.insert(name.trim().to_owned(), value.to_owned());
        }
    }
    for name in &settings.env {
        let Ok(value) = std::env::var(name) else {
            let message =
                format!("`{name}` is not set for the daemon; start the daemon with it, or use `env_file`");
            return Err(failure("unavailable", message));
        };
        variables.insert(name.clone(), value);
    }
    Ok(variables)
}

fn order(
    settings: &CommandTool,
    input: String,
    owner: Owner,
    env: BTreeMap<String, String>,
) -> Result<ProgramOrder, ToolFailure> {
    let own = rustix::process::geteuid();
    let ids = if own.is_root() && security_controls::holds("programs_run_as_the_owner") {
        Some((owner.principal.uid(), owner.gid))
    } else if own.as_raw() == owner.principal.uid() {
        None
    } else {
        return Err(failure("unavailable", "this daemon cannot run programs as the owner of the session"));
    };
    let (argv, cwd) = (settings.argv.clone(), settings.cwd.clone());
    Ok(ProgramOrder { argv, ids, timeout: settings.timeout, env, cwd, input })
}

/// The command that starts the keeper, with the keeper's end of the line as stdin.
fn keeper(line: UnixStream) -> std::io::Result<Process> {
    let line = line.into_std()?;
    line.set_nonblocking(false)?;
    let mut process = Process::new(keeper::binary());
    process
        .arg(keeper::WORD)
        .env_clear()
        .envs(security_controls::handed_on())
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(line)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The keeper gets a process group of its own, so that a signal to the daemon's group does not stop it.
        .process_group(0);
    Ok(process)
}

/// A running program with its keeper. When the line closes, the keeper ends the program; the program counts against the
/// owner's limit until the keeper is done, however long that takes.
struct KeptProgram {
    line: Option<UnixStream>,
    keeper: Option<(Child, ProgramSlot)>,
}

impl KeptProgram {
    async fn verdict(&mut self, order: &ProgramOrder) -> std::io::Result<ProgramEnd> {
        let line = self.line.as_mut().ok_or(std::io::ErrorKind::NotConnected)?;
        let mut text = serde_json::to_string(order)?;
        text.push('\n');
        line.write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        line.take(VERDICT_BYTES).read_to_string(&mut answer).await?;
        Ok(serde_json::from_str(&answer)?)
    }

    /// Closes the line and waits up to `ENDING` until nothing of the program is left.
    async fn end(mut self) {
        self.line = None;
        let Some((keeper, _)) = self.keeper.as_mut() else { return };
        if tokio::time::timeout(ENDING, keeper.wait()).await.is_ok() {
            self.keeper = None;
        } else {
            tracing::warn!(keeper = keeper.id(), "a program of a tool cannot be ended");
        }
    }
}

impl Drop for KeptProgram {
    fn drop(&mut self) {
        self.line = None;
        if let Some((mut keeper, slot)) = self.keeper.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let _ = keeper.wait().await;
                drop(slot);
            });
        }
    }
}

/// A pipe from a program. The program may have passed the pipe to a process outside its family, so reading stops soon
/// after the program has ended.
struct Pipe<'a, R> {
    pipe: R,
    ended: &'a CancellationToken,
}

impl<R: AsyncRead + Unpin> Pipe<'_, R> {
    /// The number of bytes read; 0 at the end.
    async fn read(&mut self, buffer: &mut [u8]) -> usize {
        let over = async {
            self.ended.cancelled().await;
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            biased;
            came = self.pipe.read(buffer) => came.unwrap_or(0),
            () = over => 0,
        }
    }
}

/// Reads to the end of a pipe; `bound` refuses or shortens what has come so far.
async fn read_to_end(
    mut pipe: Pipe<'_, impl AsyncRead + Unpin>,
    bound: impl Fn(&mut Vec<u8>) -> Result<(), ToolFailure>,
) -> Result<Vec<u8>, ToolFailure> {
    let mut read = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let came = pipe.read(&mut buffer).await;
        if came == 0 {
            return Ok(read);
        }
        read.extend_from_slice(buffer.get(..came).unwrap_or_default());
        bound(&mut read)?;
    }
}

fn timed_out(after: Duration) -> ToolFailure {
    failure("timed_out", format!("the program did not end within {} s", after.as_secs_f64()))
}

fn unsuccessful(status: ExitStatus, complaint: &[u8]) -> ToolFailure {
    let complaint_text = String::from_utf8_lossy(complaint);
    let complaint_text = complaint_text.trim();
    let separator = if complaint_text.is_empty() { "" } else { ": " };
    failure("failed", format!("the program ended with {status}{separator}{complaint_text}"))
}

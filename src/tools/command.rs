//! Programs of the host as tools: `[tool.NAME]` of the configuration.
//!
//! A program is started directly, never through a shell, as the owner of the session: where the
//! daemon is root it takes the owner's uid and gid and drops all other groups (the standard library
//! empties them when it sets a uid as root), else the owner has to be the daemon's own user. It gets
//! its arguments as JSON on stdin, a bare environment, limits (see `limited`), and a session and process group
//! of its own, which is killed when the program ends, when its time is up, or when nobody waits for it any more.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::{Map, Value};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command as Process;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use super::foreign;
use super::limited::{self, Place};
use super::port::Owner;
use super::registry::RegistryError;
use crate::config::CommandTool;
use crate::controls;
use crate::protocol::frames::ToolFailure;
use crate::protocol::values;

/// All that a program finds in its environment: nothing of the daemon's.
const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/")];
/// Last bytes of what it says on stderr, for the failure.
const STDERR_BYTES: usize = 4 * 1024;
const READ_BYTES: usize = 16 * 1024;
/// How long after the end of a program its last words may come.
const LINGER: Duration = Duration::from_millis(250);

pub struct Command {
    definition: Definition,
    settings: Arc<CommandTool>,
}

impl Command {
    pub fn new(name: &str, settings: &CommandTool) -> Result<Self, RegistryError> {
        let bad = |problem| RegistryError::BadSchema { tool: name.to_owned(), problem };
        let parameters = foreign::parameters(&settings.parameters).map_err(bad)?;
        if let Some(output) = &settings.output {
            foreign::check(output).map_err(bad)?;
        }
        if settings.argv.first().is_none_or(String::is_empty) {
            return Err(bad("`argv` names no program".into()));
        }
        let definition = Definition {
            output: settings.output.clone(),
            outside: true,
            program: true,
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
            let owner = context.port()?.owner();
            let said = run(&settings, Value::Object(arguments).to_string(), owner).await?;
            let text = String::from_utf8_lossy(&said);
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

/// What the program printed, if it ended well and in time.
async fn run(settings: &CommandTool, input: String, owner: Owner) -> Result<Vec<u8>, ToolFailure> {
    let failed = |error: std::io::Error| failure("failed", format!("the program cannot be run: {error}"));
    let _place = Place::take(owner.uid)?;
    let mut process = prepared(settings, owner)?;
    // Before the program can end, so that its end is not missed.
    let mut ends = signal(SignalKind::child()).map_err(failed)?;
    let mut child = process.spawn().map_err(failed)?;
    // Dropped before the child is: until that is reaped, its number belongs to nobody else.
    let group = Group::of(child.id())?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failure("failed", "the program has no pipes"));
    };
    let feed = async move {
        // A program that does not want its arguments may close the pipe.
        let _ = stdin.write_all(input.as_bytes()).await;
        Ok(())
    };
    let ended = CancellationToken::new();
    let end = async {
        group.leader_ended(&mut ends).await;
        // Helpers that it left behind would hold its pipes open.
        group.kill();
        ended.cancel();
        Ok(())
    };
    let most = usize::try_from(settings.output_bytes).unwrap_or(usize::MAX);
    let (stdout, stderr) = (Pipe { pipe: stdout, ended: &ended }, Pipe { pipe: stderr, ended: &ended });
    let work = async { tokio::try_join!(read_all(stdout, most), read_tail(stderr), feed, end) };
    let (said, complaint, (), ()) = match tokio::time::timeout(settings.timeout, work).await {
        Ok(done) => done?,
        Err(_) => return Err(timed_out(settings.timeout)),
    };
    drop(group);
    let status = child.wait().await.map_err(failed)?;
    if status.success() { Ok(said) } else { Err(unsuccessful(status, &complaint)) }
}

fn prepared(settings: &CommandTool, owner: Owner) -> Result<Process, ToolFailure> {
    let Some((program, arguments)) = settings.argv.split_first() else {
        return Err(failure("failed", "the tool has no program"));
    };
    let mut process = Process::new(program);
    process
        .args(arguments)
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    limited::limit(&mut process, settings.timeout);
    let own = rustix::process::geteuid();
    if own.is_root() && controls::holds("programs_run_as_the_owner") {
        process.uid(owner.uid).gid(owner.gid);
    } else if own.as_raw() != owner.uid {
        return Err(failure("unavailable", "this daemon cannot run programs as the owner of the session"));
    }
    Ok(process)
}

/// The processes of a program. Killed when dropped.
struct Group(Pid);

impl Group {
    fn of(child: Option<u32>) -> Result<Self, ToolFailure> {
        child
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw)
            .map(Self)
            .ok_or_else(|| failure("failed", "the program has no process"))
    }

    /// Returns when the program has ended, and leaves it to be reaped.
    async fn leader_ended(&self, ends: &mut Signals) {
        let ask = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(self.0), ask) {
            if ends.recv().await.is_none() {
                return;
            }
        }
    }

    fn kill(&self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a program prints. Something of it that lives on in a session of its own may hold the pipe for ever:
/// soon after the program has ended, that is the end.
struct Pipe<'a, R> {
    pipe: R,
    ended: &'a CancellationToken,
}

impl<R: AsyncRead + Unpin> Pipe<'_, R> {
    /// How many bytes came; 0 at the end.
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

async fn read_all(mut pipe: Pipe<'_, impl AsyncRead + Unpin>, most: usize) -> Result<Vec<u8>, ToolFailure> {
    let mut read = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let came = pipe.read(&mut buffer).await;
        if came == 0 {
            return Ok(read);
        }
        read.extend_from_slice(buffer.get(..came).unwrap_or_default());
        if read.len() > most {
            return Err(failure("too_large", format!("the program printed more than {most} bytes")));
        }
    }
}

async fn read_tail(mut pipe: Pipe<'_, impl AsyncRead + Unpin>) -> Result<Vec<u8>, ToolFailure> {
    let mut tail = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let came = pipe.read(&mut buffer).await;
        if came == 0 {
            return Ok(tail);
        }
        tail.extend_from_slice(buffer.get(..came).unwrap_or_default());
        let surplus = tail.len().saturating_sub(STDERR_BYTES);
        tail.drain(..surplus);
    }
}

fn timed_out(after: Duration) -> ToolFailure {
    failure("timed_out", format!("the program did not end within {} s", after.as_secs_f64()))
}

fn unsuccessful(status: ExitStatus, complaint: &[u8]) -> ToolFailure {
    let said = String::from_utf8_lossy(complaint);
    let said = said.trim();
    let separator = if said.is_empty() { "" } else { ": " };
    failure("failed", format!("the program ended with {status}{separator}{said}"))
}

//! Builds a jail and starts its kernel.

use command_fds::{CommandFdExt, FdMapping};
use rustix::fs::MemfdFlags;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::processes::Identity;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::attest::fingerprint;
use crate::sandbox::backend::bridge_socket::BridgeSocket;
use crate::sandbox::backend::jail::arguments::{
    self, BLOCK_FD, CommandLine, FIRST_SECCOMP_FD, Host, OPTIONS_FD, STATUS_FD,
};
use crate::sandbox::backend::jail::explain::{self, NamespaceSettings};
use crate::sandbox::backend::jail::group::Group;
use crate::sandbox::backend::jail::limits::{self, OtherEnforcement};
use crate::sandbox::backend::jail::process::{self, Jail, StderrHead, data_socket};
use crate::sandbox::backend::jail::root::{self, Root};
use crate::sandbox::backend::jail::{Isolation, scope, seccomp, status};
use crate::sandbox::etc;
use crate::sandbox::folder::storage_problem;
use crate::sandbox::spec::seccomp::seccomp_profile;
use crate::sandbox::spec::{BRIDGE_SOCKET_NAME, GUARDIAN_PRIORITY, SandboxSpec, environment, kernel_command};
use crate::security_controls;

const BWRAP: &str = "bwrap";
/// Time for bubblewrap to build a jail.
const BUILD: Duration = Duration::from_secs(20);
const BUILD_POLL: Duration = Duration::from_millis(2);
/// Bytes of bubblewrap's stderr that are read.
const STDERR_BYTES: u64 = 4096;
/// The file in the sandbox's folder that identifies a plain process.
const PROCESS_NOTE: &str = "process";
/// Longest path of a unix socket.
const SOCKET_PATH_BYTES: usize = 107;

/// Everything that jails are built with; looked up once.
#[derive(Clone, Debug)]
pub struct Tools {
    pub version: String,
    filters: Vec<Vec<u8>>,
    /// An additional filter, only for jails whose memory no control group limits from the start.
    last_filter: Vec<u8>,
    /// The folder of the root file systems that were built.
    pub built: PathBuf,
    pub system: bool,
}

impl Tools {
    pub fn find(built: PathBuf, system: bool) -> Result<Self, Problem> {
        let output =
            Command::new(BWRAP).arg("--version").output().map_err(|error| explain::missing(&error))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let failed = |error: seccomp::ProfileError| Problem::new(Code::Internal, error.to_string());
        let filters = seccomp::compile(seccomp_profile()).map_err(failed)?;
        let last_filter = seccomp::without_nameless_files().map_err(failed)?;
        Ok(Self { version, filters, last_filter, built, system })
    }
}

/// The files that must exist before a jail is built.
struct JailFiles {
    root: Root,
    etc: Vec<&'static str>,
}

impl JailFiles {
    fn prepare(tools: &Tools, spec: &SandboxSpec) -> Result<Self, Problem> {
        let folder = root::folder(&tools.built, &spec.image.reference);
        etc::write(&spec.etc_dir, spec.user.host_uid, spec.user.host_gid)?;
        Ok(Self { root: Root::of(&folder), etc: root::etc_files(&folder) })
    }

    fn host<'a>(&'a self, tools: &Tools, group: Option<&'a Group>) -> Host<'a> {
        Host {
            root: &self.root,
            system: tools.system,
            group: group.map(|group| &group.cgroup),
            etc: &self.etc,
            filters: tools.filters.len() + usize::from(group.is_none()),
            is_folder: &|path| std::fs::metadata(path).ok().map(|found| found.is_dir()),
        }
    }
}

/// Starts the sandbox of a session, isolated by bubblewrap if there are `tools` for it.
pub async fn start(tools: Option<&Tools>, spec: &SandboxSpec, folder: &Path) -> Result<Jail, Problem> {
    match tools {
        Some(tools) => start_jail(tools, spec, folder).await,
        None => start_process(spec, folder),
    }
}

/// A jail that was built, and whose program waits for a byte in the pipe. Dropping it ends the jail.
pub(super) struct WaitingJail<'a> {
    pub started: Unfinished<'a>,
    pub identity: Identity,
    pub group: Option<Group>,
    pub stderr: Option<tokio::process::ChildStderr>,
    goes: std::io::PipeWriter,
}

impl WaitingJail<'_> {
    /// Lets the program start.
    pub fn go(&mut self) -> Result<(), Problem> {
        self.goes.write_all(b"1").map_err(|error| internal(&error.to_string()))
    }
}

/// Builds a jail with all its limits. `line` gives the arguments for bubblewrap.
pub(super) async fn build<'a>(
    tools: &Tools,
    spec: &SandboxSpec,
    folder: &'a Path,
    group_name: &str,
    line: impl FnOnce(&Host<'_>) -> CommandLine,
) -> Result<WaitingJail<'a>, Problem> {
    let group = Group::make(group_name, &spec.limits);
    let mut started = Unfinished { folder, group: group.clone(), bubblewrap: None, goes: None };
    let built = JailFiles::prepare(tools, spec)?;
    let line = line(&built.host(tools, group.as_ref()));
    let status_file = status::file(folder);
    let status_fd =
        std::fs::File::create(&status_file).map_err(|error| storage_problem(&status_file, &error))?;
    let (waits, goes) = std::io::pipe().map_err(|error| internal(&error.to_string()))?;
    // A pipe that is closed would let bubblewrap go on as well.
    started.goes = Some(goes.try_clone().map_err(|error| internal(&error.to_string()))?);
    let mut descriptors = filters(tools, group.is_some())?;
    descriptors.push(FdMapping { parent_fd: status_fd.into(), child_fd: STATUS_FD });
    descriptors.push(FdMapping { parent_fd: waits.into(), child_fd: BLOCK_FD });
    let options = in_memory(&line.hidden()).map_err(|error| internal(&error.to_string()))?;
    descriptors.push(FdMapping { parent_fd: options, child_fd: OPTIONS_FD });
    let mut command = Command::new(BWRAP);
    command.args(line.argv()).env_clear().env("PATH", search_path()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // The jail has its own process group, so that no signal to the daemon's group reaches it.
    command.process_group(0);
    command.fd_mappings(descriptors).map_err(|_| internal("descriptors collide"))?;
    let child = tokio::process::Command::from(command).spawn().map_err(|error| explain::missing(&error))?;
    let child = started.bubblewrap.insert(child);
    let stderr = child.stderr.take();
    let Ok(pid) = tokio::time::timeout(BUILD, child_pid(child, folder)).await else {
        return Err(took_too_long(BUILD));
    };
    let Some(pid) = pid else {
        return Err(explain::failure(&read_stderr(stderr).await, NamespaceSettings::read()));
    };
    let identity = Identity::of(pid);
    let group = match group {
        None if !tools.system => scope::make(group_name, pid, &spec.limits).await,
        group => group,
    };
    let limited = group.as_ref().map_or(Ok(()), |group| group.take_in(pid)).and_then(|()| {
        let own = tools.system || limits::counts_by_namespace();
        let other_enforcement = match (&group, own) {
            (Some(_), _) => OtherEnforcement::Group,
            (None, true) => OtherEnforcement::Nothing,
            (None, false) => OtherEnforcement::Shared,
        };
        limits::apply(pid, &spec.limits, other_enforcement)
    });
    let (Some(identity), Ok(())) = (identity, &limited) else {
        // Bubblewrap may have failed before it began to wait for the daemon.
        let stderr =
            tokio::time::timeout(BUILD_POLL, child.wait()).await.is_ok().then(|| read_stderr(stderr));
        return Err(match (stderr, limited) {
            (Some(stderr), _) => explain::failure(&stderr.await, NamespaceSettings::read()),
            (None, Err(error)) => internal(&format!("the limits of a jail cannot be set: {error}")),
            (None, Ok(())) => internal("a jail is gone"),
        });
    };
    Ok(WaitingJail { started, identity, group, stderr, goes })
}

async fn start_jail(tools: &Tools, spec: &SandboxSpec, folder: &Path) -> Result<Jail, Problem> {
    let socket = BridgeSocket::bind(&spec.bridge_dir)?;
    let mut targets = Vec::new();
    let line = |host: &Host<'_>| {
        let line = arguments::session(spec, host);
        targets = arguments::targets(&line.options);
        line
    };
    let mut waiting = build(tools, spec, folder, &spec.sandbox.0, line).await?;
    let pid = rustix::process::Pid::from_raw(waiting.identity.pid);
    if tools.system && waiting.group.is_some() && security_controls::holds("jail_guardian_goes_first") {
        let _ = rustix::process::setpriority_process(pid, GUARDIAN_PRIORITY);
    }
    waiting.go()?;
    let WaitingJail { started, identity, group, stderr, .. } = waiting;
    let stderr_head = StderrHead::default();
    if let Some(child) = started.done() {
        tokio::spawn(watch(child, stderr, Arc::clone(&stderr_head)));
    }
    Ok(Jail {
        walls: Isolation::Bubblewrap,
        system: tools.system,
        identity,
        group,
        folder: folder.to_owned(),
        targets,
        runtime: tools.version.clone(),
        seccomp: fingerprint(seccomp_profile()),
        stderr_head,
        socket,
        data: data_socket(Isolation::Bubblewrap, &spec.bridge_dir),
    })
}

/// The pid of the jail's first process, which bubblewrap writes; `None` if bubblewrap ended before.
async fn child_pid(child: &mut tokio::process::Child, folder: &Path) -> Option<i32> {
    loop {
        if let Some(pid) = status::read(folder).child_pid {
            return Some(pid);
        }
        if child.try_wait().ok().flatten().is_some() {
            return None;
        }
        tokio::time::sleep(BUILD_POLL).await;
    }
}

/// Reads the text that a bubblewrap which has ended wrote to its stderr.
async fn read_stderr(stderr: Option<tokio::process::ChildStderr>) -> String {
    let Some(mut stderr) = stderr else { return String::new() };
    tokio::time::timeout(BUILD, head_of(&mut stderr)).await.unwrap_or_default().text
}

/// The beginning of what is written to a stderr.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) text: String,
    /// Whether there may be more of it.
    pub(super) is_cut: bool,
}

pub(super) async fn head_of(stderr: &mut tokio::process::ChildStderr) -> Head {
    use tokio::io::AsyncReadExt;
    let mut bytes = Vec::new();
    let _ = stderr.take(STDERR_BYTES).read_to_end(&mut bytes).await;
    let is_cut = bytes.len() as u64 >= STDERR_BYTES;
    Head { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut }
}

/// Reads the jail's stderr as long as it runs, so that no writer blocks, and keeps the beginning.
async fn watch(
    mut child: tokio::process::Child,
    stderr: Option<tokio::process::ChildStderr>,
    stderr_head: StderrHead,
) {
    if let Some(mut stderr) = stderr {
        let text = head_of(&mut stderr).await.text.trim().escape_default().to_string();
        if !text.is_empty() {
            tracing::warn!(said = text, "a jail complains");
        }
        *stderr_head.lock() = text;
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    }
    let _ = child.wait().await;
}

/// Ends the started processes when it is dropped, unless the start was finished.
pub(super) struct Unfinished<'a> {
    folder: &'a Path,
    group: Option<Group>,
    /// Bubblewrap, which leads a process group of its own.
    pub(super) bubblewrap: Option<tokio::process::Child>,
    /// The pipe from which bubblewrap reads before it goes on. While this end is open, bubblewrap waits and can be killed.
    goes: Option<std::io::PipeWriter>,
}

impl Unfinished<'_> {
    /// Leaves bubblewrap running, or what is left of it.
    pub(super) fn done(mut self) -> Option<tokio::process::Child> {
        self.group = None;
        drop(self.goes.take());
        self.bubblewrap.take()
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let bubblewrap = self.bubblewrap.take();
        if bubblewrap.is_none() && self.group.is_none() {
            return;
        }
        // While it builds a jail, all of its processes are in its group.
        let leader = bubblewrap.as_ref().and_then(tokio::process::Child::id);
        if let Some(leader) = leader.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
        {
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
        let noted = noted(self.folder);
        let group = self.group.take();
        if let Some((walls, identity)) = &noted {
            // The kill happens at once, because the runtime may be about to end.
            let _ = process::kill(*walls, identity, group.as_ref());
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Some(mut bubblewrap) = bubblewrap {
                    let _ = bubblewrap.wait().await;
                }
                if let Some((walls, identity)) = noted {
                    let _ = process::end(walls, &identity, group.as_ref()).await;
                } else if let Some(group) = group {
                    group.remove().await;
                }
            });
        }
    }
}

/// The running process that the notes in a sandbox's folder identify.
pub fn noted(folder: &Path) -> Option<(Isolation, Identity)> {
    let process = std::fs::File::open(folder.join(PROCESS_NOTE)).ok().and_then(|file| {
        let mut text = String::new();
        file.take(STDERR_BYTES).read_to_string(&mut text).ok()?;
        Identity::parse(text.trim())
    });
    if let Some(identity) = process {
        return Some((Isolation::None, identity));
    }
    let pid = status::read(folder).living()?;
    Some((Isolation::Bubblewrap, Identity::of(pid)?))
}

/// Starts the kernel as a plain process.
fn start_process(spec: &SandboxSpec, folder: &Path) -> Result<Jail, Problem> {
    let socket = spec.bridge_dir.join(BRIDGE_SOCKET_NAME);
    if socket.as_os_str().len() > SOCKET_PATH_BYTES {
        return Err(Problem::new(
            Code::SandboxFailed,
            format!("the path `{}` is too long for a socket", socket.display()),
        )
        .hint("move the state to a shorter path with `BELLJAR_HOME`"));
    }
    let bridge = BridgeSocket::bind(&spec.bridge_dir)?;
    let words = kernel_command(
        &spec.kernel_dir.to_string_lossy(),
        &socket.to_string_lossy(),
        &spec.workspace.to_string_lossy(),
    );
    let mut command = plain(&words, spec);
    command.current_dir(&spec.workspace).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = tokio::process::Command::from(command)
        .spawn()
        .map_err(|error| internal(&format!("the guardian cannot be run: {error}")))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let identity =
        pid.and_then(Identity::of).ok_or_else(|| internal("the process of a sandbox ended at once"))?;
    tokio::spawn(async move {
        let _ = child.wait().await;
    });
    let note = folder.join(PROCESS_NOTE);
    let limited = std::fs::write(&note, identity.to_string())
        .and_then(|()| limits::apply(identity.pid, &spec.limits, OtherEnforcement::Shared));
    if let Err(error) = limited {
        let _ = identity.signal(rustix::process::Signal::KILL);
        return Err(internal(&format!("the limits of a process cannot be set: {error}")));
    }
    Ok(Jail {
        walls: Isolation::None,
        system: false,
        identity,
        group: None,
        folder: folder.to_owned(),
        targets: Vec::new(),
        runtime: "none".into(),
        seccomp: String::new(),
        stderr_head: StderrHead::default(),
        socket: bridge,
        data: data_socket(Isolation::None, &spec.bridge_dir),
    })
}

pub(super) fn plain(words: &[String], spec: &SandboxSpec) -> Command {
    let (program, arguments) = words.split_first().map_or(("python3", &[][..]), |(p, rest)| (p, rest));
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    for variable in environment(spec, &spec.kernel_dir.to_string_lossy()) {
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
    }
    command
}

/// A file without a name that bubblewrap reads from its beginning.
fn in_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = std::fs::File::from(rustix::fs::memfd_create("bubblewrap", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    std::io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// The compiled filters, each in a `memfd`.
fn filters(tools: &Tools, memory_is_held: bool) -> Result<Vec<FdMapping>, Problem> {
    let open = |(index, filter): (usize, &Vec<u8>)| -> std::io::Result<FdMapping> {
        let child_fd = FIRST_SECCOMP_FD + i32::try_from(index).unwrap_or_default();
        Ok(FdMapping { parent_fd: in_memory(filter)?, child_fd })
    };
    let last =
        (!memory_is_held && security_controls::holds("jail_no_nameless_files")).then_some(&tools.last_filter);
    tools
        .filters
        .iter()
        .chain(last)
        .enumerate()
        .map(open)
        .collect::<Result<_, _>>()
        .map_err(|error| internal(&error.to_string()))
}

fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into())
}

pub(super) fn took_too_long(limit: Duration) -> Problem {
    internal(&format!("a jail took longer than {}s", limit.as_secs()))
}

pub(super) fn internal(what: &str) -> Problem {
    Problem::new(Code::SandboxFailed, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bubblewrap_whose_start_was_given_up_is_killed_with_its_processes_and_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $! >&2; wait"]).stderr(Stdio::piped()).process_group(0);
        let mut child = tokio::process::Command::from(command).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let mut bytes = [0; 16];
        let read = tokio::io::AsyncReadExt::read(&mut stderr, &mut bytes).await.unwrap();
        let below: i32 = String::from_utf8_lossy(&bytes[..read]).trim().parse().unwrap();
        let (leader, below) = (i32::try_from(child.id().unwrap()).unwrap(), Identity::of(below).unwrap());
        let started = Unfinished { folder: folder.path(), group: None, bubblewrap: Some(child), goes: None };
        drop(started);
        let gone = async {
            // A process that ended and was not waited for would still have its folder in `/proc`.
            while below.lives() || Path::new(&format!("/proc/{leader}")).exists() {
                tokio::time::sleep(BUILD_POLL).await;
            }
        };
        tokio::time::timeout(BUILD, gone).await.expect("both are gone");
    }
}

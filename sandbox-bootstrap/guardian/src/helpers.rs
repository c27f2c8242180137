//! The guardian's own helper processes: this same program, started with another first argument.
//!
//! The inbox takes descriptors from runners in the guardian's place. A checkpoint hides its memory from all others, but
//! lets the guardian read its size, through a descriptor that only the checkpoint can open. Code of the session can send
//! any other descriptor instead, and the receiver has to close it, which can take long: a connection that lingers, a
//! huge file without a name. So the guardian receives no descriptors from runners. The inbox does, and passes on only
//! those that the guardian waits for. If it is blocked or killed, checkpoints only seem larger.
//!
//! The memory reserve is for the moment when no memory is left. When the sandbox is full, the OOM killer ends the worker
//! first. Files in memory that its cell has written stay, so the next page that any process needs, even the guardian,
//! would cost a checkpoint, and the end of the last checkpoint would cost the session its variables. Therefore a process
//! that does nothing else holds some pages, and in the killer's order it comes between the worker and the checkpoints.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::event::epoll::EventFlags;
use rustix::io;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use rustix::process::{self, Pid, Signal, WaitOptions};

use crate::channel::send_descriptors;
use crate::limits::{RESERVE_BYTES, RESERVE_FROM_PERCENT, WORKER_OOM_SCORE};
use crate::poller::{Poller, Token, Watch};
use crate::process::send_signal;
use crate::sys;

pub const RESERVE: &str = "--reserve";
pub const PROBE: &str = "--probe";
pub const COMMAND: &str = "--command";
/// The argument for a command that has a terminal.
const TERMINAL: &str = "terminal";
/// The lowest priority there is.
const LAST_IN_LINE: i32 = 19;
/// What the daemon puts before the names of a session's variables where programs with more rights run first.
const HELD_BACK: &[u8] = b"BELLJAR_SET_";
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What a process ends with if its program is not there, and if it cannot be run, as shells do.
const EXIT_NO_PROGRAM: i32 = 127;
const EXIT_CANNOT_RUN: i32 = 126;

/// A command that starts this program as a helper, with nothing but what is added to it.
fn helper(arguments: &[&str]) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    // Listings of processes show which helper it is.
    let name = arguments.first().map_or("", |role| role.trim_start_matches('-'));
    command.arg0(format!("belljar-{name}")).args(arguments).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A command that has a helper prepare a process and run the program in it. The environment stays what the guardian has.
///
/// The helper is another program, because a fork of the guardian could not be looked into, and so could not set its place
/// in the order of the OOM killer; and others could look into a fork that can.
pub fn command(tag: Option<u64>, terminal: bool, folder: &str, program: &[String]) -> Command {
    let mut command = Command::new(OWN_PROGRAM);
    let (tag, terminal) = (tag.unwrap_or(0).to_string(), if terminal { TERMINAL } else { "" });
    command.arg0("belljar-command").args([COMMAND, &tag, terminal, folder]).args(program);
    give_variables(&mut command);
    command
}

/// Gives a program the variables of the session under their own names, by which nothing that ran before the guardian, with
/// more rights than a guest has, could be steered.
pub fn give_variables(command: &mut Command) {
    for (held_back, value) in std::env::vars_os() {
        if let Some(name) = held_back.as_bytes().strip_prefix(HELD_BACK) {
            command.env(OsStr::from_bytes(name), value).env_remove(&held_back);
        }
    }
}

/// Starts a program. Where it cannot be run, the process ends at once.
pub fn start(command: &mut Command) -> io::Result<i32> {
    sys::fork_into(|| {
        let _ = command.exec();
        EXIT_NO_PROGRAM
    })
}

/// Starts the child on which the probe tries things out; it waits until its input ends.
pub fn start_probe() -> std::io::Result<Child> {
    helper(&[PROBE]).stdin(Stdio::piped()).spawn()
}

/// Does the work of a helper. `None` if these are not the arguments of one.
pub fn run(arguments: &[String]) -> Option<i32> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [PROBE] => Some(be_probe()),
        [COMMAND, tag, terminal, folder, program, ref arguments @ ..] => {
            Some(be_command(tag, terminal == TERMINAL, folder, program, arguments))
        }
        [RESERVE, score, size] => Some(be_reserve(score, size.parse().ok()?)),
        _ => None,
    }
}

fn settle(name: &CStr) {
    // Names and sessions are a help for those who look at a listing of processes, not a need.
    let _ = rustix::thread::set_name(name);
    let _ = process::setsid();
}

/// Ends with 1 if a new user namespace could be made.
fn be_probe() -> i32 {
    let _ = std::io::stdin().read(&mut [0]);
    i32::from(sys::can_make_user_namespace())
}

/// Becomes the program of a command: in a session of its own, tagged, where it is to begin, with the standard descriptors
/// only.
fn be_command(tag: &str, has_terminal: bool, folder: &str, program: &str, arguments: &[&str]) -> i32 {
    let _ = process::setsid();
    if has_terminal {
        let _ = process::ioctl_tiocsctty(rustix::stdio::stdin());
    }
    let _ = fs::write("/proc/self/oom_score_adj", WORKER_OOM_SCORE.to_string());
    give_way();
    if let Some(tag) = tag.parse().ok().filter(|tag| *tag > 0) {
        let limit = process::Rlimit { current: Some(tag), maximum: Some(tag) };
        let _ = process::setrlimit(process::Resource::Rttime, limit);
    }
    crate::close_inherited();
    if let Err(error) = std::env::set_current_dir(folder) {
        eprintln!("belljar: the folder `{folder}` cannot be entered: {error}");
        return EXIT_CANNOT_RUN;
    }
    let mut command = Command::new(program);
    // The guardian's own says where the sandbox began.
    if let Ok(folder) = std::env::current_dir() {
        command.env("PWD", folder);
    }
    let error = command.args(arguments).exec();
    eprintln!("belljar: `{program}` cannot be run: {error}");
    if error.kind() == std::io::ErrorKind::NotFound { EXIT_NO_PROGRAM } else { EXIT_CANNOT_RUN }
}

/// Lowers the priority as workers do theirs, so that the guardian goes first, and cells are not slower beside a command.
fn give_way() {
    let quota = ["/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .and_then(|text| text.split_ascii_whitespace().next().map(|word| !matches!(word, "max" | "-1")));
    let own = process::getpriority_process(None).unwrap_or(0);
    let wanted = if quota == Some(true) { LAST_IN_LINE } else { own.max(0) };
    if wanted > own {
        let _ = process::setpriority_process(None, wanted);
    }
}

fn be_reserve(score: &str, size: usize) -> i32 {
    settle(c"belljar-reserve");
    let _ = fs::write("/proc/self/oom_score_adj", score);
    let pages = std::hint::black_box(vec![1_u8; size]);
    loop {
        rustix::event::pause();
        std::hint::black_box(&pages);
    }
}

/// Does the work of the inbox in a fork of the guardian. A new program would let others open its memory until it hides.
fn be_inbox(guardian: Option<Pid>, receives: OwnedFd, passes_on: OwnedFd) -> i32 {
    // A datagram socket does not report that the guardian has closed its end.
    let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
    if process::getppid() != guardian {
        return 0; // it died before
    }
    settle(c"belljar-inbox");
    if keep_only(&receives, &passes_on).is_err() {
        return 1;
    }
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    while let Ok(came) = receive_descriptors(stdin.as_fd()) {
        for descriptor in came.iter().filter(|descriptor| rollup_of(descriptor.as_fd()).is_some()) {
            let _ = send_descriptors(stdout.as_fd(), b"r", &[descriptor.as_fd()]);
        }
    }
    0
}

/// Makes these the standard input and output, and closes all else that the guardian has open.
fn keep_only(stdin: &OwnedFd, stdout: &OwnedFd) -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(&null)?;
    crate::close_inherited();
    Ok(())
}

/// Receives one byte and at most one descriptor; the system closes others that came with it.
fn receive_descriptors(socket: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    net::recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let of_message = |message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    };
    Ok(rights.drain().flat_map(of_message).collect())
}

/// The pid of the process whose size the descriptor shows; `None` if it is something else.
fn rollup_of(descriptor: BorrowedFd<'_>) -> Option<i32> {
    use std::os::fd::AsRawFd;
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
    parse_rollup(link.to_str()?)
}

fn parse_rollup(link: &str) -> Option<i32> {
    let pid = link.strip_prefix("/proc/")?.strip_suffix("/smaps_rollup")?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then(|| pid.parse().ok())?
}

struct OpenInbox {
    pid: i32,
    socket: OwnedFd,
    runner_end: OwnedFd,
    _watch: Watch,
}

#[derive(Default)]
pub struct Inbox {
    open: Option<OpenInbox>,
}

impl Inbox {
    /// The descriptor on which runners send; an error if the process cannot be started.
    pub fn runner_end(&mut self, poller: &Poller) -> io::Result<BorrowedFd<'_>> {
        match &self.open {
            Some(open) => send_signal(open.pid, Signal::CONT), // code of the session may have stopped it
            None => self.open = Some(open_inbox(poller)?),
        }
        self.open.as_ref().map(|open| open.runner_end.as_fd()).ok_or(io::Errno::AGAIN)
    }

    pub fn pid(&self) -> Option<i32> {
        self.open.as_ref().map(|open| open.pid)
    }

    /// A child of the guardian has ended. False if it was not the inbox.
    pub fn ended(&mut self, pid: i32) -> bool {
        let is_ours = self.pid() == Some(pid);
        if is_ours {
            self.open = None;
        }
        is_ours
    }

    /// Descriptors that show sizes, with the pids of these processes.
    pub fn receive(&mut self) -> Vec<(i32, OwnedFd)> {
        let Some(open) = &self.open else { return Vec::new() };
        let came = receive_descriptors(open.socket.as_fd()).unwrap_or_default();
        came.into_iter().filter_map(|descriptor| Some((rollup_of(descriptor.as_fd())?, descriptor))).collect()
    }
}

fn open_inbox(poller: &Poller) -> io::Result<OpenInbox> {
    // Datagrams, so that an incomplete message cannot hold back another one.
    let pair = || net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let ((receives, runner_end), (socket, its)) = (pair()?, pair()?);
    io::ioctl_fionbio(&socket, true)?;
    let guardian = Some(process::getpid());
    let ends = (receives, its);
    let pid = sys::fork_into(|| be_inbox(guardian, ends.0, ends.1))?;
    let mut watch = Watch::new(Token::Inbox);
    watch.set(poller, &socket, EventFlags::IN);
    Ok(OpenInbox { pid, socket, runner_end, _watch: watch })
}

#[derive(Default)]
pub struct MemoryReserve {
    pid: Option<i32>,
}

impl MemoryReserve {
    /// Bytes that are in use only for the reserve.
    pub fn bytes(&self) -> u64 {
        if self.pid.is_some() { RESERVE_BYTES } else { 0 }
    }

    /// Makes the reserve when memory gets short, but not when it is used up: that would end the worker.
    pub fn keep(&mut self, in_use: u64, bound: u64) {
        let is_short = in_use > bound / 100 * RESERVE_FROM_PERCENT;
        if !is_short {
            self.release();
        } else if self.pid.is_none() && in_use + 2 * RESERVE_BYTES < bound {
            let (score, size) = (oom_score(bound).to_string(), RESERVE_BYTES.to_string());
            self.pid = start(&mut helper(&[RESERVE, &score, &size])).ok(); // the next check tries again
        }
    }

    pub fn release(&mut self) {
        if let Some(pid) = self.pid.take() {
            send_signal(pid, Signal::KILL);
            let _ = process::waitpid(Pid::from_raw(pid), WaitOptions::empty());
        }
    }

    /// A child of the guardian has ended. False if it was not the reserve.
    pub fn ended(&mut self, pid: i32) -> bool {
        self.pid.take_if(|own| *own == pid).is_some()
    }
}

/// A score below the worker's by more than the size of the reserve can add.
fn oom_score(bound: u64) -> i64 {
    let added = i64::try_from(2 * RESERVE_BYTES * 1000 / bound.max(1)).unwrap_or(WORKER_OOM_SCORE);
    WORKER_OOM_SCORE - added.min(WORKER_OOM_SCORE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_size_of_a_process_is_passed_on() {
        assert_eq!(parse_rollup("/proc/17/smaps_rollup"), Some(17));
        for other in [
            "/proc/17/maps",
            "/proc/x/smaps_rollup",
            "/proc/-1/smaps_rollup",
            "/proc//smaps_rollup",
            "socket:[1]",
        ] {
            assert_eq!(parse_rollup(other), None, "{other}");
        }
    }

    #[test]
    fn the_reserve_goes_after_the_worker() {
        assert_eq!(oom_score(512 * 1024 * 1024), WORKER_OOM_SCORE - 62);
        assert_eq!(oom_score(0), 0);
    }
}

//! Python's first process, from which all workers are made: it runs no user code, and no other process can open its
//! memory.
//!
//! It is asked on a socket, with descriptors, and answers on a pipe, which carries bytes only. What it makes is a child
//! of the guardian. Code of the session can kill or stop it, no more than that; then Python is started anew.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{self, Errno};
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::{self, PipeFlags};
use rustix::process::{self, Pid, Signal, WaitOptions};

use crate::channel::send_descriptors;
use crate::helpers;
use crate::limits::{ZYGOTE_ANSWER, ZYGOTE_ANSWER_BYTES, ZYGOTE_PRESS, ZYGOTE_START};
use crate::process::send_signal;
use crate::wire::{self, MessageReader};

/// What the zygote can make. The values are the kinds of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A fresh worker; the descriptors are those of a runner.
    Worker = b'W' as isize,
    /// A process that evaluates an expression; the descriptor takes its answer.
    Compute = b'E' as isize,
    /// A process that evaluates one expression after the other; the descriptors are those of a channel.
    Evaluator = b'L' as isize,
    /// A process that lists the names that code assigns, likewise.
    Names = b'N' as isize,
}

/// First message of the zygote: Python's version.
const READY: u8 = b'R';
/// Answer to every request: the pid of the process, 0 if there is none.
const MADE: u8 = b'P';

struct Running {
    pid: i32,
    socket: OwnedFd,
    answers: OwnedFd,
    reader: MessageReader,
    /// Whether nothing that could run code of the session was ever made. Then only a busy host makes it late: to start
    /// Python anew would make the host busier, and each such sandbox the next one later.
    is_first: bool,
}

/// How Python is started.
pub struct Zygote {
    python: String,
    kernel: String,
    workspace: String,
    running: Option<Running>,
    /// The version that Python reports; empty until Python has started once.
    pub version: String,
}

impl Zygote {
    pub fn new(python: String, kernel: String, workspace: String) -> Self {
        Self { python, kernel, workspace, running: None, version: String::new() }
    }

    /// The folder that workers begin in.
    pub fn workspace(&self) -> &str {
        &self.workspace
    }

    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.pid)
    }

    /// A child of the guardian has ended. False if it was not the zygote.
    pub fn ended(&mut self, pid: i32) -> bool {
        self.running.take_if(|running| running.pid == pid).is_some()
    }

    /// Whether it has not ended.
    pub fn is_alive(&mut self) -> bool {
        let Some(running) = &self.running else { return false };
        let ended = process::waitpid(Pid::from_raw(running.pid), WaitOptions::NOHANG);
        if !matches!(ended, Ok(None)) {
            self.running = None;
        }
        self.running.is_some()
    }

    /// Starts Python and waits until it is ready. False if it is not by then.
    pub fn start(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let Ok(mut running) = self.spawn() else { return false };
        let pid = running.pid;
        let version = running.answer(deadline).and_then(|(kind, payload)| {
            (kind == READY).then(|| String::from_utf8(payload).ok().filter(|text| is_version(text)))?
        });
        let Some(version) = version else {
            send_signal(pid, Signal::KILL);
            return false;
        };
        (self.version, self.running) = (version, Some(running));
        true
    }

    fn spawn(&self) -> io::Result<Running> {
        let (socket, its) =
            net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        io::ioctl_fionbio(&socket, true)?;
        net::shutdown(&socket, net::Shutdown::Read)?;
        let (answers, speaks) = pipe::pipe_with(PipeFlags::CLOEXEC)?;
        io::ioctl_fionbio(&answers, true)?;
        let mut command = Command::new(&self.python);
        command.args(["-I", "-X", "utf8", "-B", &self.kernel, "--zygote", &self.workspace]);
        helpers::give_variables(&mut command);
        // Cells begin there; the guardian's own says where the sandbox began.
        command.env("PWD", &self.workspace);
        let pid = helpers::start(command.stdin(its).stdout(speaks).stderr(Stdio::inherit()))?;
        let is_first = self.version.is_empty();
        Ok(Running { pid, socket, answers, reader: MessageReader::default(), is_first })
    }

    /// The pid of a process that was made for this. `None` if there is none; a zygote that does not answer is given up.
    pub fn make(
        &mut self,
        wanted: Wanted,
        payload: &[&[u8]],
        given: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Option<i32> {
        let running = self.running.as_mut()?;
        let patience = if running.is_first { ZYGOTE_START } else { patience.min(ZYGOTE_ANSWER) };
        let deadline = Instant::now() + patience;
        send_signal(running.pid, Signal::CONT); // user code may have stopped it
        let message = wire::pack_parts(wanted as u8, payload);
        let made = match running.ask(&message, given, deadline) {
            // Code of the session has as many descriptors on their way as its user may have: nothing was sent.
            Err(Errno::TOOMANYREFS) => return None,
            Err(_) => None,
            Ok(()) => running.answer(deadline),
        };
        running.is_first = false;
        if let Some((MADE, payload)) = made {
            return Some(wire::parse_pid(&payload)).filter(|pid| *pid > 0);
        }
        self.give_up();
        None
    }

    /// Ends it; the next request starts another one.
    pub fn give_up(&mut self) {
        if let Some(running) = self.running.take() {
            send_signal(running.pid, Signal::KILL);
        }
    }
}

impl Running {
    /// Waits until the descriptor is ready. Meanwhile code of the session, if there is any, may stop the zygote again and
    /// again.
    fn is_pressed_until(&self, descriptor: &OwnedFd, flags: PollFlags, deadline: Instant) -> bool {
        let pause = if self.is_first { ZYGOTE_START } else { ZYGOTE_PRESS };
        loop {
            if is_ready(descriptor, flags, deadline.min(Instant::now() + pause)) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            send_signal(self.pid, Signal::CONT);
        }
    }

    fn ask(&self, message: &[u8], given: &[BorrowedFd<'_>], deadline: Instant) -> io::Result<()> {
        let mut sent = send_descriptors(&self.socket, message, given)?;
        while sent < message.len() {
            match net::send(&self.socket, &message[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN | Errno::INTR) => {
                    if !self.is_pressed_until(&self.socket, PollFlags::OUT, deadline) {
                        return Err(Errno::TIMEDOUT);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn answer(&mut self, deadline: Instant) -> Option<(u8, Vec<u8>)> {
        let mut buffer = [0; ZYGOTE_ANSWER_BYTES];
        loop {
            if let Some(message) = self.reader.next().ok()? {
                return Some(message);
            }
            let is_long = self.reader.unread() > ZYGOTE_ANSWER_BYTES;
            if is_long || !self.is_pressed_until(&self.answers, PollFlags::IN, deadline) {
                return None;
            }
            match io::read(&self.answers, &mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.reader.feed(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Waits until the descriptor is ready. False at the deadline.
pub fn is_ready(descriptor: impl std::os::fd::AsFd, flags: PollFlags, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut waiting = [PollFd::new(&descriptor, flags)];
    match poll(&mut waiting, Some(&timeout)) {
        Ok(count) => count > 0,
        Err(error) => error == Errno::INTR && Instant::now() < deadline,
    }
}

/// Whether this is a version as the protocol shows it, three numbers with dots.
fn is_version(text: &str) -> bool {
    let is_number =
        |part: &str| matches!(part.len(), 1..=4) && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split('.').count() == 3 && text.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_three_numbers() {
        assert!(is_version("3.13.1") && is_version("3.9.20"));
        for bad in ["", "3.13", "3.13.x", "3.13.1.1", "3..1", "3.13.12345"] {
            assert!(!is_version(bad), "{bad}");
        }
    }

    #[test]
    fn a_program_that_is_not_python_is_given_up() {
        let nothing = || String::new();
        assert!(!Zygote::new("/bin/false".into(), nothing(), nothing()).start(Duration::from_secs(5)));
        assert!(!Zygote::new("/does/not/exist".into(), nothing(), nothing()).start(Duration::from_secs(5)));
    }

    /// Says that it is Python, and answers one request with the number 7, later than `ZYGOTE_ANSWER`.
    const SLOW: &str = r"#!/bin/sh
printf '\0\0\0\006R3.12.1'
sleep 5
printf '\0\0\0\004P\0\0\0\007'
exec sleep 60
";

    #[test]
    fn on_a_busy_host_the_first_process_takes_its_time_and_later_ones_may_not() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("belljar-slow-zygote-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("python");
        std::fs::write(&program, SLOW).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut zygote = Zygote::new(program.to_string_lossy().into(), String::new(), "/".into());
        assert!(zygote.start(ZYGOTE_START));
        let make = |zygote: &mut Zygote| zygote.make(Wanted::Worker, &[], &[], ZYGOTE_ANSWER);
        assert_eq!(make(&mut zygote), Some(7));
        assert_eq!((make(&mut zygote), zygote.pid()), (None, None));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! The process between the daemon and a program of the host: all that the program starts ends with it.
//!
//! Whoever calls `setsid` or forks twice leaves the group of a program, but not its family. The keeper is this same
//! binary, run once more for each call. What loses its parent below it becomes its child (`PR_SET_CHILD_SUBREAPER`), so
//! that the whole family stays in sight; it is killed when the program ends, and when the daemon closes its end of the
//! line, as it does by dying too. The keeper of a daemon of root is root itself: no program can signal it.

use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, set_child_subreaper, setpriority_process, wait};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use super::limited;
use crate::controls;
use crate::processes::Identity;

/// The only argument of a process that is to be a keeper.
pub const WORD: &str = "keep-program";
/// All that a program finds in its environment: nothing of the daemon's.
const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/")];
/// Of the keeper, as far as it may have it: hundreds of busy processes must not keep it from ending them.
const PRIORITY: i32 = -15;
/// Time between two looks whether a family that was killed is gone.
const PAUSE: Duration = Duration::from_millis(2);

/// What a keeper is told, in one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    pub argv: Vec<String>,
    /// Who the program is to be; none for the daemon's own user.
    pub ids: Option<(u32, u32)>,
    pub timeout: Duration,
    /// What the program reads.
    pub input: String,
}

/// What a keeper answers, when nothing of the program is left.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum ProgramEnd {
    /// As `wait` tells it.
    Ended(i32),
    NotRun(String),
}

impl ProgramEnd {
    /// How the program ended.
    pub fn status(self) -> Result<ExitStatus, String> {
        match self {
            Self::Ended(status) => Ok(ExitStatus::from_raw(status)),
            Self::NotRun(why) => Err(why),
        }
    }
}

/// Where this binary is. A newer one may have been put in its place since it was started.
#[must_use]
pub fn binary() -> PathBuf {
    if cfg!(test) {
        // Tests of the library are a binary of their own; the real one is built beside them.
        let own = std::env::current_exe().unwrap_or_default();
        return own.ancestors().nth(2).unwrap_or(&own).join("belljar");
    }
    "/proc/self/exe".into()
}

/// Is a keeper to its end, if that is what this process was started as.
pub fn main() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == WORD && words.next().is_none()).then_some(())?;
    Some(if keep().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The line to the daemon is stdin, in both directions; stdout and stderr are the program's.
fn keep() -> std::io::Result<()> {
    let mut line = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut orders = BufReader::new(line.try_clone()?);
    let mut order = String::new();
    orders.read_line(&mut order)?;
    let order: Order = serde_json::from_str(&order)?;
    let own = i32::try_from(std::process::id()).ok().and_then(Identity::of);
    let own = own.ok_or_else(|| std::io::Error::other("the keeper does not find itself"))?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let verdict = match start(&order) {
        Err(error) => ProgramEnd::NotRun(error.to_string()),
        Ok(mut program) => {
            let leader = program.id();
            let _ = setpriority_process(None, PRIORITY);
            let family = own.clone();
            std::thread::spawn(move || {
                // Nothing more is said on the line: whatever this gives, nobody waits any longer.
                let _ = orders.read(&mut [0]);
                end(&family, leader);
                std::process::exit(0);
            });
            feed(&mut program, order.input);
            let status = ended(leader);
            end(&own, leader);
            ProgramEnd::Ended(status?)
        }
    };
    line.write_all(serde_json::to_string(&verdict)?.as_bytes())
}

fn start(order: &Order) -> std::io::Result<Child> {
    let (program, arguments) = order.argv.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(ENVIRONMENT).current_dir("/").stdin(Stdio::piped());
    limited::limit(&mut command, order.timeout);
    if let Some((uid, gid)) = order.ids {
        use std::os::unix::process::CommandExt;
        command.uid(uid).gid(gid);
    }
    command.spawn()
}

/// A program that does not want its arguments may close the pipe, or never read it.
fn feed(program: &mut Child, input: String) {
    if let Some(mut stdin) = program.stdin.take() {
        std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
}

/// Takes note of all that end, until the program does.
fn ended(leader: u32) -> std::io::Result<i32> {
    loop {
        if let Some((pid, status)) = wait(WaitOptions::empty())?
            && u32::try_from(pid.as_raw_nonzero().get()) == Ok(leader)
        {
            return Ok(status.as_raw());
        }
    }
}

/// Ends the whole family. It goes on until nothing is left that may be killed: to give up would be a way out.
fn end(own: &Identity, leader: u32) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    if !controls::holds("programs_end_with_all_that_they_started") {
        let group = i32::try_from(leader).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| rustix::process::kill_process_group(group, rustix::process::Signal::KILL));
        return;
    }
    while own.kill_descendants() > 0 {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(PAUSE);
    }
}

//! The keeper: a process between the daemon and a program of the host, which ends everything that the program started.
//!
//! A process that calls `setsid` or forks twice leaves the program's group, but it stays a descendant. The keeper is
//! this same binary, started once per call. An orphan among its descendants becomes its child
//! (`PR_SET_CHILD_SUBREAPER`), so the keeper can always find the whole family. It kills the family when the program
//! ends and when the daemon closes its end of the line, which also happens if the daemon dies. The keeper of a root
//! daemon runs as root, so the program cannot signal it.

use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, set_child_subreaper, setpriority_process, wait};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use super::process_limits;
use crate::processes::Identity;
use crate::security_controls;

/// The only argument of a process that is started as a keeper.
pub const WORD: &str = "keep-program";
/// The environment of every program; of the daemon's it gets what the configuration of the tool names.
const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("HOME", "/")];
/// The keeper's priority, as far as its rights allow: hundreds of busy processes must not keep it from ending them.
const PRIORITY: i32 = -15;
/// The time between two checks whether a killed family is gone.
const PAUSE: Duration = Duration::from_millis(2);

/// The order to a keeper, one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
pub struct ProgramOrder {
    pub argv: Vec<String>,
    /// The uid and gid for the program; `None` to run it as the daemon's own user.
    pub ids: Option<(u32, u32)>,
    pub timeout: Duration,
    /// Variables beside those that every program gets.
    pub env: BTreeMap<String, String>,
    pub cwd: PathBuf,
    /// The program's stdin.
    pub input: String,
}

/// The keeper's answer, sent when nothing of the program is left.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum ProgramEnd {
    /// The raw status from `wait`.
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

/// The path of this binary. `/proc/self/exe` names the running one even if the file has been replaced since.
pub fn binary() -> PathBuf {
    if cfg!(test) {
        // The unit tests are a binary of their own; the real one is built beside it.
        let own = std::env::current_exe().unwrap_or_default();
        return own.ancestors().nth(2).unwrap_or(&own).join("belljar");
    }
    "/proc/self/exe".into()
}

/// Runs the keeper, if this process was started as one.
pub fn main() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == WORD && words.next().is_none()).then_some(())?;
    Some(if keep().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one order. The line to the daemon is stdin, in both directions; stdout and stderr belong to the program.
fn keep() -> std::io::Result<()> {
    let mut line = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut orders = BufReader::new(line.try_clone()?);
    let mut order = String::new();
    orders.read_line(&mut order)?;
    let order: ProgramOrder = serde_json::from_str(&order)?;
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
                // The daemon sends nothing more on the line, so any result of the read means that no call waits any
                // longer.
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

fn start(order: &ProgramOrder) -> std::io::Result<Child> {
    let (program, arguments) = order.argv.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(ENVIRONMENT).envs(&order.env);
    command.current_dir(&order.cwd).stdin(Stdio::piped());
    process_limits::limit(&mut command, order.timeout);
    if let Some((uid, gid)) = order.ids {
        use std::os::unix::process::CommandExt;
        command.uid(uid).gid(gid);
    }
    command.spawn()
}

/// Writes the program's stdin on a thread of its own, because the program may never read it; one that closes it is no
/// error.
fn feed(program: &mut Child, input: String) {
    if let Some(mut stdin) = program.stdin.take() {
        std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
}

/// Reaps descendants until the program itself ends.
fn ended(leader: u32) -> std::io::Result<i32> {
    loop {
        if let Some((pid, status)) = wait(WaitOptions::empty())?
            && u32::try_from(pid.as_raw_nonzero().get()) == Ok(leader)
        {
            return Ok(status.as_raw());
        }
    }
}

/// Kills the whole family. The loop continues until no killable process is left, because a limit on the attempts would
/// let a program escape.
fn end(own: &Identity, leader: u32) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    if !security_controls::holds("programs_end_with_all_that_they_started") {
        let group = i32::try_from(leader).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| rustix::process::kill_process_group(group, rustix::process::Signal::KILL));
        return;
    }
    while own.kill_descendants() > 0 {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(PAUSE);
    }
}

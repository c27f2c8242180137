//! Starts the daemon when a command finds none.
//!
//! Several commands may do so at once: the daemon's own lock decides which of the daemons stays,
//! the others exit with [`exit::ALREADY_RUNNING`], and all commands then talk to the one that stayed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::cli::client::http::Client;
use crate::cli::client::machine_daemon::ClosedDaemon;
use crate::cli::failure::Failure;
use crate::protocol::exit_codes as exit;

/// Time a daemon has until it answers. A daemon that fails is noticed at once, so this is only for hosts
/// that are slow or busy.
pub(in crate::cli) const READY: Duration = Duration::from_secs(60);
/// How long a start is repeated while another daemon holds this home: that one may be just starting, or just
/// ending.
const OTHER_READY: Duration = Duration::from_secs(15);
const OTHER_PAUSE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(25);
/// The end of the log that is shown when a daemon does not start.
const LOG_TAIL_BYTES: u64 = 4 * 1024;
const LOG_TAIL_LINES: usize = 12;
/// A log that is larger than this is emptied before the next start.
const LOG_BYTES: u64 = 1024 * 1024;

pub(in crate::cli) struct Starter {
    pub logs_dir: PathBuf,
    /// Given to the daemon as `--config`.
    pub config: Option<PathBuf>,
    /// Say that a daemon was started.
    pub announce: bool,
    /// The daemon of the whole machine, if it is there and this user may not use it; then the start is always said.
    pub closed: Option<ClosedDaemon>,
}

impl Starter {
    /// Returns when a daemon answers.
    pub async fn start(&self, socket: &Path) -> Result<(), Failure> {
        let log = self.logs_dir.join("daemon-start.log");
        let (mut child, mut log_start) = self.spawn(&log)?;
        let deadline = Instant::now() + READY;
        let mut other_since = None;
        let client = Client::new(socket.to_owned(), None);
        while Instant::now() < deadline {
            if let Ok(Ok(_)) = timeout(READY, client.get("/v1/health")).await {
                if other_since.is_none() {
                    self.say_started(child.id());
                }
                return Ok(());
            }
            match child.try_wait() {
                Ok(Some(status)) if status.code() == Some(i32::from(exit::ALREADY_RUNNING)) => {
                    if other_since.get_or_insert_with(Instant::now).elapsed() < OTHER_READY {
                        // The other daemon may be just starting, or just ending.
                        sleep(OTHER_PAUSE).await;
                        (child, log_start) = self.spawn(&log)?;
                    } else {
                        let socket = socket.display();
                        return Err(Failure::new(format!(
                            "a daemon serves this home already, but it does not listen at `{socket}`:\n{}",
                            tail(&log, log_start)
                        ))
                        .hint(
                            "set `BELLJAR_SOCKET` as it was when that daemon was started, or end that one",
                        ));
                    }
                }
                Ok(Some(status)) => {
                    let log_tail = tail(&log, log_start);
                    if let (true, Err(error)) = (log_tail.is_empty(), probe(&log)) {
                        let failed =
                            format!("the daemon did not start ({status}): its home cannot be written");
                        return Err(Failure::io(failed, &error)
                            .hint("make room there, or set `BELLJAR_HOME` to a folder on another disk"));
                    }
                    let failure = Failure::new(format!("the daemon did not start ({status}):\n{log_tail}"))
                        .hint(format!("its log is `{}`", log.display()));
                    let is_usage = status.code() == Some(i32::from(exit::USAGE));
                    return Err(if is_usage { Failure { exit: exit::USAGE, ..failure } } else { failure });
                }
                Ok(None) | Err(_) => {}
            }
            sleep(POLL).await;
        }
        Err(Failure::new(format!("the daemon did not answer within {} seconds", READY.as_secs()))
            .hint(format!("its log is `{}`", log.display())))
    }

    fn say_started(&self, pid: u32) {
        // Not `eprintln`, which panics if stderr is closed.
        let _ = match &self.closed {
            Some(closed) => writeln!(
                io::stderr(),
                "started a daemon of your own (pid {pid}), since that of this machine is for members of the group `{}`: {}",
                closed.group,
                closed.remedy()
            ),
            None if self.announce => writeln!(io::stderr(), "started the daemon (pid {pid})"),
            None => Ok(()),
        };
    }

    /// Starts the daemon in a process group of its own, so that a Ctrl-C meant for this command does not
    /// reach it. Also returns where in the log its output begins.
    fn spawn(&self, log: &Path) -> Result<(Child, u64), Failure> {
        let (out, err, log_start) = open_log(log).map_err(|e| {
            let failed = format!("failed to start the daemon with its log at `{}`", log.display());
            Failure::io(failed, &e).hint("set `BELLJAR_HOME` to a folder that can be written")
        })?;
        let program = std::env::current_exe()
            .map_err(|e| Failure::io("failed to start the daemon: this command does not find itself", &e))?;
        let mut command = Command::new(&program);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.arg("daemon").stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        // Otherwise the daemon's working directory could not be unmounted.
        command.current_dir("/");
        let child = command.spawn().map_err(|e| {
            let failed = format!("failed to start the daemon: `{}` cannot be run again", program.display());
            let failure = Failure::io(failed, &e);
            match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                    failure.hint("put the command where you may run it, such as `/usr/local/bin`")
                }
                _ => failure,
            }
        })?;
        Ok((child, log_start))
    }
}

/// The log, for stdout and for stderr, and where in it what comes next begins.
fn open_log(log: &Path) -> io::Result<(File, File, u64)> {
    DirBuilder::new().recursive(true).mode(0o700).create(log.parent().unwrap_or(log))?;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
    if file.metadata()?.len() > LOG_BYTES {
        file.set_len(0)?;
    }
    let log_start = file.metadata()?.len();
    Ok((file.try_clone()?, file, log_start))
}

/// Finds out whether the log can be written: on a full disk the daemon's messages are lost.
fn probe(log: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).open(log)?.write_all(b"\n")
}

/// The last lines of what was written to the log after `start`.
fn tail(log: &Path, start: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(start.max(length.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_else(|e| format!("(its log cannot be read: {e})"));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(LOG_TAIL_LINES);
    lines.into_iter().skip(skipped).map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_since_the_start_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "old\nnew\n\nerror: no\n").unwrap();
        assert_eq!(tail(&log, 4), "  new\n  error: no");
        let many = (0..100).fold(String::new(), |text, n| format!("{text}line {n}\n"));
        std::fs::write(&log, many).unwrap();
        assert_eq!(tail(&log, 0).lines().count(), LOG_TAIL_LINES);
        assert!(tail(&dir.path().join("none"), 0).contains("cannot be read"));
    }
}

//! Commands that tests run: `belljar` against the daemon of a test, and the engine's own command line.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::Daemon;

pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_belljar"))
}

/// Lets a command start a daemon of its own in `home`, or find it there. Its configuration is empty, so that none that the
/// machine or its user has in a usual place matters.
pub fn in_own_home<'c>(command: &'c mut Command, home: &Path) -> &'c mut Command {
    command
        .env("BELLJAR_HOME", home)
        .env("BELLJAR_CONFIG", "/dev/null")
        .env_remove("BELLJAR_SOCKET")
        .env_remove("BELLJAR_NO_AUTOSTART")
}

/// Runs the engine's own command line.
pub fn docker<const N: usize>(arguments: [&str; N]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("the docker command is there");
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        }
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

impl Daemon {
    /// The command line, set up to talk to this daemon and never to start another.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.user {
            None => Command::new(binary()),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)]);
                command.arg(match user.group {
                    Some(group) => format!("--groups={group}"),
                    None => "--clear-groups".into(),
                });
                command.arg(binary());
                command
            }
        };
        command
            .args(arguments)
            .env("BELLJAR_HOME", self.home.path())
            .env("BELLJAR_SOCKET", self.socket())
            .env("BELLJAR_CONFIG", self.home.path().join("config.toml"))
            .env("BELLJAR_NO_AUTOSTART", "1")
            .env_remove("BELLJAR_SESSION")
            .envs(self.environment.iter().cloned());
        command
    }

    pub fn cli<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::of(self.command(arguments).stdin(Stdio::null()).output().expect("belljar runs"))
    }

    pub fn cli_with_input<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: &str,
    ) -> Ran {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("belljar runs");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
        Ran::of(child.wait_with_output().expect("it ends"))
    }
}

//! What the benchmarks share: a daemon of their own, a client on a kept connection, percentiles.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Client(BufReader<UnixStream>);

impl Client {
    pub fn connect(socket: &Path) -> Self {
        Self(BufReader::new(UnixStream::connect(socket).expect("the daemon serves")))
    }

    /// One request on the kept connection.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> String {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: belljar\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes()).expect("sent");
        let mut length = 0;
        let mut status = String::new();
        self.0.read_line(&mut status).expect("a status");
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a head");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).expect("a body");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(status.contains(" 20"), "{status}{answer}");
        answer
    }

    /// Runs a cell and gives its result as JSON text.
    pub fn run(&mut self, session: &str, code: &str) -> String {
        let body = serde_json::json!({ "code": code, "timeout_s": 120 }).to_string();
        self.request("POST", &format!("/v1/sessions/{session}/cells?wait=true"), &body)
    }
}

pub struct Daemon {
    child: Child,
    /// Ends the daemon and its sandboxes when this process is gone, however it went.
    watcher: Child,
    home: tempfile::TempDir,
}

const WATCH: &str = r#"cat >/dev/null; "$0" daemon stop --remove >/dev/null 2>&1; rm -rf "$BELLJAR_HOME""#;

impl Daemon {
    pub fn with_config(config: &str) -> Self {
        let home = tempfile::tempdir_in("/tmp").expect("a folder");
        let file = home.path().join("config.toml");
        std::fs::write(&file, config).expect("a configuration");
        let belljar = env!("CARGO_BIN_EXE_belljar");
        let of_home = |command: &mut Command| {
            command
                .env("BELLJAR_HOME", home.path())
                .env("BELLJAR_CONFIG", &file)
                .env_remove("BELLJAR_SOCKET");
            command.process_group(0).spawn().expect("it starts")
        };
        let watcher = of_home(Command::new("sh").args(["-c", WATCH, belljar]).stdin(Stdio::piped()));
        let child = of_home(Command::new(belljar).arg("daemon").stdin(Stdio::null()));
        let daemon = Self { child, watcher, home };
        let deadline = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(daemon.socket()).is_err() {
            assert!(Instant::now() < deadline, "the daemon does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("belljar.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
        let _ = self.child.wait();
    }
}

pub fn times(count: usize, mut work: impl FnMut(usize) -> Duration) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..count).map(&mut work).collect();
    times.sort();
    times
}

pub fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

pub fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)].as_secs_f64() * 1e3
}

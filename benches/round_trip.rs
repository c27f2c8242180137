//! What a cell and a session cost, beside the bare engine in the same run.
//!
//! - a cell's round trip (`1+1` over the API): back to back, and after 100 ms of idling
//! - a cold session (request to ready) beside create + start of the same image by the bare engine
//!
//! Machines differ and are noisy: read the ratios.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a benchmark that fails may panic"
)]

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions, StartContainerOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WARM_UP: usize = 200;
const HOT_CELLS: usize = 2_000;
const IDLE_CELLS: usize = 50;
const IDLE: Duration = Duration::from_millis(100);
const COLD_SESSIONS: usize = 15;
const IMAGE: &str = "belljar/base";

struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(socket: &Path) -> Self {
        Self(BufReader::new(UnixStream::connect(socket).expect("the daemon serves")))
    }

    /// One request on the kept connection.
    fn request(&mut self, method: &str, path: &str, body: &str) -> String {
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

    fn cell(&mut self) {
        let answer = self.request("POST", "/v1/sessions/bench/cells?wait=true", r#"{"code":"1+1"}"#);
        assert!(answer.contains(r#""repr":"2""#), "{answer}");
    }
}

struct Daemon(Child, tempfile::TempDir);

impl Daemon {
    fn start() -> Self {
        let home = tempfile::tempdir_in("/tmp").expect("a folder");
        let child = Command::new(env!("CARGO_BIN_EXE_belljar"))
            .arg("daemon")
            .env("BELLJAR_HOME", home.path())
            .env_remove("BELLJAR_SOCKET")
            .stdin(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let daemon = Self(child, home);
        let deadline = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(daemon.socket()).is_err() {
            assert!(Instant::now() < deadline, "the daemon does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    fn socket(&self) -> std::path::PathBuf {
        self.1.path().join("belljar.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn times(count: usize, mut work: impl FnMut(usize) -> Duration) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..count).map(&mut work).collect();
    times.sort();
    times
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)].as_secs_f64() * 1e3
}

fn row(name: &str, sorted: &[Duration]) {
    println!(
        "{name:<44} {:>10.3} {:>10.3} {:>7}",
        percentile(sorted, 50),
        percentile(sorted, 95),
        sorted.len()
    );
}

/// Create + start, and removal outside of the measured time.
fn bare(runtime: &tokio::runtime::Runtime, docker: &Docker, network: &str, count: usize) -> Vec<Duration> {
    times(count, |number| {
        let name = format!("belljar-bench-{}-{number}", std::process::id());
        let body = ContainerCreateBody {
            image: Some(IMAGE.into()),
            cmd: Some(vec!["sleep".into(), "60".into()]),
            host_config: Some(HostConfig { network_mode: Some(network.into()), ..HostConfig::default() }),
            ..ContainerCreateBody::default()
        };
        let time = timed(|| {
            runtime.block_on(async {
                let options =
                    CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
                docker.create_container(Some(options), body).await.expect("created");
                docker.start_container(&name, None::<StartContainerOptions>).await.expect("started");
            });
        });
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        runtime.block_on(docker.remove_container(&name, Some(options))).expect("removed");
        time
    })
}

fn main() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket());
    let new = |name: &str| format!(r#"{{"name":"{name}","image":"{IMAGE}"}}"#);
    client.request("POST", "/v1/sessions", &new("bench"));
    (0..WARM_UP).for_each(|_| client.cell());

    println!("{:<44} {:>10} {:>10} {:>7}", "", "p50 ms", "p95 ms", "n");
    let hot = times(HOT_CELLS, |_| timed(|| client.cell()));
    row("cell `1+1`, back to back", &hot);
    let idle = times(IDLE_CELLS, |_| {
        std::thread::sleep(IDLE);
        timed(|| client.cell())
    });
    row("cell `1+1`, after 100 ms of idling", &idle);
    client.request("DELETE", "/v1/sessions/bench", "");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let docker = runtime
        .block_on(async { Docker::connect_with_defaults().expect("an engine").negotiate_version().await })
        .expect("an engine");
    let cold = times(COLD_SESSIONS, |number| {
        let name = format!("cold{number}");
        let time = timed(|| drop(client.request("POST", "/v1/sessions", &new(&name))));
        client.request("DELETE", &format!("/v1/sessions/{name}"), "");
        time
    });
    row("cold session, ready for its first cell", &cold);
    let bare_none = bare(&runtime, &docker, "none", COLD_SESSIONS);
    row("bare create + start, network none", &bare_none);
    let bare_bridge = bare(&runtime, &docker, "bridge", COLD_SESSIONS);
    row("bare create + start, default network", &bare_bridge);
    println!(
        "\na cold session takes {:.2} times a bare create + start without network (p50)",
        percentile(&cold, 50) / percentile(&bare_none, 50)
    );
}

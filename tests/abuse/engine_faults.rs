//! An engine that hangs, and one whose stream never ends. Between the daemon and the real engine stands a socket of the
//! test's own that passes everything on, until it is told to misbehave.

use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::docker::helpers::{S, gapless, printed, value};
use crate::support::{Daemon, SOON, engine, eventually};

const REAL: &str = "/var/run/docker.sock";
const PAUSE: Duration = Duration::from_millis(20);
/// Longest time for a call that should be quick and one that may take longer (`ENGINE_CALL`, `ENGINE_START`), on a
/// machine with other work to do.
const CALLS: Duration = Duration::from_secs(15 + 60 + 30);
/// What is asked for to get a stream without an end.
const ENDLESS: &str = "example/endless";

#[derive(Default)]
struct Behaviour {
    /// Nothing is passed on, in either direction.
    hangs: AtomicBool,
    /// The daemon read the endless stream, and hung up.
    hung_up: AtomicBool,
}

struct FakeEngine {
    folder: tempfile::TempDir,
    behaviour: Arc<Behaviour>,
}

impl FakeEngine {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("bje").tempdir_in("/tmp").expect("a folder");
        let listener = UnixListener::bind(folder.path().join("sock")).expect("a socket");
        let behaviour = Arc::new(Behaviour::default());
        let own = Arc::clone(&behaviour);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let behaviour = Arc::clone(&own);
                std::thread::spawn(move || serve(client, &behaviour));
            }
        });
        Self { folder, behaviour }
    }

    fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("sock").display())
    }

    fn hang(&self, hangs: bool) {
        self.behaviour.hangs.store(hangs, Ordering::SeqCst);
    }
}

fn serve(client: UnixStream, behaviour: &Arc<Behaviour>) {
    let Ok(real) = UnixStream::connect(Path::new(REAL)) else { return };
    let (mut from, mut to) = (real.try_clone().expect("a handle"), client.try_clone().expect("a handle"));
    let own = Arc::clone(behaviour);
    std::thread::spawn(move || {
        pass_on(&mut from, &mut to, &own, |_| false);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let (mut from, mut to) = (client, real);
    let is_endless = |bytes: &[u8]| {
        let line =
            String::from_utf8_lossy(bytes.get(..bytes.len().min(300)).unwrap_or_default()).into_owned();
        line.starts_with("POST") && line.contains("/images/create") && line.contains("endless")
    };
    if pass_on(&mut from, &mut to, behaviour, is_endless) {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        let step = "{\"status\":\"Pulling\"}\n";
        let mut alive = from.write_all(head.as_bytes()).is_ok();
        while alive {
            alive = from.write_all(format!("{:x}\r\n{step}\r\n", step.len()).as_bytes()).is_ok();
            std::thread::sleep(PAUSE);
        }
        behaviour.hung_up.store(true, Ordering::SeqCst);
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Passes bytes on until one side ends, or until something comes that is not to be passed on; true in the latter case.
fn pass_on(
    from: &mut UnixStream,
    to: &mut UnixStream,
    behaviour: &Behaviour,
    is_kept: impl Fn(&[u8]) -> bool,
) -> bool {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer) else { return false };
        while behaviour.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(PAUSE);
        }
        if is_kept(&buffer[..read]) {
            return true;
        }
        if to.write_all(&buffer[..read]).is_err() {
            return false;
        }
    }
}

/// Cells need no engine; what needs one is told in time that it hangs, and done when it goes on.
#[test]
fn an_engine_that_hangs_holds_up_only_what_needs_it() {
    if !engine() {
        return;
    }
    let fake = FakeEngine::start();
    let config = "[sandbox]\nbackend = \"docker\"\n";
    let daemon = Daemon::with_environment(config, &[("DOCKER_HOST", &fake.host())]);
    daemon.session(S, json!({"image": "belljar/base"}));
    printed(&daemon, "x = 1");
    daemon.session("removed", json!({"image": "belljar/base"}));
    assert_eq!(daemon.containers().len(), 2);

    fake.hang(true);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let body = json!({"name": "late", "image": "belljar/base"}).to_string();
            daemon.http("POST", "/v1/sessions", body.as_bytes())
        });
        let removed = scope.spawn(|| daemon.http("DELETE", "/v1/sessions/removed", b""));
        // Meanwhile everything else goes on.
        for _ in 0..5 {
            printed(&daemon, "x += 1");
            daemon.http("GET", "/v1/health", b"").expect_status(200);
        }
        let refused = refused.join().expect("it is answered");
        assert_eq!(refused.json()["code"], "engine_unavailable", "{}", refused.text());
        assert!(refused.json()["hint"].is_string(), "{}", refused.text());
        removed.join().expect("it is answered").expect_status(200);
    });
    assert!(began.elapsed() < CALLS, "it took {:?}", began.elapsed());

    fake.hang(false);
    eventually("a session can be made again", || {
        let body = json!({"name": "later", "image": "belljar/base"}).to_string();
        (daemon.http("POST", "/v1/sessions", body.as_bytes()).status == 201).then_some(())
    });
    assert_eq!(daemon.run("later", "6 * 7")["result"]["repr"], "42");
    assert_eq!(value(&daemon, "x"), "6");
    let removed = Instant::now();
    while daemon.containers().len() > 2 {
        assert!(removed.elapsed() < 3 * SOON, "the container is left: {:?}", daemon.containers());
        std::thread::sleep(PAUSE);
    }
    gapless(&daemon, S);
    daemon.assert_sound();
}

/// The client that asked for an image is told of each step, no other client waits, and the work ends with that client.
#[test]
fn a_stream_of_the_engine_that_never_ends_ends_with_its_reader() {
    if !engine() {
        return;
    }
    let fake = FakeEngine::start();
    let config = format!("[sandbox]\nbackend = \"docker\"\nimages = [\"belljar/base\", \"{ENDLESS}\"]\n");
    let daemon = Daemon::with_environment(&config, &[("DOCKER_HOST", &fake.host())]);
    let body = json!({ "reference": ENDLESS }).to_string();
    let mut socket = daemon.connect().expect("it serves");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    let head = "POST /v1/images HTTP/1.1\r\nHost: belljar\r\nConnection: close";
    write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("it takes requests");
    let lines = BufReader::new(&socket).lines().map_while(Result::ok);
    assert_eq!(lines.filter(|line| line.contains("Pulling")).take(50).count(), 50);
    daemon.session(S, json!({"image": "belljar/base"}));
    assert_eq!(value(&daemon, "6 * 7"), "42");
    assert!(!fake.behaviour.hung_up.load(Ordering::SeqCst));
    drop(socket);
    eventually("the engine is hung up on", || fake.behaviour.hung_up.load(Ordering::SeqCst).then_some(()));
    daemon.assert_sound();
}

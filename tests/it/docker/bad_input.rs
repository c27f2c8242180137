//! Bad input: one line that says what is wrong, a hint that says what to do, the right exit code.
//! Never a panic, never a hang.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Daemon, Ran, engine, eventually};

/// No jail takes the place of a container.
const ENGINE_ONLY: &str = "[sandbox]\nbackend = \"docker\"\n";
const DEAD_ENGINE: (&str, &str) = ("DOCKER_HOST", "unix:///nonexistent/docker.sock");

/// `error: …` on the first line, and more only after it.
#[track_caller]
fn told(ran: &Ran, code: i32, what: &str) -> String {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    let first = ran.stderr.lines().next().unwrap_or_default().to_owned();
    assert!(first.starts_with("error: ") && first.contains(what), "{ran:?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    first
}

#[track_caller]
fn told_with_hint(ran: &Ran, code: i32, what: &str, hint: &str) {
    told(ran, code, what);
    let hints: Vec<&str> = ran.stderr.lines().filter_map(|line| line.strip_prefix("hint: ")).collect();
    assert!(hints.len() == 1 && hints[0].contains(hint), "{ran:?}");
}

#[test]
fn the_command_line_explains_mistakes() {
    let daemon = Daemon::with_environment(ENGINE_ONLY, &[DEAD_ENGINE]);
    let cli = |arguments: &[&str]| daemon.cli(arguments);
    for (arguments, what) in [
        (&["new", "--bogus"][..], "unexpected argument '--bogus'"),
        (&["new", "--memory", "12x"], "there is no unit `x`"),
        (&["new", "--memory", "-1"], "'-1'"),
        (&["new", "--memory", "lots"], "a number is missing"),
        (&["new", "--cpus", "none"], "it has to be a number above 0"),
        (&["new", "--idle", "0"], "it has to be more than 0"),
        (&["new", "--seed", "{"], "this JSON cannot be used"),
        (&["new", "a b"], "is no session name"),
        (&["exec", "-s", "a", "--timeout", "soon", "1"], "'soon'"),
        (&["exec", "-s", "a", "--mode", "sideways", "1"], "'sideways'"),
        (&["exec", "1"], "no session is named"),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["daemon", "stopp"], "unrecognized subcommand 'stopp'"),
        (&["cp", "a", "b"], "one side has to be a session"),
        (&["cp", "a:/etc/passwd", "-"], "only what is in the workspace or the volume can be copied"),
    ] {
        told(&cli(arguments), 64, what);
    }
    told_with_hint(&cli(&["run", "/nonexistent.py"]), 125, "failed to read `/nonexistent.py`", "`-`");
    told_with_hint(&cli(&["exec", "-s", "nope", "1"]), 125, "there is no session `nope`", "belljar new nope");
    told_with_hint(&cli(&["new", "--memory", "1k"]), 125, "memory of 1 KiB", "64 MiB");
    told_with_hint(&cli(&["cp", "/nonexistent", "a:x"]), 125, "failed to open `/nonexistent`", "first path");
    let absent = cli(&["new", "--workspace", "/nonexistent"]);
    told_with_hint(&absent, 125, "failed to find the workspace", "--workspace");
    told(&daemon.cli_with_input(["run", "-"], "\u{0}"), 125, "");
    let mut child = daemon.command(["exec", "-s", "a", "-"]);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("piped").write_all(b"print('\xff\xfe')").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("failed to read stdin"), "{said}");
    assert!(cli(&["--help"]).ok().stdout.contains("Usage: belljar"));
    // Programs get the same as JSON.
    let json = cli(&["--json", "exec", "-s", "nope", "1"]).exits(125);
    let line = format!("{}{}", json.stdout, json.stderr);
    let problem: Value = serde_json::from_str(line.trim()).expect("one JSON document");
    assert!(problem.to_string().contains("no_such_session"), "{problem}");
    for (arguments, exit, code) in [
        (&["run", "/nonexistent.py", "--json"][..], 125, "failed"),
        (&["--json", "run", "/nonexistent.py"], 125, "failed"),
        (&["--json", "cp", "a", "b"], 64, "usage"),
        (&["ps", "--json", "--nope"], 64, "usage"),
        (&["--json"], 64, "usage"),
    ] {
        let ran = cli(arguments).exits(exit);
        let told: Value = serde_json::from_str(&ran.stderr).expect("one JSON document");
        assert_eq!(told["code"], code, "{arguments:?}: {told}");
        assert!(told["message"].as_str().is_some_and(|message| !message.is_empty()), "{told}");
    }
    daemon.assert_sound();
}

#[test]
fn without_a_daemon_the_command_says_how_to_start_it() {
    let mut daemon = Daemon::with_environment(ENGINE_ONLY, &[DEAD_ENGINE]);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), Some(0));
    told_with_hint(&daemon.cli(["ps"]), 125, "no daemon listens at", "belljar daemon");
}

#[test]
fn every_mistake_in_a_configuration_is_listed() {
    let home = tempfile::tempdir().expect("a folder");
    let file = home.path().join("config.toml");
    let run = |text: &str| {
        std::fs::write(&file, text).expect("written");
        let output = std::process::Command::new(crate::support::binary())
            .args(["--config", file.to_str().expect("UTF-8"), "daemon"])
            .env("BELLJAR_HOME", home.path())
            .stdin(Stdio::null())
            .output()
            .expect("it ends");
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("error:") && !said.contains("panicked"), "{said}");
        said.replace(file.to_str().expect("UTF-8"), "config.toml")
    };
    let said = run(
        "[sandbox]\nmemroy = \"1GiB\"\nmemory = \"12x\"\npids = \"many\"\ncpus = 0\n[cells]\ntimeout = \"2h\"\n[nonsense]\nx = 1\n",
    );
    for word in ["memroy", "12x", "pids", "cpus", "timeout", "nonsense", "config.toml:2", "config.toml:3"] {
        assert!(said.contains(word), "`{word}` is not in:\n{said}");
    }
    for (text, word) in [
        ("[sandbox\n", "config.toml"),
        ("[sandbox]\nimages = []\n", "images"),
        ("[sandbox]\nimage = \"other\"\n", "image"),
        ("[sandbox]\nmemory = \"1GiB\"\nmax_memory = \"512MiB\"\n", "memory"),
        ("[sandbox]\nuid_first = 0\n", "uid_first"),
        ("[daemon]\nlog_level = \"loud\"\n", "log_level"),
    ] {
        let said = run(text);
        assert!(said.contains(word), "{text:?}: {said}");
    }
    let long = format!("/{}", "x".repeat(200));
    let socket = std::process::Command::new(crate::support::binary())
        .arg("ps")
        .env("BELLJAR_HOME", home.path())
        .env("BELLJAR_SOCKET", long)
        .output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&socket.stderr).into_owned();
    assert!(socket.status.code() == Some(64) && said.contains("hint: set `BELLJAR_SOCKET`"), "{said}");
    // The daemon that a command starts for itself is told of in the same way.
    let misspelt = home.path().join("misspelt.toml");
    std::fs::write(&misspelt, "[sandbox]\nmemroy = 1\n").expect("a file");
    let started = std::process::Command::new(crate::support::binary())
        .args(["--config", misspelt.to_str().expect("UTF-8"), "ps"])
        .env("BELLJAR_HOME", home.path())
        .output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(started.status.code() == Some(64) && said.contains("memroy"), "{said}");
    let absent = std::process::Command::new(crate::support::binary())
        .args(["--config", "/nonexistent.toml", "daemon"])
        .env("BELLJAR_HOME", home.path())
        .output()
        .expect("it ends");
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(absent.status.code() == Some(64) && said.contains("/nonexistent.toml"), "{said}");
}

#[test]
fn a_dead_engine_is_told_and_recovered_from() {
    if !engine() {
        return;
    }
    let folder = tempfile::Builder::new().prefix("bje").tempdir_in("/tmp").expect("a folder");
    let socket = folder.path().join("docker.sock");
    let host = format!("unix://{}", socket.display());
    let daemon = Daemon::with_environment(ENGINE_ONLY, &[("DOCKER_HOST", &host)]);
    let health = daemon.http("GET", "/v1/health", b"").expect_status(200);
    assert_eq!(health["status"], "degraded");
    assert!(
        health["problems"][0].as_str().is_some_and(|text| text.contains("engine does not answer")),
        "{health}"
    );
    let begun = Instant::now();
    told_with_hint(&daemon.cli(["new", "a"]), 125, "the container engine does not answer", "DOCKER_HOST");
    told_with_hint(
        &daemon.cli(["image", "list"]),
        125,
        "the container engine does not answer",
        "DOCKER_HOST",
    );
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    let problem = daemon.http("POST", "/v1/sessions", b"{}").expect_status(503);
    assert_eq!(problem["code"], "engine_unavailable");
    daemon.cli(["daemon", "status"]).ok();
    assert_eq!(daemon.http("GET", "/v1/sessions", b"").expect_status(200)["sessions"], json!([]));
    // No restart is needed when it comes back.
    std::os::unix::fs::symlink("/var/run/docker.sock", &socket).expect("a link");
    assert_eq!(daemon.http("GET", "/v1/health", b"").expect_status(200)["status"], "ok");
    daemon.session("a", json!({"image": "belljar/base"}));
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    // And when it goes away again, what runs goes on.
    std::fs::remove_file(&socket).expect("removed");
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    std::os::unix::fs::symlink("/var/run/docker.sock", &socket).expect("a link");
    daemon.cli(["rm", "a"]).ok();
    assert_eq!(daemon.containers(), Vec::<String>::new());
    daemon.assert_sound();
}

#[test]
fn images_that_are_missing_or_forbidden_are_told() {
    if !engine() {
        return;
    }
    let images = "images = [\"belljar/never-built\", \"example.invalid/none:1\"]\n";
    let daemon = Daemon::with_config(&format!("{ENGINE_ONLY}{images}"));
    told_with_hint(
        &daemon.cli(["new", "a"]),
        125,
        "no image for sandboxes is there",
        "belljar image build base",
    );
    told_with_hint(
        &daemon.cli(["new", "a", "--image", "example.invalid/none:1"]),
        125,
        "is not there",
        "belljar image pull",
    );
    told_with_hint(
        &daemon.cli(["new", "a", "--image", "belljar/base"]),
        125,
        "is not allowed",
        "sandbox.images",
    );
    told_with_hint(
        &daemon.cli(["new", "a", "--image", "../../etc"]),
        125,
        "is not allowed",
        "sandbox.images",
    );
    let problem = daemon.http("POST", "/v1/sessions", b"{}").expect_status(424);
    assert_eq!(problem["code"], "image_missing");
    assert_eq!(
        daemon.http("POST", "/v1/sessions", br#"{"image": "belljar/base"}"#).expect_status(403)["code"],
        "image_forbidden"
    );
    assert_eq!(daemon.http("GET", "/v1/sessions", b"").expect_status(200)["sessions"], json!([]));
    crate::support::assert_nothing_left(&daemon, &[]);
    daemon.assert_sound();
}

#[test]
fn the_api_explains_mistakes() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[api]\nbody = \"64KiB\"\n");
    daemon.session("a", json!({"image": "belljar/base"}));
    let cells = "/v1/sessions/a/cells?wait=true";
    let huge = format!("{{\"code\": \"{}\"}}", "x".repeat(70_000));
    let deep = format!("{{\"seed\": {{\"x\": {}1{}}}}}", "[".repeat(20_000), "]".repeat(20_000));
    for (method, path, body, status, code, word) in [
        ("POST", cells, huge.as_bytes(), 413, "too_large", "api.body"),
        ("POST", cells, b"{\"code\": \"\xff\xfe\"}".as_slice(), 400, "bad_request", "UTF-8"),
        ("POST", cells, b"{\"code\": ", 400, "bad_request", "EOF"),
        ("POST", cells, b"{}", 400, "bad_request", "code"),
        ("POST", cells, b"{\"code\": 1}", 400, "bad_request", "at `code`"),
        ("POST", cells, b"{\"code\": \"1\", \"tiemout\": 1}", 400, "bad_request", "tiemout"),
        ("POST", cells, b"{\"code\": \"1\"} {}", 400, "bad_request", "follows"),
        ("POST", cells, b"{\"code\": \"1\", \"timeout_s\": 0}", 400, "bad_request", "timeout"),
        ("POST", cells, b"{\"code\": \"1\", \"timeout_s\": -1}", 400, "bad_request", "timeout"),
        ("POST", cells, b"{\"code\": \"1\", \"timeout_s\": 1e300}", 400, "bad_request", "cells.max_timeout"),
        ("POST", cells, b"{\"code\": \"1\", \"timeout_s\": 1e999}", 400, "bad_request", ""),
        ("POST", cells, b"{\"code\": \"1\", \"mode\": \"x\"}", 400, "bad_request", "at `mode`"),
        ("POST", "/v1/sessions/a/cells?wait=perhaps", b"{\"code\": \"1\"}", 400, "bad_request", "wait"),
        ("POST", "/v1/sessions", deep.as_bytes(), 400, "bad_request", "recursion"),
        ("POST", "/v1/sessions", b"{\"name\": \"../x\"}", 400, "bad_request", "at `name`"),
        ("POST", "/v1/sessions", b"{\"name\": \"a\"}", 409, "session_exists", "belljar rm a"),
        ("POST", "/v1/sessions", b"{\"memory_bytes\": -1}", 400, "bad_request", "at `memory_bytes`"),
        ("POST", "/v1/sessions", b"{\"seed\": {\"not a name\": 1}}", 400, "bad_request", "not a name"),
        ("POST", "/v1/sessions", b"{\"idle_s\": 0}", 400, "bad_request", "idle_s"),
        (
            "POST",
            "/v1/sessions/a/eval",
            b"{\"expression\": \"x\", \"values\": {\"x\": 1}}",
            400,
            "bad_request",
            "isolated",
        ),
        ("GET", "/v1/sessions/a/cells/99", b"", 404, "no_such_cell", "99"),
        ("GET", "/v1/sessions/a/cells/first", b"", 400, "bad_request", "first"),
        ("GET", "/v1/sessions/%ff", b"", 400, "bad_request", "UTF-8"),
        ("GET", "/v1/sessions/a/events?after=x", b"", 400, "bad_request", "after"),
        ("GET", "/v1/sessions/nobody", b"", 404, "no_such_session", "belljar new nobody"),
        ("GET", "/v1/nonsense", b"", 404, "no_such_route", "openapi.json"),
        ("GET", "/", b"", 404, "no_such_route", "openapi.json"),
        ("PATCH", "/v1/sessions/a", b"", 404, "no_such_route", "PATCH"),
        ("DELETE", "/v1/health", b"", 404, "no_such_route", "DELETE"),
    ] {
        let answer = daemon.http(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{method} {path}");
        let problem = answer.json();
        assert_eq!(problem["code"], code, "{method} {path}: {problem}");
        assert!(problem.to_string().contains(word), "{method} {path}: {problem}");
        assert!(problem["message"].as_str().is_some_and(|text| !text.contains('\n') && text.len() < 1000));
    }
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    daemon.assert_sound();
}

fn raw(daemon: &Daemon, bytes: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.socket()).expect("it serves");
    stream.set_read_timeout(Some(Duration::from_secs(90))).expect("a timeout");
    let _ = stream.write_all(bytes);
    stream
}

fn rest_of(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn broken_and_slow_requests_are_hung_up_on() {
    let daemon = Daemon::with_environment(ENGINE_ONLY, &[DEAD_ENGINE]);
    // First, because it takes longest: a head that never ends, and one that never begins.
    let slow = raw(&daemon, b"GET /v1/health HTTP/1.1\r\nHost: ");
    let silent = raw(&daemon, b"");
    let begun = Instant::now();

    for (request, status) in [
        (&b"nonsense\r\n\r\n"[..], "400"),
        (b"GET / HTTP/9.9\r\n\r\n", "400"),
        (b"GET /v1/health HTTP/1.1\r\nHost: x\r\nContent-Length: minus\r\n\r\n", "400"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        (b"\0\0\0\0\r\n\r\n", "400"),
    ] {
        let answer = rest_of(raw(&daemon, request));
        assert!(answer.starts_with("HTTP/1.1 ") && answer[9..].starts_with(status), "{request:?}: {answer}");
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(1 << 20));
    assert!(rest_of(raw(&daemon, long.as_bytes())).starts_with("HTTP/1.1 4"));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X-A: b\r\n".repeat(20_000));
    assert!(rest_of(raw(&daemon, many.as_bytes())).starts_with("HTTP/1.1 4"));
    // Half closed: the answer still comes.
    let half = raw(&daemon, b"GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    half.shutdown(std::net::Shutdown::Write).expect("half closed");
    assert!(rest_of(half).contains("200 OK"));

    daemon.assert_sound();
    rest_of(slow);
    rest_of(silent);
    // The daemon waits for 10 s; a machine that is busy adds to that.
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    daemon.assert_sound();
}

#[test]
fn one_user_cannot_hold_all_connections() {
    let daemon = Daemon::with_environment(ENGINE_ONLY, &[DEAD_ENGINE]);
    let mut held: Vec<UnixStream> = Vec::new();
    // The limit is the product's; beyond it a connection is hung up on at once.
    let refused = (0..400).find_map(|_| {
        let mut stream = UnixStream::connect(daemon.socket()).expect("the system takes it");
        stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        stream.write_all(b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut first = [0; 1];
        match stream.read(&mut first) {
            Ok(1) => {
                held.push(stream);
                None
            }
            _ => Some(held.len()),
        }
    });
    assert_eq!(refused, Some(256));
    // Another user is not kept out.
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        let mode: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("chmod");
    }
    let other = crate::support::User { uid: 61_003, gid: 61_003, group: None };
    let answer = crate::support::http_as(other, &daemon.socket(), "GET", "/v1/version", &[], b"");
    assert_eq!(answer.status, 200);
    drop(held);
    eventually("there is room again", || {
        let mut stream = UnixStream::connect(daemon.socket()).ok()?;
        stream.write_all(b"GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        rest_of(stream).contains("200 OK").then_some(())
    });
    daemon.assert_sound();
}

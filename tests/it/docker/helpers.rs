//! Words that the tests of cells share. Each test has a daemon with one session, `s`.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use crate::support::{Daemon, Response, SOON, engine, eventually};

pub const S: &str = "s";

/// A daemon with one session; none if there shall be no engine.
pub fn session() -> Option<Daemon> {
    session_with("", json!({}))
}

/// The same, with a configuration and the request for the session.
pub fn session_with(config: &str, request: Value) -> Option<Daemon> {
    if !engine() {
        return None;
    }
    let daemon = Daemon::with_config(config);
    daemon.session(S, request);
    Some(daemon)
}

/// `text(&result, "stdout")`, `text(&result, "/exception/type")`.
#[track_caller]
pub fn text<'a>(value: &'a Value, place: &str) -> &'a str {
    let found = if place.starts_with('/') { value.pointer(place) } else { value.get(place) };
    found.and_then(Value::as_str).unwrap_or_else(|| panic!("no text at {place}: {value:#}"))
}

#[track_caller]
pub fn number(value: &Value, place: &str) -> u64 {
    value.pointer(place).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {place}: {value:#}"))
}

#[track_caller]
pub fn list<'a>(value: &'a Value, place: &str) -> &'a [Value] {
    value.get(place).and_then(Value::as_array).unwrap_or_else(|| panic!("no list at {place}: {value:#}"))
}

#[track_caller]
pub fn assert_ended(result: &Value, status: &str, reason: &str, exit_code: i32) {
    let ended = (text(result, "status"), text(result, "reason"), result["exit_code"].as_i64());
    assert_eq!(ended, (status, reason, Some(exit_code.into())), "{result:#}");
}

/// Runs a cell that has to succeed, and gives what it printed to stdout.
#[track_caller]
pub fn printed(daemon: &Daemon, code: &str) -> String {
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    text(&result, "stdout").to_owned()
}

/// Runs a cell that has to succeed, and gives the `repr` of its last expression.
#[track_caller]
pub fn value(daemon: &Daemon, code: &str) -> String {
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    text(&result, "/result/repr").to_owned()
}

/// Runs a cell that has to raise, and gives its result.
#[track_caller]
pub fn raised(daemon: &Daemon, code: &str, kind: &str) -> Value {
    let result = daemon.run(S, code);
    assert_ended(&result, "failure", "exception", 0);
    assert_eq!(text(&result, "/exception/type"), kind, "{result:#}");
    result
}

/// Names of the session's variables.
#[track_caller]
pub fn names(daemon: &Daemon) -> Vec<String> {
    let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    list(&listing, "variables").iter().map(|variable| text(variable, "name").to_owned()).collect()
}

pub fn post(daemon: &Daemon, path: &str, body: &Value) -> Response {
    daemon.http("POST", &format!("/v1/sessions/s/{path}"), body.to_string().as_bytes())
}

/// Removes the sandbox behind the daemon's back, and waits until it is noticed.
pub fn take_away(daemon: &Daemon) {
    daemon.remove_sandboxes();
    eventually("it is asleep", || {
        let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
        (view["state"] == "asleep").then_some(())
    });
}

/// Begins a replay whose answer, if it ever comes, no test reads.
pub fn replay_behind(daemon: &Daemon) -> std::thread::JoinHandle<()> {
    let mut stream = daemon.connect().expect("it serves");
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let head = "POST /v1/sessions/s/replay HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("it takes requests");
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

/// Queues a cell and gives its number, without waiting for it.
#[track_caller]
pub fn queue(daemon: &Daemon, request: &Value) -> u64 {
    number(&post(daemon, "cells", request).expect_status(202), "/cell")
}

/// The result of a queued cell, once it has one.
#[track_caller]
pub fn outcome(daemon: &Daemon, cell: u64) -> Value {
    eventually("the cell ends", || {
        let view = daemon.http("GET", &format!("/v1/sessions/s/cells/{cell}"), b"").expect_status(200);
        (view["state"] == "done").then(|| view["result"].clone())
    })
}

/// What a cell, or for `None` no cell, has written so far, as its events tell.
pub fn written(daemon: &Daemon, cell: Option<u64>) -> String {
    let events = daemon.events(S, 0);
    let output = events.iter().filter(|event| event["type"] == "output" && event["cell"].as_u64() == cell);
    output.map(|event| text(event, "text")).collect()
}

/// Waits until a running cell has written this line.
pub fn wait_for_line(daemon: &Daemon, cell: u64, line: &str) {
    eventually(&format!("cell {cell} writes {line:?}"), || {
        written(daemon, Some(cell)).contains(&format!("{line}\n")).then_some(())
    });
}

/// Cells that wait with `wait_for_go` below go on from here.
pub fn go(daemon: &Daemon) {
    daemon.http("PUT", "/v1/sessions/s/files/go", b"").expect_status(200);
}

/// The code, after which the name `wait_for_go` waits for the host.
pub fn with_go(code: &str) -> String {
    format!(
        "def wait_for_go():\n    import os, time\n    while not os.path.exists('/workspace/go'): \
         time.sleep(0.01)\n{code}"
    )
}

/// Events of a cell as they come: `POST cells?stream=true`, read line by line.
pub struct Stream {
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Stream {
    pub fn of_cell(daemon: &Daemon, code: &str) -> Self {
        let body = json!({ "code": code }).to_string();
        let mut socket = daemon.connect().expect("the daemon serves");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        let head = "POST /v1/sessions/s/cells?stream=true HTTP/1.1\r\nHost: belljar\r\nConnection: close";
        write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("it takes requests");
        Self { lines: BufReader::new(socket).lines() }
    }

    /// Events of the session after that one, and then as they come.
    pub fn of_session(daemon: &Daemon, last: u64) -> Self {
        let mut socket = daemon.connect().expect("the daemon serves");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        let head = "GET /v1/sessions/s/events HTTP/1.1\r\nHost: belljar\r\nConnection: close";
        write!(socket, "{head}\r\nLast-Event-ID: {last}\r\n\r\n").expect("it takes requests");
        Self { lines: BufReader::new(socket).lines() }
    }
}

impl Iterator for Stream {
    type Item = Value;

    /// Every event is sent in one piece, so the borders of chunks lie between lines.
    fn next(&mut self) -> Option<Value> {
        self.lines.by_ref().find_map(|line| {
            let line = line.expect("the stream goes on");
            line.strip_prefix("data: ").map(|data| serde_json::from_str(data).expect("JSON"))
        })
    }
}

// A daemon that is ended and started again.

/// A session in the small image.
pub fn base() -> Option<Daemon> {
    session_with("", json!({"image": "belljar/base"}))
}

pub fn end(daemon: &mut Daemon, signal: &str) {
    daemon.signal(signal);
    assert_eq!(daemon.wait(), (signal == "TERM").then_some(0), "{}", daemon.stderr());
}

pub fn restart_by(daemon: &mut Daemon, signal: &str) {
    end(daemon, signal);
    daemon.restart();
    eventually("the session is there again", || {
        (daemon.http("GET", "/v1/sessions/s/events?follow=false", b"").status != 409).then_some(())
    });
}

/// Every event from the first to the last is there once; gives them.
#[track_caller]
pub fn gapless(daemon: &Daemon, session: &str) -> Vec<Value> {
    let events = daemon.events(session, 0);
    let seqs: Vec<u64> = events.iter().map(|event| number(event, "/seq")).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    events
}

/// The host's side of the session's workspace.
pub fn workspace(daemon: &Daemon) -> std::path::PathBuf {
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    daemon.home().join("w").join(text(&view, "id"))
}

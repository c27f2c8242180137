//! Who gets in, and how much at once.

use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::jobs::{ALICE, BOB, open_to_all, shared};
use crate::support::{Daemon, SOON, connect_as, eventually, http_as};

/// The daemon's answer to a client that asks for its health.
fn asked(stream: std::io::Result<UnixStream>) -> String {
    let mut stream = stream.expect("the socket is open");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    // It may have hung up before it was asked.
    let _ = stream.write_all(b"GET /v1/health HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n");
    let mut told = String::new();
    let _ = stream.read_to_string(&mut told);
    told
}

/// Far more than lines in the log.
const STRANGERS: usize = 500;

#[test]
fn a_daemon_of_one_user_serves_nobody_else() {
    let daemon = Daemon::as_user(ALICE);
    open_to_all(&daemon);
    assert!(asked(connect_as(ALICE, &daemon.socket())).starts_with("HTTP/1.1 200"));
    assert!(
        asked(UnixStream::connect(daemon.socket())).starts_with("HTTP/1.1 200"),
        "root may look after it"
    );
    let start = Instant::now();
    for _ in 0..STRANGERS {
        assert_eq!(asked(connect_as(BOB, &daemon.socket())), "");
    }
    let lines = eventually("it is in the log", || {
        let count = daemon.log().matches("hung up on").count() as u64;
        (count > 0).then_some(count)
    });
    assert!(lines <= start.elapsed().as_secs() + 2, "{}", daemon.log());
    assert!(asked(connect_as(ALICE, &daemon.socket())).starts_with("HTTP/1.1 200"));
    daemon.assert_sound();
}

/// The uploads that one user may have at the same time, which is a limit of the daemon.
const UPLOADS: usize = 16;

#[test]
fn a_user_sends_so_many_files_at_once_and_others_send_theirs() {
    let daemon = shared("");
    let begun: Vec<UnixStream> = (0..UPLOADS)
        .map(|_| {
            let mut stream = connect_as(ALICE, &daemon.socket()).expect("it connects");
            let head = "PUT /v1/job-inputs HTTP/1.1\r\nHost: b\r\nContent-Length: 100000\r\n\r\nx";
            stream.write_all(head.as_bytes()).expect("a head");
            stream
        })
        .collect();
    let send = |user| http_as(user, &daemon.socket(), "PUT", "/v1/job-inputs", &[], b"");
    let refused = eventually("they are all being received", || {
        let answer = send(ALICE);
        (answer.status == 429).then(|| answer.json())
    });
    assert_eq!(refused["code"], json!("too_many"), "{refused}");
    assert!(refused["hint"].is_string(), "{refused}");
    assert_ne!(send(BOB).status, 429);
    drop(begun);
    eventually("what broke off holds nothing", || (send(ALICE).status != 429).then_some(()));
    daemon.assert_sound();
}

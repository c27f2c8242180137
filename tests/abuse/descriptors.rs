//! A daemon that has no descriptors left: a client that connects waits, nothing that runs is lost, and it serves again.

use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use crate::docker::helpers::{S, base, go, outcome, printed, queue, text, value, wait_for_line, with_go};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, eventually};

/// Descriptors that are left to the daemon, and connections that want one.
const LEFT: usize = 20;
const CONNECTIONS: usize = 60;

fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").count()
}

fn set_limit(daemon: &Daemon, most: usize) {
    let status = Command::new("prlimit")
        .args(["--pid", &daemon.pid().to_string(), &format!("--nofile={most}:")])
        .status();
    assert!(status.expect("prlimit").success());
}

/// A reader of events, which stays connected.
fn reader(daemon: &Daemon) -> UnixStream {
    let mut socket = daemon.connect().expect("there is room to wait");
    let head = "GET /v1/sessions/s/events HTTP/1.1\r\nHost: belljar\r\n\r\n";
    socket.write_all(head.as_bytes()).expect("written");
    socket
}

#[test]
fn a_daemon_without_descriptors_serves_again_when_it_has_some() {
    in_a_jail(None, || {
        let Some(daemon) = base() else { return };
        printed(&daemon, "x = 1");
        let busy = with_go("print('busy')\nwait_for_go()\nx += 1\nprint('over')");
        let cell = queue(&daemon, &json!({"code": busy, "timeout_s": 120}));
        wait_for_line(&daemon, cell, "busy");
        let before = descriptors(&daemon);
        set_limit(&daemon, before + LEFT);
        let readers: Vec<UnixStream> = (0..CONNECTIONS).map(|_| reader(&daemon)).collect();
        eventually("no descriptor is left", || daemon.log().contains("accept failed").then_some(()));

        // A client that comes now is neither answered nor turned away.
        let mut late = reader(&daemon);
        late.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        let waits = late.read(&mut [0; 1]).expect_err("nobody answers");
        assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "{waits}");
        let told = daemon.log().matches("accept failed").count();
        assert!(told < 10, "it is told {told} times");

        drop(readers);
        late.set_read_timeout(Some(crate::support::SOON)).expect("a timeout");
        late.read_exact(&mut [0; 1]).expect("the one that waited is served");
        drop(late);
        go(&daemon);
        let result = outcome(&daemon, cell);
        assert_eq!(
            (text(&result, "status"), text(&result, "stdout")),
            ("success", "busy\nover\n"),
            "{result:#}"
        );
        assert_eq!(value(&daemon, "x"), "2");
        eventually("all are given back", || (descriptors(&daemon) <= before + LEFT / 2).then_some(()));
        daemon.session("other", json!({}));
        assert_eq!(daemon.run("other", "6 * 7")["result"]["repr"], "42");
        crate::docker::helpers::gapless(&daemon, S);
        daemon.assert_sound();
    });
}

//! Tar streams whose headers announce more than a user may make the daemon keep in its memory.

use crate::support::{Daemon, Response, jails::in_a_jail};

/// Sent for real: what the daemon keeps of it would be seen.
const SENT: usize = 256 << 20;
/// What a daemon may grow by while it refuses.
const GROWTH: u64 = 64 << 20;

/// An extension entry of `kind` whose content is as large as its header says.
fn bomb(kind: u8) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(SENT as u64);
    header.set_path("././@LongLink").expect("a short path");
    header.set_cksum();
    let mut stream = header.as_bytes().to_vec();
    stream.resize(512 + SENT, b'x');
    stream
}

fn peak(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[track_caller]
fn refused_cheaply(daemon: &Daemon, send: impl Fn(&[u8]) -> Response) {
    for kind in [b'L', b'K', b'x', b'g'] {
        let (stream, before) = (bomb(kind), peak(daemon));
        let answer = send(&stream).expect_status(413);
        assert!(answer["message"].as_str().is_some_and(|text| text.contains("extension header")), "{answer}");
        let grown = peak(daemon) - before;
        assert!(grown < GROWTH, "{}: the daemon took {grown} bytes", char::from(kind));
    }
}

#[test]
fn a_long_name_of_any_length_costs_the_daemon_nothing() {
    in_a_jail(None, || {
        let daemon = Daemon::start();
        daemon.session("a", serde_json::json!({}));
        let tar = [("Content-Type", "application/x-tar")];
        refused_cheaply(&daemon, |stream| daemon.http_with("PUT", "/v1/sessions/a/files/", &tar, stream));
        daemon.assert_sound();
    });
}

#[test]
fn a_job_s_files_with_a_long_name_of_any_length_cost_the_daemon_nothing() {
    in_a_jail(None, || {
        let daemon = Daemon::start();
        refused_cheaply(&daemon, |stream| daemon.http("PUT", "/v1/job-inputs", stream));
        daemon.assert_sound();
    });
}

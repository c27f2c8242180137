//! A daemon that has no descriptors left.

use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::time::Duration;

use crate::support::{Daemon, eventually, jails};

/// Ticks of CPU time that the process has used.
fn used(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("fields").1.split(' ').collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

fn limit(pid: u32, descriptors: usize) {
    let limit = format!("--nofile={descriptors}:");
    let set = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(set.expect("prlimit").success());
}

#[test]
fn without_descriptors_the_daemon_waits_and_goes_on() {
    jails::in_a_jail(None, || {
        let daemon = Daemon::start();
        let pid = daemon.pid();
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
        limit(pid, open + 2);
        let held: Vec<UnixStream> = (0..40).filter_map(|_| daemon.connect().ok()).collect();
        assert!(held.len() > 10, "the system queues connections");
        std::thread::sleep(Duration::from_millis(500));
        let before = used(pid);
        std::thread::sleep(Duration::from_secs(2));
        // Ticks are hundredths of a second.
        assert!(used(pid) - before < 40, "it waits and does not turn in circles");
        limit(pid, 1024);
        drop(held);
        eventually("it answers again", || {
            let answer = AssertUnwindSafe(|| daemon.http("GET", "/v1/health", b"").status);
            (std::panic::catch_unwind(answer).ok()? == 200).then_some(())
        });
        daemon.assert_sound();
    });
}

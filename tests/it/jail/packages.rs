//! The installer of packages in a jail: held as a session is, and ended in any case.

use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

use super::ANN;
use crate::docker::helpers::{S, end};
use crate::support::{Daemon, PackageIndex, engine, eventually, jails};

/// Begins an installation that comes to no end, and gives the folder and the first process of its jail.
fn hanging_installer(
    index: &PackageIndex,
    daemon: &Daemon,
) -> (std::os::unix::net::UnixStream, PathBuf, u32) {
    daemon.session(S, json!({}));
    let before = jails::living(daemon.home());
    index.slow(true);
    let request = json!({"packages": ["bell-set-id"]}).to_string();
    let head = "POST /v1/sessions/s/install HTTP/1.1\r\nHost: belljar\r\nContent-Type: application/json\r\n";
    let mut open = daemon.connect().expect("the daemon is there");
    write!(open, "{head}Content-Length: {}\r\n\r\n{request}", request.len()).expect("it reads");
    eventually("the installer fetches", || {
        index.requests().iter().any(|path| path.starts_with("/files/bell_set")).then_some(())
    });
    let mut now = jails::living(daemon.home());
    now.retain(|jail| !before.contains(jail));
    assert_eq!(now.len(), 1, "the jail of the installer is noted");
    let (folder, pid) = now.remove(0);
    (open, folder, pid)
}

fn ends_with_the_next_daemon() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let mut daemon = index.daemon("");
    let (_open, folder, pid) = hanging_installer(&index, &daemon);
    let name = format!("{}-errand", jails::name(&folder));
    if daemon.owner().uid == 0 {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
        assert!(groups.contains(&format!("/belljar/{name}")), "{groups}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it lives");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a row");
    assert!(core.split_whitespace().nth(4) == Some("0"), "{core}");
    // So that it cannot end by itself.
    jails::stop(pid);
    daemon.signal("KILL");
    daemon.wait();
    assert!(jails::is_alive(pid));
    daemon.restart();
    eventually("it is reaped", || (!jails::is_alive(pid)).then_some(()));
    eventually("its control group is gone", || {
        jails::groups(std::slice::from_ref(&name)).is_empty().then_some(())
    });
    eventually("its folder goes", || (!folder.exists()).then_some(()));
    end(&mut daemon, "TERM");
}

#[test]
fn an_installer_is_held_like_a_session_and_does_not_outlive_the_next_daemon() {
    jails::in_a_jail(None, ends_with_the_next_daemon);
    jails::in_a_jail(Some(ANN), ends_with_the_next_daemon);
}

fn ends_in_time() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let mut daemon = index.daemon("timeout = \"20s\"\n");
    let (_open, folder, pid) = hanging_installer(&index, &daemon);
    jails::stop(pid);
    eventually("it is ended", || (!jails::is_alive(pid)).then_some(()));
    let name = format!("{}-errand", jails::name(&folder));
    eventually("its control group is gone", || {
        jails::groups(std::slice::from_ref(&name)).is_empty().then_some(())
    });
    eventually("its folder goes", || (!folder.exists()).then_some(()));
    end(&mut daemon, "TERM");
}

#[test]
fn an_installer_that_hangs_is_ended_with_all_its_processes() {
    jails::in_a_jail(None, ends_in_time);
    jails::in_a_jail(Some(ANN), ends_in_time);
}

//! The installer of packages in a jail: held as a session is, and ended in any case.

use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

use super::ANN;
use crate::docker::helpers::{S, end, value};
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

/// The host's own Python has a `pip` on many machines.
fn is_served_by_pip() {
    let has_pip =
        std::process::Command::new("/usr/bin/python3").args(["-I", "-m", "pip", "--version"]).output();
    if !engine() {
        return;
    }
    if !has_pip.is_ok_and(|told| told.status.success()) {
        eprintln!("NOT RUN: the host's Python has no pip");
        return;
    }
    let index = PackageIndex::without_uv();
    let daemon = index.daemon("");
    daemon.session(S, json!({}));
    daemon.cli(["install", "-s", S, "bell-hello"]).ok();
    let installed = daemon.cli(["install", "-s", S, "bell-set-id"]).ok();
    assert!(installed.stdout.contains("bell-hello 2.0"), "{installed:?}");
    assert_eq!(value(&daemon, "import bell_hello, bell_dep.inner; bell_hello.VERSION"), "'2.0'");
    let mode = "import os; oct(os.stat('/belljar/packages/site/bell_set_id/run.sh').st_mode & 0o7777)";
    assert_eq!(value(&daemon, mode), "'0o755'");
    for (package, code) in [
        ("bell-old", "package_conflict"),
        ("bell-source", "install_failed"),
        ("bell-nowhere", "install_failed"),
    ] {
        let refused = daemon.cli(["--json", "install", "-s", S, package]);
        assert!(refused.stderr.contains(code) || refused.stdout.contains(code), "{package}: {refused:?}");
    }
}

#[test]
fn without_a_uv_anywhere_pip_installs() {
    jails::in_a_jail(None, is_served_by_pip);
    jails::in_a_jail(Some(ANN), is_served_by_pip);
}

//! The backend without walls: only by name, only for an ordinary user, and never called anything else.

use std::path::Path;

use super::ANN;
use crate::support::{Daemon, eventually, http_as};

#[test]
fn a_process_works_by_name_and_says_what_it_is_not() {
    let daemon = Daemon::as_user(ANN);
    let made = daemon.cli(["new", "a", "--backend", "process"]).ok();
    assert!(made.stderr.contains("no isolation"), "{made:?}");
    daemon.cli(["exec", "-s", "a", "x = 41"]).ok();
    daemon.cli(["exec", "-s", "a", "import os; os._exit(3)"]).exits(3);
    assert_eq!(daemon.cli(["exec", "-s", "a", "x + 1"]).ok().stdout, "42\n");
    daemon.cli(["exec", "-s", "a", "--timeout", "1s", "while True: pass"]).exits(124);
    let receipt = daemon.cli(["receipt", "a", "--json"]).ok().stdout;
    let receipt: serde_json::Value = serde_json::from_str(&receipt).expect("JSON");
    assert_eq!((&receipt["backend"], &receipt["network"]), (&"process".into(), &"host".into()));
    assert_eq!(receipt["read_only_root"], false);
    assert_eq!(receipt["limits"]["held_by"]["cpus"], "nothing");
    let pid = receipt["process"]["pid"].as_u64().expect("a pid");
    let started =
        daemon.cli(["exec", "-s", "a", "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"]);
    let sleeper: u32 = started.ok().stdout.trim().parse().expect("a pid");
    // Nothing installs packages or mounts folders there.
    let hinted = daemon.cli(["exec", "-s", "a", "import no_such_package_at_all"]).exits(1).stderr;
    assert!(hinted.contains("for the backend `process`") && !hinted.contains("%pip"), "{hinted}");
    daemon.cli(["volume", "create", "data"]).ok();
    let mount = format!("{}:/ref:ro", daemon.home().display());
    for beside in [["--volume", "data:/data"], ["--mount", mount.as_str()]] {
        let refused = daemon.cli(["new", "b", "--backend", "process"].into_iter().chain(beside)).exits(125);
        assert!(refused.stderr.contains("a plain process has no volumes and mounts"), "{refused:?}");
    }
    daemon.cli(["rm", "a"]).ok();
    for pid in [u32::try_from(pid).expect("a pid"), sleeper] {
        eventually("it is gone", || (!crate::support::jails::is_alive(pid)).then_some(()));
    }
}

/// A crowd that goes on forking is not tried: nothing bounds it, as the README says, and it would be the machine's.
#[test]
fn processes_that_a_cell_has_forked_end_at_its_deadline() {
    const CROWD: &str = "import os\nfor turn in range(5):\n    if os.fork() == 0 and turn % 2: os.setsid()\n\
                         open(f'pid.{os.getpid()}', 'w').close()\nwhile True: pass";
    let daemon = Daemon::as_user(ANN);
    daemon.cli(["new", "a", "--backend", "process"]).ok();
    daemon.cli(["exec", "-s", "a", "kept = 41"]).ok();
    daemon.cli(["exec", "-s", "a", "--timeout", "2s", CROWD]).exits(124);
    assert_eq!(daemon.cli(["exec", "-s", "a", "kept + 1"]).ok().stdout, "42\n");
    let list = "import glob; print(*(name[4:] for name in glob.glob('pid.*')))";
    let listed = daemon.cli(["exec", "-s", "a", list]).ok().stdout;
    let pids: Vec<u32> = listed.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
    assert!(pids.len() > 1, "{listed}");
    for pid in pids {
        eventually("it is gone", || (!crate::support::jails::is_alive(pid)).then_some(()));
    }
    daemon.cli(["rm", "a"]).ok();
}

#[test]
fn a_daemon_of_root_and_a_minimum_refuse_it() {
    let daemon = Daemon::start();
    let refused = daemon.cli(["new", "a", "--backend", "process"]).exits(125);
    assert!(refused.stderr.contains("a daemon of root runs no code without isolation"), "{refused:?}");
    let daemon = Daemon::with_config("[sandbox]\nminimum_isolation = \"jail\"\n");
    let refused = daemon.cli(["new", "a", "--backend", "process"]).exits(125);
    assert!(refused.stderr.contains("isolates less than the `jail`"), "{refused:?}");
}

#[test]
fn code_of_an_archive_has_the_rules_of_a_model_unless_it_is_trusted() {
    // Without walls, what a model writes needs a person for every tool that acts outside.
    let daemon = Daemon::as_user_with(ANN, "[sandbox]\nbackend = \"process\"\n");
    daemon.cli(["new", "a"]).ok();
    daemon.cli(["exec", "-s", "a", "x = 41"]).ok();
    let ask = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        http_as(ANN, &daemon.socket(), method, path, headers, body)
    };
    let archive = ask("GET", "/v1/sessions/a/archive", &[], b"");
    assert_eq!(archive.status, 200, "{}", archive.text());
    for (name, trust, replay) in
        [("b", false, false), ("c", true, false), ("d", false, true), ("e", true, true)]
    {
        let headers = [("Content-Type", "application/x-tar")];
        let path = format!("/v1/archives?name={name}&trust={trust}&replay={replay}");
        ask("POST", &path, &headers, &archive.body).expect_status(201);
        assert_eq!(daemon.cli(["exec", "-s", name, "x + 1"]).ok().stdout, "42\n");
        let events = ask("GET", &format!("/v1/sessions/{name}/events?follow=false"), &[], b"").text();
        assert!(events.contains(&format!("\"approve_outside\":{}", !trust)), "{name}: {events}");
    }
    // The end of a test removes containers and jails, and these are neither.
    assert!(guardians_of(daemon.home()).len() >= 5);
    for name in ["a", "b", "c", "d", "e"] {
        daemon.cli(["rm", name]).ok();
    }
    eventually("no guardian is left", || guardians_of(daemon.home()).is_empty().then_some(()));
}

/// The processes of guardians that were started from this home.
fn guardians_of(home: &Path) -> Vec<u32> {
    let program = format!("{}/kernel/", home.display());
    let is_its = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with(&program) && line.contains("belljar-guardian")
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_its).collect()
}

//! What has to hold after every fault, whatever it was: the ten invariants of the security notes,
//! written once.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{Daemon, Response, User, eventually, http_as};

/// The daemon may keep this many open, whatever was done to it.
const MOST_DESCRIPTORS: usize = 400;
const MOST_THREADS: usize = 700;
const MOST_MEMORY_KIB: u64 = 512 * 1024;

/// A file of the host that nothing in a sandbox may change.
pub struct Canary {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

const SONG: &str = "alive and well";

impl Canary {
    pub fn set() -> Self {
        let folder = tempfile::Builder::new().prefix("bjc").tempdir_in("/tmp").expect("a folder");
        let path = folder.path().join("canary");
        std::fs::write(&path, SONG).expect("written");
        Self { _folder: folder, path }
    }
}

fn get(daemon: &Daemon, user: User, path: &str) -> Response {
    http_as(user, &daemon.socket(), "GET", path, &[], b"")
}

/// Of the sessions of these users, who all may reach the socket.
#[track_caller]
pub fn assert_hold(daemon: &Daemon, users: &[User], canary: &Canary) {
    let mut living = BTreeMap::new();
    for user in users {
        let listed = get(daemon, *user, "/v1/sessions").expect_status(200);
        let sessions = listed["sessions"].as_array().expect("a list").clone();
        for session in &sessions {
            living.insert(session["id"].as_str().expect("an id").to_owned(), (*user, session.clone()));
        }
    }
    for (id, (user, _)) in &living {
        let events = events(daemon, *user, id);
        each_cell_has_ended_or_runs(daemon, *user, id, &events);
        let numbers: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
        let gapless: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, gapless, "2: events without gaps");
        for other in users.iter().filter(|other| other.uid != user.uid) {
            let answer = get(daemon, *other, &format!("/v1/sessions/{id}/events?follow=false"));
            assert_eq!(answer.status, 404, "6: nobody reads what is another's: {}", answer.text());
        }
    }
    eventually("3: no sandbox without a session", || {
        (daemon.containers().len() <= living.len()).then_some(())
    });
    eventually("4: no folder without a session", || {
        let folders = |name: &str| -> BTreeSet<String> {
            let entries = std::fs::read_dir(daemon.home().join(name)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let workspaces = folders("w").iter().all(|name| living.contains_key(name));
        (workspaces && folders("s").len() <= living.len()).then_some(())
    });
    permits_are_those_of_what_lives(daemon, users);
    let file = rusqlite::Connection::open_with_flags(
        daemon.home().join("journal.db"),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
    );
    let verdict: String = file
        .and_then(|file| file.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
        .expect("the journal opens");
    assert_eq!(verdict, "ok", "7: the journal is whole");
    the_daemon_is_small(daemon);
    assert_eq!(std::fs::read_to_string(&canary.path).expect("it is there"), SONG, "9: the host is untouched");
    daemon.assert_sound();
}

fn events(daemon: &Daemon, user: User, session: &str) -> Vec<Value> {
    let text = get(daemon, user, &format!("/v1/sessions/{session}/events?follow=false")).text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[track_caller]
fn each_cell_has_ended_or_runs(daemon: &Daemon, user: User, session: &str, events: &[Value]) {
    let cells = |kind: &str, cell: fn(&Value) -> &Value| -> BTreeSet<u64> {
        events.iter().filter(|event| event["type"] == kind).filter_map(|event| cell(event).as_u64()).collect()
    };
    let begun = cells("cell_queued", |event| &event["cell"]);
    let ended = cells("cell_finished", |event| &event["result"]["cell"]);
    for cell in begun.difference(&ended) {
        let view = get(daemon, user, &format!("/v1/sessions/{session}/cells/{cell}")).expect_status(200);
        assert!(
            ["queued", "running", "done"].contains(&view["state"].as_str().expect("a state")),
            "1: {view}"
        );
    }
}

#[track_caller]
fn permits_are_those_of_what_lives(daemon: &Daemon, users: &[User]) {
    for user in users {
        let agree = || {
            let listed = get(daemon, *user, "/v1/sessions").expect_status(200);
            let sessions = listed["sessions"].as_array().expect("a list").clone();
            let quota = get(daemon, *user, "/v1/quota").expect_status(200);
            let used = |kind: &str| {
                let quotas = quota["quotas"].as_array().expect("a list");
                quotas.iter().find(|quota| quota["kind"] == kind).expect("that quota")["used"].as_u64()
            };
            let awake = sessions.iter().filter(|session| session["state"] != "asleep").count();
            let running = sessions.iter().filter(|session| !session["running"].is_null()).count();
            let agrees = used("sessions") == Some(sessions.len() as u64)
                && used("cells") == Some(running as u64)
                && (used("memory") == Some(0)) == (awake == 0);
            agrees.then_some(())
        };
        eventually("5: permits are those of what lives", agree);
    }
}

#[track_caller]
fn the_daemon_is_small(daemon: &Daemon) {
    let process = PathBuf::from(format!("/proc/{}", daemon.pid()));
    let count = |what: &str| std::fs::read_dir(process.join(what)).expect("it runs").count();
    eventually("8: descriptors come back", || (count("fd") < MOST_DESCRIPTORS).then_some(()));
    assert!(count("task") < MOST_THREADS, "8: {} threads", count("task"));
    let status = std::fs::read_to_string(process.join("status")).expect("it runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kib: u64 = resident.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    assert!(kib < MOST_MEMORY_KIB, "8: {kib} KiB");
}

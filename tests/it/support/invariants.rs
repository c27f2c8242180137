//! What has to hold after every fault, whatever it was: the ten invariants of the security notes,
//! written once.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::journal::Journal;
use super::{Daemon, Response, User, eventually, http_as, jails};

/// The daemon may keep this many open, whatever was done to it.
const MOST_DESCRIPTORS: usize = 400;
const MOST_THREADS: usize = 700;
const MOST_MEMORY_KIB: u64 = 512 * 1024;
/// Jobs of a user that others try to read.
const JOBS_TRIED: usize = 3;

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

fn listed(daemon: &Daemon, user: User, what: &str) -> Vec<Value> {
    let answer = get(daemon, user, &format!("/v1/{what}")).expect_status(200);
    answer[what].as_array().expect("a list").clone()
}

fn id(view: &Value) -> String {
    view["id"].as_str().expect("an id").to_owned()
}

/// Checks the invariants. All sessions and jobs belong to these users, who all may reach the socket. The
/// tenth invariant is that of a [`super::Pulse`], which has to have been there throughout.
#[track_caller]
pub fn assert_hold(daemon: &Daemon, users: &[User], canary: &Canary) {
    assert_hold_after_panics(daemon, users, canary);
    daemon.assert_sound();
}

/// The same of a daemon that a test has made to panic.
#[track_caller]
pub fn assert_hold_after_panics(daemon: &Daemon, users: &[User], canary: &Canary) {
    let mut living = BTreeMap::new();
    for user in users {
        for session in listed(daemon, *user, "sessions") {
            living.insert(id(&session), (*user, session));
        }
    }
    eventually("1: what was begun has ended, with a reason, or belongs to somebody", || {
        all_has_an_end_or_an_owner(daemon, &living).then_some(())
    });
    Journal::of(daemon).assert_gapless();
    for (id, (user, _)) in &living {
        let numbers: Vec<u64> =
            events(daemon, *user, id).iter().filter_map(|event| event["seq"].as_u64()).collect();
        let gapless: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, gapless, "2: events without gaps");
    }
    eventually("3 and 4: no sandbox, folder or socket without a session", || {
        strays(daemon, &living).is_empty().then_some(())
    });
    permits_are_those_of_what_lives(daemon, users);
    nobody_reads_what_is_anothers(daemon, users, &living);
    assert_eq!(Journal::of(daemon).integrity(), "ok", "7: the journal is whole");
    the_daemon_is_small(daemon);
    assert_eq!(std::fs::read_to_string(&canary.path).expect("it is there"), SONG, "9: the host is untouched");
}

fn events(daemon: &Daemon, user: User, session: &str) -> Vec<Value> {
    let text = get(daemon, user, &format!("/v1/sessions/{session}/events?follow=false")).text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Whether every session of the journal, also a removed one and one that served a job, has an end or an owner.
fn all_has_an_end_or_an_owner(daemon: &Daemon, living: &BTreeMap<String, (User, Value)>) -> bool {
    let journal = Journal::of(daemon);
    let serving: BTreeSet<String> =
        journal.open_jobs().iter().filter_map(|job| job["session"].as_str().map(str::to_owned)).collect();
    let known = journal.living_sessions();
    if !known.iter().all(|session| living.contains_key(session) || serving.contains(session)) {
        return false;
    }
    let state = |session: &str, what: &str, number: i64| {
        let (user, _) = living.get(session)?;
        let view = get(daemon, *user, &format!("/v1/sessions/{session}/{what}/{number}"));
        (view.status == 200).then(|| view.json()["state"].as_str().unwrap_or_default().to_owned())
    };
    let cells = journal.unfinished_cells().into_iter().all(|(session, cell)| {
        serving.contains(&session)
            || state(&session, "cells", cell).is_some_and(|state| state == "queued" || state == "running")
    });
    let asks = journal.unfinished_asks().into_iter().all(|(session, ask)| {
        state(&session, "asks", ask).is_some_and(|state| !["", "ended", "done"].contains(&state.as_str()))
    });
    cells && asks && journal.all_ends_have_reasons()
}

/// Sandboxes, folders and sockets that belong to no session and no job.
fn strays(daemon: &Daemon, living: &BTreeMap<String, (User, Value)>) -> Vec<String> {
    let mut owned: BTreeSet<String> = living.keys().cloned().collect();
    for (id, (user, _)) in living {
        let receipt = get(daemon, *user, &format!("/v1/sessions/{id}/receipt"));
        // One that sleeps has no sandbox.
        if receipt.status == 200 {
            let receipt = receipt.json();
            for key in ["sandbox", "container"] {
                owned.extend(receipt[key].as_str().map(str::to_owned));
            }
        }
    }
    let journal = Journal::of(daemon);
    let jobs = journal.jobs();
    let open = journal.open_jobs();
    owned.extend(open.iter().filter_map(|job| job["session"].as_str().map(str::to_owned)));
    let names = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(daemon.home().join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let jails = jails::living(daemon.home()).into_iter().map(|(folder, _)| jails::name(&folder));
    let artifacts = names("jobs").into_iter().filter_map(|name| {
        let job = name.strip_suffix(".artifacts")?;
        (!jobs.contains(job)).then(|| name.clone())
    });
    let drafts = names("kernel").into_iter().filter(|name| name.starts_with(".draft-"));
    let of_sandboxes = daemon.containers().into_iter().chain(jails).chain(names("s")).chain(names("w"));
    let strays: BTreeSet<String> =
        of_sandboxes.chain(sockets(daemon)).filter(|name| !owned.contains(name)).collect();
    // No user is told of the container and the folder of a job that runs.
    let mut strays: Vec<String> =
        if strays.len() <= 2 * open.len() { Vec::new() } else { strays.into_iter().collect() };
    strays.extend(artifacts.chain(drafts));
    strays
}

/// Sandboxes for which a socket of the daemon's home is open.
fn sockets(daemon: &Daemon) -> Vec<String> {
    let folder = format!("{}/s/", daemon.home().display());
    let table = std::fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    let paths = table.lines().filter_map(|line| line.split_once(&folder).map(|(_, rest)| rest));
    paths.filter_map(|rest| rest.split('/').next().map(str::to_owned)).collect()
}

#[track_caller]
fn permits_are_those_of_what_lives(daemon: &Daemon, users: &[User]) {
    for user in users {
        let agree = || {
            let sessions = listed(daemon, *user, "sessions");
            let quota = get(daemon, *user, "/v1/quota").expect_status(200);
            let used = |kind: &str| {
                let quotas = quota["quotas"].as_array().expect("a list");
                quotas.iter().find(|quota| quota["kind"] == kind).expect("that quota")["used"].as_u64()
            };
            let jobs = listed(daemon, *user, "jobs").iter().filter(|job| job["state"] != "ended").count();
            let awake = sessions.iter().filter(|session| session["state"] != "asleep").count();
            let running = sessions.iter().filter(|session| !session["running"].is_null()).count();
            let agrees = used("sessions") == Some(sessions.len() as u64)
                && used("jobs") == Some(jobs as u64)
                && (jobs > 0
                    || used("cells") == Some(running as u64)
                        && (used("memory") == Some(0)) == (awake == 0)
                        && (used("cpus") == Some(0)) == (awake == 0));
            agrees.then_some(())
        };
        eventually("5: permits are those of what lives", agree);
    }
}

#[track_caller]
fn nobody_reads_what_is_anothers(daemon: &Daemon, users: &[User], living: &BTreeMap<String, (User, Value)>) {
    let sessions = living.iter().map(|(id, (user, _))| (*user, format!("/v1/sessions/{id}")));
    let jobs = users.iter().flat_map(|user| {
        let jobs = listed(daemon, *user, "jobs");
        jobs.into_iter().take(JOBS_TRIED).map(|job| (*user, format!("/v1/jobs/{}", id(&job))))
    });
    for (user, path) in sessions.chain(jobs) {
        for other in users.iter().filter(|other| other.uid != user.uid) {
            let answer = get(daemon, *other, &format!("{path}/events?follow=false"));
            assert_eq!(answer.status, 404, "6: nobody reads what is another's: {}", answer.text());
        }
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

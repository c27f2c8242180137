//! Snapshots that were edited on the disk: of whatever kind the edit is, nothing is loaded, the reason is said,
//! and no byte of another user's variables comes into a sandbox.

use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::docker::helpers::text;
use crate::docker::many_users::{ALICE, BOB, ask, run, shared};
use crate::docker::snapshots::{is_list, stored};
use crate::support::{Daemon, User, engine, eventually};

/// Longer than any chunk and any disk of a test.
const HUGE: u64 = 1 << 36;

/// The same bytes each time, so that a later snapshot has the chunks of the one that was edited.
const HERS: &str = "import random\nmine = random.Random(1).randbytes(3 << 20)\nkept = ['as it was']";
const HIS: &str = "secret = ['of another user']";

/// The files of the only snapshot of a session.
struct Files {
    list: PathBuf,
    chunks: Vec<PathBuf>,
}

impl Files {
    #[track_caller]
    fn of(daemon: &Daemon, session: &str) -> Self {
        let folder = daemon.home().join("snapshots").join(session);
        let list = eventually("earlier snapshots are gone", || {
            let mut lists = stored(daemon, |path| path.starts_with(&folder) && is_list(path));
            (lists.len() == 1).then(|| lists.remove(0))
        });
        // Chunks of earlier ones may be there for a moment longer.
        let content = read(&list);
        let names = content["chunks"].as_array().expect("a list").iter().map(|chunk| text(chunk, "blake3"));
        let chunks = names.map(|name| folder.join("chunks").join(name)).collect();
        Self { list, chunks }
    }

    fn chunk(&self) -> &Path {
        self.chunks.last().expect("a chunk")
    }
}

/// Changes hers; his are beside.
type Edit = fn(&Files, &Files);

const EDITS: [(&str, Edit); 11] = [
    ("a byte of a chunk", |hers, _| flip(hers.chunk())),
    ("a byte of the list", |hers, _| flip(&hers.list)),
    ("a chunk that is shorter", |hers, _| resize(hers.chunk(), 3)),
    ("a chunk that is huge", |hers, _| resize(hers.chunk(), HUGE)),
    ("a chunk that is gone", |hers, _| remove(hers.chunk())),
    ("a chunk of another user in its place", |hers, his| {
        std::fs::copy(his.chunk(), hers.chunk()).expect("copied");
    }),
    ("a link to a chunk of another user", |hers, his| {
        remove(hers.chunk());
        symlink(his.chunk(), hers.chunk()).expect("a link");
    }),
    ("a link to what it was", |hers, _| {
        let aside = hers.list.with_extension("aside");
        std::fs::rename(hers.chunk(), &aside).expect("renamed");
        symlink(aside, hers.chunk()).expect("a link");
    }),
    ("a pipe", |hers, _| {
        remove(hers.chunk());
        let made = Command::new("mkfifo").arg(hers.chunk()).status();
        assert!(made.expect("mkfifo").success());
    }),
    ("the list of another user", |hers, his| {
        std::fs::copy(&his.list, &hers.list).expect("copied");
    }),
    ("a list that names a chunk of another user", |hers, his| {
        let (mut own, other) = (read(&hers.list), read(&his.list));
        own["chunks"] = other["chunks"].clone();
        own["sections"] = other["sections"].clone();
        std::fs::write(&hers.list, own.to_string()).expect("written");
        for chunk in &his.chunks {
            let name = chunk.file_name().expect("a name");
            std::fs::copy(chunk, hers.chunk().with_file_name(name)).expect("copied");
        }
    }),
];

/// The content of a list of chunks.
fn read(list: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(list).expect("a list")).expect("JSON")
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).expect("written");
}

fn resize(path: &Path, length: u64) {
    let file = File::options().write(true).open(path).expect("a file");
    file.set_len(length).expect("resized");
}

fn remove(path: &Path) {
    std::fs::remove_file(path).expect("removed");
}

/// A session of a user, who saves it where the test asks for that. Gives its id.
#[track_caller]
fn session(daemon: &Daemon, user: User, code: &str) -> String {
    let request = json!({"name": "s", "image": "belljar/base", "snapshots": "named"});
    let view = ask(daemon, user, "POST", "/v1/sessions", request).expect_status(201);
    assert_eq!(run(daemon, user, "s", code)["status"], "success");
    text(&view, "id").to_owned()
}

#[track_caller]
fn sleeps(daemon: &Daemon, user: User) {
    ask(daemon, user, "POST", "/v1/sessions/s/sleep", json!({})).expect_status(200);
}

fn events(daemon: &Daemon, user: User, kind: &str) -> Vec<Value> {
    let answer = ask(daemon, user, "GET", "/v1/sessions/s/events?follow=false", Value::Null).text();
    let data = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.filter(|event| event["type"] == kind).collect()
}

#[track_caller]
fn assert_repr(daemon: &Daemon, user: User, code: &str, repr: &str) {
    let result = run(daemon, user, "s", code);
    assert_eq!(result["result"]["repr"], repr, "{result:#}");
}

#[test]
fn whatever_was_edited_of_a_snapshot_nothing_of_it_is_loaded() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let (hers, his) = (session(&daemon, ALICE, HERS), session(&daemon, BOB, HIS));
    sleeps(&daemon, BOB);
    for (number, (what, edit)) in EDITS.into_iter().enumerate() {
        sleeps(&daemon, ALICE);
        edit(&Files::of(&daemon, &hers), &Files::of(&daemon, &his));
        assert_repr(
            &daemon,
            ALICE,
            "[name for name in ('mine', 'kept', 'secret') if name in globals()]",
            "[]",
        );
        let failed = events(&daemon, ALICE, "wake_failed");
        assert_eq!(failed.len(), number + 1, "{what}: {failed:?}");
        let reason = text(&failed[number], "reason");
        assert!(reason.contains("was changed on the disk"), "{what}: {reason}");
        // What was damaged is in nobody's way: the same variables are saved again, and wake.
        assert_eq!(run(&daemon, ALICE, "s", HERS)["status"], "success", "{what}");
        sleeps(&daemon, ALICE);
        assert_repr(&daemon, ALICE, "kept, len(mine)", "(['as it was'], 3145728)");
        assert_eq!(events(&daemon, ALICE, "woken").len(), number + 1, "{what}");
    }
    // His were only looked at.
    assert_repr(&daemon, BOB, "secret", "['of another user']");
    for user in [ALICE, BOB] {
        ask(&daemon, user, "DELETE", "/v1/sessions/s?wait=true", Value::Null).expect_status(200);
    }
    eventually("no snapshot is left", || stored(&daemon, |_| true).is_empty().then_some(()));
    daemon.assert_sound();
}

/// The journal says which snapshots a session has, not what lies in its folder.
#[test]
fn a_snapshot_that_was_put_into_the_folder_of_another_session_is_removed_unread() {
    if !engine() {
        return;
    }
    let mut daemon = shared("");
    let (hers, his) = (session(&daemon, ALICE, HERS), session(&daemon, BOB, HIS));
    sleeps(&daemon, BOB);
    daemon.kill();
    let planted = daemon.home().join("snapshots").join(&hers);
    std::fs::create_dir_all(planted.join("chunks")).expect("folders");
    let files = Files::of(&daemon, &his);
    let plant = |file: &Path, folder: &Path| {
        std::fs::copy(file, folder.join(file.file_name().expect("a name"))).expect("copied");
    };
    plant(&files.list, &planted);
    files.chunks.iter().for_each(|chunk| plant(chunk, &planted.join("chunks")));
    daemon.remove_sandboxes();
    daemon.restart();
    assert_repr(&daemon, ALICE, "'secret' in globals()", "False");
    let woken = events(&daemon, ALICE, "woken");
    assert!(woken.iter().all(|woken| woken["snapshot"].is_null()), "{woken:?}");
    let is_planted = |path: &Path| path.starts_with(&planted);
    eventually("what was put there is gone", || stored(&daemon, is_planted).is_empty().then_some(()));
    assert_repr(&daemon, BOB, "secret", "['of another user']");
    daemon.assert_sound();
}

//! Variables that outlive their sandbox: saved on the disk, loaded into the next one, or refused where they were changed.

use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Daemon, engine, eventually, keeps_variables};

/// Saves soon, so that no test waits for long; a test that wants to save itself says so when it makes its session.
const SOON_AT_REST: &str = "[snapshots]\nat_rest = \"1s\"\n";

fn base() -> Value {
    json!({"image": "belljar/base"})
}

/// Sessions of these tests save only what the test asks for.
fn named() -> Value {
    json!({"image": "belljar/base", "snapshots": "named"})
}

/// Variables that are easy to lose something of: a function that changes a global, a class, a view that shares memory.
const STATE: &str = "
count = 0
def step():
    global count
    count += 1
    return count
class Point:
    def __init__(self, x):
        self.x = x
shared = bytearray(b'abc')
view = memoryview(shared)
points = [Point(1)] * 2
gen = (n for n in range(3))
out = open('notes', 'w+'); _ = out.write('one two'); out.flush(); _ = out.seek(4)
step()
";

const CHECK: &str = "view[0] = 120
[step(), points[0] is points[1], points[0].x, bytes(shared), out.read(), 'gen' in globals()]";

#[track_caller]
fn post(daemon: &Daemon, path: &str, body: &Value) -> Value {
    let answer = daemon.http("POST", path, body.to_string().as_bytes());
    assert!((200..300).contains(&answer.status), "{}", answer.text());
    if answer.body.is_empty() { Value::Null } else { answer.json() }
}

#[track_caller]
fn snapshot(daemon: &Daemon, session: &str, name: &str) -> Value {
    post(daemon, &format!("/v1/sessions/{session}/snapshots"), &json!({ "name": name }))
}

#[track_caller]
fn sleep(daemon: &Daemon, session: &str) {
    post(daemon, &format!("/v1/sessions/{session}/sleep"), &json!({}));
    eventually("its sandbox is gone", || daemon.containers().is_empty().then_some(()));
}

fn events(daemon: &Daemon, session: &str, kind: &str) -> Vec<Value> {
    daemon.events(session, 0).into_iter().filter(|event| event["type"] == kind).collect()
}

/// The files of snapshots in the daemon's home that are wanted.
pub fn stored(daemon: &Daemon, is_wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![daemon.home().join("snapshots")]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if is_wanted(&path) {
                found.push(path);
            }
        }
    }
    found
}

fn chunks(daemon: &Daemon) -> Vec<PathBuf> {
    stored(daemon, is_chunk)
}

fn is_chunk(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("chunks"))
}

pub fn is_list(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

#[track_caller]
fn assert_as_it_was(result: &Value) {
    assert_eq!(result["status"], "success", "{result}");
    assert_eq!(result["result"]["repr"], "[2, True, 1, b'xbc', 'two', False]", "{result}");
}

#[test]
pub fn a_session_that_slept_wakes_as_it_was() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    assert_eq!(daemon.run("a", STATE)["status"], "success");
    sleep(&daemon, "a");
    assert_as_it_was(&daemon.run("a", CHECK));
    let woken = events(&daemon, "a", "woken");
    assert_eq!(woken.len(), 1, "{woken:?}");
    assert_eq!((&woken[0]["cell"], &woken[0]["replays"]), (&json!(1), &Value::Null));
    assert!(woken[0]["missing"].to_string().contains("gen"), "{woken:?}");
    assert!(woken[0]["reopened"].to_string().contains("notes"), "{woken:?}");
    daemon.assert_sound();
}

#[test]
pub fn a_session_says_what_it_sleeps_without_and_what_it_wakes_with() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", named());
    assert_eq!(daemon.run("a", STATE)["status"], "success");
    let asleep = post(&daemon, "/v1/sessions/a/sleep", &json!({}));
    assert_eq!((&asleep["cell"], &asleep["unsaved"]), (&json!(1), &json!(false)), "{asleep}");
    let missing = asleep["missing"].as_array().expect("a list");
    let names: Vec<&Value> = missing.iter().map(|missing| &missing["name"]).collect();
    assert_eq!(names.iter().filter(|name| **name == "gen").count(), 1, "{asleep}");
    eventually("its sandbox is gone", || daemon.containers().is_empty().then_some(()));
    let again = daemon.cli(["sleep", "-s", "a"]).ok();
    assert!(again.stderr.contains("not saved: `gen`"), "{again:?}");
    // The same is told when it wakes, to people and to programs.
    assert_eq!(daemon.run("a", "later = step()")["status"], "success");
    daemon.remove_sandboxes();
    let told = daemon.cli(["exec", "-s", "a", "later"]).ok();
    let note =
        events(&daemon, "a", "cell_finished").pop().expect("a result")["result"]["state"]["note"].clone();
    for part in
        ["as after cell 1", "Run again, with the recorded answers of tools: cell 2", "`gen` (", "`out` ("]
    {
        assert!(note.as_str().is_some_and(|note| note.contains(part)), "{part}: {note}");
        assert!(told.stderr.contains(part), "{part}: {told:?}");
    }
    daemon.assert_sound();
}

#[test]
pub fn a_session_wakes_behind_a_sandbox_that_was_taken_away_and_a_daemon_that_was_killed() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::with_config(SOON_AT_REST);
    daemon.session("a", base());
    assert_eq!(daemon.run("a", STATE)["status"], "success");
    eventually("it is saved at rest", || (!events(&daemon, "a", "snapshot_taken").is_empty()).then_some(()));
    daemon.kill();
    daemon.remove_sandboxes();
    daemon.restart();
    assert_as_it_was(&daemon.run("a", CHECK));
    // What came after the snapshot is run again.
    snapshot(&daemon, "a", "here");
    assert_eq!(daemon.run("a", "later = step()")["status"], "success");
    let gone = events(&daemon, "a", "sandbox_gone").len();
    daemon.remove_sandboxes();
    // A cell that comes before the daemon knows of it is lost with the sandbox.
    eventually("it is noticed", || (events(&daemon, "a", "sandbox_gone").len() > gone).then_some(()));
    let result = daemon.run("a", "[later, count]");
    assert_eq!(result["result"]["repr"], "[3, 3]", "{result}");
    daemon.assert_sound();
}

#[test]
pub fn a_daemon_that_is_killed_while_it_saves_leaves_the_snapshot_before() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", named());
    assert_eq!(daemon.run("a", STATE)["status"], "success");
    snapshot(&daemon, "a", "before");
    let before = chunks(&daemon).len();
    // Nothing of it repeats, so that writing it takes a while.
    let large = "import os\nlarge = os.urandom(64 << 20)";
    assert_eq!(daemon.run("a", large)["status"], "success");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The daemon dies before it answers.
            let mut stream = daemon.connect().expect("the daemon serves");
            let (path, body) = ("/v1/sessions/a/snapshots", r#"{"name": "half"}"#);
            let length = body.len();
            let head = format!("POST {path} HTTP/1.1\r\nHost: belljar\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).expect("it takes the request");
            let _ = stream.read_to_end(&mut Vec::new());
        });
        eventually("chunks are written", || (chunks(&daemon).len() > before + 3).then_some(()));
        daemon.signal("KILL");
    });
    daemon.kill();
    daemon.remove_sandboxes();
    daemon.restart();
    assert_eq!(chunks(&daemon).len(), before, "nothing of the half one is left");
    assert!(stored(&daemon, |path| path.to_string_lossy().ends_with(".draft")).is_empty());
    assert_as_it_was(&daemon.run("a", CHECK));
    assert_eq!(daemon.run("a", "len(large)")["result"]["repr"], (64 << 20).to_string());
    daemon.assert_sound();
}

/// What is edited, and whether a file is of that kind.
type EditedFiles = (&'static str, fn(&Path) -> bool);

#[test]
pub fn a_snapshot_that_was_edited_on_the_disk_is_refused() {
    if !engine() {
        return;
    }
    let kinds: [EditedFiles; 2] = [("chunks", is_chunk), ("lists", is_list)];
    for (what, is_edited) in kinds {
        let daemon = Daemon::start();
        daemon.session("a", named());
        assert_eq!(daemon.run("a", STATE)["status"], "success");
        snapshot(&daemon, "a", "mine");
        sleep(&daemon, "a");
        let edited = stored(&daemon, is_edited);
        assert!(!edited.is_empty(), "{what}");
        for path in edited {
            let mut bytes = std::fs::read(&path).expect("a file");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).expect("written");
        }
        let result = daemon.run("a", "'points' in globals()");
        assert_eq!(result["result"]["repr"], "False", "{what}: {result}");
        let failed = events(&daemon, "a", "wake_failed");
        assert!(
            failed.len() == 1 && failed[0]["reason"].to_string().contains("changed on the disk"),
            "{failed:?}"
        );
        assert!(events(&daemon, "a", "woken").is_empty(), "{what}");
        daemon.assert_sound();
    }
}

#[test]
pub fn a_snapshot_without_room_is_refused_and_the_session_goes_on() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[quota]\nworkspace = \"16MiB\"\n");
    daemon.session("a", named());
    assert_eq!(daemon.run("a", "import os\nlarge = os.urandom(32 << 20)")["status"], "success");
    let refused = daemon.http("POST", "/v1/sessions/a/snapshots", b"{}").expect_status(429);
    assert_eq!(refused["code"], "quota_exceeded", "{refused}");
    assert!(chunks(&daemon).is_empty(), "what was written of it is gone");
    assert_eq!(daemon.run("a", "len(large)")["result"]["repr"], (32 << 20).to_string());
    assert_eq!(daemon.run("a", "del large")["status"], "success");
    snapshot(&daemon, "a", "small");
    daemon.assert_sound();
}

#[test]
pub fn a_cell_does_not_wait_for_a_snapshot() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", named());
    assert_eq!(daemon.run("a", "import os\nlarge = os.urandom(40 << 20)\nkept = 1")["status"], "success");
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| snapshot(&daemon, "a", "large"));
        eventually("chunks are written", || (!chunks(&daemon).is_empty()).then_some(()));
        let begun = Instant::now();
        assert_eq!(daemon.run("a", "kept = 2")["status"], "success");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        let taken = taken.join().expect("an answer");
        assert_eq!(taken["cell"], 1, "it has the state before the cell that came: {taken}");
    });
    sleep(&daemon, "a");
    let result = daemon.run("a", "[kept, len(large)]");
    assert_eq!(result["result"]["repr"], format!("[2, {}]", 40 << 20), "{result}");
    daemon.assert_sound();
}

#[test]
pub fn the_output_of_a_cell_is_not_held_up_by_a_snapshot() {
    if !engine() || !keeps_variables() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", named());
    assert_eq!(daemon.run("a", "import os, time\nlarge = os.urandom(16 << 20)")["status"], "success");
    // The copy takes turns with the cell.
    let prints =
        "line = 0\nwhile not os.path.exists('go'):\n    print(line)\n    line += 1\n    time.sleep(0.01)";
    let text_of = |events: &[Value]| -> String {
        let output = events.iter().filter(|event| event["type"] == "output");
        output.filter_map(|event| event["text"].as_str()).collect()
    };
    std::thread::scope(|scope| {
        let printing = scope.spawn(|| daemon.run("a", prints));
        eventually("it prints", || (!text_of(&daemon.events("a", 0)).is_empty()).then_some(()));
        assert_eq!(snapshot(&daemon, "a", "large")["cell"], 1);
        daemon.http("PUT", "/v1/sessions/a/files/go", b"").expect_status(200);
        assert_eq!(printing.join().expect("a result")["status"], "success");
    });
    let events = daemon.events("a", 0);
    let taken = events.iter().position(|event| event["type"] == "snapshot_taken").expect("an event");
    let lines = text_of(&events[..taken]).lines().count();
    // As many as one second of three brings, and far more than had come when the snapshot was asked for.
    assert!(lines >= 100, "{lines} lines came before the snapshot had ended");
    daemon.assert_sound();
}

#[test]
pub fn snapshots_are_listed_removed_and_gone_with_their_session() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", named());
    assert_eq!(daemon.run("a", "x = 1")["status"], "success");
    let first = snapshot(&daemon, "a", "first");
    assert_eq!(daemon.run("a", "x = 2")["status"], "success");
    let second = snapshot(&daemon, "a", "second");
    let list = || daemon.http("GET", "/v1/sessions/a/snapshots", b"").expect_status(200);
    let listed = list().to_string();
    for one in [&first, &second] {
        assert!(listed.contains(one["id"].as_str().expect("an id")), "{listed}");
    }
    let path = format!("/v1/sessions/a/snapshots/{}", first["id"].as_str().expect("an id"));
    assert!((200..300).contains(&daemon.http("DELETE", &path, b"").status));
    assert_eq!(daemon.http("DELETE", &path, b"").expect_status(404)["code"], "no_such_snapshot");
    assert!(!list().to_string().contains(first["id"].as_str().expect("an id")));
    daemon.cli(["rm", "a"]).ok();
    eventually("nothing is left", || stored(&daemon, |_| true).is_empty().then_some(()));
    daemon.assert_sound();
}

/// A client is answered when the journal has the removal; what is left of the session goes after that.
#[test]
pub fn a_removal_that_a_daemon_did_not_finish_takes_the_snapshots_with_the_next_start() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", named());
    assert_eq!(daemon.run("a", STATE)["status"], "success");
    snapshot(&daemon, "a", "mine");
    let removed = daemon.http("DELETE", "/v1/sessions/a", b"");
    assert!((200..300).contains(&removed.status), "{}", removed.text());
    daemon.kill();
    daemon.restart();
    assert!(stored(&daemon, |_| true).is_empty(), "nothing is left");
    assert_eq!(daemon.http("GET", "/v1/sessions/a", b"").status, 404);
    daemon.assert_sound();
}

/// More commits than a session has that sleeps, wakes and runs two cells.
const COMMITS: u32 = 40;

/// The daemon dies at each of them in turn, just before and just after it. The next one has the earlier sandbox, or one
/// that wakes: once, with each cell's changes once, and with those of every cell that a client was answered for.
#[test]
pub fn a_death_at_any_commit_of_sleeping_and_waking_costs_no_variables() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let mut died = 0;
    for n in 1..=COMMITS {
        let before = died;
        for side in ["before", "after"] {
            let place = format!("{n}:{side}");
            daemon.session("a", base());
            assert_eq!(daemon.run("a", "steps = [1]")["status"], "success");
            daemon.kill();
            daemon.set_environment(&[("BELLJAR_CRASH_AT", &place)]);
            let mut acknowledged = vec![1];
            if daemon.try_restart() {
                let mut append = |step: u32| {
                    let code = format!("steps.append({step})");
                    let is_answered = daemon.cli(["exec", "-s", "a", &code]).code == Some(0);
                    acknowledged.extend(is_answered.then_some(step));
                };
                daemon.cli(["snapshot", "-s", "a", "first"]);
                append(2);
                daemon.cli(["sleep", "-s", "a"]);
                append(3);
            }
            died += usize::from(daemon.has_ended());
            daemon.kill();
            daemon.set_environment(&[]);
            daemon.restart();
            let result = daemon.run("a", "steps");
            let steps = result["result"]["repr"].as_str().unwrap_or_default();
            let steps: Vec<u32> = serde_json::from_str(steps).unwrap_or_default();
            assert!(
                steps.is_sorted_by(|a, b| a < b) && steps.iter().all(|step| *step <= 3),
                "{place}: {result}"
            );
            // Only a cell that nobody was answered for may have come to nothing.
            let is_there = |step: &u32| steps.contains(step);
            assert!(acknowledged.iter().all(is_there), "{place}: {acknowledged:?} {result}");
            let (woken, failed) = (events(&daemon, "a", "woken"), events(&daemon, "a", "wake_failed"));
            assert!(woken.len() <= 1 && failed.is_empty(), "{place}: {woken:?} {failed:?}");
            daemon.http("DELETE", "/v1/sessions/a?wait=true", b"").expect_status(200);
            assert!(daemon.containers().is_empty() && stored(&daemon, |_| true).is_empty(), "{place}");
        }
        if died == before {
            assert!(n > 8, "it has no more than {n} commits");
            return;
        }
    }
    panic!("it has more than {COMMITS} commits");
}

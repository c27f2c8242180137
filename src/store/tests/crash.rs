use serde_json::Map;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::*;
use crate::protocol::frames::OutputFrame;
use crate::protocol::ids::SandboxId;
use crate::protocol::result::Stream;
use crate::store::{OutputCaps, Recorder, Spill};

const CHILD: &str = "BELLJAR_TEST_CRASH_FOLDER";
const CAPS: OutputCaps = OutputCaps { head: 1_000, tail: 1_000 };
const SESSION: SessionId = SessionId(uuid::Uuid::from_u128(7));

fn sandbox() -> SandboxId {
    SandboxId("s".into())
}

/// The content of a frame that a kernel keeps until it is received: its number as text.
fn frame(number: u64) -> String {
    format!("{number} ")
}

const FRAMES: u64 = 30;

/// Runs the scenario from the journal's current state and prints each success that it was notified of.
async fn scenario(folder: &Path) {
    let journal = Journal::open(folder).unwrap();
    if journal.sessions().unwrap().is_empty() {
        let record = SessionRecord { id: SESSION, ..record("a") };
        journal.create_session(&record).await.unwrap();
    }
    println!("\ncreated");
    let log = journal.log(SESSION).unwrap();
    let spill = Spill::open(log.spill_folder(), 1_000_000).unwrap();
    let recorder = Recorder::recover(Arc::clone(&log), spill, CAPS, Some(sandbox()), &[1]).unwrap();
    if log.newest() == 0 {
        log.append(started(1));
    }
    recorder.begin(1);
    for number in log.received(&sandbox()) + 1..=FRAMES {
        if number % 10 == 0 {
            recorder.display(1, Map::new(), number);
        } else {
            let data = frame(number);
            recorder.output(
                &OutputFrame { stream: Stream::Stdout, cell: Some(1), data: data.as_bytes() },
                number,
            );
        }
        if number % 3 == 0 {
            recorder.flush();
            log.flushed().await;
            println!("\nvisible {}", log.newest());
        }
    }
    let record = recorder.finish(1);
    let expected: String = (1..=FRAMES).filter(|number| number % 10 != 0).map(frame).collect();
    assert_eq!((record.captured.stdout, record.displays.len()), (expected, 3));
    if log.finished(1).is_none() {
        log.append(finished(1));
    }
    log.flushed().await;
    println!("\nvisible {}", log.newest());
}

#[tokio::test]
#[ignore = "the part of the test below that dies"]
async fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
    scenario(folder.as_ref()).await;
}

/// Runs the child once; returns whether it finished, and its output.
fn run(folder: &Path, crash_at: Option<String>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "store::tests::crash::child", "--ignored", "--nocapture"]);
    command.env(CHILD, folder);
    if let Some(crash_at) = crash_at {
        command.env("BELLJAR_CRASH_AT", crash_at);
    }
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Checks what must be true no matter when the process died.
fn check(folder: &Path, output: &str) {
    let file = rusqlite::Connection::open(folder.join("journal.db")).unwrap();
    let verdict: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    drop(file);
    let journal = Journal::open(folder).unwrap();
    assert!(!output.contains("created") || journal.sessions().unwrap().len() == 1);
    let log = journal.log(SESSION).unwrap();
    let visible = output.lines().filter_map(|line| line.strip_prefix("visible ")?.parse().ok());
    let visible: u64 = visible.max().unwrap_or(0);
    assert!(log.newest() >= visible, "event {visible} was told and is lost");
    // `bodies` also checks that there are no gaps; a range of output that cannot be read would change the text.
    let text: String = bodies(&log)
        .into_iter()
        .filter_map(|body| if let EventBody::Output { text, .. } = body { Some(text) } else { None })
        .collect();
    let expected: String = (1..=FRAMES).filter(|number| number % 10 != 0).map(frame).collect();
    assert!(expected.starts_with(&text), "{text}");
}

#[test]
fn whenever_the_process_dies_nothing_that_was_told_is_lost_and_nothing_is_twice() {
    if !cfg!(debug_assertions) {
        eprintln!("NOT RUN: a release build does not crash on demand");
        return;
    }
    for side in ["before", "after"] {
        let (mut number, mut ended) = (0, false);
        while !ended {
            number += 1;
            assert!(number < 100, "the scenario never ends");
            let folder = tempfile::tempdir().unwrap();
            let output;
            (ended, output) = run(folder.path(), Some(format!("{number}:{side}")));
            check(folder.path(), &output);
            let (ended, output) = run(folder.path(), None);
            assert!(ended, "after {number}:{side} it does not go on: {output}");
            check(folder.path(), &output);
            let log = Journal::open(folder.path()).unwrap().log(SESSION).unwrap();
            assert_eq!(
                (log.finished(1).map(|event| event.seq), log.received(&sandbox())),
                (Some(log.newest()), FRAMES)
            );
        }
        assert!(number > 5, "only {number} commits were tried");
    }
}

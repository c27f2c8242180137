//! Commits on the thread of the caller.

use std::sync::{Arc, mpsc};
use std::thread::{ThreadId, current};

use super::*;
use crate::store::writer::{CHECKPOINT_BYTES, COMMAND_LOG_BYTES};

/// Appends an event that is committed at once if it can be, and the thread on which its caller learns of it.
fn append_here(log: &EventLog, body: EventBody) -> mpsc::Receiver<ThreadId> {
    let (sender, receiver) = mpsc::channel();
    let together = log.together();
    log.append_then(body, None, move || {
        let _ = sender.send(current().id());
    });
    drop(together);
    receiver
}

#[tokio::test]
async fn a_small_event_is_committed_by_its_caller_where_nothing_else_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    log.append(created("a"));
    log.flushed().await;
    // The writer's thread may still be on its way to rest.
    let is_here = || append_here(&log, EventBody::Reset).recv() == Ok(current().id());
    assert!((0..1_000).any(|_| is_here()));
    assert_eq!(log.lag(), 0, "its caller sees it at once");
}

#[tokio::test]
async fn while_the_writer_is_busy_nobody_waits_for_it_and_the_order_holds() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let writer_hold = journal.hold_writer();
    log.append(created("a"));
    let told = append_here(&log, EventBody::Reset);
    assert!(told.try_recv().is_err());
    drop(writer_hold);
    log.flushed().await;
    assert_ne!(told.recv(), Ok(current().id()));
    assert_eq!(bodies(&log), vec![created("a"), EventBody::Reset]);
}

#[tokio::test]
async fn many_callers_at_once_lose_no_event_and_keep_the_order_of_each() {
    const THREADS: usize = 4;
    const EACH: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let logs: Vec<_> = (0..THREADS).map(|_| journal.log(SessionId::fresh()).unwrap()).collect();
    let appending: Vec<_> = logs
        .iter()
        .map(|log| {
            let log = Arc::clone(log);
            std::thread::spawn(move || {
                (0..EACH).map(|_| append_here(&log, EventBody::Reset)).collect::<Vec<_>>()
            })
        })
        .collect();
    for thread in appending {
        assert!(thread.join().unwrap().into_iter().all(|told| told.recv().is_ok()));
    }
    for log in logs {
        log.flushed().await;
        assert_eq!(seqs(&log, 0, usize::MAX), (1..=EACH).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_log_of_writes_does_not_grow_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    for _ in 0..4 * CHECKPOINT_BYTES / COMMAND_LOG_BYTES {
        append_here(&log, EventBody::Reset).recv().unwrap();
    }
    let written = std::fs::metadata(folder.path().join("journal.db-wal")).unwrap().len();
    assert!(written < 2 * CHECKPOINT_BYTES as u64, "{written}");
}

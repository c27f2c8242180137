use serde_json::{Map, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::protocol::event::ToolOutcome;
use crate::store::account::{Account, Exceeded, SESSION_RESERVE_BYTES};

struct Limited {
    used: AtomicU64,
    limit: u64,
}

impl Account for Limited {
    fn open(&self, bytes: u64) {
        self.used.store(bytes, Ordering::Relaxed);
    }

    fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        let used = self.used.load(Ordering::Relaxed);
        if used + bytes > self.limit {
            return Err(Exceeded("too much".into()));
        }
        self.charge_anyway(bytes);
        Ok(())
    }

    fn charge_anyway(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn refund(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn answer(bytes: usize) -> EventBody {
    EventBody::ToolAnswered { call: 1, outcome: ToolOutcome::Value(json!("x".repeat(bytes))) }
}

#[tokio::test]
async fn what_is_charged_is_what_the_next_start_finds() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let (session, account) = (SessionId::fresh(), Arc::new(Limited { used: 0.into(), limit: 1 << 30 }));
    let log = journal.log(session).unwrap();
    log.charge_to(Principal::ANN, account.clone(), no_bound());
    log.append(EventBody::Reset);
    // The first is stored in a row, the second in a blob file.
    for bytes in [10_000, 1 << 20] {
        log.append(answer(bytes));
    }
    let mime = Map::from_iter([("text/plain".to_owned(), json!("shown"))]);
    let body = EventBody::Display { cell: 1, mime };
    drop(log.pay_for(&body).unwrap());
    log.flushed().await;
    let charged = account.used.load(Ordering::Relaxed);
    assert!(charged > (1 << 20) + 10_000, "{charged}");
    assert_eq!(journal.stored(session).unwrap(), charged);
    drop(log);
    drop(journal);
    let journal = Journal::open(folder.path()).unwrap();
    let again = Arc::new(Limited { used: 0.into(), limit: 1 << 30 });
    journal.log(session).unwrap().charge_to(Principal::ANN, again.clone(), no_bound());
    assert_eq!(again.used.load(Ordering::Relaxed), charged);
    // A session whose log is opened again is charged once.
    journal.log(session).unwrap().charge_to(Principal::ANN, again.clone(), no_bound());
    assert_eq!(again.used.load(Ordering::Relaxed), charged);
}

#[tokio::test]
async fn beyond_the_quota_ends_are_written_and_large_values_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let account = Arc::new(Limited { used: 0.into(), limit: 100_000 });
    let log = journal.log(SessionId::fresh()).unwrap();
    log.charge_to(Principal::ANN, account.clone(), no_bound());
    let mut exceeded = log.watch_exceeded();
    assert!(log.pay_for(&answer(200_000)).is_err());
    for _ in 0..50 {
        log.append(answer(1 << 20));
        log.append(EventBody::SessionRemoved);
    }
    exceeded.changed().await.unwrap();
    log.flushed().await;
    assert_eq!(log.read(0, 1000).unwrap().len(), 100, "nothing is missing");
    let used = account.used.load(Ordering::Relaxed);
    assert!(used <= 100_000 + SESSION_RESERVE_BYTES, "{used}");
    assert!(log.has_reserve().is_ok());
    exceeded.borrow_and_update();
    for _ in 0..1_000 {
        log.append(EventBody::Frozen);
    }
    assert!(log.has_reserve().is_err(), "nothing new begins");
    assert!(exceeded.has_changed().unwrap(), "many small events end cells as a large one does");
    account.refund(account.used.load(Ordering::Relaxed));
    assert!(log.has_reserve().is_ok(), "there is room again");
}

#[tokio::test]
async fn large_values_go_with_the_session_that_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let (one, two) = (SessionId::fresh(), SessionId::fresh());
    for (session, shared) in [(one, "both"), (two, "both"), (one, "one")] {
        let log = journal.log(session).unwrap();
        log.append(EventBody::SandboxGone { reason: shared.repeat(1 << 18) });
        log.flushed().await;
    }
    let files = || std::fs::read_dir(folder.path().join("blobs")).unwrap().count();
    // Each event contains its own number, so no two have the same content.
    let before = files();
    journal.forget(one).await.unwrap();
    assert_eq!((before, files()), (3, 1));
    journal.forget(two).await.unwrap();
    assert_eq!(files(), 0);
}

#[tokio::test]
async fn nothing_of_a_log_stays_in_memory_for_what_was_paid_before() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let (session, account) = (SessionId::fresh(), Arc::new(Limited { used: 0.into(), limit: 1 << 20 }));
    let log = journal.log(session).unwrap();
    log.charge_to(Principal::ANN, account.clone(), no_bound());
    let paid = log.pay_for(&answer(1_000)).unwrap();
    let charged = account.used.load(Ordering::Relaxed);
    log.append_keyed_then(answer(1_000), paid, None, || {});
    log.flushed().await;
    assert_eq!(account.used.load(Ordering::Relaxed), charged, "what is written stays charged");
    assert!(journal.holds_log(session));
    drop(log);
    // The writer drops a group a moment after its events become visible.
    let begun = std::time::Instant::now();
    while journal.holds_log(session) {
        assert!(begun.elapsed() < PATIENCE, "somebody keeps the log");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_file_is_small_again_when_a_session_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let (large, small) = (SessionId::fresh(), SessionId::fresh());
    let pages = || {
        let count = |file: &rusqlite::Connection| file.query_row("PRAGMA page_count", [], |row| row.get(0));
        journal.core.read(|file, _| count(file)).unwrap()
    };
    let log = journal.log(small).unwrap();
    append(&log, 10);
    log.flushed().await;
    let before: i64 = pages();
    let log = journal.log(large).unwrap();
    for _ in 0..100 {
        log.append(answer(100_000));
    }
    log.flushed().await;
    assert!(pages() > before + 2_000, "rows are in the file");
    journal.forget(large).await.unwrap();
    assert!(pages() < before + 100, "{} pages are left of {before}", pages());
    assert_eq!(bodies(&journal.log(small).unwrap()).len(), 10);
}

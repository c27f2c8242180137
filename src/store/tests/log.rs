use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use super::Durability::{Full, Normal};
use super::*;
use crate::memory::Memory;
use crate::protocol::event::ToolOutcome;
use crate::protocol::ids::SandboxId;
use crate::store::account::UnlimitedAccount;
use crate::store::{AppliedFrame, EventsGone, JournalError, Overdraft};

#[tokio::test]
async fn numbers_have_no_gaps_however_many_append_at_once() {
    const THREADS: usize = 8;
    const EACH: usize = 500;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let appending: Vec<_> = (0..THREADS)
        .map(|_| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || (0..EACH).map(|_| log.append(EventBody::Reset)).collect::<Vec<_>>())
        })
        .collect();
    let given: BTreeSet<Seq> = appending.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    log.flushed().await;
    let total = THREADS * EACH;
    assert_eq!(given, (1..=total as u64).collect());
    assert_eq!((bodies(&log).len(), log.newest(), log.lag()), (total, total as u64, 0));
    assert!(journal.core.queue.batches.lock().len() < total, "what waits is written together");
}

#[tokio::test]
async fn an_event_is_visible_only_when_it_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let writer_hold = journal.hold_writer();
    let (sender, receiver) = mpsc::channel();
    let later = Arc::clone(&log);
    let seq = log.append_then(created("a"), None, move || {
        let _ = sender.send((later.newest(), seqs(&later, 0, 9)));
    });
    log.append(EventBody::Reset);
    log.close();
    let watch = log.watch();
    assert_eq!((seq, log.lag(), log.newest(), log.is_closed()), (1, 2, 0, false));
    assert_eq!(log.read(0, 10), Ok(Vec::new()));
    assert!(receiver.try_recv().is_err() && !watch.has_changed().unwrap());
    drop(writer_hold);
    log.flushed().await;
    assert_eq!(receiver.recv().unwrap(), (1, vec![1]), "told after it is visible, before the next is");
    assert_eq!(
        (log.newest(), log.is_closed(), bodies(&log)),
        (2, true, vec![created("a"), EventBody::Reset])
    );
    assert!(watch.has_changed().unwrap());
}

#[tokio::test]
async fn a_reader_never_sees_what_the_file_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    let appending = std::thread::spawn({
        let log = Arc::clone(&log);
        move || append(&log, 2_000)
    });
    let mut watch = log.watch();
    let mut after = 0;
    while after < 2_000 {
        let seen = *watch.borrow_and_update();
        let events = seqs(&log, after, 100);
        after = events.last().copied().unwrap_or(after);
        let stored: i64 = file.query_row("SELECT max(seq) FROM events", [], |row| row.get(0)).unwrap_or(0);
        assert!(stored >= i64::try_from(seen.max(after)).unwrap());
        if events.is_empty() {
            watch.changed().await.unwrap();
        }
    }
    appending.join().unwrap();
}

#[tokio::test]
async fn a_journal_opened_again_has_everything_and_numbers_on() {
    let folder = tempfile::tempdir().unwrap();
    let (session, other) = (SessionId::fresh(), SessionId::fresh());
    let large = "x".repeat(crate::store::blobs::INLINE_BYTES * 2);
    {
        let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
        for number in 0..3_000 {
            log.append(created(&number.to_string()));
        }
        log.append(created(&large));
        // Dropping the last handle writes all waiting events.
    }
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(session).unwrap();
    assert_eq!((log.newest(), log.append(EventBody::Reset)), (3_001, 3_002));
    assert_eq!(journal.log(other).unwrap().append(EventBody::Reset), 1);
    log.flushed().await;
    let found = bodies(&log);
    let mut expected: Vec<_> = (0..3_000).map(|number| created(&number.to_string())).collect();
    expected.extend([created(&large), EventBody::Reset]);
    assert_eq!(found, expected);
    assert_eq!(seqs(&log, 2_990, 3), [2_991, 2_992, 2_993]);
    assert_eq!(seqs(&log, 3_002, 3), Vec::<Seq>::new());
}

/// Output and displays are left out both of new events and of those from before; a batch that consists of them alone
/// does not end the reading.
#[tokio::test]
async fn what_was_printed_is_left_out_of_what_a_restart_reads() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let display = |cell| EventBody::Display { cell, mime: serde_json::Map::new() };
    {
        let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
        log.append(EventBody::Reset);
        for cell in 0..5 {
            log.append(display(cell));
        }
        log.append(EventBody::Frozen);
    }
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(session).unwrap();
    let told_seqs = |after, until| {
        let mut seqs = Vec::new();
        let take = |event: Event| {
            seqs.push(event.seq);
            Ok(())
        };
        log.each_event((after, until), Overdraft::Refused, take).unwrap();
        seqs
    };
    assert_eq!((told_seqs(0, Seq::MAX), told_seqs(1, 6), told_seqs(0, 1)), (vec![1, 7], vec![], vec![1]));
    log.append(display(9));
    log.append(EventBody::Thawed);
    log.flushed().await;
    assert_eq!(told_seqs(7, Seq::MAX), [9]);
}

#[tokio::test]
async fn what_is_read_again_is_in_memory_one_batch_at_a_time_and_charged() {
    const USER: Principal = Principal::new(7);
    const LARGE: usize = 6 * 1024 * 1024;
    let (folder, session) = (tempfile::tempdir().unwrap(), SessionId::fresh());
    {
        let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
        for _ in 0..5 {
            log.append(created(&"x".repeat(LARGE)));
        }
        append(&log, 10);
    }
    let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
    let memory = Memory::default();
    log.charge_to(USER, Arc::new(UnlimitedAccount), memory.pool(USER));
    let (mut most, mut events) = (0, 0);
    let take = |_: Event| {
        most = memory.taken(USER).0.max(most);
        events += 1;
        Ok(())
    };
    log.each_event((0, Seq::MAX), Overdraft::Allowed, take).unwrap();
    let copies = 4;
    assert!((LARGE..LARGE + 1024).contains(&usize::try_from(most / copies).unwrap()), "{most}");
    assert_eq!((events, memory.taken(USER).0), (15, 0));

    // Without room nothing is read, unless the caller allows an overdraft.
    memory.set_limit(USER, Some(LARGE as u64));
    let nothing = |_: Event| panic!("it was read");
    let refused = log.each_event((0, Seq::MAX), Overdraft::Refused, nothing);
    assert!(matches!(refused, Err(JournalError::NoRoom(_))), "{refused:?}");
    log.each_event((0, Seq::MAX), Overdraft::Allowed, |_| Ok(())).unwrap();
}

/// A value with the deepest nesting that the parser accepts is nested deeper in its event.
#[tokio::test]
async fn what_could_be_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = Journal::open(folder.path()).unwrap().log(SessionId::fresh()).unwrap();
    let (open, close) = ("[".repeat(127), "]".repeat(127));
    let deepest: serde_json::Value = serde_json::from_str(&format!("{open}{close}")).unwrap();
    log.append(EventBody::ToolAnswered { call: 1, outcome: ToolOutcome::Value(deepest) });
    log.flushed().await;
    let mut taken = 0;
    log.each_event((0, Seq::MAX), Overdraft::Refused, |_| {
        taken += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(taken, 1);
}

#[tokio::test]
async fn an_event_that_cannot_be_read_is_not_passed_over() {
    let (folder, session) = (tempfile::tempdir().unwrap(), SessionId::fresh());
    let write = |large: &str| {
        let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
        log.append(EventBody::Reset);
        log.append(created(large));
        log.append(EventBody::Frozen);
    };
    let read = || {
        let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
        let mut seqs = Vec::new();
        let read = log.each_event((0, Seq::MAX), Overdraft::Refused, |event| {
            seqs.push(event.seq);
            Ok(())
        });
        let unreadable = |error| match error {
            JournalError::EventUnreadable { seq, .. } => seq,
            other => panic!("{other}"),
        };
        read.map(|()| seqs).map_err(unreadable)
    };
    let change = |query: &str| {
        rusqlite::Connection::open(folder.path().join("journal.db")).unwrap().execute(query, []).unwrap();
    };
    write(&"x".repeat(1024 * 1024));
    assert_eq!(read(), Ok(vec![1, 2, 3]));
    // The content of event 2 is missing.
    std::fs::remove_dir_all(folder.path().join("blobs")).unwrap();
    assert_eq!(read(), Err(2));
    // Event 2 has an unknown type.
    change(
        "UPDATE events SET blob = NULL, json = '{\"seq\":2,\"at\":\"\",\"type\":\"unheard_of\"}' WHERE seq = 2",
    );
    assert_eq!(read(), Err(2));
    // The row of event 2 is missing.
    change("DELETE FROM events WHERE seq = 2");
    assert_eq!(read(), Err(2));
}

#[tokio::test]
async fn the_tail_in_memory_is_bounded_and_the_file_has_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let log = Journal::open(folder.path()).unwrap().log(SessionId::fresh()).unwrap();
    for number in 0..2_000 {
        log.append(created(&number.to_string()));
    }
    log.flushed().await;
    assert!(log.tail().0 <= 1_024);
    for _ in 0..12 {
        log.append(created(&"x".repeat(1024 * 1024)));
    }
    log.flushed().await;
    assert!(log.tail().1 <= 4 * 1024 * 1024);
    assert_eq!(bodies(&log).len(), 2_012);
    let several = log.read(2_000, 12).unwrap().len();
    assert!((1..12).contains(&several), "a read of large events stops early: {several}");
}

#[tokio::test]
async fn large_events_are_files_and_read_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let large = created(&"ä".repeat(crate::store::blobs::INLINE_BYTES));
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(session).unwrap();
    log.append(large.clone());
    log.append(created("small"));
    log.flushed().await;
    let blobs: Vec<_> = std::fs::read_dir(folder.path().join("blobs")).unwrap().flatten().collect();
    assert_eq!((blobs.len(), blobs[0].file_name().len()), (1, 64));
    assert_eq!(bodies(&log), [large.clone(), created("small")]);
    journal.close();
    let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
    assert_eq!(bodies(&log), [large, created("small")]);

    std::fs::remove_file(blobs[0].path()).unwrap();
    let lost = log.read(0, 1).unwrap().remove(0);
    assert_eq!((lost.seq, lost.json.contains("\"lost\":true")), (1, true));
}

#[tokio::test]
async fn the_end_of_a_cell_is_found_in_memory_and_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(session).unwrap();
    let writer_hold = journal.hold_writer();
    log.append(finished(1));
    assert_eq!(log.finished(1), None);
    drop(writer_hold);
    log.append(started(2));
    log.flushed().await;
    assert_eq!((log.finished(1).map(|event| event.seq), log.finished(2)), (Some(1), None));
    journal.close();
    let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
    assert_eq!((log.finished(1).map(|event| event.seq), log.finished(2)), (Some(1), None));
}

#[tokio::test]
async fn frames_are_received_when_their_effect_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let [one, two, three] = ["one", "two", "three"].map(|name| SandboxId(name.into()));
    let applied = |sandbox: &SandboxId, received| AppliedFrame { sandbox: sandbox.clone(), received };
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(session).unwrap();
    let writer_hold = journal.hold_writer();
    log.append_applied(EventBody::Reset, applied(&one, 7));
    log.append_then(EventBody::Reset, Some(applied(&one, 5)), || {});
    log.append_intent_then(Full, EventBody::Reset, None, Some(applied(&two, 2)), || {});
    assert_eq!(log.received(&one), 0);
    drop(writer_hold);
    log.flushed().await;
    assert_eq!([&one, &two, &three].map(|sandbox| log.received(sandbox)), [7, 2, 0]);
    journal.close();
    let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
    assert_eq!([&one, &two, &three].map(|sandbox| log.received(sandbox)), [7, 2, 0]);
}

#[tokio::test]
async fn a_batch_with_an_intent_is_committed_fully_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    log.append(EventBody::Reset);
    log.flushed().await;
    let writer_hold = journal.hold_writer();
    log.append(EventBody::Reset);
    log.append_intent_then(Full, EventBody::Reset, None, None, || {});
    log.append(EventBody::Reset);
    drop(writer_hold);
    log.flushed().await;
    log.append(EventBody::Reset);
    log.flushed().await;
    journal.create_session(&record("a")).await.unwrap();
    let batches = journal.core.queue.batches.lock().clone();
    assert_eq!(batches, [(Normal, 1), (Normal, 1), (Full, 3), (Normal, 1), (Full, 1)]);
}

#[tokio::test]
async fn what_is_appended_together_is_committed_together_and_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let outer = log.together();
    assert_eq!(log.append(started(1)), 1);
    let inner = log.together();
    assert_eq!(log.append(started(2)), 2);
    drop(inner);
    // Whatever the writer does meanwhile, it does not have them yet.
    journal.create_session(&record("a")).await.unwrap();
    assert_eq!((log.newest(), log.lag()), (0, 2));
    log.append(started(3));
    drop(outer);
    log.flushed().await;
    log.append(started(4));
    log.flushed().await;
    assert_eq!(bodies(&log), [1, 2, 3, 4].map(started));
    let batches = journal.core.queue.batches.lock().clone();
    assert_eq!(batches, [(Full, 1), (Normal, 3), (Normal, 1)]);
    // A journal that is closed meanwhile tells those who wait.
    let together = log.together();
    log.append(started(5));
    journal.close();
    drop(together);
    log.flushed().await;
    assert!(log.is_closed());
}

#[tokio::test]
async fn two_handles_of_a_session_are_one_log_also_over_a_drop() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let session = SessionId::fresh();
    let writer_hold = journal.hold_writer();
    let log = journal.log(session).unwrap();
    assert_eq!(
        (log.append(EventBody::Reset), journal.log(session).unwrap().append(EventBody::Reset)),
        (1, 2)
    );
    drop(log);
    // The two events are not in the file yet; only the queue holds them.
    let log = journal.log(session).unwrap();
    assert_eq!(log.append(EventBody::Reset), 3);
    drop(writer_hold);
    log.flushed().await;
    assert_eq!(bodies(&log).len(), 3);
}

#[tokio::test]
async fn events_that_were_deleted_are_said_to_be_gone() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    append(&Journal::open(folder.path()).unwrap().log(session).unwrap(), 5);
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(session).unwrap();
    journal.forget(session).await.unwrap();
    assert_eq!(log.read(0, 1), Err(EventsGone { first: 6 }));
    assert_eq!(log.read(5, 1), Ok(Vec::new()));
}

#[tokio::test]
async fn after_the_end_nothing_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let dropped_unrun = Arc::new(Mutex::new(()));
    journal.close();
    let guard = Arc::clone(&dropped_unrun);
    log.append_then(EventBody::Reset, None, move || drop(guard));
    log.flushed().await;
    assert!(log.is_closed());
    assert_eq!((log.newest(), Arc::strong_count(&dropped_unrun)), (0, 1));
    assert!(journal.healthy().is_err());
    assert!(matches!(
        journal.remove_session(SessionId::fresh()).await,
        Err(crate::store::JournalError::Closed)
    ));
}

#[tokio::test]
async fn the_last_handle_may_be_dropped_by_a_callback() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let (sender, receiver) = mpsc::channel();
    let writer_hold = journal.hold_writer();
    let last = Arc::clone(&log);
    log.append_then(EventBody::Reset, None, move || {
        drop(last);
        let _ = sender.send(());
    });
    drop((log, journal));
    drop(writer_hold);
    receiver.recv_timeout(PATIENCE).unwrap();
}

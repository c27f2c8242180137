use serde_json::{Map, json};
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::protocol::frames::OutputFrame;
use crate::protocol::ids::SandboxId;
use crate::protocol::result::Stream;
use crate::store::{OutputCaps, Recorder, Spill};

const CAPS: OutputCaps = OutputCaps { head: 20, tail: 20 };
const SPILL: u64 = 1_000;

fn sandbox() -> SandboxId {
    SandboxId("0123456789abcdef".into())
}

fn first(folder: &Path, session: SessionId) -> (Journal, Arc<EventLog>, Recorder) {
    let journal = Journal::open(folder).unwrap();
    let log = journal.log(session).unwrap();
    let recorder = Recorder::new(Arc::clone(&log), Spill::open(log.spill_folder(), SPILL).unwrap(), CAPS);
    recorder.attach(sandbox());
    (journal, log, recorder)
}

/// Simulates the death of the process: what the recorder holds back is lost.
fn restarted(
    folder: &Path,
    session: SessionId,
    old: (Journal, Arc<EventLog>, Recorder),
) -> (Arc<EventLog>, Recorder) {
    old.0.close();
    drop(old);
    let log = Journal::open(folder).unwrap().log(session).unwrap();
    let spill = Spill::open(log.spill_folder(), SPILL).unwrap();
    let recorder = Recorder::recover(Arc::clone(&log), spill, CAPS, Some(sandbox()), &[1]).unwrap();
    (log, recorder)
}

fn out(recorder: &Recorder, text: &[u8], received: u64) {
    recorder.output(&OutputFrame { stream: Stream::Stdout, cell: Some(1), data: text }, received);
}

fn text_of(log: &EventLog) -> String {
    let texts = bodies(log).into_iter().filter_map(|body| match body {
        EventBody::Output { text, .. } => Some(text),
        _ => None,
    });
    texts.collect()
}

#[tokio::test]
async fn a_running_cell_goes_on_where_the_journal_ends() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let old = first(folder.path(), session);
    let (_, log, recorder) = &old;
    log.append(started(1));
    recorder.begin(1);
    out(recorder, b"one ", 1);
    recorder.output(&OutputFrame { stream: Stream::Stderr, cell: Some(1), data: b"warning " }, 2);
    let mime: Map<_, _> = [("text/plain".to_owned(), json!("a picture"))].into_iter().collect();
    recorder.display(1, mime.clone(), 3);
    out(recorder, b"two ", 4);
    recorder.flush();
    log.flushed().await;
    assert_eq!(log.received(&sandbox()), 4);
    // This output is held back, so it does not count as received.
    recorder.hold_back();
    out(recorder, b"three ", 5);
    log.flushed().await;
    assert_eq!(log.received(&sandbox()), 4);
    // These bytes are spilled and never committed.
    let spilled = log.spill_folder().join("1.out");
    let garbage = std::fs::read(&spilled).unwrap();
    std::fs::write(&spilled, [&garbage, b"garbage".as_slice()].concat()).unwrap();

    let (log, recorder) = restarted(folder.path(), session, old);
    assert_eq!(std::fs::read(&spilled).unwrap(), b"one warning two ");
    assert_eq!(log.received(&sandbox()), 4);
    recorder.begin(1);
    out(&recorder, b"three ", 5);
    out(&recorder, b"four", 6);
    let record = recorder.finish(1);
    log.flushed().await;
    assert_eq!(log.received(&sandbox()), 6);
    assert_eq!(
        (record.captured.stdout.as_str(), record.captured.stderr.as_str()),
        ("one two three four", "warning ")
    );
    let order: String = record.captured.output.iter().map(|segment| segment.text.as_str()).collect();
    assert!(order.starts_with("one warning two "), "{order}");
    assert_eq!(record.displays.iter().map(|display| &display.mime).collect::<Vec<_>>(), [&mime]);
    assert_eq!((record.displays_dropped, record.dropped_bytes), (0, 0));
    assert_eq!(text_of(&log), "one warning two three four");
}

#[tokio::test]
async fn half_a_character_is_kept_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let old = first(folder.path(), session);
    let (_, log, recorder) = &old;
    log.append(started(1));
    recorder.begin(1);
    let text = "größer 中".as_bytes();
    out(recorder, &text[..3], 1);
    log.flushed().await;
    assert_eq!((text_of(log).as_str(), log.received(&sandbox())), ("gr", 1));
    let (log, recorder) = restarted(folder.path(), session, old);
    recorder.begin(1);
    out(&recorder, &text[3..], 2);
    let record = recorder.finish(1);
    log.flushed().await;
    assert_eq!((record.captured.stdout.as_str(), text_of(&log).as_str()), ("größer 中", "größer 中"));
}

#[tokio::test]
async fn what_was_cut_is_still_counted_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let old = first(folder.path(), session);
    let (_, log, recorder) = &old;
    log.append(started(1));
    recorder.begin(1);
    out(recorder, b"begin ", 1);
    recorder.gap(1, 500, 5, 2);
    out(recorder, &[b'x'; 990], 3);
    recorder.flush();
    // This exceeds the spill file: only 4 bytes fit.
    out(recorder, b"0123456789", 4);
    recorder.flush();
    log.flushed().await;
    assert_eq!(log.received(&sandbox()), 4);
    let (log, recorder) = restarted(folder.path(), session, old);
    recorder.begin(1);
    out(&recorder, b"the end", 5);
    let record = recorder.finish(1);
    log.flushed().await;
    assert_eq!(record.dropped_bytes, 500 + 5 + 6 + 7);
    let visible = "begin ".len() + "the end".len();
    assert_eq!(record.captured.stdout_cut, (6 + 500 + 990 + 10 + 7 - visible) as u64);
    assert_eq!(record.captured.stderr_cut, 5);
    assert!(record.captured.stdout.starts_with("begin ") && record.captured.stdout.ends_with("the end"));
    let cuts = bodies(&log).iter().filter(|body| matches!(body, EventBody::OutputCut { cell: 1 })).count();
    assert_eq!(cuts, 1);
}

#[tokio::test]
async fn output_between_cells_goes_on_too() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let old = first(folder.path(), session);
    let (_, log, recorder) = &old;
    let between = |recorder: &Recorder, data: &[u8], received| {
        recorder.output(&OutputFrame { stream: Stream::Stderr, cell: None, data }, received);
        recorder.flush();
    };
    between(recorder, b"tick ", 1);
    log.flushed().await;
    std::fs::write(log.spill_folder().join("0.out"), b"tick garbage").unwrap();
    let (log, recorder) = restarted(folder.path(), session, old);
    between(&recorder, b"tock", 2);
    log.flushed().await;
    assert_eq!((text_of(&log).as_str(), log.received(&sandbox())), ("tick tock", 2));
    assert_eq!(std::fs::read(log.spill_folder().join("0.out")).unwrap(), b"tick tock");
}

#[tokio::test]
async fn a_frame_in_several_events_is_committed_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, log, _) = first(folder.path(), SessionId::fresh());
    let spill = Spill::open(log.spill_folder(), u64::MAX).unwrap();
    let recorder = Recorder::new(Arc::clone(&log), spill, CAPS);
    recorder.attach(sandbox());
    recorder.begin(1);
    out(&recorder, b"a", 1);
    log.flushed().await;
    let writer_hold = journal.hold_writer();
    // The first output waits for the second; together they are more than one event holds.
    recorder.hold_back();
    out(&recorder, &vec![b'y'; 65_000], 2);
    out(&recorder, "ä".repeat(32_000).as_bytes(), 3);
    drop(writer_hold);
    log.flushed().await;
    let batches = journal.core.queue.batches.lock().clone();
    assert_eq!(batches.last().map(|(_, commands)| *commands), Some(1), "{batches:?}");
    assert_eq!((log.newest(), log.received(&sandbox())), (3, 3));
    assert_eq!(text_of(&log), format!("a{}{}", "y".repeat(65_000), "ä".repeat(32_000)));
}

#[tokio::test]
async fn what_a_cell_had_shown_before_is_charged_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let session = SessionId::fresh();
    let old = first(folder.path(), session);
    old.1.append(started(1));
    old.2.begin(1);
    let mime = Map::from_iter([("text/plain".to_owned(), json!("x".repeat(1_000)))]);
    old.2.display(1, mime, 1);
    old.1.flushed().await;
    old.0.close();
    drop(old);
    let log = Journal::open(folder.path()).unwrap().log(session).unwrap();
    let memory = crate::memory::Memory::default();
    log.charge_to(
        Principal::ANN,
        Arc::new(crate::store::account::UnlimitedAccount),
        memory.pool(Principal::ANN),
    );
    let spill = Spill::open(log.spill_folder(), SPILL).unwrap();
    let recorder = Recorder::recover(Arc::clone(&log), spill, CAPS, Some(sandbox()), &[1]).unwrap();
    assert!(memory.taken(Principal::ANN).0 >= 1_000, "{:?}", memory.taken(Principal::ANN));
    assert_eq!(recorder.finish(1).displays.len(), 1);
    assert_eq!(memory.taken(Principal::ANN).0, 0);
}

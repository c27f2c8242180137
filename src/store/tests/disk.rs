use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use rusqlite::Connection;

use super::*;
use crate::protocol::frames::OutputFrame;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Stream;
use crate::store::blobs::Blobs;
use crate::store::durability::{OnRefusal, WriteError};
use crate::store::{JournalError, OutputCaps, Recorder, Spill};

/// A small file system of its own, which only root can mount.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT RUN: a full disk can only be tested as root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m,mode=700", "belljar-test"])
            .arg(folder.path())
            .status()
            .unwrap();
        assert!(mounted.success(), "a tmpfs cannot be mounted");
        Some(Self { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let mut size = 256 * 1024;
        while size > 0 {
            if std::io::Write::write_all(&mut file, &vec![1; size]).is_err() {
                size /= 2;
            }
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Appends until the disk refuses; returns how many events.
fn append_until_refused(journal: &Journal, log: &EventLog) -> u64 {
    let since = Instant::now();
    let mut appended = 0;
    while journal.healthy().is_ok() {
        assert!(since.elapsed() < PATIENCE, "the disk never refused");
        appended = log.append(created(&"x".repeat(2_000)));
        std::thread::sleep(Duration::from_micros(200));
    }
    appended
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_the_journal_and_space_lets_it_go_on() {
    let Some(disk) = SmallDisk::mount() else { return };
    let journal = Journal::open(disk.path()).unwrap();
    let session = record("a");
    journal.create_session(&session).await.unwrap();
    let log = journal.log(session.id).unwrap();
    disk.fill();
    let appended = append_until_refused(&journal, &log);
    let visible = log.newest();
    assert!(visible < appended && log.lag() > 0);
    let large = created(&"y".repeat(300 * 1024));
    log.append(large.clone());
    assert_eq!(log.newest(), visible);
    assert_eq!(bodies(&log).len() as u64, visible, "what was committed can still be read");
    let refused = journal.create_session(&record("b")).await;
    assert!(matches!(refused, Err(JournalError::Refused(_))), "{refused:?}");
    let claimed = journal.claim(Principal::ANN, "key", "hash").await;
    assert!(matches!(claimed, Err(JournalError::Refused(_))), "{claimed:?}");

    disk.empty();
    tokio::time::timeout(PATIENCE, log.flushed()).await.unwrap();
    journal.healthy().unwrap();
    journal.create_session(&record("b")).await.unwrap();
    let found = bodies(&log);
    assert_eq!((found.len() as u64, found.last()), (appended + 1, Some(&large)));
    journal.close();
    let journal = Journal::open(disk.path()).unwrap();
    assert_eq!(bodies(&journal.log(session.id).unwrap()).len() as u64, appended + 1);
    assert_eq!(journal.sessions().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_on_a_full_disk_gives_up_and_keeps_what_was_committed() {
    let Some(disk) = SmallDisk::mount() else { return };
    let journal = Journal::open(disk.path()).unwrap();
    let session = SessionId::fresh();
    let log = journal.log(session).unwrap();
    disk.fill();
    append_until_refused(&journal, &log);
    let visible = log.newest();
    let closing = Instant::now();
    journal.close();
    assert!(closing.elapsed() < Duration::from_secs(5));
    log.flushed().await;
    assert!(log.is_closed() && log.lag() > 0);
    disk.empty();
    let log = Journal::open(disk.path()).unwrap().log(session).unwrap();
    assert_eq!((log.newest(), bodies(&log).len() as u64), (visible, visible));
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_finds_no_room_is_counted_and_later_output_is_kept() {
    let Some(disk) = SmallDisk::mount() else { return };
    let journal = Journal::open(disk.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let spill = Spill::open(log.spill_folder(), u64::MAX).unwrap();
    let recorder = Recorder::new(Arc::clone(&log), spill, OutputCaps { head: 9, tail: 9 });
    recorder.begin(1);
    let write = |data: &[u8]| {
        recorder.output(&OutputFrame { stream: Stream::Stdout, cell: Some(1), data }, 0);
        recorder.flush();
    };
    write(b"before ");
    disk.fill();
    write(&vec![b'x'; 60_000]);
    disk.empty();
    write(b"after");
    let record = recorder.finish(1);
    tokio::time::timeout(PATIENCE, log.flushed()).await.unwrap();
    let texts: Vec<_> = bodies(&log)
        .into_iter()
        .map(|body| match body {
            EventBody::Output { text, .. } => text,
            other => other.name().to_owned(),
        })
        .collect();
    assert_eq!(
        (texts, record.dropped_bytes),
        (vec!["before ".into(), "output_cut".into(), "after".into()], 60_000)
    );
}

#[tokio::test]
async fn a_writer_that_died_is_not_taken_for_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let dies = |_: &Connection, _: &Blobs| -> Result<(), WriteError> { panic!("as often as it is tried") };
    let failed = journal.core.queue.write(Durability::Normal, OnRefusal::Wait, dies).await;
    assert!(matches!(failed, Err(JournalError::Failed)), "{failed:?}");
    log.append(created("a"));
    assert!(!log.is_flushed().await);
    for problem in [Problem::from(journal.healthy().unwrap_err()), log.unwritten("it was not done")] {
        assert_eq!(problem.code, Code::ShuttingDown);
        assert!(problem.message.contains("died") && !problem.hint.unwrap().contains("space"));
    }
}

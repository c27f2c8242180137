use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::store::blobs::Blobs;
use crate::store::schema::OpenError;

/// Every file of the journal that has content, with its hash. The index of the write-ahead log is left out: it holds no
/// data, and every process that opens the file rebuilds it.
fn hashes(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_file() && entry.file_name() != "journal.db-shm")
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .filter(|(_, bytes)| !bytes.is_empty())
        .map(|(name, bytes)| (name, Blobs::name(&bytes)))
        .collect();
    files.sort();
    files
}

fn refusal(folder: &Path) -> OpenError {
    let before = hashes(folder);
    let error = Journal::open(folder).map(drop).unwrap_err();
    assert_eq!(before, hashes(folder), "a refused journal is not touched");
    let text = error.to_string();
    assert!(text.contains("journal.db") && text.contains("hint: "), "{text}");
    error
}

#[test]
fn the_file_is_for_the_daemon_alone() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.log(SessionId::fresh()).unwrap().append(EventBody::Reset);
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    journal.close();
    let logged = std::fs::metadata(folder.path().join("journal.db-wal")).map_or(0, |file| file.len());
    assert_eq!(logged, 0, "closing folds the write-ahead log into the file");
}

#[test]
fn a_newer_journal_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    drop(Journal::open(folder.path()).unwrap());
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    file.pragma_update(None, "user_version", 99).unwrap();
    drop(file);
    assert!(matches!(refusal(folder.path()), OpenError::Newer { found: 99, .. }));
}

#[test]
fn a_newer_journal_is_known_also_from_its_write_ahead_log() {
    let folder = tempfile::tempdir().unwrap();
    drop(Journal::open(folder.path()).unwrap());
    let crashed = tempfile::tempdir().unwrap();
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    file.pragma_update(None, "user_version", 99).unwrap();
    // This is the state that a dead daemon leaves: the new number is only in the write-ahead log.
    for name in ["journal.db", "journal.db-wal"] {
        std::fs::copy(folder.path().join(name), crashed.path().join(name)).unwrap();
    }
    assert!(matches!(refusal(crashed.path()), OpenError::Newer { found: 99, .. }));
}

#[test]
fn a_damaged_journal_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    std::fs::write(&path, b"not a database at all").unwrap();
    assert!(matches!(refusal(folder.path()), OpenError::Corrupt { .. }));

    std::fs::write(&path, [b'x'; 8192]).unwrap();
    assert!(matches!(refusal(folder.path()), OpenError::Corrupt { .. }));

    std::fs::remove_file(&path).unwrap();
    let log = Journal::open(folder.path()).unwrap().log(SessionId::fresh()).unwrap();
    append(&log, 500);
    drop(log);
    let mut bytes = std::fs::read(&path).unwrap();
    let half = bytes.len() / 2;
    bytes.get_mut(half..half + 8192).unwrap().fill(0xAA);
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(refusal(folder.path()), OpenError::Corrupt { .. }));

    bytes.truncate(half);
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(refusal(folder.path()), OpenError::Corrupt { .. }));
}

#[test]
fn a_place_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Journal::open(&folder.path().join("not there")).map(drop).unwrap_err();
    assert!(
        matches!(&error, OpenError::Unusable { .. }) && error.to_string().contains("not there/journal.db")
    );
}

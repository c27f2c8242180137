//! Snapshots that were written when everything in them was named by its SHA-256.

use super::*;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Makes of a snapshot what an earlier daemon would have written.
fn as_of_first_format(scene: &Scene, record: &SnapshotRecord) -> SnapshotRecord {
    let path = scene.folder().join(format!("{}.json", record.id));
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["format"] = 1.into();
    // In the order of the snapshot, as its sections follow each other without a gap.
    let content = scene.read(record).unwrap().concat();
    let (mut at, chunks) = (0, scene.folder().join("chunks"));
    for chunk in manifest["chunks"].as_array_mut().unwrap() {
        let length = usize::try_from(chunk["bytes"].as_u64().unwrap()).unwrap();
        let name = sha256(&content[at..at + length]);
        at += length;
        let before = chunk.as_object_mut().unwrap().remove("blake3").unwrap();
        let from = chunks.join(before.as_str().unwrap());
        if from.exists() {
            std::fs::rename(from, chunks.join(&name)).unwrap();
        }
        chunk["sha256"] = name.into();
    }
    assert_eq!(at, content.len());
    let text = manifest.to_string();
    let digest = sha256(text.as_bytes());
    std::fs::remove_file(path).unwrap();
    let id = digest[..16].to_owned();
    std::fs::write(scene.folder().join(format!("{id}.json")), text).unwrap();
    SnapshotRecord { id, digest, ..record.clone() }
}

#[test]
fn a_snapshot_of_an_earlier_daemon_is_read_listed_copied_and_given_back() {
    let scene = Scene::new();
    let sections = some_sections();
    let record = as_of_first_format(&scene, &scene.take(&sections, "1"));
    assert_eq!(scene.store.list(scene.session).unwrap(), std::slice::from_ref(&record));
    assert_eq!(scene.read(&record).unwrap(), sections);

    let (branch, purse) = (SessionId::fresh(), Purse::with(u64::MAX));
    let held = scene.store.hold(scene.session, &record).unwrap();
    for _ in 0..2 {
        assert_eq!(scene.store.copy(&held, branch, NO_LIMITS, purse.clone()).unwrap(), record);
    }
    assert_eq!(purse.taken(), scene.store.stored_bytes(branch).unwrap());
    assert_eq!(read(scene.store.read(branch, &record.id, &record.digest).unwrap()).unwrap(), sections);

    // The next one has names of its own for the same bytes, and the room of the first one is given back.
    drop(held);
    let next = scene.take(&sections, "2");
    assert_ne!(next.id, record.id);
    scene.purse.give(scene.store.remove(scene.session, &record.id).unwrap());
    assert_eq!(scene.purse.taken(), scene.store.stored_bytes(scene.session).unwrap());
    assert_eq!(scene.read(&next).unwrap(), sections);
}

#[test]
fn what_was_changed_of_a_snapshot_of_an_earlier_daemon_is_refused() {
    let scene = Scene::new();
    let record = as_of_first_format(&scene, &scene.take(&some_sections(), "1"));
    for path in scene.chunks() {
        let mut stored = std::fs::read(&path).unwrap();
        *stored.last_mut().unwrap() ^= 1;
        std::fs::write(&path, stored).unwrap();
    }
    assert!(matches!(scene.read(&record), Err(SnapshotError::Damaged { .. })));
    let path = scene.folder().join(format!("{}.json", record.id));
    let mut text = std::fs::read(&path).unwrap();
    text.push(b' ');
    std::fs::write(&path, text).unwrap();
    assert!(matches!(scene.read(&record), Err(SnapshotError::Damaged { .. })));
    assert!(scene.store.list(scene.session).unwrap().is_empty());
}

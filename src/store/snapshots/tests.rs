//! Snapshots that are written, read, edited, copied, removed and given up half-way.

mod accounts;
mod first_format;
mod unread;

use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    SnapshotAbout, SnapshotCharge, SnapshotError, SnapshotLimits, SnapshotPiece, SnapshotReader,
    SnapshotStore, SnapshotWriter,
};
use crate::protocol::ids::SessionId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::snapshot::{SNAPSHOT_FORMAT, SnapshotManifest, SnapshotRecord};

const NO_LIMITS: SnapshotLimits = SnapshotLimits { bytes: u64::MAX, stored_bytes: u64::MAX };

/// The books of a user who may have so many bytes.
struct Purse {
    room: u64,
    taken: Mutex<u64>,
}

impl Purse {
    fn with(room: u64) -> Arc<Self> {
        Arc::new(Self { room, taken: Mutex::new(0) })
    }

    fn taken(&self) -> u64 {
        *self.taken.lock()
    }
}

impl SnapshotCharge for Purse {
    fn take(&self, bytes: u64) -> Result<(), Problem> {
        let mut taken = self.taken.lock();
        if *taken + bytes > self.room {
            return Err(Problem::new(Code::QuotaExceeded, "no room"));
        }
        *taken += bytes;
        Ok(())
    }

    fn give(&self, bytes: u64) {
        let mut taken = self.taken.lock();
        *taken = taken.checked_sub(bytes).expect("no more is given back than was taken");
    }
}

/// A store in a home of its own, with one session.
struct Scene {
    home: tempfile::TempDir,
    store: SnapshotStore,
    session: SessionId,
    purse: Arc<Purse>,
}

impl Scene {
    fn new() -> Self {
        Self::with_room(u64::MAX)
    }

    fn with_room(room: u64) -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = SnapshotStore::open(home.path()).unwrap();
        Self { home, store, session: SessionId::fresh(), purse: Purse::with(room) }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("snapshots").join(self.session.to_string())
    }

    fn writer(&self) -> Result<SnapshotWriter, SnapshotError> {
        self.store.writer(self.session, NO_LIMITS, self.purse.clone())
    }

    /// Takes a snapshot of these sections.
    fn take(&self, sections: &[Vec<u8>], at: &str) -> SnapshotRecord {
        let mut writer = self.writer().unwrap();
        write(&mut writer, sections).unwrap();
        writer.finish(about(sections, at)).unwrap()
    }

    fn read(&self, record: &SnapshotRecord) -> Result<Vec<Vec<u8>>, SnapshotError> {
        read(self.store.read(self.session, &record.id, &record.digest)?)
    }

    fn chunks(&self) -> Vec<PathBuf> {
        files_in(&self.folder().join("chunks"))
    }

    /// The next daemon, after this one was killed.
    fn restarted(&self) -> SnapshotStore {
        let store = SnapshotStore::open(self.home.path()).unwrap();
        store.sweep(&HashSet::from([self.session])).unwrap();
        store
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
}

fn write(writer: &mut SnapshotWriter, sections: &[Vec<u8>]) -> Result<(), SnapshotError> {
    for section in sections {
        for piece in section.chunks(300_000) {
            writer.piece(piece)?;
        }
        writer.end_section()?;
    }
    Ok(())
}

fn read(mut reader: SnapshotReader) -> Result<Vec<Vec<u8>>, SnapshotError> {
    let (mut sections, mut section) = (Vec::new(), Vec::new());
    while let Some(piece) = reader.next_piece()? {
        match piece {
            SnapshotPiece::Bytes(bytes) => section.extend(bytes),
            SnapshotPiece::SectionEnd => sections.push(std::mem::take(&mut section)),
        }
    }
    assert!(section.is_empty(), "each section has an end");
    Ok(sections)
}

fn about(sections: &[Vec<u8>], at: &str) -> SnapshotAbout {
    SnapshotAbout {
        cell: 3,
        python: "3.13.5".into(),
        image: "sha256:1234".into(),
        manifest: SnapshotManifest {
            format: SNAPSHOT_FORMAT,
            python: "3.13.5".into(),
            variables: 2,
            missing: Vec::new(),
            files: Vec::new(),
            sections: u32::try_from(sections.len()).unwrap(),
            bytes: sections.iter().map(|section| section.len() as u64).sum(),
            modules: 0,
        },
        name: None,
        packages: None,
        at: at.into(),
    }
}

/// Bytes that cannot be compressed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

fn some_sections() -> Vec<Vec<u8>> {
    vec![b"a pickle".repeat(2000), noise(1, 2_000_000), Vec::new(), vec![0; 3_000_000], noise(2, 10)]
}

#[test]
fn what_is_written_comes_back_section_by_section_and_is_paid_for() {
    let scene = Scene::new();
    let sections = some_sections();
    let record = scene.take(&sections, "2026-01-01");
    assert_eq!(scene.read(&record).unwrap(), sections);
    assert_eq!(scene.purse.taken(), scene.store.stored_bytes(scene.session).unwrap());
    assert_eq!((record.bytes, record.cell, record.new_bytes), (5_016_010, 3, record.stored_bytes));
    assert!((2_000_000..2_300_000).contains(&record.stored_bytes), "{}", record.stored_bytes);
    assert!(record.digest.starts_with(&record.id) && record.id.len() == 16);
    assert_eq!(scene.store.list(scene.session).unwrap(), [record]);
}

#[test]
fn a_small_change_costs_little() {
    let scene = Scene::new();
    let mut sections = vec![noise(1, 8_000_000)];
    let first = scene.take(&sections, "1");
    sections[0][4_000_000] ^= 1;
    let second = scene.take(&sections, "2");
    assert!(second.new_bytes * 4 < first.new_bytes, "{} of {}", second.new_bytes, first.new_bytes);
    let same = scene.take(&sections, "3");
    assert_eq!(same.new_bytes, 0);
    assert_eq!(scene.read(&second).unwrap(), sections);
    assert_eq!(scene.purse.taken(), scene.store.stored_bytes(scene.session).unwrap());
}

#[test]
fn only_the_daemon_can_read_what_lies_there() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new();
    scene.take(&some_sections(), "1");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let folder = scene.folder();
    for private in [folder.parent().unwrap(), &folder, &folder.join("chunks")] {
        assert_eq!(mode(private), 0o700, "{}", private.display());
    }
    for file in scene.chunks().iter().chain(&files_in(&folder)) {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_chunk_that_was_changed_is_refused_before_a_byte_of_it_is_given_out() {
    let scene = Scene::new();
    let sections = vec![noise(1, 3_000_000)];
    let record = scene.take(&sections, "1");
    let edits: [fn(&Path); 5] = [
        |path| {
            let mut bytes = std::fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(path, bytes).unwrap();
        },
        |path| {
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        },
        |path| {
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, [bytes, vec![0; 4 << 20]].concat()).unwrap();
        },
        |path| std::fs::write(path, [7; 100]).unwrap(),
        |path| std::fs::remove_file(path).unwrap(),
    ];
    for edit in edits {
        for chunk in scene.chunks() {
            edit(&chunk);
        }
        let mut reader = scene.store.read(scene.session, &record.id, &record.digest).unwrap();
        let refused = reader.next_piece();
        assert!(
            matches!(&refused, Err(SnapshotError::Damaged { id, .. }) if *id == record.id),
            "{refused:?}"
        );
        drop(reader);
        // What was damaged and noticed is written again by the next snapshot that has it.
        for chunk in scene.chunks() {
            std::fs::remove_file(chunk).unwrap();
        }
        scene.take(&sections, "2");
        assert_eq!(scene.read(&record).unwrap(), sections);
    }
}

#[test]
fn a_list_of_chunks_that_was_changed_is_refused() {
    let scene = Scene::new();
    let record = scene.take(&some_sections(), "1");
    let path = scene.folder().join(format!("{}.json", record.id));
    let text = std::fs::read_to_string(&path).unwrap();
    for edited in [text.replace("\"cell\":3", "\"cell\":4"), format!("{text} "), "{}".into(), String::new()] {
        std::fs::write(&path, edited).unwrap();
        assert!(matches!(scene.read(&record), Err(SnapshotError::Damaged { .. })));
        assert!(scene.store.list(scene.session).unwrap().is_empty());
    }
    std::fs::write(&path, text).unwrap();
    assert!(scene.read(&record).is_ok());
    // The right file under the digest of another one.
    let other = SnapshotRecord { digest: "0".repeat(64), ..record.clone() };
    assert!(matches!(scene.read(&other), Err(SnapshotError::Damaged { .. })));
    for id in ["", "../../etc", "0123456789abcdeF", "0000000000000000"] {
        let missing = scene.store.read(scene.session, id, &record.digest);
        assert!(matches!(missing, Err(SnapshotError::NoSuch(_))), "{id}");
    }
}

#[test]
fn a_sender_that_lies_about_what_it_sent_is_refused_and_leaves_nothing() {
    let scene = Scene::new();
    let sections = some_sections();
    let lies: [fn(&mut SnapshotManifest); 4] =
        [|said| said.bytes += 1, |said| said.bytes = 0, |said| said.sections -= 1, |said| said.format += 1];
    for lie in lies {
        let mut writer = scene.writer().unwrap();
        write(&mut writer, &sections).unwrap();
        let mut about = about(&sections, "1");
        lie(&mut about.manifest);
        assert!(matches!(writer.finish(about), Err(SnapshotError::Untrue(_))));
        assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
    }
    let mut writer = scene.writer().unwrap();
    write(&mut writer, &sections).unwrap();
    writer.piece(b"of a section without an end").unwrap();
    assert!(matches!(writer.finish(about(&sections, "1")), Err(SnapshotError::Untrue(_))));
    assert_eq!(scene.store.stored_bytes(scene.session).unwrap(), 0);
}

#[test]
fn bytes_are_paid_for_before_they_are_written_and_given_back_with_the_snapshot() {
    let scene = Scene::with_room(1_500_000);
    let small = scene.take(&[noise(1, 500_000)], "1");
    let before = (scene.purse.taken(), scene.chunks().len());
    let mut writer = scene.writer().unwrap();
    let refused = write(&mut writer, &[noise(2, 3_000_000)]);
    assert!(matches!(refused, Err(SnapshotError::Refused(problem)) if problem.code == Code::QuotaExceeded));
    assert!(scene.store.stored_bytes(scene.session).unwrap() <= 1_500_000);
    drop(writer);
    assert_eq!((scene.purse.taken(), scene.chunks().len()), before);
    assert!(scene.read(&small).is_ok());
}

#[test]
fn a_snapshot_has_bounds_of_its_own() {
    let scene = Scene::new();
    let writer = |limits| scene.store.writer(scene.session, limits, scene.purse.clone()).unwrap();
    let mut first = writer(SnapshotLimits { bytes: 1000, stored_bytes: u64::MAX });
    first.piece(&[0; 1000]).unwrap();
    assert!(matches!(first.piece(&[0]), Err(SnapshotError::TooLarge { limit: 1000, .. })));
    drop(first);
    let mut second = writer(SnapshotLimits { bytes: u64::MAX, stored_bytes: 1_000_000 });
    let refused = write(&mut second, &[noise(1, 4_000_000)]);
    assert!(matches!(refused, Err(SnapshotError::TooLarge { limit: 1_000_000, .. })));
    drop(second);
    let mut third = writer(NO_LIMITS);
    let many = (0..=super::limits::SECTIONS).try_for_each(|_| third.end_section());
    assert!(matches!(many, Err(SnapshotError::TooManySections(_))));
    drop(third);
    assert_eq!(scene.purse.taken(), 0);
}

#[test]
fn a_daemon_that_is_killed_at_any_step_leaves_what_was_there_and_nothing_half() {
    let scene = Scene::new();
    let kept = scene.take(&[noise(1, 1_000_000)], "1");
    let sections = [noise(1, 1_000_000), noise(2, 2_000_000), vec![0; 100]];
    let bytes = scene.store.stored_bytes(scene.session).unwrap();
    for steps in 0..8 {
        let store = scene.restarted();
        let mut writer = store.writer(scene.session, NO_LIMITS, scene.purse.clone()).unwrap();
        let mut left = steps;
        for section in &sections {
            for piece in section.chunks(700_000).take(left) {
                writer.piece(piece).unwrap();
                left -= 1;
            }
            if left > 0 {
                writer.end_section().unwrap();
            }
        }
        // A file of which only a part was written.
        std::fs::write(scene.folder().join("chunks/.abc.draft"), "half").unwrap();
        std::fs::write(scene.folder().join(".0123456789abcdef.json.draft"), "{").unwrap();
        // A process that is killed drops nothing, and nothing of it goes on.
        writer.end_thread();
        std::mem::forget(writer);
        let store = scene.restarted();
        assert_eq!(store.list(scene.session).unwrap(), std::slice::from_ref(&kept), "after {steps} steps");
        assert_eq!(store.stored_bytes(scene.session).unwrap(), bytes, "after {steps} steps");
        assert_eq!(files_in(&scene.folder()).len(), 1, "after {steps} steps");
        assert!(read(store.read(scene.session, &kept.id, &kept.digest).unwrap()).is_ok());
    }
}

#[test]
fn a_snapshot_that_is_given_up_takes_back_what_it_brought() {
    let scene = Scene::new();
    let kept = scene.take(&[noise(1, 1_000_000)], "1");
    let before = (scene.purse.taken(), scene.chunks().len());
    let mut writer = scene.writer().unwrap();
    write(&mut writer, &[noise(1, 1_000_000), noise(2, 2_000_000)]).unwrap();
    assert!(scene.purse.taken() > before.0);
    assert!(matches!(scene.writer().map(drop), Err(SnapshotError::Busy)));
    drop(writer);
    assert_eq!((scene.purse.taken(), scene.chunks().len()), before);
    assert!(scene.read(&kept).is_ok());
    assert!(scene.writer().is_ok(), "the next one can be written");
}

#[test]
fn chunks_go_with_the_last_snapshot_that_has_them() {
    let scene = Scene::new();
    let shared = noise(1, 2_000_000);
    let [first, second, third] =
        [2, 3, 4].map(|seed| scene.take(&[shared.clone(), noise(seed, 500_000)], &seed.to_string()));
    scene.purse.give(scene.store.remove(scene.session, &first.id).unwrap());
    assert!(matches!(scene.read(&first), Err(SnapshotError::NoSuch(_))));
    assert!(matches!(scene.store.remove(scene.session, &first.id), Err(SnapshotError::NoSuch(_))));
    assert!(scene.read(&second).is_ok() && scene.read(&third).is_ok());
    scene.purse.give(scene.store.keep_only(scene.session, std::slice::from_ref(&third.id)).unwrap());
    assert_eq!(scene.store.list(scene.session).unwrap(), std::slice::from_ref(&third));
    assert!(scene.read(&third).is_ok());
    assert_eq!(scene.purse.taken(), scene.store.stored_bytes(scene.session).unwrap());
    scene.purse.give(scene.store.remove_session(scene.session).unwrap());
    assert_eq!(scene.purse.taken(), 0);
    assert!(!scene.folder().exists());
}

#[test]
fn what_is_being_read_or_referred_to_stays() {
    let scene = Scene::new();
    let sections = vec![noise(1, 2_000_000)];
    let first = scene.take(&sections, "1");
    let reader = scene.store.read(scene.session, &first.id, &first.digest).unwrap();
    scene.purse.give(scene.store.remove(scene.session, &first.id).unwrap());
    assert_eq!(read(reader).unwrap(), sections);

    let first = scene.take(&sections, "2");
    let mut writer = scene.writer().unwrap();
    write(&mut writer, &sections).unwrap();
    scene.purse.give(scene.store.keep_only(scene.session, &[]).unwrap());
    let second = writer.finish(about(&sections, "3")).unwrap();
    assert!(matches!(scene.read(&first), Err(SnapshotError::NoSuch(_))));
    assert_eq!(scene.read(&second).unwrap(), sections);
    scene.purse.give(scene.store.keep_only(scene.session, &[]).unwrap());
    assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
}

#[test]
fn a_session_that_is_removed_while_its_snapshot_is_written_leaves_nothing() {
    let scene = Scene::new();
    scene.take(&[noise(1, 1_000_000)], "1");
    let mut writer = scene.writer().unwrap();
    write(&mut writer, &[noise(2, 1_000_000)]).unwrap();
    scene.purse.give(scene.store.remove_session(scene.session).unwrap());
    assert!(matches!(write(&mut writer, &[noise(3, 3_000_000)]), Err(SnapshotError::SessionGone)));
    drop(writer);
    assert_eq!(scene.purse.taken(), 0);
    assert_eq!(std::fs::read_dir(scene.home.path().join("snapshots")).unwrap().count(), 0);
}

#[test]
fn a_copy_belongs_to_the_other_session_alone() {
    let scene = Scene::new();
    let sections = some_sections();
    let record = scene.take(&sections, "1");
    let (branch, purse) = (SessionId::fresh(), Purse::with(u64::MAX));
    let held = scene.store.hold(scene.session, &record).unwrap();
    let copy = || scene.store.copy(&held, branch, NO_LIMITS, purse.clone());
    assert_eq!(copy().unwrap(), record);
    assert_eq!(copy().unwrap(), record, "twice is once");
    assert_eq!(purse.taken(), scene.store.stored_bytes(branch).unwrap());
    assert_eq!(purse.taken(), scene.purse.taken());
    scene.store.remove_session(scene.session).unwrap();
    let reader = scene.store.read(branch, &record.id, &record.digest).unwrap();
    assert_eq!(read(reader).unwrap(), sections);

    let poor = Purse::with(100_000);
    let held = scene.store.hold(branch, &record).unwrap();
    let refused = scene.store.copy(&held, SessionId::fresh(), NO_LIMITS, poor.clone());
    assert!(matches!(refused, Err(SnapshotError::Refused(_))));
    assert_eq!(poor.taken(), 0);
}

#[test]
fn what_is_held_is_copied_also_if_it_is_removed_meanwhile() {
    let scene = Scene::new();
    let sections = some_sections();
    let record = scene.take(&sections, "1");
    let held = scene.store.hold(scene.session, &record).unwrap();
    scene.purse.give(scene.store.remove(scene.session, &record.id).unwrap());
    assert!(matches!(scene.store.hold(scene.session, &record), Err(SnapshotError::NoSuch(_))));
    for branch in [SessionId::fresh(), SessionId::fresh()] {
        let copied = scene.store.copy(&held, branch, NO_LIMITS, Purse::with(u64::MAX)).unwrap();
        assert_eq!(copied, record);
        let reader = scene.store.read(branch, &record.id, &record.digest).unwrap();
        assert_eq!(read(reader).unwrap(), sections);
    }
    drop(held);
    scene.purse.give(scene.store.keep_only(scene.session, &[]).unwrap());
    assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
}

#[test]
fn a_start_removes_what_belongs_to_no_session() {
    let scene = Scene::new();
    let record = scene.take(&some_sections(), "1");
    let gone = scene.store.writer(SessionId::fresh(), NO_LIMITS, scene.purse.clone()).unwrap();
    std::mem::forget(gone);
    std::fs::write(scene.home.path().join("snapshots/note"), "x").unwrap();
    let store = SnapshotStore::open(scene.home.path()).unwrap();
    assert_eq!(store.sweep(&HashSet::from([scene.session])).unwrap().sessions, 2);
    assert_eq!(store.list(scene.session).unwrap(), [record]);
    assert_eq!(store.sweep(&HashSet::new()).unwrap().sessions, 1);
    assert_eq!(std::fs::read_dir(scene.home.path().join("snapshots")).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn whatever_is_written_is_read_back(
        sections in prop::collection::vec((any::<u64>(), 0_usize..400_000, 1_usize..4), 0..6)
    ) {
        let scene = Scene::new();
        let made: Vec<Vec<u8>> =
            sections.iter().map(|(seed, length, times)| noise(*seed, *length).repeat(*times)).collect();
        let record = scene.take(&made, "1");
        prop_assert_eq!(scene.read(&record).unwrap(), made);
        prop_assert_eq!(scene.purse.taken(), scene.store.stored_bytes(scene.session).unwrap());
    }
}

//! Chunks that cannot be read: for a failure that passes nothing is forgotten, and for damage nothing is loaded.

use super::*;
use crate::store::snapshots::chunks::ChunkError;
use rustix::fs::{CWD, FileType, mknodat};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn only_a_file_that_is_gone_or_is_none_is_damage() {
    let of = |number| ChunkError::from(std::io::Error::from_raw_os_error(number)).of_snapshot("0123");
    for damage in [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::ENXIO, libc::ENODEV] {
        assert!(of(damage).is_lasting(), "{damage}");
    }
    let passing =
        [libc::EACCES, libc::EPERM, libc::EIO, libc::EMFILE, libc::ENOSPC, libc::EDQUOT, libc::ENOMEM];
    for passing in passing {
        assert!(matches!(of(passing), SnapshotError::Unread { .. }), "{passing}");
        assert_eq!(Problem::from(of(passing)).code, Code::Storage, "{passing}");
    }
}

/// What may be in the place of a file: a folder with something in it, links, a pipe and a socket.
const OTHERS: [fn(&Path); 5] = [
    |path| {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("note"), "x").unwrap();
    },
    |path| std::os::unix::fs::symlink("/dev/null", path).unwrap(),
    |path| {
        // A link to exactly what was there.
        let aside = path.with_extension("aside");
        std::os::unix::fs::symlink(aside, path).unwrap();
    },
    |path| mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap(),
    |path| {
        // The path is longer than a socket address allows, and that of its folder's descriptor is not.
        let folder = std::fs::File::open(path.parent().unwrap()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let short = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
        drop(std::os::unix::net::UnixListener::bind(short).unwrap());
    },
];

/// Puts something else in the place of a file, which is moved aside.
fn replace(path: &Path, other: fn(&Path)) {
    std::fs::rename(path, path.with_extension("aside")).unwrap();
    other(path);
}

fn is_damaged<T>(outcome: Result<T, SnapshotError>, record: &SnapshotRecord) -> bool {
    matches!(outcome, Err(SnapshotError::Damaged { id, .. }) if id == record.id)
}

#[test]
fn something_else_in_the_place_of_a_chunk_is_damage_that_the_next_snapshot_mends() {
    for other in OTHERS {
        let scene = Scene::new();
        let sections = vec![noise(1, 1_000_000)];
        let record = scene.take(&sections, "1");
        for chunk in scene.chunks() {
            replace(&chunk, other);
        }
        assert!(is_damaged(scene.read(&record), &record));
        scene.take(&sections, "2");
        assert_eq!(scene.read(&record).unwrap(), sections);
    }
}

#[test]
fn something_else_in_the_place_of_a_list_is_damage_and_can_be_removed() {
    for other in OTHERS {
        let scene = Scene::new();
        let record = scene.take(&[noise(1, 1_000_000)], "1");
        let list = scene.folder().join(format!("{}.json", record.id));
        replace(&list, other);
        assert!(is_damaged(scene.read(&record), &record));
        assert!(is_damaged(scene.store.hold(scene.session, &record), &record));
        assert!(scene.store.list(scene.session).unwrap().is_empty());
        scene.purse.give(scene.store.remove(scene.session, &record.id).unwrap());
        assert!(matches!(scene.read(&record), Err(SnapshotError::NoSuch(_))));
        assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
    }
}

#[test]
fn something_else_in_the_place_of_a_chunk_is_not_copied() {
    for other in OTHERS {
        let scene = Scene::new();
        let record = scene.take(&[noise(1, 1_000_000)], "1");
        let held = scene.store.hold(scene.session, &record).unwrap();
        for chunk in scene.chunks() {
            replace(&chunk, other);
        }
        let (branch, purse) = (SessionId::fresh(), Purse::with(u64::MAX));
        assert!(is_damaged(scene.store.copy(&held, branch, NO_LIMITS, purse.clone()), &record));
        assert_eq!((purse.taken(), scene.store.stored_bytes(branch).unwrap()), (0, 0));
    }
}

/// The chunk is good: who forgot it would lose the variables for a moment's failure.
#[test]
fn a_chunk_that_may_not_be_read_at_the_moment_stays_and_is_read_later() {
    let scene = Scene::new();
    let sections = vec![noise(1, 3_000_000)];
    let record = scene.take(&sections, "1");
    let chunks = scene.chunks();
    let set_mode = |mode| {
        for chunk in &chunks {
            std::fs::set_permissions(chunk, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    set_mode(0);
    if std::fs::File::open(&chunks[0]).is_ok() {
        eprintln!("NOT RUN: the superuser may read everything");
        return;
    }
    assert!(matches!(scene.read(&record), Err(SnapshotError::Unread { .. })));
    set_mode(0o600);
    assert_eq!(scene.chunks().len(), chunks.len());
    assert_eq!(scene.read(&record).unwrap(), sections);
}

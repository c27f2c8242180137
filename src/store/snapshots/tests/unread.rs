//! Chunks that cannot be read: for a failure that passes nothing is forgotten, and for damage nothing is loaded.

use super::*;
use crate::store::snapshots::chunks::ChunkError;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn only_a_file_that_is_gone_or_is_none_is_damage() {
    let of = |number| ChunkError::from(std::io::Error::from_raw_os_error(number)).of_snapshot("0123");
    for damage in [libc::ENOENT, libc::ENOTDIR, libc::ELOOP] {
        assert!(of(damage).is_lasting(), "{damage}");
    }
    let passing =
        [libc::EACCES, libc::EPERM, libc::EIO, libc::EMFILE, libc::ENOSPC, libc::EDQUOT, libc::ENOMEM];
    for passing in passing {
        assert!(matches!(of(passing), SnapshotError::Unread { .. }), "{passing}");
        assert_eq!(Problem::from(of(passing)).code, Code::Storage, "{passing}");
    }
}

#[test]
fn something_else_under_the_name_of_a_chunk_is_damage() {
    let replaced: [fn(&Path); 2] = [
        |path| std::fs::create_dir(path).unwrap(),
        |path| std::os::unix::fs::symlink("/dev/null", path).unwrap(),
    ];
    for replace in replaced {
        let scene = Scene::new();
        let record = scene.take(&[noise(1, 1_000_000)], "1");
        for chunk in scene.chunks() {
            std::fs::remove_file(&chunk).unwrap();
            replace(&chunk);
        }
        assert!(matches!(scene.read(&record), Err(SnapshotError::Damaged { .. })));
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
        // The superuser may read everything.
        return;
    }
    assert!(matches!(scene.read(&record), Err(SnapshotError::Unread { .. })));
    set_mode(0o600);
    assert_eq!(scene.chunks().len(), chunks.len());
    assert_eq!(scene.read(&record).unwrap(), sections);
}

//! What owners get back: as much as they were charged, whatever became of the files on the disk meanwhile.

use super::*;

fn set_length(path: &Path, length: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

const EDITS: [fn(&Path); 3] = [
    |path| set_length(path, 8 << 20),
    |path| set_length(path, 2),
    |path| std::fs::remove_file(path).unwrap(),
];

#[test]
fn what_was_charged_is_given_back_whatever_the_length_of_the_files_is() {
    for edit in EDITS {
        let scene = Scene::new();
        let first = scene.take(&[noise(1, 1_000_000)], "1");
        let of_first = scene.chunks();
        let charged_for_first = scene.purse.taken();
        let second = scene.take(&[noise(2, 1_000_000)], "2");
        let charged_for_second = scene.purse.taken() - charged_for_first;
        for chunk in &of_first {
            edit(chunk);
        }
        scene.purse.give(scene.store.remove(scene.session, &first.id).unwrap());
        assert_eq!(scene.purse.taken(), charged_for_second);
        scene.purse.give(scene.store.remove(scene.session, &second.id).unwrap());
        assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
    }
}

#[test]
fn chunks_that_were_noticed_to_be_damaged_are_given_back_and_charged_again_with_the_next_snapshot() {
    for edit in EDITS {
        let scene = Scene::new();
        let sections = vec![noise(1, 1_000_000)];
        let first = scene.take(&sections, "1");
        for chunk in scene.chunks() {
            edit(&chunk);
        }
        assert!(matches!(scene.read(&first), Err(SnapshotError::Damaged { .. })));
        let second = scene.take(&sections, "2");
        let kept = std::slice::from_ref(&second.id);
        scene.purse.give(scene.store.keep_only(scene.session, kept).unwrap());
        scene.purse.give(scene.store.keep_only(scene.session, &[]).unwrap());
        assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
    }
}

#[test]
fn the_file_of_a_snapshot_costs_what_it_was_charged_for_as_well() {
    for edit in &EDITS[..2] {
        let scene = Scene::new();
        let kept = scene.take(&[noise(1, 1_000_000)], "1");
        let charged = scene.purse.taken();
        let edited = scene.take(&[noise(2, 1_000_000)], "2");
        edit(&scene.folder().join(format!("{}.json", edited.id)));
        scene.purse.give(scene.store.remove(scene.session, &edited.id).unwrap());
        assert_eq!(scene.purse.taken(), charged);
        scene.purse.give(scene.store.remove(scene.session, &kept.id).unwrap());
        assert_eq!((scene.purse.taken(), scene.chunks().len()), (0, 0));
    }
}

#[test]
fn a_session_that_is_removed_gives_all_back_but_what_is_being_written() {
    for edit in EDITS {
        let scene = Scene::new();
        scene.take(&[noise(1, 1_000_000)], "1");
        let charged = scene.purse.taken();
        for chunk in scene.chunks() {
            edit(&chunk);
        }
        let mut writer = scene.writer().unwrap();
        write(&mut writer, &[noise(2, 3_000_000)]).unwrap();
        assert!(scene.purse.taken() > charged);
        assert_eq!(scene.store.remove_session(scene.session).unwrap(), charged);
        scene.purse.give(charged);
        drop(writer);
        assert_eq!(scene.purse.taken(), 0);
    }
}

/// What is being written is charged by its writer, and nothing of it is given back with something else.
#[test]
fn a_removal_beside_a_snapshot_that_is_being_written_gives_back_only_what_is_removed() {
    let scene = Scene::new();
    let first = scene.take(&[noise(1, 1_000_000)], "1");
    let charged = scene.purse.taken();
    let sections = [noise(2, 3_000_000)];
    let mut writer = scene.writer().unwrap();
    write(&mut writer, &sections).unwrap();
    assert_eq!(scene.store.remove(scene.session, &first.id).unwrap(), charged);
    scene.purse.give(charged);
    let second = writer.finish(about(&sections, "2")).unwrap();
    assert_eq!(scene.purse.taken(), scene.store.stored_bytes(scene.session).unwrap());
    scene.purse.give(scene.store.remove(scene.session, &second.id).unwrap());
    assert_eq!(scene.purse.taken(), 0);
}

/// The next daemon charges what it finds, and gives no more of it back.
#[test]
fn the_next_daemon_gives_back_what_it_has_charged() {
    for edit in EDITS {
        let scene = Scene::new();
        let record = scene.take(&[noise(1, 1_000_000)], "1");
        for chunk in scene.chunks() {
            edit(&chunk);
        }
        let store = scene.restarted();
        let found = store.stored_bytes(scene.session).unwrap();
        assert_eq!(store.remove(scene.session, &record.id).unwrap(), found);
        assert_eq!(store.remove_session(scene.session).unwrap(), 0);
    }
}

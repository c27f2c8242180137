//! Archives of sessions: what is written is read again, and what was changed is refused.

use super::*;
use crate::protocol::api::NewSession;
use crate::protocol::branch::ArchivedSnapshot;
use crate::protocol::ids::SessionName;
use crate::protocol::packages::InstalledPackage;
use crate::protocol::saved_state::{BoundRules, RULE_NAMES};
use crate::protocol::snapshot::{SNAPSHOT_FORMAT, SnapshotManifest};
use crate::sandbox::workspace::attributes::Attributes;
use proptest::prelude::*;
use std::fs::{File, Permissions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn manifest(sections: u32, bytes: u64) -> ArchiveManifest {
    let snapshot = SnapshotManifest {
        format: SNAPSHOT_FORMAT,
        python: "3.13.5".to_owned(),
        variables: 2,
        missing: Vec::new(),
        files: Vec::new(),
        sections,
        bytes,
        modules: 0,
    };
    ArchiveManifest {
        format: ARCHIVE_FORMAT,
        belljar: "0".to_owned(),
        exported_at: "2026-01-01T00:00:00Z".to_owned(),
        session: SessionName::parse("a").unwrap(),
        request: NewSession::default(),
        image: None,
        python: Some("3.13.5".to_owned()),
        packages: vec!["pandas".to_owned()],
        installed: vec![InstalledPackage {
            name: "pandas".to_owned(),
            version: "2.1".to_owned(),
            sha256: "0".repeat(64),
        }],
        sources: true,
        cells: 3,
        snapshot: (sections > 0).then_some(ArchivedSnapshot { cell: 3, manifest: snapshot }),
        rules: BoundRules { approve: vec!["mail".to_owned()], ..BoundRules::default() },
        lacks: Vec::new(),
    }
}

fn written() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    std::fs::write(folder.path().join("d/file"), "content").unwrap();
    let top = File::open(folder.path()).unwrap();
    let mut writer = ArchiveWriter::begin(Vec::new(), &manifest(3, 1_500_003)).unwrap();
    writer.events(b"{\"seq\":1}\n").unwrap();
    writer.events(b"{\"seq\":2}\n").unwrap();
    writer.piece(b"abc").unwrap();
    writer.end_section().unwrap();
    writer.end_section().unwrap();
    writer.piece(&vec![7; 1_500_000]).unwrap();
    writer.end_section().unwrap();
    assert_eq!(writer.workspace(&Root::of_daemon(top.as_fd())).unwrap(), 0);
    writer.finish().unwrap()
}

/// What is known of a member without its attributes.
fn facts_of(kind: Kind) -> Facts {
    Facts { kind, attributes: Attributes::default() }
}

type Members = Vec<(Member, usize)>;

fn read_all(input: &[u8]) -> Result<(ArchiveManifest, Members), Problem> {
    let mut members = Vec::new();
    let manifest = read(input, &mut |_| Ok(()), |member, data| {
        let mut content = Vec::new();
        data.read_to_end(&mut content).map_err(archive::broken)?;
        let member = match member {
            Member::Workspace(path, facts) => Member::Workspace(path, facts_of(facts.kind)),
            other => other,
        };
        members.push((member, content.len()));
        Ok(())
    })?;
    Ok((manifest, members))
}

#[test]
fn what_is_written_is_read_again() {
    let (found, members) = read_all(&written()).unwrap();
    assert_eq!(found, manifest(3, 1_500_003));
    let piece = |section, bytes| (Member::Piece { section }, bytes);
    let file = |path: &str, kind, bytes| (Member::Workspace(PathBuf::from(path), facts_of(kind)), bytes);
    let wanted = [
        (Member::Events, 10),
        (Member::Events, 10),
        piece(0, 3),
        piece(1, 0),
        piece(2, RECORD_BYTES),
        piece(2, 1_500_000 - RECORD_BYTES),
        file("d", Kind::Folder, 0),
        file("d/file", Kind::File, 7),
    ];
    assert_eq!(members, wanted);
    let mut again = 0;
    read_again(&written()[..], |_, _| {
        again += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(again, wanted.len());
}

/// Whoever writes an archive chooses what its manifest takes in memory.
#[test]
fn the_manifest_is_charged_before_it_is_parsed() {
    let whole = written();
    let mut charged = Vec::new();
    let mut charge = |bytes| {
        charged.push(bytes);
        Ok(())
    };
    read(&whole[..], &mut charge, |_, _| Ok(())).unwrap();
    assert_eq!((charged.len(), charged[0]), (2, 2 * MANIFEST_BYTES), "{charged:?}");
    for refused in 0..2 {
        let mut calls = 0;
        let mut charge = |_| {
            calls += 1;
            if calls > refused { Err(Problem::new(Code::QuotaExceeded, "no room")) } else { Ok(()) }
        };
        let problem = read(&whole[..], &mut charge, |_, _| panic!("nothing of it is used")).unwrap_err();
        assert_eq!(problem.code, Code::QuotaExceeded, "{refused}");
    }
}

#[test]
fn an_archive_without_rules_or_with_too_many_is_refused() {
    let without = |change: fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let mut value = serde_json::to_value(manifest(0, 0)).unwrap();
        change(value.as_object_mut().unwrap());
        let text = value.to_string();
        parse_manifest(&mut text.as_bytes(), &mut |_| Ok(()))
    };
    without(|_| {}).unwrap();
    let refused = without(|manifest| drop(manifest.remove("rules"))).unwrap_err();
    assert!(refused.message.contains("`rules`"), "{refused}");
    let earlier = without(|manifest| {
        manifest.remove("rules");
        manifest.insert("format".to_owned(), 1.into());
    });
    let earlier = earlier.unwrap_err();
    assert!(earlier.message.contains("it has 1"), "{earlier}");
    assert!(earlier.hint.unwrap_or_default().contains("export the session again"));
    let many = |manifest: &mut serde_json::Map<String, serde_json::Value>| {
        manifest["rules"]["approve"] = vec!["x"; RULE_NAMES + 1].into();
    };
    assert_eq!(without(many).unwrap_err().code, Code::BadRequest);
}

#[test]
fn an_archive_of_before_the_versions_of_packages_is_read() {
    let mut value = serde_json::to_value(manifest(0, 0)).unwrap();
    let members = value.as_object_mut().unwrap();
    members.insert("format".to_owned(), OLDEST_ARCHIVE_FORMAT.into());
    members.retain(|name, _| !matches!(name.as_str(), "installed" | "sources"));
    let read = parse_manifest(&mut value.to_string().as_bytes(), &mut |_| Ok(())).unwrap();
    assert_eq!((read.packages, read.installed, read.sources), (vec!["pandas".to_owned()], Vec::new(), false));
}

#[test]
fn a_byte_that_was_changed_anywhere_is_noticed() {
    let whole = written();
    // A manifest, a name, a file's rights, padding, contents: everything before the digest.
    let end = whole.len() - 4 * HEADER;
    let (first, last) = (16 * HEADER, end - 16 * HEADER);
    for at in (0..first).step_by(61).chain((first..last).step_by(9_973)).chain((last..end).step_by(61)) {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert!(read_all(&changed).is_err(), "byte {at}");
    }
}

#[test]
fn an_archive_that_breaks_off_or_goes_on_is_refused() {
    let whole = written();
    for at in (0..whole.len() - 3 * HEADER).step_by(4 * HEADER) {
        assert!(read_all(&whole[..at]).is_err(), "{at}");
    }
    let mut twice = whole[..whole.len() - 2 * HEADER].to_vec();
    twice.extend_from_slice(&whole);
    assert!(read_all(&twice).is_err());
}

/// An archive with a true digest, as somebody may write it who knows the format.
fn forged(members: &[(&str, &[u8])], manifest: &ArchiveManifest) -> Vec<u8> {
    let mut writer = ArchiveWriter::begin(Vec::new(), manifest).unwrap();
    for (name, content) in members {
        writer.member(name, content).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn members_are_known_numbered_and_as_many_as_the_manifest_says() {
    assert!(read_all(&forged(&[], &manifest(0, 0))).is_ok());
    assert!(read_all(&forged(&[("snapshot/000000/000000", b"abc")], &manifest(1, 3))).is_ok());
    let wrong: [&[(&str, &[u8])]; 8] = [
        &[("other", b"")],
        &[("events/000001.jsonl", b"")],
        &[("snapshot/000001/000000", b"abc")],
        &[("snapshot/000000/000000", b"abc"), ("snapshot/000000/000002", b"")],
        &[("snapshot/000000/000000", b"abc"), ("events/000000.jsonl", b"")],
        &[("workspace/x", b""), ("snapshot/000000/000000", b"abc")],
        &[("manifest.json", b"{}")],
        &[("snapshot/000000/000000", b"abcd")],
    ];
    for members in wrong {
        let refused = read_all(&forged(members, &manifest(1, 3))).unwrap_err();
        assert!(refused.hint.is_some(), "{members:?}: {refused}");
    }
    let large = vec![0; RECORD_BYTES + 1];
    let members = [("snapshot/000000/000000", &large[..])];
    assert!(read_all(&forged(&members, &manifest(1, large.len() as u64))).is_err());
}

#[test]
fn each_refusal_of_damaged_bytes_says_what_to_do() {
    let whole = forged(&[("snapshot/000000/000000", b"abc")], &manifest(1, 3));
    let mut changed = whole.clone();
    let place = changed.windows(3).position(|window| window == b"abc").unwrap();
    changed[place] = b'x';
    let cut = &whole[..whole.len() / 2];
    let noise = vec![b'?'; 4096];
    let mut other = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    other.append_data(&mut header, "notes.txt", &b""[..]).unwrap();
    let other = other.into_inner().unwrap();
    for (what, bytes, hint) in [
        ("changed", &changed[..], EXPORT_AGAIN),
        ("cut", cut, EXPORT_AGAIN),
        ("empty", &[][..], ARCHIVE_MAKER),
        ("noise", &noise[..], ARCHIVE_MAKER),
        ("another tar file", &other[..], ARCHIVE_MAKER),
    ] {
        let refused = read_all(bytes).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest, "{what}: {refused}");
        assert_eq!(refused.hint.as_deref(), Some(hint), "{what}: {refused}");
        assert_eq!(
            refused.message.contains("no Belljar archive"),
            hint == ARCHIVE_MAKER,
            "{what}: {refused}"
        );
    }
}

#[test]
fn a_path_that_leaves_the_workspace_makes_nothing() {
    let (home, folder) = (tempfile::tempdir().unwrap(), "w");
    std::fs::create_dir(home.path().join(folder)).unwrap();
    let top = File::open(home.path().join(folder)).unwrap();
    let root = Root::of_daemon(top.as_fd());
    let room = UploadRoom::open(&root, std::sync::Arc::default(), 1 << 20, 0, None).unwrap();
    // The library that writes refuses such names, so they are given as they arrive.
    let put = |path: &str| {
        files::unpack(&root, Path::new(""), (Path::new(path), facts_of(Kind::File)), &mut &b"x"[..], &room)
    };
    for path in ["../out", "d/../../out"] {
        let refused = put(path);
        assert_eq!(refused.unwrap_err().code, Code::BadRequest, "{path}");
    }
    put("d/in").unwrap();
    assert!(home.path().join("w/d/in").exists() && !home.path().join("out").exists());
}

/// Makes the files of an archive in a folder.
fn unpack_into(folder: &Path, bytes: &[u8]) {
    let top = File::open(folder).unwrap();
    let root = Root::of_daemon(top.as_fd());
    let room = UploadRoom::open(&root, std::sync::Arc::default(), 1 << 20, 0, None).unwrap();
    unpack(|| bytes, &root, &room).unwrap();
}

#[test]
fn files_and_folders_come_out_of_an_archive_with_their_rights_and_times() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(from.path().join("shut/inner")).unwrap();
    // What is in a folder comes before the folder, which would get another time by it.
    let entries = [
        ("x.sh", 0o755),
        ("own", 0o600),
        ("all", 0o666),
        ("shut/inner/f", 0o444),
        ("shut/inner", 0o750),
        ("shut", 0o555),
    ];
    for (at, (name, mode)) in (1_000_000_000..).zip(entries) {
        let path = from.path().join(name);
        if !path.is_dir() {
            std::fs::write(&path, name).unwrap();
        }
        let changed = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at);
        File::open(&path).unwrap().set_modified(changed).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let top = File::open(from.path()).unwrap();
    let mut writer = ArchiveWriter::begin(Vec::new(), &manifest(0, 0)).unwrap();
    writer.workspace(&Root::of_daemon(top.as_fd())).unwrap();
    unpack_into(to.path(), &writer.finish().unwrap());
    for (at, (name, mode)) in (1_000_000_000..).zip(entries) {
        let found = to.path().join(name).metadata().unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (mode, at), "{name}");
    }
    for folder in [from.path(), to.path()] {
        // Otherwise only root could remove it.
        std::fs::set_permissions(folder.join("shut"), Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn no_set_id_bit_comes_out_of_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = ArchiveWriter::begin(Vec::new(), &manifest(0, 0)).unwrap();
    for (path, kind, mode) in [
        ("workspace/d", tar::EntryType::Directory, 0o7775),
        ("workspace/d/program", tar::EntryType::Regular, 0o6755),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(mode);
        writer.builder.append_data(&mut header, path, io::empty()).unwrap();
    }
    unpack_into(folder.path(), &writer.finish().unwrap());
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("d/program")), (0o775, 0o755));
}

/// Somebody may write an archive whose folders are closed before what lies in them.
#[test]
fn a_folder_that_its_owner_may_not_enter_does_not_end_an_import() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = ArchiveWriter::begin(Vec::new(), &manifest(0, 0)).unwrap();
    for (path, mode) in [("workspace/closed", 0), ("workspace/closed/inner", 0o755)] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(mode);
        writer.builder.append_data(&mut header, path, io::empty()).unwrap();
    }
    unpack_into(folder.path(), &writer.finish().unwrap());
    let closed = folder.path().join("closed");
    assert_eq!(closed.metadata().unwrap().mode() & 0o7777, 0);
    std::fs::set_permissions(&closed, Permissions::from_mode(0o755)).unwrap();
    assert!(closed.join("inner").is_dir());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        prop_assert!(read_all(&bytes).is_err());
    }
}

//! Archives: sessions that move in a file.

use serde_json::{Value, json};

use super::helpers::{S, base, list, printed, text};
use crate::support::{Daemon, Response};

const TAR: [(&str, &str); 1] = [("Content-Type", "application/x-tar")];

pub fn export(daemon: &Daemon) -> Vec<u8> {
    let answer = daemon.http("GET", "/v1/sessions/s/archive", b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.body
}

pub fn import(daemon: &Daemon, query: &str, archive: &[u8]) -> Response {
    daemon.http_with("POST", &format!("/v1/archives?{query}"), &TAR, archive)
}

#[track_caller]
fn repr(daemon: &Daemon, session: &str, code: &str) -> String {
    text(&daemon.run(session, code), "/result/repr").to_owned()
}

/// A session with variables, a file and a tool's answer.
fn filled() -> Option<Daemon> {
    let daemon = base()?;
    printed(&daemon, "class A:\n    n = 5\na = A()\nboth = [a, a]");
    printed(
        &daemon,
        "import os\nos.makedirs('d', exist_ok=True)\nopen('d/f', 'w').write('text')\nos.chmod('d/f', 0o751)\nstamp = 7",
    );
    Some(daemon)
}

#[test]
pub fn a_session_moves_to_another_home_in_a_file() {
    let Some(daemon) = filled() else { return };
    let archive = export(&daemon);
    assert!(archive.windows(13).any(|window| window == b"manifest.json"));
    // The other home knows nothing of the first.
    let other = Daemon::start();
    let made = import(&other, "name=moved", &archive).expect_status(201);
    assert_eq!(text(&made, "/session/name"), "moved");
    assert_eq!(
        repr(
            &other,
            "moved",
            "both[0] is both[1], type(a) is A, a.n, open('d/f').read(), oct(os.stat('d/f').st_mode)"
        ),
        "(True, True, 5, 'text', '0o100751')"
    );
    let based =
        other.events("moved", 0).into_iter().find(|event| event["type"] == "based").expect("an event");
    assert_eq!(text(&based, "/on/archive/name"), S);
    // The name is the archive's if no other is given, and is taken then.
    import(&other, "", &archive).expect_status(201);
    assert_eq!(text(&import(&other, "", &archive).expect_status(409), "code"), "session_exists");
    daemon.assert_sound();
    other.assert_sound();
}

#[test]
pub fn the_cells_of_an_archive_run_again_where_its_variables_are_not_wanted() {
    let Some(daemon) = filled() else { return };
    printed(&daemon, "stamp += 1");
    let archive = export(&daemon);
    let made = import(&daemon, "name=again&replay=true", &archive).expect_status(201);
    let cells: Vec<u64> =
        list(&made["replay"], "cells").iter().filter_map(|cell| cell["cell"].as_u64()).collect();
    assert_eq!(cells, [1, 2, 3]);
    assert_eq!(repr(&daemon, "again", "a.n, stamp"), "(5, 8)");
    daemon.assert_sound();
}

#[test]
pub fn a_session_that_is_not_saved_moves_with_its_cells() {
    let Some(daemon) = base() else { return };
    daemon.session("off", json!({"image": "belljar/base", "snapshots": "off"}));
    daemon.run("off", "x = 3");
    let archive = daemon.http("GET", "/v1/sessions/off/archive", b"");
    assert_eq!(archive.status, 200, "{}", archive.text());
    let refused = import(&daemon, "name=loaded", &archive.body).expect_status(400);
    assert!(text(&refused, "hint").contains("--replay"), "{refused}");
    import(&daemon, "name=again&replay=true", &archive.body).expect_status(201);
    assert_eq!(repr(&daemon, "again", "x"), "3");
    daemon.assert_sound();
}

#[test]
pub fn an_archive_that_was_changed_breaks_off_or_is_none_makes_no_session() {
    let Some(daemon) = filled() else { return };
    let archive = export(&daemon);
    let sessions = || {
        let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
        list(&listed, "sessions").len()
    };
    let mut changed = archive.clone();
    changed[archive.len() / 2] ^= 1;
    for (what, bytes) in [
        ("changed", &changed[..]),
        ("cut", &archive[..archive.len() / 2]),
        ("empty", b""),
        ("no archive", b"what is this"),
    ] {
        let refused = import(&daemon, "name=x", bytes);
        assert_eq!(refused.status, 400, "{what}: {}", refused.text());
        assert_eq!(sessions(), 1, "{what}");
    }
    let left: Vec<_> = std::fs::read_dir(daemon.home().join("snapshots")).expect("a folder").collect();
    assert!(left.len() <= 1, "{left:?}");
    daemon.assert_sound();
}

/// The archive with another manifest and a true digest, as somebody may write it who knows the format.
fn with_manifest(archive: &[u8], change: impl Fn(&mut Value)) -> Vec<u8> {
    let mut entries = tar::Archive::new(archive);
    let mut made = tar::Builder::new(Vec::new());
    for entry in entries.entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").into_owned();
        if path.to_str() == Some("digest") {
            continue;
        }
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).expect("its content");
        if path.to_str() == Some("manifest.json") {
            let mut manifest: Value = serde_json::from_slice(&content).expect("JSON");
            change(&mut manifest);
            content = manifest.to_string().into_bytes();
        }
        let mut header = entry.header().clone();
        header.set_size(content.len() as u64);
        header.set_cksum();
        made.append_data(&mut header, &path, &content[..]).expect("it fits");
    }
    let body = made.into_inner().expect("its bytes");
    // Two empty blocks end a tar stream.
    let body = &body[..body.len() - 1024];
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(body));
    let mut end = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(digest.len() as u64);
    header.set_mode(0o644);
    end.append_data(&mut header, "digest", digest.as_bytes()).expect("it fits");
    [body, &end.into_inner().expect("its bytes")].concat()
}

#[test]
pub fn variables_of_another_python_are_refused_and_its_cells_can_run_again() {
    let Some(daemon) = filled() else { return };
    let archive = with_manifest(&export(&daemon), |manifest| {
        manifest["python"] = json!("3.2.1");
        manifest["snapshot"]["manifest"]["python"] = json!("3.2.1");
    });
    let refused = import(&daemon, "name=old", &archive).expect_status(409);
    assert_eq!(text(&refused, "code"), "snapshot_mismatch");
    assert!(text(&refused, "hint").contains("--replay"), "{refused}");
    crate::support::eventually("nothing is left of it", || {
        (daemon.http("GET", "/v1/sessions/old", b"").status == 404).then_some(())
    });
    import(&daemon, "name=new&replay=true", &archive).expect_status(201);
    assert_eq!(repr(&daemon, "new", "a.n"), "5");
}

#[test]
pub fn the_rules_in_an_archive_hold_and_one_without_rules_is_refused() {
    let Some(daemon) = filled() else { return };
    let archive = export(&daemon);
    let without = with_manifest(&archive, |manifest| {
        manifest.as_object_mut().expect("an object").remove("rules");
    });
    let refused = import(&daemon, "name=loose", &without).expect_status(400);
    assert!(text(&refused, "message").contains("rules"), "{refused}");
    let large = with_manifest(&archive, |manifest| {
        manifest["rules"]["approve"] = json!(vec!["x"; 100_000]);
    });
    import(&daemon, "name=large", &large).expect_status(400);
    let bound =
        with_manifest(&archive, |manifest| manifest["rules"]["approve"] = json!(["compute_with_python"]));
    import(&daemon, "name=bound&trust=true", &bound).expect_status(201);
    let based = daemon.events("bound", 0).into_iter().find(|event| event["type"] == "based");
    assert_eq!(based.expect("an event")["bound"]["approve"], json!(["compute_with_python"]));
    daemon.assert_sound();
}

#[test]
pub fn files_are_exported_and_imported_by_the_command_line() {
    let Some(daemon) = filled() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // The command line runs as the daemon's user.
    let rights = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), rights).expect("chmod");
    let file = folder.path().join("s.belljar");
    let file = file.to_str().expect("UTF-8");
    daemon.cli(["export", "-s", S, file]).ok();
    let again = daemon.cli(["export", "-s", S, file]).exits(125);
    assert!(again.stderr.contains("--force"), "{again:?}");
    assert_eq!(daemon.cli(["import", file, "moved"]).ok().stdout, "moved\n");
    assert_eq!(daemon.cli(["branch", "-s", "moved", "b"]).ok().stdout, "b\n");
    daemon.cli(["exec", "-s", "b", "stamp = 8"]).ok();
    let differs = daemon.cli(["diff", "moved", "b"]).exits(1);
    assert_eq!(differs.stdout, "~ stamp: int 7 → int 8\n", "{differs:?}");
    daemon.cli(["diff", "moved", "moved"]).ok();
    let first = daemon.cli(["exec", "-s", "moved", "stamp"]).ok();
    assert!(first.stderr.contains("come from the archive of session `s`"), "{first:?}");
    let junk = folder.path().join("junk");
    std::fs::write(&junk, "junk").expect("a file");
    let told = daemon.cli(["import", junk.to_str().expect("UTF-8")]).exits(125);
    for part in ["junk` is no Belljar archive", "belljar export -s SESSION FILE"] {
        assert!(told.stderr.contains(part), "{told:?}");
    }
}

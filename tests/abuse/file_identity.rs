//! A daemon of root serves files to users: with whose rights?

use serde_json::{Value, json};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use super::grounds::on_grounds_of_root;
use crate::support::{Daemon, Response, User, eventually, http_as};

on_grounds_of_root!(
    what_a_stranger_keeps_below_ones_folder_is_as_closed_as_it_was,
    a_folder_that_its_owner_cannot_reach_is_no_workspace,
    in_a_managed_folder_the_daemon_has_the_rights_of_the_guest,
    no_right_to_become_somebody_passes_through_the_daemon,
);

/// Every Debian has that group; its members may use the daemon here.
const USERS: (&str, u32) = ("daemon", 1);
/// User ids without accounts; the kernel does not mind.
const ALICE: User = User { uid: 61_001, gid: 61_001, group: Some(USERS.1) };
const BOB: User = User { uid: 61_002, gid: 61_002, group: Some(USERS.1) };
const SECRET: &str = "the secret of bob";

fn shared() -> Daemon {
    Daemon::for_all(USERS.0, "")
}

fn ask(daemon: &Daemon, user: User, method: &str, path: &str, body: &[u8]) -> Response {
    http_as(user, &daemon.socket(), method, path, &[("Accept", "application/json")], body)
}

fn tar_of(daemon: &Daemon, user: User, path: &str) -> Response {
    http_as(user, &daemon.socket(), "GET", path, &[], b"")
}

fn own(path: &Path, user: User, mode: u32) {
    chown(path, Some(user.uid), Some(user.gid)).expect("chown");
    // Afterwards, because a change of the owner takes set-id bits away.
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

fn folder(path: &Path, user: User, mode: u32) {
    std::fs::create_dir(path).expect("made");
    own(path, user, mode);
}

fn file(path: &Path, user: User, mode: u32, text: &str) {
    std::fs::write(path, text).expect("written");
    own(path, user, mode);
}

/// A folder of that user in `/tmp`.
fn folder_of(user: User, mode: u32) -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
    own(folder.path(), user, mode);
    folder
}

#[track_caller]
fn session(daemon: &Daemon, user: User, name: &str, workspace: Option<&Path>) -> Value {
    let image = if daemon.is_jailed() { Value::Null } else { json!("belljar/base") };
    let body = json!({"name": name, "workspace": workspace, "image": image}).to_string();
    ask(daemon, user, "POST", "/v1/sessions", body.as_bytes()).expect_status(201)
}

#[track_caller]
fn run(daemon: &Daemon, user: User, name: &str, code: &str) -> Value {
    let body = json!({ "code": code }).to_string();
    ask(daemon, user, "POST", &format!("/v1/sessions/{name}/cells?wait=true"), body.as_bytes())
        .expect_status(200)
}

fn what_a_stranger_keeps_below_ones_folder_is_as_closed_as_it_was() {
    let daemon = shared();
    let alices = folder_of(ALICE, 0o755);
    let at = |name: &str| alices.path().join(name);
    folder(&at("closed"), BOB, 0o700);
    file(&at("closed/secret"), BOB, 0o600, SECRET);
    folder(&at("open"), BOB, 0o755);
    file(&at("open/secret"), BOB, 0o600, SECRET);
    file(&at("direct"), BOB, 0o600, SECRET);
    file(&at("mine"), ALICE, 0o600, "hers");
    std::fs::hard_link(at("open/secret"), at("linked")).expect("a second name");
    symlink(at("open/secret"), at("symbolic")).expect("a link");
    session(&daemon, ALICE, "a", Some(alices.path()));

    for path in ["closed/secret", "open/secret", "direct", "linked", "symbolic", "closed", "closed/"] {
        for answer in [
            ask(&daemon, ALICE, "GET", &format!("/v1/sessions/a/files/{path}"), b""),
            tar_of(&daemon, ALICE, &format!("/v1/sessions/a/files/{path}")),
        ] {
            assert_ne!(answer.status, 200, "{path}");
            assert!(!answer.text().contains(SECRET), "{path}: {}", answer.text());
        }
    }
    // What she may read comes, and nothing else with it.
    let all = tar_of(&daemon, ALICE, "/v1/sessions/a/files/").text();
    assert!(all.contains("hers") && !all.contains(SECRET), "{all:?}");
    assert!(!all.contains("closed/secret"));

    for path in ["closed/new", "open/new", "open/secret", "closed/secret"] {
        let answer = ask(&daemon, ALICE, "PUT", &format!("/v1/sessions/a/files/{path}"), b"planted");
        assert_ne!(answer.status, 200, "{path}");
    }
    for path in ["closed/secret", "closed", "open/secret", "open"] {
        let answer = ask(&daemon, ALICE, "DELETE", &format!("/v1/sessions/a/files/{path}"), b"");
        assert_ne!(answer.status, 200, "{path}");
    }
    for path in ["closed/secret", "open/secret", "direct", "linked"] {
        assert_eq!(std::fs::read_to_string(at(path)).expect("it is still there"), SECRET);
    }
    assert!(!at("closed/new").exists() && !at("open/new").exists());

    // What changes there while a cell runs is not told either.
    run(&daemon, ALICE, "a", "pass");
    std::fs::write(at("closed/secret"), format!("{SECRET}, changed")).expect("written");
    let result = run(&daemon, ALICE, "a", "open('new', 'w').close()");
    let told = result["artifacts"].to_string();
    assert!(told.contains("\"new\"") && !told.contains("closed"), "{told}");
    daemon.assert_sound();
}

fn a_folder_that_its_owner_cannot_reach_is_no_workspace() {
    let daemon = shared();
    let bobs = folder_of(BOB, 0o700);
    let hers = bobs.path().join("hers");
    folder(&hers, ALICE, 0o700);
    let body = json!({"name": "a", "workspace": hers}).to_string();
    let answer = ask(&daemon, ALICE, "POST", "/v1/sessions", body.as_bytes()).expect_status(403);
    assert_eq!(answer["message"], format!("`{}` is not a folder of yours", hers.display()));
}

fn in_a_managed_folder_the_daemon_has_the_rights_of_the_guest() {
    let daemon = shared();
    let id = session(&daemon, ALICE, "a", None)["id"].as_str().expect("an id").to_owned();
    run(&daemon, ALICE, "a", "open('mine', 'w').write('x')");
    let inside = daemon.home().join("w").join(&id);
    file(&inside.join("of-root"), User { uid: 0, gid: 0, group: None }, 0o600, SECRET);
    let answer = ask(&daemon, ALICE, "GET", "/v1/sessions/a/files/of-root", b"");
    assert_ne!(answer.status, 200);
    assert!(!answer.text().contains(SECRET));
    assert_eq!(ask(&daemon, ALICE, "GET", "/v1/sessions/a/files/mine", b"").text(), "x");

    // What comes in is the guest's, whose folders can be closed and are removed all the same.
    assert_eq!(ask(&daemon, ALICE, "PUT", "/v1/sessions/a/files/in/deep", b"y").status, 200);
    let guest = "import os\n(os.getuid(), os.stat('in').st_uid, os.stat('in/deep').st_uid)";
    let ids = run(&daemon, ALICE, "a", guest)["result"]["repr"].as_str().expect("a tuple").to_owned();
    let numbers: Vec<&str> = ids.trim_matches(['(', ')']).split(", ").collect();
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "{ids}");
    run(&daemon, ALICE, "a", "for p in ('in/deep', 'in', '.'): os.chmod(p, 0)");
    assert_eq!(ask(&daemon, ALICE, "DELETE", "/v1/sessions/a", b"").status, 200);
    eventually("the folder is removed", || (!inside.exists()).then_some(()));
    daemon.assert_sound();
}

/// What a tar stream says of the rights of its members.
fn modes(stream: &[u8]) -> Vec<(String, u32)> {
    let mut archive = tar::Archive::new(stream);
    let entries = archive.entries().expect("a stream").map(|entry| entry.expect("an entry"));
    let mode = |entry: &tar::Entry<'_, &[u8]>| entry.header().mode().expect("a mode");
    entries.map(|entry| (entry.path().expect("a path").display().to_string(), mode(&entry))).collect()
}

fn no_right_to_become_somebody_passes_through_the_daemon() {
    let daemon = shared();
    let hers = folder_of(ALICE, 0o755);
    session(&daemon, ALICE, "a", Some(hers.path()));
    let mut stream = tar::Builder::new(Vec::new());
    for (name, kind) in [("program", tar::EntryType::Regular), ("folder", tar::EntryType::Directory)] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o7777);
        stream.append_data(&mut header, name, std::io::empty()).expect("appended");
    }
    let stream = stream.into_inner().expect("a stream");
    let tar = [("Content-Type", "application/x-tar")];
    let put = http_as(ALICE, &daemon.socket(), "PUT", "/v1/sessions/a/files/", &tar, &stream);
    assert_eq!(put.status, 200, "{}", put.text());
    for name in ["program", "folder"] {
        let mode = std::fs::metadata(hers.path().join(name)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{name}: {mode:o}");
    }
    own(&hers.path().join("program"), ALICE, 0o6755);
    let got = tar_of(&daemon, ALICE, "/v1/sessions/a/files/");
    let found = modes(&got.body);
    assert!(found.iter().any(|(name, mode)| name == "program" && *mode == 0o755), "{found:?}");
    // Written over, it is a new file without them.
    assert_eq!(ask(&daemon, ALICE, "PUT", "/v1/sessions/a/files/program", b"x").status, 200);
    let mode = std::fs::metadata(hers.path().join("program")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o7000, 0, "{mode:o}");
}

//! Files of a workspace go in and out, and no link that a guest wrote is ever followed.

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Daemon, Response, engine, eventually};

const TAR: (&str, &str) = ("Content-Type", "application/x-tar");
const AS_JSON: (&str, &str) = ("Accept", "application/json");

fn started() -> Daemon {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon
}

fn get(daemon: &Daemon, path: &str) -> Response {
    daemon.http("GET", &format!("/v1/sessions/a/files/{path}"), b"")
}

fn put(daemon: &Daemon, path: &str, body: &[u8]) -> Response {
    daemon.http("PUT", &format!("/v1/sessions/a/files/{path}"), body)
}

fn delete(daemon: &Daemon, path: &str) -> Response {
    daemon.http("DELETE", &format!("/v1/sessions/a/files/{path}"), b"")
}

#[track_caller]
fn ran(daemon: &Daemon, code: &str) -> Value {
    let result = daemon.run("a", code);
    assert_eq!(result["status"], "success", "{result}");
    result
}

fn workspace(daemon: &Daemon) -> std::path::PathBuf {
    let view = daemon.http("GET", "/v1/sessions/a", b"").expect_status(200);
    view["workspace"].as_str().expect("a path").into()
}

#[track_caller]
fn refused(answer: &Response, status: u16, code: &str) {
    assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{}", answer.text());
}

/// Resident memory of the daemon.
fn daemon_memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn whoever_sends_what_is_refused_hears_why() {
    if !engine() {
        return;
    }
    let daemon = started();
    ran(&daemon, "import os; os.symlink('/etc', 'link')");
    let large = daemon.home().join("large");
    std::fs::write(&large, vec![0; 30 << 20]).expect("written");
    for target in ["a:link/x", "nobody:x"] {
        for _ in 0..8 {
            let sent = daemon.cli(["cp", large.to_str().expect("UTF-8"), target]).exits(125);
            assert!(!sent.stderr.contains("broke"), "{}", sent.stderr);
        }
    }
}

#[test]
pub fn files_and_folders_go_in_and_out() {
    if !engine() {
        return;
    }
    let daemon = started();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    assert_eq!(put(&daemon, "sub/folder/data.bin", &bytes).status, 200);
    let seen = ran(
        &daemon,
        "import hashlib, os\ndata = open('sub/folder/data.bin', 'rb').read()\nprint(len(data), os.stat('sub/folder').st_uid == os.getuid(), os.access('sub/folder/data.bin', os.W_OK))",
    );
    assert_eq!(seen["stdout"], "100000 True True\n");
    let answer = get(&daemon, "sub/folder/data.bin");
    assert_eq!((answer.status, answer.body), (200, bytes));
    assert_eq!(
        answer.headers.iter().find(|(name, _)| name == "content-type").map(|(_, kind)| kind.as_str()),
        Some("application/octet-stream")
    );

    // A file can be named as the code in a cell names it; and what is overwritten appears whole.
    assert_eq!(put(&daemon, "%2Fworkspace/sub/two%20%C3%A4.txt", b"two").status, 200);
    assert_eq!(get(&daemon, "sub/two%20%C3%A4.txt").body, b"two");
    assert_eq!(put(&daemon, "sub/two%20%C3%A4.txt", b"").status, 200);
    assert_eq!(get(&daemon, "sub/two%20%C3%A4.txt").body, b"");

    let listed = daemon.http_with("GET", "/v1/sessions/a/files/sub", &[AS_JSON], b"").expect_status(200);
    assert_eq!(
        listed["entries"],
        json!([{"name": "folder", "kind": "folder", "bytes": listed["entries"][0]["bytes"]}, {"name": "two ä.txt", "kind": "file", "bytes": 0}])
    );
    let answer = get(&daemon, "sub");
    assert_eq!(answer.header("content-type"), Some("application/x-tar"));
    let mut archive = tar::Archive::new(answer.body.as_slice());
    let mut names: Vec<String> = archive
        .entries()
        .expect("a tar")
        .map(|entry| entry.expect("an entry").path().expect("a path").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["folder", "folder/data.bin", "two ä.txt"]);
    // The same tar goes in elsewhere.
    assert_eq!(daemon.http_with("PUT", "/v1/sessions/a/files/copy", &[TAR], &answer.body).status, 200);
    assert_eq!(get(&daemon, "copy/folder/data.bin").body.len(), 100_000);

    assert_eq!(delete(&daemon, "copy").status, 200);
    assert_eq!(delete(&daemon, "sub/two%20%C3%A4.txt").status, 200);
    refused(&delete(&daemon, "copy"), 404, "no_such_file");
    refused(&get(&daemon, "copy/folder"), 404, "no_such_file");
    refused(&delete(&daemon, ""), 404, "no_such_route");
    refused(&put(&daemon, "sub", b"x"), 400, "bad_request");
    refused(&put(&daemon, "", b"x"), 400, "bad_request");
    refused(&get(&daemon, "sub/folder/data.bin/below"), 400, "bad_request");
    assert_eq!(ran(&daemon, "import os; print(sorted(os.listdir()))")["stdout"], "['sub']\n");
}

/// Open to all, because the command may run as another user.
fn local_folder() -> tempfile::TempDir {
    let local = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(local.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    local
}

#[test]
pub fn cp_copies_both_ways() {
    if !engine() {
        return;
    }
    let daemon = started();
    let local = local_folder();
    let path = |name: &str| local.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::create_dir_all(local.path().join("tree/deep")).expect("made");
    std::fs::write(local.path().join("tree/one"), "1").expect("written");
    std::fs::write(local.path().join("tree/deep/two"), "2").expect("written");
    std::os::unix::fs::symlink("/etc/passwd", local.path().join("tree/link")).expect("a link");

    let copied = daemon.cli(["cp", &path("tree"), "a:"]).ok();
    assert!(copied.stderr.contains("1 left out"), "{copied:?}");
    assert_eq!(
        ran(
            &daemon,
            "print(open('tree/one').read() + open('tree/deep/two').read(), os.path.lexists('tree/link')) if (os := __import__('os')) else 0"
        )["stdout"],
        "12 False\n"
    );
    ran(
        &daemon,
        "open('tree/three', 'w').write('3')\nos.symlink('/etc/passwd', 'tree/evil')\nos.mkfifo('tree/pipe')",
    );
    let copied = daemon.cli(["cp", "a:tree", &path("back"), "--json"]).ok();
    assert!(copied.stderr.contains("2 left out"), "{copied:?}");
    let told: Value = serde_json::from_str(&copied.stdout).expect("JSON");
    assert_eq!((&told["left_out"], &told["kind"]), (&json!(2), &json!("folder")), "{told}");
    assert_eq!(std::fs::read_to_string(local.path().join("back/three")).expect("copied"), "3");
    assert_eq!(std::fs::read_to_string(local.path().join("back/deep/two")).expect("copied"), "2");
    assert!(!local.path().join("back/evil").is_symlink() && !local.path().join("back/pipe").exists());

    daemon.cli(["cp", &path("tree/one"), "a:renamed"]).ok();
    daemon.cli(["cp", "a:renamed", &path("again")]).ok();
    assert_eq!(std::fs::read_to_string(local.path().join("again")).expect("copied"), "1");
    daemon.cli_with_input(["cp", "-", "a:piped"], "from stdin").ok();
    assert_eq!(daemon.cli(["cp", "a:piped", "-"]).ok().stdout, "from stdin");
    daemon.cli(["cp", "a:absent", &path("never")]).exits(125);
    assert!(!local.path().join("never").exists(), "an empty file was left");
    daemon.cli(["cp", "a:tree/evil", &path("never")]).exits(125);
    daemon.cli(["cp", "a:../x", "-"]).exits(64);
    daemon.cli(["cp", "a:x", "b:y"]).exits(64);
}

#[test]
fn a_folder_arrives_whole_whatever_is_in_it() {
    if !engine() {
        return;
    }
    let daemon = started();
    let local = local_folder();
    let path = |name: &str| local.path().join(name).to_str().expect("UTF-8").to_owned();
    ran(
        &daemon,
        "
import os
for n in range(12_000):
    open(f'f{n}', 'w').write('data')
os.makedirs('/'.join('d' * 80))
open('/'.join('d' * 80) + '/deep', 'w').write('data')
for n in range(12):
    os.mkdir(f's{n}'); open(f's{n}/file', 'w').write('data')
os.mkdir(b'\\xff')
open(b'\\xff/caf\\xe9.txt', 'w').write('data')
",
    );
    daemon.cli(["cp", "a:", &path("out")]).ok();
    let out = local.path().join("out");
    let count = |folder: &Path| std::fs::read_dir(folder).expect("a folder").count();
    assert_eq!(count(&out), 12_000 + 1 + 12 + 1);
    assert!((0..12).all(|n| out.join(format!("s{n}/file")).is_file()));
    assert!(out.join(format!("{}deep", "d/".repeat(80))).is_file());
    let odd = Path::new(OsStr::from_bytes(b"\xff/caf\xe9.txt"));
    assert_eq!(std::fs::read_to_string(out.join(odd)).expect("as it was called"), "data");
    // The same way back, and away.
    std::fs::remove_dir_all(out.join("d")).expect("removed");
    daemon.cli(["cp", &path("out"), "a:back"]).ok();
    let root = workspace(&daemon);
    assert_eq!(std::fs::read_to_string(root.join("back").join(odd)).expect("as it was called"), "data");
    assert_eq!(delete(&daemon, "back").status, 200);
    assert!(!root.join("back").exists());
}

#[test]
fn half_a_folder_is_never_taken_for_a_whole_one() {
    if !engine() {
        return;
    }
    let daemon = started();
    let local = local_folder();
    // Deeper than a path reaches, for which the watch of the workspace may end it when it is done.
    daemon.run("a", "import os\nfor _ in range(20):\n    os.mkdir('d' * 250); os.chdir('d' * 250)");
    let target = local.path().join("out");
    let told = daemon.cli(["cp", "a:", target.to_str().expect("UTF-8")]).exits(125);
    assert!(told.stderr.contains("hint: only a part has arrived"), "{told:?}");
    // Again and again: how much of an answer is sent before the error is up to the moment, but its head always is.
    for _ in 0..100 {
        let mut stream = daemon.connect().expect("it serves");
        stream
            .write_all(b"GET /v1/sessions/a/files/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .expect("it reads");
        let mut answer = Vec::new();
        // A connection that is cut is an end, too.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 200"), "without a head: {}", String::from_utf8_lossy(&answer));
        assert!(!answer.windows(5).any(|bytes| bytes == b"\r\n0\r\n"), "it ended as if whole");
    }
    let logged = || daemon.log().contains("could not be sent whole").then_some(());
    eventually("the administrator can read of it", logged);
}

#[test]
pub fn links_pipes_and_devices_of_a_guest_are_no_doors() {
    if !engine() {
        return;
    }
    let daemon = started();
    ran(
        &daemon,
        "
import os, socket
os.symlink('/etc/passwd', 'passwd')
os.symlink('..', 'up')
os.symlink('/', 'root')
os.mkdir('real')
open('real/file', 'w').write('inside')
os.symlink('real', 'inner')
os.symlink('loop', 'loop')
os.symlink('/proc/self/root', 'magic')
os.mkfifo('pipe')
s = socket.socket(socket.AF_UNIX); s.bind('sock')
os.link('real/file', 'hard')
",
    );
    let root = workspace(&daemon);
    let before = std::fs::read("/etc/passwd").expect("the host's");
    for path in [
        "passwd",
        "up",
        "up/",
        "root/etc/passwd",
        "inner/file",
        "inner",
        "loop",
        "magic/etc/passwd",
        "pipe",
        "sock",
        "passwd/x",
        "up/x/y",
    ] {
        let begun = Instant::now();
        refused(&get(&daemon, path), 400, "bad_request");
        assert!(begun.elapsed() < Duration::from_secs(5), "{path} blocked");
    }
    // Below a link nothing is made, and nothing removed.
    for path in ["up/made", "root/tmp/belljar-made", "inner/made", "magic/made", "pipe/made", "loop/made"] {
        refused(&put(&daemon, path, b"x"), 400, "bad_request");
        assert_eq!(delete(&daemon, path).status, 400, "{path}");
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, path, tar::EntryType::Regular, b"x");
        let body = tar.into_inner().expect("a tar");
        refused(&daemon.http_with("PUT", "/v1/sessions/a/files/", &[TAR], &body), 400, "bad_request");
    }
    assert!(!Path::new("/tmp/belljar-made").exists() && !root.join("real/made").exists());
    assert!(!root.parent().expect("a parent").join("made").exists());

    // An upload and a removal mean the link itself.
    assert_eq!(put(&daemon, "passwd", b"mine").status, 200);
    assert!(!root.join("passwd").is_symlink());
    assert_eq!(get(&daemon, "passwd").body, b"mine");
    assert_eq!(put(&daemon, "pipe", b"no pipe").status, 200);
    assert_eq!(get(&daemon, "pipe").body, b"no pipe");
    for path in ["up", "root", "inner", "loop", "magic", "sock"] {
        assert_eq!(delete(&daemon, path).status, 200, "{path}");
        assert!(!root.join(path).is_symlink(), "{path}");
    }
    assert_eq!(std::fs::read("/etc/passwd").expect("the host's"), before);
    // Hard links are files of the workspace.
    assert_eq!(get(&daemon, "hard").body, b"inside");
    assert_eq!(put(&daemon, "hard", b"other").status, 200);
    assert_eq!(get(&daemon, "real/file").body, b"inside");

    let listed = daemon.http_with("GET", "/v1/sessions/a/files/", &[AS_JSON], b"").expect_status(200);
    let names: Vec<&str> = listed["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .filter_map(|entry| entry["name"].as_str())
        .collect();
    assert_eq!(names, ["hard", "passwd", "pipe", "real"]);
    daemon.assert_sound();
}

#[test]
pub fn no_path_leads_out() {
    if !engine() {
        return;
    }
    let daemon = started();
    let root = workspace(&daemon);
    for path in [
        "..",
        "../x",
        "a/../../x",
        "%2e%2e/x",
        "%2e%2e%2fx",
        "a/%2e%2e/%2e%2e/x",
        "..%2f..%2f..%2fetc/passwd",
        "%2F..%2F..%2Fetc%2Fpasswd",
        "a%00b",
        "%00",
        "%2Fworkspace%2F..%2Fx",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let answer = daemon.http(method, &format!("/v1/sessions/a/files/{path}"), b"x");
            refused(&answer, 400, "bad_request");
            assert!(answer.json()["hint"].is_string(), "{path}: {}", answer.text());
        }
    }
    // An absolute path is one of the workspace, too.
    assert_eq!(put(&daemon, "%2Fetc%2Fpasswd", b"guest").status, 200);
    assert_eq!(std::fs::read(root.join("etc/passwd")).expect("inside"), b"guest");
    refused(&get(&daemon, &"x".repeat(300)), 400, "bad_request");
    refused(&get(&daemon, &"d/".repeat(3000)), 400, "bad_request");
    assert!(!root.parent().expect("a parent").join("x").exists());
    daemon.assert_sound();
}

fn append(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: tar::EntryType, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    // The name is written by hand, because the library refuses such names itself.
    header.as_gnu_mut().expect("gnu").name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o6777);
    header.set_size(data.len() as u64);
    if kind == tar::EntryType::Symlink || kind == tar::EntryType::Link {
        header.set_link_name("/etc/passwd").expect("a target");
    }
    header.set_cksum();
    tar.append(&header, data).expect("appended");
}

#[test]
pub fn a_tar_brings_only_files_and_folders() {
    if !engine() {
        return;
    }
    let daemon = started();
    let root = workspace(&daemon);
    for (name, kind) in [
        ("link", tar::EntryType::Symlink),
        ("hard", tar::EntryType::Link),
        ("device", tar::EntryType::Char),
        ("disk", tar::EntryType::Block),
        ("pipe", tar::EntryType::Fifo),
        ("../out", tar::EntryType::Regular),
        ("a/../../out", tar::EntryType::Regular),
        ("/tmp/belljar-out", tar::EntryType::Regular),
        ("../out", tar::EntryType::Directory),
        ("/tmp/belljar-out", tar::EntryType::Directory),
    ] {
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, "first", tar::EntryType::Regular, b"1");
        append(&mut tar, name, kind, b"");
        append(&mut tar, "last", tar::EntryType::Regular, b"2");
        let body = tar.into_inner().expect("a tar");
        let answer = daemon.http_with("PUT", "/v1/sessions/a/files/in", &[TAR], &body);
        refused(&answer, 400, "bad_request");
        assert!(!root.join("in/last").exists(), "{name}: unpacking went on");
        assert!(std::fs::symlink_metadata(root.join("in").join(name)).is_err(), "{name} was made");
    }
    assert!(!Path::new("/tmp/belljar-out").exists() && !root.join("out").exists());
    assert!(!root.parent().expect("a parent").join("out").exists());

    // A link that an earlier upload could not make is not written through by a later one either.
    ran(&daemon, "import os\nos.symlink('/tmp', 'in/tmp')");
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "tmp/belljar-out", tar::EntryType::Regular, b"x");
    let body = tar.into_inner().expect("a tar");
    refused(&daemon.http_with("PUT", "/v1/sessions/a/files/in", &[TAR], &body), 400, "bad_request");
    assert!(!Path::new("/tmp/belljar-out").exists());

    // Bits that would make another user of the guest are not taken over.
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, "setuid", tar::EntryType::Regular, b"x");
    let body = tar.into_inner().expect("a tar");
    assert_eq!(daemon.http_with("PUT", "/v1/sessions/a/files/in", &[TAR], &body).status, 200);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(root.join("in/setuid")).expect("it is there").permissions(),
    );
    assert_eq!(mode & 0o7000, 0, "{mode:o}");

    for garbage in [&b"no tar at all"[..], &[0xff; 4096], &body[..700]] {
        let answer = daemon.http_with("PUT", "/v1/sessions/a/files/in", &[TAR], garbage);
        refused(&answer, 400, "bad_request");
    }
    let left: Vec<_> = std::fs::read_dir(root.join("in"))
        .expect("a folder")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".belljar"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    daemon.assert_sound();
}

#[test]
fn large_files_pass_through_without_staying() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\nworkspace = \"8GiB\"\n");
    daemon.session("a", json!({"image": "belljar/base"}));
    // Warm: the first transfer allocates buffers.
    put(&daemon, "warm", &vec![1; 4 << 20]);
    let before = daemon_memory(&daemon);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let block = vec![7_u8; 1 << 20];
    for _ in 0..200 {
        file.write_all(&block).expect("written");
    }
    let path = file.path().to_str().expect("UTF-8").to_owned();
    daemon.cli(["cp", &path, "a:large"]).ok();
    let target = tempfile::tempdir().expect("a folder");
    let back = target.path().join("back");
    daemon.cli(["cp", "a:large", back.to_str().expect("UTF-8")]).ok();
    assert_eq!(std::fs::metadata(&back).expect("copied").len(), 200 << 20);
    let grown = daemon_memory(&daemon).saturating_sub(before);
    assert!(grown < 50 << 20, "the daemon grew by {grown} bytes");
    assert_eq!(
        ran(&daemon, "import os; os.path.getsize('large')")["result"]["repr"],
        (200 << 20).to_string()
    );

    // A file without content has a size all the same.
    ran(&daemon, "open('sparse', 'wb').truncate(5 << 30)");
    refused(&get(&daemon, "sparse"), 413, "too_large");
    let told = daemon.cli(["cp", "a:sparse", back.to_str().expect("UTF-8")]).exits(125);
    assert!(told.stderr.contains("sparse") && told.stderr.contains("hint:"), "{told:?}");
    let grown = daemon_memory(&daemon).saturating_sub(before);
    assert!(grown < 50 << 20, "the daemon grew by {grown} bytes");
    daemon.assert_sound();
}

#[test]
pub fn an_upload_that_breaks_off_leaves_nothing() {
    if !engine() {
        return;
    }
    let daemon = started();
    let root = workspace(&daemon);
    let mut stream = daemon.connect().expect("it serves");
    stream
        .write_all(b"PUT /v1/sessions/a/files/half HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nhalf a file")
        .expect("it reads");
    let temporary = || -> usize { std::fs::read_dir(&root).expect("a folder").flatten().count() };
    crate::support::eventually("the upload begins", || (temporary() == 1).then_some(()));
    assert!(!root.join("half").exists(), "half a file is shown");
    drop(stream);
    crate::support::eventually("the rest is removed", || (temporary() == 0).then_some(()));
    daemon.assert_sound();
}

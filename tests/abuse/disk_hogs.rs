//! Bytes of a workspace that are hard to see: folders that a name makes, files without a name, folders that are
//! closed, files that come in at once. The disk is the daemon's home, so whatever is there counts.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::docker::many_users::{ALICE, USERS, ask};
use crate::support::jails::{self, in_a_jail};
use crate::support::{Daemon, User, connect_as, engine, eventually, http_as};

const MIB: u64 = 1 << 20;
/// What a workspace may hold here.
const LIMIT: u64 = 10 * MIB;
/// The folder itself, and others of the daemon's.
const SLACK: u64 = 64 * 1024;
const CONFIG: &str = "[sandbox]\nworkspace = \"10MiB\"\n";
const TAR: [(&str, &str); 1] = [("Content-Type", "application/x-tar")];

fn shared() -> Daemon {
    Daemon::for_all(USERS.0, CONFIG)
}

#[track_caller]
fn session(daemon: &Daemon, workspace: Option<&Path>) -> Value {
    let image = if daemon.is_jailed() { Value::Null } else { json!("belljar/base") };
    let request = json!({"name": "a", "workspace": workspace, "image": image});
    ask(daemon, ALICE, "POST", "/v1/sessions", request).expect_status(201)
}

#[track_caller]
fn run(daemon: &Daemon, code: &str) -> Value {
    ask(daemon, ALICE, "POST", "/v1/sessions/a/cells?wait=true", json!({ "code": code })).expect_status(200)
}

/// Bytes on the disk below a folder, and how many folders are there.
fn on_disk(folder: &Path) -> (u64, usize) {
    let (mut bytes, mut folders, mut pending) = (0, 0, vec![folder.to_owned()]);
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            bytes += found.blocks() * 512;
            if found.is_dir() {
                folders += 1;
                pending.push(entry.path());
            }
        }
    }
    (bytes, folders)
}

/// Members whose names lead through two thousand folders each.
fn deep_names() -> Vec<u8> {
    let mut stream = tar::Builder::new(Vec::new());
    for number in 0..12 {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(0);
        header.set_mode(0o644);
        let path = format!("{number}/{}f", "a/".repeat(2000));
        stream.append_data(&mut header, path, std::io::empty()).expect("appended");
    }
    stream.into_inner().expect("a stream")
}

#[test]
fn folders_that_a_tar_stream_makes_cost_room_before_they_are_made() {
    in_a_jail(None, || {
        let daemon = shared();
        session(&daemon, None);
        let put = http_as(ALICE, &daemon.socket(), "PUT", "/v1/sessions/a/files/", &TAR, &deep_names());
        let problem = put.expect_status(413);
        assert!(problem["message"].as_str().is_some_and(|text| text.contains("no room")), "{problem}");
        let (bytes, folders) = on_disk(&daemon.home().join("w"));
        assert!(bytes <= LIMIT + SLACK && folders > 0, "{folders} folders take {bytes} bytes");
        // A file costs its blocks and one entry; a folder that is there costs nothing.
        assert_eq!(
            http_as(ALICE, &daemon.socket(), "DELETE", "/v1/sessions/a/files/0", &[], b"").status,
            200
        );
        for _ in 0..3 {
            let path = "/v1/sessions/a/files/in/deep/file";
            assert_eq!(http_as(ALICE, &daemon.socket(), "PUT", path, &[], &[1; 1 << 20]).status, 200);
        }
        daemon.assert_sound();
    });
}

#[test]
fn folders_of_a_job_s_files_cost_room_before_they_are_made() {
    in_a_jail(None, || {
        let daemon = shared();
        let mut stream = deep_names();
        // Without the mark of its end, another member may follow.
        stream.truncate(stream.len() - 1024);
        let mut script = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        script.append_data(&mut header, "x.py", &b"pass"[..]).expect("appended");
        stream.extend(script.into_inner().expect("a stream"));
        let sent =
            http_as(ALICE, &daemon.socket(), "PUT", "/v1/job-inputs", &TAR, &stream).expect_status(200);
        let job = json!({"input": sent["id"], "script": "x.py"});
        let id = ask(&daemon, ALICE, "POST", "/v1/jobs", job).expect_status(202)["id"].clone();
        let path = format!("/v1/jobs/{}?wait=true", id.as_str().expect("an id"));
        let ended = ask(&daemon, ALICE, "GET", &path, Value::Null).expect_status(200);
        assert!(ended.to_string().contains("no room"), "{ended:#}");
        daemon.assert_sound();
    });
}

/// Writes 72 MB, 9 at a time, each long enough ago that the watch has seen it, and says so if it is let. `BEGIN` comes
/// first, `HIDE` after each file was opened as `f`, `WRITTEN` when it has its bytes.
const HOG: &str = r"
import mmap, os, socket, subprocess, time
held, prefix = [], ''
BEGIN
for number in range(8):
    f = open(f'{prefix}hog{number}', 'w+b')
    HIDE
    f.write(b'x' * 9_000_000)
    f.flush()
    WRITTEN
    held.append(f)
    time.sleep(1.5)
time.sleep(4)
print('survived')
";

fn hog(begin: &str, hide: &str, written: &str) -> String {
    HOG.replace("BEGIN", begin).replace("HIDE", hide).replace("WRITTEN", written)
}

#[track_caller]
fn assert_ended(result: &Value, what: &str) {
    assert_eq!(result["status"], "crashed", "{what}: {result:#}");
    assert_eq!(result["reason"], "policy_violation", "{what}: {result:#}");
    assert!(
        result["stdout"] == "" && result.to_string().contains("The workspace held"),
        "{what}: {result:#}"
    );
}

fn files_without_a_name_count() {
    if !engine() {
        return;
    }
    let unlink = "os.unlink(f.name)";
    let tmpfile = "f.close(); os.unlink(f.name); f = open(os.open('.', os.O_TMPFILE | os.O_RDWR), 'w+b')";
    let of_child = "subprocess.Popen(['sleep', '60'], pass_fds=[f.fileno()]); f.close(); f = None";
    let mapped = "m = mmap.mmap(f.fileno(), 0); f.close(); f = m";
    for (what, hide, written) in [
        ("unlinked", unlink, "pass"),
        ("never linked", tmpfile, "pass"),
        ("held by children", unlink, of_child),
        ("mapped only", unlink, mapped),
    ] {
        let daemon = shared();
        session(&daemon, None);
        assert_ended(&run(&daemon, &hog("pass", hide, written)), what);
        // What the cell held is gone with it, so there is all the room again as soon as that was seen.
        eventually("the next cell has room", || {
            let code = json!({"code": "open('fine', 'wb').write(b'x' * 1_000_000)"});
            let next = ask(&daemon, ALICE, "POST", "/v1/sessions/a/cells?wait=true", code);
            (next.status == 200 && next.json()["status"] == "success").then_some(())
        });
        daemon.assert_sound();
    }
}

#[test]
fn files_without_a_name_count_in_a_container() {
    files_without_a_name_count();
}

#[test]
fn files_without_a_name_count_in_a_jail() {
    in_a_jail(None, files_without_a_name_count);
}

/// A folder of Alice's in `/tmp`.
fn hers() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    chown(folder.path(), Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
    folder
}

#[test]
fn a_folder_that_the_guest_closes_switches_no_watch_off() {
    in_a_jail(None, || {
        for (what, begin) in [
            ("listed, not entered", "os.mkdir('d'); os.chmod('d', 0o400)"),
            ("entered, not listed", "prefix = 'd/'; os.mkdir('d'); os.chmod('d', 0o300)"),
            ("closed", "os.mkdir('d'); os.mkdir('d/e'); os.chmod('d', 0)"),
        ] {
            let daemon = shared();
            let folder = hers();
            session(&daemon, Some(folder.path()));
            assert_ended(&run(&daemon, &hog(begin, "pass", "pass")), what);
            daemon.assert_sound();
        }
    });
}

#[test]
fn what_is_somebody_else_s_in_a_folder_ends_no_cell() {
    in_a_jail(None, || {
        let daemon = shared();
        let folder = hers();
        // A folder that can be entered but not listed is refused; the unit tests of `set_id` hold that.
        for (name, mode) in [("closed", 0o700), ("listed", 0o704)] {
            let inner = folder.path().join(name);
            std::fs::create_dir(&inner).expect("made");
            std::fs::write(inner.join("file"), "x").expect("written");
            std::fs::set_permissions(&inner, PermissionsExt::from_mode(mode)).expect("chmod");
        }
        session(&daemon, Some(folder.path()));
        let result = run(&daemon, "import time\nopen('x', 'w').close()\ntime.sleep(4)\nprint('survived')");
        assert_eq!(result["stdout"], "survived\n", "{result:#}");
        let put = http_as(ALICE, &daemon.socket(), "PUT", "/v1/sessions/a/files/y", &[], b"y");
        assert_eq!(put.status, 200, "{}", put.text());
        daemon.assert_sound();
    });
}

/// So many at once, each of which alone would fit.
const UPLOADS: usize = 8;
const EACH: usize = 8 << 20;

#[test]
fn files_that_come_in_at_once_share_the_room() {
    in_a_jail(None, || {
        let daemon = shared();
        session(&daemon, None);
        // Alice is in the socket's group by her first group, because `connect_as` sets no others.
        let alice = User { gid: USERS.1, group: None, ..ALICE };
        let begun: Vec<_> = (0..UPLOADS)
            .map(|number| {
                let mut stream = connect_as(alice, &daemon.socket()).expect("the daemon serves");
                let head = format!(
                    "PUT /v1/sessions/a/files/{number} HTTP/1.1\r\nHost: belljar\r\nConnection: close\r\n\
                     Content-Length: {EACH}\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).expect("it takes the head");
                stream
            })
            .collect();
        // No upload's last byte comes before the first bytes of all others.
        let all_but_one = std::sync::Barrier::new(UPLOADS);
        let statuses: Vec<String> = std::thread::scope(|scope| {
            let senders: Vec<_> = begun
                .into_iter()
                .map(|mut stream| {
                    let all_but_one = &all_but_one;
                    scope.spawn(move || {
                        let _ = stream.write_all(&vec![1; EACH - 1]);
                        all_but_one.wait();
                        let _ = stream.write_all(&[1]);
                        let mut answer = String::new();
                        let _ = stream.read_to_string(&mut answer);
                        answer.lines().next().unwrap_or_default().to_owned()
                    })
                })
                .collect();
            senders.into_iter().map(|sender| sender.join().expect("it ends")).collect()
        });
        let (bytes, _) = on_disk(&daemon.home().join("w"));
        assert!(bytes <= LIMIT + SLACK, "{bytes} bytes: {statuses:?}");
        // What those had that were refused is given back.
        let put = http_as(ALICE, &daemon.socket(), "PUT", "/v1/sessions/a/files/last", &[], &[1; 1 << 20]);
        assert_eq!(put.status, 200, "{}", put.text());
        daemon.assert_sound();
    });
}

/// More than any disk has, so that this one is short of space.
const FULL: &str = "[sandbox]\nworkspace = \"10MiB\"\ndisk_reserve = \"1000000TiB\"\n";

/// Grows, and stays within what a workspace may hold.
const IN_SIGHT: &str = r"
import time
for number in range(16):
    open(f'file{number}', 'wb').write(b'x' * 100_000)
    time.sleep(0.5)
print('survived')
";

/// Hides what it writes where no process holds it: in messages that no process receives.
const IN_FLIGHT: &str = r"
import array, os, socket, time
ours, theirs = socket.socketpair()
for number in range(20):
    f = open('hog', 'w+b')
    os.unlink('hog')
    f.write(b'x' * 1_000_000)
    f.flush()
    ours.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f.fileno()]))])
    f.close()
    time.sleep(0.5)
print('survived')
";

#[test]
fn what_grows_on_a_disk_that_is_nearly_full_is_ended_and_nothing_new_begins() {
    in_a_jail(None, || {
        let mut daemon = shared();
        session(&daemon, None);
        assert_eq!(run(&daemon, "x = 1")["status"], "success");
        daemon.signal("TERM");
        daemon.wait();
        let config = jails::with_backend(FULL);
        std::fs::write(daemon.home().join("config.toml"), config).expect("a configuration");
        daemon.restart();

        let more = json!({"name": "b"});
        for refused in [
            ask(&daemon, ALICE, "POST", "/v1/sessions", more),
            http_as(ALICE, &daemon.socket(), "PUT", "/v1/sessions/a/files/y", &[], b"y"),
        ] {
            let problem = refused.expect_status(507);
            assert_eq!(problem["code"], "storage", "{problem:#}");
            assert!(problem["message"].as_str().is_some_and(|text| text.contains("left")), "{problem:#}");
        }
        // Who writes nothing works on, with the variables of before.
        let idle = run(&daemon, "import time\ntime.sleep(3)\nx");
        assert_eq!(idle["result"]["repr"], "1", "{idle:#}");
        for code in [IN_SIGHT, IN_FLIGHT] {
            let ended = run(&daemon, code);
            assert_eq!(
                (&ended["status"], &ended["reason"]),
                (&json!("crashed"), &json!("policy_violation")),
                "{ended:#}"
            );
            assert!(ended.to_string().contains("nearly full"), "{ended:#}");
        }
        assert_eq!(run(&daemon, "x")["result"]["repr"], "1");
    });
}

/// What is kept of a job is charged to its owner before it is written.
#[test]
fn artifacts_beyond_the_quota_are_not_written() {
    in_a_jail(None, || {
        let daemon = Daemon::for_all(USERS.0, "[quota]\njournal = \"20MiB\"\n");
        let mut stream = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        let script = b"open('big', 'wb').write(bytes(40 << 20))";
        header.set_size(script.len() as u64);
        header.set_mode(0o644);
        stream.append_data(&mut header, "x.py", &script[..]).expect("appended");
        let stream = stream.into_inner().expect("a stream");
        let sent =
            http_as(ALICE, &daemon.socket(), "PUT", "/v1/job-inputs", &TAR, &stream).expect_status(200);
        let job = json!({"input": sent["id"], "script": "x.py", "artifacts": ["big"]});
        let id = ask(&daemon, ALICE, "POST", "/v1/jobs", job).expect_status(202)["id"].clone();
        let path = format!("/v1/jobs/{}?wait=true", id.as_str().expect("an id"));
        let ended = ask(&daemon, ALICE, "GET", &path, Value::Null).expect_status(200);
        assert_eq!(ended["end"]["verdict"], "passed", "{ended:#}");
        assert_eq!((&ended["end"]["artifacts"], &ended["end"]["artifacts_cut"]), (&json!([]), &json!(true)));
        let (bytes, _) = on_disk(&daemon.home().join("jobs"));
        assert!(bytes < 20 * MIB, "{bytes} bytes");
        daemon.assert_sound();
    });
}

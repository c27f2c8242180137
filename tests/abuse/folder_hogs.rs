//! Folders and clients that answer late or never: their user waits alone.

use serde_json::json;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Daemon, User, connect_as, eventually, http_as, jails::in_a_jail};

const USERS: (&str, u32) = ("daemon", 1);
/// `connect_as` has no supplementary groups, so the socket's group is theirs.
const ALICE: User = User { uid: 61_001, gid: USERS.1, group: None };
const BOB: User = User { uid: 61_002, gid: USERS.1, group: None };
const CAROL: User = User { uid: 61_003, gid: USERS.1, group: None };
/// Nearly as many downloads as a user may have connections.
const DOWNLOADS: usize = 240;

#[track_caller]
fn session(daemon: &Daemon, user: User, name: &str, request: serde_json::Value) -> serde_json::Value {
    let mut request = request;
    request["name"] = json!(name);
    let body = request.to_string();
    http_as(user, &daemon.socket(), "POST", "/v1/sessions", &[], body.as_bytes()).expect_status(201)
}

#[track_caller]
fn run(daemon: &Daemon, user: User, name: &str, code: &str) -> serde_json::Value {
    let path = format!("/v1/sessions/{name}/cells?wait=true");
    let body = json!({ "code": code }).to_string();
    http_as(user, &daemon.socket(), "POST", &path, &[], body.as_bytes()).expect_status(200)
}

fn threads(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs").count()
}

#[test]
fn downloads_that_nobody_reads_hold_up_nobody_else() {
    in_a_jail(None, || {
        let daemon = Daemon::for_all(USERS.0, "");
        for user in [ALICE, BOB, CAROL] {
            session(&daemon, user, "a", json!({}));
        }
        let before = threads(&daemon);
        let mut unread: Vec<UnixStream> = Vec::new();
        for user in [ALICE, BOB] {
            run(&daemon, user, "a", "open('big', 'wb').write(b'x' * (4 << 20))");
            for _ in 0..DOWNLOADS {
                let mut stream = connect_as(user, &daemon.socket()).expect("the daemon serves");
                let head = "GET /v1/sessions/a/files/ HTTP/1.1\r\nHost: belljar\r\n\r\n";
                stream.write_all(head.as_bytes()).expect("it takes the head");
                unread.push(stream);
            }
        }
        std::thread::sleep(Duration::from_secs(2));
        let taken = threads(&daemon).saturating_sub(before);
        assert!(taken < 60, "{taken} threads for two users");
        for user in [CAROL, ALICE] {
            let since = Instant::now();
            let result = run(&daemon, user, "a", "open('made', 'w').close()");
            assert_eq!(result["artifacts"][0]["path"], "made", "{result}");
            assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        }
        // Who still reads nothing is given up, so that the next one gets a thread.
        let path = "/v1/sessions/a/files/";
        let answer = http_as(CAROL, &daemon.socket(), "GET", path, &[], b"");
        assert_eq!(answer.status, 200);
        drop(unread);
        daemon.assert_sound();
    });
}

#[test]
fn a_download_that_is_not_read_ends() {
    in_a_jail(None, || {
        let mut daemon = Daemon::for_all(USERS.0, "");
        daemon.kill();
        daemon.set_environment(&[("BELLJAR_PERIODS", "unread:1")]);
        daemon.restart();
        session(&daemon, ALICE, "a", json!({}));
        run(&daemon, ALICE, "a", "open('big', 'wb').write(b'x' * (4 << 20))");
        let mut stream = connect_as(ALICE, &daemon.socket()).expect("the daemon serves");
        stream
            .write_all(b"GET /v1/sessions/a/files/ HTTP/1.1\r\nHost: belljar\r\n\r\n")
            .expect("it takes the head");
        // Not at once in every case: a chunk may be taken when the connection is woken for another reason.
        let given_up = || daemon.log().contains("could not be sent whole").then_some(());
        eventually("the download is given up", given_up);
        // What was under way still comes; then the stream has broken off, long before the end.
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let mut received = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut received);
        assert!(received.len() < 4 << 20, "all {} bytes came", received.len());
        daemon.assert_sound();
    });
}

/// Seconds of processor time that the daemon has taken.
fn processor_time(daemon: &Daemon) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks: u32 = [fields[11], fields[12]].iter().map(|text| text.parse::<u32>().expect("ticks")).sum();
    f64::from(ticks) / 100.0
}

#[test]
fn a_workspace_of_many_files_costs_the_daemon_little_while_it_is_watched() {
    in_a_jail(None, || {
        let daemon = Daemon::for_all(USERS.0, "");
        let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        for part in 0..150 {
            let inner = folder.path().join(part.to_string());
            std::fs::create_dir(&inner).expect("made");
            for number in 0..1000 {
                std::fs::File::create(inner.join(number.to_string())).expect("made");
            }
        }
        chown(folder.path(), Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
        session(&daemon, ALICE, "a", json!({"workspace": folder.path()}));
        // What runs may write, so its folder is watched.
        let stirring = "import threading, time\n\
                        threading.Thread(target=lambda: [time.sleep(0.1) for _ in range(300)], daemon=True).start()";
        run(&daemon, ALICE, "a", stirring);
        std::thread::sleep(Duration::from_secs(4));
        let before = processor_time(&daemon);
        // Long enough for six looks a second apart, and too short for two with the pause between them.
        std::thread::sleep(Duration::from_secs(6));
        let taken = processor_time(&daemon) - before;
        assert!(taken < 1.2, "{taken} s of processor time in 6 s");
    });
}

/// Serves a folder by a program of its own, which may stop answering.
struct Fuse {
    at: std::path::PathBuf,
}

impl Fuse {
    fn mount(at: &std::path::Path, state: &std::path::Path) -> Self {
        for name in ["lower", "upper", "work"] {
            std::fs::create_dir_all(state.join(name)).expect("made");
        }
        let shown = |name: &str| state.join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},allow_other",
            shown("lower"),
            shown("upper"),
            shown("work")
        );
        let status = Command::new("fuse-overlayfs").args(["-o", &options]).arg(at).status();
        assert!(status.expect("fuse-overlayfs").success());
        Self { at: at.to_owned() }
    }

    /// Its program, by the folder that it serves.
    fn signal(&self, signal: &str) {
        let at = self.at.display().to_string();
        for entry in std::fs::read_dir("/proc").expect("proc").flatten() {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).into_owned();
            if command.starts_with("fuse-overlayfs\0") && command.contains(&at) {
                let pid = entry.file_name().to_string_lossy().into_owned();
                let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
                assert!(sent.expect("kill").success());
            }
        }
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.signal("CONT");
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn a_folder_that_a_program_serves_is_refused_by_name_and_never_entered() {
    in_a_jail(None, || {
        if !std::path::Path::new("/dev/fuse").exists() {
            eprintln!("NOT RUN: this machine has no FUSE");
            return;
        }
        let daemon = Daemon::for_all(USERS.0, "");
        let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
        let state = tempfile::tempdir().expect("a folder");
        let served = folder.path().join("served");
        std::fs::create_dir(&served).expect("made");
        let hers = |path: &std::path::Path| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
            chown(path, Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
        };
        hers(folder.path());
        session(&daemon, ALICE, "a", json!({"workspace": folder.path()}));
        let fuse = Fuse::mount(&served, state.path());
        hers(&served);
        let body = json!({"name": "no", "workspace": served}).to_string();
        let answer = http_as(ALICE, &daemon.socket(), "POST", "/v1/sessions", &[], body.as_bytes());
        let answer = answer.expect_status(403);
        assert!(answer["message"].as_str().is_some_and(|text| text.contains("(FUSE)")), "{answer}");

        // Below a folder that was let in before, its program may stop: it is not even asked.
        std::fs::write(folder.path().join("file"), "x").expect("written");
        fuse.signal("STOP");
        let since = Instant::now();
        let listed = eventually("the folder is listed", || {
            let accept = [("Accept", "application/json")];
            let path = "/v1/sessions/a/files/";
            Some(http_as(ALICE, &daemon.socket(), "GET", path, &accept, b"").expect_status(200))
        });
        assert!(listed.to_string().contains("\"other\""), "{listed}");
        let tar = http_as(ALICE, &daemon.socket(), "GET", "/v1/sessions/a/files/", &[], b"");
        assert_eq!(tar.status, 200);
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        drop(fuse);
        daemon.assert_sound();
    });
}

/// Whether a daemon ended by itself, and what it said.
fn start_with(home: &Path, socket: &Path, config: &Path) -> (bool, String) {
    let started = Command::new(crate::support::binary())
        .arg("daemon")
        .env("BELLJAR_HOME", home)
        .env("BELLJAR_SOCKET", socket)
        .env("BELLJAR_CONFIG", config)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut started = started.expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline && started.try_wait().expect("wait").is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = started.try_wait().expect("wait").is_some();
    let _ = started.kill();
    let output = started.wait_with_output().expect("it ends");
    (ended, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A link that another user can lead elsewhere, a folder in which another user can replace the socket, and settings that
/// another user wrote.
#[test]
fn what_somebody_else_can_replace_is_not_trusted() {
    let outer = tempfile::Builder::new().prefix("bjh").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(outer.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let (home, bobs) = (outer.path().join("home"), outer.path().join("bob"));
    for folder in [&home, &bobs] {
        std::fs::create_dir(folder).expect("made");
    }
    std::os::unix::fs::symlink(&home, bobs.join("link")).expect("a link");
    std::fs::write(bobs.join("config.toml"), "").expect("settings");
    for path in [bobs.clone(), bobs.join("config.toml")] {
        chown(&path, Some(BOB.uid), Some(BOB.gid)).expect("chown");
    }
    let (nothing, socket) = (Path::new("/dev/null"), home.join("belljar.sock"));
    for (home, socket, config) in [
        (&*bobs.join("link"), &*socket, nothing),
        (&*home, &*bobs.join("belljar.sock"), nothing),
        (&*home, &*socket, &*bobs.join("config.toml")),
    ] {
        let (ended, told) = start_with(home, socket, config);
        assert!(ended, "{} {} {}", home.display(), socket.display(), config.display());
        assert!(told.contains("can replace what the daemon trusts") && told.contains("hint:"), "{told}");
    }
}

#[test]
fn a_home_that_others_can_write_to_is_refused() {
    let outer = tempfile::Builder::new().prefix("bjh").tempdir_in("/tmp").expect("a folder");
    let start = |home: &std::path::Path| start_with(home, &home.join("belljar.sock"), "/dev/null".as_ref());
    let home = outer.path().join("home");
    for (of_home, of_outer, mode_of_home, mode_of_outer) in
        [(BOB.uid, 0, 0o700, 0o755), (0, BOB.uid, 0o700, 0o755), (0, 0, 0o777, 0o755), (0, 0, 0o700, 0o777)]
    {
        std::fs::create_dir_all(&home).expect("made");
        for (path, uid, mode) in [(&*home, of_home, mode_of_home), (outer.path(), of_outer, mode_of_outer)] {
            chown(path, Some(uid), Some(0)).expect("chown");
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
        }
        let (ended, told) = start(&home);
        assert!(
            ended && told.contains("hint:"),
            "{of_home} {of_outer} {mode_of_home:o} {mode_of_outer:o}: {told}"
        );
        assert!(told.contains("can replace what the daemon trusts"), "{told}");
        assert!(std::fs::read_dir(&home).expect("it is there").next().is_none(), "nothing was made in it");
    }
}

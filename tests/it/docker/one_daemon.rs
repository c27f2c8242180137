//! How a daemon comes to be there, and that a home and a socket have one.

use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{Daemon, binary, engine, eventually, in_own_home};

#[test]
fn a_daemon_keeps_nothing_open_that_its_starter_had_open() {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let (home, lock) = (folder.path().join("home"), folder.path().join("lock"));
    let script = "exec 9>\"$1\"; flock 9; \"$0\" ps && exec 9>&- && flock -n \"$1\" true && echo free";
    let mut bash = Command::new("bash");
    let ran =
        in_own_home(&mut bash, &home).args(["-c", script]).arg(binary()).arg(&lock).output().expect("bash");
    let stopped = in_own_home(&mut Command::new(binary()), &home).args(["daemon", "stop"]).output();
    assert!(stopped.expect("belljar").status.success());
    assert!(String::from_utf8_lossy(&ran.stdout).contains("free"), "{ran:?}");
}

/// Runs a second daemon to its end.
fn second(daemon: &Daemon, home: &std::path::Path, socket: &std::path::Path) -> (Option<i32>, String) {
    let mut child = daemon
        .command(["daemon"])
        .env("BELLJAR_HOME", home)
        .env("BELLJAR_SOCKET", socket)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let status = eventually("the second daemon ends", || child.try_wait().expect("wait"));
    let output = child.wait_with_output().expect("it has ended");
    (status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
pub fn a_home_and_a_socket_have_one_daemon() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let before = daemon.containers();
    let other = tempfile::tempdir_in("/tmp").expect("a folder");
    let pid = format!("pid {}", daemon.pid());

    let (code, said) = second(&daemon, daemon.home(), &daemon.socket());
    assert_eq!(code, Some(75), "{said}");
    assert!(said.starts_with("error: ") && said.contains(&pid), "{said}");
    let (code, said) = second(&daemon, daemon.home(), &other.path().join("s"));
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains(&pid), "{said}");
    let (code, said) = second(&daemon, other.path(), &daemon.socket());
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains(&pid), "{said}");

    assert_eq!(daemon.containers(), before, "a second daemon touched the first one's sandboxes");
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    assert_eq!(
        std::fs::read_to_string(daemon.home().join("daemon.pid")).expect("a file").trim(),
        daemon.pid().to_string()
    );

    // What is no socket is never removed.
    let file = other.path().join("precious");
    std::fs::write(&file, "data").expect("written");
    let (code, said) = second(&daemon, other.path(), &file);
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("is no socket") && said.contains("hint: "), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "data");
    let link = other.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    assert_eq!(second(&daemon, other.path(), &link).0, Some(125));
    assert!(link.is_symlink() && file.exists());
}

#[test]
pub fn daemons_of_different_homes_leave_each_other_alone() {
    if !engine() {
        return;
    }
    let first = Daemon::start();
    first.session("a", json!({"image": "belljar/base"}));
    let before = first.containers();
    let mut other = Daemon::start();
    other.session("a", json!({"image": "belljar/base"}));
    other.signal("KILL");
    other.wait();
    other.restart();
    other.cli(["daemon", "stop", "--remove"]).ok();
    other.wait();
    assert_eq!(other.containers(), Vec::<String>::new());
    drop(other);
    assert_eq!(first.containers(), before);
    assert_eq!(first.run("a", "6 * 7")["result"]["repr"], "42");
}

#[test]
fn a_command_starts_a_daemon_where_there_is_none() {
    if !engine() {
        return;
    }
    let home = tempfile::Builder::new().prefix("bj").tempdir_in("/tmp").expect("a folder");
    // The home is as a careless umask leaves it.
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let run = |arguments: &[&str]| {
        let output = in_own_home(&mut Command::new(binary()), home.path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("belljar runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // Several at once, and only one daemon.
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&["ps"]))).collect();
        starts.into_iter().for_each(|start| drop(start.join().expect("it starts or finds one")));
    });
    let pid = std::fs::read_to_string(home.path().join("daemon.pid")).expect("it serves");
    run(&["new", "a", "--image", "belljar/base"]);
    assert_eq!(run(&["exec", "-s", "a", "6 * 7"]), "42\n");
    assert_eq!(std::fs::read_to_string(home.path().join("daemon.pid")).expect("it serves"), pid);
    for entry in std::fs::read_dir(home.path()).expect("the home").flatten() {
        let mode = entry.metadata().expect("stat").permissions().mode();
        if entry.file_type().expect("a type").is_dir() {
            assert_eq!(mode & 0o777, 0o700, "{}", entry.path().display());
        }
    }
    assert_eq!(std::fs::metadata(home.path()).expect("stat").permissions().mode() & 0o777, 0o700);
    let socket = std::fs::metadata(home.path().join("belljar.sock")).expect("stat");
    assert_eq!(socket.permissions().mode() & 0o077, 0, "others may use the socket");
    run(&["daemon", "stop", "--remove"]);
    assert!(!std::path::Path::new("/proc").join(pid.trim()).join("exe").exists(), "it still runs");
}

#[test]
fn a_client_that_waits_does_not_bring_back_a_daemon_that_was_stopped() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let mut waiter = daemon
        .command(["exec", "-s", "a", "import time; print('busy', flush=True); time.sleep(600)"])
        .env_remove("BELLJAR_NO_AUTOSTART")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut seen = [0; 5];
    std::io::Read::read_exact(waiter.stdout.as_mut().expect("piped"), &mut seen).expect("it prints");
    daemon.cli(["daemon", "stop"]).ok();
    daemon.wait();
    let waited = waiter.wait_with_output().expect("it gives up");
    let said = String::from_utf8_lossy(&waited.stderr);
    assert_eq!(waited.status.code(), Some(125), "{said}");
    assert!(said.contains("the daemon was stopped") && !said.contains("started the daemon"), "{said}");
    assert!(!daemon.socket().exists(), "there is another daemon");
    daemon.restart();
    let cell = daemon.http("GET", "/v1/sessions/a/cells/1", b"").expect_status(200);
    assert_eq!(cell["state"], "running", "{cell}");
}

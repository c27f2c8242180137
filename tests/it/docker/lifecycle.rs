//! Every way to end, and what is left after it: nothing, or what the next daemon goes on with.

use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Daemon, SOON, assert_nothing_left, docker, engine, eventually};

const FOREVER: &str = "import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.1)";

fn base() -> Value {
    json!({"image": "belljar/base"})
}

/// Starts a cell that never ends and returns when it runs; gives its number.
#[track_caller]
fn keep_busy(daemon: &Daemon, session: &str) -> u64 {
    let request = json!({"code": FOREVER, "timeout_s": 300}).to_string();
    let path = format!("/v1/sessions/{session}/cells");
    let view = daemon.http("POST", &path, request.as_bytes()).expect_status(202);
    eventually("the cell prints", || {
        daemon.events(session, 0).iter().any(|event| event["type"] == "output").then_some(())
    });
    view["cell"].as_u64().expect("a number")
}

/// Stops a cell, as soon as its sandbox is taken up again.
fn interrupt(daemon: &Daemon, session: &str, cell: u64) {
    let path = format!("/v1/sessions/{session}/interrupt");
    eventually("there is a cell to interrupt", || {
        let told = daemon.http("POST", &path, b"{}").expect_status(200);
        (told["cell"] == json!(cell)).then_some(())
    });
}

#[track_caller]
fn ended(daemon: &Daemon, session: &str, cell: u64) -> Value {
    let path = format!("/v1/sessions/{session}/cells/{cell}");
    eventually("the cell ends", || {
        let view = daemon.http("GET", &path, b"").expect_status(200);
        (view["state"] == "done").then(|| view["result"].clone())
    })
}

fn with_processes_and_files(daemon: &Daemon, session: &str) {
    let code = "
import subprocess, sys, os
subprocess.Popen(['sleep', '3600'], start_new_session=True)
open('file', 'w').write('x')
os.mkdir('closed')
os.chmod('closed', 0)
print('x' * 1_000_000)
";
    assert_eq!(daemon.run(session, code)["status"], "success");
}

#[test]
pub fn rm_leaves_nothing() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    daemon.session("b", base());
    with_processes_and_files(&daemon, "a");
    let cell = keep_busy(&daemon, "b");
    let containers = daemon.containers();
    let waiting = std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| daemon.http("POST", "/v1/sessions/b/cells?wait=true", br#"{"code": "1"}"#));
        eventually("the second cell waits", || {
            let view = daemon.http("GET", "/v1/sessions/b", b"").expect_status(200);
            (view["queued"] == 1).then_some(())
        });
        daemon.cli(["rm", "a", "b"]).ok();
        waiter.join().expect("no panic")
    });
    // The client that waited is told.
    assert_eq!(waiting.expect_status(200)["reason"], "by_cancel");
    assert_eq!(cell, 1);
    assert_nothing_left(&daemon, &containers);
    assert_eq!(daemon.http("GET", "/v1/sessions", b"").expect_status(200)["sessions"], json!([]));
    // The name is free.
    daemon.session("a", base());
    assert_eq!(daemon.run("a", "'x' in globals()")["result"]["repr"], "False");
}

#[test]
pub fn a_running_cell_of_a_removed_session_is_cancelled() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| daemon.run_with("a", json!({"code": FOREVER, "timeout_s": 300})));
        eventually("the cell prints", || {
            daemon.events("a", 0).iter().any(|event| event["type"] == "output").then_some(())
        });
        daemon.cli(["rm", "a"]).ok();
        let result = waiter.join().expect("an answer");
        assert_eq!((&result["status"], &result["reason"]), (&json!("interrupted"), &json!("by_cancel")));
        assert_eq!((&result["code"], &result["stdout"]), (&json!(FOREVER), &json!("begun\n")));
    });
}

#[test]
pub fn whoever_waits_for_a_removal_is_told_when_the_sandbox_is_gone() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    for _ in 0..5 {
        daemon.session("a", base());
        std::thread::scope(|scope| {
            let remove = || {
                let answer = daemon.http("DELETE", "/v1/sessions/a?wait=true", b"");
                (answer.status, daemon.containers())
            };
            let both = [scope.spawn(remove), scope.spawn(remove)].map(|one| one.join().expect("an answer"));
            for (status, left) in both {
                // Who comes when the removal is recorded finds no session any more.
                assert!(status == 200 && left.is_empty() || status == 404, "{status}: {left:?}");
            }
        });
    }
}

#[test]
pub fn a_session_can_be_removed_while_it_starts() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("warm", base());
    let warm = daemon.containers();
    std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            let request = json!({"name": "a", "image": daemon.image()}).to_string();
            daemon.http("POST", "/v1/sessions", request.as_bytes())
        });
        eventually("the session is there", || {
            (daemon.http("GET", "/v1/sessions/a", b"").status == 200).then_some(())
        });
        assert_eq!(daemon.http("DELETE", "/v1/sessions/a", b"").status, 200);
        let answer = making.join().expect("an answer");
        assert!([201, 404].contains(&answer.status), "{}", answer.text());
    });
    eventually("its sandbox is gone", || (daemon.containers() == warm).then_some(()));
    assert_eq!(daemon.run("warm", "6 * 7")["result"]["repr"], "42");

    // The client goes away while its session is made, and the daemon is told to end.
    let mut stream = daemon.connect().expect("it serves");
    let body = json!({"name": "b", "image": daemon.image()}).to_string();
    let head =
        format!("POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("it reads");
    eventually("the session is there", || {
        (daemon.http("GET", "/v1/sessions/b", b"").status == 200).then_some(())
    });
    drop(stream);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), Some(0));
    daemon.restart();
    assert!(daemon.containers().contains(&warm[0]));
    assert_eq!(daemon.run("warm", "6 * 7")["result"]["repr"], "42");
    let all: Vec<String> = daemon.containers().into_iter().chain(warm).collect();
    remove_everything(&mut daemon, &all);
}

/// Stops the daemon with all it has, and looks whether that is so.
#[track_caller]
fn remove_everything(daemon: &mut Daemon, containers: &[String]) {
    daemon.cli(["daemon", "stop", "--remove"]).ok();
    // The containers are gone at once, because the command has waited for that.
    assert_eq!(daemon.containers(), Vec::<String>::new());
    assert!(!daemon.home().join("daemon.pid").exists() && !daemon.socket().exists());
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.stderr());
    assert_nothing_left(daemon, containers);
}

/// Sessions `a`, with files, processes and a variable, and `b`, which is busy; gives their containers
/// and the number of the cell that runs.
fn two_sessions(daemon: &Daemon) -> (Vec<String>, u64) {
    daemon.session("a", base());
    daemon.session("b", base());
    with_processes_and_files(daemon, "a");
    assert_eq!(daemon.run("a", "x = [1]; f = lambda: x")["status"], "success");
    let cell = keep_busy(daemon, "b");
    let containers = daemon.containers();
    assert_eq!(containers.len(), 2);
    (containers, cell)
}

/// Both sessions are as before, in the same containers; the cell still runs and can be stopped.
#[track_caller]
fn both_go_on(daemon: &Daemon, containers: &[String], cell: u64) {
    assert_eq!(daemon.containers(), containers);
    let result = daemon.run("a", "x.append(2); (f(), open('file').read())");
    assert_eq!(result["result"]["repr"], "([1, 2], 'x')", "{result}");
    eventually("the sandbox of the busy one is taken up again", || {
        let view = daemon.http("GET", "/v1/sessions/b", b"").expect_status(200);
        assert_eq!(view["running"], json!(cell), "{view}");
        (view["state"] == "busy").then_some(())
    });
    interrupt(daemon, "b", cell);
    let result = ended(daemon, "b", cell);
    assert_eq!((&result["status"], &result["stdout"]), (&json!("interrupted"), &json!("begun\n")));
}

#[test]
pub fn sigterm_leaves_the_sessions_to_the_next_daemon() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let (containers, cell) = two_sessions(&daemon);
    daemon.signal("TERM");
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.stderr());
    assert!(!daemon.socket().exists() && !daemon.home().join("daemon.pid").exists());
    assert_eq!(daemon.containers(), containers);
    daemon.restart();
    both_go_on(&daemon, &containers, cell);
    daemon.assert_sound();
    remove_everything(&mut daemon, &containers);
}

#[test]
pub fn a_plain_stop_leaves_the_sessions_to_the_next_daemon() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let (containers, cell) = two_sessions(&daemon);
    daemon.cli(["daemon", "stop"]).ok();
    assert!(!daemon.home().join("daemon.pid").exists() && !daemon.socket().exists());
    assert_eq!(daemon.wait(), Some(0));
    assert_eq!(daemon.containers(), containers);
    daemon.restart();
    both_go_on(&daemon, &containers, cell);
    daemon.cli(["rm", "a", "b"]).ok();
    assert_nothing_left(&daemon, &containers);
    remove_everything(&mut daemon, &containers);
}

#[test]
pub fn a_second_sigterm_forces_and_the_next_start_goes_on() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", base());
    let containers = daemon.containers();
    std::thread::scope(|scope| {
        let daemon = &mut daemon;
        let mut stream = daemon.connect().expect("it serves");
        // A client waits for the result: the drain would last until its end.
        let waiter = scope.spawn(move || {
            use std::io::{Read, Write};
            stream.set_read_timeout(Some(SOON)).expect("a timeout");
            let body = json!({"code": FOREVER, "timeout_s": 300}).to_string();
            let head = format!(
                "POST /v1/sessions/a/cells?wait=true HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).expect("it reads");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
        });
        eventually("the cell prints", || {
            daemon.events("a", 0).iter().any(|event| event["type"] == "output").then_some(())
        });
        daemon.signal("TERM");
        eventually("it drains", || std::os::unix::net::UnixStream::connect(daemon.socket()).err());
        let begun = Instant::now();
        daemon.signal("TERM");
        daemon.wait();
        assert!(begun.elapsed() < Duration::from_secs(4), "forcing took {:?}", begun.elapsed());
        waiter.join().expect("the waiter is let go");
    });
    daemon.restart();
    assert_eq!(daemon.containers(), containers);
    interrupt(&daemon, "a", 1);
    assert_eq!(ended(&daemon, "a", 1)["stdout"], "begun\n");
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    remove_everything(&mut daemon, &containers);
}

#[test]
pub fn daemon_stop_returns_when_all_is_gone() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", base());
    with_processes_and_files(&daemon, "a");
    keep_busy(&daemon, "a");
    let containers = daemon.containers();
    remove_everything(&mut daemon, &containers);
    daemon.cli(["daemon", "status"]).exits(1);
    daemon.cli(["daemon", "stop"]).ok();
}

#[test]
pub fn a_daemon_that_is_just_starting_can_be_stopped() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", base());
    let containers = daemon.containers();
    daemon.kill();
    daemon.begin_restart();
    let pid = daemon.pid().to_string();
    let pid_file = daemon.home().join("daemon.pid");
    eventually("it has its home", || (std::fs::read_to_string(&pid_file).ok()?.trim() == pid).then_some(()));
    // It listens only after the command has looked for it.
    daemon.signal("STOP");
    let mut stop = daemon.command(["daemon", "stop", "--remove"]).spawn().expect("belljar runs");
    std::thread::sleep(Duration::from_millis(300));
    assert!(stop.try_wait().expect("wait").is_none(), "it waits for the daemon");
    daemon.signal("CONT");
    assert!(stop.wait().expect("wait").success());
    assert_eq!(daemon.wait(), Some(0));
    assert_nothing_left(&daemon, &containers);
}

#[test]
pub fn after_a_killed_daemon_the_next_one_goes_on() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    let (containers, cell) = two_sessions(&daemon);
    daemon.signal("KILL");
    assert_eq!(daemon.wait(), None);
    assert!(daemon.socket().exists(), "a killed daemon cannot remove its socket");
    assert_eq!(daemon.containers(), containers);
    daemon.restart();
    both_go_on(&daemon, &containers, cell);
    daemon.assert_sound();
    daemon.cli(["rm", "a", "b"]).ok();
    assert_nothing_left(&daemon, &containers);
    assert_eq!(daemon.http("GET", "/v1/sessions", b"").expect_status(200)["sessions"], json!([]));
    daemon.session("a", base());
    assert_eq!(daemon.run("a", "'x' in globals()")["result"]["repr"], "False");
    let again = daemon.containers();
    remove_everything(&mut daemon, &again);
    // What was removed stays so.
    daemon.restart();
    assert_eq!(daemon.http("GET", "/v1/sessions", b"").expect_status(200)["sessions"], json!([]));
    assert_nothing_left(&daemon, &containers);
}

#[test]
fn what_belongs_to_no_session_is_cleared_at_the_start() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.session("a", base());
    assert_eq!(daemon.run("a", "x = 1")["status"], "success");
    let containers = daemon.containers();
    let instance = std::fs::read_to_string(daemon.home().join("instance")).expect("an id");
    let label = format!("belljar.instance={}", instance.trim());
    let unknown = format!("belljar.sandbox={}", uuid_like(7));
    let strays = [
        docker(["create", "--label", &label, "belljar/base"]),
        docker(["create", "--label", &label, "--label", &unknown, "belljar/base"]),
    ];
    let foreign = docker(["create", "--label", "belljar.instance=another", "belljar/base"]);
    for folder in ["s", "w"] {
        std::fs::create_dir(daemon.home().join(folder).join(uuid_like(7))).expect("made");
    }
    daemon.signal("KILL");
    daemon.wait();
    assert_eq!(daemon.containers().len(), 3);
    daemon.restart();
    let left = docker(["ps", "-aq", "--no-trunc"]);
    docker(["rm", "-f", &foreign]);
    assert!(strays.iter().all(|stray| !left.contains(stray)), "{strays:?} are in {left}");
    assert!(left.contains(&foreign), "a container of another daemon was removed");
    assert_eq!(daemon.containers(), containers);
    for folder in ["s", "w"] {
        assert!(!daemon.home().join(folder).join(uuid_like(7)).exists(), "{folder}");
    }
    assert_eq!(daemon.run("a", "x")["result"]["repr"], "1");
    remove_everything(&mut daemon, &containers);
}

/// An id that no session has.
fn uuid_like(n: u8) -> String {
    format!("{n:08x}-0000-4000-8000-000000000000")
}

#[test]
fn a_container_that_is_taken_away_is_told_and_replaced() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    for (round, take) in [["rm", "-f"].as_slice(), &["kill"], &["stop", "-t", "0"]].iter().enumerate() {
        daemon.run("a", "x = 1");
        let mut seen = daemon.events("a", 0).len();
        let request = json!({"code": FOREVER, "timeout_s": 300}).to_string();
        let view = daemon.http("POST", "/v1/sessions/a/cells", request.as_bytes()).expect_status(202);
        eventually("the cell prints", || {
            daemon.events("a", seen as u64).iter().any(|event| event["type"] == "output").then_some(())
        });
        seen = daemon.containers().len();
        assert_eq!(seen, 1);
        let container = daemon.containers().remove(0);
        let begun = Instant::now();
        let taken = Command::new("docker").args(*take).arg(&container).stdout(Stdio::null()).status();
        assert!(taken.expect("docker").success());
        let result = ended(&daemon, "a", view["cell"].as_u64().expect("a number"));
        assert!(begun.elapsed() < Duration::from_secs(15), "round {round}: {:?}", begun.elapsed());
        assert_eq!((&result["status"], &result["reason"]), (&json!("crashed"), &json!("sandbox_lost")));
        assert_eq!((&result["stdout"], &result["exit_code"]), (&json!("begun\n"), &Value::Null));
        assert_eq!(result["state"]["kind"], "lost");

        let next = daemon.run("a", "'x' in globals()");
        assert_eq!(next["result"]["repr"], "True", "what was not saved yet is made again: {next}");
        let note = next["state"]["note"].as_str().expect("a note");
        assert!(note.contains("sandbox is a new one"), "{note}");
        assert!(!daemon.containers().contains(&container), "the dead container was left");
    }
    // Also between cells.
    docker(["rm", "-f", &daemon.containers().remove(0)]);
    eventually("the session notices", || {
        (daemon.http("GET", "/v1/sessions/a", b"").expect_status(200)["state"] == "asleep").then_some(())
    });
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    daemon.assert_sound();
}

#[test]
pub fn a_container_that_a_stranger_pauses_goes_on_to_the_end_of_its_cell() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    let request = json!({"code": FOREVER, "timeout_s": 3}).to_string();
    let view = daemon.http("POST", "/v1/sessions/a/cells", request.as_bytes()).expect_status(202);
    let container = daemon.containers().remove(0);
    daemon.pause_sandbox();
    let result = ended(&daemon, "a", view["cell"].as_u64().expect("a number"));
    assert_eq!(
        (&result["status"], &result["reason"]),
        (&json!("timeout"), &json!("cell_deadline")),
        "{result}"
    );
    assert_eq!(result["state"]["kind"], "restored");
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    assert_eq!(daemon.containers(), [container]);
}

//! Who a caller is: what the machine's lists of users say now, and never more than that.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::docker::jobs::{path, scripts};
use crate::docker::many_users::{ADMINS, ALICE, BOB, USERS, ask};
use crate::support::{Daemon, ROOT, SOON, User, binary, connect_as, copy_lists, eventually, http_as, jails};

/// Longest time after which a change of the lists has to be seen.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

const ANN: User = User { uid: 61_301, gid: 61_301, group: Some(USERS.1) };
const DAN: User = User { uid: 61_302, gid: 61_302, group: Some(USERS.1) };

/// Lists of users that only the daemon sees, in the place of the machine's own.
struct Lists(tempfile::TempDir);

impl Lists {
    fn of_the_machine() -> Self {
        let lists = Self(tempfile::tempdir().expect("a folder"));
        copy_lists(lists.0.path(), "");
        lists
    }

    /// Changes a list in place, because what is mounted is the file and not its name.
    fn set(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).expect("a list");
    }

    fn get(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).expect("a list")
    }

    fn add(&self, name: &str, line: &str) {
        self.set(name, &format!("{}{line}\n", self.get(name)));
    }

    fn daemon(&self, config: &str) -> Daemon {
        let config = format!("{config}\n[admin]\ngroup = \"{}\"\n", ADMINS.0);
        Daemon::for_all_by_lists(USERS.0, &config, self.0.path())
    }
}

fn in_a_jail(test: impl FnOnce()) {
    jails::in_a_jail(None, test);
}

fn without_members(groups: &str) -> String {
    let line = |line: &str| match line.strip_prefix(&format!("{}:", ADMINS.0)) {
        Some(_) => format!("{}:x:{}:\n", ADMINS.0, ADMINS.1),
        None => format!("{line}\n"),
    };
    groups.lines().map(line).collect()
}

/// One request on a connection that stays open; none if the daemon hung up.
fn on(stream: &mut UnixStream, path: &str) -> Option<u16> {
    write!(stream, "GET {path} HTTP/1.1\r\nhost: belljar\r\n\r\n").ok()?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    stream.read_exact(&mut body).ok()?;
    head.split(' ').nth(1)?.parse().ok()
}

#[test]
fn an_administrator_is_one_only_for_as_long_as_the_groups_say_so() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        lists.add("passwd", "bjann:x:61301:61301::/:/bin/sh");
        let member = format!("{}:x:{}:bjann\n", ADMINS.0, ADMINS.1);
        let groups = without_members(&lists.get("group"));
        lists.set("group", &groups.replace(&format!("{}:x:{}:\n", ADMINS.0, ADMINS.1), &member));
        let daemon = lists.daemon("");
        let bobs = ask(&daemon, BOB, "POST", "/v1/sessions", json!({"name": "b"})).expect_status(201);
        let all = "/v1/sessions?all=true";
        // The thread that connects has no other groups than its first.
        let connected = || {
            let stream = connect_as(User { gid: USERS.1, ..ANN }, &daemon.socket()).expect("it serves");
            stream.set_read_timeout(Some(SOON)).expect("a timeout");
            stream
        };
        let mut kept = connected();
        assert_eq!(on(&mut kept, all), Some(200), "the list of groups makes her one");
        let mut events = connected();
        let path = format!("/v1/sessions/{}/events", bobs["id"].as_str().expect("an id"));
        assert_eq!(on(&mut events, &path), Some(200));

        lists.set("group", &groups);
        let since = Instant::now();
        eventually("she is none any more", || {
            let refused = on(&mut kept, all) != Some(200);
            if !refused {
                std::thread::sleep(Duration::from_millis(500));
            }
            refused.then_some(())
        });
        assert!(since.elapsed() < SEEN_WITHIN, "{:?}", since.elapsed());
        // What she followed ends too.
        let mut rest = Vec::new();
        events.set_read_timeout(Some(SEEN_WITHIN)).expect("a timeout");
        let mut piece = [0; 4096];
        let ended = loop {
            match events.read(&mut piece) {
                Ok(0) => break true,
                Ok(count) => rest.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break true,
                Err(_) => break false,
            }
            if since.elapsed() > 2 * SEEN_WITHIN {
                break false;
            }
        };
        assert!(ended, "she still reads the events of another");
        assert_eq!(ask(&daemon, ANN, "GET", all, Value::Null).status, 403);
        assert_eq!(ask(&daemon, ANN, "GET", "/v1/sessions", Value::Null).status, 200);
    });
}

/// A set-gid program that was copied while its user was a member, or a shell that was left open, keeps the group.
#[test]
fn the_group_of_a_process_makes_nobody_an_administrator() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        lists.add("passwd", "bjann:x:61301:61301::/:/bin/sh");
        let daemon = lists.daemon("");
        for user in [User { gid: ADMINS.1, ..ANN }, User { gid: ADMINS.1, ..ALICE }] {
            assert_eq!(ask(&daemon, user, "GET", "/v1/sessions?all=true", Value::Null).status, 403);
            assert_eq!(ask(&daemon, user, "GET", "/v1/quota?user=root", Value::Null).status, 403);
        }
    });
}

/// What a number that was no account has left is not inherited by the account that gets the number.
#[test]
fn an_account_inherits_nothing_of_its_number() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        let mut daemon = lists.daemon("");
        ask(&daemon, DAN, "POST", "/v1/sessions", json!({"name": "secret"})).expect_status(201);
        daemon.kill();
        lists.add("passwd", "bjeve:x:61302:61302::/:/bin/sh");
        daemon.restart();
        let refused = ask(&daemon, DAN, "GET", "/v1/sessions/secret", Value::Null).expect_status(403);
        assert!(refused["message"].as_str().expect("text").contains("no account"), "{refused}");
    });
}

#[test]
fn a_user_id_that_is_another_account_by_now_inherits_nothing() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        let own = lists.get("passwd");
        lists.add("passwd", "bjdan:x:61302:61302::/:/bin/sh");
        let mut daemon = lists.daemon("");
        ask(&daemon, DAN, "POST", "/v1/sessions", json!({"name": "secret"})).expect_status(201);
        // The same holds if no request came meanwhile.
        daemon.kill();
        lists.set("passwd", &format!("{own}bjeve:x:61302:61302::/:/bin/sh\n"));
        daemon.restart();
        let eve = DAN;
        for path in ["/v1/sessions", "/v1/sessions/secret", "/v1/sessions/secret/events?follow=false"] {
            let refused = ask(&daemon, eve, "GET", path, Value::Null).expect_status(403);
            assert!(refused["message"].as_str().expect("text").contains("`bjdan`"), "{refused}");
        }
        ask(&daemon, ROOT, "DELETE", "/v1/sessions/secret@61302", Value::Null).expect_status(200);
        let list = ask(&daemon, eve, "GET", "/v1/sessions", Value::Null).expect_status(200);
        assert_eq!(list["sessions"], json!([]));
        ask(&daemon, eve, "POST", "/v1/sessions", json!({"name": "mine"})).expect_status(201);
    });
}

/// The answers of the account that had the number before are not given to its next one.
#[test]
fn a_user_id_that_is_another_account_by_now_inherits_no_answer() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        let own = lists.get("passwd");
        lists.add("passwd", "bjdan:x:61302:61302::/:/bin/sh");
        let mut daemon = lists.daemon("");
        let made = |daemon: &Daemon| {
            let headers = [("idempotency-key", "the-first")];
            let request = json!({"name": "secret"}).to_string();
            let answer = http_as(DAN, &daemon.socket(), "POST", "/v1/sessions", &headers, request.as_bytes());
            answer.expect_status(201)["id"].clone()
        };
        let dans = made(&daemon);
        assert_eq!(made(&daemon), dans, "the same request of the same account");
        ask(&daemon, DAN, "DELETE", "/v1/sessions/secret", Value::Null).expect_status(200);
        daemon.kill();
        lists.set("passwd", &format!("{own}bjeve:x:61302:61302::/:/bin/sh\n"));
        daemon.restart();
        let eves = made(&daemon);
        assert_ne!(eves, dans);
        assert_eq!(made(&daemon), eves);
    });
}

/// A batch stays for a while when its jobs are forgotten.
#[test]
fn a_user_id_that_is_another_account_by_now_inherits_no_batch() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        let own = lists.get("passwd");
        lists.add("passwd", "bjdan:x:61302:61302::/:/bin/sh");
        let mut daemon = lists.daemon("");
        let folder = scripts(&[("a.py", "print(1)")]);
        let tar =
            Command::new("tar").args(["-C", path(&folder), "-cf", "-", "."]).output().expect("tar").stdout;
        let kind = [("Content-Type", "application/x-tar")];
        let input = http_as(DAN, &daemon.socket(), "PUT", "/v1/job-inputs", &kind, &tar).expect_status(200);
        let request = json!({"common": {"input": input["id"], "script": "a.py"}, "jobs": [{}]});
        let made = ask(&daemon, DAN, "POST", "/v1/batches", request).expect_status(202);
        let (batch, job) = (made["id"].as_str().expect("an id"), made["jobs"][0].as_str().expect("a job"));
        ask(&daemon, DAN, "GET", &format!("/v1/jobs/{job}?wait=true"), Value::Null).expect_status(200);
        eventually("the job is forgotten", || {
            let answer = ask(&daemon, DAN, "DELETE", &format!("/v1/jobs/{job}"), Value::Null);
            (answer.status == 200).then_some(())
        });
        let seen = ask(&daemon, DAN, "GET", "/v1/batches", Value::Null).expect_status(200);
        assert_eq!(seen["batches"][0]["id"], batch);
        daemon.kill();
        lists.set("passwd", &format!("{own}bjeve:x:61302:61302::/:/bin/sh\n"));
        daemon.restart();
        let eve = DAN;
        let seen = ask(&daemon, eve, "GET", "/v1/batches", Value::Null).expect_status(200);
        assert_eq!(seen["batches"], json!([]));
        ask(&daemon, eve, "GET", &format!("/v1/batches/{batch}"), Value::Null).expect_status(404);
    });
}

/// A volume alone is enough to be refused: it outlives the sessions of its user.
#[test]
fn a_user_id_that_is_another_account_by_now_inherits_no_volume() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        let own = lists.get("passwd");
        lists.add("passwd", "bjdan:x:61302:61302::/:/bin/sh");
        let mut daemon = lists.daemon("");
        ask(&daemon, DAN, "POST", "/v1/volumes", json!({"name": "secret"})).expect_status(201);
        daemon.kill();
        lists.set("passwd", &format!("{own}bjeve:x:61302:61302::/:/bin/sh\n"));
        daemon.restart();
        let eve = DAN;
        for (method, path) in
            [("GET", "/v1/volumes"), ("GET", "/v1/volumes/secret/files/"), ("DELETE", "/v1/volumes/secret")]
        {
            let refused = ask(&daemon, eve, method, path, Value::Null).expect_status(403);
            assert!(refused["message"].as_str().expect("text").contains("`bjdan`"), "{refused}");
        }
        ask(&daemon, ROOT, "DELETE", "/v1/volumes/secret@61302", Value::Null).expect_status(200);
        let list = ask(&daemon, eve, "GET", "/v1/volumes", Value::Null).expect_status(200);
        assert_eq!(list["volumes"], json!([]));
        ask(&daemon, eve, "POST", "/v1/volumes", json!({"name": "secret"})).expect_status(201);
    });
}

#[test]
fn user_ids_that_are_lent_to_somebody_are_no_users_of_their_own() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        lists.set("subuid", "bjann:300000:65536\n");
        let daemon = lists.daemon("");
        let by = |uid| ask(&daemon, User { uid, gid: uid, ..ALICE }, "GET", "/v1/sessions", Value::Null);
        for lent in [300_000, 365_535] {
            let refused = by(lent).expect_status(403);
            assert!(refused["message"].as_str().expect("text").contains("`bjann`"), "{refused}");
        }
        let guest = by(2_100_000_001).expect_status(403);
        assert!(guest["message"].as_str().expect("text").contains("guests"), "{guest}");
        for own in [299_999, 365_536] {
            assert_eq!(by(own).status, 200);
        }
    });
}

#[test]
fn a_daemon_does_not_give_guests_the_user_ids_of_others() {
    in_a_jail(|| {
        let lists = Lists::of_the_machine();
        lists.set("subuid", "bjann:200000:65536\n");
        let mut daemon = lists.daemon("");
        daemon.kill();
        for (name, line) in
            [("subuid", "bjann:2100009999:5"), ("passwd", "bjguest:x:2100000005:2100000005::/:/bin/sh")]
        {
            let before = lists.get(name);
            lists.add(name, line);
            assert!(!daemon.try_restart(), "{line}");
            assert!(daemon.stderr().contains("uid_first"), "{}", daemon.stderr());
            lists.set(name, &before);
        }
        daemon.restart();
    });
}

/// A false daemon, which hangs up on every client.
const PRETENDER: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\n\
                         s.listen()\nprint('here', flush=True)\nwhile True: s.accept()[0].close()";

#[test]
fn commands_do_not_talk_to_a_daemon_of_somebody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let socket = folder.path().join("belljar.sock");
    let bob = [format!("--reuid={}", BOB.uid), format!("--regid={}", BOB.gid), "--clear-groups".into()];
    let mut pretender = Command::new("setpriv")
        .args(&bob)
        .args(["/usr/bin/python3", "-I", "-c", PRETENDER])
        .arg(&socket)
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv");
    let mut here = [0; 4];
    pretender.stdout.as_mut().expect("piped").read_exact(&mut here).expect("it listens");
    let asked = |socket: &Path| {
        let said = Command::new("setpriv")
            .args([
                format!("--reuid={}", ALICE.uid),
                format!("--regid={}", ALICE.gid),
                "--clear-groups".into(),
            ])
            .arg(binary())
            .arg("ps")
            .env("BELLJAR_SOCKET", socket)
            .env("BELLJAR_HOME", folder.path())
            .env("BELLJAR_NO_AUTOSTART", "1")
            .output()
            .expect("belljar");
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let refused = asked(&socket);
    // The name may be Alice's; who listens is what counts.
    chown(&socket, Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
    let refused_too = asked(&socket);
    let _ = pretender.kill();
    let _ = pretender.wait();
    for (code, said) in [refused, refused_too] {
        assert_eq!(code, Some(125), "{said}");
        assert!(said.contains(&format!("user {}", BOB.uid)) && said.contains("hint:"), "{said}");
    }
}

#[test]
fn an_engine_that_everybody_may_use_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let socket = folder.path().join("docker.sock");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    let host = format!("unix://{}", socket.display());
    let daemon = Daemon::with_environment("[sandbox]\nbackend = \"docker\"\n", &[("DOCKER_HOST", &host)]);
    let answer = daemon.http("POST", "/v1/sessions", br#"{"name": "a"}"#);
    let problem = answer.expect_status(503);
    assert!(problem["message"].as_str().expect("text").contains("everybody"), "{problem}");
    assert!(problem["hint"].as_str().expect("a hint").contains("chmod"), "{problem}");
}

//! Who runs as whom, and who sees what.

use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use crate::support::{
    Daemon, PackageIndex, User, assert_nothing_left, docker_group, engine, eventually, http_as,
};

/// User ids without accounts; the kernel does not mind.
const ALICE: User = User { uid: 61_001, gid: 61_001, group: None };
const BOB: User = User { uid: 61_002, gid: 61_002, group: None };

fn base() -> Value {
    json!({"image": "belljar/base"})
}

fn folder_of(user: User, mode: u32) -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).expect("chmod");
    chown(folder.path(), Some(user.uid), Some(user.gid)).expect("chown");
    folder
}

#[test]
fn a_user_of_the_engine_can_do_all_of_it() {
    if !engine() {
        return;
    }
    let user = User { group: Some(docker_group()), ..ALICE };
    let mut daemon = Daemon::as_user(user);
    daemon.cli(["new", "a", "--image", "belljar/base"]).ok();
    let containers = daemon.containers();
    assert_eq!(containers.len(), 1);

    let receipt: Value =
        serde_json::from_str(&daemon.cli(["receipt", "a", "--json"]).ok().stdout).expect("JSON");
    assert_eq!(
        (&receipt["process"]["uid"], &receipt["process"]["gid"]),
        (&json!(user.uid), &json!(user.gid))
    );
    assert_eq!(
        (&receipt["process"]["cap_eff"], &receipt["network"]),
        (&json!("0000000000000000"), &json!("none"))
    );

    // State, output, value, failure, crash, time.
    daemon.cli_with_input(["exec", "-s", "a", "-"], "x = 41").ok();
    assert_eq!(daemon.cli(["exec", "-s", "a", "x + 1"]).ok().stdout, "42\n");
    assert_eq!(
        daemon
            .cli(["exec", "-s", "a", "import os; os.write(1, b'raw\\n'); os.system('echo sub')"])
            .ok()
            .stdout,
        "raw\nsub\n0\n"
    );
    daemon.cli(["exec", "-s", "a", "1 / 0"]).exits(1);
    assert_eq!(daemon.cli(["exec", "-s", "a", "x"]).ok().stdout, "41\n");
    daemon.cli(["exec", "-s", "a", "--timeout", "1s", "while True: pass"]).exits(124);
    daemon.cli(["exec", "-s", "a", "import os; os._exit(139)"]).exits(139);
    daemon.cli([
        "exec",
        "-s",
        "a",
        "bytearray(4 << 30)[::4096] and [bytearray(b'x') * (1 << 26) for _ in range(99)]",
    ]);
    assert_eq!(
        daemon.cli(["exec", "-s", "a", "import os; os.getuid()"]).ok().stdout,
        format!("{}\n", user.uid)
    );
    assert_eq!(daemon.cli(["eval", "-s", "a", "2 ** 10"]).ok().stdout, "1024\n");

    // Files, in and out, and folders that the guest closed.
    let folder = folder_of(user, 0o700);
    let file = folder.path().join("in.txt");
    std::fs::write(&file, "hello").expect("written");
    chown(&file, Some(user.uid), Some(user.gid)).expect("chown");
    daemon.cli(["cp", file.to_str().expect("UTF-8"), "a:in.txt"]).ok();
    daemon.cli(["exec", "-s", "a", "open('out.txt', 'w').write(open('in.txt').read().upper())"]).ok();
    assert_eq!(daemon.cli(["cp", "a:out.txt", "-"]).ok().stdout, "HELLO");
    let closed = "import os\nos.makedirs('c/d/e')\nopen('c/d/e/f', 'w').close()\nfor p in ('c/d/e', 'c/d', 'c', '.'): os.chmod(p, 0)";
    daemon.cli(["exec", "-s", "a", closed]).ok();

    // A folder of the user's own as the workspace.
    let own = folder_of(user, 0o700);
    daemon
        .cli(["new", "own", "--image", "belljar/base", "--workspace", own.path().to_str().expect("UTF-8")])
        .ok();
    daemon.cli(["exec", "-s", "own", "open('made', 'w').write('x')"]).ok();
    assert_eq!(std::fs::metadata(own.path().join("made")).expect("it is there").uid(), user.uid);
    let foreign = folder_of(BOB, 0o777);
    let refused =
        daemon.cli(["new", "no", "--workspace", foreign.path().to_str().expect("UTF-8")]).exits(125);
    assert!(
        refused.stderr.contains("not a folder of yours") && refused.stderr.contains("hint:"),
        "{refused:?}"
    );

    let all = daemon.containers();
    daemon.cli(["rm", "a", "own"]).ok();
    assert_nothing_left(&daemon, &all);
    assert!(own.path().join("made").exists(), "the user's own folder was removed");

    daemon.cli(["new", "a", "--image", "belljar/base"]).ok();
    let all = daemon.containers();
    daemon.cli(["daemon", "stop", "--remove"]).ok();
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.stderr());
    assert_nothing_left(&daemon, &all);
}

#[test]
fn a_killed_daemon_of_a_user_is_followed_by_one_that_goes_on() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::as_user(User { group: Some(docker_group()), ..ALICE });
    daemon.cli(["new", "a", "--image", "belljar/base"]).ok();
    let containers = daemon.containers();
    daemon.cli(["exec", "-s", "a", "x = 41"]).ok();
    daemon
        .cli(["exec", "-s", "a", "import os\nos.makedirs('x/y')\nfor p in ('x/y', 'x', '.'): os.chmod(p, 0)"])
        .ok();
    daemon.signal("KILL");
    daemon.wait();
    daemon.restart();
    assert_eq!(daemon.containers(), containers);
    assert_eq!(daemon.cli(["exec", "-s", "a", "x + 1"]).ok().stdout, "42\n");
    daemon.cli(["exec", "-s", "a", "--timeout", "1s", "while True: pass"]).exits(124);
    assert_eq!(daemon.cli(["exec", "-s", "a", "x"]).ok().stdout, "41\n");
    daemon.cli(["rm", "a"]).ok();
    assert_nothing_left(&daemon, &containers);
}

#[test]
fn somebody_without_the_engine_is_told_what_is_missing() {
    if !engine() {
        return;
    }
    let daemon = Daemon::as_user(ALICE);
    let refused = daemon.cli(["new", "a", "--backend", "docker"]).exits(125);
    assert!(refused.stderr.contains("error: ") && refused.stderr.contains("`docker` group"), "{refused:?}");
}

/// A daemon for all users, whose socket others can reach.
fn shared() -> Daemon {
    open_to_all(Daemon::start())
}

fn open_to_all(daemon: Daemon) -> Daemon {
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }
    daemon
}

#[test]
pub fn users_install_at_once_and_nobody_has_the_packages_of_another() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let lists = format!("[user.{}]\npackages_deny = [\"Bell_Set.*\"]\n", ALICE.uid);
    let daemon = open_to_all(index.daemon(&lists));
    let ask = |user: User, path: &str, body: &Value| {
        http_as(user, &daemon.socket(), "POST", path, &[], body.to_string().as_bytes())
    };
    let users = [(ALICE, "hers"), (BOB, "his")];
    for (user, name) in users {
        let request = if daemon.is_jailed() {
            json!({"name": name})
        } else {
            json!({"name": name, "image": "belljar/base"})
        };
        ask(user, "/v1/sessions", &request).expect_status(201);
    }
    std::thread::scope(|scope| {
        let both = users.map(|(user, name)| {
            let path = format!("/v1/sessions/{name}/install");
            scope.spawn(move || ask(user, &path, &json!({"packages": ["bell-hello"]})).expect_status(200))
        });
        for answer in both {
            assert_eq!(answer.join().unwrap()["cached"], json!(false), "nothing of the other was used");
        }
    });
    let cell = json!({"code": "import bell_hello; print(bell_hello.VERSION)"});
    for (user, name) in users {
        let ran = ask(user, &format!("/v1/sessions/{name}/cells?wait=true"), &cell).expect_status(200);
        assert_eq!(ran["stdout"], "2.0\n", "{ran:#}");
        let quota = http_as(user, &daemon.socket(), "GET", "/v1/quota", &[], b"").expect_status(200);
        assert!(quota.to_string().contains("installed packages"), "{quota:#}");
        let cache =
            std::fs::metadata(daemon.home().join("packages").join(user.uid.to_string())).expect("a cache");
        assert_eq!((cache.uid(), cache.mode() & 0o777), (0, 0o700), "only the daemon can look into it");
    }
    let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
    assert!(!quota.to_string().contains("installed packages"), "root pays for nobody: {quota:#}");
    // A list of hers does not hold for others.
    let denied = json!({"packages": ["bell-set-id"]});
    let refused = ask(ALICE, "/v1/sessions/hers/install", &denied).expect_status(403);
    assert!(refused["message"].as_str().unwrap_or_default().contains("bell-set-id"), "{refused}");
    ask(BOB, "/v1/sessions/his/install", &denied).expect_status(200);
}

#[test]
fn another_users_session_does_not_exist() {
    if !engine() {
        return;
    }
    let daemon = shared();
    let mine = daemon.session("private", base());
    daemon.run("private", "secret = 1");
    let id = mine["id"].as_str().expect("an id");
    let ask = |method: &str, path: &str, body: &str| {
        http_as(ALICE, &daemon.socket(), method, path, &[], body.as_bytes())
    };
    let cell = r#"{"code": "secret"}"#;
    let expression = r#"{"expression": "secret"}"#;
    for key in ["private", id] {
        for (method, rest, body) in [
            ("GET", "", ""),
            ("DELETE", "", ""),
            ("POST", "/cells", cell),
            ("POST", "/cells?wait=true", cell),
            ("POST", "/cells?stream=true", cell),
            ("GET", "/cells/1", ""),
            ("POST", "/eval", expression),
            ("POST", "/interrupt", ""),
            ("POST", "/reset", ""),
            ("GET", "/events?follow=false", ""),
            ("GET", "/variables", ""),
            ("GET", "/receipt", ""),
            ("GET", "/files/", ""),
            ("GET", "/files/x", ""),
            ("PUT", "/files/x", "data"),
            ("DELETE", "/files/x", ""),
        ] {
            let answer = ask(method, &format!("/v1/sessions/{key}{rest}"), body);
            assert_eq!(answer.status, 404, "{method} {rest}: {}", answer.text());
            assert_eq!(answer.json()["code"], "no_such_session", "{method} {rest}");
        }
        // Word for word what a session that never was gets.
        let (real, none) =
            (ask("GET", &format!("/v1/sessions/{key}"), ""), ask("GET", "/v1/sessions/none", ""));
        assert_eq!(real.text().replace(key, "none"), none.text());
    }
    assert_eq!(ask("GET", "/v1/sessions", "").expect_status(200)["sessions"], json!([]));

    // What the message claims does not count.
    let claims = [
        ("X-Forwarded-User", "root"),
        ("X-Remote-User", "0"),
        ("X-Uid", "0"),
        ("Authorization", "Basic cm9vdDo="),
    ];
    assert_eq!(http_as(ALICE, &daemon.socket(), "GET", "/v1/sessions/private", &claims, b"").status, 404);
    let claimed = ask("POST", "/v1/sessions", r#"{"name": "x", "owner": 0}"#);
    assert!(claimed.expect_status(400)["message"].as_str().is_some_and(|text| text.contains("owner")));

    // The same name is free for others, and is theirs.
    let theirs =
        ask("POST", "/v1/sessions", r#"{"name": "private", "image": "belljar/base"}"#).expect_status(201);
    assert_eq!(theirs["owner"], ALICE.uid);
    assert_ne!(theirs["id"], mine["id"]);
    let result = ask("POST", "/v1/sessions/private/cells?wait=true", r#"{"code": "'secret' in globals()"}"#);
    assert_eq!(result.expect_status(200)["result"]["repr"], "False");
    assert_eq!(daemon.run("private", "secret")["result"]["repr"], "1");
    let listed = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
    assert_eq!(listed["sessions"].as_array().map(Vec::len), Some(1), "root sees its own only: {listed}");

    // The sandboxes are of different users of the host.
    let uid = |answer: Value| answer["process"]["uid"].as_u64().expect("a uid");
    let own = uid(daemon.http("GET", "/v1/sessions/private/receipt", b"").expect_status(200));
    let others = uid(ask("GET", "/v1/sessions/private/receipt", "").expect_status(200));
    assert!(own != others && own >= 200_000 && others >= 200_000, "{own} {others}");

    assert_eq!(ask("POST", "/v1/shutdown", r#"{"remove": true}"#).expect_status(403)["code"], "forbidden");
    assert_eq!(ask("DELETE", "/v1/sessions/private", "").status, 200);
    assert_eq!(daemon.run("private", "secret")["result"]["repr"], "1");
    daemon.assert_sound();
}

#[test]
fn a_workspace_has_to_be_the_callers_own() {
    if !engine() {
        return;
    }
    let daemon = shared();
    let make = |user: User, name: &str, folder: &str| {
        let body = json!({"name": name, "image": "belljar/base", "workspace": folder}).to_string();
        http_as(user, &daemon.socket(), "POST", "/v1/sessions", &[], body.as_bytes())
    };
    let text = |folder: &tempfile::TempDir| folder.path().to_str().expect("UTF-8").to_owned();
    let (own, bobs) = (folder_of(ALICE, 0o700), folder_of(BOB, 0o777));

    // A folder of another user, one of root and none are all the same to a caller who may not look.
    let file = own.path().join("file");
    std::fs::write(&file, "").expect("written");
    let secret = tempfile::Builder::new().prefix("bjs").tempdir_in("/tmp").expect("a folder");
    std::fs::create_dir(secret.path().join("there")).expect("made");
    std::fs::set_permissions(secret.path(), std::fs::Permissions::from_mode(0o700)).expect("chmod");
    for refused in [
        text(&bobs),
        "/root".into(),
        "/".into(),
        "/etc".into(),
        format!("{}/there", text(&secret)),
        format!("{}/absent", text(&secret)),
        file.to_str().expect("UTF-8").to_owned(),
    ] {
        let answer = make(ALICE, "a", &refused).expect_status(403);
        assert_eq!(answer["message"], format!("`{refused}` is not a folder of yours"));
        assert!(answer["hint"].is_string());
    }
    assert_eq!(make(ALICE, "a", "relative/path").expect_status(400)["code"], "bad_request");
    // Guests are never root, not even root's own.
    let roots = tempfile::Builder::new().prefix("bjr").tempdir_in("/tmp").expect("a folder");
    let body = json!({"workspace": text(&roots)}).to_string();
    let answer = daemon.http("POST", "/v1/sessions", body.as_bytes()).expect_status(403);
    assert!(answer["message"].as_str().is_some_and(|text| text.contains("belongs to root")), "{answer}");
    assert_eq!(daemon.containers(), Vec::<String>::new());

    // A link to a folder of another user is that folder.
    let link = own.path().join("link");
    std::os::unix::fs::symlink(bobs.path(), &link).expect("a link");
    assert_eq!(make(ALICE, "a", link.to_str().expect("UTF-8")).status, 403);

    // One's own: the guest is its owner, and so are the files.
    let view = make(ALICE, "a", &text(&own)).expect_status(201);
    assert_eq!(view["workspace"], text(&own));
    let ask = |method: &str, path: &str, body: &str| {
        http_as(ALICE, &daemon.socket(), method, path, &[], body.as_bytes())
    };
    let receipt = ask("GET", "/v1/sessions/a/receipt", "").expect_status(200);
    assert_eq!(
        (&receipt["process"]["uid"], &receipt["process"]["gid"]),
        (&json!(ALICE.uid), &json!(ALICE.gid))
    );
    let made = ask("POST", "/v1/sessions/a/cells?wait=true", r#"{"code": "open('made', 'w').write('x')"}"#);
    assert_eq!(made.expect_status(200)["status"], "success");
    assert_eq!(ask("PUT", "/v1/sessions/a/files/sub/put", "y").status, 200);
    for name in ["made", "sub", "sub/put"] {
        let found = std::fs::metadata(own.path().join(name)).expect("it is there");
        assert_eq!((found.uid(), found.gid()), (ALICE.uid, ALICE.gid), "{name}");
    }
    assert_eq!(ask("DELETE", "/v1/sessions/a", "").status, 200);
    assert!(own.path().join("made").exists(), "the owner's folder was removed");

    // `chown USER` leaves root's group; the guest is not of it.
    let half = folder_of(ALICE, 0o700);
    chown(half.path(), None, Some(0)).expect("chown");
    make(ALICE, "half", &text(&half)).expect_status(201);
    let receipt = ask("GET", "/v1/sessions/half/receipt", "").expect_status(200);
    assert_eq!(receipt["process"]["gid"], ALICE.uid);
    daemon.assert_sound();
}

#[test]
fn a_workspace_that_is_swapped_after_the_check_runs_no_code() {
    if !engine() {
        return;
    }
    let daemon = shared();
    let parent = folder_of(ALICE, 0o755);
    let (own, bobs) = (parent.path().join("own"), folder_of(BOB, 0o755));
    std::fs::create_dir(&own).expect("made");
    chown(&own, Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
    let ask = |method: &str, path: &str, body: &str| {
        http_as(ALICE, &daemon.socket(), method, path, &[], body.as_bytes())
    };
    let body = json!({"name": "a", "image": "belljar/base", "workspace": own}).to_string();
    ask("POST", "/v1/sessions", &body).expect_status(201);

    // The session holds the folder that was checked. Its path now leads elsewhere, and a new sandbox
    // would mount what is there now.
    std::fs::rename(&own, parent.path().join("moved")).expect("moved");
    std::os::unix::fs::symlink(bobs.path(), &own).expect("a link");
    crate::support::docker(["rm", "-f", &daemon.containers().remove(0)]);
    eventually("the session notices", || {
        (ask("GET", "/v1/sessions/a", "").expect_status(200)["state"] == "asleep").then_some(())
    });
    let result = ask("POST", "/v1/sessions/a/cells?wait=true", r#"{"code": "open('planted', 'w').close()"}"#);
    let result = result.expect_status(200);
    assert_ne!(result["status"], "success", "{result}");
    let note = result["state"]["note"].as_str().expect("a note");
    assert!(note.contains("the folder mounted as the workspace"), "{note}");
    assert!(!bobs.path().join("planted").exists());
    // Files still go to the folder that was checked.
    assert_eq!(ask("PUT", "/v1/sessions/a/files/put", "x").status, 200);
    assert!(parent.path().join("moved/put").exists() && !bobs.path().join("put").exists());
    eventually("no container is left", || daemon.containers().is_empty().then_some(()));
}

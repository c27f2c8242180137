//! Folders beside the workspace: volumes, which outlive sessions, and folders of the caller.

use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::helpers::text;
use super::many_users::{ALICE, BOB, CAROL, ask, run, shared, used};
use crate::support::{Daemon, Response, User, docker_group, engine, eventually, http_as};

const USER: User = User { uid: 61_005, gid: 61_005, group: None };

/// A daemon of an ordinary user; none if there shall be no engine.
pub fn of_a_user(config: &str) -> Option<Daemon> {
    engine().then(|| Daemon::as_user_with(User { group: Some(docker_group()), ..USER }, config))
}

fn folder_of(user: User) -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bjm").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("chmod");
    let file = folder.path().join("note");
    std::fs::write(&file, "of the caller").expect("a file");
    for path in [folder.path(), &file] {
        chown(path, Some(user.uid), Some(user.gid)).expect("chown");
    }
    folder
}

fn session(daemon: &Daemon, user: User, name: &str, mut request: Value) -> Response {
    (request["name"], request["image"]) = (json!(name), json!(daemon.image()));
    ask(daemon, user, "POST", "/v1/sessions", request)
}

#[test]
pub fn a_volume_outlives_its_sessions_and_several_have_it_at_a_time() {
    if !engine() {
        return;
    }
    let mut daemon = shared("");
    let create = |daemon: &Daemon, user| ask(daemon, user, "POST", "/v1/volumes", json!({"name": "models"}));
    create(&daemon, ALICE).expect_status(201);
    assert_eq!(text(&create(&daemon, ALICE).expect_status(409), "code"), "volume_exists");
    let writes = |target: &str| json!({"volumes": [{"name": "models", "target": target}]});
    // Another user does not see it.
    let volumes =
        |daemon: &Daemon, user| ask(daemon, user, "GET", "/v1/volumes", Value::Null).expect_status(200);
    assert_eq!(volumes(&daemon, BOB), json!({"volumes": []}));
    let missing = session(&daemon, BOB, "x", writes("/data")).expect_status(404);
    assert_eq!(text(&missing, "code"), "no_such_volume");
    assert_eq!(ask(&daemon, BOB, "DELETE", "/v1/volumes/models", Value::Null).status, 404);

    session(&daemon, ALICE, "a", writes("/data/models")).expect_status(201);
    let reads = json!({"volumes": [{"name": "models", "target": "/models", "read_only": true}]});
    session(&daemon, ALICE, "b", reads).expect_status(201);
    let code = "import os\nopen('/data/models/x', 'w').write('of a')\nopen('own', 'w').close()\nprint(os.getuid(), os.getgid())";
    let wrote = run(&daemon, ALICE, "a", code);
    assert_eq!(text(&wrote, "stdout"), format!("{} {}\n", ALICE.uid, ALICE.gid), "{wrote:#}");
    let code = "print(open('/models/x').read())\ntry:\n    open('/models/y', 'w')\nexcept OSError as error:\n    print(error.errno)";
    assert_eq!(text(&run(&daemon, ALICE, "b", code), "stdout"), "of a\n30\n");
    let path = daemon.home().join(format!("v/{}/models", ALICE.uid));
    let found = std::fs::metadata(path.join("x")).expect("on the host");
    assert_eq!((found.uid(), found.gid()), (ALICE.uid, ALICE.gid));

    // It is not removed while a session names it, whether that has a sandbox or not.
    let in_use = |daemon: &Daemon| {
        let refused = ask(daemon, ALICE, "DELETE", "/v1/volumes/models", Value::Null).expect_status(409);
        assert_eq!(text(&refused, "code"), "busy");
        assert!(text(&refused, "message").contains("`a`, `b`"), "{refused:#}");
    };
    in_use(&daemon);
    daemon.kill();
    daemon.restart();
    in_use(&daemon);
    assert_eq!(volumes(&daemon, ALICE)["volumes"][0]["sessions"], json!(["a", "b"]));
    daemon.remove_sandboxes();
    let again = "print(open('/data/models/x').read(), len(open('own').read()))";
    eventually("the session notices", || {
        let view = ask(&daemon, ALICE, "GET", "/v1/sessions/a", Value::Null).expect_status(200);
        (view["state"] == "asleep").then_some(())
    });
    assert_eq!(text(&run(&daemon, ALICE, "a", again), "stdout"), "of a 0\n");
    for name in ["a", "b"] {
        ask(&daemon, ALICE, "DELETE", &format!("/v1/sessions/{name}?wait=true"), Value::Null)
            .expect_status(200);
    }
    assert!(path.join("x").exists());
    ask(&daemon, ALICE, "DELETE", "/v1/volumes/models", Value::Null).expect_status(200);
    assert_eq!(volumes(&daemon, ALICE), json!({"volumes": []}));
    create(&daemon, ALICE).expect_status(201);
    session(&daemon, ALICE, "c", writes("/data")).expect_status(201);
    assert_eq!(text(&run(&daemon, ALICE, "c", "import os; print(os.listdir('/data'))"), "stdout"), "[]\n");
    eventually("the old files are gone", || {
        let left = std::fs::read_dir(path.parent().expect("of alice")).expect("listed").count();
        (left == 1).then_some(())
    });

    // No guest runs as root, so root has no use for one.
    let refused = daemon.http("POST", "/v1/volumes", br#"{"name": "roots"}"#).expect_status(403);
    assert!(text(&refused, "message").contains("no guest runs as root"), "{refused:#}");
    daemon.assert_sound();
}

#[test]
pub fn what_a_volume_holds_is_in_its_users_quota() {
    if !engine() {
        return;
    }
    let daemon = shared("[sandbox]\nworkspace = \"64MiB\"\n");
    ask(&daemon, ALICE, "POST", "/v1/volumes", json!({"name": "v"})).expect_status(201);
    session(&daemon, ALICE, "a", json!({"volumes": [{"name": "v", "target": "/data"}]})).expect_status(201);
    let write = |count: usize| {
        format!(
            "import os, time\nfor n in range({count}): open(f'/data/{{n}}', 'wb').write(os.urandom(32 << 20))\n"
        )
    };
    assert_eq!(run(&daemon, ALICE, "a", &write(1))["status"], "success");
    eventually("it is counted", || (used(&daemon, ALICE, "workspace") >= 32 << 20).then_some(()));
    assert_eq!(used(&daemon, BOB, "workspace"), 0);
    let result = run(&daemon, ALICE, "a", &format!("{}time.sleep(25)", write(3)));
    assert_eq!(
        (text(&result, "status"), text(&result, "reason")),
        ("crashed", "policy_violation"),
        "{result:#}"
    );
    assert!(text(&result, "/state/note").contains("volume `v` held"), "{result:#}");
    assert_eq!(
        run(&daemon, ALICE, "a", "import os\nfor n in range(3): os.unlink(f'/data/{n}')")["status"],
        "success"
    );
    eventually("room is made", || (used(&daemon, ALICE, "workspace") < 1 << 20).then_some(()));
}

#[test]
pub fn a_folder_of_the_caller_can_be_read_and_nothing_else() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let (own, bobs) = (folder_of(ALICE), folder_of(BOB));
    let mount =
        |folder: &std::path::Path, target: &str| json!({"mounts": [{"folder": folder, "target": target}]});
    let refused = session(&daemon, ALICE, "x", mount(bobs.path(), "/ref")).expect_status(403);
    assert!(text(&refused, "message").contains("not a folder of yours"), "{refused:#}");
    for taken in
        ["/usr/share", "/etc", "/workspace/ref", "/proc/1", "/belljar/kernel", "/tmp", "ref", "/a/../usr"]
    {
        let refused = session(&daemon, ALICE, "x", mount(own.path(), taken)).expect_status(400);
        assert!(text(&refused, "message").contains(taken), "{refused:#}");
    }
    session(&daemon, ALICE, "x", mount(&daemon.home().join("s"), "/ref")).expect_status(403);
    session(&daemon, ALICE, "a", mount(own.path(), "/ref")).expect_status(201);
    let code = "print(open('/ref/note').read())\nfor attempt in ('a', 'w'):\n    try:\n        open('/ref/note', attempt)\n    \
                except OSError as error:\n        print(error.errno)";
    assert_eq!(text(&run(&daemon, ALICE, "a", code), "stdout"), "of the caller\n30\n30\n");

    // The session holds the folder that was checked. Its path now leads elsewhere, and a new sandbox would mount what
    // is there now.
    let moved = own.path().with_extension("moved");
    std::fs::rename(own.path(), &moved).expect("moved");
    std::os::unix::fs::symlink(bobs.path(), own.path()).expect("a link");
    daemon.remove_sandboxes();
    eventually("the session notices", || {
        let view = ask(&daemon, ALICE, "GET", "/v1/sessions/a", Value::Null).expect_status(200);
        (view["state"] == "asleep").then_some(())
    });
    let result = run(&daemon, ALICE, "a", "print(open('/ref/note').read())");
    assert_ne!(result["status"], "success", "{result:#}");
    assert!(result.to_string().contains("the folders mounted beside the workspace"), "{result:#}");
    std::fs::remove_file(own.path()).expect("the link");
    std::fs::rename(&moved, own.path()).expect("back");
    assert_eq!(text(&run(&daemon, ALICE, "a", code), "stdout"), "of the caller\n30\n30\n");
}

#[test]
pub fn volumes_and_mounts_are_made_and_shown_by_commands() {
    let Some(daemon) = of_a_user("") else { return };
    let user = daemon.owner();
    let folder = folder_of(user);
    let mount = format!("{}:/ref:ro", folder.path().display());
    assert_eq!(daemon.cli(["volume", "create", "data"]).ok().stdout, "data\n");
    let told = daemon.cli(["volume", "create", "data"]).exits(125);
    assert!(told.stderr.contains("--volume data:/data"), "{}", told.stderr);
    let new = ["new", "a", "--image", daemon.image(), "--volume", "data:/data", "--mount", &mount];
    daemon.cli(new).ok();
    let code = "open('/data/x', 'w').write(open('/ref/note').read())";
    daemon.cli(["exec", "-s", "a", code]).ok();
    let shown = daemon.cli(["show", "a"]).ok().stdout;
    assert!(shown.contains("data at /data") && shown.contains("at /ref, read-only"), "{shown}");
    let listed = daemon.cli(["volume", "ls"]).ok().stdout;
    assert!(listed.contains("NAME  SIZE") && listed.contains("data") && listed.contains('a'), "{listed}");
    let told = daemon.cli(["volume", "rm", "data"]).exits(125);
    assert!(told.stderr.contains("is used by the session `a`"), "{}", told.stderr);
    // Files go in and out without the session, too.
    let note = folder.path().join("note");
    let note = note.to_str().expect("a path");
    daemon.cli(["cp", note, "volume/data:into/"]).ok();
    assert_eq!(
        daemon.cli(["exec", "-s", "a", "print(open('/data/into/note').read())"]).ok().stdout,
        "of the caller\n"
    );
    assert_eq!(daemon.cli(["cp", "volume/data:x", "-"]).ok().stdout, "of the caller");
    let told = daemon.cli(["cp", "volume/none:x", "-"]).exits(125);
    assert!(told.stderr.contains("no volume `none`"), "{}", told.stderr);
    daemon.cli(["rm", "a"]).ok();
    daemon.cli(["new", "b", "--image", daemon.image(), "--volume", "data:/data:ro"]).ok();
    assert_eq!(
        daemon.cli(["exec", "-s", "b", "print(open('/data/x').read())"]).ok().stdout,
        "of the caller\n"
    );
    daemon.cli(["exec", "-s", "b", "open('/data/x', 'w')"]).exits(1);
    daemon.cli(["rm", "b"]).ok();
    assert_eq!(daemon.cli(["volume", "rm", "data"]).ok().stdout, "data\n");
    assert!(daemon.cli(["volume", "ls"]).ok().stderr.contains("belljar volume create"));
    for wrong in ["data", "data:/usr", "data:relative", "../x:/data"] {
        daemon.cli(["new", "c", "--volume", wrong]).exits(64);
    }
    daemon.cli(["new", "c", "--mount", &mount.replace(":ro", ":rw")]).exits(64);
    let told = daemon.cli(["new", "c", "--volume", "data:/data"]).exits(125);
    assert!(told.stderr.contains("belljar volume create data"), "{}", told.stderr);
}

#[test]
pub fn an_administrator_sees_and_removes_the_volumes_of_all_users() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    ask(&daemon, ALICE, "POST", "/v1/volumes", json!({"name": "v"})).expect_status(201);
    let of_all = "/v1/volumes?all=true";
    assert_eq!(ask(&daemon, BOB, "GET", of_all, Value::Null).status, 403);
    let all = ask(&daemon, CAROL, "GET", of_all, Value::Null).expect_status(200);
    assert_eq!((&all["volumes"][0]["owner"], text(&all, "/volumes/0/name")), (&json!(ALICE.uid), "v"));
    assert_eq!(
        ask(&daemon, CAROL, "GET", "/v1/volumes", Value::Null).expect_status(200)["volumes"],
        json!([])
    );
    let named = format!("/v1/volumes/v@{}", ALICE.uid);
    assert_eq!(
        text(&ask(&daemon, BOB, "DELETE", &named, Value::Null).expect_status(404), "code"),
        "no_such_volume"
    );
    assert_eq!(ask(&daemon, CAROL, "DELETE", "/v1/volumes/v", Value::Null).status, 404);
    // The names of others are no way to their files.
    assert_eq!(ask(&daemon, CAROL, "GET", &format!("{named}/files/"), Value::Null).status, 400);
    ask(&daemon, CAROL, "DELETE", &named, Value::Null).expect_status(200);
    assert_eq!(
        ask(&daemon, ALICE, "GET", "/v1/volumes", Value::Null).expect_status(200)["volumes"],
        json!([])
    );
}

#[test]
pub fn files_of_a_volume_are_its_owners_and_stay_within_its_bounds() {
    if !engine() {
        return;
    }
    let daemon = shared("[sandbox]\nworkspace = \"16MiB\"\n");
    ask(&daemon, ALICE, "POST", "/v1/volumes", json!({"name": "v"})).expect_status(201);
    let at = |user, method: &str, path: &str, body: &[u8]| {
        http_as(user, &daemon.socket(), method, &format!("/v1/volumes/v/files/{path}"), &[], body)
    };
    at(ALICE, "PUT", "sub/x", b"of alice").expect_status(200);
    let path = daemon.home().join(format!("v/{}/v", ALICE.uid));
    let found = std::fs::metadata(path.join("sub/x")).expect("on the host");
    assert_eq!((found.uid(), found.gid()), (ALICE.uid, ALICE.gid));
    let got = at(ALICE, "GET", "sub/x", b"");
    assert_eq!((got.status, got.text().as_str()), (200, "of alice"));
    for method in ["GET", "PUT", "DELETE"] {
        let refused = at(BOB, method, "sub/x", b"").expect_status(404);
        assert_eq!(text(&refused, "code"), "no_such_volume", "{method}");
    }
    // No link leads out, and no path does.
    std::os::unix::fs::symlink("/etc", path.join("out")).expect("a link");
    assert_ne!(at(ALICE, "GET", "out/passwd", b"").status, 200);
    assert_ne!(at(ALICE, "PUT", "out/passwd", b"x").status, 200);
    assert_ne!(at(ALICE, "GET", "..%2f..%2faccounts", b"").status, 200);
    let refused = at(ALICE, "PUT", "large", &vec![1; 20 << 20]).expect_status(413);
    assert_eq!(text(&refused, "code"), "too_large");
    assert!(!path.join("large").exists());
    at(ALICE, "PUT", "fits", &vec![1; 8 << 20]).expect_status(200);
    assert!(used(&daemon, ALICE, "workspace") >= 8 << 20, "charged at once");
    at(ALICE, "DELETE", "fits", b"").expect_status(200);
    assert!(used(&daemon, ALICE, "workspace") < 8 << 20, "and given back");
    daemon.assert_sound();
}

/// A user can write into a volume from outside, with the rights of a guest's process.
#[test]
pub fn what_is_written_to_a_volume_from_outside_is_charged_and_ends_cells() {
    if !engine() {
        return;
    }
    let daemon = shared("[sandbox]\nworkspace = \"64MiB\"\n[quota]\nworkspace = \"64MiB\"\n");
    ask(&daemon, ALICE, "POST", "/v1/volumes", json!({"name": "v"})).expect_status(201);
    session(&daemon, ALICE, "a", json!({"volumes": [{"name": "v", "target": "/data"}]})).expect_status(201);
    let path = daemon.home().join(format!("v/{}/v", ALICE.uid));
    let write = |name: &str, mib: usize| {
        std::fs::write(path.join(name), vec![1; mib << 20]).expect("written");
        chown(path.join(name), Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
    };
    write("first", 40);
    eventually("it is charged", || (used(&daemon, ALICE, "workspace") >= 40 << 20).then_some(()));
    let queued =
        ask(&daemon, ALICE, "POST", "/v1/sessions/a/cells", json!({"code": "import time; time.sleep(60)"}));
    let cell = queued.expect_status(202)["cell"].as_u64().expect("a number");
    // The first look at a volume only notes its size.
    std::thread::sleep(std::time::Duration::from_secs(3));
    write("second", 60);
    std::thread::sleep(std::time::Duration::from_secs(3));
    write("third", 60);
    let path_of_cell = format!("/v1/sessions/a/cells/{cell}?wait=true");
    let view = ask(&daemon, ALICE, "GET", &path_of_cell, Value::Null).expect_status(200);
    assert_eq!(text(&view, "/result/reason"), "policy_violation", "{view:#}");
    eventually("further cells are refused", || {
        let refused = ask(&daemon, ALICE, "POST", "/v1/sessions/a/cells", json!({"code": "1"}));
        (refused.status == 429 && refused.text().contains("quota_exceeded")).then_some(())
    });
    for name in ["second", "third"] {
        std::fs::remove_file(path.join(name)).expect("removed");
    }
    eventually("there is room again", || (used(&daemon, ALICE, "workspace") < 64 << 20).then_some(()));
    assert_eq!(run(&daemon, ALICE, "a", "1")["status"], "success");
}

//! Packages that are installed into sessions, from an index that the test starts.

use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

use super::archives::{export, import};
use super::asking::events_of;
use super::helpers::{S, end, list, post, raised, restart_by, text, value};
use super::repl::{Step, play};
use crate::support::{Daemon, PackageIndex, engine, eventually, jails};

const HELLO: &str = "import bell_hello; bell_hello.VERSION";
/// Runs the program of the same package, which the path has to lead to.
const PROGRAM: &str =
    "import subprocess; subprocess.run(['bell-hello'], capture_output=True, text=True, check=True).stdout";
/// Time in which another session has imported what was installed before.
const ANOTHER_SESSION_WITHIN: Duration = Duration::from_millis(300);

/// An index, and a daemon that uses it with a session; none if there shall be no engine.
fn begin(more: &str) -> Option<(PackageIndex, Daemon)> {
    if !engine() {
        return None;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon(more);
    daemon.session(S, json!({"image": "belljar/base"}));
    Some((index, daemon))
}

#[track_caller]
pub fn install(daemon: &Daemon, session: &str, packages: &[&str], status: u16) -> Value {
    let request = json!({"packages": packages}).to_string();
    let path = format!("/v1/sessions/{session}/install");
    daemon.http("POST", &path, request.as_bytes()).expect_status(status)
}

fn names_in(answer: &Value) -> Vec<String> {
    let packages = list(answer, "packages").iter();
    packages.map(|package| format!("{} {}", text(package, "name"), text(package, "version"))).collect()
}

/// Files below the cache that are neither notes nor part of a complete set.
pub fn drafts(daemon: &Daemon) -> usize {
    let caches = std::fs::read_dir(daemon.home().join("packages")).into_iter().flatten().flatten();
    let folders = caches.filter_map(|cache| std::fs::read_dir(cache.path().join("drafts")).ok());
    folders.map(Iterator::count).sum()
}

#[test]
pub fn installed_packages_are_there_at_once_and_stay() {
    let Some((mut index, mut daemon)) = begin("") else { return };
    daemon.run(S, "x = 41");
    raised(&daemon, "import bell_hello", "ModuleNotFoundError");
    let told = daemon.cli(["install", "-s", S, "bell-hello"]).ok();
    assert_eq!(told.stdout, "bell-dep 1.0\nbell-hello 2.0\n");
    let journaled = events_of(&daemon, "packages_installed").pop().expect("it is in the journal");
    let hashes = list(&journaled["set"], "packages").iter().map(|package| text(package, "sha256").len());
    assert_eq!(hashes.collect::<Vec<_>>(), [64, 64], "{journaled:#}");
    assert_eq!(value(&daemon, &format!("{HELLO} + str(x + 1)")), "'2.042'");
    let magic = daemon.run(S, "%pip install 'bell-set-id'\nimport bell_set_id");
    assert!(text(&magic, "stdout").contains("bell-set-id"), "{magic:#}");
    // Programs that code starts have them, too, and their scripts are on the path.
    let program =
        "import subprocess, sys; run = lambda *words: subprocess.run(words, capture_output=True, text=True)";
    daemon.run(S, program);
    assert_eq!(value(&daemon, "run('bell-hello').stdout"), "'hello 2.0\\n'");
    assert_eq!(
        value(&daemon, "run(sys.executable, '-c', 'import bell_dep.inner as i; print(i.DEEP)').stdout"),
        "'7\\n'"
    );
    // No code in the sandbox can change them, and bytecode is there.
    let write = "try:\n    open(bell_hello.__file__, 'a')\nexcept OSError as error:\n    print('refused')";
    assert_eq!(text(&daemon.run(S, write), "stdout"), "refused\n");
    let flags = "import os; bool(os.statvfs('/belljar/packages').f_flag & os.ST_RDONLY)";
    assert_eq!(value(&daemon, flags), "True");
    assert_eq!(
        value(
            &daemon,
            "import bell_dep.inner as i; i.__cached__ is not None and __import__('os').path.exists(i.__cached__)"
        ),
        "True"
    );
    assert!(
        value(&daemon, "i.f.__code__.co_filename if hasattr(i, 'f') else i.__file__")
            .contains("/belljar/packages/site/")
    );
    // Another session has them without the index, at once. Others may keep the machine busy, so the quickest of three.
    index.stop();
    let quickest = ["u", "v", "t"].map(|name| {
        let idle_s = if name == "t" { 1 } else { 600 };
        daemon.session(name, json!({"image": "belljar/base", "idle_s": idle_s}));
        let begun = Instant::now();
        let again = install(&daemon, name, &["bell-hello"], 200);
        assert_eq!(text(&daemon.run(name, HELLO), "/result/repr"), "'2.0'");
        let took = begun.elapsed();
        assert_eq!(again["cached"], json!(true), "{again:#}");
        took
    });
    let quickest = quickest.into_iter().min().expect("three");
    assert!(quickest < ANOTHER_SESSION_WITHIN, "{quickest:?}");
    println!("a second session had imported it after {quickest:?}");
    let of_t = |daemon: &Daemon| text(&daemon.run("t", HELLO), "/result/repr").to_owned();
    assert_eq!(of_t(&daemon), "'2.0'");
    // They are there after a reset, an undo, the end of the worker and of the daemon, and in the next sandbox, with their
    // programs on the path.
    let is_there = |daemon: &Daemon| {
        assert_eq!(value(daemon, HELLO), "'2.0'");
        assert_eq!(value(daemon, PROGRAM), "'hello 2.0\\n'");
    };
    post(&daemon, "undo", &json!({"cells": 1})).expect_status(200);
    is_there(&daemon);
    daemon.run(S, "import os; os._exit(1)");
    is_there(&daemon);
    post(&daemon, "reset", &json!({})).expect_status(200);
    is_there(&daemon);
    restart_by(&mut daemon, "KILL");
    is_there(&daemon);
    eventually("the sandbox of `t` goes", || {
        let view = daemon.http("GET", "/v1/sessions/t", b"").expect_status(200);
        (text(&view, "state") == "asleep").then_some(())
    });
    assert_eq!(of_t(&daemon), "'2.0'");
    post(&daemon, "replay", &json!({})).expect_status(200);
    is_there(&daemon);
    end(&mut daemon, "TERM");
}

#[test]
pub fn branches_and_archives_have_the_packages_of_their_session() {
    let Some((index, daemon)) = begin("") else { return };
    install(&daemon, S, &["bell-hello"], 200);
    assert_eq!(value(&daemon, HELLO), "'2.0'");
    // The module is a variable that needs them as soon as it is loaded, and another one is imported only then.
    let has_them = |daemon: &Daemon, session: &str| {
        let result = daemon
            .run(session, "before = bell_hello.VERSION\nimport bell_dep.inner\nbefore, bell_dep.inner.DEEP");
        assert_eq!(text(&result, "/result/repr"), "('2.0', 7)", "{session}: {result:#}");
    };
    post(&daemon, "branch", &json!({"name": "branched"})).expect_status(201);
    has_them(&daemon, "branched");
    // The other home has nothing in its cache.
    let archive = export(&daemon);
    let other = index.daemon("");
    import(&other, "name=moved", &archive).expect_status(201);
    has_them(&other, "moved");
    has_them(&daemon, S);
    daemon.assert_sound();
    other.assert_sound();
}

#[test]
pub fn an_archive_brings_the_versions_that_its_variables_were_made_with() {
    let Some((index, daemon)) = begin("") else { return };
    index.first_versions_only(true);
    assert_eq!(names_in(&install(&daemon, S, &["bell-hello"], 200)), ["bell-dep 1.0", "bell-hello 1.0"]);
    assert_eq!(value(&daemon, HELLO), "'1.0'");
    let archive = export(&daemon);
    index.first_versions_only(false);
    let other = index.daemon("");
    // The other home knows the newest version for the same request.
    other.session("newest", json!({"image": "belljar/base"}));
    let newest = install(&other, "newest", &["bell-hello"], 200);
    assert_eq!(names_in(&newest), ["bell-dep 1.0", "bell-hello 2.0"]);
    import(&other, "name=moved", &archive).expect_status(201);
    let version_in = |daemon: &Daemon, session: &str| {
        text(&daemon.run(session, "bell_hello.VERSION"), "/result/repr").to_owned()
    };
    assert_eq!(version_in(&other, "moved"), "'1.0'");
    // An archive comes from a stranger, so the versions that it pins must not become what its importer's other sessions
    // are given, also not after the imported session itself has asked again.
    let third = index.daemon("");
    import(&third, "name=moved", &archive).expect_status(201);
    let again = install(&third, "moved", &["bell-hello"], 200);
    assert_eq!(names_in(&again), ["bell-dep 1.0", "bell-hello 1.0"]);
    assert_eq!(again["cached"], json!(true), "{again:#}");
    third.session("newest", json!({"image": "belljar/base"}));
    let newest = install(&third, "newest", &["bell-hello"], 200);
    assert_eq!(names_in(&newest), ["bell-dep 1.0", "bell-hello 2.0"]);
    assert_eq!(version_in(&third, "moved"), "'1.0'");
    // The session asks for what it asked for before, which the newest would do for, too.
    let has = other.events("moved", 0).into_iter().find(|event| event["type"] == "packages_installed");
    assert_eq!(has.expect("an event")["set"]["requirements"], json!(["bell-hello"]));
    daemon.assert_sound();
    other.assert_sound();
    third.assert_sound();
}

#[test]
pub fn only_names_of_permitted_packages_reach_the_index_and_only_wheels_are_installed() {
    let Some((index, daemon)) = begin("deny = [\"bell-denied\"]\n") else { return };
    for (wrong, status) in [
        ("--index-url=https://localhost/", 400),
        ("-r/etc/passwd", 400),
        ("bell-hello @ https://localhost/x.whl", 400),
        ("https://localhost/x.whl", 400),
        ("./bell-hello", 400),
        ("bell-hello; rm -rf /", 400),
        ("$(id)", 400),
        ("bell\nhello", 400),
        ("Bell_Denied>=1", 403),
    ] {
        let refused = install(&daemon, S, &["bell-hello", wrong], status);
        assert!(refused["hint"].is_string(), "{refused:#}");
    }
    assert_eq!(index.requests(), Vec::<String>::new(), "nothing was asked for");
    let source = install(&daemon, S, &["bell-source"], 424);
    assert_eq!(text(&source, "code"), "install_failed", "{source:#}");
    assert!(text(&source, "message").contains("bell-source"), "{source:#}");
    let absent = install(&daemon, S, &["bell-nowhere"], 424);
    assert!(text(&absent, "message").contains("bell-nowhere"), "{absent:#}");
    // Not even because another package needs it.
    let needed = install(&daemon, S, &["bell-needs-denied"], 403);
    assert!(text(&needed, "message").contains("bell-denied"), "{needed:#}");
    raised(&daemon, "import bell_needs", "ModuleNotFoundError");
    let unlisted = install(&daemon, S, &["bell-unlisted"], 424);
    assert!(text(&unlisted, "message").contains("`bell_unlisted.py` is not what the list"), "{unlisted:#}");
    assert_eq!(drafts(&daemon), 0);
    // Files have no more rights than they need.
    install(&daemon, S, &["bell-set-id"], 200);
    let mode = "import os; oct(os.stat('/belljar/packages/site/bell_set_id/run.sh').st_mode & 0o7777)";
    assert_eq!(value(&daemon, mode), "'0o755'");
}

#[test]
pub fn an_installation_is_bounded() {
    let Some((_index, daemon)) = begin("download = \"30MiB\"\n") else { return };
    let large = install(&daemon, S, &["bell-large"], 413);
    assert_eq!(text(&large, "code"), "too_large", "{large:#}");
    assert_eq!(drafts(&daemon), 0);
}

#[test]
pub fn a_version_that_does_not_fit_is_told_and_a_reset_replaces_it() {
    let Some((_index, daemon)) = begin("") else { return };
    daemon.run(S, "x = 1");
    assert_eq!(names_in(&install(&daemon, S, &["bell-hello"], 200)), ["bell-dep 1.0", "bell-hello 2.0"]);
    let conflict = install(&daemon, S, &["bell-old"], 409);
    assert_eq!(text(&conflict, "code"), "package_conflict");
    let message = text(&conflict, "message");
    assert!(
        message.contains("2.0") && message.contains("1.0") && message.contains("bell-hello"),
        "{message}"
    );
    assert!(text(&conflict, "hint").contains("--reset"));
    assert_eq!(value(&daemon, &format!("{HELLO} + str(x)")), "'2.01'", "nothing has changed");
    let told = daemon.cli(["install", "-s", S, "--reset", "bell-old"]).ok();
    assert!(told.stderr.contains("bell-hello 2.0 by 1.0"), "{told:?}");
    assert_eq!(value(&daemon, HELLO), "'1.0'");
    raised(&daemon, "x", "NameError");
}

/// Only for containers: the image is one of Docker's.
#[test]
fn what_the_image_has_is_installed_though_the_index_does_not_have_it() {
    let Some((_index, daemon)) = begin("") else { return };
    daemon.session("t", json!({"image": "belljar/science"}));
    let answer = install(&daemon, "t", &["pandas", "scikit-learn>=1", "bell-science"], 200);
    assert_eq!(names_in(&answer), ["bell-science 1.0"]);
    let has: Vec<&str> = list(&answer, "in_image").iter().map(|package| text(package, "name")).collect();
    assert!(has.contains(&"pandas") && has.contains(&"scikit-learn"), "{has:?}");
    let failed = install(&daemon, "t", &["pandas<1"], 424);
    assert!(!text(&failed, "message").contains("2.2"), "nobody asked for that: {failed:#}");
}

#[test]
pub fn the_progress_of_an_installation_is_its_own_and_not_for_programs() {
    let Some((_index, daemon)) = begin("") else { return };
    install(&daemon, S, &["bell-hello==2.0"], 200);
    let again = daemon.cli(["install", "-s", S, "--reset", "bell-hello==1.0"]).ok();
    assert!(!again.stderr.contains("bell-hello==2.0"), "{again:?}");
    let refused = daemon.cli(["--json", "install", "-s", S, "bell-hello==2.0"]);
    let problem: Value = serde_json::from_str(&refused.stderr).expect("nothing but JSON");
    assert_eq!(text(&problem, "code"), "package_conflict", "{problem:#}");
}

#[test]
pub fn a_version_that_was_asked_for_gives_way_to_another_by_a_reset() {
    let Some((_index, daemon)) = begin("") else { return };
    install(&daemon, S, &["bell-hello==1.0"], 200);
    let conflict = install(&daemon, S, &["bell-hello==2.0"], 409);
    assert_eq!(text(&conflict, "code"), "package_conflict", "{conflict:#}");
    assert!(text(&conflict, "message").contains("`bell-hello` 1.0 is there, 2.0 is needed"), "{conflict:#}");
    daemon.cli(["install", "-s", S, "--reset", "bell-hello==2.0"]).ok();
    assert_eq!(value(&daemon, HELLO), "'2.0'");
}

#[test]
pub fn an_installer_sees_nothing_of_anybody_and_reaches_nothing_but_the_index() {
    if !engine() {
        return;
    }
    let index = PackageIndex::with_spy();
    // The image has it as its own `uv`; a jail, which shows a host without one, gets it from the index.
    let image = jails::ground().is_none().then(|| index.image_with_spy());
    let name = image.as_ref().map_or("belljar/base", |image| image.0.as_str());
    let daemon = index.daemon(&format!("[sandbox]\nimages = [\"{name}\"]\n"));
    daemon.session(S, json!({"image": name}));
    // What the installer would find if it could reach the cache of another user.
    let foreign = daemon.home().join("packages/4242/sets/foreign");
    std::fs::create_dir_all(foreign.join("site")).expect("a folder");
    std::fs::write(foreign.join("set.json"), "{}").expect("a note");
    let failed = install(&daemon, S, &["bell-hello"], 424);
    let said = text(&failed, "message");
    assert!(said.contains("example.org:443"), "the first refusal is told: {said}");
    for seen in [
        "/workspace=False; /belljar/bridge=False; /belljar/packages=False; /run/docker.sock=False",
        "belljar=kernel,output,relay,task;",
        "found=nothing of all;",
        "secrets=False;",
        "interfaces=lo;",
        "403 Forbidden; 403 Forbidden; 403 Forbidden; 403 Forbidden",
    ] {
        assert!(said.contains(seen), "{seen}: {said}");
    }
    assert!(!said.contains("wrote"), "{said}");
    assert_eq!(drafts(&daemon), 0);
}

#[test]
pub fn installations_at_once_do_not_spoil_the_cache_and_a_death_leaves_no_half_package() {
    let Some((index, mut daemon)) = begin("") else { return };
    daemon.session("t", json!({"image": "belljar/base"}));
    std::thread::scope(|scope| {
        let both = ["s", "t"].map(|session| {
            let daemon = &daemon;
            scope.spawn(move || install(daemon, session, &["bell-hello<2"], 200))
        });
        for answer in both {
            assert_eq!(names_in(&answer.join().unwrap()), ["bell-dep 1.0", "bell-hello 1.0"]);
        }
    });
    for session in ["s", "t"] {
        assert_eq!(text(&daemon.run(session, HELLO), "/result/repr"), "'1.0'");
    }
    index.slow(true);
    let request = json!({"packages": ["bell-set-id"]}).to_string();
    let head = "POST /v1/sessions/s/install HTTP/1.1\r\nHost: belljar\r\nContent-Type: application/json\r\n";
    let mut open = daemon.connect().expect("the daemon is there");
    write!(open, "{head}Content-Length: {}\r\n\r\n{request}", request.len()).expect("it reads");
    eventually("the installer fetches", || {
        index.requests().iter().any(|path| path.starts_with("/files/bell_set")).then_some(())
    });
    assert!(drafts(&daemon) > 0);
    daemon.kill();
    daemon.restart();
    index.slow(false);
    eventually("the drafts are gone", || (drafts(&daemon) == 0).then_some(()));
    raised(&daemon, "import bell_set_id", "ModuleNotFoundError");
    assert_eq!(value(&daemon, HELLO), "'1.0'");
    let ends: Vec<Value> = events_of(&daemon, "packages_installing");
    let interrupted = ends.iter().filter(|event| event["end"] == json!("interrupted")).count();
    assert_eq!(interrupted, 1, "it is said that it came to no end: {ends:#?}");
    install(&daemon, S, &["bell-set-id"], 200);
    assert_eq!(value(&daemon, "import bell_set_id, bell_hello; bell_hello.VERSION"), "'1.0'");
    end(&mut daemon, "TERM");
}

#[test]
pub fn a_session_begins_with_packages() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.cli(["new", "a", "--with", "bell-hello==1.0"]).ok();
    assert_eq!(daemon.cli(["exec", "-s", "a", HELLO]).ok().stdout, "'1.0'\n");
    daemon.cli(["new", "b", "--with", "bell-nowhere"]).exits(125);
    assert!(!daemon.cli(["ps"]).ok().stdout.contains(" b "), "nothing is left of it");
    let script = daemon.home().join("script.py");
    std::fs::write(&script, "import bell_hello\nprint(bell_hello.VERSION)\n").unwrap();
    let ran = daemon.cli(["run", "--with", "bell-hello", script.to_str().unwrap()]).ok();
    assert_eq!(ran.stdout, "2.0\n");
    let ran = daemon.cli(["job", "run", "--with", "bell-hello<2", script.to_str().unwrap()]).ok();
    assert!(ran.stdout.contains("1.0"), "{ran:?}");
    let steps = [
        Step::Line("import bell_hello"),
        Step::Line("'v' + bell_hello.VERSION"),
        Step::Shows("^'v1\\.0'$"),
        Step::Line("exit"),
    ];
    play(&daemon, &["repl", "--with", "bell-hello<2"], &[], &steps);
}

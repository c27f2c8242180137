//! What an installation of packages takes and leaves, for every caller and whenever it ends.

use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::helpers::{S, end, raised, restart_by, text, value};
use super::packages::{drafts, install};
use crate::support::{Daemon, PackageIndex, engine, eventually};

/// How packages appear in a quota.
const HOLD: &str = "installed packages";
/// The cache keeps one set at a time.
const SMALL_CACHE: &str = "cache = \"1B\"\n";

/// What the daemon's own user has of the quota of workspaces.
fn disk(daemon: &Daemon) -> Value {
    let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
    let quotas = quota["quotas"].as_array().expect("a list");
    quotas.iter().find(|quota| quota["kind"] == "workspace").expect("that quota").clone()
}

fn used(daemon: &Daemon) -> u64 {
    disk(daemon)["used"].as_u64().expect("a number")
}

/// The bytes that the daemon's own user is charged for installed packages.
fn charged(daemon: &Daemon) -> u64 {
    let disk = disk(daemon);
    let by = disk["by"].as_array().expect("a list").iter();
    by.filter(|share| share["by"] == HOLD).map(|share| share["amount"].as_u64().unwrap_or_default()).sum()
}

fn folders(parent: PathBuf) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

/// The sets that caches have, by their folders.
fn sets(daemon: &Daemon) -> Vec<PathBuf> {
    folders(daemon.home().join("packages"))
        .into_iter()
        .flat_map(|cache| folders(cache.join("sets")))
        .collect()
}

/// What the sets in caches take on the disk.
fn kept_bytes(daemon: &Daemon) -> u64 {
    let notes = sets(daemon).into_iter().map(|set| std::fs::read(set.join("set.json")).expect("a note"));
    notes
        .map(|note| serde_json::from_slice::<Value>(&note).expect("JSON")["bytes"].as_u64().expect("bytes"))
        .sum()
}

/// The sets in all sandboxes; each has an empty folder beside them.
fn shown(daemon: &Daemon) -> usize {
    let of_one = |sandbox: PathBuf| folders(sandbox.join("p")).len().saturating_sub(1);
    folders(daemon.home().join("s")).into_iter().map(of_one).sum()
}

fn asleep(daemon: &Daemon, session: &str) {
    eventually("its sandbox goes", || {
        let view = daemon.http("GET", &format!("/v1/sessions/{session}"), b"").expect_status(200);
        (text(&view, "state") == "asleep").then_some(())
    });
}

#[test]
pub fn every_set_of_a_session_is_charged_until_its_sandbox_is_gone() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let mut daemon = index.daemon(SMALL_CACHE);
    daemon.session(S, json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-dep"], 200);
    let (with_one, first) = (charged(&daemon), kept_bytes(&daemon));
    assert!(first > 5 * 4096, "files and folders count in whole blocks: {first}");
    install(&daemon, S, &["bell-set-id"], 200);
    let (with_two, second) = (charged(&daemon), kept_bytes(&daemon));
    assert_eq!(
        (sets(&daemon).len(), shown(&daemon)),
        (1, 2),
        "the cache has removed what the sandbox still has"
    );
    assert!(with_two > with_one + second, "{with_one}, {with_two}, {second}");
    // The next daemon charges the same.
    restart_by(&mut daemon, "KILL");
    assert_eq!(value(&daemon, "import bell_set_id, bell_dep.inner; bell_dep.inner.DEEP"), "7");
    eventually("it is charged again", || (charged(&daemon) > with_one + second).then_some(()));
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
    eventually("only what the cache has is charged", || (charged(&daemon) < with_two - first).then_some(()));
    assert!(charged(&daemon) >= second);
    end(&mut daemon, "TERM");
}

#[test]
pub fn what_a_sandbox_has_is_charged_without_the_cache_and_the_index() {
    if !engine() {
        return;
    }
    let mut index = PackageIndex::start();
    let mut daemon = index.daemon(SMALL_CACHE);
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.session("t", json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-dep"], 200);
    let first = kept_bytes(&daemon);
    install(&daemon, "t", &["bell-set-id"], 200);
    let (all, second) = (charged(&daemon), kept_bytes(&daemon));
    assert!(all > first + second, "{all}, {first}, {second}");
    index.stop();
    let sandboxes = folders(daemon.home().join("s"));
    for sandbox in &sandboxes {
        std::fs::create_dir(sandbox.join("p.draft-x")).expect("a draft");
    }
    restart_by(&mut daemon, "KILL");
    assert_eq!(value(&daemon, "import bell_dep.inner; bell_dep.inner.DEEP"), "7");
    // Files that the cache has removed are the sandbox's own, so its folders are not charged beside them.
    eventually("it is charged again", || (charged(&daemon) > all - first).then_some(()));
    // The other session's sandbox may be attached later.
    let has_draft = || sandboxes.iter().any(|sandbox| sandbox.join("p.draft-x").exists());
    eventually("no draft is left", || (!has_draft()).then_some(()));
    let missing = daemon.events(S, 0).into_iter().filter(|event| event["type"] == "packages_missing").count();
    assert_eq!(missing, 0, "what is there is not missing");
    end(&mut daemon, "TERM");
}

#[test]
pub fn a_little_room_is_enough_for_little_packages() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("[quota]\nworkspace = \"200MiB\"\n");
    daemon.session(S, json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-dep"], 200);
    // The image has the program that installs, so there need not be room for another one.
    let half = "open('x', 'wb').write(b'x' * (80 << 20))";
    daemon.run(S, half);
    eventually("the workspace is charged", || (used(&daemon) > 80 << 20).then_some(()));
    install(&daemon, S, &["bell-set-id"], 200);
}

#[test]
pub fn an_installation_that_does_not_fit_into_the_quota_is_refused_before_it_begins() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("unpacked = \"64MiB\"\n[quota]\nworkspace = \"20MiB\"\n");
    daemon.session(S, json!({"image": "belljar/base"}));
    let refused = install(&daemon, S, &["bell-dep"], 429);
    assert_eq!(text(&refused, "code"), "quota_exceeded", "{refused:#}");
    assert_eq!((index.requests(), drafts(&daemon)), (Vec::new(), 0));
}

#[test]
pub fn what_the_cache_removed_is_installed_again_and_has_to_be_what_it_was() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let mut daemon = index.daemon(SMALL_CACHE);
    daemon.session(S, json!({"image": "belljar/base", "idle_s": 1}));
    daemon.session("t", json!({"image": "belljar/base"}));
    let deep = "import bell_dep.inner as inner; inner.DEEP";
    install(&daemon, S, &["bell-dep"], 200);
    install(&daemon, "t", &["bell-set-id"], 200);
    asleep(&daemon, S);
    assert_eq!(value(&daemon, deep), "7", "it was installed again");
    index.change();
    install(&daemon, "t", &["bell-old"], 200);
    asleep(&daemon, S);
    raised(&daemon, deep, "ModuleNotFoundError");
    let missing: Vec<Value> =
        daemon.events(S, 0).into_iter().filter(|event| event["type"] == "packages_missing").collect();
    assert_eq!(missing.len(), 1, "{missing:#?}");
    assert!(text(&missing[0], "reason").contains("not what they were"), "{missing:#?}");
    // Another session that wants the new files gets them.
    install(&daemon, "t", &["bell-dep"], 200);
    end(&mut daemon, "TERM");
}

/// Every file that the lists of a set name is there, in its length.
#[track_caller]
fn assert_whole(set: &Path) {
    let site = set.join("site");
    let lists =
        folders(site.clone()).into_iter().map(|folder| folder.join("RECORD")).filter(|list| list.exists());
    let mut packages = 0;
    for list in lists {
        packages += 1;
        for line in std::fs::read_to_string(&list).expect("a list").lines() {
            let fields: Vec<&str> = line.split(',').collect();
            let found =
                std::fs::metadata(site.join(fields[0])).unwrap_or_else(|error| panic!("{line}: {error}"));
            if let Ok(length) = fields[2].parse::<u64>() {
                assert_eq!(found.len(), length, "{line}");
            }
        }
    }
    assert!(packages > 0, "{} has no packages", set.display());
}

#[test]
pub fn a_kill_at_any_moment_leaves_no_half_package() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let mut daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    // So that each of the following does the same work.
    install(&daemon, S, &["bell-dep"], 200);
    let request = json!({"packages": ["bell-many"]}).to_string();
    let head = "POST /v1/sessions/s/install HTTP/1.1\r\nHost: belljar\r\nContent-Type: application/json\r\n";
    let mut unfinished = 0;
    for moment in 0..12 {
        let mut open = daemon.connect().expect("the daemon is there");
        write!(open, "{head}Content-Length: {}\r\n\r\n{request}", request.len()).expect("it reads");
        std::thread::sleep(Duration::from_millis(120 * moment));
        daemon.kill();
        unfinished += drafts(&daemon);
        sets(&daemon).iter().for_each(|set| assert_whole(set));
        daemon.restart();
        eventually("the drafts are gone", || (drafts(&daemon) == 0).then_some(()));
        sets(&daemon).iter().for_each(|set| assert_whole(set));
        // What the next daemon has of it is whole, or not there.
        let found = daemon.run(S, "import importlib.util as u\nprint(u.find_spec('bell_many') is not None)");
        if text(&found, "stdout") == "True\n" {
            break;
        }
    }
    assert!(unfinished > 0, "no kill came in the middle");
    install(&daemon, S, &["bell-many"], 200);
    assert_eq!(value(&daemon, "import bell_many.m2999 as m; m.N"), "2999");
    end(&mut daemon, "TERM");
}

/// All files below a folder that hold a text.
fn files_with(folder: &Path, text: &[u8]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if std::fs::read(&path)
            .is_ok_and(|content| content.windows(text.len()).any(|part| part == text))
        {
            found.push(path);
        }
    }
    found
}

#[test]
pub fn the_password_of_an_index_is_told_to_nobody() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    index.ask_for("me:s3cr3t!w0rd");
    let mut daemon = index.daemon_as("me:s3cr3t%21w0rd");
    daemon.session(S, json!({"image": "belljar/base"}));
    assert_eq!(install(&daemon, S, &["bell-dep"], 200)["cached"], false);
    let absent = install(&daemon, S, &["bell-nowhere"], 424);
    index.ask_for("me:another");
    let wrong = install(&daemon, S, &["bell-set-id"], 424);
    let shown = daemon.cli(["config", "show", "--json"]).ok().stdout;
    assert!(shown.contains("****@localhost"), "{shown}");
    // While it is under way, too.
    index.ask_for("me:s3cr3t!w0rd");
    index.slow(true);
    let request = json!({"packages": ["bell-set-id"]}).to_string();
    let head = "POST /v1/sessions/s/install HTTP/1.1\r\nHost: belljar\r\nContent-Type: application/json\r\n";
    let mut open = daemon.connect().expect("the daemon is there");
    write!(open, "{head}Content-Length: {}\r\n\r\n{request}", request.len()).expect("it reads");
    eventually("the installer fetches", || {
        index.requests().iter().any(|path| path.starts_with("/files/bell_set")).then_some(())
    });
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines: Vec<String> = processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect();
    index.slow(false);
    eventually("it is done", || {
        let events = daemon.events(S, 0).into_iter();
        (events.filter(|event| event["type"] == "packages_installed").count() == 2).then_some(())
    });
    end(&mut daemon, "TERM");
    let config = daemon.home().join("config.toml");
    for secret in ["s3cr3t", "bWU6czNjcjN0IXcwcmQ"] {
        for said in [&absent, &wrong] {
            assert!(!said.to_string().contains(secret), "{said:#}");
        }
        assert!(!shown.contains(secret) && !daemon.log().contains(secret), "{}", daemon.log());
        assert!(!lines.iter().any(|line| line.contains(secret)), "a command line has it");
        let mut files = files_with(daemon.home(), secret.as_bytes());
        files.retain(|file| *file != config);
        assert_eq!(files, Vec::<PathBuf>::new());
    }
}

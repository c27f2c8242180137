//! Sandboxes that wait for sessions: what a session gets of them is what it would have got anyway.

use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::helpers::{S, end, post, printed, restart_by, text, value};
use super::jobs::{job_run, path, scripts};
use super::many_users::{ALICE, BOB, ask, session, shared};
use super::packages::install;
use crate::support::{Daemon, PackageIndex, assert_nothing_left, engine, eventually};

fn light() -> Value {
    json!({"image": "belljar/base"})
}

fn pool(daemon: &Daemon) -> Value {
    daemon.http("GET", "/v1/health", b"").expect_status(200)["pool"].clone()
}

fn number(pool: &Value, field: &str) -> u64 {
    pool[field].as_u64().unwrap_or_else(|| panic!("no {field}: {pool}"))
}

fn wait_for(daemon: &Daemon, waiting: u64) {
    eventually("sandboxes wait", || {
        let pool = pool(daemon);
        (number(&pool, "waiting") == waiting && pool["starting"] == json!(false)).then_some(())
    });
}

/// A daemon with sandboxes that wait, and no session.
fn filled(size: u64, config: &str) -> Option<Daemon> {
    if !engine() {
        return None;
    }
    let daemon = Daemon::with_config(&format!("[pool]\nsize = {size}\n{config}"));
    for _ in 0..2 {
        daemon.session("first", light());
        daemon.cli(["rm", "first"]).ok();
    }
    wait_for(&daemon, size);
    Some(daemon)
}

fn workspaces(daemon: &Daemon) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(daemon.home().join("w")).expect("workspaces").flatten();
    entries.map(|entry| entry.path()).collect()
}

#[test]
pub fn a_claimed_sandbox_is_what_a_new_one_is() {
    let Some(daemon) = filled(1, "") else { return };
    let sandboxes = daemon.containers();
    let made = daemon.session(S, light());
    assert_eq!(number(&pool(&daemon), "hits"), 1);
    let receipt = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
    if !daemon.is_jailed() {
        assert_eq!([receipt["container"].as_str().expect("an id")], sandboxes.as_slice());
    }
    daemon.session("cold", json!({"image": "belljar/base", "pids": 255}));
    let cold = daemon.http("GET", "/v1/sessions/cold/receipt", b"").expect_status(200);
    assert_eq!(number(&pool(&daemon), "hits"), 1);
    for field in ["backend", "runtime", "image", "python", "network", "read_only_root", "seccomp_profile"] {
        assert_eq!(receipt[field], cold[field], "{field}");
    }
    for field in ["mounts", "probe", "namespaces", "chosen"] {
        assert_eq!(receipt[field], cold[field], "{field}");
    }
    for limit in ["memory_bytes", "cpus", "open_files", "file_bytes", "core_bytes"] {
        assert_eq!(receipt["limits"][limit], cold["limits"][limit], "{limit}");
    }
    // Its workspace is empty, has the name of the session and belongs to its guest.
    assert_eq!(value(&daemon, "__import__('os').listdir('.')"), "[]");
    printed(&daemon, "open('mine', 'w').write('text')");
    let workspace = daemon.home().join("w").join(made["id"].as_str().expect("an id"));
    let file = std::fs::metadata(workspace.join("mine")).expect("the guest's file");
    assert_eq!(u64::from(file.uid()), receipt["process"]["uid"].as_u64().expect("a uid"));
    let read = daemon.http("GET", "/v1/sessions/s/files/mine", b"");
    assert_eq!((read.status, read.text().as_str()), (200, "text"));
    // Undo, reset and death are those of any session.
    printed(&daemon, "x = 2");
    assert_eq!(daemon.run(S, "import os; os._exit(3)")["status"], "crashed");
    assert_eq!(value(&daemon, "x"), "2");
    daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
    assert_eq!(value(&daemon, "'x' in globals()"), "False");
    daemon.cli(["rm", "s"]).ok();
    eventually("its workspace is gone", || (!workspace.exists()).then_some(()));
    daemon.assert_sound();
}

#[test]
pub fn what_was_claimed_outlives_the_daemon_and_what_waits_does_not() {
    for signal in ["KILL", "TERM"] {
        let Some(mut daemon) = filled(2, "") else { return };
        daemon.session(S, light());
        printed(&daemon, "x = 42; open('file', 'w').write('kept')");
        assert_eq!(number(&pool(&daemon), "hits"), 1);
        wait_for(&daemon, 2);
        let before = daemon.containers();
        assert_eq!(before.len(), 3);
        restart_by(&mut daemon, signal);
        assert_eq!(value(&daemon, "(x, open('file').read())"), "(42, 'kept')");
        let kinds: Vec<Value> = daemon.events(S, 0).into_iter().map(|event| event["type"].clone()).collect();
        assert!(kinds.contains(&json!("sandbox_attached")), "{kinds:?}");
        eventually("only the claimed one is left", || (daemon.containers().len() == 1).then_some(()));
        eventually("and its workspace", || (workspaces(&daemon).len() == 1).then_some(()));
        assert!(before.contains(&daemon.containers()[0]));
        daemon.cli(["rm", S]).ok();
        end(&mut daemon, "TERM");
        assert_nothing_left(&daemon, &before);
    }
}

#[test]
pub fn what_waits_is_removed_with_all_sandboxes() {
    let Some(mut daemon) = filled(2, "") else { return };
    let containers = daemon.containers();
    assert_eq!(containers.len(), 2);
    daemon.cli(["daemon", "stop", "--remove"]).ok();
    assert_eq!(daemon.wait(), Some(0));
    assert_nothing_left(&daemon, &containers);
}

#[test]
pub fn a_sandbox_that_was_taken_away_while_it_waited_is_no_error_for_a_session() {
    let Some(daemon) = filled(1, "") else { return };
    daemon.remove_sandboxes();
    daemon.session(S, light());
    assert_eq!(value(&daemon, "6 * 7"), "42");
    assert_eq!(number(&pool(&daemon), "failures"), 1);
    daemon.assert_sound();
}

#[test]
pub fn branches_take_sandboxes_that_wait() {
    let Some(daemon) = filled(1, "") else { return };
    daemon.session(S, light());
    printed(&daemon, "x = [1]; open('file', 'w').write('kept')");
    wait_for(&daemon, 1);
    assert_eq!(number(&pool(&daemon), "hits"), 1);
    let sandboxes = daemon.containers();
    post(&daemon, "branch", &json!({"name": "b"})).expect_status(201);
    assert_eq!(number(&pool(&daemon), "hits"), 2);
    if !daemon.is_jailed() {
        let receipt = daemon.http("GET", "/v1/sessions/b/receipt", b"").expect_status(200);
        assert!(sandboxes.contains(&text(&receipt, "/container").to_owned()), "{sandboxes:?} {receipt:#}");
    }
    // It has the variables and files of the session, and is as much its own as any other.
    let code = "x.append(2); open('file', 'a').write(' on'); x, open('file').read()";
    assert_eq!(text(&daemon.run("b", code), "/result/repr"), "([1, 2], 'kept on')");
    assert_eq!(value(&daemon, "x, open('file').read()"), "([1], 'kept')");
    daemon.assert_sound();
}

#[test]
pub fn packages_appear_in_a_claimed_sandbox() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("[pool]\nsize = 1\n");
    for _ in 0..2 {
        daemon.session("first", light());
        daemon.cli(["rm", "first"]).ok();
    }
    wait_for(&daemon, 1);
    let before = number(&pool(&daemon), "hits");
    let hello = "import bell_hello; bell_hello.VERSION";
    daemon.session(S, light());
    assert_eq!(number(&pool(&daemon), "hits"), before + 1);
    install(&daemon, S, &["bell-hello"], 200);
    assert_eq!(value(&daemon, hello), "'2.0'");
    daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
    assert_eq!(value(&daemon, hello), "'2.0'");
    wait_for(&daemon, 1);
    daemon.session("t", light());
    assert_eq!(number(&pool(&daemon), "hits"), before + 2);
    assert_eq!(daemon.run("t", "import bell_hello")["status"], "failure", "and no other session has them");
}

#[test]
fn users_do_not_share_the_user_ids_of_guests() {
    if !engine() {
        return;
    }
    let daemon = shared("[pool]\nsize = 2\n");
    for (user, name) in [(ALICE, "a"), (BOB, "b")] {
        session(&daemon, user, name);
    }
    eventually("two wait", || {
        let pool = pool(&daemon);
        (number(&pool, "waiting") == 2).then_some(())
    });
    let mut uids = Vec::new();
    for (user, name) in [(ALICE, "a"), (BOB, "b"), (ALICE, "aa"), (BOB, "bb")] {
        if name.len() == 2 {
            session(&daemon, user, name);
        }
        let receipt = ask(&daemon, user, "GET", &format!("/v1/sessions/{name}/receipt"), Value::Null);
        uids.push(receipt.expect_status(200)["process"]["uid"].as_u64().expect("a uid"));
    }
    assert_eq!(number(&pool(&daemon), "hits"), 2);
    uids.sort_unstable();
    uids.dedup();
    assert_eq!(uids.len(), 4, "{uids:?}");
    let told = ask(&daemon, ALICE, "GET", "/v1/health", Value::Null).expect_status(200);
    assert_eq!(told["pool"], Value::Null, "what others do is not Alice's to know");
}

#[test]
pub fn modules_are_there_in_advance_and_no_name_of_them_is() {
    let Some(daemon) = filled(1, "preload = [\"wave\", \"no_such_module\"]\n") else { return };
    daemon.session(S, light());
    assert_eq!(number(&pool(&daemon), "hits"), 1);
    assert_eq!(value(&daemon, "'wave' in __import__('sys').modules, 'wave' in globals()"), "(True, False)");
    assert_eq!(value(&daemon, "import wave; wave.__name__"), "'wave'");
}

#[test]
pub fn modules_in_advance_are_those_for_the_image() {
    let lists = r#"preload = { "belljar/base:latest" = ["wave"], host = ["wave"], "*" = ["colorsys"] }"#;
    let Some(daemon) = filled(1, &format!("{lists}\n")) else { return };
    daemon.session(S, light());
    assert_eq!(number(&pool(&daemon), "hits"), 1);
    let loaded = "[name in __import__('sys').modules for name in ('wave', 'colorsys')]";
    assert_eq!(value(&daemon, loaded), "[True, False]");
}

#[test]
pub fn jobs_take_sandboxes_that_wait() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[pool]\nsize = 1\n");
    let folder = scripts(&[("hello.py", "print('hello')\n")]);
    let run = || {
        let ran = daemon.cli(job_run(&[path(&folder), "--json"])).ok();
        assert!(ran.stdout.contains("hello"), "{ran:?}");
    };
    run();
    run();
    wait_for(&daemon, 1);
    run();
    assert_eq!(number(&pool(&daemon), "hits"), 1);
    daemon.assert_sound();
}

/// The actor dies at one of its first messages: at a claim, at a look, or when a sandbox was started.
#[test]
pub fn a_pool_that_panics_costs_nobody_a_session() {
    if !engine() {
        return;
    }
    for message in 1..=4 {
        let at = format!("pool:{message}");
        let environment = [("BELLJAR_PANIC_AT", at.as_str()), ("BELLJAR_PERIODS", "reaper:2")];
        let mut daemon = Daemon::with_environment("[pool]\nsize = 1\n", &environment);
        for name in ["a", "b", "c"] {
            daemon.session(name, light());
            assert_eq!(daemon.run(name, "6 * 7")["result"]["repr"], "42");
        }
        eventually("it has died", || daemon.stderr().contains("was to be the last one").then_some(()));
        for name in ["a", "b", "c"] {
            assert_eq!(daemon.run(name, "6 * 7")["result"]["repr"], "42");
            daemon.cli(["rm", name]).ok();
        }
        eventually("no sandbox is left but those that wait", || {
            let waiting = usize::try_from(number(&pool(&daemon), "waiting")).expect("a number");
            (daemon.containers().len() == waiting).then_some(())
        });
        let containers = daemon.containers();
        end(&mut daemon, "TERM");
        daemon.set_environment(&[]);
        daemon.restart();
        end(&mut daemon, "TERM");
        assert_nothing_left(&daemon, &containers);
    }
}

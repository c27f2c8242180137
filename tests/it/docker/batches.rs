//! Batches: jobs that are taken together, run a few at a time, and outlive the daemon.

use serde_json::{Value, json};

use super::jobs::{scripts, send, wait};
use crate::support::invariants::{self, Canary};
use crate::support::jails::ground;
use crate::support::{Daemon, ROOT, assert_nothing_left, engine, eventually};

const ENDLESS: &str = "import time\nwhile True: time.sleep(1)";

/// A request for jobs that have the script `name`, one for each list of arguments.
fn batch(input: &Value, script: &str, arguments: &[&str], parallel: Option<usize>) -> Value {
    let mut common = json!({"input": input["id"], "script": script});
    if ground().is_none() {
        common["image"] = json!("belljar/base");
    }
    let jobs: Vec<Value> = arguments.iter().map(|word| json!({"name": word, "args": [word]})).collect();
    json!({"common": common, "jobs": jobs, "parallel": parallel})
}

fn submit(daemon: &Daemon, batch: &Value) -> Value {
    daemon.http("POST", "/v1/batches", batch.to_string().as_bytes()).expect_status(202)
}

fn show(daemon: &Daemon, batch: &Value, query: &str) -> Value {
    let id = batch["id"].as_str().expect("an id");
    daemon.http("GET", &format!("/v1/batches/{id}{query}"), b"").expect_status(200)
}

fn states(daemon: &Daemon, batch: &Value) -> Vec<String> {
    let state = |id: &Value| {
        let path = format!("/v1/jobs/{}", id.as_str().expect("an id"));
        daemon.http("GET", &path, b"").expect_status(200)["state"].as_str().expect("a word").to_owned()
    };
    batch["jobs"].as_array().expect("a list").iter().map(state).collect()
}

/// The events of a batch after a number; those of one that has not ended are waited for.
fn events(daemon: &Daemon, batch: &Value, after: u64) -> Vec<Value> {
    let id = batch["id"].as_str().expect("an id");
    let text = daemon.http("GET", &format!("/v1/batches/{id}/events?after={after}"), b"").text();
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

#[test]
pub fn a_batch_outlives_the_daemon_and_each_of_its_jobs_runs_once() {
    if !engine() {
        return;
    }
    let (mut daemon, canary) = (Daemon::with_config("[jobs]\nslots = 2\n"), Canary::set());
    let folder = scripts(&[(
        "slow.py",
        "import sys, time\nfor n in range(6): print(n, flush=True); time.sleep(0.5)\nsys.exit(int(sys.argv[1]))",
    )]);
    let key = [("Idempotency-Key", "one batch")];
    let request = batch(&send(&daemon, &folder), "slow.py", &["0", "3", "0", "0"], None).to_string();
    let made = daemon.http_with("POST", "/v1/batches", &key, request.as_bytes()).expect_status(202);
    assert_eq!(
        (&made["size"], &made["parallel"], &made["ended"]),
        (&json!(4), &json!(2), &json!(0)),
        "{made}"
    );
    eventually("two run and two wait", || {
        (states(&daemon, &made) == ["running", "running", "queued", "queued"]).then_some(())
    });
    daemon.kill();
    daemon.restart();
    let again = daemon.http_with("POST", "/v1/batches", &key, request.as_bytes()).expect_status(202);
    assert_eq!(again["id"], made["id"], "a request that is repeated with its key makes no second batch");
    let told = events(&daemon, &made, 0);
    let ended = show(&daemon, &made, "?wait=true");
    assert_eq!((&ended["ended"], &ended["passed"]), (&json!(4), &json!(3)), "{ended}");
    assert!(ended["ended_at"].is_string(), "{ended}");
    for (index, code) in [0, 3, 0, 0].into_iter().enumerate() {
        let id = made["jobs"][index].as_str().expect("an id");
        let job = wait(&daemon, id);
        assert_eq!(
            (&job["end"]["exit_code"], &job["batch"]["index"]),
            (&json!(code), &json!(index)),
            "{job}"
        );
        let text = daemon.http("GET", &format!("/v1/jobs/{id}/events?follow=false"), b"").text();
        let printed: String = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .filter(|event| event["type"] == "output")
            .filter_map(|event| event["text"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(printed, "0\n1\n2\n3\n4\n5\n", "each ran once, and nothing of it is lost");
    }
    // Each job begins and ends once, in an order that the numbers of the events keep, whoever reads them when.
    let numbers: Vec<u64> = told.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>(), "{told:?}");
    let count = |kind: &str| told.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((count("job_started"), count("job_ended"), count("batch_ended")), (4, 4, 1), "{told:?}");
    assert_eq!(told.last().expect("an end")["type"], "batch_ended");
    for after in [0, 3, 8] {
        assert_eq!(events(&daemon, &made, after), told[usize::try_from(after).expect("small")..]);
    }
    let list = daemon.http("GET", "/v1/batches", b"").expect_status(200);
    assert_eq!((list["batches"].as_array().map(Vec::len), &list["batches"][0]["id"]), (Some(1), &made["id"]));
    assert_nothing_left(&daemon, &[]);
    invariants::assert_hold(&daemon, &[ROOT], &canary);
}

#[test]
pub fn of_a_batch_as_many_run_as_it_says_until_it_is_cancelled() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[jobs]\nslots = 3\n");
    let folder = scripts(&[("endless.py", ENDLESS), ("ok.py", "print('ran')")]);
    let input = send(&daemon, &folder);
    let made = submit(&daemon, &batch(&input, "endless.py", &["a", "b", "c", "d"], Some(1)));
    eventually("one runs", || {
        (states(&daemon, &made) == ["running", "queued", "queued", "queued"]).then_some(())
    });
    // What comes later does not wait for all of the batch.
    let other = submit(&daemon, &batch(&input, "ok.py", &["x", "y"], None));
    assert_eq!(show(&daemon, &other, "?wait=true")["passed"], 2);
    assert_eq!(states(&daemon, &made), ["running", "queued", "queued", "queued"]);
    // A job that is cancelled leaves its turn to the next.
    let first = made["jobs"][0].as_str().expect("an id");
    daemon.http("POST", &format!("/v1/jobs/{first}/cancel"), b"").expect_status(200);
    let third = made["jobs"][2].as_str().expect("an id");
    daemon.http("POST", &format!("/v1/jobs/{third}/cancel"), b"").expect_status(200);
    eventually("the second runs", || {
        (states(&daemon, &made) == ["ended", "running", "ended", "queued"]).then_some(())
    });
    let id = made["id"].as_str().expect("an id");
    daemon.http("DELETE", &format!("/v1/batches/{id}"), b"").expect_status(200);
    // The answer came when all had ended, and their ends are told.
    let ended = show(&daemon, &made, "");
    assert_eq!((&ended["ended"], &ended["passed"]), (&json!(4), &json!(0)), "{ended}");
    for event in events(&daemon, &made, 0).iter().filter(|event| event["type"] == "job_ended") {
        assert_eq!(event["job"]["end"]["verdict"], "cancelled", "{event}");
    }
    daemon.http("DELETE", &format!("/v1/batches/{id}"), b"").expect_status(200);
    assert_nothing_left(&daemon, &[]);
}

#[test]
pub fn of_a_batch_all_jobs_are_taken_or_none() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[quota]\njobs = 3\n");
    let folder = scripts(&[("ok.py", "print('ran')")]);
    let input = send(&daemon, &folder);
    let refused = |request: &Value, status: u16| {
        let answer = daemon.http("POST", "/v1/batches", request.to_string().as_bytes()).expect_status(status);
        let list = daemon.http("GET", "/v1/jobs", b"").expect_status(200);
        assert_eq!(list["jobs"], json!([]), "nothing was taken of {request}");
        answer
    };
    let four = batch(&input, "ok.py", &["a", "b", "c", "d"], None);
    let answer = refused(&four, 429);
    assert_eq!(answer["code"], "quota_exceeded");
    assert!(
        answer["message"].as_str().is_some_and(|said| said.starts_with("job 3 of the batch: ")),
        "{answer}"
    );
    let mut wrong = batch(&input, "ok.py", &["a", "b"], None);
    wrong["jobs"][1]["script"] = json!("none.py");
    let answer = refused(&wrong, 400);
    assert!(answer["message"].as_str().is_some_and(|said| said.contains("job 1 of the batch: ")), "{answer}");
    let mut unknown = batch(&input, "ok.py", &["a"], None);
    unknown["common"]["input"] = json!("00000000-0000-4000-8000-000000000000");
    assert_eq!(refused(&unknown, 404)["code"], "no_such_input");
    assert_eq!(refused(&batch(&input, "ok.py", &[], None), 413)["code"], "too_large");
    assert_eq!(refused(&batch(&input, "ok.py", &["a"; 1001], None), 413)["code"], "too_large");
    assert_eq!(refused(&batch(&input, "ok.py", &["a"], Some(0)), 400)["code"], "bad_request");
    // What was refused holds nothing back.
    let three = batch(&input, "ok.py", &["a", "b", "c"], None);
    assert_eq!(show(&daemon, &submit(&daemon, &three), "?wait=true")["passed"], 3);
    assert_eq!(show(&daemon, &submit(&daemon, &three), "?wait=true")["passed"], 3);
    assert_nothing_left(&daemon, &[]);
}

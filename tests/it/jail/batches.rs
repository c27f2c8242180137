//! Batches of several users.

use serde_json::{Value, json};

use super::jobs::{ALICE, ENDLESS, ask, shared};
use crate::docker::jobs::{scripts, send};
use crate::docker::many_users::CAROL;
use crate::support::{assert_nothing_left, http_as};

#[test]
fn another_users_batch_does_not_exist() {
    let daemon = shared("");
    let input = send(&daemon, &scripts(&[("a.py", ENDLESS)]));
    let batch = json!({"common": {"input": input["id"], "script": "a.py"}, "jobs": [{}, {}]}).to_string();
    let made = daemon.http("POST", "/v1/batches", batch.as_bytes()).expect_status(202);
    let id = made["id"].as_str().expect("an id");
    let none = Value::Null;
    for (method, rest) in [
        ("GET", ""),
        ("GET", "?wait=true"),
        ("DELETE", ""),
        ("GET", "/events"),
        ("GET", "/events?follow=false"),
    ] {
        // Nor does it for an administrator, who has the jobs.
        for user in [ALICE, CAROL] {
            let answer = ask(&daemon, user, method, &format!("/v1/batches/{id}{rest}"), &none);
            assert_eq!(answer.expect_status(404)["code"], "no_such_batch", "{method} {rest}");
        }
    }
    let unknown = uuid::Uuid::now_v7().to_string();
    let seen = |id: &str| ask(&daemon, ALICE, "GET", &format!("/v1/batches/{id}"), &none).expect_status(404);
    assert_eq!(seen(&unknown).to_string().replace(&unknown, id), seen(id).to_string());
    let list = ask(&daemon, ALICE, "GET", "/v1/batches", &none).expect_status(200);
    assert_eq!(list["batches"], json!([]));
    // Nor are the files of its jobs.
    let answer = http_as(ALICE, &daemon.socket(), "POST", "/v1/batches", &[], batch.as_bytes());
    assert_eq!(answer.expect_status(404)["code"], "no_such_input");
    let view = daemon.http("GET", &format!("/v1/batches/{id}"), b"").expect_status(200);
    assert_eq!(view["ended"], 0, "nobody else has ended it: {view}");
    daemon.http("DELETE", &format!("/v1/batches/{id}"), b"").expect_status(200);
    assert_nothing_left(&daemon, &[]);
}

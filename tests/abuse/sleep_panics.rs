//! Actors that panic over the messages of sleeping and waking: whatever dies, the session has its variables, with the
//! changes of each cell once.

use serde_json::{Value, json};

use super::actor_panics::{ask, get, runs_well};
use crate::docker::helpers::text;
use crate::support::invariants::{self, Canary};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, ROOT, eventually, is_long_run};

/// More messages than a run has.
const MOST: usize = 1000;

/// Sleeps, if need be at a second try: what dies over a request may have the caller ask again.
#[track_caller]
fn sleeps(daemon: &Daemon) {
    eventually("the session sleeps", || {
        let is_asleep = get(daemon, "/v1/sessions/s")["state"] == "asleep";
        if !is_asleep {
            daemon.http("POST", "/v1/sessions/s/sleep", b"{}");
        }
        is_asleep.then_some(())
    });
}

fn play(daemon: &Daemon) {
    let request = json!({"name": "s", "image": daemon.image(), "snapshots": "named"});
    let (status, made) = ask(daemon, "POST", "/v1/sessions", "new", &request);
    assert_eq!(status, 201, "{made}\n{}", daemon.log());
    runs_well(daemon, "first", "steps = [1]\nalso = steps");
    for (key, step) in [("second", 2), ("third", 3)] {
        sleeps(daemon);
        runs_well(daemon, key, &format!("steps.append({step})"));
    }
    let value = runs_well(daemon, "value", "steps, steps is also");
    assert_eq!(text(&value, "/result/repr"), "([1, 2, 3], True)", "{value:#}\n{}", daemon.log());
    let failed = daemon.events("s", 0).into_iter().find(|event| event["type"] == "wake_failed");
    assert!(failed.is_none(), "{failed:?}\n{}", daemon.log());
}

/// Lets a kind die at some of its messages, or at each, until a run is over before it did.
fn dies_at_messages(kind: &str, stride: usize, least: usize) {
    in_a_jail(None, || {
        let places = (1..MOST).step_by(if is_long_run() { 1 } else { stride });
        for (deaths, place) in places.enumerate() {
            let canary = Canary::set();
            let at = format!("{kind}:{place}");
            let daemon = Daemon::with_environment("", &[("BELLJAR_PANIC_AT", &at)]);
            play(&daemon);
            if !daemon.stderr().contains("was to be the last one") {
                assert!(deaths >= least, "it died {deaths} times only");
                return;
            }
            println!("{at}: died");
            invariants::assert_hold_after_panics(&daemon, &[ROOT], &canary);
            let (status, gone) = ask(&daemon, "DELETE", "/v1/sessions/s?wait=true", "", &Value::Null);
            assert!(status == 200 || status == 404, "{gone}");
        }
        panic!("it has more than {MOST} messages");
    });
}

#[test]
fn a_session_that_panics_while_it_sleeps_or_wakes_keeps_its_variables() {
    dies_at_messages("session", 7, 4);
}

#[test]
fn an_executor_that_panics_over_a_snapshot_costs_no_variables() {
    dies_at_messages("executor", 5, 4);
}

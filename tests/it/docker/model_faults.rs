//! Models that fail, seen from an ask: it ends with a reason, and the daemon is as before.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

use super::asking::{ask, events_of, served, told};
use super::helpers::{S, number, text};
use crate::model_server::{Fault, ModelServer, Play, Reply};
use crate::support::{Daemon, engine};

const KEY: &str = "sk-loopback-0123456789";
/// More than the daemon may grow by while a server sends it 1 GiB.
const GROWTH_KIB: u64 = 64 * 1024;

/// A session whose model is behind a server that plays this. A failed request is sent again once.
fn playing<const N: usize>(plays: [Play; N]) -> Option<(Daemon, ModelServer)> {
    if !engine() {
        return None;
    }
    let server = ModelServer::start_with_key(plays, KEY);
    let config = served(&server, "key_variable = \"TEST_KEY\"\nretries = 1");
    let daemon = Daemon::with_environment(&config, &[("TEST_KEY", KEY)]);
    daemon.session(S, json!({"image": "belljar/base"}));
    Some((daemon, server))
}

/// Asks something that has to fail, and gives why.
#[track_caller]
fn failed(daemon: &Daemon) -> String {
    let end = ask(daemon, json!({"text": "hello", "fresh": true}));
    assert_eq!(end["outcome"], "model_failed", "{end:#}");
    text(&end, "message").to_owned()
}

#[track_caller]
fn answered(daemon: &Daemon) -> String {
    let end = ask(daemon, json!({"text": "hello", "fresh": true}));
    assert_eq!(end["outcome"], "answered", "{end:#}");
    text(&end, "answer").to_owned()
}

/// Most memory that the daemon ever had.
fn peak_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_server_that_refuses_is_asked_again_if_that_can_help() {
    let Some((daemon, server)) = playing([
        Fault::Says(401, format!("Incorrect API key provided: {KEY}")).into(),
        Fault::Status(429, Some("1")).into(),
        Reply::text("after a while").into(),
        Fault::Status(500, None).into(),
        Fault::Status(503, None).into(),
        Fault::Status(400, None).into(),
    ]) else {
        return;
    };
    // A wrong key stays wrong.
    let why = failed(&daemon);
    assert!(why.contains("401") || why.contains("key"), "{why}");
    assert_eq!(server.received().len(), 1);
    // The server says how long to wait, and an event tells that.
    let since = Instant::now();
    assert_eq!(answered(&daemon), "after a while");
    assert!(since.elapsed() >= Duration::from_secs(1));
    let retries: Vec<Value> = events_of(&daemon, "model_failed");
    let retry = retries.iter().find(|event| event["retry_in_s"].is_number()).expect("it was told");
    assert!(
        retry["retry_in_s"].as_f64() >= Some(1.0) && retry["failure"]["kind"] == "rate_limited",
        "{retry:#}"
    );
    // Once more, and no further.
    failed(&daemon);
    assert_eq!(server.received().len(), 5);
    failed(&daemon);
    assert_eq!(server.received().len(), 6);
    for place in [daemon.log(), daemon.stderr(), json!(daemon.events(S, 0)).to_string()] {
        assert!(!place.contains(KEY), "the key got out");
    }
    daemon.assert_sound();
}

/// Every attempt is in the journal, in its place, however fast they follow each other.
#[test]
fn every_retry_is_told_before_what_comes_of_it() {
    if !engine() {
        return;
    }
    let server = ModelServer::start([
        Fault::Status(429, Some("0")).into(),
        Fault::Cut.into(),
        Fault::Status(500, None).into(),
        Fault::StallInStream.into(),
        Reply::text("at last").into(),
    ]);
    let daemon = Daemon::with_config(&served(&server, "retries = 4"));
    daemon.session(S, json!({"image": "belljar/base"}));
    assert_eq!(answered(&daemon), "at last");
    let events = daemon.events(S, 0);
    let told: Vec<&str> = events
        .iter()
        .filter_map(|event| match event["type"].as_str()? {
            "model_failed" => {
                assert!(event["retry_in_s"].is_number(), "{event:#}");
                event["failure"]["kind"].as_str()
            }
            "model_replied" => Some("replied"),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["rate_limited", "cut_off", "server_error", "timed_out", "replied"]);
    let attempts = events.iter().filter(|event| event["type"] == "model_failed");
    let attempts: Vec<u64> = attempts.map(|event| number(event, "/failure/attempts")).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
}

#[test]
fn a_reply_that_breaks_off_is_asked_for_again() {
    let garbage = Fault::Raw("text/event-stream", "data: {\"choices\": [{]\n\n".into());
    let Some((daemon, server)) = playing([
        Fault::Stall.into(),
        Reply::text("first").into(),
        Fault::StallInStream.into(),
        Reply::text("second").into(),
        Fault::Cut.into(),
        Reply::text("third").into(),
        Fault::EndWithoutFinish.into(),
        Fault::EndWithoutFinish.into(),
        garbage.into(),
        Reply::call(
            "execute_python_code",
            json!({"python_code_snippet": "print('größe', 6 * 7)", "tool_call_purpose": "p"}),
        )
        .into(),
        Reply::text("last").into(),
    ]) else {
        return;
    };
    for expected in ["first", "second", "third"] {
        assert_eq!(answered(&daemon), expected);
    }
    // Half a reply is never taken for a whole one, and what is no reply is not asked for again.
    for _ in 0..2 {
        failed(&daemon);
    }
    assert_eq!(server.received().len(), 9);
    // Arguments that come in pieces, cut within characters.
    assert_eq!(answered(&daemon), "last");
    assert!(told(&daemon)[0].contains("größe 42"), "{:?}", told(&daemon));
    let end = events_of(&daemon, "ask_finished").pop().expect("an end");
    assert!(number(&end, "/end/usage/prompt_tokens") > 0, "{end:#}");
    daemon.assert_sound();
}

#[test]
fn an_event_without_an_end_takes_no_memory() {
    let Some((daemon, _server)) =
        playing([Reply::text("small").into(), Fault::EndlessEvent.into(), Reply::text("still small").into()])
    else {
        return;
    };
    assert_eq!(answered(&daemon), "small");
    let before = peak_kib(&daemon);
    failed(&daemon);
    let after = peak_kib(&daemon);
    assert!(after < before + GROWTH_KIB, "{before} KiB have become {after} KiB");
    assert_eq!(answered(&daemon), "still small");
    daemon.assert_sound();
}

//! No user fills the host's disk beyond a quota: every byte that a user can cause is charged before it is written.

use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::grounds::on_grounds_of_root;
use crate::docker::asking::{says, write_script};
use crate::docker::many_users::{ALICE, BOB, ask, run, session, shared, used};
use crate::support::{Daemon, Pulse, engine, eventually, http_as};

on_grounds_of_root!(tool_arguments_in_a_loop_end_the_cell_and_not_the_disk);

const MIB: u64 = 1 << 20;
/// The quota of the tests, and what is allowed beside it: the reserves of a few sessions, the write-ahead log of
/// the journal, its empty pages, logs.
const QUOTA: u64 = 100 * MIB;
const SLACK: u64 = 40 * MIB;
/// The quota of those that fill it up, again and again.
const SMALL_QUOTA: u64 = 30 * MIB;
/// The quota of those that fill it up with what they show and print: more than the slack, so that a byte too many for each of
/// them is noticed.
const MEDIUM_QUOTA: u64 = 48 * MIB;
/// More cells than one of which each shows what is below have room for in that quota.
const MOST_CELLS: usize = 8;
/// The most that the write-ahead log keeps of the disk when all of it is in the journal (`LOG_KEPT_BYTES`).
const LOG_KEPT: u64 = 64 * MIB;
/// No answer to another user may take longer, whatever one user does. Generous on purpose: an unoptimised daemon on
/// a busy machine takes seconds to look through a few MB, but not in the way of others.
const PROMPT: Duration = Duration::from_secs(10);

/// A cell that prints more than any of the quotas. It is ended over one piece of its output, so that less than a piece is
/// left, which is less than the next cell needs to begin.
const PRINTS: &str = "for n in range(200): print('y' * (1 << 20), n)";
/// A cell that shows as much as a cell may show, in large values.
const SHOWS: &str =
    "class Shown:\n    def _repr_html_(self): return 'z' * (3 << 20)\nfor n in range(5): display(Shown())";

const CONFIG: &str = r#"
[sandbox]
memory = "512MiB"
checkpoint_budget = "256MiB"
cpus = 1.0
[quota]
journal = "100MiB"
[tool.swallow]
description = "Takes a text and does nothing with it."
argv = ["/bin/sh", "-c", "cat > /dev/null; echo ok"]
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
"#;

fn with_quota(bytes: u64) -> Daemon {
    shared(&CONFIG.replace("100MiB", &format!("{}MiB", bytes / MIB)))
}

/// Bytes on the disk below a folder.
fn on_disk(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |path: &Path| std::fs::symlink_metadata(path).map_or(0, |found| found.blocks() * 512);
    entries
        .map(|entry| {
            let path = entry.path();
            let inside = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { on_disk(&path) } else { 0 };
            inside + of(&path)
        })
        .sum()
}

/// What the daemon itself keeps: everything but workspaces and the prepared kernel.
fn kept(daemon: &Daemon) -> u64 {
    let home = daemon.home();
    let skipped: u64 = ["w", "kernel"].iter().map(|name| on_disk(&home.join(name))).sum();
    on_disk(home).saturating_sub(skipped)
}

#[track_caller]
fn assert_within(quota: u64, daemon: &Daemon, before: u64) {
    let (grown, quota_mib) = (kept(daemon).saturating_sub(before), quota / MIB);
    assert!(grown <= quota + SLACK, "{} MiB are on the disk for a quota of {quota_mib} MiB", grown / MIB);
}

fn cells(daemon: &Daemon, code: &str, timeout_s: u64) -> Value {
    let path = "/v1/sessions/flood/cells?wait=true";
    ask(daemon, ALICE, "POST", path, json!({"code": code, "timeout_s": timeout_s})).expect_status(200)
}

/// The neighbour's cells, one after the other, while something goes on; the longest of them.
fn beside<T>(daemon: &Daemon, work: impl FnOnce() -> T + Send) -> T
where
    T: Send,
{
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        let mut longest = Duration::ZERO;
        while !working.is_finished() {
            let begun = Instant::now();
            // A disk that is busy with other things may refuse a cell, which is then asked for again.
            let path = "/v1/sessions/quiet/cells?wait=true";
            while ask(daemon, BOB, "POST", path, json!({"code": "6 * 7"})).status != 200 {
                assert!(begun.elapsed() < PROMPT, "somebody else got no answer");
            }
            longest = longest.max(begun.elapsed());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(longest < PROMPT, "somebody else waited for {longest:?}");
        working.join().expect("the work ends")
    })
}

/// 7 MB of arguments, again and again, within one cell.
fn tool_arguments_in_a_loop_end_the_cell_and_not_the_disk() {
    let daemon = with_quota(SMALL_QUOTA);
    session(&daemon, ALICE, "flood");
    session(&daemon, BOB, "quiet");
    run(&daemon, ALICE, "flood", "kept = 42");
    let (pulse, before) = (Pulse::of(&daemon), kept(&daemon));
    // Refused calls leave their names and sizes, never what they brought. That a list is no text only the daemon says.
    let refused = "text = 'x' * (7 << 20)\nrefusals = 0\nfor n in range(6):\n    try: tools.swallow(text=[text + str(n)])\n    except ToolError: refusals += 1\nrefusals";
    let result = beside(&daemon, || cells(&daemon, refused, 120));
    assert_eq!(result["result"]["repr"], "6", "{}", &result.to_string()[..500]);
    let grown = kept(&daemon).saturating_sub(before);
    assert!(grown < 20 * MIB, "6 refused calls took {} MiB", grown / MIB);

    let accepted = "text = 'x' * (7 << 20)\nfor n in range(30):\n    try: tools.swallow(text=text + str(n))\n    except Exception: pass";
    let result = beside(&daemon, || cells(&daemon, accepted, 120));
    assert_within(SMALL_QUOTA, &daemon, before);
    assert_eq!((&result["status"], &result["reason"]), (&json!("crashed"), &json!("journal_quota")));
    let note = result["state"]["note"].as_str().expect("a note");
    assert!(note.contains("stored journal") && note.contains("belljar rm"), "{note}");

    // What is refused is told, what is there is kept, and removal gives the room back.
    let path = "/v1/sessions/flood/cells?wait=true";
    let problem = ask(&daemon, ALICE, "POST", path, json!({"code": "'x' * 10"}));
    let value = ask(&daemon, ALICE, "GET", "/v1/sessions/flood/variables", Value::Null).expect_status(200);
    assert!(value.to_string().contains("kept"), "{value}");
    if problem.status != 200 {
        assert_eq!(problem.expect_status(429)["code"], "quota_exceeded");
    }
    ask(&daemon, ALICE, "DELETE", "/v1/sessions/flood", Value::Null);
    session(&daemon, ALICE, "flood");
    assert_eq!(run(&daemon, ALICE, "flood", "1 + 1")["result"]["repr"], "2");
    pulse.assert_steady();
    daemon.assert_sound();
}

#[test]
fn what_cells_show_and_print_ends_them_when_the_quota_is_used_up() {
    if !engine() {
        return;
    }
    let daemon = with_quota(MEDIUM_QUOTA);
    session(&daemon, BOB, "quiet");
    let before = kept(&daemon);
    let send = |code: &str| {
        let path = "/v1/sessions/flood/cells?wait=true";
        let answer = ask(&daemon, ALICE, "POST", path, json!({"code": code, "timeout_s": 120}));
        assert_within(MEDIUM_QUOTA, &daemon, before);
        answer
    };
    let flood = |code: &str| {
        session(&daemon, ALICE, "flood");
        let ends_for_it = |result: &Value| result["reason"] == "journal_quota";
        let mut results = (0..MOST_CELLS).map(|_| send(code).expect_status(200));
        assert!(results.any(|result| ends_for_it(&result)), "no cell was ended: {code}");
        // What is left may be too little for what that cell shows, and enough for another to begin.
        let refused = (0..2).map(|_| send(PRINTS)).find(|answer| {
            let has_begun = answer.status == 200;
            assert!(!has_begun || ends_for_it(&answer.json()), "it had no room: {code}");
            !has_begun
        });
        let refused = refused.expect("nothing begins without room").expect_status(429);
        assert_eq!(refused["code"], "quota_exceeded");
        ask(&daemon, ALICE, "DELETE", "/v1/sessions/flood", Value::Null);
    };
    beside(&daemon, || {
        flood(PRINTS);
        flood(SHOWS);
    });
    eventually("what was removed goes where there is no room for it", || {
        (used(&daemon, ALICE, "journal") <= MEDIUM_QUOTA).then_some(())
    });
    assert_within(MEDIUM_QUOTA, &daemon, before);
    daemon.assert_sound();
}

#[test]
fn sessions_that_could_not_be_made_leave_nothing() {
    if !engine() {
        return;
    }
    let daemon = shared(CONFIG);
    let before = kept(&daemon);
    let seed = "s".repeat(15 << 20);
    for n in 0..8 {
        // The folder is looked at only when the session has been written down.
        let request = json!({"name": format!("failed-{n}"), "image": "belljar/base",
            "workspace": "/root", "seed": {"large": seed}});
        let refused = ask(&daemon, ALICE, "POST", "/v1/sessions", request);
        assert!(refused.status >= 400, "{}", refused.text());
    }
    // The write-ahead log is used again from its beginning, and is one for all users, with a bound of its own.
    let log = daemon.home().join("journal.db-wal");
    eventually("not one of the seeds is on the disk", || {
        let log = std::fs::metadata(&log).map_or(0, |found| found.blocks() * 512);
        let grown = kept(&daemon).saturating_sub(before).saturating_sub(log.min(LOG_KEPT));
        println!("{} KiB beside {} KiB of log", grown / 1024, log / 1024);
        (grown < seed.len() as u64).then_some(())
    });
    assert_within(QUOTA, &daemon, before);
    // The seed of one that lives is its owner's.
    let request = json!({"name": "seeded", "image": "belljar/base", "seed": {"large": seed}});
    ask(&daemon, ALICE, "POST", "/v1/sessions", request).expect_status(201);
    assert!(used(&daemon, ALICE, "journal") > 15 * MIB, "a seed is charged");
    session(&daemon, ALICE, "small");
    daemon.assert_sound();
}

#[test]
fn answers_that_are_kept_for_repetitions_are_charged() {
    if !engine() {
        return;
    }
    let daemon = shared(CONFIG);
    session(&daemon, ALICE, "flood");
    let before = kept(&daemon);
    let shown =
        "class Shown:\n    def _repr_html_(self): return 'z' * (7 << 20)\ndisplay(Shown()); display(Shown())";
    let body = json!({"code": shown}).to_string();
    for n in 0..9 {
        let key = format!("key-{n}");
        let headers = [("Idempotency-Key", key.as_str())];
        let path = "/v1/sessions/flood/cells?wait=true";
        let answer = http_as(ALICE, &daemon.socket(), "POST", path, &headers, body.as_bytes());
        if answer.status == 507 {
            continue;
        }
        assert!(answer.status == 200 || answer.status == 429, "{}", answer.status);
        // Whatever was answered is answered again.
        let again = http_as(ALICE, &daemon.socket(), "POST", path, &headers, body.as_bytes());
        assert_eq!(again.status, answer.status, "{n}");
        assert_within(QUOTA, &daemon, before);
    }
    let quota = ask(&daemon, ALICE, "GET", "/v1/quota", Value::Null).text();
    assert!(quota.contains("answers kept for repeated requests"), "{quota}");
    daemon.assert_sound();
}

#[test]
fn a_reply_of_a_model_is_charged_before_it_is_written() {
    if !engine() {
        return;
    }
    let daemon = shared(
        "[quota]\njournal = \"5MiB\"\n[agent]\ntokens = 20_000_000\n[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n",
    );
    write_script(&daemon, &says(&"x".repeat(3 << 20)));
    session(&daemon, ALICE, "flood");
    let before = kept(&daemon);
    let path = "/v1/sessions/flood/asks?wait=true";
    let view = ask(&daemon, ALICE, "POST", path, json!({"text": "Say much."})).expect_status(200);
    let told = view.to_string();
    assert!(told.contains("stored journal"), "{}", &told[..told.len().min(2000)]);
    let grown = kept(&daemon).saturating_sub(before);
    assert!(grown < 7 * MIB, "a reply of 3 MiB took {} MiB for a quota of 5 MiB", grown / MIB);
    daemon.assert_sound();
}

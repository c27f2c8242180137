//! No user fills the daemon's memory: what a user makes it keep there is charged to a pool of that user. Beyond it the
//! user's clients and sandboxes are not read from, or refused; small requests get through, and others notice nothing.

use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::docker::asking::{runs, says, write_script};
use crate::docker::many_users::{BOB, run, session, shared};
use crate::support::{Daemon, Pulse, engine, eventually};

const MIB: u64 = 1 << 20;
/// The pool of the tests.
const POOL: u64 = 64 * MIB;
/// What the daemon may grow by while one user fills its pool: the pool, what connections have in their buffers, what is
/// parsed or written at the moment, and what the allocator keeps.
const GROWTH: u64 = POOL + 192 * MIB;
/// After that a request that waits for room is refused for sure.
const GIVEN_UP: Duration = Duration::from_secs(100);
/// Another user is answered within that time.
const PROMPT: Duration = Duration::from_secs(10);

const CONFIG: &str = r#"
[sandbox]
memory = "512MiB"
checkpoint_budget = "256MiB"
cpus = 1.0
[quota]
daemon_memory = "64MiB"
[tool.hold]
description = "Takes a text when it is told to."
argv = ["/bin/sh", "-c", "for n in $(seq 600); do [ -e RELEASED ] && break; sleep 0.2; done; cat > /dev/null; echo ok"]
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
[tool.release]
description = "Has those that hold a text take it."
argv = ["touch", "RELEASED"]
parameters = { type = "object", properties = {} }
[model.script]
provider = "script"
file = "script.toml"
"#;

/// A daemon with a session of root's, who is the one that fills its pool, and a neighbour's.
fn flooded() -> Option<Daemon> {
    flooded_with(CONFIG)
}

fn flooded_with(config: &str) -> Option<Daemon> {
    if !engine() {
        return None;
    }
    let daemon = shared(&config.replace("RELEASED", &released().display().to_string()));
    daemon.session("flood", json!({"image": "belljar/base"}));
    session(&daemon, BOB, "quiet");
    daemon.run("flood", "kept = 42");
    run(&daemon, BOB, "quiet", "1 + 1");
    Some(daemon)
}

/// The file that the tool `hold` waits for.
fn released() -> PathBuf {
    std::env::temp_dir().join(format!("belljar-released-{}", std::process::id()))
}

/// `VmRSS` of the daemon.
fn resident(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[track_caller]
fn assert_bounded(daemon: &Daemon, before: u64) {
    let grown = resident(daemon).saturating_sub(before);
    eprintln!("the daemon grew by {} MiB for a pool of {} MiB", grown / MIB, POOL / MIB);
    assert!(grown <= GROWTH, "the daemon grew by {} MiB for a pool of 64 MiB", grown / MIB);
}

/// What root has of the pool.
fn taken(daemon: &Daemon) -> u64 {
    let quota = daemon.http("GET", "/v1/quota", b"").expect_status(200);
    let quotas = quota["quotas"].as_array().expect("a list").clone();
    let found = quotas.into_iter().find(|quota| quota["kind"] == "daemon_memory").expect("that quota");
    assert_eq!(found["limit"], POOL);
    found["used"].as_u64().expect("a number")
}

/// Another user is answered, and root can still interrupt, look and remove.
#[track_caller]
fn assert_others_work(daemon: &Daemon) {
    let begun = Instant::now();
    assert_eq!(run(daemon, BOB, "quiet", "6 * 7")["result"]["repr"], "42");
    assert!(begun.elapsed() < PROMPT, "somebody else waited for {:?}", begun.elapsed());
    daemon.http("POST", "/v1/sessions/flood/interrupt", b"").expect_status(200);
    daemon.http("GET", "/v1/sessions", b"").expect_status(200);
}

/// The session goes, and with it all that it had of the pool.
#[track_caller]
fn assert_given_back(daemon: &Daemon) {
    daemon.http("DELETE", "/v1/sessions/flood", b"").expect_status(200);
    // A body that waits for room is given up after a minute, also if its client is gone.
    let begun = Instant::now();
    while taken(daemon) > 0 {
        assert!(begun.elapsed() < GIVEN_UP, "{} bytes are still taken", taken(daemon));
        std::thread::sleep(Duration::from_millis(200));
    }
    daemon.session("flood", json!({"image": "belljar/base"}));
    assert_eq!(daemon.run("flood", "1 + 1")["result"]["repr"], "2");
    daemon.assert_sound();
}

/// A cell that runs until it is interrupted.
fn sleeps(daemon: &Daemon) {
    let cell = json!({"code": "import time\ntime.sleep(600)", "timeout_s": 900}).to_string();
    daemon.http("POST", "/v1/sessions/flood/cells", cell.as_bytes()).expect_status(202);
}

#[test]
fn bodies_on_many_connections_stay_within_the_pool() {
    let Some(daemon) = flooded() else { return };
    let pulse = Pulse::of(&daemon);
    sleeps(&daemon);
    let before = resident(&daemon);
    let head =
        format!("POST /v1/sessions/flood/cells HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 15 * MIB);
    let connect = |_| {
        let mut stream = daemon.connect().expect("it serves");
        stream.write_all(head.as_bytes()).expect("a head");
        stream.set_nonblocking(true).expect("a setting");
        (stream, 0)
    };
    let mut held: Vec<(UnixStream, u64)> = (0..200).map(connect).collect();
    let piece = vec![b' '; 64 << 10];
    let begun = Instant::now();
    // What is not read within these rounds is not read.
    let mut last_progress = Instant::now();
    while begun.elapsed() < Duration::from_secs(25) && last_progress.elapsed() < Duration::from_secs(4) {
        for (stream, sent) in &mut held {
            while *sent < 4 * MIB
                && let Ok(count) = stream.write(&piece)
            {
                *sent += count as u64;
                last_progress = Instant::now();
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent: u64 = held.iter().map(|(_, sent)| sent).sum();
    assert_bounded(&daemon, before);
    assert!(taken(&daemon) <= POOL, "no more than there is");
    assert!(sent < 400 * MIB, "{} MiB were taken in", sent / MIB);
    assert_others_work(&daemon);
    drop(held);
    assert_given_back(&daemon);
    pulse.assert_steady();
}

#[test]
fn small_values_are_counted_before_they_are_parsed() {
    let Some(daemon) = flooded() else { return };
    let before = resident(&daemon);
    // 2 bytes of text each, and many times that as values.
    let zeros = "0,".repeat(3 << 20);
    for values in [
        format!("[{zeros}0]"),
        format!("[{}[0]]", "[0],".repeat(1 << 20)),
        format!("[{}{{}}]", "{\"\":0},".repeat(1 << 18)),
    ] {
        let body = format!("{{\"expression\": \"1\", \"isolated\": true, \"values\": {{\"a\": {values}}}}}");
        let refused = daemon.http("POST", "/v1/sessions/flood/eval", body.as_bytes()).expect_status(429);
        assert_eq!(refused["code"], "quota_exceeded");
        let message = refused["message"].as_str().expect("a text");
        assert!(message.contains("your part of the daemon's memory"), "{message}");
        assert!(
            refused["hint"].as_str().is_some_and(|hint| hint.contains("quota.daemon_memory")),
            "{refused}"
        );
    }
    // Texts are as large as they are.
    let body = json!({"code": format!("len('{}')", "x".repeat(4 << 20))}).to_string();
    let path = "/v1/sessions/flood/cells?wait=true";
    let result = daemon.http("POST", path, body.as_bytes()).expect_status(200);
    assert_eq!(result["result"]["repr"], (4 << 20).to_string());
    assert_bounded(&daemon, before);
    assert_others_work(&daemon);
    assert_given_back(&daemon);
}

#[test]
fn event_streams_that_nobody_reads_stay_within_the_pool() {
    let Some(daemon) = flooded() else { return };
    let shows = "class Shown:\n    def _repr_html_(self): return 'z' * (5 << 20)\nfor n in range(2): display(Shown())";
    daemon.run("flood", shows);
    sleeps(&daemon);
    eventually("all of it is written", || (taken(&daemon) == 0).then_some(()));
    let before = resident(&daemon);
    let follow = |_| {
        let mut stream = daemon.connect().expect("it serves");
        stream
            .write_all(b"GET /v1/sessions/flood/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
            .expect("a head");
        stream
    };
    let held: Vec<UnixStream> = (0..100).map(follow).collect();
    // The first ones get what there is room for, and the others wait for them.
    let mut most = 0;
    for _ in 0..40 {
        most = most.max(taken(&daemon));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(most > 0 && most <= POOL, "{most} bytes were taken");
    assert_bounded(&daemon, before);
    assert_others_work(&daemon);
    drop(held);
    assert_given_back(&daemon);
}

#[test]
fn answers_that_nobody_reads_stay_within_the_pool() {
    let Some(daemon) = flooded() else { return };
    let shows = "class Shown:\n    def _repr_html_(self): return 'z' * (6 << 20)\ndisplay(Shown())";
    let cell = daemon.run("flood", shows)["cell"].as_u64().expect("its number");
    let ask = |_| {
        let mut stream = daemon.connect().expect("it serves");
        let head = format!("GET /v1/sessions/flood/cells/{cell} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("a head");
        let mut first = [0; 12];
        stream.read_exact(&mut first).expect("an answer");
        (stream, String::from_utf8_lossy(&first).into_owned())
    };
    let answered: Vec<(UnixStream, String)> = (0..20).map(ask).collect();
    let with = |status: &str| answered.iter().filter(|(_, first)| first.ends_with(status)).count();
    assert!(with("200") >= 5 && with("429") >= 5, "{} and {}", with("200"), with("429"));
    assert!(taken(&daemon) <= POOL);
    assert_others_work(&daemon);
    drop(answered);
    assert_given_back(&daemon);
}

#[test]
fn large_tool_calls_at_once_are_refused_beyond_the_pool() {
    let Some(daemon) = flooded() else { return };
    let before = resident(&daemon);
    // However slow the machine is, nothing is taken before some were refused.
    let code = "import threading, time\noutcomes = []\ndef call(n):\n    try: outcomes.append(str(tools.hold(text=str(n) * (4 << 20))))\n    except Exception as error: outcomes.append(str(error))\nthreads = [threading.Thread(target=call, args=(n % 10,)) for n in range(12)]\nfor thread in threads: thread.start()\nfor n in range(1000):\n    if len(outcomes) > 1: break\n    time.sleep(0.1)\ntools.release()\nfor thread in threads: thread.join()\n[sum('memory' in said for said in outcomes), sum(said.startswith('<<TOOL') for said in outcomes)]";
    let (result, most) = std::thread::scope(|scope| {
        let calling = scope.spawn(|| daemon.run_with("flood", json!({"code": code, "timeout_s": 200})));
        let mut most = 0;
        while !calling.is_finished() {
            most = most.max(resident(&daemon));
            assert_eq!(run(&daemon, BOB, "quiet", "6 * 7")["result"]["repr"], "42");
            std::thread::sleep(Duration::from_millis(200));
        }
        (calling.join().expect("it ends"), most)
    });
    std::fs::remove_file(released()).expect("the tool made it");
    let counts: Vec<u64> =
        serde_json::from_str(result["result"]["repr"].as_str().expect("a list")).expect("numbers");
    assert!(counts[0] >= 2 && counts[1] >= 3, "refused and made: {counts:?} of 12");
    assert!(most.saturating_sub(before) <= GROWTH, "the daemon grew by {} MiB", (most - before) / MIB);
    assert_others_work(&daemon);
    assert_given_back(&daemon);
}

#[test]
fn code_of_cells_that_wait_stays_within_the_pool() {
    let Some(daemon) = flooded() else { return };
    sleeps(&daemon);
    let code = json!({"code": format!("# {}", "x".repeat(6 << 20))}).to_string();
    let send = || daemon.http("POST", "/v1/sessions/flood/cells", code.as_bytes());
    let refused = (0..10).map(|_| send()).find(|answer| answer.status != 202).expect("there is an end");
    let problem = refused.expect_status(429);
    assert_eq!(problem["code"], "quota_exceeded");
    assert!(problem["message"].as_str().is_some_and(|text| text.contains("code of cells")), "{problem}");
    assert!((1..=POOL).contains(&taken(&daemon)));
    assert_others_work(&daemon);
    assert_given_back(&daemon);
}

#[test]
fn seeds_of_sessions_stay_within_the_pool() {
    let Some(daemon) = flooded() else { return };
    // Three times that is charged for each seed: two of them leave room for a request with a third, as text and as values,
    // and none for its seed. A request that has no room itself waits for a minute before it is refused.
    let seed = "s".repeat(15 << 19);
    let make = |name: &str| {
        let request = json!({"name": name, "image": "belljar/base", "seed": {"large": seed}});
        daemon.http("POST", "/v1/sessions", request.to_string().as_bytes())
    };
    make("first").expect_status(201);
    make("second").expect_status(201);
    let taken_by_two = taken(&daemon);
    let problem = make("third").expect_status(429);
    assert!(problem["message"].as_str().is_some_and(|text| text.contains("seeds")), "{problem}");
    daemon.http("DELETE", "/v1/sessions/first", b"").expect_status(200);
    eventually("what the seed took is given back", || (taken(&daemon) < taken_by_two * 2 / 3).then_some(()));
    make("third").expect_status(201);
    for name in ["second", "third"] {
        daemon.http("DELETE", &format!("/v1/sessions/{name}"), b"").expect_status(200);
    }
    assert_others_work(&daemon);
    assert_given_back(&daemon);
}

#[test]
fn asks_that_wait_stay_within_the_pool() {
    let Some(daemon) = flooded() else { return };
    write_script(&daemon, &runs("import time\ntime.sleep(600)"));
    let ask = |context: &str| {
        let ask = json!({"text": "Wait.", "context": {"large": context}}).to_string();
        daemon.http("POST", "/v1/sessions/flood/asks", ask.as_bytes())
    };
    ask("").expect_status(202);
    let context = "c".repeat(4 << 20);
    let refused =
        (0..10).map(|_| ask(&context)).find(|answer| answer.status != 202).expect("there is an end");
    let problem = refused.expect_status(429);
    assert!(problem["message"].as_str().is_some_and(|text| text.contains("conversations")), "{problem}");
    assert!((1..=POOL).contains(&taken(&daemon)));
    assert_others_work(&daemon);
    assert_given_back(&daemon);
}

/// The reply of a model is charged before it begins to come, with what was said so far.
#[test]
fn a_conversation_stays_within_the_pool() {
    let Some(daemon) = flooded_with(&CONFIG.replace("64MiB", "8MiB")) else { return };
    write_script(&daemon, &says("Well."));
    let ask = |tokens: u64| {
        let ask = json!({"text": "Say something.", "limits": {"tokens": tokens}}).to_string();
        daemon.http("POST", "/v1/sessions/flood/asks?wait=true", ask.as_bytes()).expect_status(200)["end"]
            .clone()
    };
    let end = ask(3_000_000);
    assert_eq!(end["outcome"], "model_failed", "{end}");
    assert!(end.to_string().contains("your part of the daemon's memory is used up"), "{end}");
    assert_eq!(ask(100_000)["outcome"], "answered");
    assert_others_work(&daemon);
    daemon.assert_sound();
}

/// What a model wrote and ran stays in the conversation that the next ask goes on with.
#[test]
fn what_was_said_in_ended_asks_is_charged() {
    const SAID: u64 = 1 << 20;
    let Some(daemon) = flooded() else { return };
    let code = format!("n = len('{}')", "x".repeat(SAID as usize));
    let script = format!("{}{}", runs(&code), says("Done."));
    write_script(&daemon, &script);
    let ask = json!({"text": "Count.", "limits": {"tokens": 3_000_000}}).to_string();
    let end = daemon.http("POST", "/v1/sessions/flood/asks?wait=true", ask.as_bytes()).expect_status(200);
    assert_eq!(end["end"]["outcome"], "answered", "{end}");
    assert!(taken(&daemon) >= SAID, "{} bytes are charged", taken(&daemon));
    assert_given_back(&daemon);
}

#[test]
fn versions_of_a_plan_stay_within_the_pool() {
    let Some(daemon) = flooded_with(&CONFIG.replace("64MiB", "8MiB")) else { return };
    let code = "said = 'none'\nfor n in range(30):\n    nodes = [{'task_id': f'T{i}', 'task_name': f'{n} {i}', 'description': 'd' * 15000} for i in range(20)]\n    try: tools.recursive_plan_tree_todo(recursive_plan_tree={'core_goal': 'g', 'tree_nodes': nodes})\n    except Exception as error:\n        said = str(error)\n        break\nprint(n, said)";
    let result = daemon.run_with("flood", json!({"code": code, "timeout_s": 280}));
    let said = result["stdout"].as_str().expect("a text");
    assert!(said.contains("conversations with models"), "{said}");
    assert_others_work(&daemon);
    daemon.assert_sound();
}

/// Sends a request to `path` and hangs up when the daemon has all of it. No two requests may be of one size.
fn send_and_hang_up(daemon: &Daemon, path: &str, body: &str) {
    let before = taken(daemon);
    let mut stream = daemon.connect().expect("it serves");
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it is read");
    eventually("all of it is read", || (taken(daemon) != before).then_some(()));
}

/// What a client has sent waits in the daemon although the client is gone, and is still that user's.
#[test]
fn requests_of_clients_that_are_gone_stay_within_the_pool() {
    const LARGE: usize = 12 << 20;
    let Some(daemon) = flooded() else { return };
    // The second sandbox of each session does not get ready: what it begins with does not end.
    let names = ["first", "second", "third"];
    let state = |name: &str| {
        daemon.http("GET", &format!("/v1/sessions/{name}"), b"").expect_status(200)["state"].clone()
    };
    for name in names {
        daemon.session(name, json!({"image": "belljar/base", "idle_s": 1, "preload": ["colorsys"]}));
        daemon.run(name, "open('colorsys.py', 'w').write('import time\\nwhile True: time.sleep(1)')");
    }
    for name in names {
        eventually("it sleeps", || (state(name) == "asleep").then_some(()));
        daemon.http("POST", &format!("/v1/sessions/{name}/cells"), br#"{"code": "1"}"#).expect_status(202);
        eventually("it starts", || (state(name) == "starting").then_some(()));
    }
    let before = resident(&daemon);
    for name in names {
        // All of them together are more than the daemon may grow by.
        for n in 0..10 {
            let values = json!({"a": "v".repeat(LARGE + n)});
            let body = json!({"expression": "1", "isolated": true, "values": values}).to_string();
            send_and_hang_up(&daemon, &format!("/v1/sessions/{name}/eval"), &body);
        }
    }
    assert_bounded(&daemon, before);
    assert!(taken(&daemon) >= names.len() as u64 * LARGE as u64, "what waits is charged");
    assert_others_work(&daemon);
    for name in names {
        daemon.http("DELETE", &format!("/v1/sessions/{name}"), b"").expect_status(200);
    }
    assert_given_back(&daemon);
}

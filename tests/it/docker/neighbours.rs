//! One user takes all it can get; the other one's cells run, and the socket answers.

use serde_json::{Value, json};

use super::many_users::{ALICE, BOB, ask, run, session, shared};
use crate::support::invariants::{self, Canary};
use crate::support::{Daemon, Pulse, engine, eventually, flood_as};

/// Generous on purpose: ratios are what the benchmark is for.
const GUARD: std::time::Duration = std::time::Duration::from_secs(20);

const BOMBS: [(&str, &str); 5] = [
    ("fork", "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"),
    ("memory", "blocks = []\nwhile True:\n    blocks.append(bytearray(b'x') * (8 << 20))"),
    ("disk", "n = 0\nwhile True:\n    open(str(n), 'wb').write(bytes(8 << 20))\n    n += 1"),
    ("inode", "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').close()\n    n += 1"),
    ("output", "while True:\n    print('x' * 65536)"),
];

fn neighbour_works(daemon: &Daemon) {
    let begun = std::time::Instant::now();
    let result = run(daemon, BOB, "calm", "x += 1\nx");
    assert_eq!(result["status"], "success", "{result}");
    ask(daemon, BOB, "GET", "/v1/health", Value::Null).expect_status(200);
    assert!(begun.elapsed() < GUARD, "the neighbour waited {:?}", begun.elapsed());
}

#[test]
fn bombs_of_one_user_leave_the_other_working() {
    if !engine() {
        return;
    }
    let canary = Canary::set();
    let daemon = shared(
        "[sandbox]\nmemory = \"128MiB\"\ncheckpoint_budget = \"64MiB\"\ncpus = 0.25\npids = 48\nworkspace = \"64MiB\"\n\
         [cells]\nspill = \"8MiB\"\n",
    );
    let pulse = Pulse::of(&daemon);
    session(&daemon, BOB, "calm");
    run(&daemon, BOB, "calm", "x = 0");
    for (name, code) in BOMBS {
        session(&daemon, ALICE, name);
        let path = format!("/v1/sessions/{name}/cells");
        ask(&daemon, ALICE, "POST", &path, json!({"code": code, "timeout_s": 20})).expect_status(202);
        neighbour_works(&daemon);
    }
    let mut flood = flood_as(ALICE, &daemon.socket());
    for _ in 0..10 {
        neighbour_works(&daemon);
    }
    eventually("the flood ends", || {
        neighbour_works(&daemon);
        flood.try_wait().expect("it was started").map(drop)
    });
    for (name, _) in BOMBS {
        let path = format!("/v1/sessions/{name}/cells/1");
        let result = eventually("the bomb ends with a reason", || {
            let view = ask(&daemon, ALICE, "GET", &path, Value::Null);
            let view = (view.status == 200).then(|| view.json())?;
            (view["state"] == "done").then(|| view["result"].clone())
        });
        assert_ne!(result["status"], "success", "{name}: {result}");
    }
    assert_eq!(run(&daemon, BOB, "calm", "x > 15")["result"]["repr"], "True");
    invariants::assert_hold(&daemon, &[ALICE, BOB], &canary);
    pulse.assert_steady();
}

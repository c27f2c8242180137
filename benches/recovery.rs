//! What a checkpoint and a recovery cost, by the amount of live data, beside saving and loading the
//! same variables with pickle in the same session.
//!
//! - checkpoint: how much later a cell answers that is sent right behind another, compared with the
//!   same after a pause; that is the time the worker is busy with the checkpoint
//! - recovery: from a cell that kills its process to the answer that the state is restored, less the
//!   round trip of a cell

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a benchmark that fails may panic"
)]

mod support;

use serde_json::Value;
use std::time::Duration;
use support::{Client, Daemon, percentile, timed, times};

const ROUNDS: usize = 15;
const PAUSE: Duration = Duration::from_millis(300);
const MEGABYTES: [usize; 4] = [10, 100, 500, 1000];
const IMAGE: &str = "belljar/science";

/// Seconds that pickle takes to save and load the variable `data`.
const PICKLE: &str = "
import pickle, time
began = time.perf_counter()
again = pickle.loads(pickle.dumps(data, protocol=5))
took = time.perf_counter() - began
del again
took";

fn main() {
    let daemon = Daemon::start();
    let mut client = Client::connect(&daemon.socket());
    println!("{:<26} {:>14} {:>14} {:>16}", "p50, in ms", "checkpoint", "recovery", "pickle save+load");
    for (kind, make) in [("arrays", arrays as fn(usize) -> String), ("small objects", small_objects)] {
        for megabytes in MEGABYTES {
            let row = measure(&mut client, &make(megabytes));
            println!(
                "{:<26} {:>14.2} {:>14.2} {:>16.2}",
                format!("{megabytes} MB in {kind}"),
                row.checkpoint,
                row.recovery,
                row.pickle
            );
        }
    }
}

fn arrays(megabytes: usize) -> String {
    format!("import os, numpy as np; data = [np.ones(131072) for _ in range({megabytes})]")
}

/// A float in a list takes 32 bytes.
fn small_objects(megabytes: usize) -> String {
    format!("import os; data = [float(n) for n in range({})]", megabytes * 1024 * 1024 / 32)
}

struct Row {
    checkpoint: f64,
    recovery: f64,
    pickle: f64,
}

fn measure(client: &mut Client, make: &str) -> Row {
    let gib = 1_u64 << 30;
    client.request(
        "POST",
        "/v1/sessions",
        &format!(r#"{{"name":"bench","image":"{IMAGE}","memory_bytes":{}}}"#, 6 * gib),
    );
    client.run("bench", make);
    let alone = times(ROUNDS, |_| {
        std::thread::sleep(PAUSE);
        timed(|| drop(client.run("bench", "1+1")))
    });
    let behind = times(ROUNDS, |_| {
        std::thread::sleep(PAUSE);
        client.run("bench", "1+1");
        timed(|| drop(client.run("bench", "1+1")))
    });
    let killed = times(ROUNDS, |_| {
        std::thread::sleep(PAUSE);
        timed(|| {
            let answer = client.run("bench", "os._exit(1)");
            assert!(answer.contains(r#""kind":"restored""#), "{answer}");
        })
    });
    let pickle: Value = serde_json::from_str(&client.run("bench", PICKLE)).expect("JSON");
    let pickle: f64 = pickle["result"]["repr"].as_str().expect("a value").parse().expect("seconds");
    client.request("DELETE", "/v1/sessions/bench", "");
    let base = percentile(&alone, 50);
    Row {
        checkpoint: percentile(&behind, 50) - base,
        recovery: percentile(&killed, 50) - base,
        pickle: pickle * 1e3,
    }
}

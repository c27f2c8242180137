//! What a checkpoint and a recovery cost, by the amount of live data, beside saving and loading the
//! same variables with dill in the same session (with pickle, where dill cannot be had).
//!
//! - checkpoint: how much later a cell answers that is sent right behind another, compared with the
//!   same after a pause; that is the time the worker is busy with the checkpoint
//! - recovery: from a cell that kills its process to the answer that the state is restored, less the
//!   round trip of a cell
//! - a lone cell: `1+1` after a pause, in a session with checkpoints and in one without, in turn

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
const LONE_CELLS: usize = 100;
const UNPROTECTED: &str = "[sandbox]\ncheckpoints = 0\n";

/// Seconds that it takes to save and load the variable `data`, and what with.
const SAVE_AND_LOAD: &str = "
import time
try:
    import dill as saver
except ImportError:
    import pickle as saver
began = time.perf_counter()
again = saver.loads(saver.dumps(data, protocol=5))
took = time.perf_counter() - began
del again
print(saver.__name__)
took";

/// A folder with dill, for the workspace: it is plain Python.
fn dill() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().ok()?;
    let pip = std::process::Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(folder.path())
        .arg("dill")
        .status();
    let installed = pip.is_ok_and(|status| status.success());
    if !installed {
        eprintln!("dill cannot be had; pickle is measured in its place");
    }
    installed.then_some(folder)
}

fn main() {
    lone_cells();
    let daemon = Daemon::with_config("");
    let mut client = Client::connect(&daemon.socket());
    let dill = dill();
    println!("{:<26} {:>14} {:>14} {:>16}", "p50, in ms", "checkpoint", "recovery", "save + load");
    for (kind, make) in [("arrays", arrays as fn(usize) -> String), ("small objects", small_objects)] {
        for megabytes in MEGABYTES {
            let row = measure(&mut client, dill.as_ref(), &make(megabytes));
            println!(
                "{:<26} {:>14.2} {:>14.2} {:>16.2} {}",
                format!("{megabytes} MB in {kind}"),
                row.checkpoint,
                row.recovery,
                row.saved,
                row.saver
            );
        }
    }
}

/// In turn, so that whatever else the machine does meets both.
fn lone_cells() {
    let daemons = [Daemon::with_config(""), Daemon::with_config(UNPROTECTED)];
    let mut clients = daemons.each_ref().map(|daemon| Client::connect(&daemon.socket()));
    for client in &mut clients {
        client.request("POST", "/v1/sessions", &format!(r#"{{"name":"bench","image":"{IMAGE}"}}"#));
        (0..LONE_CELLS).for_each(|_| drop(client.run("bench", "1+1")));
    }
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..LONE_CELLS {
        for (client, taken) in clients.iter_mut().zip(&mut taken) {
            std::thread::sleep(PAUSE);
            taken.push(timed(|| drop(client.run("bench", "1+1"))));
        }
    }
    let [with, without] = taken.map(|mut times| {
        times.sort();
        percentile(&times, 50)
    });
    println!(
        "a lone `1+1`, p50: {with:.2} ms with checkpoints, {without:.2} ms without: {:+.2} ms\n",
        with - without
    );
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
    saved: f64,
    saver: String,
}

fn measure(client: &mut Client, dill: Option<&tempfile::TempDir>, make: &str) -> Row {
    let gib = 1_u64 << 30;
    client.request(
        "POST",
        "/v1/sessions",
        &format!(r#"{{"name":"bench","image":"{IMAGE}","memory_bytes":{}}}"#, 6 * gib),
    );
    if let Some(dill) = dill {
        upload(client, dill.path());
    }
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
    let saved: Value = serde_json::from_str(&client.run("bench", SAVE_AND_LOAD)).expect("JSON");
    let seconds: f64 = saved["result"]["repr"].as_str().expect("a value").parse().expect("seconds");
    client.request("DELETE", "/v1/sessions/bench", "");
    let base = percentile(&alone, 50);
    Row {
        checkpoint: percentile(&behind, 50) - base,
        recovery: percentile(&killed, 50) - base,
        saved: seconds * 1e3,
        saver: saved["stdout"].as_str().unwrap_or_default().trim().to_owned(),
    }
}

/// Puts a folder's content into the workspace.
fn upload(client: &mut Client, folder: &std::path::Path) {
    let view: Value = serde_json::from_str(&client.request("GET", "/v1/sessions/bench", "")).expect("JSON");
    let workspace = view["workspace"].as_str().expect("a workspace");
    let copied = std::process::Command::new("cp").arg("-r").arg(folder.join(".")).arg(workspace).status();
    assert!(copied.is_ok_and(|status| status.success()), "the folder cannot be copied");
}

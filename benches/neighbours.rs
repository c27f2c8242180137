//! What one user notices of another: a cell's round trip and the health of the daemon, alone and while
//! sandboxes beside it are full of bombs. Read the ratios.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a benchmark that fails may panic"
)]

use std::time::Duration;

mod support;

use support::{Client, Daemon, percentile, timed, times};

const WARM_UP: usize = 50;
const CELLS: usize = 300;
const BOMB_SECONDS: u32 = 60;
const CONFIG: &str = "[sandbox]\nmemory = \"128MiB\"\ncheckpoint_budget = \"64MiB\"\npids = 48\nworkspace = \"64MiB\"\n\
                      [cells]\nspill = \"8MiB\"\n";

/// Each takes one thing until the limit, and goes on trying.
const BOMBS: [(&str, &str); 5] = [
    ("fork", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    (
        "memory",
        "while True:\n    try:\n        b = []\n        while len(b) < 10: b.append(bytearray(8 << 20))\n    except MemoryError: pass",
    ),
    ("disk", "while True: open('x', 'wb').write(bytes(32 << 20))"),
    (
        "inodes",
        "n = 0\nwhile True:\n    n += 1\n    try: open(f'/tmp/{n}', 'w').close()\n    except OSError: pass",
    ),
    ("output", "while True: print('x' * 65536)"),
];

fn main() {
    let daemon = Daemon::with_config(CONFIG);
    let mut client = Client::connect(&daemon.socket());
    let make = |client: &mut Client, name: &str| {
        client.request(
            "POST",
            "/v1/sessions",
            &format!("{{\"name\": \"{name}\", \"image\": \"belljar/base\"}}"),
        );
    };
    make(&mut client, "calm");
    times(WARM_UP, |_| timed(|| drop(client.run("calm", "1+1"))));
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>9}   (ms)",
        "beside the calm session", "cell p50", "cell p95", "ping p50", "ratio p50"
    );
    let measure = |client: &mut Client| -> (Vec<Duration>, Vec<Duration>) {
        let cells = times(CELLS, |_| timed(|| drop(client.run("calm", "1+1"))));
        let pings = times(CELLS, |_| timed(|| drop(client.request("GET", "/v1/sessions/calm", ""))));
        (cells, pings)
    };
    let (alone, pings) = measure(&mut client);
    let row = |name: &str, cells: &[Duration], pings: &[Duration]| {
        let (p50, p95, ping) = (percentile(cells, 50), percentile(cells, 95), percentile(pings, 50));
        println!("{name:<28} {p50:>9.3} {p95:>9.3} {ping:>9.3} {:>9.1}", p50 / percentile(&alone, 50));
    };
    row("nothing", &alone, &pings);
    for (name, code) in BOMBS {
        make(&mut client, name);
        let body = serde_json::json!({"code": code, "timeout_s": BOMB_SECONDS}).to_string();
        client.request("POST", &format!("/v1/sessions/{name}/cells"), &body);
        let (cells, pings) = measure(&mut client);
        row(&format!("{name} bomb"), &cells, &pings);
        client.request("DELETE", &format!("/v1/sessions/{name}"), "");
    }
}

//! What one user notices of another: a cell's round trip and an answer of the control socket, alone and
//! while sandboxes beside it are full of bombs and the socket is full of connections. Read the ratios.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a benchmark that fails may panic"
)]

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod support;

use support::{Client, Daemon, percentile, timed, times};

const WARM_UP: usize = 50;
const CELLS: usize = 300;
const BOMB_SECONDS: u32 = 60;
const CONFIG: &str = "[sandbox]\nmemory = \"128MiB\"\ncheckpoint_budget = \"64MiB\"\npids = 48\nworkspace = \"64MiB\"\n\
                      [cells]\nspill = \"8MiB\"\n[quota]\njournal = \"20GiB\"\n\
                      [tool.swallow]\ndescription = \"Reads it.\"\nargv = [\"/bin/sh\", \"-c\", \"cat > /dev/null\"]\n\
                      parameters = { type = \"object\", properties = { text = { type = \"string\" } } }\n";

/// Each takes one thing until the limit, and goes on trying.
const BOMBS: [(&str, &str); 6] = [
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
    // Arguments of 7 MB, each of which the journal keeps as a file.
    (
        "calls",
        "text = 'x' * (7 << 20)\nn = 0\nwhile True:\n    n += 1\n    try: tools.swallow(text=text + str(n))\n    except ToolError: pass",
    ),
];

/// Streams of events that nobody reads, of a session that prints without end.
const UNREAD: usize = 100;

/// Connections that are opened one after the other, and the most that are kept open.
const FLOOD: usize = 10_000;
const FLOOD_KEPT: usize = 600;

/// Opens connections until it is told to stop, and says how many it has opened.
fn flood(socket: &Path, over: &AtomicBool) -> usize {
    let mut kept = VecDeque::new();
    let mut opened = 0;
    while opened < FLOOD || !over.load(Ordering::Relaxed) {
        // A full backlog is what a flood meets, and no reason to stop.
        kept.extend(UnixStream::connect(socket));
        if kept.len() > FLOOD_KEPT {
            kept.pop_front();
        }
        opened += 1;
    }
    opened
}

struct Measured {
    cells: Vec<Duration>,
    pings: Vec<Duration>,
}

fn measure(client: &mut Client) -> Measured {
    let cells = times(CELLS, |_| timed(|| drop(client.run("calm", "1+1"))));
    let pings = times(CELLS, |_| timed(|| drop(client.request("GET", "/v1/sessions/calm", ""))));
    Measured { cells, pings }
}

fn make(client: &mut Client, name: &str) {
    let body = serde_json::json!({"name": name, "image": "belljar/base"}).to_string();
    client.request("POST", "/v1/sessions", &body);
}

fn begin(client: &mut Client, (name, code): (&str, &str)) {
    make(client, name);
    let body = serde_json::json!({"code": code, "timeout_s": BOMB_SECONDS}).to_string();
    client.request("POST", &format!("/v1/sessions/{name}/cells"), &body);
}

fn unread_stream(socket: &Path, session: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("the daemon serves");
    let head = format!("GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: belljar\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

fn main() {
    let daemon = Daemon::with_config(CONFIG);
    let socket = daemon.socket();
    let mut client = Client::connect(&socket);
    make(&mut client, "calm");
    times(WARM_UP, |_| timed(|| drop(client.run("calm", "1+1"))));
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>6} {:>9} {:>9} {:>9} {:>6}   (ms)",
        "beside the calm session",
        "cell p50",
        "cell p95",
        "cell max",
        "ratio",
        "ping p50",
        "ping p95",
        "ping max",
        "ratio"
    );
    let alone = measure(&mut client);
    let row = |name: &str, found: &Measured| {
        let of = |now: &[Duration], before: &[Duration]| {
            let (p50, p95, max) = (percentile(now, 50), percentile(now, 95), percentile(now, 100));
            format!("{p50:>9.3} {p95:>9.3} {max:>9.3} {:>6.1}", p50 / percentile(before, 50))
        };
        println!("{name:<24} {} {}", of(&found.cells, &alone.cells), of(&found.pings, &alone.pings));
    };
    row("nothing", &alone);
    for bomb in BOMBS {
        begin(&mut client, bomb);
        let found = measure(&mut client);
        row(&format!("{} bomb", bomb.0), &found);
        client.request("DELETE", &format!("/v1/sessions/{}", bomb.0), "");
    }
    begin(&mut client, ("output", BOMBS[4].1));
    let unread: Vec<UnixStream> = (0..UNREAD).map(|_| unread_stream(&socket, "output")).collect();
    row(&format!("{UNREAD} unread streams"), &measure(&mut client));
    drop(unread);
    client.request("DELETE", "/v1/sessions/output", "");
    let flooded = |client: &mut Client| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| flood(&socket, &over));
            let found = measure(client);
            over.store(true, Ordering::Relaxed);
            (found, flooding.join().expect("it ends"))
        })
    };
    let (found, opened) = flooded(&mut client);
    row(&format!("{opened} connections"), &found);
    for bomb in BOMBS {
        begin(&mut client, bomb);
    }
    let (found, _) = flooded(&mut client);
    row("all of it at once", &found);
}

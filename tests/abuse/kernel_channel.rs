//! Code in a cell that writes to the kernel's own channels in its process: it may show things and call tools, and
//! say how its own cell went, and nothing that it says moves a deadline or ends more than itself.

use serde_json::json;
use std::time::{Duration, Instant};

use super::grounds::on_every_ground;
use crate::support::Daemon;

/// `say(kind, payload)` writes a message to the guardian, on the control channel or on that of tools.
const SAY: &str = r#"
import os, struct, time, signal
def say(kind, payload, descriptor=900):
    message = struct.pack(">IB", len(payload), ord(kind)) + payload
    while message:
        message = message[os.write(descriptor, message):]
def done(cell):
    say("D", struct.pack(">QH", cell, 0) + b'{"status":"success","reason":"ok","exit_code":0,"result":null,"exception":null,'
        b'"duration_ms":1.0,"displays_dropped":0,"live":{"threads":0,"tasks":0,"children":0}}')
kept = "as it was"
"#;

fn daemon() -> Daemon {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    assert_eq!(daemon.run("a", SAY)["status"], "success");
    daemon
}

#[track_caller]
fn is_as_it_was(daemon: &Daemon) {
    assert_eq!(daemon.run("a", "kept")["result"]["repr"], "'as it was'");
}

fn forged_frames_end_at_worst_the_cell_that_sent_them() {
    let daemon = daemon();
    let events = daemon.events("a", 0).len();
    for kind in ["F", "H", "X"] {
        let frame = r#"{"type":"refused","code":"busy","message":"","request":null,"cell":%d}"#;
        let code = format!(
            "for cell in range(10):\n    say('{kind}', ({frame:?} % cell).encode())\nwhile True: pass"
        );
        let begun = Instant::now();
        let result = daemon.run_with("a", json!({"code": code, "timeout_s": 3}));
        assert!(begun.elapsed() < Duration::from_secs(3) + LATE, "{:?}", begun.elapsed());
        assert!(["crashed", "timeout"].contains(&result["status"].as_str().unwrap_or_default()), "{result}");
        assert_eq!(result["state"]["kind"], "restored", "{result}");
        is_as_it_was(&daemon);
    }
    let grown = daemon.events("a", 0).len() - events;
    assert!(grown < 100, "{grown} events");
    daemon.assert_sound();
}

fn a_cell_cannot_outlive_its_deadline_by_a_forged_end() {
    let daemon = daemon();
    // The time of a cell that is over is over, whatever it says when it is told so.
    let code = "signal.signal(signal.SIGTERM, lambda *_: done(2))\nwhile True: pass";
    times_out(&daemon, code);
    // A cell that is said to be done and runs on costs its own variables: the next one runs on those before.
    assert_eq!(daemon.run("a", "kept = 'changed'\ndone(4)\nwhile True: pass")["status"], "success");
    let begun = Instant::now();
    is_as_it_was(&daemon);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    daemon.assert_sound();
}

/// How late a deadline may be on a machine that has other things to do; the daemon gives a sandbox up after 15 s.
const LATE: Duration = Duration::from_secs(8);

/// Runs endless code with a deadline of 2 s, which has to hold, and to cost nothing but the cell.
#[track_caller]
fn times_out(daemon: &Daemon, code: &str) {
    let begun = Instant::now();
    let result = daemon.run_with("a", json!({"code": code, "timeout_s": 2}));
    assert!(begun.elapsed() < Duration::from_secs(2) + LATE, "{:?}", begun.elapsed());
    assert_eq!(
        (&result["status"], &result["state"]["kind"]),
        (&json!("timeout"), &json!("restored")),
        "{result}"
    );
    is_as_it_was(daemon);
}

/// Four processes that send in the name of the worker, into the largest pipe that they can have: it is full again
/// before a guardian that reads all of it comes to its end, however little time they get.
const SEND_FOR_EVER: &str = "
import fcntl
fcntl.fcntl(900, fcntl.F_SETPIPE_SZ, 1 << 20)
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        data = struct.pack('>IB', 0, ord('B')) * 800
        while True:
            try: os.write(900, data)
            except BlockingIOError: pass
";

fn processes_that_send_for_ever_do_not_put_off_a_deadline() {
    let daemon = daemon();
    times_out(&daemon, &format!("{SEND_FOR_EVER}while True: pass"));
    // Nor the end of a worker that ends by itself and leaves them behind.
    let begun = Instant::now();
    let result = daemon.run("a", &format!("{SEND_FOR_EVER}time.sleep(1)\nos._exit(3)"));
    assert!(begun.elapsed() < Duration::from_secs(1) + LATE, "{:?}", begun.elapsed());
    assert_eq!(
        (&result["reason"], &result["state"]["kind"]),
        (&json!("exit_call"), &json!("restored")),
        "{result}"
    );
    is_as_it_was(&daemon);
    daemon.assert_sound();
}

fn nothing_can_be_sent_where_the_guardian_passes_descriptors_on() {
    let daemon = daemon();
    let code = "import socket
def tried(number):
    try: return socket.socket(fileno=os.dup(number)).send(b'x')
    except OSError as error: return type(error).__name__
[tried(904), tried(905)]";
    assert_eq!(daemon.run("a", code)["result"]["repr"], "['BrokenPipeError', 'BrokenPipeError']");
    is_as_it_was(&daemon);
}

/// Calls in a loop, with numbers that ascend, and that the daemon answers at once or not at all.
const FLOOD: &str = "
import itertools
for n in itertools.count():
    say('C', struct.pack('>IQ', n, 0) + WORDS, 901)";

fn a_flood_of_forged_calls_ends_with_its_cell() {
    let daemon = daemon();
    for words in
        [r#"b'{"name":"session_info","arguments":{}}'"#, r#"b'{"name":"none","arguments":{}}'"#, "b'{'"]
    {
        times_out(&daemon, &FLOOD.replace("WORDS", words));
        let result = daemon.run("a", "session_info() != ''");
        assert_eq!(result["result"]["repr"], "True", "after {words}: {result}");
    }
    daemon.assert_sound();
}

fn forged_numbers_and_ends_cost_no_later_cell() {
    let daemon = daemon();
    daemon.run("a", "worker = os.getpid()");
    for (round, number) in ["2**32 - 1", "0", "2**31"].into_iter().enumerate() {
        let cell = 3 + 2 * round;
        // The real end comes when the forged one has been taken.
        let code = format!(
            "say('C', struct.pack('>IQ', {number}, 0) + b'{{\"name\":\"session_info\",\"arguments\":{{}}}}', 901)\ndone({cell})\ntime.sleep(0.1)"
        );
        assert_eq!(daemon.run("a", &code)["status"], "success");
        let result = daemon.run("a", "(session_info() != '', kept, os.getpid() == worker)");
        assert_eq!(result["result"]["repr"], "(True, 'as it was', True)", "after {number}: {result}");
    }
    daemon.assert_sound();
}

/// What the next cell says would be read as the rest of it.
fn half_a_message_costs_no_later_cell() {
    let daemon = daemon();
    let code = "os.write(901, struct.pack('>IB', 1000, ord('C')) + b'half')\nmine = 'too'";
    assert_eq!(daemon.run("a", code)["status"], "success");
    let result = daemon.run_with("a", json!({"code": "(session_info() != '', mine, kept)", "timeout_s": 20}));
    assert_eq!(result["result"]["repr"], "(True, 'too', 'as it was')", "{result}");
    daemon.assert_sound();
}

fn checkpoints_that_do_not_answer_do_not_cost_the_session() {
    let daemon = daemon();
    let mute = "import sys\nsys.modules['belljar_kernel.runner'].Runner._become_worker = lambda self: time.sleep(1000)";
    assert_eq!(daemon.run("a", mute)["status"], "success");
    for n in 0..5 {
        assert_eq!(daemon.run("a", &format!("x{n} = int(1)"))["status"], "success");
    }
    let result = daemon.run_with("a", json!({"code": "while True: pass", "timeout_s": 2}));
    assert_eq!(
        (&result["status"], &result["state"]["kind"]),
        (&json!("timeout"), &json!("restored")),
        "{result}"
    );
    is_as_it_was(&daemon);
    daemon.assert_sound();
}

fn a_copy_that_says_that_it_is_done_ends() {
    let daemon = daemon();
    let code = "done(2)\nwhile True:\n    open('alive', 'w').close()\n    time.sleep(0.02)";
    let result = daemon.run_with("a", json!({"code": code, "mode": "fork"}));
    assert_eq!(result["status"], "success", "{result}");
    let lives_on = "
for _ in range(20):
    if os.path.exists('alive'): os.unlink('alive')
    time.sleep(0.5)
    if not os.path.exists('alive'): break
os.path.exists('alive')";
    assert_eq!(daemon.run("a", lives_on)["result"]["repr"], "False");
    daemon.assert_sound();
}

/// Sends a connection that takes an hour to close on everything that leads to the guardian; another process holds the
/// other end of the connection and reads nothing.
const SEND_WHAT_LINGERS: &str = "
import array, socket, threading
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(1)
lingers = socket.create_connection(server.getsockname()); peer, _ = server.accept()
lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 3600)); lingers.setblocking(False)
try:
    while True: lingers.send(b'x' * 65536)
except BlockingIOError: pass
if os.fork() == 0:
    os.setsid(); lingers.close(); time.sleep(1000)
peer.close()
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [lingers.fileno()]))]
for number in range(900, 910):
    try:
        channel = socket.socket(fileno=os.dup(number))
        channel.sendmsg([struct.pack('>IB', 0, ord('Q'))], rights, socket.MSG_DONTWAIT)
    except OSError: pass
threading.Thread(target=lingers.close, daemon=True).start()
while True: pass
";

fn a_connection_that_lingers_holds_up_nobody() {
    let daemon = daemon();
    times_out(&daemon, SEND_WHAT_LINGERS);
    assert_eq!(daemon.run("a", "kept = kept + ''")["status"], "success");
    times_out(&daemon, "while True: pass");
    daemon.assert_sound();
}

on_every_ground!(
    nothing_can_be_sent_where_the_guardian_passes_descriptors_on,
    forged_frames_end_at_worst_the_cell_that_sent_them,
    a_cell_cannot_outlive_its_deadline_by_a_forged_end,
    processes_that_send_for_ever_do_not_put_off_a_deadline,
    a_flood_of_forged_calls_ends_with_its_cell,
    forged_numbers_and_ends_cost_no_later_cell,
    half_a_message_costs_no_later_cell,
    checkpoints_that_do_not_answer_do_not_cost_the_session,
    a_copy_that_says_that_it_is_done_ends,
    a_connection_that_lingers_holds_up_nobody,
);

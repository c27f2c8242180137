//! Variables whose own code does harm while they are packed or loaded: it loops, dies, forks, takes memory and disk,
//! and lies about what it sends. Each costs at most itself, or the snapshot that it is in; both are said with a reason.

use serde_json::{Value, json};

use super::grounds::on_every_ground;
use crate::docker::helpers::text;
use crate::docker::snapshots::stored;
use crate::support::{Daemon, Response, assert_nothing_left, beside, eventually};

/// What processes that the code leaves behind are known by.
const LEFT: &str = "86413";

/// The session that is attacked from, and its neighbour.
const ATTACKED: &str = "a";
const NEIGHBOUR: &str = "b";

const KEPT: &str = "kept = ['as it was']\nalso = kept";

/// `Evil('…')` runs the code when it is packed, and is a number afterwards.
const AT_PACKING: &str = "
import os, pickle, signal, sys, time
class Evil:
    def __init__(self, code): self.code = code
    def __reduce__(self):
        exec(self.code, globals())
        return int, (3,)
def leave_a_child():
    if os.fork() == 0:
        try:
            os.setsid()
            os.execvp('sleep', ['sleep', '86413'])
        finally:
            os._exit(1)
";

/// `Late('…')` runs the code when it is loaded into the session that wakes, and not where it is tried out before.
const AT_LOADING: &str = "
def load(code):
    if not sys.modules['belljar_kernel.snapshot_make'].loading.is_trial:
        exec(code, globals())
    return 3
class Late:
    def __init__(self, code): self.code = code
    def __reduce__(self): return load, (self.code,)
";

/// Two sessions that save what the test asks for, and nothing by themselves.
fn daemon(config: &str) -> Daemon {
    let daemon = Daemon::with_config(config);
    for name in [ATTACKED, NEIGHBOUR] {
        daemon
            .session(name, json!({"image": "belljar/base", "snapshots": "named", "memory_bytes": 512 << 20}));
        assert_runs(&daemon, name, KEPT);
    }
    assert_runs(&daemon, ATTACKED, AT_PACKING);
    assert_runs(&daemon, ATTACKED, AT_LOADING);
    daemon
}

#[track_caller]
fn assert_runs(daemon: &Daemon, session: &str, code: &str) {
    let result = daemon.run(session, code);
    assert_eq!(result["status"], "success", "{result:#}");
}

fn post(daemon: &Daemon, session: &str, what: &str) -> Response {
    daemon.http("POST", &format!("/v1/sessions/{session}/{what}"), b"{}")
}

fn events(daemon: &Daemon, session: &str, kind: &str) -> Vec<Value> {
    daemon.events(session, 0).into_iter().filter(|event| event["type"] == kind).collect()
}

/// Why a name is not in a snapshot, or did not come back from it.
#[track_caller]
fn reason_of<'a>(told: &'a Value, name: &str) -> &'a str {
    let missing = told["missing"].as_array().unwrap_or_else(|| panic!("nothing is missing: {told:#}"));
    let found = missing.iter().find(|missing| missing["name"] == name);
    text(found.unwrap_or_else(|| panic!("{name} is not missing: {told:#}")), "reason")
}

/// Processes that the code has left in the sandbox.
fn left_in(daemon: &Daemon, session: &str) -> Vec<u32> {
    let is_left = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).split('\0').any(|word| word == LEFT)
    };
    beside(daemon.first_process(session)).into_iter().filter(is_left).collect()
}

#[track_caller]
fn assert_no_child_is_left(daemon: &Daemon, session: &str) {
    eventually("what was left behind is gone", || left_in(daemon, session).is_empty().then_some(()));
}

/// Ends the sandbox of a session whose variables are saved.
#[track_caller]
fn sleeps(daemon: &Daemon, session: &str) {
    post(daemon, session, "sleep").expect_status(200);
    eventually("it sleeps", || {
        let view = daemon.http("GET", &format!("/v1/sessions/{session}"), b"").expect_status(200);
        (view["state"] == "asleep").then_some(())
    });
}

/// Gives what the session says when it has woken.
#[track_caller]
fn sleeps_and_wakes(daemon: &Daemon, session: &str) -> Value {
    let before = events(daemon, session, "woken").len();
    sleeps(daemon, session);
    let result = daemon.run(session, "(kept, kept is also)");
    assert_eq!(result["result"]["repr"], "(['as it was'], True)", "{result:#}");
    let woken = events(daemon, session, "woken");
    assert_eq!(woken.len(), before + 1, "{woken:?}");
    woken.into_iter().next_back().expect("an event")
}

/// The variables of the session that is attacked cannot be loaded: it says why, with one of these words, begins anew,
/// and nothing of the code that ran for it goes on.
#[track_caller]
fn wakes_without_its_variables(daemon: &Daemon, why: &[&str]) {
    let before = events(daemon, ATTACKED, "wake_failed").len();
    sleeps(daemon, ATTACKED);
    let result = daemon.run(ATTACKED, "[name for name in ('kept', 'evil', 'Evil') if name in globals()]");
    assert_eq!(result["result"]["repr"], "[]", "{result:#}");
    assert_no_child_is_left(daemon, ATTACKED);
    let failed = events(daemon, ATTACKED, "wake_failed");
    assert_eq!(failed.len(), before + 1, "{failed:?}");
    let reason = text(&failed[before], "reason");
    assert!(why.iter().any(|why| reason.contains(why)) && reason.chars().count() < 1000, "{reason}");
}

/// No sandbox of the session that is attacked lives until its variables are loaded. Each cell says so, with one of these words,
/// and runs nothing; the variables stay saved until a reset gives them up. Nothing of the code that ran for them goes on.
#[track_caller]
fn cannot_wake(daemon: &Daemon, why: &[&str]) {
    sleeps(daemon, ATTACKED);
    for names_other_ways in [false, false, true] {
        let result = daemon.run(ATTACKED, "kept");
        assert_eq!(result["status"], "interrupted", "{result:#}");
        let note = text(&result["state"], "note");
        assert!(why.iter().any(|why| note.contains(why)), "{note}");
        assert_eq!(note.contains("belljar reset"), names_other_ways, "{note}");
    }
    post(daemon, ATTACKED, "reset").expect_status(200);
    let left = daemon.run(ATTACKED, "[name for name in ('kept', 'evil', 'Evil') if name in globals()]");
    assert_eq!(left["result"]["repr"], "[]", "{left:#}");
    assert_no_child_is_left(daemon, ATTACKED);
}

/// Both sessions sleep and wake, and when they are removed, nothing of them is there.
#[track_caller]
fn assert_all_is_well(daemon: &Daemon) {
    for session in [ATTACKED, NEIGHBOUR] {
        sleeps_and_wakes(daemon, session);
    }
    removed_without_a_trace(daemon, &[ATTACKED, NEIGHBOUR]);
}

#[track_caller]
fn removed_without_a_trace(daemon: &Daemon, sessions: &[&str]) {
    let sandboxes = daemon.containers();
    for session in sessions {
        daemon.http("DELETE", &format!("/v1/sessions/{session}?wait=true"), b"").expect_status(200);
    }
    assert_nothing_left(daemon, &sandboxes);
    eventually("no snapshot is left", || stored(daemon, |_| true).is_empty().then_some(()));
    daemon.assert_sound();
}

fn variables_that_loop_die_or_fork_while_they_are_packed_cost_only_themselves() {
    let daemon = daemon("");
    for (name, code) in [
        ("exits", "os._exit(5)"),
        ("dies", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("raises", "raise SystemExit(3)"),
        ("loops", "while True: pass"),
        ("forks", "leave_a_child()"),
    ] {
        assert_runs(&daemon, ATTACKED, &format!("{name} = Evil({code:?})"));
    }
    let said = [
        ("exits", "exit code 5"),
        ("dies", "signal 9"),
        ("raises", "SystemExit"),
        ("loops", "makes no progress"),
    ];
    let taken = post(&daemon, ATTACKED, "snapshots").expect_status(200);
    assert_no_child_is_left(&daemon, ATTACKED);
    let woken = sleeps_and_wakes(&daemon, ATTACKED);
    for told in [&taken, &woken] {
        for (name, why) in said {
            let reason = reason_of(told, name);
            assert!(reason.contains(why), "{name}: {reason}");
        }
        assert_eq!(told["missing"].as_array().map(Vec::len), Some(said.len()), "{told:#}");
    }
    assert_eq!(daemon.run(ATTACKED, "forks")["result"]["repr"], "3");
    assert_all_is_well(&daemon);
}

fn variables_that_die_while_they_are_loaded_cost_only_themselves() {
    let daemon = daemon("");
    for (code, why) in [
        ("leave_a_child(); os._exit(4)", "loading it ended the process (exit code 4)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "loading it ended the process (signal 9"),
    ] {
        assert_runs(&daemon, ATTACKED, &format!("evil = Late({code:?})"));
        let woken = sleeps_and_wakes(&daemon, ATTACKED);
        let reason = reason_of(&woken, "evil");
        assert!(reason.contains(why), "{reason}");
        assert_eq!(woken["missing"].as_array().map(Vec::len), Some(1), "{woken:#}");
        assert_no_child_is_left(&daemon, ATTACKED);
        sleeps_and_wakes(&daemon, NEIGHBOUR);
    }
    assert_all_is_well(&daemon);
}

/// `Late` that dies only where what is loaded stays: the tries before that do not find it.
fn variables_that_die_where_no_try_finds_them_cost_the_variables_and_nothing_else() {
    let daemon = daemon("");
    let code = "if not sys.modules['belljar_kernel.snapshot_make'].loading.leaves_files: os._exit(4)";
    assert_runs(&daemon, ATTACKED, &format!("evil = Late({code:?})"));
    cannot_wake(&daemon, &["ended while it loaded variables (exit code 4)"]);
    sleeps_and_wakes(&daemon, NEIGHBOUR);
    assert_runs(&daemon, ATTACKED, KEPT);
    assert_all_is_well(&daemon);
}

fn variables_that_raise_while_they_are_loaded_cost_only_themselves() {
    let daemon = daemon("");
    for (code, why) in [
        ("raise ValueError('\\x1b[31m' + 'x' * 10_000_000)", "ValueError"),
        ("raise SystemExit(3)", "SystemExit"),
    ] {
        assert_runs(&daemon, ATTACKED, &format!("evil = Late({code:?})"));
        let woken = sleeps_and_wakes(&daemon, ATTACKED);
        let reason = reason_of(&woken, "evil");
        assert!(reason.contains(why) && reason.chars().count() < 1000, "{reason}");
        sleeps_and_wakes(&daemon, NEIGHBOUR);
    }
    assert_all_is_well(&daemon);
}

/// Nobody waits for it but its owner, who can remove it.
fn a_session_that_is_loaded_for_ever_can_be_removed_and_holds_up_nobody_else() {
    let daemon = daemon("");
    let code = "leave_a_child()\nopen('/workspace/loads', 'w').close()\nwhile True: pass";
    assert_runs(&daemon, ATTACKED, &format!("evil = Late({code:?})"));
    let view = daemon.http("GET", &format!("/v1/sessions/{ATTACKED}"), b"").expect_status(200);
    let loads = daemon.home().join("w").join(text(&view, "id")).join("loads");
    sleeps(&daemon, ATTACKED);
    let cell = json!({"code": "kept"}).to_string();
    daemon.http("POST", &format!("/v1/sessions/{ATTACKED}/cells"), cell.as_bytes()).expect_status(202);
    eventually("it is being loaded", || loads.exists().then_some(()));
    sleeps_and_wakes(&daemon, NEIGHBOUR);
    removed_without_a_trace(&daemon, &[ATTACKED, NEIGHBOUR]);
}

const TAKE_MEMORY: &str = "held = bytearray(3 << 30)\nfor at in range(0, len(held), 4096): held[at] = 1";

fn variables_that_take_all_memory_cost_no_other() {
    let daemon = daemon("");
    assert_runs(&daemon, ATTACKED, &format!("evil = Evil({TAKE_MEMORY:?})"));
    let answer = post(&daemon, ATTACKED, "snapshots");
    let told = answer.json();
    let why = match answer.status {
        200 => reason_of(&told, "evil"),
        _ => {
            assert_eq!(told["code"], "snapshot_failed", "{told:#}");
            text(&told, "message")
        }
    };
    // Who ends it first is up to the machine: the kernel, the guardian or Python.
    assert!(["signal 9", "ended", "killed", "emory"].iter().any(|word| why.contains(word)), "{why}");
    assert_eq!(daemon.run(ATTACKED, "kept")["result"]["repr"], "['as it was']");
    sleeps_and_wakes(&daemon, NEIGHBOUR);
    assert_runs(&daemon, ATTACKED, &format!("evil = Late({TAKE_MEMORY:?})"));
    let woken = sleeps_and_wakes(&daemon, ATTACKED);
    let why = reason_of(&woken, "evil");
    assert!(["signal 9", "emory"].iter().any(|word| why.contains(word)), "{why}");
    assert_all_is_well(&daemon);
}

/// Files of 9 MB, written so that the watch sees some looks go by without any growth.
const HOGS: usize = 20;
const TAKE_DISK: &str = "
for number in range(20):
    open(f'/workspace/hog{number}', 'wb').write(b'x' * 9_000_000)
    time.sleep(1.5)
";

fn variables_that_fill_the_disk_are_bounded_as_cells_are() {
    let daemon = daemon("[sandbox]\nworkspace = \"10MiB\"\n");
    post(&daemon, ATTACKED, "snapshots").expect_status(200);
    assert_runs(&daemon, ATTACKED, &format!("evil = Evil({TAKE_DISK:?})"));
    // The sandbox is ended, because no cell runs whose doing it could be.
    let told = post(&daemon, ATTACKED, "snapshots");
    assert_ne!(told.json()["code"], "internal", "{}", told.text());
    eventually("its sandbox is ended", || events(&daemon, ATTACKED, "sandbox_gone").pop());
    sleeps_and_wakes(&daemon, NEIGHBOUR);
    // No cell runs in an oversized workspace.
    for number in 0..HOGS {
        let path = format!("/v1/sessions/{ATTACKED}/files/hog{number}");
        let status = daemon.http("DELETE", &path, b"").status;
        assert!(matches!(status, 200 | 204 | 404), "{status}");
    }
    let cell = json!({"code": "kept"}).to_string();
    eventually("cells are taken again", || {
        let path = format!("/v1/sessions/{ATTACKED}/cells");
        (daemon.http("POST", &path, cell.as_bytes()).status == 202).then_some(())
    });
    // In a new sandbox, the cells since the first snapshot have run again.
    assert_runs(&daemon, ATTACKED, "del evil");
    assert_runs(&daemon, ATTACKED, "open('/workspace/fine', 'wb').write(b'x' * 1_000_000)");
    assert_all_is_well(&daemon);
}

/// `Evil` that replaces a function of the kernel's stream in the copy that packs.
fn lie(code: &str) -> String {
    let begin = "records = sys.modules['belljar_kernel.snapshot_records']\n\
                 end, footer, send = records.Writer.end, records.footer, records.descriptor_io.send_all";
    let code = format!("{begin}\n{code}");
    format!("evil = Evil({code:?})")
}

/// A value that travels as a part of its own, whose length is announced.
const LARGE: &str = "
class Large:
    def __reduce_ex__(self, _): return bytes, (pickle.PickleBuffer(bytes(2 << 20)),)
large = Large()
";

fn a_stream_that_is_not_what_it_says_makes_no_snapshot() {
    let daemon = daemon("");
    assert_runs(&daemon, ATTACKED, LARGE);
    let end =
        |change: &str| format!("records.Writer.end = lambda self, said: end(self, {{**said, {change}}})");
    let raw = |bytes: &str| {
        format!("records.Writer.end = lambda self, said: (send(self._descriptor, {bytes}), os._exit(0))")
    };
    for (code, why) in [
        (end("'bytes': said['bytes'] + 1"), "is not complete"),
        (end("'bytes': 0"), "is not complete"),
        (end("'sections': 77"), "is not complete"),
        (end("'format': 7"), "it has the format 7"),
        (end("'more': 1"), "is not understood"),
        (end("'variables': -1"), "is not understood"),
        (end("'modules': 2**80"), "is not understood"),
        (end("'python': 'x' * 2_000_000"), "a record has"),
        (raw("b'P' + b'\\xff' * 4"), "a record has 4294967295 bytes"),
        (raw("b'P' + (1000).to_bytes(4, 'big') + b'x'"), "ended"),
        (raw("b'?' + bytes(4)"), "no record of the kind"),
        (raw("b'P' + bytes(4)"), "has no bytes"),
        (raw("b'E' + (3).to_bytes(4, 'big') + b'{{{'"), "is not understood"),
        (raw("(b'S' + bytes(4)) * 2_000_000"), "parts"),
        (raw("(b'P' + (1).to_bytes(4, 'big') + b'x') * 3_000_000"), "too many pieces"),
    ] {
        assert_runs(&daemon, ATTACKED, &lie(&code));
        let refused = post(&daemon, ATTACKED, "snapshots");
        assert!(refused.status >= 400, "{code}: {}", refused.text());
        let problem = refused.json();
        assert!(text(&problem, "message").contains(why), "{code}: {problem:#}");
        assert!(stored(&daemon, |_| true).is_empty(), "{code}: what came of it is gone");
        assert_eq!(daemon.run(ATTACKED, "kept")["result"]["repr"], "['as it was']", "{code}");
    }
    assert_runs(&daemon, ATTACKED, "del evil");
    assert_all_is_well(&daemon);
}

/// The daemon does not read what is between the records, so a sandbox finds out.
fn lengths_that_do_not_agree_within_a_snapshot_load_nothing_of_it() {
    let daemon = daemon("");
    for (footer, why) in [
        ("lambda sizes: footer([size + 1 for size in sizes])", "shorter than was said"),
        ("lambda sizes: footer([size - 1 for size in sizes])", "longer than was said"),
        ("lambda sizes: footer([2**60 for size in sizes])", "MemoryError"),
        ("lambda sizes: footer([])", "fewer buffers than are used"),
        ("lambda sizes: footer(sizes * 2)", "more buffers than are used"),
        ("lambda sizes: (2**63).to_bytes(8, 'big')", "too short"),
    ] {
        assert_runs(&daemon, ATTACKED, LARGE);
        assert_runs(&daemon, ATTACKED, &lie(&format!("records.footer = {footer}")));
        wakes_without_its_variables(&daemon, &[why]);
        for code in [KEPT, AT_PACKING] {
            assert_runs(&daemon, ATTACKED, code);
        }
    }
    assert_all_is_well(&daemon);
}

/// Names and reasons that a terminal would obey, that are no text, and that are very long.
const NAMES: &str = r"
class Says:
    def __init__(self, text): self.text = text
    def __reduce__(self): raise ValueError(self.text)
names = globals()
names['a\x00\x1b]0;owned\x07\x1b[31m'] = Says('\x00\x1b[31m' + 'x' * 10_000_000)
names['n' * 10_000_000] = Says('\ud800')
names['\ud800'] = Says('no')
names['m' * 10_000_000] = 5
for number in range(300): names[f'says{number}'] = Says('no')
";

fn names_and_reasons_are_cut_and_nothing_is_left_that_a_terminal_obeys() {
    const LISTED: usize = 200;
    const NAME_CHARS: usize = 200;
    const REASON_CHARS: usize = 300;
    let daemon = daemon("");
    assert_runs(&daemon, ATTACKED, NAMES);
    let taken = post(&daemon, ATTACKED, "snapshots").expect_status(200);
    let woken = sleeps_and_wakes(&daemon, ATTACKED);
    for told in [&taken, &woken] {
        let missing = told["missing"].as_array().expect("a list");
        assert_eq!(missing.len(), LISTED);
        for one in missing {
            let (name, reason) = (text(one, "name"), text(one, "reason"));
            let chars = (name.chars().count(), reason.chars().count());
            assert!(chars.0 <= NAME_CHARS && (1..=REASON_CHARS).contains(&chars.1), "{chars:?}");
        }
    }
    // The long name that could be packed is there; the others are not.
    let long = daemon.run(ATTACKED, "sum(len(name) > 1_000_000 for name in globals())");
    assert_eq!(long["result"]["repr"], "1", "{long:#}");
    assert_runs(&daemon, ATTACKED, NAMES);
    let said = daemon.cli(["snapshot", "-s", ATTACKED]).ok();
    assert!(said.stderr.contains("not saved: `a"), "{said:?}");
    let obeyed = |c: char| c.is_control() && c != '\n';
    assert!(!said.stdout.contains(obeyed) && !said.stderr.contains(obeyed), "{said:?}");
    assert_runs(&daemon, ATTACKED, "del names['m' * 10_000_000]");
    assert_all_is_well(&daemon);
}

on_every_ground!(
    variables_that_loop_die_or_fork_while_they_are_packed_cost_only_themselves,
    variables_that_die_while_they_are_loaded_cost_only_themselves,
    variables_that_die_where_no_try_finds_them_cost_the_variables_and_nothing_else,
    variables_that_raise_while_they_are_loaded_cost_only_themselves,
    a_session_that_is_loaded_for_ever_can_be_removed_and_holds_up_nobody_else,
    variables_that_take_all_memory_cost_no_other,
    variables_that_fill_the_disk_are_bounded_as_cells_are,
    a_stream_that_is_not_what_it_says_makes_no_snapshot,
    lengths_that_do_not_agree_within_a_snapshot_load_nothing_of_it,
    names_and_reasons_are_cut_and_nothing_is_left_that_a_terminal_obeys,
);

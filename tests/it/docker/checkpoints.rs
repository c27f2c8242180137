//! A cell that dies takes nothing along but itself: the variables are as before it.

use serde_json::{Value, json};

use super::helpers::{
    S, assert_ended, go, list, names, number, outcome, post, printed, queue, session, session_with, text,
    value, wait_for_line, with_go,
};
use crate::support::{Daemon, beside, eventually, jails, keeps_every_state, keeps_variables};

fn container(daemon: &Daemon) -> String {
    let receipt = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
    text(&receipt, "container").to_owned()
}

/// The state went back to the cell before this one.
#[track_caller]
fn assert_restored(result: &Value, maybe_assigned: &[&str]) {
    let state = &result["state"];
    assert_eq!(
        (text(state, "kind"), number(state, "/restored_to") + 1),
        ("restored", number(result, "/cell")),
        "{result:#}"
    );
    let mut named: Vec<&str> =
        state["maybe_assigned"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    named.sort_unstable();
    assert_eq!(named, maybe_assigned, "{result:#}");
}

const OPEN_AND_LAMBDA: &str = "f=open(\"/workspace/x\",\"w\"); fn=lambda v: v+1";

/// The same in two ways: an image has numpy, the host's own Python has not.
struct Numbers {
    setup: &'static str,
    fill: &'static str,
    bomb: &'static str,
    grow: &'static str,
}

fn numbers() -> Numbers {
    if jails::ground().is_some() {
        return Numbers {
            setup: "import os, ctypes, threading, array; big=array.array('d', [1])*10_000_000",
            fill: "big[:] = array.array('d', [7])",
            bomb: "held = array.array('b', [1]) * (3 << 30)",
            grow: "big = big * 40",
        };
    }
    Numbers {
        setup: "import os, ctypes, threading, numpy as np; big=np.ones(10_000_000)",
        fill: "big[:] = 7",
        bomb: "held = np.ones(3 << 30, dtype='i1')",
        grow: "big = np.tile(big, 40)",
    }
}

/// A session with numpy, where there are images.
fn prepared(request: Value) -> Option<(Daemon, Numbers)> {
    let mut request = request;
    request["image"] = json!("belljar/science");
    let daemon = session_with("", request)?;
    let numbers = numbers();
    printed(&daemon, &format!("{}; {OPEN_AND_LAMBDA}", numbers.setup));
    Some((daemon, numbers))
}

#[test]
pub fn every_way_to_die_leaves_the_state_before_it() {
    if !keeps_every_state() {
        return;
    }
    let Some((daemon, numbers)) = prepared(json!({})) else { return };
    let sandbox = container(&daemon);
    let fill = format!("{}; f.close(); os._exit(3)", numbers.fill);
    let overflow = "ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(4096), b'(' * 4_000_000, 1)";
    for (code, timeout, status, reason, exit_code) in [
        ("while True: pass", 1, "timeout", "cell_deadline", -15),
        ("sum(range(10**13))", 1, "timeout", "cell_deadline", -15),
        ("ctypes.string_at(0)", 60, "crashed", "signal", -11),
        ("os._exit(3)", 60, "crashed", "exit_call", 3),
        ("os._exit(0)", 60, "crashed", "exit_call", 0),
        ("os.kill(os.getpid(), 9)", 60, "crashed", "signal", -9),
        ("os.killpg(0, 9)", 60, "crashed", "signal", -9),
        ("os.abort()", 60, "crashed", "signal", -6),
        (overflow, 60, "crashed", "signal", -11),
        ("fn = big = None; os._exit(3)", 60, "crashed", "exit_call", 3),
        (&fill, 60, "crashed", "exit_call", 3),
        (
            "threading.Thread(target=os._exit, args=(4,)).start()\nwhile True: pass",
            60,
            "crashed",
            "exit_call",
            4,
        ),
    ] {
        let result = daemon.run_with(S, json!({"code": code, "timeout_s": timeout}));
        assert_ended(&result, status, reason, exit_code);
        let assigned: &[&str] = if code.starts_with("fn = big") { &["big", "fn"] } else { &[] };
        assert_restored(&result, assigned);
        assert_eq!(
            value(&daemon, "(fn(int(big[0])), f.closed, f.name)"),
            "(2, False, '/workspace/x')",
            "{code}"
        );
    }
    let result = daemon.run(S, "y = 1; import json as j\ndef g(): pass\nos._exit(3)");
    assert_restored(&result, &["g", "j", "y"]);
    assert_eq!(value(&daemon, "('y' in globals(), 'g' in globals(), fn(1))"), "(False, False, 2)");
    // Several one after the other go back to the same cell.
    let kept = number(&daemon.run(S, "z = 1"), "/cell");
    for _ in 0..3 {
        let result = daemon.run(S, "z += 1; os._exit(1)");
        assert_eq!(number(&result, "/state/restored_to"), kept);
    }
    assert_eq!(value(&daemon, "z"), "1");
    assert_eq!(container(&daemon), sandbox);
    let gone = daemon.events(S, 0).iter().any(|event| event["type"] == "sandbox_gone");
    assert!(!gone, "the sandbox died with a cell");
    daemon.assert_sound();
}

#[test]
pub fn a_memory_bomb_leaves_the_state_before_it() {
    if !keeps_every_state() {
        return;
    }
    let Some((daemon, numbers)) = prepared(json!({"memory_bytes": 512 << 20})) else { return };
    let sandbox = container(&daemon);
    for code in [
        "held = []\nwhile True: held.append([object()])",
        numbers.bomb,
        "held = bytearray()\nwhile True: held.extend(bytes(1 << 20))",
        // Asked for at once, and only then used.
        "held = bytearray(5 << 30)\nheld[::4096] = b'1' * len(held[::4096])",
        numbers.grow,
    ] {
        let result = daemon.run_with(S, json!({"code": code, "timeout_s": 60}));
        assert_ended(&result, "crashed", "out_of_memory", -9);
        assert_restored(&result, if code.starts_with("big") { &["big"] } else { &["held"] });
        assert_eq!(
            value(&daemon, "(fn(int(big[0])), len(big), 'held' in globals())"),
            "(2, 10000000, False)"
        );
    }
    assert_eq!(container(&daemon), sandbox);
    daemon.assert_sound();
}

#[test]
pub fn the_end_of_all_processes_is_told() {
    if !keeps_variables() {
        return;
    }
    let Some(daemon) = session() else { return };
    printed(&daemon, "import os; x = 1");
    let sandbox = container(&daemon);
    // All but the first process of the sandbox, then itself: there is nothing to go back to.
    let result = daemon.run(S, "os.kill(-1, 9); os.kill(os.getpid(), 9)");
    assert_ended(&result, "crashed", "signal", -9);
    assert_eq!(text(&result, "/state/kind"), "lost", "{result:#}");
    assert_eq!(value(&daemon, "'x' in globals()"), "False");
    printed(&daemon, "import os; y = 2");
    // It is protected again.
    assert_restored(&daemon.run(S, "y = 3; os._exit(1)"), &["y"]);
    assert_eq!(value(&daemon, "y"), "2");
    assert_eq!(container(&daemon), sandbox);
    daemon.assert_sound();
}

/// Memory of a process; a page that n processes share counts as an nth.
fn share(pid: u32) -> u64 {
    // It may be gone meanwhile.
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let row = rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"));
    row.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[test]
pub fn two_hundred_deaths_leave_nothing_behind() {
    if !keeps_variables() {
        return;
    }
    // A short ring, which is full from the start: only then is there nothing that may grow.
    let Some(daemon) = session_with("[sandbox]\ncheckpoints = 2\n", json!({"image": "belljar/base"})) else {
        return;
    };
    printed(&daemon, "import os, signal; x = bytearray(b'x') * (1 << 20)");
    let first = daemon.first_process(S);
    let die = |n: usize| {
        let code = if n.is_multiple_of(2) { "os._exit(1)" } else { "os.kill(os.getpid(), signal.SIGKILL)" };
        let result = daemon.run(S, code);
        assert_eq!((text(&result, "status"), text(&result, "/state/kind")), ("crashed", "restored"));
    };
    let descriptors = || std::fs::read_dir(format!("/proc/{first}/fd")).expect("it runs").count();
    let memory = || beside(first).into_iter().map(share).sum::<u64>();
    let counts = || (beside(first).len(), descriptors());
    // The first ones fill what is kept.
    (0..10).for_each(die);
    // Right after a death the next checkpoint is still being made.
    let settled = || {
        let mut seen = Vec::new();
        eventually("the counts stay the same", || {
            seen.push(counts());
            let last = seen.iter().rev().take(20).collect::<Vec<_>>();
            (last.len() == 20 && last.iter().all(|count| *count == last[0])).then(|| *last[0])
        })
    };
    let (before, memory_before) = (settled(), memory());
    (0..200).for_each(die);
    let after = settled();
    assert!(after.0 <= before.0 && after.1 <= before.1, "{before:?} became {after:?}");
    eventually("as much memory as before", || (memory() < memory_before + (16 << 20)).then_some(()));
    assert_eq!(value(&daemon, "len(x)"), "1048576");
    daemon.assert_sound();
}

#[test]
pub fn honest_code_does_not_notice_that_there_are_copies() {
    let Some(daemon) = session() else { return };
    // The other end of a pipe, a port and a lock are let go of when the code lets go of them.
    printed(&daemon, "from subprocess import Popen, PIPE\ncat = Popen(['cat'], stdin=PIPE, stdout=PIPE)");
    printed(&daemon, "cat.stdin.write(b'through')");
    assert_eq!(value(&daemon, "cat.stdin.close(); cat.stdout.read(), cat.wait()"), "(b'through', 0)");
    printed(&daemon, "import socket\nserver = socket.create_server(('127.0.0.1', 4567))");
    printed(&daemon, "server.close(); server = socket.create_server(('127.0.0.1', 4567))");
    printed(&daemon, "import fcntl\nlock = open('lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)");
    printed(
        &daemon,
        "lock.close(); again = open('lock', 'w'); fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    );
    printed(&daemon, "again.close(); server.close()");
    // No child that it did not start.
    let code = "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')";
    assert_eq!(printed(&daemon, code), "none\n");
    assert_eq!(printed(&daemon, code), "none\n");
    // Threads of an earlier cell go on.
    let code = "import threading, time\nticks = 0\ndef tick():\n    global ticks\n    while True:\n        \
                ticks += 1; time.sleep(0.005)\nthreading.Thread(target=tick, daemon=True).start()";
    printed(&daemon, code);
    for _ in 0..3 {
        printed(&daemon, "seen = ticks\nwhile ticks < seen + 3: time.sleep(0.005)");
    }
}

#[test]
fn what_was_restored_computes_as_before() {
    if !keeps_every_state() {
        return;
    }
    let Some(daemon) = session() else { return };
    printed(&daemon, "import os, random, numpy as np; random.seed(1); np.random.seed(1)");
    let expected =
        value(&daemon, "r = random.Random(1); n = np.random.RandomState(1); (r.random(), float(n.rand()))");
    assert_restored(&daemon.run(S, "random.random(); np.random.rand(); os._exit(1)"), &[]);
    assert_eq!(value(&daemon, "(random.random(), float(np.random.rand()))"), expected);
    // Libraries with threads of their own, before and after.
    let code = "float(np.linalg.inv(np.eye(400) * 2)[7, 7])";
    assert_eq!(value(&daemon, code), "0.5");
    assert_restored(&daemon.run(S, "np.linalg.inv(np.eye(400)); os.kill(os.getpid(), 11)"), &[]);
    assert_eq!(value(&daemon, code), "0.5");
    let fork = daemon.run_with(S, json!({"code": code, "mode": "fork"}));
    assert_eq!(text(&fork, "/result/repr"), "0.5");
    // Processes, threads and files can be made as before.
    let code = "import subprocess, threading\nt = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n\
                print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout, end='')\n\
                open('f', 'w').write('x')";
    assert_eq!(printed(&daemon, code), "thread\nchild\n");
}

#[test]
fn algebra_with_several_threads_works_before_and_after_a_death() {
    if !keeps_every_state() {
        return;
    }
    let Some(daemon) = session_with("", json!({"cpus": 2})) else { return };
    printed(&daemon, "import os, numpy as np; assert int(os.environ['OPENBLAS_NUM_THREADS']) >= 2");
    let code = "a = np.random.default_rng(1).random((600, 600)); b = np.linalg.inv(a)\nbool(np.allclose(a @ b, np.eye(600)))";
    for _ in 0..3 {
        assert_eq!(value(&daemon, code), "True");
        assert_restored(&daemon.run(S, "np.linalg.inv(np.eye(600)); os.kill(os.getpid(), 11)"), &[]);
    }
    assert_eq!(value(&daemon, code), "True");
}

/// Reading an object writes to it, for its count of references: checkpoints need memory of their own then.
#[test]
pub fn a_cell_that_only_reads_most_of_its_memory_is_not_killed() {
    if !keeps_variables() {
        return;
    }
    let memory: u64 = 512 << 20;
    let Some(daemon) = session_with("", json!({"image": "belljar/base", "memory_bytes": memory})) else {
        return;
    };
    // A float in a list takes 32 bytes.
    let floats = memory * 6 / 10 / 32;
    printed(&daemon, &format!("import os; data = [float(n) for n in range({floats})]"));
    for _ in 0..4 {
        assert_eq!(value(&daemon, "sum(1 for each in data if each >= 0)"), floats.to_string());
    }
    let result = daemon.run(S, "data = None; os._exit(1)");
    assert_eq!(text(&result, "/state/kind"), "restored", "{result:#}");
    assert_eq!(value(&daemon, "len(data)"), floats.to_string());
}

fn undo(daemon: &Daemon, cells: u64) -> Value {
    post(daemon, "undo", &json!({ "cells": cells })).expect_status(200)
}

#[test]
pub fn undo_gives_the_variables_of_some_cells_ago() {
    if !keeps_variables() {
        return;
    }
    let Some(daemon) = session() else { return };
    let first = number(&daemon.run(S, "import os; v = [1]; trace = lambda: v"), "/cell");
    let cells = |daemon: &Daemon| {
        printed(daemon, "v.append(2); open('b', 'w').write('b')");
        // A copy changes nothing, so there is nothing of it to take back.
        let fork = daemon.run_with(S, json!({"code": "v.append('fork')", "mode": "fork"}));
        assert_ended(&fork, "success", "ok", 0);
        printed(daemon, "v.append(3); w = 1; open('a', 'w').write('a')");
        printed(daemon, "v.append(4); del w");
        assert_eq!(value(daemon, "trace()"), "[1, 2, 3, 4]");
    };
    cells(&daemon);
    let undone = undo(&daemon, 4);
    assert_eq!(undone, json!({"state_of": first, "files_changed": ["a", "b"]}));
    // Files stay.
    assert_eq!(value(&daemon, "(trace(), 'w' in globals(), open('b').read())"), "([1], False, 'b')");
    // One by one, as told by people.
    cells(&daemon);
    assert_eq!(undo(&daemon, 1)["files_changed"], json!([]));
    let said = daemon.cli(["undo", "-s", S]).ok().stderr;
    assert!(said.contains("the variables are as after cell "), "{said}");
    assert_eq!(value(&daemon, "(trace(), w)"), "([1, 2, 3], 1)");
    let said = daemon.cli(["undo", "-s", S, "-n", "2"]).ok().stderr;
    assert!(said.contains("not rewound: a"), "{said}");
    assert_eq!(value(&daemon, "trace()"), "[1, 2]");
    let told: Value =
        serde_json::from_str(&daemon.cli(["undo", "-s", S, "--json"]).ok().stdout).expect("JSON");
    let event = daemon.events(S, 0).pop().expect("events");
    assert_eq!((&event["type"], &event["state_of"]), (&json!("undone"), &told["state_of"]));
    // What was restored is a checkpoint too.
    assert_eq!(text(&daemon.run(S, "v.clear(); os._exit(1)"), "/state/kind"), "restored");
    assert_eq!(value(&daemon, "trace()"), "[1, 2]");
    daemon.assert_sound();
}

#[test]
pub fn an_undo_says_what_does_not_come_back() {
    if !keeps_variables() {
        return;
    }
    let Some(daemon) = session() else { return };
    printed(&daemon, "import threading, time; x = 1");
    printed(&daemon, "threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); x = 2");
    let undone = post(&daemon, "undo", &json!({})).expect_status(200);
    assert!(text(&undone, "note").contains("1 thread"), "{undone}");
    printed(&daemon, "x = 3");
    let undone = post(&daemon, "undo", &json!({})).expect_status(200);
    assert_eq!((undone.get("note"), value(&daemon, "x")), (None, "1".into()), "{undone}");
}

#[test]
pub fn undo_that_cannot_be_done_changes_nothing() {
    if !keeps_every_state() {
        return;
    }
    let Some(daemon) = session_with("[sandbox]\ncheckpoints = 3\n", json!({})) else { return };
    for n in 0..8 {
        printed(&daemon, &format!("v = int({n})")); // a call, after which a checkpoint is made
    }
    for cells in [9, 1000, u64::MAX] {
        let refused = post(&daemon, "undo", &json!({ "cells": cells })).expect_status(409);
        assert_eq!(text(&refused, "code"), "out_of_reach");
        // The newest of the three is what is there now.
        assert_eq!(text(&refused, "message"), "undo reaches 2 cells back");
    }
    let refused = daemon.cli(["undo", "-s", S, "-n", "9"]).exits(125);
    assert!(refused.stderr.contains("hint: "), "{refused:?}");
    assert_eq!(text(&post(&daemon, "undo", &json!({"cells": 0})).expect_status(400), "code"), "bad_request");
    assert_eq!(value(&daemon, "v"), "7");
    let cell = queue(&daemon, &json!({"code": with_go("v = 8; print('busy')\nwait_for_go()")}));
    wait_for_line(&daemon, cell, "busy");
    let refused = post(&daemon, "undo", &json!({})).expect_status(409);
    assert_eq!(text(&refused, "code"), "busy");
    go(&daemon);
    assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
    assert_eq!(value(&daemon, "v"), "8");
    // The undo goes back as many cells as it is told to.
    undo(&daemon, 2);
    assert_eq!(value(&daemon, "v"), "7");
}

#[test]
pub fn questions_are_answered_while_a_cell_runs() {
    if !keeps_variables() {
        return;
    }
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = [1]; import os");
    let cell = queue(&daemon, &json!({"code": with_go("x.append(2); y = 1; print('busy')\nwait_for_go()")}));
    wait_for_line(&daemon, cell, "busy");
    let waiting = queue(&daemon, &json!({"code": "x.append(3)"}));
    for _ in 0..3 {
        let result = post(&daemon, "eval", &json!({"expression": "x.append(9) or (x, 'y' in globals())"}));
        let result = result.expect_status(200);
        assert_ended(&result, "success", "ok", 0);
        assert_eq!(
            (text(&result, "/result/repr"), number(&result, "/state/as_before")),
            ("([1, 9], False)", cell)
        );
        let result = daemon.run_with(S, json!({"code": "print(x); os._exit(5)", "mode": "fork"}));
        assert_ended(&result, "crashed", "exit_call", 5);
        assert_eq!((text(&result, "stdout"), text(&result, "/state/kind")), ("[1]\n", "kept"));
        let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
        let listed: Vec<&str> = list(&listing, "variables").iter().map(|row| text(row, "name")).collect();
        assert_eq!((listed, number(&listing, "/as_before")), (vec!["x"], cell));
    }
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert_eq!((&view["running"], &view["queued"]), (&json!(cell), &json!(1)));
    go(&daemon);
    assert_ended(&outcome(&daemon, cell), "success", "ok", 0);
    assert_ended(&outcome(&daemon, waiting), "success", "ok", 0);
    assert_eq!((value(&daemon, "x"), names(&daemon).contains(&"y".to_owned())), ("[1, 2, 3]".into(), true));
    let result = post(&daemon, "eval", &json!({"expression": "x"})).expect_status(200);
    assert_eq!((text(&result, "/result/repr"), &result["state"]["as_before"]), ("[1, 2, 3]", &json!(null)));
}

#[test]
pub fn without_checkpoints_a_crash_loses_the_state_and_says_so() {
    let of_session = json!({"seed": {"a": 1}, "checkpointing": "off"});
    for (config, request) in [("[sandbox]\ncheckpoints = 0\n", json!({"seed": {"a": 1}})), ("", of_session)] {
        let Some(daemon) = session_with(config, request) else { return };
        let result = daemon.run(S, "x = 1");
        // A user who wants no checkpoints is not warned that there is none.
        assert_eq!((text(&result, "/state/kind"), &result["state"]["unprotected"]), ("kept", &json!(null)));
        let result = daemon.run(S, "import os; y = 2; os._exit(1)");
        assert_ended(&result, "crashed", "exit_call", 1);
        assert_eq!(text(&result, "/state/kind"), "lost");
        assert_eq!(value(&daemon, "(a, 'x' in globals(), 'y' in globals())"), "(1, False, False)");
        let refused = post(&daemon, "undo", &json!({})).expect_status(409);
        assert_eq!(text(&refused, "code"), "out_of_reach");
    }
}

/// How many cells a death costs is up to the machine; that the result says so is not.
#[test]
pub fn a_session_that_is_saved_at_rest_is_as_its_result_says() {
    let Some(daemon) = session_with("[sandbox]\ncheckpointing = \"idle\"\n", json!({})) else { return };
    let mut cell = 0;
    for _ in 0..5 {
        for _ in 0..10 {
            cell += 1;
            let result = daemon.run(S, &format!("x = int({cell})"));
            assert_eq!(result["state"]["unprotected"], json!(null));
            assert_eq!(number(&result, "/cell"), cell);
        }
        let lost = daemon.run(S, "import os; os._exit(1)");
        assert_eq!((text(&lost, "status"), text(&lost, "/state/kind")), ("crashed", "restored"));
        let restored = number(&lost, "/state/restored_to");
        assert!(restored <= cell, "{lost:#}");
        cell += 2;
        let seen = value(&daemon, &format!("seen = globals().get('x', 0); x = int({cell}); seen"));
        assert_eq!(seen, restored.to_string());
    }
}

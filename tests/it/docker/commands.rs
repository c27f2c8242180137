//! Commands: programs that run in a session's sandbox beside its cells.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

use super::asking::{
    answer, approval, begin, calls, conversation, decide_next, end_of, events_of, says, scripted, told,
    wait_for_state,
};
use super::helpers::{
    S, assert_ended, base, gapless, list, names, number, outcome, post, printed, queue, restart_by, session,
    session_with, text, value, wait_for_line, written,
};
use crate::support::{Daemon, engine, eventually, keeps_every_state, keeps_variables};

/// Runs a command to its end and gives the result.
fn ran(daemon: &Daemon, command: &Value) -> Value {
    post(daemon, "commands?wait=true", command).expect_status(200)
}

fn line(daemon: &Daemon, line: &str) -> Value {
    ran(daemon, &json!({ "line": line }))
}

/// Starts a command and gives its number.
pub fn started(daemon: &Daemon, command: &Value) -> u64 {
    number(&post(daemon, "commands", command).expect_status(202), "/cell")
}

pub fn background(daemon: &Daemon, line: &str) -> u64 {
    started(daemon, &json!({"line": line, "background": true}))
}

fn kill(daemon: &Daemon, command: u64) -> Value {
    post(daemon, &format!("commands/{command}/kill"), &json!({})).expect_status(200);
    outcome(daemon, command)
}

fn state_of(daemon: &Daemon, command: u64) -> String {
    let view = daemon.http("GET", &format!("/v1/sessions/{S}/commands/{command}"), b"").expect_status(200);
    text(&view, "/state").to_owned()
}

#[test]
pub fn a_command_ends_with_the_code_or_the_signal_of_its_process() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    let result = line(&daemon, "echo out; echo err >&2; pwd");
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "stderr")), ("out\n/workspace\n", "err\n"));
    assert_eq!((text(&result, "mode"), text(&result, "/state/kind")), ("command", "kept"));
    assert_ended(&line(&daemon, "exit 7"), "failure", "exit", 7);
    assert_ended(&line(&daemon, "kill -TERM $$"), "crashed", "signal", -15);
    assert_ended(&line(&daemon, "kill -SEGV $$"), "crashed", "signal", -11);
    let words = ran(&daemon, &json!({"argv": ["printf", "%s|", "a b", "$HOME", "*"]}));
    assert_eq!(text(&words, "stdout"), "a b|$HOME|*|");
    let nowhere = ran(&daemon, &json!({"argv": ["no-such-program"]}));
    assert_ended(&nowhere, "failure", "exit", 127);
    assert!(text(&nowhere, "stderr").contains("`no-such-program` cannot be run"), "{nowhere}");
    assert_ended(&ran(&daemon, &json!({"argv": ["/etc/passwd"]})), "failure", "exit", 126);
    assert_ended(&ran(&daemon, &json!({"line": "true", "cwd": "not-there"})), "failure", "exit", 126);
    line(&daemon, "mkdir folder");
    let place =
        ran(&daemon, &json!({"line": "pwd; echo $A-$B", "cwd": "folder", "env": {"A": "1", "B": "2 3"}}));
    assert_eq!(text(&place, "stdout"), "/workspace/folder\n1-2 3\n");
    // Programs that ask no system call know it, too.
    let told = |cwd: &str| ran(&daemon, &json!({"argv": ["printenv", "PWD"], "cwd": cwd}));
    assert_eq!(
        (text(&told("folder/../folder"), "stdout"), text(&told(""), "stdout")),
        ("/workspace/folder\n", "/workspace\n")
    );
    assert_eq!(printed(&daemon, "import os; print(os.environ['PWD'])"), "/workspace\n");
    assert_eq!(value(&daemon, "x"), "1");
    for wrong in [json!({}), json!({"line": "x", "argv": ["x"]}), json!({"line": "a\u{0}b"})] {
        assert_eq!(text(&post(&daemon, "commands", &wrong).expect_status(400), "code"), "bad_request");
    }
    let refused = post(&daemon, "cells", &json!({"code": "ls", "mode": "command"}));
    assert_eq!(text(&refused.expect_status(400), "code"), "bad_request");
    daemon.assert_sound();
}

#[test]
pub fn a_command_reads_what_it_is_given_and_nothing_else() {
    let Some(daemon) = session() else { return };
    assert_eq!(text(&line(&daemon, "cat; echo end"), "stdout"), "end\n");
    assert_eq!(text(&ran(&daemon, &json!({"line": "cat", "stdin": "ä\nb"})), "stdout"), "ä\nb");
    // More than a pipe holds.
    let long = "0123456789abcdef".repeat(200_000);
    let counted = ran(&daemon, &json!({"line": "wc -c", "stdin": long}));
    assert_eq!(text(&counted, "stdout").trim(), "3200000");
    // Who does not read it does no harm.
    assert_ended(&ran(&daemon, &json!({"line": "true", "stdin": long})), "success", "ok", 0);
    let bytes = ran(&daemon, &json!({"line": "od -An -tx1", "stdin_base64": "AP8K"}));
    assert_eq!(text(&bytes, "stdout").trim(), "00 ff 0a");
}

/// What a command could write to the kernel's channels would be believed.
#[test]
pub fn a_command_has_the_standard_descriptors_only() {
    let Some(daemon) = session() else { return };
    let result = ran(
        &daemon,
        &json!({"argv": ["python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"]}),
    );
    // The third is the listing itself.
    assert_eq!(text(&result, "stdout"), "['0', '1', '2', '3']\n");
    let result = ran(
        &daemon,
        &json!({"argv": ["python3", "-c", "import os; print([os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in range(3)])"]}),
    );
    assert_eq!(text(&result, "stdout"), "['/dev/null', 'pipe', 'pipe']\n");
}

#[test]
pub fn a_hundred_megabytes_of_output_are_bounded_and_counted() {
    let Some(daemon) = session() else { return };
    let result = ran(
        &daemon,
        &json!({"line": "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo the end", "timeout_s": 120}),
    );
    assert_ended(&result, "success", "ok", 0);
    let stdout = text(&result, "stdout");
    assert!(stdout.len() < 4_000_000 && stdout.ends_with("the end\n"), "{}", stdout.len());
    let cut = number(&result, "/truncated/stdout_bytes");
    assert!(cut > 90_000_000 && cut + (stdout.len() as u64) >= 100_000_000, "{cut}");
    assert_eq!(value(&daemon, "1 + 1"), "2");
    daemon.assert_sound();
}

#[test]
pub fn a_cell_talks_to_a_server_that_runs_beside_it() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "open('page.txt', 'w').write('hello from beside')");
    let server = background(&daemon, "exec python3 -u -m http.server 8765 --bind 127.0.0.1");
    let page = "import time, urllib.request\nfor _ in range(200):\n    try:\n        print(urllib.request.urlopen('http://127.0.0.1:8765/page.txt').read().decode()); break\n    except OSError:\n        time.sleep(0.05)";
    assert_eq!(printed(&daemon, page), "hello from beside\n");
    let commands = daemon.http("GET", "/v1/sessions/s/commands", b"").expect_status(200);
    assert_eq!(
        (number(&commands, "/commands/0/command"), text(&commands, "/commands/0/state")),
        (server, "running")
    );
    // It keeps no session awake, and holds up no cell.
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert_eq!((text(&view, "state"), &view["running"]), ("idle", &Value::Null));
    let result = kill(&daemon, server);
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("interrupted", "by_user"));
    assert!(text(&result, "stderr").contains("GET /page.txt"), "{result}");
    let commands = daemon.http("GET", "/v1/sessions/s/commands", b"").expect_status(200);
    assert_eq!(text(&commands, "/commands/0/reason"), "by_user");
}

#[test]
pub fn a_command_that_is_killed_takes_along_what_it_started() {
    let Some(daemon) = session() else { return };
    // What is below it, what has left its session, what has left its parent, and what has changed its tag as well.
    let code = "trap '' TERM INT; sleep 3001 & setsid sleep 3002 & (setsid sleep 3003 &)
        python3 -c 'import os, resource; os.fork() and os._exit(0); os.setsid()
resource.setrlimit(resource.RLIMIT_RTTIME, (9, 9)); os.execvp(\"sleep\", [\"sleep\", \"3004\"])'
        echo ready; wait";
    let alive = "import os\nfound = 0\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n    try:\n        found += b'sleep\\x00300' in open(f'/proc/{pid}/cmdline', 'rb').read()\n    except OSError:\n        pass\nprint(found)";
    let command = background(&daemon, code);
    wait_for_line(&daemon, command, "ready");
    eventually("all of it runs", || (printed(&daemon, alive) == "4\n").then_some(()));
    let result = kill(&daemon, command);
    assert_ended(&result, "interrupted", "by_user", -9);
    eventually("nothing of it is left", || (printed(&daemon, alive) == "0\n").then_some(()));
    // The time of a command ends it in the same way.
    let result = ran(&daemon, &json!({"line": code, "timeout_s": 1.0}));
    assert_ended(&result, "timeout", "cell_deadline", -9);
    eventually("nothing of it is left", || (printed(&daemon, alive) == "0\n").then_some(()));
    // An interrupt can be heeded.
    let command =
        background(&daemon, "trap 'echo bye; exit 3' INT; echo ready; while :; do sleep 0.05; done");
    wait_for_line(&daemon, command, "ready");
    post(&daemon, &format!("commands/{command}/interrupt"), &json!({})).expect_status(200);
    let result = outcome(&daemon, command);
    assert_ended(&result, "failure", "exit", 3);
    assert!(text(&result, "stdout").ends_with("bye\n"));
    let refused = post(&daemon, "commands/999/kill", &json!({})).expect_status(404);
    assert_eq!(text(&refused, "code"), "no_such_cell");
    daemon.assert_sound();
}

#[test]
pub fn cells_and_commands_are_told_apart_and_have_one_priority() {
    let Some(daemon) = session() else { return };
    assert_eq!(text(&line(&daemon, "nice"), "stdout"), printed(&daemon, "import os; print(os.nice(0))"));
    let pose = "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_RTTIME, (1 << 41, 1 << 41))\n\
                except (ValueError, OSError):\n    print('refused')";
    assert_eq!(printed(&daemon, pose), "refused\n");
}

#[test]
pub fn the_death_of_a_cell_and_an_undo_spare_commands_and_a_reset_ends_them() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    let command = background(&daemon, "while :; do echo on; sleep 0.1; done");
    // What it leaves behind is spared, too.
    line(&daemon, "setsid sleep 3009 >/dev/null 2>&1 &");
    wait_for_line(&daemon, command, "on");
    for death in ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"] {
        daemon.run(S, death);
        assert_eq!(state_of(&daemon, command), "running", "{death}");
    }
    if keeps_variables() {
        printed(&daemon, "x = 2");
        post(&daemon, "undo", &json!({"cells": 1})).expect_status(200);
        assert_eq!(value(&daemon, "x"), "1");
    }
    let before = written(&daemon, Some(command)).len();
    eventually("it still writes", || (written(&daemon, Some(command)).len() > before + 3).then_some(()));
    assert_eq!(
        text(
            &line(&daemon, "pgrep -f 'sleep 3009' >/dev/null 2>&1 || grep -al 3009 /proc/[0-9]*/cmdline"),
            "status"
        ),
        "success"
    );
    post(&daemon, "reset", &json!({})).expect_status(200);
    let result = outcome(&daemon, command);
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("interrupted", "by_cancel"));
    daemon.assert_sound();
}

#[test]
pub fn a_fork_bomb_of_a_command_costs_no_variables() {
    let Some(daemon) = session_with("", json!({"pids": 100})) else { return };
    printed(&daemon, "x = [1, 2]");
    let bomb = json!({"argv": ["python3", "-c", "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"], "timeout_s": 2.0});
    let result = ran(&daemon, &bomb);
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("timeout", "cell_deadline"));
    if keeps_variables() {
        assert_eq!(value(&daemon, "x"), "[1, 2]");
    }
    assert_ended(&line(&daemon, "echo on"), "success", "ok", 0);
    daemon.assert_sound();
}

#[test]
pub fn a_command_outlives_the_daemon_and_nothing_of_it_is_lost() {
    let Some(mut daemon) = base() else { return };
    printed(&daemon, "x = 1");
    let command = started(
        &daemon,
        &json!({"line": "i=0; while [ $i -lt 80 ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit 5", "timeout_s": 60}),
    );
    let short = started(&daemon, &json!({"line": "sleep 0.5; echo while nobody looked"}));
    let long = background(&daemon, "sleep 3000");
    wait_for_line(&daemon, command, "3");
    restart_by(&mut daemon, "KILL");
    let counted: String = (0..80).map(|n| format!("{n}\n")).collect();
    let result = outcome(&daemon, command);
    assert_ended(&result, "failure", "exit", 5);
    assert_eq!(
        (text(&result, "stdout"), written(&daemon, Some(command))),
        (counted.as_str(), counted.clone())
    );
    assert_eq!(text(&outcome(&daemon, short), "stdout"), "while nobody looked\n");
    assert_eq!(state_of(&daemon, long), "running");
    restart_by(&mut daemon, "TERM");
    assert_eq!(state_of(&daemon, long), "running");
    let commands = daemon.http("GET", "/v1/sessions/s/commands", b"").expect_status(200);
    let codes: Vec<_> = list(&commands, "commands").iter().map(|each| each["exit_code"].clone()).collect();
    assert_eq!(codes, [json!(5), json!(0), Value::Null]);
    assert_eq!(text(&kill(&daemon, long), "reason"), "by_user");
    assert_eq!(value(&daemon, "x"), "1");
    let events = gapless(&daemon, S);
    let ends = events
        .iter()
        .filter(|event| event["type"] == "cell_finished" && event["result"]["mode"] == "command");
    assert_eq!(ends.count(), 3);
    daemon.assert_sound();
}

#[test]
pub fn commands_wait_for_no_cell_and_do_not_keep_a_sandbox() {
    let Some(daemon) = session_with("", json!({"idle_s": 3})) else { return };
    let cell = queue(&daemon, &json!({"code": "import time; print('busy'); time.sleep(2)"}));
    wait_for_line(&daemon, cell, "busy");
    let begun = Instant::now();
    assert_ended(&line(&daemon, "true"), "success", "ok", 0);
    assert!(begun.elapsed() < Duration::from_millis(1900) && state_of(&daemon, cell) == "running");
    let command = background(&daemon, "while :; do echo on; sleep 0.2; done");
    let result = outcome(&daemon, command);
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("crashed", "sandbox_lost"));
    assert_ended(&line(&daemon, "echo in the next one"), "success", "ok", 0);
}

#[test]
pub fn memory_of_a_command_costs_no_variables() {
    let Some(daemon) = session_with("", json!({"memory_bytes": 256 << 20})) else { return };
    printed(&daemon, "x = [1]");
    printed(&daemon, "y = [2]");
    printed(&daemon, "z = [3]");
    let hog = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x') * (8 << 20))\n    time.sleep(0.02)";
    let result = ran(&daemon, &json!({"argv": ["python3", "-c", hog], "timeout_s": 60}));
    assert_ended(&result, "crashed", "out_of_memory", -9);
    assert_eq!(value(&daemon, "(x, y, z)"), "([1], [2], [3])");
    if keeps_every_state() {
        post(&daemon, "undo", &json!({"cells": 3})).expect_status(200);
        assert_eq!(names(&daemon), ["x"]);
    }
    daemon.assert_sound();
}

#[test]
pub fn the_command_line_passes_a_command_through() {
    let Some(daemon) = session() else { return };
    let sh = |arguments: &[&str]| daemon.cli([&["sh", "-s", S], arguments].concat());
    let ran = sh(&["echo out; echo err >&2; exit 9"]).exits(9);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(sh(&["printf", "%s.", "a b", "-x"]).ok().stdout, "a b.-x.");
    assert_eq!(daemon.cli_with_input(["sh", "-i", "-s", S, "tr a-z A-Z"], "piped\n").ok().stdout, "PIPED\n");
    let late = sh(&["--timeout", "500ms", "sleep 30"]).exits(124);
    assert!(late.stderr.contains("the command ran longer than 0.5 s"), "{}", late.stderr);
    let json = sh(&["--json", "exit 4"]).exits(4);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["reason"], "exit");
    let command = sh(&["--background", "sleep 3000"]).ok().stdout.trim().to_owned();
    let listed = daemon.cli(["commands", "-s", S]).ok().stdout;
    assert!(listed.contains("sleep 3000") && listed.contains("runs"), "{listed}");
    daemon.cli(["kill", "-s", S, &command]).ok();
    daemon.cli(["wait", "-s", S, &command]).exits(130);
}

#[test]
fn a_model_runs_commands_where_the_operator_lists_them_and_a_person_is_asked() {
    let command = calls("run_command", &json!({"command": "echo from a command; exit 3"}));
    let script: String =
        ["go", "careful"].map(|first| conversation(first, &[command.clone(), says("done")])).concat();
    let listed = "[agent]\ntools = [\"execute_python_code\", \"run_command\"]\n";
    let Some(daemon) = scripted(listed, &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    let said = &told(&daemon)[0];
    assert!(said.contains("exit code 3") && said.contains("from a command"), "{said}");
    assert_eq!(text(&events_of(&daemon, "cell_queued")[0], "mode"), "command");
    let number = begin(&daemon, json!({"text": "careful", "approval": "ask", "fresh": true}));
    wait_for_state(&daemon, number, "waiting");
    let wanted = approval(&daemon);
    assert_eq!((text(&wanted, "/subject/kind"), text(&wanted, "/subject/name")), ("tool", "run_command"));
    assert_eq!(events_of(&daemon, "cell_queued").len(), 1, "it ran before anybody was asked");
    decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert_eq!(events_of(&daemon, "cell_queued").len(), 2);
    let Some(daemon) = scripted("", &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "go"})), "done");
    assert!(events_of(&daemon, "cell_queued").is_empty(), "it ran though nobody had listed it");
}

#[test]
pub fn commands_are_interrupted_and_read_later() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "print('of a cell')");
    let command =
        background(&daemon, "trap 'echo bye; exit 3' INT; echo ready; while :; do sleep 0.05; done");
    wait_for_line(&daemon, command, "ready");
    let number = command.to_string();
    let told = daemon.cli(["interrupt", S]).ok();
    assert!(told.stderr.contains("`--command N` interrupts a command"), "{}", told.stderr);
    assert_eq!(state_of(&daemon, command), "running");
    let told = daemon.cli(["interrupt", S, "--command", &number]).ok();
    assert!(told.stderr.contains(&format!("interrupting command {number}")), "{}", told.stderr);
    assert_ended(&outcome(&daemon, command), "failure", "exit", 3);
    daemon.cli(["interrupt", S, "--command", "999"]).exits(125);
    // One that has ended is listed, and what it wrote can be read.
    assert!(daemon.cli(["commands", S]).ok().stdout.contains("trap"));
    let logs = daemon.cli(["logs", S, "--cell", &number]).ok();
    assert_eq!(logs.stdout, "ready\nbye\n", "{}", logs.stderr);
    for line in ["runs", "is being interrupted", "failed"] {
        assert!(logs.stderr.contains(&format!("command {number} {line}")), "{line}: {}", logs.stderr);
    }
    assert!(!logs.stderr.contains(&format!("cell {number} ")), "{}", logs.stderr);
    assert_eq!(daemon.cli(["logs", S, "--cell", &number, "--follow"]).ok().stdout, "ready\nbye\n");
    daemon.cli(["logs", S, "--cell", "999"]).exits(125);
}

#[test]
pub fn a_command_that_waits_for_others_says_so() {
    let Some(daemon) = session() else { return };
    let first: Vec<u64> = (0..8).map(|_| background(&daemon, "sleep 3000")).collect();
    let waits = background(&daemon, "echo it ran");
    assert_eq!(state_of(&daemon, waits), "queued");
    std::thread::scope(|scope| {
        let sh = scope.spawn(|| daemon.cli(["sh", "-s", S, "echo me too"]));
        eventually("it is queued", || {
            let commands = daemon.http("GET", "/v1/sessions/s/commands", b"").expect_status(200);
            (list(&commands, "commands").len() == 10).then_some(())
        });
        kill(&daemon, first[0]);
        assert_eq!(text(&outcome(&daemon, waits), "stdout"), "it ran\n");
        let told = sh.join().expect("the client").ok();
        assert_eq!(told.stdout, "me too\n");
        assert!(
            told.stderr.contains("waits until 2 others have ended: 8 of a session run at once"),
            "{}",
            told.stderr
        );
    });
    let ahead: Vec<u64> = gapless(&daemon, S)
        .iter()
        .filter(|event| event["type"] == "cell_queued")
        .map(|event| event["commands_ahead"].as_u64().unwrap_or(0))
        .collect();
    assert_eq!(ahead, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
}

/// The kernel counts what it ends for memory in the sandbox as a whole.
#[test]
pub fn neither_a_cell_nor_a_command_is_blamed_for_the_memory_of_the_other() {
    let Some(daemon) = session_with("", json!({"memory_bytes": 256 << 20})) else { return };
    printed(&daemon, "x = [1]");
    let hog = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x') * (8 << 20))\n    time.sleep(0.02)";
    // Blamed with a reservation at most: the kernel may have ended something else as well.
    let is_not_blamed = |result: &Value| {
        let note = result.pointer("/state/note").and_then(Value::as_str).unwrap_or_default();
        let blamed = text(result, "reason") == "out_of_memory" && !note.contains("which of them took it");
        assert!(!blamed, "{result:#}");
    };
    let command = background(&daemon, "while [ ! -e go ]; do sleep 0.05; done; kill -9 $$");
    let result = daemon.run(S, hog);
    assert_eq!(text(&result, "reason"), "out_of_memory", "{result:#}");
    printed(&daemon, "open('go', 'w').close()");
    is_not_blamed(&outcome(&daemon, command));
    // The other way round.
    let code = "import os, signal, time\nwhile not os.path.exists('now'):\n    time.sleep(0.05)\nos.kill(os.getpid(), signal.SIGKILL)";
    let cell = queue(&daemon, &json!({"code": code}));
    eventually("it runs", || (state_of(&daemon, cell) == "running").then_some(()));
    let result = ran(&daemon, &json!({"argv": ["python3", "-c", hog], "timeout_s": 60}));
    assert_eq!(text(&result, "reason"), "out_of_memory", "{result:#}");
    assert_ended(&line(&daemon, "touch now"), "success", "ok", 0);
    is_not_blamed(&outcome(&daemon, cell));
}

/// A process that a command left behind belongs to nothing that runs.
#[test]
pub fn what_a_command_left_behind_takes_its_memory_at_nobody_elses_cost() {
    let Some(daemon) = session_with("", json!({"memory_bytes": 256 << 20})) else { return };
    printed(&daemon, "x = [1]");
    let hog = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nheld = []\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nwhile True:\n    held.append(bytearray(b'x') * (8 << 20))\n    time.sleep(0.02)";
    let leaves = format!(
        "python3 -c \"{hog}\" > /dev/null 2>&1 < /dev/null & while [ ! -s pid ]; do sleep 0.05; done"
    );
    assert_ended(&line(&daemon, &leaves), "success", "ok", 0);
    let command = background(&daemon, "while [ ! -e over ]; do sleep 0.05; done");
    let waits = "import os, time\nleft = open('pid').read()\nopen('go', 'w').close()\nwhile os.path.exists('/proc/' + left):\n    time.sleep(0.05)\nopen('over', 'w').close(); print('over')";
    assert_eq!(printed(&daemon, waits), "over\n");
    assert_ended(&outcome(&daemon, command), "success", "ok", 0);
    // Nor is a later cell blamed that the kernel ends for another reason.
    let killed = daemon.run(S, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)");
    assert_eq!((text(&killed, "status"), text(&killed, "reason")), ("crashed", "signal"), "{killed:#}");
    assert_eq!(value(&daemon, "x"), "[1]");
}

#[test]
fn an_image_without_a_shell_says_so() {
    const IMAGE: &str = "belljar-test/no-shell";
    if !engine() {
        return;
    }
    let dockerfile =
        format!("FROM {}\nUSER 0\nRUN rm -f /bin/sh /usr/bin/sh /bin/dash /usr/bin/dash\n", "belljar/base");
    let docker = |arguments: &[&str], input: &str| {
        let mut child = std::process::Command::new("docker")
            .args(arguments)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("docker");
        std::io::Write::write_all(&mut child.stdin.take().expect("its input"), input.as_bytes())
            .expect("written");
        assert!(child.wait().expect("docker").success(), "{arguments:?}");
    };
    docker(&["build", "-q", "--network", "none", "-t", IMAGE, "-"], &dockerfile);
    let daemon = Daemon::with_config(&format!("[sandbox]\nbackend = \"docker\"\nimages = [\"{IMAGE}\"]\n"));
    daemon.cli(["new", S]).ok();
    let refused = line(&daemon, "echo no");
    assert_eq!((text(&refused, "status"), text(&refused, "reason")), ("failure", "no_shell"), "{refused:#}");
    let told = daemon.cli(["sh", "-s", S, "echo no"]).exits(1);
    assert!(told.stderr.contains("the image has no shell"), "{}", told.stderr);
    // A program needs none, and neither do cells.
    let program = ran(&daemon, &json!({"argv": ["python3", "-c", "print('without')"]}));
    assert_eq!(text(&program, "stdout"), "without\n");
    assert_eq!(printed(&daemon, "print(1)"), "1\n");
    drop(daemon);
    docker(&["rmi", "-f", IMAGE], "");
}

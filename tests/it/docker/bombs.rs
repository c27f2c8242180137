//! Code that takes all it can get: the limit holds, the end has its reason, others do not notice.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

use crate::support::{Daemon, beside, engine, eventually, keeps_variables};

fn small() -> Value {
    json!({"image": "belljar/base", "memory_bytes": 128 << 20, "pids": 48})
}

#[track_caller]
fn answers(daemon: &Daemon, session: &str) {
    let result = daemon.run(session, "40 + 2");
    assert_eq!(result["result"]["repr"], "42", "{result}");
}

/// Resident memory of the daemon.
fn daemon_memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
pub fn hundreds_of_busy_processes_cost_no_variables() {
    if !engine() || !keeps_variables() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "import os; kept = 'as it was'");
    let bomb = "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
    let result = daemon.run_with("a", json!({"code": bomb, "timeout_s": 4}));
    assert_eq!(
        (&result["status"], &result["state"]["kind"]),
        (&json!("timeout"), &json!("restored")),
        "{result}"
    );
    assert_eq!(daemon.run("a", "kept")["result"]["repr"], "'as it was'");
}

/// Processes of a sandbox in which nothing runs, beside its first: the inbox, the reserve, the zygote, the worker and its
/// checkpoints, of before and after a cell.
const IDLE: usize = 6;

#[test]
pub fn forks_and_threads_are_bounded_and_others_still_answer() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("bomb", small());
    daemon.session("other", json!({"image": "belljar/base"}));
    let bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
    let request = json!({"code": bomb, "timeout_s": 4}).to_string();
    let view = daemon.http("POST", "/v1/sessions/bomb/cells", request.as_bytes()).expect_status(202);
    let path = format!("/v1/sessions/bomb/cells/{}", view["cell"]);
    let first = daemon.first_process("bomb");
    eventually("the bomb goes off", || (beside(first).len() > 20).then_some(()));
    for _ in 0..10 {
        assert!(beside(first).len() <= 48);
        let begun = Instant::now();
        answers(&daemon, "other");
        assert!(begun.elapsed() < Duration::from_secs(5), "another session was slow: {:?}", begun.elapsed());
    }
    let result = eventually("the bomb ends", || {
        let view = daemon.http("GET", &path, b"").expect_status(200);
        (view["state"] == "done").then(|| view["result"].clone())
    });
    assert!(["timeout", "crashed"].contains(&result["status"].as_str().expect("a status")), "{result}");
    answers(&daemon, "bomb");
    eventually("no process of the bomb is left", || (beside(first).len() <= IDLE).then_some(()));

    let threads = "
import threading, time
count = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        count += 1
except RuntimeError:
    print(count < 48)
";
    assert_eq!(daemon.run("bomb", threads)["stdout"], "True\n");
    // No process is left for a copy, which is no fault of its code.
    let copy = daemon.run_with("bomb", json!({"code": "count", "mode": "fork"}));
    assert_eq!((&copy["reason"], &copy["state"]["kind"]), (&json!("pids"), &json!("kept")), "{copy}");
    assert!(copy["state"]["note"].as_str().is_some_and(|note| note.contains("`--pids`")), "{copy}");
    answers(&daemon, "other");
    daemon.assert_sound();
}

#[test]
pub fn memory_is_bounded_wherever_it_is_taken() {
    if !engine() || !keeps_variables() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\ntmp = \"1GiB\"\nshm = \"1GiB\"\n");
    daemon.session("a", small());
    let before = daemon_memory(&daemon);
    let heap = "blocks = []\nwhile True:\n    blocks.append(bytearray(b'x') * (8 << 20))";
    let tmp = "with open('/tmp/x', 'wb') as f:\n    while True:\n        f.write(b'x' * (1 << 20))";
    let shm = "with open('/dev/shm/x', 'wb') as f:\n    while True:\n        f.write(b'x' * (1 << 20))";
    for code in [heap, tmp, shm] {
        let result = daemon.run("a", code);
        assert_eq!(
            (&result["status"], &result["reason"]),
            (&json!("crashed"), &json!("out_of_memory")),
            "{code}: {result}; {:?}",
            daemon.events("a", 0).iter().filter(|event| event["type"] == "sandbox_gone").collect::<Vec<_>>()
        );
        assert_eq!(result["state"]["kind"], "restored");
        // What lies in a tmpfs stays charged to the sandbox until it is removed.
        daemon.run("a", "import os\nfor path in ('/tmp/x', '/dev/shm/x'):\n    if os.path.exists(path):\n        os.unlink(path)");
        answers(&daemon, "a");
    }
    let grown = daemon_memory(&daemon).saturating_sub(before);
    assert!(grown < 64 << 20, "the daemon grew by {grown} bytes");
    daemon.assert_sound();
}

/// Files in memory stay when the worker has ended: without it the guardian's next page cost a checkpoint.
#[test]
fn memory_is_put_by_before_it_runs_out() {
    if !engine() || !keeps_variables() {
        return;
    }
    // After what can be had anew, before checkpoints.
    const TURN: std::ops::Range<u32> = 600..980;
    let daemon = Daemon::start();
    daemon.session("a", small());
    let first = daemon.first_process("a");
    let put_by = || {
        let has_its_turn = |pid: &u32| {
            let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
            score.is_ok_and(|score| score.trim().parse().is_ok_and(|score| TURN.contains(&score)))
        };
        beside(first).into_iter().find(has_its_turn)
    };
    assert_eq!(put_by(), None);
    daemon.run("a", "import time; held = bytearray(b'x') * (400 << 20); time.sleep(0.5)");
    let holder = eventually("memory is put by", put_by);
    // The session may look into it, so it is no copy of the guardian.
    let program = std::fs::read(format!("/proc/{holder}/cmdline")).expect("it runs");
    assert!(program.starts_with(b"belljar-reserve\0"), "{}", String::from_utf8_lossy(&program));
    let result = daemon.run("a", "import os; os.kill(os.getpid(), 9)");
    assert_eq!(result["state"]["kind"], "restored", "{result}");
}

#[test]
pub fn temporary_space_descriptors_and_files_are_bounded() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\ntmp = \"16MiB\"\nopen_files = 256\nworkspace = \"64MiB\"\n");
    daemon.session("a", json!({"image": "belljar/base"}));
    for (code, error) in [
        ("open('/tmp/x', 'wb').write(bytes(32 << 20))", "OSError(28"),
        ("import os\nos.unlink('/tmp/x')\nopen('/dev/shm/x', 'wb').write(bytes(32 << 20))", "OSError(28"),
        ("held = []\nwhile True:\n    held.append(open('/dev/null'))", "OSError(24"),
        ("held.clear()\nopen('/workspace/x', 'wb').truncate(1 << 40)", "OSError(27"),
        (
            "with open('/workspace/x', 'wb', buffering=0) as f:\n    while f.write(bytes(1 << 20)): pass",
            "OSError(27",
        ),
    ] {
        let result = daemon.run("a", code);
        assert_eq!(result["status"], "failure", "{code}: {result}");
        let raised = result["exception"]["repr"].as_str().expect("an exception");
        assert!(raised.starts_with(error), "{code}: {raised}");
        answers(&daemon, "a");
    }
}

#[test]
pub fn a_workspace_that_grows_too_large_ends_the_cell() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\nworkspace = \"64MiB\"\n");
    daemon.session("a", json!({"image": "belljar/base"}));
    let code = "
import os, time
for n in range(3):
    with open(f'f{n}', 'wb') as f:
        f.write(os.urandom(32 << 20))
time.sleep(25)
";
    let result = daemon.run("a", code);
    assert_eq!(
        (&result["status"], &result["reason"]),
        (&json!("crashed"), &json!("policy_violation")),
        "{result}"
    );
    let note = result["state"]["note"].as_str().expect("a note");
    assert!(note.contains("workspace held") && note.contains("67108864"), "{note}");
    // Room can be made again.
    assert_eq!(daemon.run("a", "import os\nfor n in range(3): os.unlink(f'f{n}')")["status"], "success");
    answers(&daemon, "a");
}

#[test]
pub fn a_tree_of_any_depth_and_width_is_removed_with_its_session() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("deep", json!({"image": "belljar/base"}));
    let containers = daemon.containers();
    let code = "
import os
for n in range(12_000):
    os.mkdir(f'/workspace/wide{n}')
for _ in range(15_000):
    os.mkdir('d')
    os.chdir('d')
open('last', 'w').close()
os.chdir('/workspace')
";
    let result = daemon.run("deep", code);
    // On a slow machine the watch of the workspace may come by before the cell is through.
    assert!(result["status"] == "success" || result["reason"] == "policy_violation", "{result}");
    assert_eq!(result["truncated"]["artifacts"], true);
    // The folder can be listed, and is refused as a whole, while the daemon holds few descriptors.
    let listed = daemon.http_with("GET", "/v1/sessions/deep/files/", &[("Accept", "application/json")], b"");
    assert_eq!(listed.expect_status(200)["truncated"], true);
    let held = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").count();
    assert!(held < 100, "the daemon holds {held} descriptors");
    assert_eq!(daemon.http("DELETE", "/v1/sessions/deep?wait=true", b"").status, 200);
    crate::support::assert_nothing_left(&daemon, &containers);
    daemon.assert_sound();
}

#[test]
pub fn a_background_process_neither_outlives_the_session_nor_disturbs_it() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    let container = daemon.containers().remove(0);
    let code = "
import subprocess, sys
spin = 'import os, signal\\nos.setsid()\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: pass'
child = subprocess.Popen([sys.executable, '-c', spin], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
";
    assert_eq!(daemon.run("a", code)["status"], "success");
    answers(&daemon, "a");
    assert_eq!(daemon.http("DELETE", "/v1/sessions/a?wait=true", b"").status, 200);
    crate::support::assert_nothing_left(&daemon, &[container]);
}

//! Hostile code in the sandbox: what it tries fails, and the session lives on.

use serde_json::{Value, json};

use crate::support::{Daemon, User, docker_group, engine};

/// The modules of the probes, as the sandbox gets them; `probes` runs them all.
const PROBES: [(&str, &str); 6] = [
    ("probing", include_str!("../../escape/probing.py")),
    ("syscalls", include_str!("../../escape/syscalls.py")),
    ("network", include_str!("../../escape/network.py")),
    ("files", include_str!("../../escape/files.py")),
    ("limits", include_str!("../../escape/limits.py")),
    ("probes", include_str!("../../escape/probes.py")),
];
/// Probes in the modules; a lower number would mean that some did not run.
pub const PROBE_COUNT: usize = 114;

/// What is no wall of a jail, or another one than a container has: `PWD` is set; the system's folders and
/// files are mounts of their own; bubblewrap can bound no inodes and forbid no execution in a tmpfs; there is
/// no `/run`; the group is joined after its namespace was made, so that its name, the sandbox's, can be read.
const OTHERWISE_IN_JAILS: [&str; 7] = [
    "environment",
    "mounts",
    "inodes_of_tmp_are_bounded",
    "no_execution_in_tmp",
    "no_execution_in_shared_memory",
    "size_of_run_is_bounded",
    "cgroup_path_is_hidden",
];

fn base() -> Value {
    json!({"image": "belljar/base"})
}

#[track_caller]
fn answers(daemon: &Daemon, session: &str) -> Value {
    let result = daemon.run(session, "40 + 2");
    assert_eq!(result["result"]["repr"], "42", "{result}");
    result
}

/// Each is made of statements that have to fail with an `OSError`.
#[track_caller]
fn all_refused(daemon: &Daemon, setup: &str, attempts: &[&str]) {
    let mut code = format!("{setup}\nrefused = []\n");
    for attempt in attempts {
        code.push_str(&format!(
            "try:\n    {attempt}\nexcept OSError:\n    refused.append(1)\nelse:\n    print({attempt:?})\n"
        ));
    }
    code.push_str("len(refused)");
    let result = daemon.run("a", &code);
    assert_eq!(result["stdout"], "", "these were possible");
    assert_eq!(result["result"]["repr"], attempts.len().to_string(), "{result}");
}

/// A cell that writes the modules down and runs them. The text of a JSON string is one of Python, too.
fn code_of_probes(host: &str) -> String {
    let modules: serde_json::Map<String, Value> =
        PROBES.into_iter().map(|(name, text)| (name.to_owned(), json!(text))).collect();
    format!(
        "import pathlib, sys\nfor name, text in {}.items():\n    pathlib.Path('/tmp', name + '.py').write_text(text)\n\
         sys.path.insert(0, '/tmp')\nsys.argv = ['probes', {}]\nimport probes\nprobes.main()",
        Value::Object(modules),
        json!(host)
    )
}

#[test]
pub fn all_probes_are_contained_in_every_image() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let (images, otherwise): (&[&str], &[&str]) = if daemon.is_jailed() {
        (&["host"], &OTHERWISE_IN_JAILS)
    } else {
        (&["belljar/base", "belljar/science"], &[])
    };
    for image in images {
        let session = image.replace('/', "-");
        daemon.session(&session, json!({"image": image}));
        let code = code_of_probes(host.trim());
        let result = daemon.run_with(&session, json!({"code": code, "timeout_s": 120}));
        assert_eq!(result["status"], "success", "{result}");
        let found: serde_json::Map<String, Value> =
            serde_json::from_str(result["stdout"].as_str().expect("text")).expect("the probes' report");
        let open: Vec<_> = found
            .iter()
            .filter(|(name, found)| found["contained"] != true && !otherwise.contains(&name.as_str()))
            .collect();
        assert!(open.is_empty(), "{image}: {open:?}");
        assert_eq!(found.len(), PROBE_COUNT, "{image}: a probe came or went");
        answers(&daemon, &session);
    }
}

#[test]
pub fn there_is_no_network_and_no_place_to_write_but_the_workspace_and_tmpfs() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    let code = r#"
import os, socket
print([line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
kinds = {}
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    kinds[fields[4]] = fields[fields.index("-") + 1]
writable = set()
for folder, folders, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/tmp/")):
        folders[:] = []
        continue
    path = os.path.join(folder, ".probe")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.unlink(path)
        writable.add(folder)
    except OSError:
        pass
print(sorted(writable))
print([kinds[folder] for folder in ("/tmp", "/dev/shm")])
"#;
    let result = daemon.run("a", code);
    let expected = "['lo']\n['/dev/shm', '/tmp', '/workspace']\n['tmpfs', 'tmpfs']\n";
    // The queue of messages is a file system without files: nothing fits into it.
    let stdout = result["stdout"].as_str().expect("text").replace("'/dev/mqueue', ", "");
    assert_eq!(stdout, expected, "{result}");
    all_refused(
        &daemon,
        "import socket",
        &[
            "socket.create_connection(('127.0.0.1', 2375), 1)",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        ],
    );
}

#[test]
pub fn the_guardian_outlives_every_signal_from_inside() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    let before = daemon.containers();
    for signal in ["INT", "TERM", "KILL", "STOP", "SEGV", "HUP", "QUIT", "ABRT", "USR1", "TSTP", "CHLD"] {
        let code = format!(
            "import os, signal\ntry:\n    os.kill(1, signal.SIG{signal})\nexcept PermissionError:\n    pass"
        );
        let result = daemon.run("a", &code);
        assert_eq!(result["status"], "success", "{signal}: {result}");
        assert_eq!(answers(&daemon, "a")["state"]["kind"], "kept", "{signal}");
    }
    all_refused(
        &daemon,
        "import resource, os",
        &[
            "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
            "resource.prlimit(1, resource.RLIMIT_AS, (1, 1))",
            "resource.prlimit(1, resource.RLIMIT_CPU)",
            "open('/proc/1/mem', 'rb')",
            "open('/proc/1/oom_score_adj', 'w').write('1000')",
            "os.listdir('/proc/1/fd')",
            "os.sched_setaffinity(1, os.sched_getaffinity(1))",
            "os.setpriority(os.PRIO_PROCESS, 1, 19)",
            "os.setpriority(os.PRIO_USER, 0, 19)",
            "os.setpriority(os.PRIO_PGRP, 1, 19)",
            "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        ],
    );

    // A process in the background, away from the worker, does it again and again.
    let code = "
import subprocess, sys
attack = '''
import os, signal
for _ in range(200):
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSEGV):
        os.kill(1, number)
'''
subprocess.run([sys.executable, '-c', attack], start_new_session=True, check=True)
";
    assert_eq!(daemon.run("a", code)["status"], "success");
    answers(&daemon, "a");

    // Everything but pid 1 and the caller; then also the caller, from a child.
    daemon.run("a", "import os\ntry:\n    os.kill(-1, 9)\nexcept ProcessLookupError:\n    pass");
    answers(&daemon, "a");
    let killed = daemon.run("a", "import os, time\nif os.fork() == 0:\n    os.kill(-1, 9)\ntime.sleep(20)");
    assert_eq!((&killed["status"], &killed["exit_code"]), (&json!("crashed"), &json!(-9)), "{killed}");
    assert_eq!(killed["state"]["kind"], "lost");
    answers(&daemon, "a");
    assert_eq!(daemon.containers(), before, "the container was replaced");
    daemon.assert_sound();
}

#[test]
pub fn the_bridge_and_the_kernel_cannot_be_replaced() {
    if !engine() {
        return;
    }
    // A guest of a user's daemon is that user, who owns these files: only the mount protects them.
    let user = User { uid: 61_004, gid: 61_004, group: Some(docker_group()) };
    for daemon in [Daemon::start(), Daemon::as_user(user)] {
        daemon.session("a", base());
        bridge_and_kernel_hold(&daemon);
    }
}

fn bridge_and_kernel_hold(daemon: &Daemon) {
    let before = daemon.containers();
    all_refused(
        daemon,
        "import os, socket\nsock = '/belljar/bridge/bridge.sock'\nmain = '/belljar/kernel/__main__.py'\nunix = lambda: socket.socket(socket.AF_UNIX)",
        &[
            "unix().connect(sock)",
            "os.unlink(sock)",
            "os.rename(sock, '/belljar/bridge/other')",
            "os.rename('/belljar/bridge', '/belljar/other')",
            "os.chmod(sock, 0)",
            "unix().bind('/belljar/bridge/other.sock')",
            "os.symlink('/tmp', '/belljar/bridge/link')",
            "os.link(sock, '/belljar/bridge/hard')",
            "open('/belljar/bridge/file', 'w')",
            "open(main, 'w')",
            "open(main, 'a')",
            "os.truncate(main, 0)",
            "os.unlink(main)",
            "os.chmod(main, 0o777)",
            "os.utime(main)",
            "os.mkdir('/belljar/kernel/other')",
            "os.rename('/belljar/kernel', '/belljar/other')",
            "os.mkdir('/belljar/other')",
            "open('/etc/passwd', 'a')",
            "open('/etc/group', 'w')",
            "os.chmod('/etc/hosts', 0o666)",
        ],
    );
    answers(daemon, "a");
    assert_eq!(daemon.containers(), before);
}

#[test]
pub fn garbage_in_every_descriptor_ends_at_worst_in_a_typed_crash() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    let forged = r#"
import os, socket
def descriptors():
    return [fd for fd in sorted(map(int, os.listdir("/proc/self/fd"))) if fd > 2]
payloads = [
    os.urandom(4096),
    b"\xff" * 4096,
    b"\0" * 4096,
    b'{"type":"cell_done","cell":1,"status":"success","reason":"ok","exit_code":0}\n' * 20,
    b"\x81\x7e\xff\xff" + b"{" * 4096,
    (2**32 - 1).to_bytes(4, "big") * 1000,
    (2**32 - 1).to_bytes(4, "little") * 1000,
]
for payload in payloads:
    for fd in descriptors():
        try:
            os.set_blocking(fd, False)
            os.write(fd, payload)
        except OSError:
            pass
"#;
    let other = [
        "import os\nos.closerange(3, 2048)",
        "import os\nos.closerange(0, 2048)",
        "import os\nfor fd in range(0, 2048):\n    try:\n        os.dup2(os.open('/dev/zero', os.O_RDWR), fd)\n    except OSError:\n        pass",
        "import os\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    try:\n        os.set_blocking(fd, False)\n        while os.read(fd, 65536):\n            pass\n    except OSError:\n        pass",
    ];
    for code in [forged].into_iter().chain(other) {
        let result = daemon.run_with("a", json!({"code": code, "timeout_s": 5}));
        let status = result["status"].as_str().expect("a status");
        assert!(["success", "failure", "crashed", "timeout"].contains(&status), "{result}");
        assert!(result["cell"].is_u64() && result["code"] == code, "{result}");
        answers(&daemon, "a");
    }
    // The numbers of cells and the order of events are the daemon's own.
    let events = daemon.events("a", 0);
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    daemon.assert_sound();
}

#[test]
pub fn code_that_patches_its_own_kernel_harms_only_its_session() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.session("a", base());
    daemon.session("b", base());
    daemon.run("b", "kept = 7");
    for code in [
        "import gc, types\nfor thing in gc.get_objects():\n    if isinstance(thing, types.ModuleType) and thing.__name__.startswith('belljar'):\n        thing.__dict__.clear()",
        "import builtins\nfor name in list(vars(builtins)):\n    if not name.startswith('__'):\n        delattr(builtins, name)",
        "import sys\nsys.modules.clear()",
        "import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setrecursionlimit(50)",
        "import signal\nfor number in signal.valid_signals():\n    try:\n        signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
    ] {
        let result = daemon.run_with("a", json!({"code": code, "timeout_s": 2}));
        assert!(result["status"].is_string(), "{result}");
        assert_eq!(daemon.http("POST", "/v1/sessions/a/reset", b"").expect_status(200), json!({}));
        answers(&daemon, "a");
    }
    assert_eq!(daemon.run("b", "kept")["result"]["repr"], "7");
    daemon.assert_sound();
}

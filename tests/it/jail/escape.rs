//! What a guest in a jail cannot reach: the network, files of the host, its processes, any right.

use serde_json::json;

use super::ANN;
use crate::docker::helpers::{S, assert_ended, session, text};
use crate::docker::receipt::control;
use crate::support::{Daemon, User, jails};

/// Runs in both kinds of jails.
fn in_both(check: fn(&Daemon)) {
    for user in [None, Some(ANN)] {
        jails::in_a_jail(user, || {
            let Some(daemon) = session() else { return };
            check(&daemon);
        });
    }
}

/// Every attempt has to fail with an `OSError`; the code is told which did not.
fn all_refused(daemon: &Daemon, setup: &str, attempts: &[&str]) {
    for attempt in attempts {
        let code = format!(
            "{setup}\ntry:\n    got = {attempt}\nexcept OSError as error:\n    print('refused', error)\nelse:\n    print('GOT', got)"
        );
        let result = daemon.run(S, &code);
        assert_ended(&result, "success", "ok", 0);
        assert!(text(&result, "stdout").starts_with("refused"), "{attempt}: {result:#}");
    }
}

#[test]
fn there_is_no_network() {
    in_both(|daemon| {
        let setup = "import socket\ndef to(family, address):\n    s = socket.socket(family, socket.SOCK_STREAM)\n    s.settimeout(2)\n    s.connect(address)";
        all_refused(
            daemon,
            setup,
            &[
                "to(socket.AF_INET, ('192.0.2.1', 80))",
                "to(socket.AF_INET, ('127.0.0.1', 22))",
                "to(socket.AF_INET6, ('2001:db8::1', 80))",
                "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
                "socket.socket(socket.AF_INET, socket.SOCK_RAW)",
                "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
                "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            ],
        );
    });
}

#[test]
fn there_are_no_files_of_the_host_but_its_read_only_system() {
    in_both(|daemon| {
        let secret = daemon.home().join("secret");
        std::fs::write(&secret, "x").expect("written");
        let open = format!("open({:?})", secret.display().to_string());
        all_refused(
            daemon,
            "import os",
            &[
                &open,
                "open('/etc/shadow')",
                "open('/etc/hostname')",
                "os.listdir('/home')",
                "os.listdir('/root')",
                "os.listdir('/var')",
                "os.listdir('/run')",
                "open('/usr/x', 'w')",
                "open('/x', 'w')",
                "open('/etc/x', 'w')",
                "open('/dev/x', 'w')",
                "open('/belljar/x', 'w')",
                "open('/belljar/bridge/x', 'w')",
                "open('/belljar/kernel/x', 'w')",
                "open('/proc/sys/kernel/hostname', 'w').write('x')",
                "open('/proc/sysrq-trigger', 'w').write('x')",
                "os.unlink('/belljar/bridge/bridge.sock')",
                "os.mknod('/tmp/d', 0o600 | 0o060000, 0x0800)",
                "os.chroot('/tmp')",
            ],
        );
        let root = daemon.run(S, "import os; print(sorted(os.listdir('/etc')))");
        let listed = text(&root, "stdout");
        for name in ["shadow", "hostname", "ssh", "environment"] {
            assert!(!listed.contains(name), "{listed}");
        }
    });
}

#[test]
fn there_are_no_processes_of_the_host_and_no_rights() {
    in_both(|daemon| {
        let code = "import os\nfor name in sorted((n for n in os.listdir('/proc') if n.isdigit()), key=int):\n    print(open(f'/proc/{name}/cmdline').read().split('\\0')[0])";
        let seen = daemon.run(S, code);
        let own = ["python3", "/belljar/kernel/belljar-guardian", "belljar-inbox"];
        assert!(text(&seen, "stdout").lines().all(|line| own.contains(&line)), "{seen:#}");
        all_refused(
            daemon,
            "import os, resource, signal",
            &[
                "os.setuid(0)",
                "os.unshare(0x10000000) if hasattr(os, 'unshare') else open('/nonexistent')",
                "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
                "open('/proc/1/mem', 'rb')",
                "os.listdir('/proc/1/fd')",
                "os.nice(-5)",
                "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
                "os.sched_setaffinity(1, os.sched_getaffinity(1))",
                "os.setpriority(os.PRIO_PROCESS, 1, 19)",
                "os.setpriority(os.PRIO_USER, 0, 19)",
            ],
        );
        let status = daemon.run(S, "print(open('/proc/self/status').read())");
        let status = text(&status, "stdout");
        for line in
            ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            assert!(status.contains(line), "{line}: {status}");
        }
        // The guardian outlives what it cannot be told.
        daemon.run(S, "import os, signal\nfor s in (9, 15, 2, 19, 11): os.kill(1, s)");
        assert_eq!(text(&daemon.run(S, "print('here')"), "stdout"), "here\n");
    });
}

#[test]
fn a_jail_of_root_has_no_group_of_roots() {
    jails::in_a_jail(None, || {
        let daemon = Daemon::as_user(User { uid: 0, gid: 0, group: Some(61_300) });
        daemon.session(S, json!({}));
        let result = daemon.run(S, "import os; print(os.getgroups())");
        assert_eq!(text(&result, "stdout"), "[]\n", "{result:#}");
    });
}

#[test]
fn the_environment_is_a_short_list() {
    in_both(|daemon| {
        let result = daemon.run(S, "import os, json; print(json.dumps(sorted(os.environ)))");
        let names: Vec<String> = serde_json::from_str(text(&result, "stdout")).expect("JSON");
        let allowed = [
            "HOME",
            "LANG",
            "LC_CTYPE",
            "MATPLOTLIBRC",
            "MKL_NUM_THREADS",
            "MPLBACKEND",
            "MPLCONFIGDIR",
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "PATH",
            "PWD",
            "PYTHONDONTWRITEBYTECODE",
            "PYTHONPATH",
            "PYTHONUTF8",
            "TMPDIR",
        ];
        assert!(names.iter().all(|name| allowed.contains(&name.as_str())), "{names:?}");
        // It leads to what the kernel has for other programs, and to nothing of the host.
        let modules = daemon.run(S, "print(os.environ['PYTHONPATH'])");
        assert_eq!(text(&modules, "stdout"), "/belljar/kernel/shims/lib\n");
    });
}

/// Pages of shared memory stay when a process lets go of them, and then only a control group still
/// accounts for them.
#[test]
fn shared_memory_that_is_no_file_is_bounded() {
    const MAPPED: &str = "import mmap, time\nsize, step = 1 << 30, 16 << 20\nheld = mmap.mmap(-1, size)\nfor at in range(0, size, step):\n    \
                  held[at:at + step] = bytes(step)\n    held.madvise(mmap.MADV_DONTNEED, at, step)\ntime.sleep(20)";
    const NAMELESS: &str = "import os, time\nfor n in range(16):\n    os.write(os.memfd_create(str(n)), bytes(64 << 20))\ntime.sleep(20)";
    in_both(|daemon| {
        daemon.session("small", json!({"memory_bytes": 256 << 20}));
        let receipt = daemon.http("GET", "/v1/sessions/small/receipt", b"").expect_status(200);
        let ended = |code: &str| {
            let result = daemon.run("small", code);
            (text(&result, "status").to_owned(), text(&result, "reason").to_owned())
        };
        let out_of_memory = ("crashed".to_owned(), "out_of_memory".to_owned());
        assert_eq!(ended(MAPPED), out_of_memory, "{receipt:#}");
        let expected = match text(&receipt, "/limits/held_by/memory") {
            "cgroup" => out_of_memory,
            _ => ("failure".to_owned(), "exception".to_owned()),
        };
        assert_eq!(ended(NAMELESS), expected, "{receipt:#}");
    });
}

/// The limits are read from the host's kernel, not from the receipt.
#[test]
fn the_kernel_holds_a_jail_to_its_limits() {
    in_both(|daemon| {
        daemon.session("held", json!({"memory_bytes": 200 << 20, "cpus": 0.5, "pids": 77}));
        let pid = u64::from(daemon.first_process("held"));
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("the jail runs");
        let hard = |row: &str| {
            let rest = limits.lines().find_map(|line| line.strip_prefix(row)).expect("the row");
            rest.split_whitespace().nth(1).expect("a value").to_owned()
        };
        assert_eq!((hard("Max open files"), hard("Max core file size")), ("1024".into(), "0".into()));
        assert_eq!((hard("Max locked memory"), hard("Max msgqueue size")), ("65536".into(), "0".into()));
        assert_eq!(hard("Max file size"), (1_u64 << 30).to_string());
        let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("the jail runs");
        assert!(score.trim().parse::<i32>().expect("a number") >= 20, "it dies before the daemon: {score}");
        let receipt = daemon.http("GET", "/v1/sessions/held/receipt", b"").expect_status(200);
        if receipt["limits"]["cgroup_version"] == 0 {
            assert_eq!(hard("Max processes"), "77");
            return;
        }
        let whole = (200_u64 << 20) + (512 << 20);
        assert_eq!(control(pid, "memory", "memory.limit_in_bytes", "memory.max"), whole.to_string());
        assert_eq!(control(pid, "pids", "pids.max", "pids.max"), "77");
        assert!(control(pid, "cpu", "cpu.cfs_quota_us", "cpu.max").starts_with("50000"));
        let shares = control(pid, "cpu", "cpu.shares", "cpu.weight");
        assert!(["256", "25"].contains(&shares.as_str()), "{shares}");
    });
}

#[test]
fn the_receipt_tells_namespaces_and_what_holds_each_limit() {
    in_both(|daemon| {
        let receipt = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
        assert_eq!(receipt["backend"], "bubblewrap");
        let namespaces = receipt["namespaces"].as_array().expect("a list");
        for name in ["cgroup", "ipc", "mnt", "net", "pid", "uts"] {
            assert!(namespaces.iter().any(|own| own == name), "{name}: {receipt:#}");
        }
        let held = &receipt["limits"]["held_by"];
        if receipt["limits"]["cgroup_version"] == 0 {
            assert_eq!((text(held, "memory"), text(held, "pids")), ("guardian", "rlimit"));
            assert!(namespaces.iter().any(|own| own == "user"), "{receipt:#}");
        } else {
            assert_eq!((text(held, "memory"), text(held, "cpus")), ("cgroup", "cgroup"));
        }
    });
}

/// Code may lower its own score as far as the kernel lets it; the guardian must still not die before it.
#[test]
fn code_that_spares_itself_when_memory_is_short_costs_no_session() {
    in_both(|daemon| {
        daemon.session("spared", json!({"memory_bytes": 256 << 20}));
        daemon.run("spared", "import os, time; kept = 'as it was'");
        let code = "
for _ in range(8):
    if os.fork() == 0:
        for score in range(0, 1000, 10):
            try:
                with open('/proc/self/oom_score_adj', 'w') as file:
                    file.write(str(score))
                break
            except OSError:
                pass
        block = bytearray(b'x') * (240 << 20)
        time.sleep(1)
        os._exit(0)
for _ in range(8):
    os.wait()
";
        for _ in 0..3 {
            let result = daemon.run_with("spared", json!({"code": code, "timeout_s": 20}));
            assert_ne!(result["state"]["kind"], "lost", "{result}");
            let after = daemon.run_with("spared", json!({"code": "kept"}));
            assert_eq!(after["result"]["repr"], "'as it was'", "{result} and then {after}");
        }
        daemon.assert_sound();
    });
}

//! The receipt: what it says is what the engine and the host's kernel say.

use serde_json::{Value, json};
use std::path::Path;

use crate::support::{Daemon, docker, engine};

/// What `sandbox.checkpoint_budget` is when nothing is configured.
const CHECKPOINT_BUDGET: u64 = 512 << 20;

const SECCOMP_PROFILE: &str = include_str!("../../../config/seccomp.json");

fn status_field(pid: u64, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the sandbox runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("the field");
    line.split_whitespace().next().expect("a value").to_owned()
}

fn limit(pid: u64, row: &str) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("the sandbox runs");
    let rest = limits.lines().find_map(|line| line.strip_prefix(row)).expect("the row");
    rest.split_whitespace().next().expect("a value").parse().expect("a number")
}

/// A control file of the process's own group, in the hierarchy of version 1 or 2.
pub fn control(pid: u64, controller: &str, v1: &str, v2: &str) -> String {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("the sandbox runs");
    let below = |wanted: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let named = fields.next()?.split(',').any(|name| name == wanted);
            named.then(|| fields.next())?.map(|path| path.trim_start_matches('/').to_owned())
        })
    };
    let root = Path::new("/sys/fs/cgroup");
    let file = match below(controller) {
        Some(path) => root.join(controller).join(path).join(v1),
        None => root.join(below("").expect("a group")).join(v2),
    };
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.trim().to_owned()
}

#[test]
fn every_field_is_what_the_engine_and_the_kernel_say() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let asked = json!({"image": "belljar/base", "memory_bytes": 200 << 20, "cpus": 0.5, "pids": 77});
    daemon.session("a", asked);
    let receipt = daemon.http("GET", "/v1/sessions/a/receipt", b"").expect_status(200);

    let container = receipt["container"].as_str().expect("an id");
    assert_eq!(daemon.containers(), [container]);
    let inspected: Value = serde_json::from_str(&docker(["inspect", container])).expect("JSON");
    let (inspected, host) = (&inspected[0], &inspected[0]["HostConfig"]);
    let pid = inspected["State"]["Pid"].as_u64().expect("it runs");

    assert_eq!(receipt["backend"], "docker");
    assert_eq!(receipt["runtime"], host["Runtime"]);
    assert_eq!(receipt["image"]["reference"], "belljar/base");
    assert_eq!(receipt["image"]["id"], inspected["Image"]);
    assert_eq!(
        receipt["image"]["id"].as_str(),
        Some(docker(["image", "inspect", "-f", "{{.Id}}", "belljar/base"]).as_str())
    );
    let python = daemon.run("a", "import platform; print(platform.python_version(), end='')");
    assert_eq!(receipt["python"], python["stdout"]);
    assert_eq!(inspected["Config"]["Labels"]["belljar.sandbox"], receipt["sandbox"]);

    let process = &receipt["process"];
    assert_eq!(process["pid"], pid);
    assert_eq!(process["uid"].to_string(), status_field(pid, "Uid"));
    assert_eq!(process["gid"].to_string(), status_field(pid, "Gid"));
    assert!(process["uid"].as_u64().expect("a uid") >= 200_000, "{process}");
    assert_eq!(process["cap_eff"], "0000000000000000");
    assert_eq!(process["cap_bnd"], "0000000000000000");
    assert_eq!(process["cap_eff"], status_field(pid, "CapEff"));
    assert_eq!(process["cap_bnd"], status_field(pid, "CapBnd"));
    assert_eq!((&process["no_new_privs"], status_field(pid, "NoNewPrivs")), (&json!(true), "1".into()));
    assert_eq!((&process["seccomp"], status_field(pid, "Seccomp")), (&json!(2), "2".into()));

    assert_eq!(receipt["network"], "none");
    assert_eq!(host["NetworkMode"], "none");
    assert_eq!(receipt["read_only_root"], true);
    assert_eq!(host["ReadonlyRootfs"], true);
    let options = host["SecurityOpt"].as_array().expect("options");
    let applied = options.iter().find_map(|option| option.as_str()?.strip_prefix("seccomp="));
    assert_eq!(applied, Some(SECCOMP_PROFILE), "the engine applied another profile");
    assert_eq!(receipt["seccomp_profile"], json!(format!("sha256:{}", sha256(SECCOMP_PROFILE))));

    let limits = &receipt["limits"];
    // The sandbox's limit is the session's, and what its checkpoints may hold on top.
    let whole = (200 << 20) + CHECKPOINT_BUDGET;
    assert_eq!(limits["memory_bytes"], whole);
    assert_eq!(limits["cpus"], 0.5);
    assert_eq!(limits["pids"], 77);
    assert_eq!((&host["Memory"], &host["MemorySwap"]), (&json!(whole), &json!(whole)));
    assert_eq!(host["NanoCpus"], 500_000_000);
    assert_eq!(host["PidsLimit"], 77);
    assert_eq!(control(pid, "memory", "memory.limit_in_bytes", "memory.max"), whole.to_string());
    assert_eq!(control(pid, "pids", "pids.max", "pids.max"), "77");
    let quota = control(pid, "cpu", "cpu.cfs_quota_us", "cpu.max");
    assert_eq!(quota.split(' ').next(), Some("50000"), "half of a period of 100 ms");
    for (fact, row) in [
        ("open_files", "Max open files"),
        ("file_bytes", "Max file size"),
        ("core_bytes", "Max core file size"),
    ] {
        assert_eq!(limits[fact], limit(pid, row), "{fact}");
    }
    assert_eq!((&limits["open_files"], &limits["core_bytes"]), (&json!(1024), &json!(0)));
    assert_eq!(limits["file_bytes"], 1_u64 << 30);
    assert_eq!((limit(pid, "Max locked memory"), limit(pid, "Max msgqueue size")), (64 << 10, 0));
    let shares = control(pid, "cpu", "cpu.shares", "cpu.weight");
    assert!(["256", "10"].contains(&shares.as_str()), "they yield to the rest of the machine: {shares}");
    let oom_score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("the sandbox runs");
    assert!(oom_score.trim().parse::<i32>().expect("a number") >= 500, "it dies before the daemon");
    assert_eq!(inspected["LogPath"], "", "the engine writes no log of it");

    let mut mounts: Vec<(&str, &str, bool)> = receipt["mounts"]
        .as_array()
        .expect("mounts")
        .iter()
        .filter_map(|mount| {
            Some((mount["target"].as_str()?, mount["kind"].as_str()?, mount["writable"].as_bool()?))
        })
        .collect();
    mounts.sort_unstable();
    assert_eq!(
        mounts,
        [
            ("/belljar/bridge", "bind", false),
            ("/belljar/kernel", "bind", false),
            ("/belljar/packages", "bind", false),
            ("/etc/group", "bind", false),
            ("/etc/hosts", "bind", false),
            ("/etc/passwd", "bind", false),
            ("/run", "tmpfs", false),
            ("/tmp", "tmpfs", true),
            ("/workspace", "bind", true),
        ]
    );
    let probe = receipt["probe"].as_object().expect("a probe");
    assert_eq!(probe.len(), 7);
    assert!(probe.values().all(|held| held == true), "{probe:?}");

    // People are told the same.
    let shown = daemon.cli(["receipt", "a"]).ok().stdout;
    for fact in
        ["0000000000000000", "none", container, "belljar/base", "200 MiB, and 512 MiB for checkpoints", "✓"]
    {
        assert!(shown.contains(fact), "{fact} is not in:\n{shown}");
    }
    assert!(!shown.contains('✗'), "{shown}");
}

/// The system's own tool, so that the receipt's sum is not compared with itself.
fn sha256(text: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("profile");
    std::fs::write(&file, text).expect("written");
    let output = std::process::Command::new("sha256sum").arg(&file).output().expect("sha256sum");
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a sum").to_owned()
}

#[test]
fn a_session_gets_the_limits_it_asked_for_or_an_error() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\nmax_memory = \"256MiB\"\nmemory = \"128MiB\"\n");
    for (asked, word) in [
        (json!({"memory_bytes": 1 << 20}), "memory"),
        (json!({"memory_bytes": 1_u64 << 40}), "memory"),
        (json!({"cpus": 0}), "CPUs"),
        (json!({"cpus": 1000}), "CPUs"),
        (json!({"pids": 1}), "pids"),
        (json!({"pids": 1_u64 << 40}), "pids"),
    ] {
        let problem = daemon.http("POST", "/v1/sessions", asked.to_string().as_bytes()).expect_status(400);
        assert!(problem["message"].as_str().is_some_and(|text| text.contains(word)), "{problem}");
        assert!(problem["hint"].is_string(), "{problem}");
    }
    daemon.session("a", json!({"image": "belljar/base"}));
    let receipt = daemon.http("GET", "/v1/sessions/a/receipt", b"").expect_status(200);
    assert_eq!(receipt["limits"]["memory_bytes"], (128 << 20) + CHECKPOINT_BUDGET);
    let view = daemon.http("GET", "/v1/sessions/a", b"").expect_status(200);
    assert_eq!(view["limits"]["memory_bytes"], 128 << 20);
    assert_eq!(daemon.containers().len(), 1, "a refused session left a container");
}

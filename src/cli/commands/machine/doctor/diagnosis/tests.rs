use std::path::{Path, PathBuf};

use super::super::facts::{
    Cgroups, Config, Daemon, Engine, EngineTrouble, FreeSpace, Home, Namespaces, ProcessesOfOthers,
    SocketFacts, SocketFile,
};
use super::super::finding::Severity;
use super::super::machine::SWITCHES;
use super::*;
use crate::cli::client::machine_daemon::ClosedDaemon;
use crate::cli::render::human::word;
use crate::config::load_text;
use crate::protocol::api::{Health, HealthStatus, Version};

fn config(text: &str) -> Config {
    let file = PathBuf::from("/etc/belljar/config.toml");
    let settings = load_text(Path::new("/etc/belljar/config.toml"), text).map(|all| Box::new(all.settings));
    Config { file, there: true, settings }
}

fn healthy_engine() -> Engine {
    Engine {
        version: "29.4.3".into(),
        api: "1.53".into(),
        podman: false,
        runc: Some("1.3.4".into()),
        default_runtime: "runc".into(),
        runtimes: vec!["io.containerd.runc.v2".into(), "runc".into(), "runsc".into()],
        security: vec!["name=seccomp,profile=builtin".into(), "name=userns".into()],
        no_limits: Vec::new(),
        socket_mode: Some(0o660),
        socket: "/var/run/docker.sock".into(),
    }
}

fn healthy() -> Facts {
    Facts {
        root: false,
        kernel: Some("6.12.9-amd64".into()),
        cgroups: Cgroups {
            version: Some(2),
            controllers: ["cpu", "io", "memory", "pids"].map(Into::into).into(),
            for_jails: true,
        },
        namespaces: Namespaces { max: Some(1000), clone: Some(1), apparmor_restricts: None },
        seccomp: true,
        bubblewrap: Some("bubblewrap 0.8.0".into()),
        jail_trouble: None,
        sysctls: vec![("user.max_pid_namespaces", 1000), ("vm.overcommit_memory", 1)],
        crypto_sockets: false,
        processes: ProcessesOfOthers::Hidden,
        engine: Ok(healthy_engine()),
        config: config(""),
        images: vec![("python:3.12".into(), None), ("belljar/base".into(), Some(64 << 20))],
        home: Home {
            path: "/home/u/b".into(),
            mode: Some(0o700),
            writable: true,
            free_space: Some(FreeSpace { bytes: 20 << 30, files: Some(1 << 20) }),
            project_quotas: false,
        },
        socket: SocketFile {
            path: "/run/user/7/b.sock".into(),
            found: Some(SocketFacts { is_socket: true, mode: 0o600, owner: 7, ours: true }),
            open_folder: false,
        },
        daemon: None,
        closed: None,
    }
}

/// Everything that is not ok: its severity, message and fix.
fn complaints(facts: &Facts) -> Vec<String> {
    diagnosis(facts)
        .into_iter()
        .filter(|finding| finding.status != Severity::Ok)
        .map(|f| format!("{} {}: {} | {}", word(&f.status), f.check, f.message, f.fix.unwrap_or_default()))
        .collect()
}

#[track_caller]
fn complains(change: impl FnOnce(&mut Facts), expected: &str) {
    let mut facts = healthy();
    change(&mut facts);
    let found = complaints(&facts);
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}");
}

fn with_engine(change: impl FnOnce(&mut Engine)) -> impl FnOnce(&mut Facts) {
    let mut engine = healthy_engine();
    change(&mut engine);
    move |facts| facts.engine = Ok(engine)
}

#[test]
fn a_healthy_machine_is_green() {
    assert_eq!(complaints(&healthy()), Vec::<String>::new());
    insta::assert_snapshot!(
        diagnosis(&healthy()).iter().map(|f| format!("{}: {}", f.check, f.message)).collect::<Vec<_>>().join("\n"),
        @r"
    kernel: 6.12.9-amd64
    cgroups: version 2 with cpu, memory, pids
    seccomp: the kernel can filter system calls
    user namespaces: up to 1000
    apparmor: does not restrict user namespaces
    sysctls: none is in the way, and none leaves a known way open
    bubblewrap: 0.8.0
    engine: 29.4.3 (API 1.53)
    engine socket: /var/run/docker.sock (mode 660)
    runtime: runc 1.3.4
    engine seccomp: it can filter system calls
    userns-remap: on: root of a container is nobody on the host
    images: belljar/base (64 MiB); not there: python:3.12
    config: /etc/belljar/config.toml
    home: /home/u/b
    disk: 20 GiB free at `/home/u/b`
    socket: /run/user/7/b.sock (mode 600)
    daemon: not running; commands start it
    "
    );
}

#[test]
fn every_complaint_has_a_remedy() {
    let mut facts = healthy();
    facts.kernel = Some("4.19.0".into());
    facts.cgroups = Cgroups { version: Some(1), controllers: vec!["cpu".into()], for_jails: true };
    facts.engine = Err(EngineTrouble::Absent("/run/d.sock".into()));
    facts.bubblewrap = None;
    facts.home.writable = false;
    let findings = diagnosis(&facts);
    assert!(findings.iter().all(|finding| finding.fix.is_some() == (finding.status != Severity::Ok)));
    assert_eq!(findings.iter().filter(|finding| finding.status == Severity::Failure).count(), 4);
}

#[test]
fn the_kernel_has_to_be_able() {
    complains(|facts| facts.kernel = Some("5.4.0-99".into()), "failure kernel: 5.4.0-99 is too old");
    complains(|facts| facts.kernel = None, "warning kernel: ");
    complains(|facts| facts.seccomp = false, "failure seccomp: ");
    complains(|facts| facts.cgroups.version = None, "failure cgroups: there are none");
    complains(
        |facts| facts.cgroups.controllers = vec!["cpu".into(), "pids".into()],
        "failure cgroups: version 2, but without memory",
    );
    let mut facts = healthy();
    facts.cgroups.for_jails = false;
    assert_eq!(complaints(&facts), Vec::<String>::new(), "an engine has them");
    facts.engine = Err(EngineTrouble::Absent("/run/d.sock".into()));
    let expected = "warning cgroups: version 2, but none that you may use";
    assert!(complaints(&facts).iter().any(|found| found.starts_with(expected)));
}

#[test]
fn namespaces_matter_to_users_without_rights() {
    complains(|facts| facts.namespaces.max = Some(0), "warning user namespaces: switched off");
    complains(|facts| facts.namespaces.clone = Some(0), "warning user namespaces: only for root");
    complains(|facts| facts.namespaces.apparmor_restricts = Some(1), "warning apparmor: ");
    let mut facts = healthy();
    facts.root = true;
    facts.namespaces = Namespaces { max: Some(9), clone: Some(0), apparmor_restricts: Some(1) };
    assert_eq!(complaints(&facts), Vec::<String>::new());
}

#[test]
fn switches_that_are_in_the_way_are_named_with_the_command_that_turns_them() {
    complains(
        |facts| facts.sysctls = vec![("user.max_pid_namespaces", 0), ("vm.overcommit_memory", 0)],
        "warning sysctls: `user.max_pid_namespaces` is 0: no sandbox can be built | sudo sysctl -w user.max_pid_namespaces=10000",
    );
    complains(
        |facts| facts.sysctls = vec![("vm.overcommit_memory", 2)],
        "warning sysctls: `vm.overcommit_memory` is 2: checkpoints",
    );
}

#[test]
fn an_engine_that_cannot_be_used_is_told_with_its_remedy() {
    for (trouble, expected) in [
        (
            EngineTrouble::Absent("/d".into()),
            "warning engine: none listens at `/d`; sessions run in jails of bubblewrap | systemctl start docker",
        ),
        (EngineTrouble::Denied("/d".into()), "warning engine: you may not use `/d`; "),
        (EngineTrouble::Elsewhere("tcp://h".into()), "warning engine: `DOCKER_HOST` is `tcp://h`"),
        (EngineTrouble::Silent("late".into()), "warning engine: it does not answer: late; "),
    ] {
        complains(|facts| facts.engine = Err(trouble), expected);
    }
    // Where jails are not allowed or not possible, an engine that is missing is a failure.
    for config_text in ["[sandbox]\nminimum_isolation = 'container'", "[sandbox]\nbackend = 'docker'"] {
        let change = |facts: &mut Facts| {
            facts.engine = Err(EngineTrouble::Denied("/d".into()));
            facts.config = config(config_text);
        };
        complains(change, "failure engine: you may not use `/d` | sudo usermod -aG docker");
    }
    let mut facts = healthy();
    facts.engine = Err(EngineTrouble::Absent("/d".into()));
    facts.jail_trouble = Some("bwrap: setting up uid map: Permission denied\n".into());
    let found = complaints(&facts);
    assert!(
        found[0].starts_with("warning bubblewrap: it cannot build a jail here: bwrap: setting up"),
        "{found:#?}"
    );
    assert!(found[1].starts_with("failure engine: none listens"), "{found:#?}");
    complains(with_engine(|engine| engine.podman = true), "failure engine: Podman");
    complains(with_engine(|engine| engine.api = "1.40".into()), "warning engine: ");
    complains(with_engine(|engine| engine.socket_mode = Some(0o666)), "failure engine socket: everybody");
    complains(
        with_engine(|engine| engine.no_limits = vec!["memory"]),
        "failure engine limits: the engine cannot limit memory",
    );
    complains(with_engine(|engine| engine.security = vec!["name=userns".into()]), "failure engine seccomp: ");
    complains(
        with_engine(|engine| {
            engine.security.pop();
        }),
        "warning userns-remap: off",
    );
}

#[test]
fn an_old_runc_is_a_warning_since_distributions_patch_it() {
    complains(
        with_engine(|engine| engine.runc = Some("1.1.5+ds1".into())),
        "warning runtime: runc 1.1.5+ds1 is open to CVE-2024-21626, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881; it may be patched by your distribution",
    );
    complains(with_engine(|engine| engine.runc = None), "warning runtime: nobody knows");
    complains(
        |facts| facts.config = config("[sandbox]\nruntime = 'kata'"),
        "failure runtime: the engine has no runtime `kata`",
    );
    let mut facts = healthy();
    with_engine(|engine| {
        engine.runc = Some("1.0.0".into());
        engine.runtimes.push("crun".into());
    })(&mut facts);
    facts.config = config("[sandbox]\nruntime = 'crun'");
    assert_eq!(complaints(&facts), Vec::<String>::new());
}

#[test]
fn a_runtime_with_a_kernel_of_its_own_is_a_failure_and_an_unknown_one_a_warning() {
    complains(
        |facts| facts.config = config("[sandbox]\nruntime = 'runsc'"),
        "failure runtime: `runsc` brings a kernel of its own",
    );
    complains(
        with_engine(|engine| {
            engine.runtimes.push("wasm".into());
            engine.default_runtime = "wasm".into();
        }),
        "warning runtime: nobody has tested Belljar with `wasm`",
    );
}

#[test]
fn ways_that_the_kernel_leaves_open_are_warnings() {
    for name in [
        "kptr_restrict",
        "dmesg_restrict",
        "unprivileged_bpf_disabled",
        "io_uring_disabled",
        "yama.ptrace_scope",
    ] {
        let name = SWITCHES.iter().map(|switch| switch.name).find(|known| known.ends_with(name)).unwrap();
        complains(|facts| facts.sysctls.push((name, 0)), &format!("warning sysctls: `{name}` is 0: "));
        let mut facts = healthy();
        facts.sysctls.push((name, 1));
        assert_eq!(complaints(&facts), Vec::<String>::new());
    }
    complains(|facts| facts.crypto_sockets = true, "warning crypto sockets: `algif_aead` can be used");
    let mut facts = healthy();
    facts.processes = ProcessesOfOthers::Shown;
    assert_eq!(complaints(&facts), Vec::<String>::new(), "the daemon of an ordinary user serves no others");
    let of_root = |facts: &mut Facts| (facts.root, facts.processes) = (true, ProcessesOfOthers::Shown);
    complains(of_root, "warning processes: every user reads below `/proc` where sandboxes of others lie");
}

#[test]
fn missing_images_are_built_or_pulled() {
    let none =
        |facts: &mut Facts| facts.images = vec![("python:3.12".into(), None), ("belljar/base".into(), None)];
    complains(
        none,
        "failure images: none of the allowed ones is there: python:3.12, belljar/base | belljar image build base",
    );
    complains(
        |facts| facts.config = config("[sandbox]\nimage = 'python:3.12'"),
        "failure images: `python:3.12`, which sessions get by default, is not there | belljar image pull python:3.12",
    );
    complains(
        |facts| {
            none(facts);
            facts.config = config("[sandbox]\npull = 'missing'");
        },
        "warning images: ",
    );
}

#[test]
fn what_belljar_keeps_is_its_own() {
    let free_space = |bytes, files| Some(FreeSpace { bytes, files });
    complains(|facts| facts.home.free_space = free_space(1 << 20, None), "failure disk: full: 1 MiB free");
    complains(
        |facts| facts.home.free_space = free_space(512 << 20, None),
        "warning disk: nearly full: 512 MiB",
    );
    complains(
        |facts| facts.home.free_space = free_space(9 << 30, Some(5)),
        "failure disk: only 5 more files",
    );
    complains(
        |facts| facts.home.mode = Some(0o777),
        "failure home: everybody may write to `/home/u/b` (mode 777) | chmod 700 /home/u/b",
    );
    complains(|facts| facts.config = config("[sandbox]\nmemroy = 1"), "failure config: ");
    let found = |mode, is_socket, ours| Some(SocketFacts { is_socket, mode, owner: 9, ours });
    complains(
        |facts| facts.socket.found = found(0o666, true, true),
        "failure socket: everybody may use `/run/user/7/b.sock` (mode 666) | chmod o-rwx /run/user/7/b.sock",
    );
    complains(|facts| facts.socket.found = found(0o660, true, true), "warning socket: your group");
    complains(
        |facts| facts.socket.found = found(0o600, true, false),
        "failure socket: `/run/user/7/b.sock` belongs to user 9",
    );
    complains(
        |facts| facts.socket.found = found(0o600, false, true),
        "failure socket: `/run/user/7/b.sock` is in the way",
    );
    complains(|facts| facts.socket.open_folder = true, "failure socket: everybody may put another");
}

#[test]
fn a_daemon_of_another_version_or_without_an_engine_is_told() {
    let daemon = |version: &str, status, problems: &[&str]| {
        Some(Daemon {
            version: Version { version: version.into(), pid: 5, bridge: 1, home: "/h".into(), engine: None },
            health: Health {
                status,
                problems: problems.iter().map(|&text| text.into()).collect(),
                sessions: 0,
                pool: None,
            },
        })
    };
    let own = env!("CARGO_PKG_VERSION");
    complains(
        |facts| facts.daemon = daemon("0.0.1", HealthStatus::Ok, &[]),
        "warning daemon: it is version 0.0.1",
    );
    complains(
        |facts| facts.daemon = daemon(own, HealthStatus::Degraded, &["no engine"]),
        "warning daemon: runs, but cannot make new sandboxes: no engine",
    );
}

#[test]
fn a_member_of_the_group_of_the_machines_daemon_is_told_nothing_else() {
    let mut facts = healthy();
    facts.engine = Err(EngineTrouble::Denied("/d".into()));
    facts.socket.found = Some(SocketFacts { is_socket: true, mode: 0o660, owner: 0, ours: true });
    facts.daemon = Some(Daemon {
        version: Version {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: 5,
            bridge: 1,
            home: "/h".into(),
            engine: Some("29.4.3".into()),
        },
        health: Health { status: HealthStatus::Ok, problems: Vec::new(), sessions: 0, pool: None },
    });
    assert_eq!(complaints(&facts), Vec::<String>::new());
}

#[test]
fn who_is_not_in_the_group_of_the_machines_daemon_is_told_which_to_join() {
    let mut facts = healthy();
    facts.engine = Err(EngineTrouble::Denied("/d".into()));
    facts.closed = Some(ClosedDaemon { group: "glass".into() });
    let found = complaints(&facts);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found.iter().all(|said| said.ends_with("| sudo usermod -aG glass $USER, then log in again")),
        "{found:#?}"
    );
}

//! `belljar doctor` against real sockets, disks and engines. No daemon runs, unless a test says so.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Daemon, SmallDisk, binary, engine};

struct Machine {
    home: tempfile::TempDir,
}

impl Machine {
    fn new(config: &str) -> Self {
        let home = tempfile::Builder::new().prefix("bj").tempdir_in("/tmp").expect("a folder");
        std::fs::write(home.path().join("config.toml"), config).expect("a configuration");
        Self { home }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command
            .env("BELLJAR_HOME", self.home.path())
            .env("BELLJAR_CONFIG", self.home.path().join("config.toml"));
        command.env_remove("BELLJAR_SOCKET").args(["doctor", "--json"]);
        command
    }

    fn examine(&self) -> Examined {
        Examined::of(&mut self.command())
    }
}

struct Examined {
    code: Option<i32>,
    findings: Value,
}

impl Examined {
    fn of(command: &mut Command) -> Self {
        let output = command.output().expect("it runs");
        let findings = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        Self { code: output.status.code(), findings }
    }

    #[track_caller]
    fn finding(&self, check: &str) -> &Value {
        let all = self.findings["findings"].as_array().expect("a list");
        all.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("{check}: {all:#?}"))
    }

    /// That check failed, with these words in its message and its remedy.
    #[track_caller]
    fn assert_failure(&self, check: &str, message: &str, fix: &str) {
        self.assert_told(check, "failure", message, fix);
        assert_eq!((self.code, &self.findings["ok"]), (Some(1), &Value::Bool(false)));
    }

    #[track_caller]
    fn assert_told(&self, check: &str, status: &str, message: &str, fix: &str) {
        let found = self.finding(check);
        assert_eq!(found["status"], status, "{found:#}");
        assert!(found["message"].as_str().is_some_and(|text| text.contains(message)), "{found:#}");
        assert!(found["fix"].as_str().is_some_and(|text| text.contains(fix)), "{found:#}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_healthy_machine_has_no_failure() {
    if !engine() {
        return;
    }
    let found = Machine::new("").examine();
    assert_eq!((found.code, &found.findings["ok"]), (Some(0), &Value::Bool(true)), "{:#}", found.findings);
    for check in ["kernel", "cgroups", "engine", "images", "config", "disk", "socket"] {
        assert_eq!(found.finding(check)["status"], "ok", "{:#}", found.findings);
    }
}

#[test]
fn a_stopped_engine_is_named_with_its_remedy() {
    let machine = Machine::new("[sandbox]\nminimum_isolation = 'container'\n");
    let dead = machine.home.path().join("dead.sock");
    // Bound and closed again: the file is there, and no daemon listens.
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("a socket"));
    let found = Examined::of(machine.command().env("DOCKER_HOST", format!("unix://{}", dead.display())));
    found.assert_failure("engine", path(&dead), "systemctl start docker");
    let found = Examined::of(machine.command().env("DOCKER_HOST", "unix:///nowhere/docker.sock"));
    found.assert_failure("engine", "/nowhere/docker.sock", "systemctl start docker");
}

#[test]
fn a_stopped_engine_is_a_warning_where_a_jail_can_serve() {
    let machine = Machine::new("");
    let without_engine = || {
        let mut command = machine.command();
        command.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        command
    };
    let found = Examined::of(&mut without_engine());
    found.assert_told("engine", "warning", "sessions run in jails of bubblewrap", "systemctl start docker");
    assert_eq!((found.code, &found.findings["ok"]), (Some(0), &Value::Bool(true)), "{:#}", found.findings);
    // Without an engine and without bubblewrap it is a failure, and both have their remedy.
    let found = Examined::of(without_engine().env("PATH", "/nonexistent"));
    found.assert_failure("engine", "/nowhere/docker.sock", "systemctl start docker");
    found.assert_told("bubblewrap", "warning", "not there", "apt-get install bubblewrap");
}

#[test]
fn a_world_writable_socket_is_a_failure() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let examine = || Examined::of(&mut daemon.command(["doctor", "--json"]));
    let found = examine();
    assert_eq!(found.finding("socket")["status"], "ok", "{:#}", found.findings);
    assert!(found.finding("daemon")["message"].as_str().is_some_and(|text| text.starts_with("runs (pid")));
    std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o666)).expect("chmod");
    examine().assert_failure(
        "socket",
        "everybody may use",
        &format!("chmod o-rwx {}", daemon.socket().display()),
    );
}

#[test]
fn a_full_disk_is_a_failure() {
    let machine = Machine::new("");
    let folder = machine.home.path().join("disk");
    std::fs::create_dir(&folder).expect("a folder");
    let Some(_disk) = SmallDisk::mount(&folder) else { return };
    let found = Examined::of(machine.command().env("BELLJAR_HOME", &folder));
    found.assert_failure("disk", path(&folder), "df -h");
}

#[test]
fn a_missing_image_is_named_with_the_command_that_makes_it() {
    if !engine() {
        return;
    }
    let found = Machine::new("[sandbox]\nimages = ['belljar/none-such', 'no-such-image:1']").examine();
    found.assert_failure("images", "belljar/none-such, no-such-image:1", "belljar image pull");
}

#[test]
fn a_wrong_configuration_is_told_with_its_line() {
    let found = Machine::new("[cells]\ntimeuot = 1").examine();
    found.assert_failure("config", "config.toml:2", "belljar config show");
}

#[test]
fn people_read_one_line_a_check_and_its_remedy() {
    let machine = Machine::new("[cells]\ntimeuot = 1");
    let output = Command::new(binary())
        .env("BELLJAR_HOME", machine.home.path())
        .env("BELLJAR_CONFIG", machine.home.path().join("config.toml"))
        .args(["doctor", "--color", "never"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("\nfailure  config           the configuration is wrong: "), "{said}");
    assert!(said.contains("\n         fix: edit `"), "{said}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("failure"), "{output:?}");
}

#[test]
fn a_daemon_that_cannot_be_run_is_not_taken_for_a_home_that_cannot_be_written() {
    let machine = Machine::new("");
    let copy = machine.home.path().join("copy");
    std::fs::copy(binary(), &copy).expect("a copy of the command");
    // It is gone by the time at which it would start its daemon.
    let script = r#"exec 9<"$1"; rm "$1"; exec /proc/self/fd/9 ps"#;
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&copy)
        .env("BELLJAR_HOME", machine.home.path())
        .env("BELLJAR_CONFIG", machine.home.path().join("config.toml"))
        .env("BELLJAR_SOCKET", machine.home.path().join("s.sock"))
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot be run again"), "{said}");
    assert!(!said.contains("BELLJAR_HOME"), "{said}");
}

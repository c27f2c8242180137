//! Real things for tests: a daemon of its own in a folder of its own, the command line, raw HTTP
//! over the socket, the engine's own CLI.

mod disk;
mod http;
pub mod invariants;
pub mod jails;
mod journal;
mod leftovers;
mod package_index;
mod pulse;
mod users;

pub use disk::SmallDisk;
pub use http::Response;
pub use journal::Journal;
pub use leftovers::{assert_nothing_left, beside};
pub use package_index::PackageIndex;
pub use pulse::Pulse;
pub use users::{connect_as, copy_lists, docker_group, flood_as, http_as};

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(30);

/// False only if the environment says that there shall be no engine; a missing engine is a failure.
pub fn engine() -> bool {
    if jails::ground().is_some() {
        return true;
    }
    if std::env::var_os("BELLJAR_TEST_NO_DOCKER").is_some_and(|value| value == "1") {
        eprintln!("NOT RUN: this test needs a container engine, and BELLJAR_TEST_NO_DOCKER=1 is set");
        return false;
    }
    true
}

/// Polls until `check` gives something.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_belljar"))
}

/// Runs the engine's own command line.
pub fn docker<const N: usize>(arguments: [&str; N]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("the docker command is there");
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// How long a session rests between two cells where checkpoints wait for that, which takes a part of it.
const REST: Duration = Duration::from_millis(100);

/// A daemon with a home of its own. It is stopped, with all its sandboxes, when this is dropped.
pub struct Daemon {
    /// Under the home, if it has one of its own. Goes before the folder does.
    disk: Option<SmallDisk>,
    home: tempfile::TempDir,
    child: Option<Child>,
    /// Runs daemon and commands as that user, in its groups.
    user: Option<User>,
    /// Its sandboxes are jails.
    jailed: bool,
    /// After the word `daemon`.
    flags: Vec<String>,
    /// For the daemon and for every command.
    environment: Vec<(String, String)>,
    /// A folder with lists of users that the daemon sees in the place of those in `/etc`.
    lists: Option<PathBuf>,
}

#[derive(Clone, Copy)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// A supplementary group, e.g. the one that may use the engine.
    pub group: Option<u32>,
}

/// Whom requests of the tests themselves are from.
pub const ROOT: User = User { uid: 0, gid: 0, group: None };

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
        }
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// The configuration with a pool of the size that `BELLJAR_TEST_POOL` says, and with the checkpoints that
/// `BELLJAR_TEST_CHECKPOINTING` says, unless a test has its own. Without the first variable there is no pool, so that a
/// test finds the sandboxes that it made and no others.
fn of_the_matrix(config: &str) -> String {
    let mut config = config.to_owned();
    if !config.contains("[pool]") {
        let size = std::env::var("BELLJAR_TEST_POOL").unwrap_or_else(|_| "0".into());
        config = format!("{config}\n[pool]\nsize = {size}\n");
    }
    let Ok(policy) = std::env::var("BELLJAR_TEST_CHECKPOINTING") else { return config };
    let line = format!("[sandbox]\ncheckpointing = \"{policy}\"\n");
    if config.contains("checkpointing") {
        config
    } else if config.contains("[sandbox]\n") {
        config.replacen("[sandbox]\n", &line, 1)
    } else {
        config + &line
    }
}

/// False where the tests run without checkpoints: then a cell that dies takes the variables along, and nothing is undone.
pub fn keeps_variables() -> bool {
    needs_checkpoints("off")
}

/// False also where checkpoints wait until a session rests: then a death that comes at once goes back further.
pub fn keeps_every_state() -> bool {
    needs_checkpoints("idle") && keeps_variables()
}

/// False, and says so, if the tests run with this policy.
fn needs_checkpoints(policy: &str) -> bool {
    let is_set = is_policy(policy);
    if is_set {
        eprintln!("NOT RUN: this test needs checkpoints, and BELLJAR_TEST_CHECKPOINTING={policy} is set");
    }
    !is_set
}

/// Whether the tests run with this policy of checkpoints.
fn is_policy(policy: &str) -> bool {
    std::env::var("BELLJAR_TEST_CHECKPOINTING").is_ok_and(|set| set == policy)
}

fn home() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bj").tempdir_in("/tmp").expect("a folder")
}

impl Daemon {
    /// Serves when this returns.
    pub fn start() -> Self {
        Self::with_config("")
    }

    /// With a configuration file of that text.
    pub fn with_config(config: &str) -> Self {
        Self::launch(config, None, &[])
    }

    /// With more in its environment.
    pub fn with_environment(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::launch(config, None, environment)
    }

    /// For all users of the machine who are in that group, and reachable for them.
    pub fn for_all(group: &str, config: &str) -> Self {
        let mut daemon = Self::prepare(home(), None, config, None, &[]);
        daemon.flags = ["--system", "--group", group].map(str::to_owned).to_vec();
        daemon.restart();
        daemon
    }

    /// The same, for a daemon that sees other lists of users: `passwd`, `group` and `subuid` of that folder.
    pub fn for_all_by_lists(group: &str, config: &str, lists: &Path) -> Self {
        let mut daemon = Self::prepare(home(), None, config, None, &[]);
        daemon.flags = ["--system", "--group", group].map(str::to_owned).to_vec();
        daemon.lists = Some(lists.to_owned());
        daemon.restart();
        daemon
    }

    /// As another user, in user mode.
    pub fn as_user(user: User) -> Self {
        Self::launch("", Some(user), &[])
    }

    /// The same, with a configuration file of that text.
    pub fn as_user_with(user: User, config: &str) -> Self {
        Self::launch(config, Some(user), &[])
    }

    /// With a home that can be filled up; none if that cannot be made here.
    pub fn on_small_disk() -> Option<Self> {
        let home = home();
        let disk = SmallDisk::mount(home.path())?;
        // What is written to the last byte of it is what such tests are about.
        let config = "[sandbox]\ndisk_reserve = 0\n";
        Some(Self::launch_in(home, Some(disk), config, None, &[]))
    }

    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("a disk of its own")
    }

    fn launch(config: &str, user: Option<User>, environment: &[(&str, &str)]) -> Self {
        Self::launch_in(home(), None, config, user, environment)
    }

    fn launch_in(
        home: tempfile::TempDir,
        disk: Option<SmallDisk>,
        config: &str,
        user: Option<User>,
        environment: &[(&str, &str)],
    ) -> Self {
        let mut daemon = Self::prepare(home, disk, config, user, environment);
        daemon.restart();
        daemon
    }

    fn prepare(
        home: tempfile::TempDir,
        disk: Option<SmallDisk>,
        config: &str,
        user: Option<User>,
        environment: &[(&str, &str)],
    ) -> Self {
        let ground = jails::ground();
        let config = if ground.is_some() { jails::with_backend(config) } else { config.to_owned() };
        let user = user.or(ground.and_then(|ground| ground.user));
        let config = of_the_matrix(&config);
        std::fs::write(home.path().join("config.toml"), config).expect("a configuration");
        if let Some(user) = user {
            std::os::unix::fs::chown(home.path(), Some(user.uid), Some(user.gid)).expect("chown");
        }
        let jailed = ground.is_some();
        let (flags, environment_of) = (Vec::new(), Vec::new());
        let mut daemon =
            Self { disk, home, child: None, user, jailed, flags, environment: environment_of, lists: None };
        daemon.set_environment(environment);
        daemon
    }

    /// Starts the daemon process (again) in the same home.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(self.try_restart(), "the daemon ended: {}", self.stderr());
    }

    /// The same, for one that may die before it serves; false if it did.
    pub fn try_restart(&mut self) -> bool {
        self.begin_restart();
        eventually("the daemon answers", || {
            if self.has_ended() {
                return Some(false);
            }
            UnixStream::connect(self.socket()).ok().map(|_| {
                if !self.flags.is_empty() {
                    // The socket itself says who may use it.
                    let enter = std::os::unix::fs::PermissionsExt::from_mode(0o711);
                    std::fs::set_permissions(self.home.path(), enter).expect("chmod");
                }
                true
            })
        })
    }

    /// Starts the process and does not wait until it serves.
    pub fn begin_restart(&mut self) {
        let log = std::fs::File::create(self.home.path().join("stderr")).expect("a log");
        let command = self.command(std::iter::once("daemon").chain(self.flags.iter().map(String::as_str)));
        let child = match self.lists.clone().or_else(|| self.lists_with_an_administrator()) {
            Some(lists) => users::by_lists(&command, &lists),
            None => command,
        }
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the daemon starts");
        self.child = Some(child);
    }

    /// Only an account can be in a group. Where the settings name a group of administrators, the daemon sees one.
    fn lists_with_an_administrator(&self) -> Option<PathBuf> {
        let config = std::fs::read_to_string(self.home.path().join("config.toml")).ok()?;
        let names_a_group = config.contains("[admin]") && self.user.is_none();
        let lists = self.home.path().join("lists");
        names_a_group.then(|| {
            users::copy_lists(&lists, "bjcarol:x:61003:60::/:/bin/sh\n");
            lists
        })
    }

    /// Replaces what is in the environment of the next daemon and of commands.
    pub fn set_environment(&mut self, environment: &[(&str, &str)]) {
        self.environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    }

    /// Whether the process has come to its end by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }

    /// Kills the process, if it runs.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What the daemon process wrote to its stderr.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.home.path().join("stderr")).unwrap_or_default()
    }

    /// Whom it and all commands run as.
    pub fn owner(&self) -> User {
        self.user.unwrap_or(ROOT)
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("belljar.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Sends a signal to the daemon process.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.pid().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits for the daemon process to end by itself.
    pub fn wait(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        eventually("the daemon ends", || child.try_wait().expect("wait")).code()
    }

    /// What the daemon wrote into its log files.
    pub fn log(&self) -> String {
        let files = std::fs::read_dir(self.home.path().join("logs")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
    }

    /// Answers, and never panicked.
    #[track_caller]
    pub fn assert_sound(&self) {
        self.http("GET", "/v1/health", b"").expect_status(200);
        for text in [self.stderr(), self.log()] {
            assert!(!text.contains("panicked") && !text.contains("internal problem"), "{text}");
        }
    }

    /// The command line, set up to talk to this daemon and never to start another.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.user {
            None => Command::new(binary()),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)]);
                command.arg(match user.group {
                    Some(group) => format!("--groups={group}"),
                    None => "--clear-groups".into(),
                });
                command.arg(binary());
                command
            }
        };
        command
            .args(arguments)
            .env("BELLJAR_HOME", self.home.path())
            .env("BELLJAR_SOCKET", self.socket())
            .env("BELLJAR_CONFIG", self.home.path().join("config.toml"))
            .env("BELLJAR_NO_AUTOSTART", "1")
            .env_remove("BELLJAR_SESSION")
            .envs(self.environment.iter().cloned());
        command
    }

    pub fn cli<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::of(self.command(arguments).stdin(Stdio::null()).output().expect("belljar runs"))
    }

    pub fn cli_with_input<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: &str,
    ) -> Ran {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("belljar runs");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
        Ran::of(child.wait_with_output().expect("it ends"))
    }

    /// As the test's own user; where suites run again as another user, as that one.
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        match self.user.filter(|_| self.jailed) {
            Some(user) => users::connect_as(user, &self.socket()),
            None => UnixStream::connect(self.socket()),
        }
    }

    /// One HTTP request over the socket.
    pub fn http(&self, method: &str, path: &str, body: &[u8]) -> Response {
        self.http_with(method, path, &[], body)
    }

    pub fn http_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        http::request(self.connect().expect("the daemon serves"), method, path, headers, body)
    }

    /// Whether its sandboxes are jails.
    pub fn is_jailed(&self) -> bool {
        self.jailed
    }

    /// A light image, by its name; a jail shows the host's own system.
    pub fn image(&self) -> &'static str {
        if self.jailed { "host" } else { "belljar/base" }
    }

    /// Makes a session; panics with the problem if it cannot.
    #[track_caller]
    pub fn session(&self, name: &str, request: Value) -> Value {
        let mut request = if self.jailed { jails::without_image(request) } else { request };
        request["name"] = json!(name);
        self.http("POST", "/v1/sessions", request.to_string().as_bytes()).expect_status(201)
    }

    /// Runs a cell and gives its `ExecutionResult`.
    #[track_caller]
    pub fn run(&self, session: &str, code: &str) -> Value {
        self.run_with(session, json!({ "code": code }))
    }

    /// The same, with the whole request.
    #[track_caller]
    pub fn run_with(&self, session: &str, request: Value) -> Value {
        let path = format!("/v1/sessions/{session}/cells?wait=true");
        let result = self.http("POST", &path, request.to_string().as_bytes()).expect_status(200);
        if is_policy("idle") {
            std::thread::sleep(REST); // the checkpoint behind this cell is made meanwhile
        }
        result
    }

    /// All events of a session so far.
    pub fn events(&self, session: &str, after: u64) -> Vec<Value> {
        let response =
            self.http("GET", &format!("/v1/sessions/{session}/events?follow=false&after={after}"), b"");
        let text = response.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Ids of the containers of this daemon, running or not; of jails, those that live.
    pub fn containers(&self) -> Vec<String> {
        if self.jailed {
            return jails::living(self.home()).iter().map(|(folder, _)| jails::name(folder)).collect();
        }
        let Ok(instance) = std::fs::read_to_string(self.home.path().join("instance")) else {
            return Vec::new();
        };
        let filter = format!("label=belljar.instance={}", instance.trim());
        docker(["ps", "-aq", "--no-trunc", "--filter", &filter]).lines().map(str::to_owned).collect()
    }

    /// Behind the back of the daemon, which finds out by itself.
    pub fn remove_sandboxes(&self) {
        if self.jailed {
            for (_, pid) in jails::living(self.home()) {
                let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
                assert!(killed.expect("kill").success());
            }
            return;
        }
        for container in self.containers() {
            docker(["rm", "-f", &container]);
        }
    }

    /// Its first process, as the host sees it.
    pub fn first_process(&self, session: &str) -> u32 {
        let receipt = self.http("GET", &format!("/v1/sessions/{session}/receipt"), b"").expect_status(200);
        receipt["process"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid")
    }

    /// Stops the only sandbox behind the back of the daemon.
    pub fn pause_sandbox(&self) {
        if self.jailed {
            jails::stop(jails::living(self.home())[0].1);
        } else {
            docker(["pause", &self.containers()[0]]);
        }
    }

    /// Whether the only sandbox stands still.
    pub fn is_paused(&self) -> bool {
        if self.jailed {
            let (folder, pid) = jails::living(self.home())[0].clone();
            return jails::is_stopped(&folder, pid);
        }
        docker(["inspect", "-f", "{{.State.Paused}}", &self.containers()[0]]) == "true"
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
            let deadline = Instant::now() + SOON;
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        jails::remove_all(self.home.path());
        if !self.jailed && self.home.path().join("instance").exists() {
            for container in self.containers() {
                // It may be on its way out already.
                let _ = Command::new("docker").args(["rm", "-f", &container]).output();
            }
        }
    }
}

//! A daemon of a test: its home, its configuration, its process from the start to the end.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::kernels::{self, Image};
use super::matrix::of_the_matrix;
use super::users::{self, ROOT, User};
use super::waiting::{SOON, eventually};
use super::{SmallDisk, jails};

/// A daemon with a home of its own. It is stopped, with all its sandboxes, when this is dropped.
pub struct Daemon {
    /// Under the home, if it has one of its own. Goes before the folder does.
    disk: Option<SmallDisk>,
    pub(super) home: tempfile::TempDir,
    child: Option<Child>,
    /// Runs daemon and commands as that user, in its groups.
    pub(super) user: Option<User>,
    /// Its sandboxes are jails.
    pub(super) jailed: bool,
    /// The arguments after the word `daemon`.
    flags: Vec<String>,
    /// Variables for the environment of the daemon and of every command.
    pub(super) environment: Vec<(String, String)>,
    /// A folder with lists of users that the daemon sees in the place of those in `/etc`.
    lists: Option<PathBuf>,
}

fn home() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bj").tempdir_in("/tmp").expect("a folder")
}

impl Daemon {
    /// Serves when this returns.
    pub fn start() -> Self {
        Self::with_config("")
    }

    /// A daemon with a configuration file of that text.
    pub fn with_config(config: &str) -> Self {
        Self::launch(config, None, &[])
    }

    /// A daemon with more variables in its environment.
    pub fn with_environment(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::launch(config, None, environment)
    }

    /// A daemon for all users of the machine who are in that group, and reachable for them.
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

    /// A daemon of another user, in user mode.
    pub fn as_user(user: User) -> Self {
        Self::launch("", Some(user), &[])
    }

    /// The same, with a configuration file of that text.
    pub fn as_user_with(user: User, config: &str) -> Self {
        Self::launch(config, Some(user), &[])
    }

    /// A daemon with a home that can be filled up; none if that cannot be made here.
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
        kernels::give(home.path(), user.unwrap_or(ROOT), Image::Base);
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

    /// The same daemon in another folder, as after a move to another machine: its home is copied, and the first one is
    /// gone, with all its sandboxes.
    pub fn moved(mut self) -> Self {
        self.kill();
        self.remove_sandboxes();
        eventually("its sandboxes are gone", || self.containers().is_empty().then_some(()));
        let moved = home();
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(self.home.path().join(".")).arg(moved.path());
        assert!(copy.status().expect("cp").success(), "the home cannot be copied");
        self.home = moved;
        self.restart();
        self
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

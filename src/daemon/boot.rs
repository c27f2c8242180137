//! What the daemon needs before it serves: its home, the lock on it, a log, an instance id.

use std::io::{IsTerminal, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_limit::{self, LogLimit};
use super::{DaemonError, trust};
use crate::config::{Paths, Settings};

/// The first descriptor after the standard ones, where systemd passes a socket.
const FIRST_HANDED_OVER: u32 = 3;
/// How often the daemon looks whether its home is still there.
const HOME_LOOK: Duration = Duration::from_secs(1);
/// The number of daily log files that are kept.
const LOG_FILES: usize = 7;

fn failed(path: &Path, error: &std::io::Error) -> DaemonError {
    DaemonError::Start(format!(
        "`{}` cannot be used: {error}\n\nhint: free the path, or move the state with `BELLJAR_HOME`",
        path.display()
    ))
}

/// Closes descriptors that the parent process left open: a lock held by a script would be held for as long as the
/// daemon runs, and programs that the daemon starts for users would inherit it too. Must be called before the daemon
/// opens anything itself.
pub fn close_inherited() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let handed_over =
        if number("LISTEN_PID") == Some(std::process::id()) { number("LISTEN_FDS") } else { None };
    let first_of_others = FIRST_HANDED_OVER.saturating_add(handed_over.unwrap_or(0));
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // The numbers are collected first, because reading the folder uses a descriptor itself, which is closed by then.
    for descriptor in numbers.collect::<Vec<u32>>() {
        if descriptor >= first_of_others
            && let Ok(descriptor) = i32::try_from(descriptor)
        {
            let _ = nix::unistd::close(descriptor);
        }
    }
}

/// Creates the home, which only the daemon may enter. From here on the canonical path is used, because a link in the
/// configured path could be changed later.
pub fn make_home(paths: Paths) -> Result<Paths, DaemonError> {
    let trusted = |path: &Path| trust::check(path, "move the state with `BELLJAR_HOME`");
    trusted(paths.home())?;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(paths.home());
    made.map_err(|error| failed(paths.home(), &error))?;
    let home = paths.home().canonicalize().map_err(|error| failed(paths.home(), &error))?;
    // Checked again, because another user may have created it meanwhile.
    trusted(&home)?;
    let paths = paths.with_home(home);
    let folders = [
        paths.sandboxes_dir(),
        paths.workspaces_dir(),
        paths.volumes_dir(),
        paths.kernel_dir(),
        paths.packages_dir(),
        paths.spill_dir(),
        paths.jobs_dir(),
        paths.logs_dir(),
    ];
    for folder in folders {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| failed(&folder, &error))?;
    }
    // Set even on an existing home, because other users must not be able to enter it.
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(paths.home(), private).map_err(|error| failed(paths.home(), &error))?;
    Ok(paths)
}

/// The lock on the home, held until the daemon ends. The kernel releases it however the daemon ends.
pub struct Lock {
    file: std::fs::File,
    path: PathBuf,
    pid_file: PathBuf,
}

impl Lock {
    pub fn take(paths: &Paths) -> Result<Self, DaemonError> {
        let path = paths.lock_file();
        let mut file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| failed(&path, &error))?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = (&file).take(32).read_to_string(&mut pid);
            let location = paths.home().display().to_string();
            return Err(DaemonError::AlreadyRunning { location, pid: pid.trim().to_owned() });
        }
        let pid = std::process::id();
        let outcome = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid}"));
        let pid_file = paths.pid_file();
        outcome
            .and_then(|()| std::fs::write(&pid_file, format!("{pid}\n")))
            .map_err(|error| failed(&path, &error))?;
        Ok(Self { file, path, pid_file })
    }

    /// Returns when the home has been removed or replaced. Then no client and no later daemon finds what this
    /// one writes, and the lock keeps no other daemon out.
    pub async fn lost(&self) {
        while self.is_in_place() {
            tokio::time::sleep(HOME_LOOK).await;
        }
    }

    /// Whether the lock is the file that others would find.
    fn is_in_place(&self) -> bool {
        let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) => self.file.metadata().map_or(true, |own| identity(own) == identity(found)),
            // A file system that cannot be read for a while is not a home that is gone.
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // In a home that was replaced, this file is another daemon's.
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.pid_file);
        }
    }
}

/// The id that labels this home's containers; generated once.
pub fn instance(paths: &Paths) -> Result<String, DaemonError> {
    let path = paths.instance_file();
    if let Ok(text) = std::fs::read_to_string(&path)
        && let Ok(id) = uuid::Uuid::parse_str(text.trim())
    {
        return Ok(id.to_string());
    }
    let id = uuid::Uuid::new_v4().to_string();
    std::fs::write(&path, format!("{id}\n")).map_err(|error| failed(&path, &error))?;
    Ok(id)
}

/// Logs go to daily files in the home, and to a terminal if there is one.
pub fn start_log(paths: &Paths, settings: &Settings) -> Option<tracing_appender::non_blocking::WorkerGuard> {
    let appender = tracing_appender::rolling::Builder::new()
        .rotation(tracing_appender::rolling::Rotation::DAILY)
        .filename_prefix(log_limit::PREFIX)
        .filename_suffix(log_limit::SUFFIX)
        .max_log_files(LOG_FILES)
        .build(paths.logs_dir())
        .ok()?;
    let (writer, guard) = tracing_appender::non_blocking(LogLimit::new(appender, &paths.logs_dir()));
    let filter =
        tracing_subscriber::EnvFilter::new(format!("warn,belljar={}", settings.daemon.log_level.name()));
    let terminal = std::io::stderr()
        .is_terminal()
        .then(|| tracing_subscriber::fmt::layer().with_writer(std::io::stderr));
    let file = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let started = tracing_subscriber::registry().with(filter).with(file).with(terminal).try_init();
    started.is_ok().then_some(guard)
}

/// Disables core files, because the daemon's memory holds the data of users.
pub fn harden() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than anything takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn home() -> (tempfile::TempDir, Paths) {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        let paths = Paths::discover(false, &|name| (name == "BELLJAR_HOME").then(|| home.clone().into()));
        (folder, make_home(paths.unwrap()).unwrap())
    }

    #[tokio::test]
    async fn a_daemon_notices_that_its_home_is_gone_and_leaves_the_next_one_alone() {
        let (_folder, paths) = home();
        let lock = Lock::take(&paths).unwrap();
        assert!(tokio::time::timeout(HOME_LOOK * 2, lock.lost()).await.is_err(), "it is there");
        std::fs::remove_dir_all(paths.home()).unwrap();
        tokio::time::timeout(PATIENCE, lock.lost()).await.expect("it is gone");
        let paths = make_home(paths).unwrap();
        let next = Lock::take(&paths).unwrap();
        tokio::time::timeout(PATIENCE, lock.lost()).await.expect("this is another one");
        drop(lock);
        assert!(paths.pid_file().exists(), "it is the next daemon's");
        drop(next);
        assert!(!paths.pid_file().exists());
    }
}

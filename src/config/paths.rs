//! The paths that Belljar uses, derived from the environment alone, without touching the disk.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where the daemon of the whole machine listens.
pub const SYSTEM_SOCKET: &str = "/run/belljar/belljar.sock";
/// The longest path of a unix socket that Linux accepts.
const SOCKET_PATH_BYTES: usize = 107;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathsError {
    #[error("there is no place for Belljar's state: neither `BELLJAR_HOME` nor `HOME` is set")]
    NoHome,
    #[error("`{variable}` has to be an absolute path: {}", path.display())]
    Relative { variable: &'static str, path: PathBuf },
    #[error("the path of the socket is longer than {SOCKET_PATH_BYTES} bytes: {}", path.display())]
    SocketPathTooLong { path: PathBuf },
}

impl PathsError {
    /// A hint how to fix the error.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NoHome => "set `BELLJAR_HOME` to a folder that Belljar may use",
            Self::Relative { .. } => "write the path from `/` on",
            Self::SocketPathTooLong { .. } => "set `BELLJAR_SOCKET` to a shorter path",
        }
    }
}

/// Whether this process would serve the whole machine, because it runs as root.
pub fn is_system() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the user has a systemd of their own, which can make control groups: its socket is there while it runs.
pub fn has_user_manager() -> bool {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    runtime.is_some_and(|runtime| Path::new(&runtime).join("systemd/private").exists())
}

/// Which users a daemon serves, according to its command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Whether the daemon serves the whole machine; only root can do that.
    pub system: bool,
    /// The group whose members may use the daemon; `None` means the usual group, if it exists.
    pub group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    home: PathBuf,
    socket: PathBuf,
    config: PathBuf,
    config_is_named: bool,
    socket_is_named: bool,
    system: bool,
}

impl Paths {
    /// `system` is for a daemon of the whole machine; `env` reads one variable.
    ///
    /// # Errors
    /// A variable has no usable value, or one that is needed is not set.
    pub fn discover(system: bool, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, PathsError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = |name: &'static str| match set(name) {
            Some(path) if path.is_relative() => Err(PathsError::Relative { variable: name, path }),
            path => Ok(path),
        };
        // The XDG base directory specification says that relative paths in its variables are ignored.
        let xdg = |name: &str, below_home: &str| {
            set(name)
                .filter(|path| path.is_absolute())
                .or_else(|| Some(set("HOME").filter(|path| path.is_absolute())?.join(below_home)))
                .map(|path| path.join("belljar"))
        };

        let moved = named("BELLJAR_HOME")?;
        let home = match &moved {
            Some(home) => home.clone(),
            None if system => PathBuf::from("/var/lib/belljar"),
            None => xdg("XDG_STATE_HOME", ".local/state").ok_or(PathsError::NoHome)?,
        };
        let named_socket = named("BELLJAR_SOCKET")?;
        let socket_is_named = named_socket.is_some() || moved.is_some();
        let socket = match named_socket {
            Some(socket) => socket,
            None if moved.is_some() => home.join("belljar.sock"),
            None if system => PathBuf::from(SYSTEM_SOCKET),
            None => match set("XDG_RUNTIME_DIR").filter(|path| path.is_absolute()) {
                Some(runtime) => runtime.join("belljar/belljar.sock"),
                None => home.join("run/belljar.sock"),
            },
        };
        if socket.as_os_str().len() > SOCKET_PATH_BYTES {
            return Err(PathsError::SocketPathTooLong { path: socket });
        }
        let named_config = set("BELLJAR_CONFIG");
        let config_is_named = named_config.is_some();
        let config = match named_config {
            Some(config) => config,
            None if system => PathBuf::from("/etc/belljar/config.toml"),
            None => xdg("XDG_CONFIG_HOME", ".config").unwrap_or_else(|| home.clone()).join("config.toml"),
        };
        Ok(Self { home, socket, config, config_is_named, socket_is_named, system })
    }

    /// Replaces the socket, for a command that talks to another daemon than its user's own.
    #[must_use]
    pub fn with_socket(self, socket: PathBuf) -> Self {
        Self { socket, ..self }
    }

    /// Whether the environment says where the daemon listens, by `BELLJAR_SOCKET` or `BELLJAR_HOME`.
    pub fn socket_is_named(&self) -> bool {
        self.socket_is_named
    }

    /// Replaces the configuration file, by the one that a daemon was told to read.
    #[must_use]
    pub fn with_config(self, config: PathBuf) -> Self {
        Self { config, ..self }
    }

    /// Replaces the home; the socket stays where clients look for it.
    #[must_use]
    pub fn with_home(self, home: PathBuf) -> Self {
        Self { home, ..self }
    }

    /// [`Paths::discover`] for this process.
    ///
    /// # Errors
    /// The same as for [`Paths::discover`].
    pub fn of_this_process() -> Result<Self, PathsError> {
        Self::discover(is_system(), &|name| std::env::var_os(name))
    }

    /// Whether the daemon serves the whole machine.
    pub fn system(&self) -> bool {
        self.system
    }

    /// The folder of all state.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Where the daemon listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The configuration file to read; it may not exist.
    pub fn config_file(&self) -> &Path {
        &self.config
    }

    /// Whether `BELLJAR_CONFIG` named the file, so that it has to exist.
    pub fn config_is_named(&self) -> bool {
        self.config_is_named
    }

    pub fn pid_file(&self) -> PathBuf {
        self.home.join("daemon.pid")
    }

    pub fn lock_file(&self) -> PathBuf {
        self.home.join("daemon.lock")
    }

    /// The file with the id that marks the containers of this home.
    pub fn instance_file(&self) -> PathBuf {
        self.home.join("instance")
    }

    /// One folder per sandbox. The name is short because the path of a socket is limited.
    pub fn sandboxes_dir(&self) -> PathBuf {
        self.home.join("s")
    }

    /// One folder per managed workspace.
    pub fn workspaces_dir(&self) -> PathBuf {
        self.home.join("w")
    }

    /// One folder per user, with one folder per volume.
    pub fn volumes_dir(&self) -> PathBuf {
        self.home.join("v")
    }

    /// Root file systems for jails, one folder each.
    pub fn roots_dir(&self) -> PathBuf {
        self.home.join("rootfs")
    }

    /// The files of the Python kernel, as sandboxes see them.
    pub fn kernel_dir(&self) -> PathBuf {
        self.home.join("kernel")
    }

    /// Installed packages, one folder per user.
    pub fn packages_dir(&self) -> PathBuf {
        self.home.join("packages")
    }

    pub fn spill_dir(&self) -> PathBuf {
        self.home.join("spill")
    }

    /// Inputs and artifacts of jobs.
    pub fn jobs_dir(&self) -> PathBuf {
        self.home.join("jobs")
    }

    pub fn logs_dir(&self) -> PathBuf {
        self.home.join("logs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discover(system: bool, env: &[(&str, &str)]) -> Result<Paths, PathsError> {
        Paths::discover(system, &|name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    fn places(system: bool, env: &[(&str, &str)]) -> [String; 3] {
        let paths = discover(system, env).unwrap();
        [paths.home(), paths.socket(), paths.config_file()].map(|path| path.display().to_string())
    }

    #[test]
    fn a_machine_and_a_user_have_their_own_places() {
        assert_eq!(
            places(true, &[("HOME", "/root")]),
            ["/var/lib/belljar", "/run/belljar/belljar.sock", "/etc/belljar/config.toml"]
        );
        assert_eq!(
            places(false, &[("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "/run/user/7")]),
            [
                "/home/u/.local/state/belljar",
                "/run/user/7/belljar/belljar.sock",
                "/home/u/.config/belljar/config.toml"
            ]
        );
        assert_eq!(
            places(false, &[("HOME", "/home/u"), ("XDG_STATE_HOME", "/x"), ("XDG_CONFIG_HOME", "relative")]),
            ["/x/belljar", "/x/belljar/run/belljar.sock", "/home/u/.config/belljar/config.toml"]
        );
    }

    #[test]
    fn a_moved_home_takes_the_socket_along_unless_that_is_named() {
        assert_eq!(places(true, &[("BELLJAR_HOME", "/b")])[..2], ["/b", "/b/belljar.sock"]);
        assert_eq!(
            places(false, &[("BELLJAR_HOME", "/b"), ("BELLJAR_SOCKET", "/s"), ("BELLJAR_CONFIG", "c.toml")]),
            ["/b", "/s", "c.toml"]
        );
    }

    #[test]
    fn unusable_places_are_refused() {
        assert_eq!(discover(false, &[]), Err(PathsError::NoHome));
        assert_eq!(discover(false, &[("HOME", "")]), Err(PathsError::NoHome));
        let error = discover(true, &[("BELLJAR_HOME", "here")]).unwrap_err().to_string();
        assert_eq!(error, "`BELLJAR_HOME` has to be an absolute path: here");
        let long = format!("/{}", "x".repeat(107));
        assert!(matches!(
            discover(true, &[("BELLJAR_SOCKET", &long)]),
            Err(PathsError::SocketPathTooLong { .. })
        ));
    }
}

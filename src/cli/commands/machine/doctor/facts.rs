//! What the doctor knows about a host. Everything here was measured or reported; nothing is judged.

use std::path::PathBuf;

use crate::cli::client::machine_daemon::ClosedDaemon;
use crate::config::{ConfigError, Settings};
use crate::protocol::api::{Health, Version};

/// The bits of a mode that say who may do what, and the one that lets all users write.
pub const PERMISSIONS: u32 = 0o7777;
pub const OTHERS_WRITE: u32 = 0o002;

pub struct Facts {
    /// The doctor runs as root, and so would a daemon that it starts.
    pub root: bool,
    pub kernel: Option<String>,
    pub cgroups: Cgroups,
    pub namespaces: Namespaces,
    /// The kernel can filter system calls.
    pub seccomp: bool,
    /// The output of `bwrap --version`.
    pub bubblewrap: Option<String>,
    /// Why bubblewrap could not build a small jail; none if it could, or is not installed.
    pub jail_trouble: Option<String>,
    /// The sysctls of the kernel that exist, with their values.
    pub sysctls: Vec<(&'static str, u64)>,
    /// The kernel has, or would load, the module for authenticated encryption over sockets (`algif_aead`).
    pub crypto_sockets: bool,
    pub processes: ProcessesOfOthers,
    pub engine: Result<Engine, EngineTrouble>,
    pub config: Config,
    /// Allowed images, with their size if the engine has them. Empty if the engine could not be asked.
    pub images: Vec<(String, Option<u64>)>,
    pub home: Home,
    pub socket: SocketFile,
    /// None if no daemon answers.
    pub daemon: Option<Daemon>,
    /// The daemon of the whole machine, if this user may not use it.
    pub closed: Option<ClosedDaemon>,
}

impl Facts {
    /// The engine that the daemon in use has.
    pub fn engine_of_daemon(&self) -> Option<&str> {
        self.daemon.as_ref()?.version.engine.as_deref()
    }
}

pub struct Cgroups {
    /// None if there are no control groups.
    pub version: Option<u8>,
    pub controllers: Vec<String>,
    /// This user may create control groups for jails, or have them created.
    pub for_jails: bool,
}

/// Whether `/proc` keeps users from reading what it has of processes of others.
#[derive(Clone, Copy)]
pub enum ProcessesOfOthers {
    Hidden,
    Shown,
}

/// Settings for user namespaces of unprivileged users. None where this kernel has no such setting.
#[derive(Default)]
pub struct Namespaces {
    pub max: Option<u64>,
    /// Debian's setting: 0 is off.
    pub clone: Option<u64>,
    /// Ubuntu's setting: 1 allows them only to programs with a security profile.
    pub apparmor_restricts: Option<u64>,
}

#[derive(Clone)]
pub struct Engine {
    pub version: String,
    pub api: String,
    pub podman: bool,
    pub runc: Option<String>,
    pub default_runtime: String,
    pub runtimes: Vec<String>,
    /// Security options as the engine spells them: `name=seccomp,profile=default`.
    pub security: Vec<String>,
    /// Limits that the engine cannot set.
    pub no_limits: Vec<&'static str>,
    /// Mode of the engine's socket.
    pub socket_mode: Option<u32>,
    pub socket: PathBuf,
}

pub enum EngineTrouble {
    /// `DOCKER_HOST` is no unix socket.
    Elsewhere(String),
    Absent(PathBuf),
    Denied(PathBuf),
    Silent(String),
}

pub struct Config {
    pub file: PathBuf,
    pub there: bool,
    /// Boxed, because the settings are large.
    pub settings: Result<Box<Settings>, ConfigError>,
}

pub struct Home {
    pub path: PathBuf,
    /// None if the folder does not exist yet.
    pub mode: Option<u32>,
    /// This user may write to the folder, or to the one in which it will be created.
    pub writable: bool,
    /// Bytes and files that this user may still use; none if that cannot be determined.
    pub free_space: Option<FreeSpace>,
    /// The kernel enforces the size limit of workspaces.
    pub project_quotas: bool,
}

#[derive(Clone, Copy)]
pub struct FreeSpace {
    pub bytes: u64,
    /// None if the file system creates as many as it needs.
    pub files: Option<u64>,
}

pub struct SocketFile {
    pub path: PathBuf,
    /// None if there is no file.
    pub found: Option<SocketFacts>,
    /// Other users may replace the socket by another one.
    pub open_folder: bool,
}

pub struct SocketFacts {
    pub is_socket: bool,
    pub mode: u32,
    pub owner: u32,
    /// The owner is this user or root.
    pub ours: bool,
}

pub struct Daemon {
    pub version: Version,
    pub health: Health,
}

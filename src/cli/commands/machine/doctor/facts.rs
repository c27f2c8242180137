//! What the doctor knows of a machine. Everything here was measured or told; nothing is judged.

use std::path::PathBuf;

use crate::config::{ConfigError, Settings};
use crate::protocol::api::{Health, Version};

pub struct Facts {
    /// The doctor is root, and so would be the daemon.
    pub root: bool,
    pub kernel: Option<String>,
    pub cgroups: Cgroups,
    pub namespaces: Namespaces,
    /// The kernel can filter system calls.
    pub seccomp: bool,
    /// What `bwrap --version` says.
    pub bubblewrap: Option<String>,
    /// Why it could not build a small jail when it was tried; none if it could, or is not there.
    pub jail_trouble: Option<String>,
    /// Switches of the kernel that are there, with their values.
    pub sysctls: Vec<(&'static str, u64)>,
    pub engine: Result<Engine, EngineTrouble>,
    pub config: Config,
    /// Allowed images, with their size where the engine has them. Empty if it could not be asked.
    pub images: Vec<(String, Option<u64>)>,
    pub home: Home,
    pub socket: SocketFile,
    /// None if none answers.
    pub daemon: Option<Daemon>,
}

pub struct Cgroups {
    /// None if there are none.
    pub version: Option<u8>,
    pub controllers: Vec<String>,
    /// We may make some for jails, or have them made.
    pub for_jails: bool,
}

/// Of users without rights. None where this kernel has no such switch.
#[derive(Default)]
pub struct Namespaces {
    pub max: Option<u64>,
    /// Debian's switch: 0 is off.
    pub clone: Option<u64>,
    /// Ubuntu's switch: 1 allows them only to programs with a profile.
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
    /// As the engine spells them: `name=seccomp,profile=default`.
    pub security: Vec<String>,
    /// Limits that it cannot set.
    pub no_limits: Vec<&'static str>,
    /// Mode of its socket.
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
    /// Boxed, because they are large.
    pub settings: Result<Box<Settings>, ConfigError>,
}

pub struct Home {
    pub path: PathBuf,
    /// None if it is yet to be made.
    pub mode: Option<u32>,
    /// We may write to it, or to the folder in which it will be made.
    pub writable: bool,
    /// Bytes and files that are left to us; none if nobody knows.
    pub free: Option<Free>,
    /// The kernel holds workspaces to their size.
    pub project_quotas: bool,
}

#[derive(Clone, Copy)]
pub struct Free {
    pub bytes: u64,
    /// None if the file system makes as many as it needs.
    pub files: Option<u64>,
}

pub struct SocketFile {
    pub path: PathBuf,
    /// None if nothing is there.
    pub found: Option<Found>,
    /// Others may put another socket into its place.
    pub open_folder: bool,
}

pub struct Found {
    pub is_socket: bool,
    pub mode: u32,
    pub owner: u32,
    /// The owner is us or root.
    pub ours: bool,
}

pub struct Daemon {
    pub version: Version,
    pub health: Health,
}

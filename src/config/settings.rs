//! The settings, validated. Whoever holds a [`Settings`] need not check any of it again.

use std::time::Duration;

use super::agent::{Agent, CommandTool, Model, Named, Template};
use super::quota::Quota;
use crate::protocol::receipt::{Backend, Isolation};
use crate::protocol::timeout::Timeouts;

/// Python with a kernel around it does not fit into less.
pub const MIN_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub sandbox: Sandbox,
    pub cells: Cells,
    pub sessions: Sessions,
    pub jobs: Jobs,
    pub quota: Quota,
    pub admin: Admin,
    pub api: Api,
    pub daemon: Daemon,
    pub agent: Agent,
    /// By the name after `model.`.
    pub models: Named<Model>,
    pub command_tools: Named<CommandTool>,
    pub templates: Named<Template>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub backend: Backend,
    /// A sandbox that is less isolated is not made.
    pub minimum_isolation: Isolation,
    /// The default image; without it, the first of `images` that the engine has.
    pub image: Option<String>,
    /// All a session may ask for. Never empty, and holds `image`.
    pub images: Vec<String>,
    pub pull: Pull,
    /// Of the container engine; without it, the engine's own default.
    pub runtime: Option<String>,
    pub memory_bytes: u64,
    pub max_memory_bytes: u64,
    pub cpus: f64,
    pub max_cpus: f64,
    pub pids: u64,
    pub open_files: u64,
    pub tmp_bytes: u64,
    pub tmp_inodes: u64,
    pub shm_bytes: u64,
    pub workspace_bytes: u64,
    /// Kept free on the disk of the daemon's home.
    pub disk_reserve_bytes: u64,
    pub life: Duration,
    pub orphan_life: Duration,
    /// Checkpoints of a session's state; 0 switches them off.
    pub checkpoints: u64,
    /// Memory that they may hold on top of the session's own.
    pub checkpoint_bytes: u64,
    /// User ids for sandboxes of a daemon that runs as root.
    pub uid_first: u32,
    pub uid_count: u32,
}

impl Sandbox {
    /// Without an engine nothing can serve.
    #[must_use]
    pub fn needs_engine(&self) -> bool {
        self.backend == Backend::Docker || self.minimum_isolation > Isolation::Jail
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    Never,
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    pub timeout: Duration,
    pub max_timeout: Duration,
    pub queue: usize,
    /// Bytes of each stream in a result: from its start and from its end.
    pub output_head: u64,
    pub output_tail: u64,
    /// Bytes of a cell's output on disk.
    pub spill: u64,
}

impl Cells {
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        Timeouts { default: self.timeout, most: self.max_timeout }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    pub idle: Duration,
    /// Modules that a session begins with that names none itself; they can be parsed.
    pub preload: Vec<String>,
}

/// Who sees and may act on everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Its members, beside root.
    pub group: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jobs {
    /// Jobs that run at once.
    pub slots: usize,
    pub timeout: Duration,
    /// What is kept of a job after its end, and for how long.
    pub keep: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Bytes of a request's body; files apart.
    pub body: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    pub log_level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// As the log's filter spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

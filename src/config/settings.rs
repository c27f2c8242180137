//! The validated settings. Code that gets a [`Settings`] need not check any of them again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::agent::{Agent, CommandTool, Model, Named, Template};
use super::quota::Quota;
use crate::packages::requirement::{NameRules, Requirement, parse_all};
use crate::protocol::api::Checkpointing;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, Isolation};
use crate::protocol::timeout::Timeouts;
use crate::protocol::word_enums::words;
use crate::security_controls;

/// The least memory in which Python and the kernel run.
pub const MIN_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub sandbox: Sandbox,
    pub cells: Cells,
    pub sessions: Sessions,
    pub pool: Pool,
    pub snapshots: Snapshots,
    pub jobs: Jobs,
    pub packages: Packages,
    pub quota: Quota,
    pub admin: Admin,
    pub api: Api,
    pub daemon: Daemon,
    pub agent: Agent,
    /// The models, by the name after `model.`.
    pub models: Named<Model>,
    pub command_tools: Named<CommandTool>,
    pub templates: Named<Template>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub backend: Backend,
    /// The daemon does not create sandboxes that are less isolated than this.
    pub minimum_isolation: Isolation,
    /// The default image; if not set, the first of `images` that the engine has.
    pub image: Option<String>,
    /// All images that a session may request. Never empty, and contains `image`.
    pub images: Vec<String>,
    pub pull: Pull,
    /// The runtime of the container engine; if not set, the engine's own default.
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
    /// Bytes that must stay free on the disk of the daemon's home.
    pub disk_reserve_bytes: u64,
    /// Bytes of the machine's memory that must be available for a new sandbox.
    pub memory_reserve_bytes: u64,
    pub max_age: Duration,
    pub orphan_life: Duration,
    /// The number of checkpoints of a session's state; 0 switches them off.
    pub checkpoints: u64,
    pub checkpointing: Checkpointing,
    /// Memory that checkpoints may hold in addition to the session's own.
    pub checkpoint_bytes: u64,
    /// The range of user ids for sandboxes of a daemon that runs as root.
    pub uid_first: u32,
    pub uid_count: u32,
}

impl Sandbox {
    /// Whether no sandbox can be created without a container engine.
    pub fn needs_engine(&self) -> bool {
        self.backend == Backend::Docker || self.minimum_isolation > Isolation::Jail
    }
}

words! {
    pub enum Pull {
        Never = "never",
        Missing = "missing",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    pub timeout: Duration,
    pub max_timeout: Duration,
    pub queue: usize,
    /// Bytes of each stream that a result keeps: from the start and from the end of the stream.
    pub output_head: u64,
    pub output_tail: u64,
    /// The most bytes of a cell's output on disk.
    pub spill: u64,
}

impl Cells {
    pub fn timeouts(&self) -> Timeouts {
        Timeouts { default: self.timeout, most: self.max_timeout }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    pub idle: Duration,
    /// Modules that are imported into a session that names none itself; the entries are known to parse.
    pub preload: Vec<String>,
}

/// The snapshots of sessions' variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshots {
    pub enabled: bool,
    /// How long the variables of a session have not changed when they are saved.
    pub at_rest: Duration,
    /// The most bytes of one snapshot, before compression.
    pub max_bytes: u64,
    /// The most named snapshots of one session.
    pub names: usize,
    /// Whether a session whose sandbox is gone wakes from its newest snapshot by itself.
    pub wake: bool,
}

/// The sandboxes that are started before a session asks for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The most that wait of one class; 0 switches the pool off.
    pub size: usize,
    /// Memory that all waiting sandboxes may take together, as measured.
    pub memory_bytes: u64,
    pub preload: PoolPreload,
}

/// The modules that waiting sandboxes have imported, by the names of their images, or by `OTHER_IMAGES` for those that
/// are not named; the entries are known to parse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPreload(pub BTreeMap<String, Vec<String>>);

impl PoolPreload {
    /// Stands for the images that have no modules of their own.
    pub const OTHER_IMAGES: &str = "*";

    /// The modules for an image. `is_its_name` says which of the configured names is its.
    pub fn of(&self, is_its_name: impl Fn(&str) -> bool) -> &[String] {
        let own = self.0.iter().find(|(name, _)| is_its_name(name)).map(|(_, modules)| modules);
        own.or_else(|| self.0.get(Self::OTHER_IMAGES)).map_or(&[], Vec::as_slice)
    }
}

/// The administrators, who may see and act on everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// The group whose members are administrators, in addition to root.
    pub group: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jobs {
    /// The most jobs that run at once.
    pub slots: usize,
    pub timeout: Duration,
    /// How long the result of a job is kept after its end.
    pub keep: Duration,
}

words! {
    pub enum InstallPolicy {
        Auto = "auto",
        Ask = "ask",
        Never = "never",
    }
}

/// Packages that are installed into sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packages {
    /// The package index; if not set, the one that the host's own tools use.
    pub index: Option<String>,
    /// Hosts beside that of the index that installers may reach.
    pub hosts: Vec<String>,
    pub names: NameRules,
    /// What holds for single users, by name or uid, and for members of groups, in addition.
    pub names_by_user: Named<NameRules>,
    pub names_by_group: Named<NameRules>,
    /// Whether owners of sessions, and their own code, may install packages.
    pub by_owner: InstallPolicy,
    /// Whether models, and code since one of theirs ran, may install packages.
    pub by_models: InstallPolicy,
    /// Whether packages may be built from their sources, where a request wants it.
    pub sources: bool,
    /// Whether what one user's installers made is given to other users.
    pub shared: bool,
    /// What one installation may take.
    pub download_bytes: u64,
    pub unpacked_bytes: u64,
    pub files: u64,
    pub timeout: Duration,
    /// What the cache of one user may take.
    pub cache_bytes: u64,
}

impl Packages {
    /// Whether anything depends on who the user is.
    pub fn know_users(&self) -> bool {
        !self.names_by_user.is_empty() || !self.names_by_group.is_empty()
    }

    /// Refuses whatever an owner wants installed, by a request or by code, if that is the rule.
    pub fn check_owner_may_install(&self) -> Result<(), Problem> {
        if self.by_owner == InstallPolicy::Never && security_controls::holds("owners_install_by_policy") {
            let what = "no packages are installed here: `packages.by_owner` is `never`";
            return Err(Problem::new(Code::Forbidden, what)
                .hint("`belljar image show` lists what the image has; the administrator can allow more"));
        }
        Ok(())
    }

    /// What an owner wants installed, by a request or by code; a person was asked for that of code, if that is the rule.
    pub fn wanted_by_owner(&self, packages: &[String]) -> Result<Vec<Requirement>, Problem> {
        self.check_owner_may_install()?;
        parse_all(packages, &self.names)
    }

    /// The lists of a user; all of them have to permit a package.
    pub fn rules_of(&self, user: Principal, name: Option<&str>, groups: &[String]) -> Vec<NameRules> {
        let number = user.to_string();
        let own =
            name.and_then(|name| self.names_by_user.get(name)).or_else(|| self.names_by_user.get(&number));
        let of_groups = groups.iter().filter_map(|group| self.names_by_group.get(group));
        let of_user =
            own.into_iter().chain(of_groups).filter(|_| security_controls::holds("package_lists_of_users"));
        std::iter::once(&self.names).chain(of_user).cloned().collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// The most bytes of a request's body, except for files.
    pub body: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    pub log_level: LogLevel,
}

words! {
    pub enum LogLevel {
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
}

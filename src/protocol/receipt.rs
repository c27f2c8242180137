//! The isolation a sandbox really has: read back from the running container, never copied from
//! what was asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::frames::Probe;
use super::ids::SandboxId;
use super::word_enums::words;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    pub sandbox: SandboxId,
    pub backend: Backend,
    /// The engine's own id of the container; for a jail, its first process: pid, start and boot.
    pub container: String,
    pub runtime: String,
    pub image: ImageFact,
    pub python: String,
    /// The first process of the sandbox as the host's kernel sees it.
    pub process: ProcessFact,
    pub network: String,
    pub read_only_root: bool,
    /// sha256 of the seccomp profile that the engine says it applied.
    pub seccomp_profile: String,
    pub limits: LimitFact,
    pub mounts: Vec<MountFact>,
    /// What the kernel in the sandbox tried and found refused.
    pub probe: Probe,
    /// Namespaces that are not the daemon's own, as far as they were read.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Why `auto` chose this backend, if it could not use the first one.
    #[serde(default)]
    pub chosen: String,
}

words! {
    #[derive(Default)]
    pub enum Backend {
        /// The first backend that works on this host.
        #[default]
        Auto = "auto",
        /// A container of an engine.
        Docker = "docker",
        /// A jail that bubblewrap builds: namespaces, the same seccomp filter, limits.
        Bubblewrap = "bubblewrap",
        /// A process like any other, for code that is trusted. Never chosen by `auto`.
        Process = "process",
    }
}

words! {
    /// How strongly a guest is isolated from the host; stronger isolation compares as greater.
    #[derive(Default, PartialOrd, Ord)]
    pub enum Isolation {
        #[default]
        None = "none",
        Jail = "jail",
        Container = "container",
    }
}

impl Backend {
    /// The isolation that the backend gives; for `auto`, the weakest that it may choose.
    pub fn isolation(self) -> Isolation {
        match self {
            Self::Docker => Isolation::Container,
            Self::Auto | Self::Bubblewrap => Isolation::Jail,
            Self::Process => Isolation::None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFact {
    /// The name it was found by.
    pub reference: String,
    /// The id that the container was really made from.
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFact {
    /// Process id on the host.
    pub pid: i32,
    /// User id on the host.
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; none in the receipt of a sandbox that an older version made.
    #[serde(default)]
    pub groups: Option<Vec<u32>>,
    /// Effective and bounding capabilities, as hex.
    pub cap_eff: String,
    pub cap_bnd: String,
    pub no_new_privs: bool,
    /// Seccomp mode: 2 means that a filter is active.
    pub seccomp: u8,
    /// Confinement by the host's security module, if it has one.
    pub apparmor: Option<String>,
}

/// Limits as the cgroup and the process really have them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitFact {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
    pub open_files: u64,
    pub file_bytes: u64,
    pub core_bytes: u64,
    /// 1 or 2; 0 for a sandbox without a control group of its own.
    pub cgroup_version: u8,
    #[serde(default)]
    pub held_by: HeldBy,
}

/// What enforces each of these limits. The other limits are always limits of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldBy {
    pub memory: Holder,
    pub cpus: Holder,
    pub pids: Holder,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    #[default]
    Cgroup,
    Rlimit,
    /// The guardian measures the use and ends processes that take too much.
    Guardian,
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountFact {
    pub target: String,
    /// `bind` or `tmpfs`.
    pub kind: String,
    pub writable: bool,
}

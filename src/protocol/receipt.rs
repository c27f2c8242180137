//! The isolation a sandbox really has: read back from the running container, never copied from
//! what was asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::frames::Probe;
use super::ids::SandboxId;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    pub sandbox: SandboxId,
    pub backend: Backend,
    /// The engine's own id of the container.
    pub container: String,
    pub runtime: String,
    pub image: ImageFact,
    pub python: String,
    /// As the kernel of the host sees the first process of the sandbox.
    pub process: ProcessFact,
    pub network: String,
    pub read_only_root: bool,
    /// sha256 of the seccomp profile that the engine says it applied.
    pub seccomp_profile: String,
    pub limits: LimitFact,
    pub mounts: Vec<MountFact>,
    /// What the kernel in the sandbox tried and found refused.
    pub probe: Probe,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The first that works on this machine.
    #[default]
    Auto,
    Docker,
}

impl Backend {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFact {
    /// The name it was found by.
    pub reference: String,
    /// The id that the container was really made from.
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFact {
    /// Of the host.
    pub pid: i32,
    /// User id of the host.
    pub uid: u32,
    pub gid: u32,
    /// Effective and bounding capabilities, as hex.
    pub cap_eff: String,
    pub cap_bnd: String,
    pub no_new_privs: bool,
    /// 2 is a filter.
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
    /// 1 or 2.
    pub cgroup_version: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountFact {
    pub target: String,
    /// `bind` or `tmpfs`.
    pub kind: String,
    pub writable: bool,
}

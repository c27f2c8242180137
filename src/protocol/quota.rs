//! Quotas: which resources are bounded for each user, and how much of each is used by what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

use super::word_enums::words;

words! {
    /// What is counted. The names are also those of the settings in `[quota]`.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Kind {
        Sessions = "sessions",
        /// Cells that run at the same time.
        Cells = "cells",
        /// Bytes of memory of all sandboxes.
        Memory = "memory",
        /// CPUs of all sandboxes, in thousandths of a CPU.
        Cpus = "cpus",
        /// Processes and threads that all sandboxes may have.
        Processes = "processes",
        /// Bytes of managed workspaces, volumes, installed packages and snapshots.
        Workspace = "workspace",
        /// Stored bytes of events and outputs.
        Journal = "journal",
        /// Tokens of models in one day (UTC).
        Tokens = "tokens",
        /// Jobs that wait or run.
        Jobs = "jobs",
        /// Bytes that requests, frames, events and the like take in the daemon's own memory.
        DaemonMemory = "daemon_memory",
    }
}

impl Kind {
    pub fn unit(self) -> Unit {
        match self {
            Self::Sessions | Self::Cells | Self::Processes | Self::Tokens | Self::Jobs => Unit::Count,
            Self::Memory | Self::Workspace | Self::Journal | Self::DaemonMemory => Unit::Bytes,
            Self::Cpus => Unit::Millicpus,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sessions => "sessions",
            Self::Cells => "running cells",
            Self::Memory => "memory with checkpoints",
            Self::Cpus => "CPUs",
            Self::Processes => "processes of sandboxes",
            Self::Workspace => "disk of workspaces, volumes, packages and snapshots",
            Self::Journal => "stored journal",
            Self::Tokens => "model tokens per day",
            Self::Jobs => "jobs",
            Self::DaemonMemory => "memory of the daemon",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Count,
    Bytes,
    Millicpus,
}

/// How much of a quota one session, job or ask uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    pub by: String,
    pub amount: u64,
}

/// One quota of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaUsage {
    pub kind: Kind,
    pub unit: Unit,
    pub used: u64,
    /// None: there is no bound.
    pub limit: Option<u64>,
    /// The few largest shares, largest first; `used` includes the others, too.
    pub by: Vec<Share>,
}

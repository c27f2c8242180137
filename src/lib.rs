//! Belljar runs model-written Python in hardened containers and jails.
//!
//! Layers, from the top; none uses one above it, and which ones below it a layer uses is listed in `tests/it/layers.rs`.
//! `cli` reaches the daemon over HTTP only:
//! `cli`, `daemon` → `control` → `actors` → `session` → `agent` → `llm`, `tools`, `sandbox`, `bridge`, `store` → `quota` → `memory` → `config` → `packages`, `schema` → `protocol`.
//! Here `packages` is `src/packages`, the pure rules for what may be installed; `src/sandbox/packages` installs it, and is a
//! part of `sandbox`.
//! Beside them are `security_controls` (which security controls hold, for the build that proves each of them), `fair_queue`
//! (users take turns), `offload` (long work leaves the threads that all share), `panics` (which are reported to the
//! owner, counted, and provoked by tests), `processes` (tells processes of the host apart although their pids are used
//! again, and finds their descendants) and `project_quotas` (the kernel's interface for them).

pub mod actors;
pub mod agent;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod fair_queue;
#[cfg(test)]
mod generated_files;
pub mod llm;
pub mod memory;
pub mod offload;
pub mod packages;
pub mod panics;
pub mod processes;
pub mod project_quotas;
pub mod protocol;
pub mod quota;
pub mod sandbox;
pub mod schema;
pub mod security_controls;
mod session;
pub mod store;
pub mod tools;

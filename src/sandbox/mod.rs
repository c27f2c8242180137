//! Sandboxes: what holds the Python processes of one session.
//!
//! `spec` is the one place where hardening is written; `attest` compares a running container with
//! it. Nothing here knows of models, conversations or HTTP, and `docker` types stay in `spec`,
//! `engine`, `images` and `launch`.

pub mod artifacts;
pub mod attest;
pub mod cgroup;
pub mod engine;
pub mod facts;
pub mod files;
pub mod images;
pub mod kernel_files;
pub mod launch;
pub mod spec;
pub mod usage;
pub mod workspace;

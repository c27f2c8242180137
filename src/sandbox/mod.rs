//! Sandboxes: what holds the Python processes of one session.
//!
//! `spec` is the one place where hardening is written, with `jail::arguments` for jails; `attest`
//! compares what runs with it. `choice` picks the backend, `launch` starts it, and `held` is what
//! everybody else sees of it. Nothing here knows of models, conversations or HTTP, and the engine's
//! types stay in `spec`, `attest`, `engine`, `images` and `docker`.

pub mod archive;
pub mod artifacts;
pub mod attest;
pub mod cgroup;
mod checks;
pub mod choice;
pub mod disk;
mod docker;
pub mod engine;
pub mod facts;
pub mod files;
pub mod gather;
mod groups;
mod hardware;
mod held;
pub mod images;
pub mod jail;
pub mod kernel_files;
mod kernels;
pub mod launch;
mod local;
mod nameless;
pub mod owner;
mod profile;
mod project;
mod removal;
pub mod room;
mod set_id;
pub mod spec;
pub mod usage;
mod walk;
pub mod workspace;

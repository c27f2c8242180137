//! Sandboxes, which hold the Python processes of sessions.
//!
//! `spec` describes every sandbox; a `backend` makes one from it, and `attest` compares the running sandbox with it.
//! `choice` picks the backend, `launch` starts sandboxes, and `running` is the handle that other modules use.
//! `pool` says which are started before they are asked for. `workspace` is the folder of a session, `etc` the names that a guest sees, `volumes` the folders that outlive sessions, `images` the names of images, `built_images` those that users build, `kernel` the files that
//! run in a sandbox: the guardian, which is its first process, and Python's side. Nothing here depends on models,
//! conversations or HTTP.

pub mod attest;
pub mod backend;
pub mod built_images;
pub mod choice;
mod claims;
mod errand_specs;
mod etc;
mod folder;
mod health_checks;
mod host_memory;
pub mod image_build;
mod image_list;
pub mod images;
pub mod kernel;
pub mod launch;
mod left_sandboxes;
pub mod packages;
pub mod pool;
mod running;
pub mod slots;
pub mod spec;
pub mod subordinate;
pub mod uid_accounts;
pub mod user_database;
pub mod volumes;
pub mod workspace;

//! Packages for sessions: a throw-away sandbox downloads and unpacks them, the daemon copies what it made into a cache,
//! and the cached folder appears in the running sandbox of a session.
//!
//! `index` says where packages come from, `relay` is the installer's only way there, `installer` runs it in a `draft`,
//! where `task` has its folders, `tree` copies what a guest wrote, `cache` keeps it, `shown` is the folder that a sandbox
//! sees, and `charges` says who pays.

pub mod cache;
mod charges;
mod draft;
mod index;
mod installer;
mod relay;
pub mod shown;
mod task;
mod tree;

pub use installer::{Installed, WantedPackages};

//! Packages for sessions: a throw-away sandbox downloads and unpacks them, the daemon copies what it made into a cache,
//! and the cached folder appears in the running sandbox of a session.
//!
//! `index` says where packages come from, `relay` is the installer's only way there, `installer` runs it, `tree` copies
//! what a guest wrote, `cache` keeps it, and `shown` is the folder that a sandbox sees.

pub mod cache;
mod index;
mod installer;
mod relay;
pub mod shown;
mod tree;

pub use installer::{Installed, WantedPackages};

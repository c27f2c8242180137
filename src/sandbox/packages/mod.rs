//! Packages for sessions: a throw-away sandbox downloads and unpacks them, the daemon copies what it made into a cache,
//! and the cached folder appears in the running sandbox of a session.
//!
//! `index` says where packages come from (`host_settings` what the host's own tools use) and `file_hosts` where else
//! their files are, `relay` is the installer's only way there, `installer` runs it for what is `wanted`, in a `draft`,
//! where `task` has its folders, within the `install_budget` of its user, under a `watch`; `tree` copies what a guest
//! wrote, `record` says what a package's files have to be, `cache` keeps them, `sandbox_packages` is the folder that a
//! sandbox sees, `image_files` what an image gets; `charges` says who uses and pays for what (`small_charges` for
//! answers and `uv`), `session_use` is what a session has of it, `make_room` removes what is not used: `within_quotas`
//! when room is needed, `kept_sets` when a user asks for it.

pub mod cache;
pub mod charges;
mod draft;
mod file_hosts;
mod host_settings;
mod image_files;
mod index;
mod install_budget;
mod installer;
mod kept_sets;
mod make_room;
mod record;
mod relay;
pub mod sandbox_packages;
mod session_use;
mod small_charges;
mod task;
mod tree;
mod wanted;
mod watch;
mod within_quotas;

pub use charges::CopyUse;

pub use session_use::SessionUse;
pub use wanted::{Installed, WantedPackages, check_backend};

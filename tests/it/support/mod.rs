//! Real things for tests: a daemon of its own in a folder of its own, the command line, raw HTTP
//! over the socket, the engine's own CLI.

mod commands;
mod daemon;
mod disk;
mod documented;
mod http;
pub mod invariants;
pub mod jails;
mod journal;
pub mod kernels;
mod leftovers;
mod matrix;
mod package_index;
mod pulse;
mod requests;
mod sandboxes;
mod script_server;
mod test_paths;
mod users;
mod waiting;

pub use commands::{Ran, binary, docker, in_own_home};
pub use daemon::Daemon;
pub use disk::SmallDisk;
pub use http::Response;
pub use journal::Journal;
pub use leftovers::{assert_nothing_left, beside};
pub use matrix::{engine, is_long_run, keeps_every_state, keeps_variables};
pub use package_index::PackageIndex;
pub use pulse::Pulse;
pub use script_server::ScriptServer;
pub use test_paths::{test_names, test_paths};
pub use users::{ROOT, User, connect_as, copy_lists, docker_group, flood_as, http_as};
pub use waiting::{SOON, eventually};

//! Sandboxes without an engine: a jail that bubblewrap builds, or, by name only, a plain process.
//!
//! Both are a process of the host with the same kernel and bridge as in a container. It is known by its
//! pid and its start, so that a daemon that was started anew finds it and never touches a stranger. It
//! outlives the daemon: what bubblewrap leaves outside only waits for it and writes down its end.
//!
//! What a container has and a jail has not: `/tmp` has no bound on inodes and files in it can be run; a
//! guest can read the name of its control group, which is its sandbox's; without such a group, CPU time
//! is not held at all.

mod arguments;
mod attest;
mod backend;
mod explain;
mod group;
mod limits;
mod process;
mod root;
mod scope;
mod seccomp;
mod start;
mod status;
mod walls;

pub use backend::Jails;
pub use walls::Walls;

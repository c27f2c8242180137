//! Sandboxes without an engine: a jail that bubblewrap builds, or, only if it is named explicitly, a plain process.
//!
//! Both are a process of the host with the same kernel and bridge as in a container. The process is identified by its
//! pid and its start time, so that a restarted daemon finds it and never touches another process. It outlives the
//! daemon: the bubblewrap process outside of the jail only waits for it and records its end.
//!
//! A jail is weaker than a container in these points: `/tmp` has no limit on inodes and files in it can be executed; a
//! guest can read the name of its control group, which is the name of its sandbox; without such a group, CPU time is
//! not limited at all.

mod arguments;
mod attest;
mod backend;
mod errand;
mod explain;
mod group;
mod isolation;
mod limits;
mod process;
mod root;
mod scope;
mod seccomp;
mod start;
mod status;

pub use backend::Jails;
pub use isolation::Isolation;

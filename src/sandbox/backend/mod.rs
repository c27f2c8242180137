//! Ways to hold a sandbox. Each is a folder that implements [`SandboxBackend`] and [`RunningSandbox`]; nothing outside
//! of it knows more of it than that.

mod contract;
pub mod docker;
pub mod jail;

pub use contract::{Progress, RunningSandbox, SandboxBackend, SandboxEnd};

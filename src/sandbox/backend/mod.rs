//! The backends that hold sandboxes. Each is a folder that implements [`SandboxBackend`] and [`RunningSandbox`]; code
//! outside of the folder uses nothing but these traits.

mod contract;
pub mod docker;
pub mod jail;

pub use contract::{Progress, RunningSandbox, SandboxBackend, SandboxEnd};

//! The backends that hold sandboxes. Each is a folder that implements [`SandboxBackend`] and [`RunningSandbox`]; code
//! outside of the folder uses nothing but these traits.

mod bridge_socket;
mod contract;
pub mod docker;
#[cfg(test)]
pub mod fake;
pub mod jail;

pub use contract::{
    ByteStream, ConnectError, IsLive, Progress, Reaped, RunningSandbox, SandboxBackend, SandboxEnd,
    StartError,
};

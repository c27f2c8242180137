//! The backends that hold sandboxes. Each is a folder that implements [`SandboxBackend`] and [`RunningSandbox`], through
//! which sandboxes are used. Two kinds of code outside of the folders name a backend itself: `launch.rs`, which makes and
//! holds all of them, and what is about the engine's images, which no other backend has: `image_build.rs`, lists and pulls.

mod bridge_socket;
mod contract;
mod data_socket;
pub mod docker;
#[cfg(test)]
pub mod fake;
pub mod jail;

pub use contract::{
    ByteStream, ConnectError, ErrandEnd, IsLive, Progress, Reaped, RunningSandbox, SandboxBackend,
    SandboxEnd, StartError,
};
pub use data_socket::DataListener;

//! The bridge to a kernel: a unix socket to listen on, a websocket over it on which the daemon is the client, and the
//! task that owns the connection. Any byte stream would do; nothing here depends on containers.

mod calls;
mod connection;
mod handshake;
mod listener;
mod meter;

pub use calls::{Calls, Refusal};
pub use connection::{Closed, Delivery, FrameGuard, Incoming, Link, SendError, Sink};
pub use handshake::{Hello, connect};
pub use listener::Listener;
pub use meter::Metered;

#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error("the bridge's socket cannot be made: {0}")]
    Socket(#[source] std::io::Error),
    #[error("the kernel did not connect within {} s", .0.as_secs())]
    NoKernel(std::time::Duration),
    #[error("within {} s nobody connected to the bridge but processes that are not pid 1 of the sandbox", .0.as_secs())]
    Strangers(std::time::Duration),
    #[error("the kernel does not speak the bridge's protocol: {0}")]
    Protocol(String),
}

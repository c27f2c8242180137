//! The bridge to a kernel: a websocket over any byte stream, on which the daemon is the client, and the task that owns
//! the connection. Where the byte stream comes from is a matter of the backend that holds the sandbox.

mod connection;
mod handshake;
mod meter;
mod open_calls;

pub use connection::{Closed, Delivery, FrameGuard, Incoming, Link, SendError, Sink};
pub use handshake::{Hello, connect};
pub use meter::Metered;
pub use open_calls::{OpenCalls, Refusal};

#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error("the kernel did not say hello within {} s", .0.as_secs())]
    NoHello(std::time::Duration),
    #[error("the kernel does not speak the bridge's protocol: {0}")]
    Protocol(String),
}

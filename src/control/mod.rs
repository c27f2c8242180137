//! The control API: HTTP over the unix socket. It knows who calls from the kernel, turns requests
//! into messages for the actors and answers back into HTTP, and knows nothing of containers.

mod body;
mod hang_ups;
mod idempotency;
pub mod identity;
pub mod openapi;
mod peer;
mod problems;
mod routes;
mod server;
mod sse;

pub use idempotency::InWork;
pub use peer::Peer;
pub use peer::Places;
pub use routes::App;
pub use server::serve;

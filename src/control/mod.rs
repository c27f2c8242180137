//! The control API: HTTP over the unix socket. It learns the caller's user id from the kernel, turns requests into
//! messages for the actors and their answers into HTTP, and has no knowledge of containers.

mod access;
mod app;
mod body;
mod caller;
mod idempotency;
pub mod identity;
mod key_accounts;
pub mod openapi;
mod peer;
mod problems;
mod refused_connections;
mod requests_in_progress;
mod routes;
mod server;
mod sse;
mod unread_bodies;

pub use app::App;
pub use key_accounts::KeyAccounts;
pub use peer::Peer;
pub use peer::UserSlots;
pub use requests_in_progress::RequestsInProgress;
pub use server::serve;

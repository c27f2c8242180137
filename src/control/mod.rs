//! The control API: HTTP over the unix socket. It knows who calls from the kernel, turns requests
//! into messages for the actors and answers back into HTTP, and knows nothing of containers.

pub mod accounts;
mod body;
mod caller;
mod hang_ups;
mod idempotency;
pub mod identity;
mod key_accounts;
pub mod openapi;
mod peer;
mod problems;
mod routes;
mod server;
mod sse;
pub mod subordinate;
mod unread;

pub use idempotency::InWork;
pub use key_accounts::KeyAccounts;
pub use peer::Peer;
pub use peer::Places;
pub use routes::App;
pub use server::serve;

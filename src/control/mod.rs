//! The control API: HTTP over the unix socket. It learns the caller's user id from Linux, turns requests into
//! messages for the actors and their answers into HTTP, and has no knowledge of containers.

mod access;
mod answer_charges;
mod app;
mod body;
mod caller;
mod config_in_use;
mod connected_user;
mod idempotency;
mod problems;
mod refused_connections;
mod request_slots;
mod requests_in_progress;
mod routes;
mod server;
mod sse;
mod unread_bodies;
pub mod user_lookup;

pub use answer_charges::AnswerCharges;
pub use app::App;
pub use config_in_use::ConfigInUse;
pub use request_slots::RequestSlots;
pub use requests_in_progress::RequestsInProgress;
pub use server::serve;

#[cfg(test)]
pub mod openapi;

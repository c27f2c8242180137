//! The supervisor: it owns the sessions, admits new ones within the quotas, and orders the shutdown.
//! A session that dies begins anew by itself (`session/generations.rs`).
//!
//! `actor` handles messages, `state` holds the actor's state. `admission` checks requests for sessions, `sessions` starts
//! the actors of new sessions and of those of an earlier daemon.

mod actor;
pub(in crate::actors) mod admission;
pub mod messages;
mod sessions;
mod state;

pub use actor::Supervisor;
pub use state::{RESTORES_AT_ONCE, SupervisorArgs};

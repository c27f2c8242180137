//! The asks of a session: which asks there are, which one is being worked on, and which decisions wait for a
//! person. `agent::AskMachine` decides what has to be done; this actor does it, journals every input before
//! acting on it, and after a restart feeds the machine the same inputs again.
//!
//! `actor` handles messages, `state` holds the actor's state. `client` is how the rest of the daemon reaches the actor.
//! `spec` turns a request into an ask, `templates` those that name one, `start` begins and recalls asks, `effects`
//! carries effects out, `approvals` asks people, `views` shows asks, `nesting` computes the bounds of inner asks,
//! `shared_budget` counts the tokens and steps that asks share, `port` is the tools' access to the session. `inner` runs
//! asks within, and `lending` those that may call functions of the cell that asks.

pub mod actor;
mod approvals;
pub mod client;
mod effects;
mod inner;
mod lend;
pub mod lending;
pub mod messages;
mod nesting;
pub mod port;
pub(in crate::actors) mod shared_budget;
pub mod spec;
mod start;
pub mod state;
mod templates;
mod views;

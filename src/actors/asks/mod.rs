//! The asks of a session: which there are, which one is being worked on, and what a person has to
//! decide. `agent::Machine` says what has to be done; this actor does it, journals every input before
//! anything follows from it, and after a restart feeds the same inputs again.
//!
//! `actor` takes messages, `state` is what it knows. `spec` turns a request into an ask, `start` begins and recalls asks,
//! `effects` carries effects out, `approvals` asks people, `views` shows asks, `nesting` says what an ask within is bound to,
//! `shared_budget` counts the tokens and steps that asks share, `recall` reads the journal, `port` is what tools may do with the
//! session.

pub mod actor;
mod approvals;
mod effects;
pub mod messages;
mod nesting;
pub mod port;
pub mod recall;
pub(in crate::actors) mod shared_budget;
pub mod spec;
mod start;
pub mod state;
mod views;

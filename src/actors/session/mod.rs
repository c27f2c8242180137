//! The session: one user's Python world. It holds the queue of cells, starts a sandbox when it
//! needs one, lets it go after a time without use, and writes every step into its events.
//!
//! `crate::session::machine` decides what it does next. `actor` takes messages, `begin` makes its `state`, `effects` carries
//! out what the machine wants; `cells`, `cell_permits`, `undo`, `freeze` and `view` serve clients, `sandbox` is about its sandbox,
//! `agent` about its asks, `restore` goes on after a restart and `generations` after a panic, `ending` is its end.

pub mod actor;
pub(in crate::actors) mod agent;
mod begin;
mod cell_permits;
mod cells;
mod effects;
pub(in crate::actors) mod ending;
mod freeze;
mod generations;
mod holding;
pub(in crate::actors) mod journalled;
pub mod keyed;
pub mod messages;
pub(in crate::actors) mod restore;
pub(in crate::actors) mod sandbox;
pub mod state;
mod undo;
mod view;
mod written;

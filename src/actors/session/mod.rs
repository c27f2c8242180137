//! The session: one user's Python environment. It holds the queue of cells, starts a sandbox when it needs
//! one, removes it after a time without use, and writes every step into its events.
//!
//! `crate::session::machine` decides what the session does next. `actor` handles messages, `begin` creates
//! its `state`, `effects` carries out the machine's effects; `cells`, `commands`, `cell_permits`, `undo`, `freeze` and
//! `view` serve clients, `admin_acts` remembers what administrators did, `sandbox_place` makes its workspace, `sandbox`
//! manages its sandbox, `packages` installs into it, `agent` manages its asks, `journal_appends` and `journal_waits`
//! write to the journal without waiting for ever, `ephemeral` counts the holders, `restore` resumes after a restart and
//! `generations` after a panic, `ending` ends the session for its `removers`. `snapshots` saves its variables, and `waking`
//! brings them back. `keyed_request`, `install_request` and `refusals` are parts of `messages`.

pub mod actor;
mod admin_acts;
pub(in crate::actors) mod agent;
mod begin;
mod cell_permits;
mod cells;
mod commands;
mod effects;
pub(in crate::actors) mod ending;
mod ephemeral;
mod freeze;
mod generations;
pub mod install_request;
mod journal_appends;
pub(in crate::actors) mod journal_waits;
pub mod keyed_request;
pub mod messages;
mod packages;
mod refusals;
pub mod removers;
pub(in crate::actors) mod restore;
mod sandbox;
mod sandbox_place;
mod snapshots;
pub mod state;
mod undo;
mod view;
pub(in crate::actors) mod waking;

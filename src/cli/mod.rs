//! The command line: human output by default, `--json` everywhere.
//!
//! [`entry`] reads the command line and runs one of the [`commands`], which are grouped by what they act on. They
//! talk to the daemon through [`client`] like every other client, know nothing of its internals, and show results
//! through [`render`]. Data goes to stdout, everything else to stderr; exit codes are in
//! [`crate::protocol::exit_codes`].

mod args;
mod client;
mod commands;
mod context;
mod entry;
mod failure;
mod keyboard;
mod render;
mod temporary_folder;

pub use entry::{Start, start};

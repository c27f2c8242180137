//! The command line: one file a command, human output by default, `--json` everywhere.
//!
//! Talks to the daemon over its socket like every other client, and knows nothing of its inside.
//! Data goes to stdout, everything else to stderr; exit codes are in [`crate::protocol::exit_codes`].

mod approval;
mod args;
mod cell;
mod client;
mod context;
mod failure;
mod follow;
mod frost;
mod highlight;
mod human;
mod screen;
mod session_key;
mod shown;
mod start;
mod tar_stream;
mod typed;
mod undo;
mod welcome;

mod approve;
mod ask;
mod config_show;
mod cp;
mod daemon;
mod doctor;
mod eval;
mod exec;
mod history;
mod image;
mod interrupt;
mod job;
mod logs;
mod models;
mod new;
mod plan;
mod ps;
mod quota;
mod receipt;
mod repl;
mod replay;
mod reset;
mod rm;
mod run;
mod shell;
mod show;
mod tools;
mod top;
mod vars;
mod version;
mod wait;

pub use context::{Start, start};

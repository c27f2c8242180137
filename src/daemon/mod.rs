//! The daemon.

use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the daemon until it is told to stop.
#[must_use]
pub fn main(_config: Option<PathBuf>) -> ExitCode {
    eprintln!("error: this build has no daemon");
    ExitCode::from(125)
}

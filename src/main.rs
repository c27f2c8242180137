//! One binary: the command line, or the daemon that it talks to.

use std::process::ExitCode;

use belljar::cli::{self, Start};

fn main() -> ExitCode {
    if let Some(code) = belljar::tools::keeper::main() {
        return code;
    }
    match cli::start(std::env::args_os()) {
        Start::Done(code) => code,
        Start::Daemon { config, serving } => belljar::daemon::main(config, serving),
    }
}

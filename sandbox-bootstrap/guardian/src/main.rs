//! pid 1 of a Belljar sandbox.
//!
//! `belljar-guardian --bridge SOCKET --kernel DIRECTORY [--workspace DIRECTORY] [--python PROGRAM]`: the directory is
//! the Python side of the kernel. The guardian owns the bridge to the daemon and never runs user code. *Runners* are the
//! Python processes that do: the main worker, which keeps the session's variables, copies of it that wait as
//! checkpoints, and short-lived copies for single cells. They are made by the *zygote*, Python's first process.
//!
//! Layout: `websocket`, `wire`, `outbox`, `output`, `calls`, `frames` and `process_table` only turn values into values;
//! `poller`, `bridge`, `channel`, `handle`, `zygote`, `helpers`, `process`, `memory` do the I/O; `guardian` is the loop
//! and owns all of it, with `runners`, `messages`, `endings`, `mainline`, `recovery`, `strays`, `memory_limit`,
//! `computations`, `evaluator`, `commands`, `requests` and `snapshots` as its parts.

mod background;
mod bridge;
mod calls;
mod channel;
mod commands;
mod computations;
mod controls;
mod digest;
mod endings;
mod evaluator;
mod frames;
mod guardian;
mod handle;
mod helpers;
mod limits;
mod mainline;
mod memory;
mod memory_limit;
mod messages;
#[cfg(test)]
mod noise;
mod outbox;
mod output;
mod poller;
mod probe;
mod process;
mod process_table;
mod recovery;
mod request_forks;
mod requests;
mod runners;
mod snapshots;
mod strays;
mod sys;
mod websocket;
mod wire;
mod zygote;

use std::collections::BTreeMap;
use std::process::ExitCode;

use rustix::process::DumpableBehavior;

use bridge::Bridge;
use guardian::Guardian;
use poller::Poller;
use zygote::Zygote;

const USAGE: &str =
    "usage: belljar-guardian --bridge SOCKET --kernel DIRECTORY [--workspace DIRECTORY] [--python PROGRAM]";
const EXIT_USAGE: u8 = 64;
const EXIT_FAILED: u8 = 1;

fn main() -> ExitCode {
    sys::handle_no_signals();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = helpers::run(&arguments) {
        return ExitCode::from(u8::try_from(code).unwrap_or(EXIT_FAILED));
    }
    let Some(options) = parse_options(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let option = |name: &str| options.get(name).cloned().unwrap_or_default();
    close_inherited();
    // Neither is refused to a process that asks it for itself.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let zygote = Zygote::new(option("--python"), option("--kernel"), option("--workspace"));
    let Ok(poller) = Poller::new() else { return ExitCode::from(EXIT_FAILED) };
    if Guardian::new(poller, Bridge::new(option("--bridge")), zygote, probe::probe()).run() {
        return ExitCode::SUCCESS;
    }
    eprintln!("the guardian cannot start `{}`", option("--python"));
    ExitCode::from(EXIT_FAILED)
}

/// `None` unless every option is known, and those without a default are given.
fn parse_options(arguments: &[String]) -> Option<BTreeMap<&str, String>> {
    let mut options =
        BTreeMap::from([("--workspace", "/workspace".to_owned()), ("--python", "python3".to_owned())]);
    let (pairs, rest) = arguments.as_chunks::<2>();
    for [name, value] in pairs {
        if !["--bridge", "--kernel", "--workspace", "--python"].contains(&name.as_str()) {
            return None;
        }
        options.insert(name, value.clone());
    }
    (rest.is_empty() && options.contains_key("--bridge") && options.contains_key("--kernel"))
        .then_some(options)
}

/// Closes what the starter of this process left open, except for the standard descriptors: neither the guardian nor the
/// guest may have what the starter of the sandbox has, nor a helper what the guardian has.
fn close_inherited() {
    let Ok(listing) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers: Vec<i32> =
        listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        sys::close(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<BTreeMap<String, String>> {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Some(parse_options(&arguments)?.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    #[test]
    fn the_bridge_and_the_kernel_have_to_be_named() {
        let options = parse("--bridge /b --kernel /k --workspace /w").unwrap();
        assert_eq!((options["--workspace"].as_str(), options["--python"].as_str()), ("/w", "python3"));
        for bad in
            ["--bridge /b", "--kernel /k", "--bridge /b --kernel", "--bridge /b --kernel /k --other x", ""]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}

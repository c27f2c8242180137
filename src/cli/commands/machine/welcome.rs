//! The output of `belljar` without arguments: the few commands that a newcomer needs.

use crate::cli::failure::Failure;
use crate::cli::render::screen::{Screen, Tint};

const FIRST_STEPS: [(&str, &str); 5] = [
    ("belljar doctor", "check that this machine is ready"),
    ("belljar run FILE", "run a script in a sandbox of its own"),
    ("belljar repl", "type Python into a session"),
    ("belljar ask TEXT", "let a model work on something in Python"),
    ("belljar ps", "see the sessions that are there"),
];

pub(in crate::cli) fn welcome(screen: &mut Screen) -> Result<(), Failure> {
    screen.line("Runs model-written Python under glass.\n")?;
    let width = FIRST_STEPS.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    for (command, what) in FIRST_STEPS {
        let command = screen.tinted(Tint::Bold, &format!("{command:<width$}"));
        screen.line(&format!("  {command}  {what}"))?;
    }
    screen.line("\n`belljar help` lists all commands, `belljar help COMMAND` tells all about one.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::entry::Cli;
    use clap::CommandFactory as _;

    #[test]
    fn every_first_step_is_a_command() {
        let cli = Cli::command();
        for (command, _) in FIRST_STEPS {
            let word = command.split(' ').nth(1).unwrap();
            assert!(cli.find_subcommand(word).is_some(), "{command}");
        }
    }
}

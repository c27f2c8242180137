//! Lines that begin with a colon are commands of Belljar, not Python.

use crate::cli::args::seconds;

/// Most cells that `:undo` goes back; no session keeps that many checkpoints.
const UNDO_CELLS: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Undo(u64),
    Vars,
    /// Sets the time limit of cells; None shows it.
    Timeout(Option<f64>),
    Reset,
    Files,
    Help,
}

pub const WORDS: [(&str, &str); 6] = [
    (":undo [N]", "take back the last cell, or the last N"),
    (":vars", "list the variables"),
    (":timeout [TIME]", "how long a cell may run, for example 30s or 5min"),
    (":reset", "forget all variables; files remain"),
    (":files", "list the files of the workspace"),
    (":help", "show this"),
];

/// None if the line is Python.
pub fn parse(line: &str) -> Option<Result<Command, String>> {
    if line.trim() == "?" {
        return Some(Ok(Command::Help));
    }
    let words = line.trim().strip_prefix(':')?;
    let mut words = words.split_whitespace();
    let (name, argument) = (words.next().unwrap_or_default(), words.next());
    if words.next().is_some() {
        return Some(Err(format!("`:{name}` takes one word at most")));
    }
    let alone = |command: Command| match argument {
        None => Ok(command),
        Some(word) => Err(format!("`:{name}` does not take `{word}`")),
    };
    Some(match name {
        "undo" => undo(argument).map(Command::Undo),
        "vars" => alone(Command::Vars),
        "timeout" => argument.map(seconds).transpose().map(Command::Timeout),
        "reset" => alone(Command::Reset),
        "files" => alone(Command::Files),
        "help" => alone(Command::Help),
        _ => Err(format!("there is no `:{name}`; `:help` lists what there is")),
    })
}

fn undo(argument: Option<&str>) -> Result<u64, String> {
    let Some(word) = argument else { return Ok(1) };
    let cells = word.parse().ok().filter(|cells| (1..=UNDO_CELLS).contains(cells));
    cells.ok_or_else(|| format!("`{word}` is not a number of cells"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_a_colon() {
        assert_eq!(parse("x = 1"), None);
        assert_eq!((parse("len?"), parse(" ? ")), (None, Some(Ok(Command::Help))));
        assert_eq!(parse("x[:1]"), None);
        assert_eq!(parse(":undo"), Some(Ok(Command::Undo(1))));
        assert_eq!(parse("  :undo 3 "), Some(Ok(Command::Undo(3))));
        assert_eq!(parse(":timeout 5min"), Some(Ok(Command::Timeout(Some(300.0)))));
        assert_eq!(parse(":timeout"), Some(Ok(Command::Timeout(None))));
        for (word, _) in WORDS {
            let word = word.split(' ').next().unwrap();
            assert!(parse(word).unwrap().is_ok(), "{word}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for wrong in
            [":", ":nope", ":undo x", ":undo 0", ":undo 1 2", ":vars all", ":timeout 0", ":timeout soon"]
        {
            assert!(parse(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}

//! The exception that ended a script, as the traceback on its stderr tells it. The script may have written anything
//! there: what is found is quoted to people, and decides nothing.

use crate::protocol::text::clipped;

const BEGIN: &str = "Traceback (most recent call last):";
/// The most characters of the name of an exception's type, and of its message.
const TYPE_CHARS: usize = 100;
const MESSAGE_CHARS: usize = 400;

#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct RaisedException {
    pub type_name: String,
    pub message: String,
    /// The last line of the script itself that the traceback names.
    pub line: Option<u32>,
}

impl RaisedException {
    /// `ZeroDivisionError: division by zero (line 3)`
    pub fn sentence(&self) -> String {
        let Self { type_name, message, line } = self;
        let what = if message.is_empty() { type_name.clone() } else { format!("{type_name}: {message}") };
        line.map_or(what.clone(), |line| format!("{what} (line {line})"))
    }
}

/// The exception of the last traceback; `script` is the path of the script, of which only the last part counts.
pub(in crate::cli) fn raised_exception(stderr: &str, script: &str) -> Option<RaisedException> {
    let lines: Vec<&str> = stderr.lines().collect();
    // The traceback of a script that cannot be parsed has no first line.
    let begin = lines.iter().rposition(|line| *line == BEGIN).map_or(0, |at| at + 1);
    let told = lines.get(begin..)?;
    let end = told.iter().position(|line| !line.starts_with([' ', '\t']) && !line.is_empty())?;
    let frames = told.get(..end)?;
    if !frames.iter().any(|line| line.trim_start().starts_with("File \"")) {
        return None;
    }
    let (type_name, message) = told.get(end)?.split_once(':').unwrap_or((told.get(end)?, ""));
    let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.');
    if type_name.is_empty() || !type_name.chars().all(is_name) {
        return None;
    }
    let name = script.rsplit('/').next().unwrap_or(script);
    Some(RaisedException {
        type_name: clipped(type_name, TYPE_CHARS),
        message: clipped(message.trim(), MESSAGE_CHARS),
        line: frames.iter().rev().find_map(|line| line_in(line, name)),
    })
}

/// The line number of a frame like `  File "/workspace/a.py", line 3, in <module>` if it is one of this file.
fn line_in(frame: &str, name: &str) -> Option<u32> {
    let (path, rest) = frame.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|_| path.rsplit('/').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_traceback_counts() {
        let stderr = "warning\nTraceback (most recent call last):\n  File \"/workspace/a.py\", line 3, in <module>\n    f()\n\
            ValueError: first\n\nDuring handling of the above exception, another exception occurred:\n\n\
            Traceback (most recent call last):\n  File \"/workspace/a.py\", line 5, in <module>\n    g()\n    ~^^\n  \
            File \"/usr/lib/json.py\", line 90, in g\n    raise\njson.decoder.JSONDecodeError: Expecting: value\nbye\n";
        let raised = raised_exception(stderr, "ci/a.py").unwrap();
        assert_eq!(raised.sentence(), "json.decoder.JSONDecodeError: Expecting: value (line 5)");
        assert_eq!(raised_exception(stderr, "b.py").unwrap().line, None);
    }

    #[test]
    fn a_script_that_cannot_be_parsed_has_a_line_too() {
        let stderr =
            "  File \"/workspace/a.py\", line 1\n    def (\n        ^\nSyntaxError: invalid syntax\n";
        let raised = raised_exception(stderr, "a.py").unwrap();
        assert_eq!(raised.sentence(), "SyntaxError: invalid syntax (line 1)");
    }

    #[test]
    fn what_is_no_traceback_is_none() {
        for text in [
            "",
            "\n",
            "error: no\n",
            "Traceback (most recent call last):\n",
            "  File \"a\", line x\n::error::y\n",
        ] {
            assert_eq!(raised_exception(text, "a"), None, "{text}");
        }
        let bare = "Traceback (most recent call last):\n  File \"a.py\", line 2\nKeyboardInterrupt\n";
        assert_eq!(raised_exception(bare, "a.py").unwrap().sentence(), "KeyboardInterrupt (line 2)");
    }
}

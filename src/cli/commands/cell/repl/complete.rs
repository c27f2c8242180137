//! Decides whether typed text is a whole cell, or continues on the next line. It knows brackets,
//! strings, blocks and the lines of notebook commands (`!ls`, `%time f()`) and no more of Python: text that makes no sense counts as whole, so that
//! Python can report the error.

use crate::cli::render::highlight::{QuotedEnd, QuotedString};

/// The indentation of one block.
const STEP: &str = "    ";
/// Statements that end a block.
const LAST_WORDS: [&str; 5] = ["return", "pass", "break", "continue", "raise"];

/// The indentation of the next line after text that is not complete.
pub fn indent_after(text: &str) -> String {
    let scan = Scan::of(text);
    let last = text.rsplit('\n').next().unwrap_or_default();
    let (blank, code) = last.split_at(last.len() - last.trim_start().len());
    let opens_bracket = scan.depth > 0 && code.trim_end().ends_with(['(', '[', '{']);
    let first_word = code.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    match scan.state {
        // Inside of a string the blanks would become part of it.
        State::OpenText => String::new(),
        State::Whole if opens_bracket || (scan.depth == 0 && scan.opens_block) => format!("{blank}{STEP}"),
        State::Whole if scan.depth == 0 && LAST_WORDS.contains(&first_word) => {
            blank.strip_suffix(STEP).unwrap_or(blank).to_owned()
        }
        State::Whole | State::Continued | State::Broken => blank.to_owned(),
    }
}

/// Whether the text is a whole cell. Blocks end with an empty line, as at Python's own prompt.
pub fn is_complete(text: &str) -> bool {
    let scan = Scan::of(text);
    match scan.state {
        State::Broken => true,
        State::Continued | State::OpenText => false,
        // A single empty line inside of brackets may be intended; after a second one, Python reports the error.
        State::Whole if scan.depth > 0 => text.ends_with("\n\n"),
        State::Whole => {
            let last = text.rsplit('\n').next().unwrap_or_default();
            // All that follows a line such as `%%time` belongs to it.
            let takes_cell = text.trim_start().starts_with("%%");
            last.trim().is_empty() || !(scan.opens_block || scan.in_block || takes_cell)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    /// The line ends with a backslash.
    Continued,
    /// The text ends inside of a multi-line string.
    OpenText,
    /// There is an unmatched closing bracket, or a string that is not closed on its line. This state is final.
    Broken,
}

/// The state of the scan at some point of the text.
struct Scan {
    /// Number of open brackets.
    depth: usize,
    state: State,
    /// Only blanks came on this line so far. Lines inside of brackets and strings belong to the line before.
    fresh: bool,
    indent: usize,
    /// The last line that is not blank is indented, or a decorator.
    in_block: bool,
    /// The last non-blank line ends with a colon.
    opens_block: bool,
}

impl Scan {
    fn of(text: &str) -> Self {
        let mut scan = Self {
            depth: 0,
            state: State::Whole,
            fresh: true,
            indent: 0,
            in_block: false,
            opens_block: false,
        };
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let length = scan.take(rest, next);
            rest = rest.get(length..).unwrap_or_default();
        }
        scan
    }

    /// Scans the element at the start of `rest` and returns its length.
    fn take(&mut self, rest: &str, next: char) -> usize {
        let continued = self.state == State::Continued;
        if continued {
            self.state = State::Whole;
        }
        match next {
            '\n' => {
                if self.depth == 0 && !continued {
                    (self.fresh, self.indent) = (true, 0);
                }
                return 1;
            }
            ' ' | '\t' | '\r' | '\x0c' => {
                self.indent += usize::from(self.fresh);
                return 1;
            }
            '#' => return rest.find('\n').unwrap_or(rest.len()),
            _ if self.fresh && is_command(rest) => return self.command(rest),
            _ => self.says(next),
        }
        match next {
            '=' if self.depth == 0 && is_command(rest[1..].trim_start_matches([' ', '\t'])) => {
                return self.command(rest);
            }
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => match self.depth.checked_sub(1) {
                Some(depth) => self.depth = depth,
                None => self.become_state(State::Broken),
            },
            // Only the end of the line may follow a backslash; the end of the text counts as one.
            '\\' if matches!(rest.as_bytes().get(1), None | Some(b'\n')) => {
                self.become_state(State::Continued);
            }
            '"' | '\'' => return self.text(rest),
            _ => {}
        }
        next.len_utf8()
    }

    /// The length of the notebook command at the start of `rest`: its line, and those that backslashes add.
    fn command(&mut self, rest: &str) -> usize {
        self.says('!');
        let mut length = 0;
        for line in rest.split_inclusive('\n') {
            length += line.len();
            let words = line.trim_end_matches('\n');
            let backslashes = words.len() - words.trim_end_matches('\\').len();
            if backslashes.is_multiple_of(2) {
                // The end of the line belongs to what follows.
                return length - (line.len() - words.len());
            }
        }
        self.become_state(State::Continued);
        length
    }

    fn become_state(&mut self, state: State) {
        if self.state != State::Broken {
            self.state = state;
        }
    }

    fn says(&mut self, next: char) {
        if std::mem::take(&mut self.fresh) {
            self.in_block = self.indent > 0 || next == '@';
        }
        self.opens_block = next == ':' && self.depth == 0;
    }

    /// The length of the string at the start of `rest`.
    fn text(&mut self, rest: &str) -> usize {
        let Some(QuotedString { length, triple, end }) = QuotedString::at(rest) else { return 1 };
        match end {
            QuotedEnd::Closed => {}
            QuotedEnd::Text { .. } if triple => self.become_state(State::OpenText),
            // After a backslash even a single-line string continues on the next line.
            QuotedEnd::Text { escaped } if escaped || rest.ends_with("\\\n") => {
                self.become_state(State::Continued);
            }
            QuotedEnd::Line | QuotedEnd::Text { .. } => self.become_state(State::Broken),
        }
        length
    }
}

/// Whether the text begins with a notebook command. The shell or the command itself has its own quotes and brackets.
fn is_command(text: &str) -> bool {
    match text.strip_prefix('!') {
        Some(command) => !command.starts_with('='),
        None => text
            .strip_prefix('%')
            .is_some_and(|name| name.trim_start_matches('%').starts_with(|c: char| c.is_ascii_alphabetic())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_cells_run_at_once() {
        for text in [
            "",
            "1",
            "x = (1,\n2)",
            "s = '''a\n\nb'''",
            "'a' 'b' # (",
            "x = 'it''s'",
            "d = {1: 2}",
            "x[1:]",
            "def f():\n    return 1\n",
            "if x: pass",
            "for i in y:\n    i\n  ",
            "a = 1 + \\\n2",
            "# if x:",
            "def f():\n    return 1\nf()",
            "@d\ndef f():\n    pass\n",
            "x = 'a\\\nb'",
            "λ = 'é'",
            "if x:\n    a = [\n1]\n",
            "class A:\n    '''doc\n'''\n",
            "f(\n    a\n)",
            "!ls",
            "!echo it's (",
            "!echo a:",
            "files = !ls [",
            "%time f(1)",
            "%cd a:",
            "!ls \\\n -la",
            "if x:\n    !ls (\n",
            "%%time\nx = 1\ny = 2\n",
            "len?",
        ] {
            assert!(is_complete(text), "{text:?}");
        }
    }

    #[test]
    fn what_is_open_goes_on() {
        for text in [
            "(",
            "x = [1,",
            "f(a,\n  b",
            "'''a",
            "\"\"\"a\n'''",
            "s = '''a\\'''",
            "if x:",
            "if x:  # c",
            "def f():\n    a",
            "def f():\n    a\n    b  # c",
            "a = 1 + \\",
            "@d",
            "for i in y:\n    i\nelse:",
            "x = {'a': (",
            "'a\\",
            "x = '''\n\n",
            "x = [\n",
            "x = [\n\n1",
            "if x:\n    y = '''\n\n'''",
            "class A:\n    def f(self):",
            "!ls \\",
            "!ls \\\n -la \\",
            "%%time",
            "%%time\nx = 1",
            "if x:\n    !ls",
            "x = (8\n%d",
        ] {
            assert!(!is_complete(text), "{text:?}");
        }
    }

    #[test]
    fn nonsense_is_for_python_to_judge() {
        for text in ["def g(:\n\n", ")", "'a", "x = (]))", "'a\n(", "if x:\n", "\\x"] {
            assert!(is_complete(text), "{text:?}");
        }
    }

    #[test]
    fn the_next_line_begins_where_it_belongs() {
        for (text, indent) in [
            ("if x:", 4),
            ("if x:  # why", 4),
            ("def f():\n    if x:", 8),
            ("def f():\n    a = 1", 4),
            ("def f():\n    if x:\n        return 1", 4),
            ("def f():\n    passing = 1", 4),
            ("if x:\n    pass", 0),
            ("@d", 0),
            ("f(", 4),
            ("f(a,", 0),
            ("f(\n    a,", 4),
            ("x = '''a\n    b", 0),
            ("a = 1 + \\", 0),
            ("é:", 4),
        ] {
            assert_eq!(indent_after(text), " ".repeat(indent), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn two_empty_lines_end_whatever_is_not_inside_of_something(lines in "([a-z :@#=,.0-9\n]){0,80}") {
            let ended = format!("{lines}\n\n");
            prop_assert!(is_complete(&ended));
        }

        #[test]
        fn anything_is_judged(text in "([a-z\"'#\\\\\n0-9 é名.+=(){}:@!%]|\"\"\"|def ){0,60}") {
            is_complete(&text);
            prop_assert!(indent_after(&text).trim().is_empty());
        }
    }
}

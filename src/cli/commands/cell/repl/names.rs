//! What the Tab key offers: names of the session, keywords of Python, and Belljar's own commands.

use std::collections::BTreeSet;
use unicode_width::UnicodeWidthChar as _;

use super::command;
use crate::cli::render::highlight::{SOFT_KEYWORDS, is_word};
use crate::protocol::frames::Variable;
use crate::protocol::values::{KEYWORDS, is_identifier};

/// Bounds on the number and the length of names, because they come from the guest.
const NAMES: usize = 2000;
const NAME_BYTES: usize = 100;
/// A space that is a part of a word in a shell.
const ESCAPED_SPACE: &str = "\\ ";
/// At the start of a line Tab indents.
const INDENT: &str = "    ";

/// Names of a session that can be typed as they are.
pub fn usable(variables: &[Variable]) -> BTreeSet<String> {
    let names = variables.iter().map(|variable| variable.name.as_str());
    names.filter(|name| is_name(name)).take(NAMES).map(ToOwned::to_owned).collect()
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES && is_identifier(text)
}

/// Where the word before `at` begins, and its possible completions.
pub fn offers(names: &BTreeSet<String>, text: &str, at: usize) -> (usize, Vec<String>) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    if line.trim().is_empty() {
        return (before.len(), vec![INDENT.to_owned()]);
    }
    if before.starts_with(':') {
        let words = command::WORDS.iter().filter_map(|(usage, _)| usage.split(' ').next());
        return (0, words.filter(|word| word.starts_with(before)).map(ToOwned::to_owned).collect());
    }
    let start = before.rfind(|c| !is_word(c)).map_or(0, |found| {
        found + before.get(found..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8)
    });
    let (rest, word) = before.split_at_checked(start).unwrap_or((before, ""));
    // What a value has only the session knows (`question`), and a word that begins with a digit is no name.
    if word.is_empty() || rest.ends_with('.') || word.starts_with(|c: char| c.is_ascii_digit()) {
        return (start, Vec::new());
    }
    let all: BTreeSet<&str> = names.iter().map(String::as_str).chain(KEYWORDS).chain(SOFT_KEYWORDS).collect();
    (start, all.into_iter().filter(|name| name.starts_with(word)).map(ToOwned::to_owned).collect())
}

/// What only the session knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The attributes of a value, or its keys, that begin with what is typed.
    Members { of: String, keys: bool, begins: String },
    /// The files of a folder of the workspace.
    Files { folder: String },
}

/// Where the word before `at` begins, and what has to be asked to complete it; none if that is no attribute, key or path.
pub fn question(text: &str, at: usize) -> Option<(usize, Question)> {
    let before = text.get(..at).filter(|before| !before.starts_with(':'))?;
    let line_start = before.rfind('\n').map_or(0, |found| found + 1);
    let line = before.get(line_start..)?;
    let members = |start: usize, of: String, keys: bool| {
        let begins = before.get(start..).unwrap_or_default().to_owned();
        (start, Question::Members { of, keys, begins })
    };
    match open_quote(line)? {
        Quote::Open(quote) => {
            let key_of = line.get(..quote)?.trim_end().strip_suffix('[').and_then(dotted_name);
            let start = line_start + quote + 1;
            match key_of {
                Some(of) => Some(members(start, of, true)),
                None => path(before, start),
            }
        }
        Quote::None if line.trim_start().starts_with(['!', '%']) && last_word(line) > 0 => {
            path(before, line_start + last_word(line))
        }
        Quote::None => {
            let start = before.rfind(|c| !is_word(c)).map_or(0, |found| found + 1);
            let of = before.get(..start)?.strip_suffix('.').and_then(dotted_name)?;
            Some(members(start, of, false))
        }
    }
}

enum Quote {
    None,
    /// The place of the quotation mark of a string that is open.
    Open(usize),
}

/// Whether the end of a line is inside of a string; none if it is inside of a comment. A backslash escapes the next
/// character outside of strings, too, as it does in a shell.
fn open_quote(line: &str) -> Option<Quote> {
    let (mut open, mut escaped) = (None, false);
    for (place, c) in line.char_indices() {
        match open {
            _ if escaped => escaped = false,
            _ if c == '\\' => escaped = true,
            Some((_, quote)) if c == quote => open = None,
            None if c == '#' => return None,
            None if matches!(c, '"' | '\'') => open = Some((place, c)),
            Some(_) | None => {}
        }
    }
    Some(open.map_or(Quote::None, |(place, _)| Quote::Open(place)))
}

/// Where the last word of a notebook command begins. A space that is escaped is a part of its word.
fn last_word(line: &str) -> usize {
    let ends = |place: usize| !line.get(..place).unwrap_or_default().ends_with('\\');
    let mut breaks = line.rmatch_indices([' ', '\t', '=']).map(|(place, _)| place);
    breaks.find(|place| ends(*place)).map_or(0, |place| place + 1)
}

/// Whether what follows the text is a part of an unquoted word of a shell's line.
fn is_shell_word(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default();
    line.trim_start().starts_with('!') && matches!(open_quote(line), Some(Quote::None))
}

/// The name that a part of a path stands for which was typed after `before`.
pub fn unescaped(typed: &str, before: &str) -> String {
    if is_shell_word(before) { typed.replace(ESCAPED_SPACE, " ") } else { typed.to_owned() }
}

/// The names with dots between them at the end of a text.
fn dotted_name(text: &str) -> Option<String> {
    let start = text.rfind(|c| !is_word(c) && c != '.').map_or(0, |found| {
        found + text.get(found..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8)
    });
    let name = text.get(start..)?;
    name.split('.').all(is_name).then(|| name.to_owned())
}

/// A path of the workspace, from `start` on.
fn path(before: &str, start: usize) -> Option<(usize, Question)> {
    let typed = before.get(start..)?;
    let (folder, name) = typed.rsplit_once('/').unwrap_or(("", typed));
    let inside = match folder.strip_prefix('/') {
        Some(whole) => {
            let below = whole.strip_prefix("workspace")?;
            below.strip_prefix('/').or_else(|| below.is_empty().then_some(""))?
        }
        None if typed.starts_with('/') => return None,
        None => folder.trim_start_matches("./"),
    };
    let is_inside = inside.split('/').all(|part| part != "..");
    let folder = unescaped(inside, before.get(..start)?);
    is_inside.then(|| (before.len() - name.len(), Question::Files { folder }))
}

/// Whether a person can type it between quotation marks as it is.
pub fn can_be_quoted(name: &str) -> bool {
    // What takes no place on the screen could turn the direction of the text around it, and separators of lines and
    // paragraphs, which have a width, could end the line.
    let is_plain = |c: char| {
        c.width().is_some_and(|width| width > 0)
            && !matches!(c, '"' | '\'' | '\\' | '\u{2028}' | '\u{2029}' | '\u{fffd}')
    };
    name.len() <= NAME_BYTES && !name.is_empty() && name.chars().all(is_plain)
}

/// What Tab puts for a name that comes from the guest; none if it would be more than a name there. Notebook commands and
/// formatted strings evaluate parts of their text, and the shell runs parts of it, also between quotation marks. A space
/// only parts words, which an escape or quotation marks prevent.
pub fn inert(name: &str, before: &str) -> Option<String> {
    if !(has_command(before) || has_formatted_string(before)) {
        return Some(name.to_owned());
    }
    let is_plain = |c: char| is_word(c) || "./+@=,- ".contains(c);
    let line = before.rsplit('\n').next().unwrap_or_default();
    let is_quoted = || matches!(open_quote(line), Some(Quote::Open(_)));
    match name {
        _ if !name.chars().all(is_plain) => None,
        _ if !name.contains(' ') || is_quoted() => Some(name.to_owned()),
        _ => is_shell_word(before).then(|| name.replace(' ', ESCAPED_SPACE)),
    }
}

/// Whether a notebook command may begin somewhere in the text. The lines after it count, too, because a backslash or
/// `%%` adds them to the command.
fn has_command(text: &str) -> bool {
    text.split(['\n', ';', ':', '=']).any(|statement| statement.trim_start().starts_with(['!', '%']))
}

/// Whether a formatted string may begin somewhere in the text: an `f` or a `t`, perhaps with an `r`, before a
/// quotation mark.
fn has_formatted_string(text: &str) -> bool {
    let is_prefix = |word: &str| {
        ["f", "t", "fr", "rf", "tr", "rt"].into_iter().any(|prefix| word.eq_ignore_ascii_case(prefix))
    };
    // No quotation mark follows the last piece.
    let mut pieces = text.rsplit(['"', '\'']).skip(1);
    pieces.any(|piece| piece.rsplit(|c: char| !is_word(c)).next().is_some_and(is_prefix))
}

/// Which of the names a session tells can be typed.
pub fn usable_members(variables: &[Variable], keys: bool) -> Vec<String> {
    let is_usable = |name: &&str| if keys { can_be_quoted(name) } else { is_name(name) };
    let names = variables.iter().map(|variable| variable.name.as_str());
    names.filter(is_usable).take(NAMES).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_keys_and_paths_are_asked_for() {
        let asked = |text: &str| question(text, text.len());
        let members = |of: &str, keys, begins: &str| {
            let (of, begins) = (of.to_owned(), begins.to_owned());
            Question::Members { of, keys, begins }
        };
        let files = |folder: &str| Question::Files { folder: folder.to_owned() };
        for (text, start, expected) in [
            ("df.co", 3, members("df", false, "co")),
            ("x = f(np.random.no", 16, members("np.random", false, "no")),
            ("é.a", 3, members("é", false, "a")),
            ("df['co", 4, members("df", true, "co")),
            ("df._", 3, members("df", false, "_")),
            ("a.b[ \"", 6, members("a.b", true, "")),
            ("x\nopen('da", 8, files("")),
            ("open('a/b/c", 10, files("a/b")),
            ("open('./a/c", 10, files("a")),
            ("open('/workspace/a/c", 19, files("a")),
            ("!cat da", 5, files("")),
            ("!cat my\\ da", 5, files("")),
            ("!cat my\\ folder/da", 16, files("my folder")),
            ("!echo it\\'s da", 12, files("")),
            ("!cat \"my folder/da", 16, files("my folder")),
            ("%cd a/b", 6, files("a")),
        ] {
            assert_eq!(asked(text), Some((start, expected)), "{text}");
        }
        for none in
            ["x", "", "f().a", "1.a", "x # a.b", "open('/etc/pa", "open('../a", ":undo", "x['a'].b", "!ls"]
        {
            assert_eq!(asked(none), None, "{none}");
        }
    }

    #[test]
    fn what_could_leave_its_quotation_marks_is_not_offered() {
        assert!(["a b", "größe", "a/b.csv"].into_iter().all(can_be_quoted));
        assert!(!["", "a'b", "a\\", "a\x1b[2J", "a\u{202e}b"].into_iter().any(can_be_quoted));
        for separator in ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'] {
            assert!(!can_be_quoted(&format!("a{separator}b")), "{separator:?}");
        }
    }

    #[test]
    fn what_could_run_is_not_offered_where_it_would() {
        let running =
            ["yy{tools.touch()}", "zz$(id)", "a`id`", "a;id", "a|id", "a b$x", "a&", "a>b", "~a", "*"];
        for before in [
            "!cat ",
            "%cd ",
            "  !cat ",
            "!cat \"",
            "!cat \\\n ",
            "%%time\nopen('",
            "lines = !cat '",
            "if x: !cat ",
            "x = 1; !cat ",
            "open(f'",
            "open(Rf\"",
            "x = f\"\"\"\nopen('",
        ] {
            assert_eq!(running.map(|name| inert(name, before)), running.map(|_| None), "{before:?}");
            for name in ["größe_1", "a/", "a.b-c+d@e=f,g"] {
                assert_eq!(inert(name, before).as_deref(), Some(name), "{before:?}");
            }
        }
        for before in ["open('", "x != d['", "d['left'] + d['", "if x % d['"] {
            for name in running {
                assert_eq!(inert(name, before).as_deref(), Some(name), "{before:?}");
            }
        }
    }

    #[test]
    fn a_name_with_spaces_stays_one_word() {
        for (before, expected) in [
            ("!cat ", Some("a\\ \\ b\\ -rf.csv")),
            ("  !cat folder/", Some("a\\ \\ b\\ -rf.csv")),
            ("!echo it\\'s ", Some("a\\ \\ b\\ -rf.csv")),
            ("!cat \"", Some("a  b -rf.csv")),
            ("!cat 'folder/", Some("a  b -rf.csv")),
            ("open(f'", Some("a  b -rf.csv")),
            ("open('", Some("a  b -rf.csv")),
            // What parts words there is not known.
            ("%cd ", None),
            ("!cat \\\n ", None),
        ] {
            assert_eq!(inert("a  b -rf.csv", before).as_deref(), expected, "{before:?}");
        }
        assert_eq!(unescaped("a\\ b", "!cat "), "a b");
        assert_eq!(unescaped("a\\ b", "open('"), "a\\ b");
    }

    fn offered(text: &str) -> (usize, Vec<String>) {
        let names = ["alpha", "alphabet", "größe", "import_me"].map(str::to_owned).into();
        offers(&names, text, text.len())
    }

    #[test]
    fn names_and_keywords_are_offered() {
        assert_eq!(offered("x = al"), (4, vec!["alpha".into(), "alphabet".into()]));
        assert_eq!(offered("f(imp"), (2, vec!["import".into(), "import_me".into()]));
        assert_eq!(offered("é+grö"), (3, vec!["größe".into()]));
        assert_eq!(offered(":u"), (0, vec![":undo".into()]));
    }

    #[test]
    fn nothing_is_offered_where_nothing_is_known() {
        for text in ["x.al", "1al", "zzz", "f("] {
            assert!(offered(text).1.is_empty(), "{text}");
        }
    }

    #[test]
    fn at_the_start_of_a_line_tab_indents() {
        assert_eq!(offered("if x:\n  "), (8, vec![INDENT.to_owned()]));
    }

    #[test]
    fn what_no_person_can_type_is_no_name() {
        assert!(["_a1", "名前"].into_iter().all(is_name));
        assert!(!["", "1a", "a b", "a\x1b[2J", "a\u{202e}"].into_iter().any(is_name));
        assert!(!is_name(&"a".repeat(NAME_BYTES + 1)));
    }
}

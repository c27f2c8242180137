//! What the Tab key offers: names of the session, keywords of Python, and Belljar's own commands.

use std::collections::BTreeSet;

use super::command;
use crate::cli::render::highlight::{SOFT_KEYWORDS, is_word};
use crate::protocol::frames::Variable;
use crate::protocol::values::{KEYWORDS, is_identifier};

/// Bounds on the number and the length of names, because they come from the guest.
const NAMES: usize = 2000;
const NAME_BYTES: usize = 100;
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
    // The attributes of a value are not known here, and a word that begins with a digit is no name.
    if word.is_empty() || rest.ends_with('.') || word.starts_with(|c: char| c.is_ascii_digit()) {
        return (start, Vec::new());
    }
    let all: BTreeSet<&str> = names.iter().map(String::as_str).chain(KEYWORDS).chain(SOFT_KEYWORDS).collect();
    (start, all.into_iter().filter(|name| name.starts_with(word)).map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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

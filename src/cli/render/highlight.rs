//! Colours for Python, for people who read it in a terminal. It knows words, strings, numbers and
//! comments, but no grammar: code that does not parse is coloured as far as possible.

use crate::cli::render::screen::Tint;
use crate::protocol::values::is_keyword;

/// Words that are keywords only in some places.
pub(in crate::cli) const SOFT_KEYWORDS: [&str; 2] = ["case", "match"];

/// Letters that may stand before a string, in any order and case: `rb"…"`.
const PREFIX_LETTERS: &str = "rRbBfFuUtT";
const PREFIX_CHARS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Keyword,
    Text,
    Number,
    Comment,
}

impl Kind {
    fn tint(self) -> Option<Tint> {
        match self {
            Self::Plain => None,
            Self::Keyword => Some(Tint::Magenta),
            Self::Text => Some(Tint::Green),
            Self::Number => Some(Tint::Blue),
            Self::Comment => Some(Tint::Dim),
        }
    }
}

/// The code in colour. It must be sanitized already; see [`crate::protocol::text::visible`].
pub(in crate::cli) fn highlighted(code: &str) -> String {
    let mut out = String::with_capacity(code.len() * 2);
    for (kind, piece) in pieces(code) {
        // A colour ends with its line, so that lines can be shown one by one.
        for line in piece.split_inclusive('\n') {
            let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
            match kind.tint() {
                Some(tint) if !text.is_empty() => out.push_str(&tint.paint(text)),
                _ => out.push_str(text),
            }
            out.push_str(end);
        }
    }
    out
}

/// All of the code, split where its kind changes.
fn pieces(code: &str) -> Vec<(Kind, &str)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = next(rest, first);
        let (piece, after) = rest.split_at(length);
        found.push((kind, piece));
        rest = after;
    }
    found
}

/// The kind and the length of the piece at the start of `rest`.
fn next(rest: &str, first: char) -> (Kind, usize) {
    if first == '#' {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if let Some(length) = string(rest) {
        return (Kind::Text, length);
    }
    if first.is_ascii_digit() {
        return (Kind::Number, number(rest));
    }
    if is_word(first) {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let keyword =
            rest.get(..length).is_some_and(|word| is_keyword(word) || SOFT_KEYWORDS.contains(&word));
        return (if keyword { Kind::Keyword } else { Kind::Plain }, length);
    }
    let begins = |c: char| c == '#' || c == '"' || c == '\'' || is_word(c);
    (Kind::Plain, rest.find(begins).unwrap_or(rest.len()))
}

pub(in crate::cli) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Length of the string at the start, with its prefix. An unterminated string extends to the end of its
/// line, or of the code if it is triple-quoted.
fn string(rest: &str) -> Option<usize> {
    let prefix = rest.chars().take_while(|c| PREFIX_LETTERS.contains(*c)).take(PREFIX_CHARS + 1).count();
    if prefix > PREFIX_CHARS {
        return None;
    }
    let quoted = QuotedString::at(rest.get(prefix..)?)?;
    Some(prefix + quoted.length)
}

/// A string of Python, without its prefix.
pub(in crate::cli) struct QuotedString {
    pub length: usize,
    /// Whether it is triple-quoted, so that it may have many lines.
    pub triple: bool,
    pub end: QuotedEnd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum QuotedEnd {
    Closed,
    /// The line ended before the string was closed.
    Line,
    /// The text ended before the string was closed, perhaps with a backslash.
    Text {
        escaped: bool,
    },
}

impl QuotedString {
    /// The string at the start of `rest`; none if there is no quote.
    pub fn at(rest: &str) -> Option<Self> {
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?.to_string();
        let triple = rest.starts_with(&quote.repeat(3));
        let mark = if triple { quote.repeat(3) } else { quote };
        let mut at = mark.len();
        let mut escaped = false;
        while let Some((left, c)) = rest.get(at..).and_then(|left| Some((left, left.chars().next()?))) {
            match c {
                _ if std::mem::take(&mut escaped) => {}
                '\\' => escaped = true,
                _ if left.starts_with(&mark) => {
                    return Some(Self { length: at + mark.len(), triple, end: QuotedEnd::Closed });
                }
                '\n' if !triple => return Some(Self { length: at, triple, end: QuotedEnd::Line }),
                _ => {}
            }
            at += c.len_utf8();
        }
        Some(Self { length: rest.len(), triple, end: QuotedEnd::Text { escaped } })
    }
}

/// `0xff`, `1_000.5`, `1e-9`, `2j`: malformed numbers are coloured as numbers, too.
fn number(rest: &str) -> usize {
    let mut before = ' ';
    let hex = rest.starts_with("0x") || rest.starts_with("0X");
    for (at, c) in rest.char_indices() {
        let sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !hex;
        if !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.') || sign) {
            return at;
        }
        before = c;
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each piece that has a colour, marked by the letter of its kind.
    fn marked(code: &str) -> String {
        let mark = |(kind, piece): (Kind, &str)| match kind {
            Kind::Plain => piece.to_owned(),
            Kind::Keyword => format!("‹k {piece}›"),
            Kind::Text => format!("‹s {piece}›"),
            Kind::Number => format!("‹n {piece}›"),
            Kind::Comment => format!("‹c {piece}›"),
        };
        pieces(code).into_iter().map(mark).collect()
    }

    #[test]
    fn words_strings_numbers_and_comments_have_colours() {
        let code = concat!(
            "import math  # 'no string'\n",
            "def f(x_1, y=1_000.5e-3):\n",
            "    return f'{x} \\' \"' + rb\"#\" if x1 else \"\"\"a\n",
            "b\"\" 'c\"\"\" + 0xe-1\n",
            "名前 = None or 'open\n",
            "bruf = 3\n",
        );
        insta::assert_snapshot!(marked(code), @r##"
        ‹k import› math  ‹c # 'no string'›
        ‹k def› f(x_1, y=‹n 1_000.5e-3›):
            ‹k return› ‹s f'{x} \' "'› + ‹s rb"#"› ‹k if› x1 ‹k else› ‹s """a
        b"" 'c"""› + ‹n 0xe›-‹n 1›
        名前 = ‹k None› ‹k or› ‹s 'open›
        bruf = ‹n 3›
        "##);
    }

    #[test]
    fn a_colour_ends_with_its_line() {
        assert_eq!(highlighted("x = '''a\n\nb'''\n"), "x = \x1b[32m'''a\x1b[0m\n\n\x1b[32mb'''\x1b[0m\n");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_added(code in "([a-z\"'#\\\\\n0-9 é名.+=(]|\"\"\"|def ){0,60}") {
            let whole: String = pieces(&code).into_iter().map(|(_, piece)| piece).collect();
            prop_assert_eq!(whole, code);
        }
    }
}

//! Text of guests, models and users made fit for people: everything that a terminal would obey is taken out
//! (control sequences, C0 and C1 controls, characters that reorder text), and long text is clipped.

use std::fmt::Write as _;

use crate::security_controls;

/// Characters of received text that an error quotes.
const QUOTED_CHARS: usize = 200;
/// How much longer than its quotation a text may be before the rest of it is not even looked at.
const CUT_BEFORE: usize = 4;

/// Works on a stream of chunks; how the stream is cut makes no difference.
#[derive(Clone, Debug, Default)]
pub struct Sanitizer {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte, as in `ESC ( B`.
    Intermediate,
    /// In a control sequence, `ESC [ …`.
    Sequence,
    /// In a control string (OSC, DCS, …), which ends with BEL or ST.
    String,
    /// After ESC in a control string.
    StringEscape,
}

impl Sanitizer {
    /// Appends what may be shown of `text` to `out`.
    pub fn feed(&mut self, text: &str, out: &mut String) {
        if !security_controls::holds("terminals_obey_nobody") {
            out.push_str(text);
            return;
        }
        for c in text.chars() {
            self.step(c, out);
        }
    }

    fn step(&mut self, c: char, out: &mut String) {
        self.state = match (self.state, c) {
            (State::Escape, '[') | (State::Sequence, ' '..='?') => State::Sequence,
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => State::String,
            (State::Escape | State::Intermediate, ' '..='/') => State::Intermediate,
            (State::Escape | State::Intermediate, '0'..='~')
            | (State::Sequence, '@'..='~')
            | (State::String | State::StringEscape, '\x07' | '\x18' | '\x1a' | '\u{9c}')
            | (State::StringEscape, '\\') => State::Text,
            (State::String, '\x1b') => State::StringEscape,
            // A control string without an end hides the rest of its line, not of the whole output.
            (State::String, c) if c != '\n' => State::String,
            // Any other ESC ends the string and begins a new sequence.
            (State::StringEscape, c) if c != '\n' => {
                self.state = State::Escape;
                return self.step(c, out);
            }
            _ => Self::text(c, out),
        };
    }

    fn text(c: char, out: &mut String) -> State {
        match c {
            '\x1b' => return State::Escape,
            '\u{9b}' => return State::Sequence,
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => return State::String,
            // Progress bars need the carriage return, which can only overwrite its own line.
            '\n' | '\t' | '\r' => out.push(c),
            c if c.is_control() || reorders(c) => {}
            c => out.push(c),
        }
        State::Text
    }
}

/// Marks that change the order of what is shown, and tags that show nothing at all.
fn reorders(c: char) -> bool {
    matches!(c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{e0000}'..='\u{e007f}')
}

/// Characters that take no room or look like a space: with them, two texts that differ can look the same.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{a0}' | '\u{ad}' | '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{1680}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{2000}'..='\u{200d}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}'
        | '\u{2800}' | '\u{3000}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Sanitizes a whole text at once.
pub fn sanitized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    Sanitizer::default().feed(text, &mut out);
    out
}

/// As [`sanitized`], on one line.
pub fn one_line(text: &str) -> String {
    sanitized(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// JSON that says the same and that no terminal obeys: DEL, C1 controls and characters that reorder text, all of which
/// JSON allows in its strings, are escaped. They stand nowhere else in JSON.
pub fn inert_json(json: &str) -> String {
    if !security_controls::holds("terminals_obey_nobody") {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '\u{7f}'..='\u{9f}') || reorders(c) {
            let mut units = [0; 2];
            for unit in &*c.encode_utf16(&mut units) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Received text as an error quotes it: short and always printable.
pub fn quotable(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect::<String>().escape_default().to_string()
}

/// Cuts the text to `chars` characters and returns how many bytes were dropped.
pub fn truncate(text: &mut String, chars: usize) -> u64 {
    let before = text.len();
    if let Some((end, _)) = text.char_indices().nth(chars) {
        text.truncate(end);
    }
    (before - text.len()) as u64
}

/// At most `chars` characters, with a mark where something is missing.
pub fn clipped(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The beginning of [`one_line`], for a sentence that quotes a guest or a server.
pub fn brief(text: &str, chars: usize) -> String {
    // The text may be long, so it is cut before it is processed; much of it may be what is taken out.
    let start: String = text.chars().take(chars.saturating_mul(CUT_BEFORE)).collect();
    clipped(&one_line(&start), chars)
}

/// Hides nothing: what a terminal would obey or not show is spelt out, so that a person who decides about a
/// text sees all of it. Line ends and tabs stay.
pub fn visible(text: &str) -> String {
    spelt_out(&text.replace("\r\n", "\n"), |c| matches!(c, '\n' | '\t'))
}

/// As [`visible`], and the text stays on one line.
pub fn visible_line(text: &str) -> String {
    spelt_out(text, |_| false)
}

fn spelt_out(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if !stays(c) && (c.is_control() || reorders(c) || is_unseen(c)) => {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_cut_is_counted_in_bytes_and_ends_between_characters() {
        for (text, left, dropped) in [("aä", "aä", 0), ("aäöx", "aä", 3), ("", "", 0)] {
            let mut cut = text.to_owned();
            assert_eq!((truncate(&mut cut, 2), cut.as_str()), (dropped, left), "{text}");
        }
    }

    #[test]
    fn sequences_go_and_text_stays() {
        for (text, clean) in [
            ("plain\ttext\r\n", "plain\ttext\r\n"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b[2J\x1b[1;1Htop", "top"),
            ("\x1b]0;title\x07after", "after"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1bP1$r0m\x1b\\after", "after"),
            ("\x1b(Bset\x1b7saved\x1bc", "setsaved"),
            ("\u{9b}31mred\u{9d}0;t\u{9c}done", "reddone"),
            ("bell\x07 back\x08space\x7f", "bell backspace"),
            ("\u{202e}evil\u{2066}x\u{200f}", "evilx"),
            ("\x1b]52;c;unended\nnext line", "\nnext line"),
            ("\x1b]0;a\x1b[31mred", "red"),
            ("\x1b[3\nbroken", "\nbroken"),
            ("\x1b\x1b[1mtwice", "twice"),
            ("日本語 é", "日本語 é"),
        ] {
            assert_eq!(sanitized(text), clean, "{text:?}");
        }
        assert_eq!(one_line(" a\r\n\tb\x1b[1m c "), "a b c");
    }

    #[test]
    fn json_says_the_same_and_no_terminal_obeys_it() {
        let said = "é\u{7f}\u{80}\u{9b}31m\u{9d}0;t\u{9c}\u{9f}\u{a0}\u{202e}\u{2066}\u{e0041}\\\u{9b}\x1b";
        let json = serde_json::to_string(said).unwrap();
        let expected = concat!(
            r#""é\u007f\u0080\u009b31m\u009d0;t\u009c\u009f"#,
            "\u{a0}",
            r#"\u202e\u2066\udb40\udc41\\\u009b\u001b""#
        );
        assert_eq!(inert_json(&json), expected);
        assert_eq!(serde_json::from_str::<String>(expected).unwrap(), said);
    }

    #[test]
    fn nothing_hides_from_who_decides() {
        assert_eq!(visible("a\tb\r\nc\n"), "a\tb\nc\n");
        assert_eq!(visible("exec('\x1b]0;evil\x07')"), "exec('\\u{1b}]0;evil\\u{7}')");
        assert_eq!(visible("bad()\rgood\u{202e}"), "bad()\\u{d}good\\u{202e}");
        assert_eq!(visible("a\u{3164}b\u{200b}c\u{feff}\u{a0}"), "a\\u{3164}b\\u{200b}c\\u{feff}\\u{a0}");
    }

    #[test]
    fn what_a_guest_says_stays_on_one_line() {
        assert_eq!(brief("a\n\x1b[31mb\u{202e}\tc", 10), "a b c");
        assert_eq!(visible_line("a\n\x1b\u{202e}b"), "a\\u{a}\\u{1b}\\u{202e}b");
    }

    #[test]
    fn long_text_is_clipped() {
        assert_eq!(clipped("abcd", 4), "abcd");
        assert_eq!(clipped("äbcde", 4), "äbc…");
        assert_eq!(brief(&"ab ".repeat(100), 6), "ab ab…");
    }

    const NASTY: &str = "[\x1b\u{9b}\u{9d}\u{90}\u{9c}\x07\\\\\\[\\]P;0-9mHa-c\n\r\t\u{202e}é(]{0,60}";

    proptest! {
        #[test]
        fn how_the_text_is_cut_makes_no_difference(text in NASTY, cuts in prop::collection::vec(0usize..60, 0..5)) {
            let chars: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(chars.len())).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            let (mut sanitizer, mut out) = (Sanitizer::default(), String::new());
            for pair in cuts.windows(2) {
                let piece: String = chars[pair[0]..pair[1]].iter().collect();
                sanitizer.feed(&piece, &mut out);
            }
            prop_assert_eq!(out, sanitized(&text));
        }

        #[test]
        fn nothing_is_left_that_a_terminal_obeys(text in prop_oneof![NASTY, any::<String>()]) {
            let clean = sanitized(&text);
            prop_assert!(clean.chars().all(|c| matches!(c, '\n' | '\t' | '\r') || !(c.is_control() || reorders(c))));
            prop_assert_eq!(sanitized(&clean), clean.clone());
        }
    }
}

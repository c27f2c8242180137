//! The API key of a provider, which can be used but neither printed nor logged.

use std::fmt;

/// The text that replaces a key.
const REDACTED: &str = "[key]";

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// `None` if the text is blank.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// The text with the key replaced, because providers repeat the key in their errors.
    pub fn redact(&self, text: &str) -> String {
        text.replace(&self.0, REDACTED)
    }

    /// The start of the longest suffix of the text that may be the beginning of the key and is shorter than the key;
    /// the length of the text if there is none.
    fn begins_in(&self, text: &str) -> usize {
        let longest = text.len().min(self.0.len() - 1);
        let begins = |from: &usize| text.get(*from..).is_some_and(|end| self.0.starts_with(end));
        (text.len() - longest..text.len()).find(begins).unwrap_or(text.len())
    }
}

/// Removes the key from a text that arrives in pieces. A possible beginning of the key is held back until later pieces
/// decide; what is held back is never the whole key.
#[derive(Default)]
pub struct Redactor {
    withheld: String,
}

impl Redactor {
    /// The text that can be shown now; it may be empty.
    pub fn next(&mut self, piece: &str, key: &Secret) -> String {
        self.withheld.push_str(piece);
        let mut redacted = key.redact(&self.withheld);
        self.withheld = redacted.split_off(key.begins_in(&redacted));
        redacted
    }

    /// The text held back at the end of the stream.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.withheld)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_shown() {
        let key = Secret::new(" sk-123\n").unwrap();
        assert_eq!(format!("{key:?} {:?}", Some(&key)), "[key] Some([key])");
        assert_eq!(key.redact("wrong key sk-123!"), "wrong key [key]!");
        assert_eq!(key.expose(), "sk-123");
        assert_eq!(Secret::new(" "), None);
    }

    #[test]
    fn a_key_in_pieces_is_not_shown_either() {
        for (key, text) in [
            ("sk-123", "it is sk-sk-123, or sk-12 or 3sk-123sk-1"),
            ("aab", "aaaab aa aabaab a"),
            ("schlüssel-ü", "der schlüssel-ü, schlü und schlüssel-üü"),
            ("x", "axxb"),
        ] {
            let key = Secret::new(key).unwrap();
            let chars: Vec<char> = text.chars().collect();
            for size in 1..=chars.len() {
                let mut pieces = Redactor::default();
                let mut redacted = String::new();
                for piece in chars.chunks(size) {
                    redacted += &pieces.next(&piece.iter().collect::<String>(), &key);
                    assert!(pieces.withheld.len() < key.expose().len());
                }
                redacted += &pieces.rest();
                assert_eq!(redacted, key.redact(text), "{size}");
            }
        }
    }

    #[test]
    fn what_cannot_be_a_key_is_shown_at_once() {
        let (key, mut pieces) = (Secret::new("sk-123").unwrap(), Redactor::default());
        let redacted: Vec<String> = ["ask", "-1", "00", "!"].map(|piece| pieces.next(piece, &key)).into();
        assert_eq!(redacted, ["a", "", "sk-100", "!"]);
    }
}

//! A key. It can be used, but neither printed nor logged.

use std::fmt;

/// What stands where a key was.
const REDACTED: &str = "[key]";

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// None if there is nothing in it.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// The text without the key: providers repeat it in their errors.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        text.replace(&self.0, REDACTED)
    }

    /// Where the end of a text begins that may be the beginning of the key: less than a whole one.
    fn begins_in(&self, text: &str) -> usize {
        let longest = text.len().min(self.0.len() - 1);
        let begins = |from: &usize| text.get(*from..).is_some_and(|end| self.0.starts_with(end));
        (text.len() - longest..text.len()).find(begins).unwrap_or(text.len())
    }
}

/// Takes the key out of a text that comes in pieces. What may be its beginning is held back until the
/// pieces after it tell, which is never a whole key.
#[derive(Default)]
pub struct Pieces {
    held: String,
}

impl Pieces {
    /// What can be shown now, perhaps nothing.
    pub fn next(&mut self, piece: &str, key: &Secret) -> String {
        self.held.push_str(piece);
        let mut shown = key.redact(&self.held);
        self.held = shown.split_off(key.begins_in(&shown));
        shown
    }

    /// What was held back, when nothing comes after it.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
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
                let mut pieces = Pieces::default();
                let mut shown = String::new();
                for piece in chars.chunks(size) {
                    shown += &pieces.next(&piece.iter().collect::<String>(), &key);
                    assert!(pieces.held.len() < key.expose().len());
                }
                shown += &pieces.rest();
                assert_eq!(shown, key.redact(text), "{size}");
            }
        }
    }

    #[test]
    fn what_cannot_be_a_key_is_shown_at_once() {
        let (key, mut pieces) = (Secret::new("sk-123").unwrap(), Pieces::default());
        let shown: Vec<String> = ["ask", "-1", "00", "!"].map(|piece| pieces.next(piece, &key)).into();
        assert_eq!(shown, ["a", "", "sk-100", "!"]);
    }
}

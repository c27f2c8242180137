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
}

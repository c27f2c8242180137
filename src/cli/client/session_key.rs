//! How an existing session is named on the command line.

use serde::Serialize;
use std::fmt;

use crate::protocol::ids::SessionName;
use crate::protocol::text::quotable;

/// Characters of a user's name; users whose names are longer, or have other characters, can be given by number.
const USER_CHARS: usize = 64;

/// A name, an id, or `NAME@USER` for a session of another user, which only administrators can use. The text is
/// safe in a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct SessionKey(String);

impl SessionKey {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, user) = match text.split_once('@') {
            Some((name, user)) => (name, Some(user)),
            None => (text, None),
        };
        SessionName::parse(name)?;
        if let Some(user) = user.filter(|user| !is_user(user)) {
            let user = quotable(user);
            return Err(format!("`{user}` is no user: use a login name or a number after the `@`"));
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_user(user: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    !user.is_empty() && user.len() <= USER_CHARS && user.chars().all(plain)
}

impl From<SessionName> for SessionKey {
    fn from(name: SessionName) -> Self {
        Self(name.to_string())
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_with_or_without_its_owner() {
        for good in ["data", "data@alice", "data@61001", "d.1@alice@corp.example"] {
            assert_eq!(SessionKey::parse(good).unwrap().to_string(), good);
        }
        for wrong in ["", "@alice", "data@", "data@a/b", "data@a b", "da/ta@alice", "data@..%2f"] {
            assert!(SessionKey::parse(wrong).is_err(), "{wrong}");
        }
    }
}

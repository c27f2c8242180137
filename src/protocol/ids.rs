//! Newtypes for ids, so that a session is never mistaken for a sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

use super::limits::NAME_CHARS;
use super::text::quotable;

/// Number of a cell in its session: 1, 2, 3, …
pub type CellNumber = u64;

/// Sequence number of an event in its session: 1, 2, 3, … without gaps.
pub type Seq = u64;

/// Declares an id that is a UUID, and how a fresh one is made.
macro_rules! uuid_id {
    ($(#[$attribute:meta])* $name:ident, $(#[$about:meta])* $fresh:path) => {
        $(#[$attribute])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            $(#[$about])*
            pub fn fresh() -> Self {
                Self($fresh())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id!(
    SessionId,
    /// Time-ordered, so that listings by id are listings by age.
    Uuid::now_v7
);

uuid_id!(
    JobId,
    /// Time-ordered, as sessions are.
    Uuid::now_v7
);

uuid_id!(
    BatchId,
    /// Time-ordered, as sessions are.
    Uuid::now_v7
);

uuid_id!(
    /// Id of files that were sent for jobs.
    #[derive(Default)]
    InputId,
    Uuid::new_v4
);

/// Sixteen hex digits: short, because it is part of container names and socket paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SandboxId(pub String);

impl SandboxId {
    pub fn fresh() -> Self {
        let mut hex = Uuid::new_v4().simple().to_string();
        hex.truncate(16);
        Self(hex)
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Declares a name: unique per user, and safe in a URL, a file name and a terminal.
macro_rules! plain_name {
    ($(#[$about:meta])* $name:ident, $what:literal) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// # Errors
            /// Says what a name may look like.
            pub fn parse(text: &str) -> Result<Self, String> {
                let first_ok = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
                let rest_ok = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
                if !first_ok || !rest_ok || text.len() > NAME_CHARS {
                    return Err(format!(
                        "`{}` is no {} name: use 1 to {NAME_CHARS} letters, digits, `-`, `_` or `.`, starting with a letter or digit",
                        quotable(text),
                        $what,
                    ));
                }
                Ok(Self(text.to_owned()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

plain_name! {
    /// A session's name: unique per user, and safe in a URL, a file name and a terminal.
    SessionName, "session"
}

plain_name! {
    /// A volume's name: unique per user, and safe in a URL, a file name and a terminal.
    VolumeName, "volume"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_names_are_plain_words() {
        for good in ["a", "A9", "data-run_2.old", &"x".repeat(NAME_CHARS)] {
            assert!(SessionName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".", "a/b", "a b", "ä", "a\n", &"x".repeat(NAME_CHARS + 1)] {
            assert!(SessionName::parse(bad).is_err(), "{bad:?}");
        }
    }
}

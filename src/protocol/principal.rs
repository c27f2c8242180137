//! The user on whose account something is: who owns sessions and jobs, pays for memory and disk, and is let in.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// A user as the daemon knows one. Today this is the user id that the kernel reports for a connection. Code that
/// needs the id for a system call takes it with [`Principal::uid`], at the place of that call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Principal(u32);

impl Principal {
    pub const ROOT: Self = Self(0);
    /// All accounts whose user ids others have by now: only the machine's quota counts what they have spent. The kernel has
    /// this number for no user.
    pub const FORMER_ACCOUNTS: Self = Self(u32::MAX);

    #[must_use]
    pub const fn new(uid: u32) -> Self {
        Self(uid)
    }

    #[must_use]
    pub const fn uid(self) -> u32 {
        self.0
    }

    #[must_use]
    pub fn is_root(self) -> bool {
        self == Self::ROOT
    }
}

/// For clients a principal is a plain number.
impl JsonSchema for Principal {
    fn inline_schema() -> bool {
        u32::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        u32::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        u32::json_schema(generator)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Two users for tests.
#[cfg(test)]
impl Principal {
    pub const ANN: Self = Self(1);
    pub const BOB: Self = Self(2);
}

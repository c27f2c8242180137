//! Saving the variables of sessions, and what a session that begins with such variables has of another one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ids::{CellNumber, SessionId, SessionName};
use super::limits::TOOL_NAME_CHARS;
use super::snapshot::{MissingVariable, SnapshotRecord};
use super::word_enums::words;

/// The most tools that the rules in an archive name.
pub const RULE_NAMES: usize = 1000;
/// Characters of a snapshot's name.
pub const SNAPSHOT_NAME_CHARS: usize = 64;

words! {
    /// When the variables of a session are saved to the disk.
    #[derive(Default)]
    pub enum SnapshotPolicy {
        /// When the session rests, before its sandbox is removed, and when somebody asks.
        #[default]
        Auto = "auto",
        /// Only when somebody asks.
        Named = "named",
        /// Never: a sandbox that is gone takes the variables with it.
        Off = "off",
    }
}

/// `POST /v1/sessions/{s}/snapshots`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSnapshot {
    /// A snapshot with a name is kept until it is removed; of the others only the newest is.
    pub name: Option<String>,
}

/// `GET /v1/sessions/{s}/snapshots`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<SnapshotRecord>,
    /// The snapshot that the session wakes from if its sandbox is removed or lost.
    pub wakes_from: Option<String>,
}

/// `POST /v1/sessions/{s}/sleep`: what the session has when it wakes, and what it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Asleep {
    /// The snapshot that it wakes from; none if it has none, and begins anew.
    pub snapshot: Option<String>,
    /// The newest cell whose changes that has.
    pub cell: CellNumber,
    /// Names that could not be saved, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingVariable>,
    /// The sandbox had ended before, with changes that were not saved. The cells after `cell` run again when the session
    /// wakes.
    pub unsaved: bool,
}

/// Where the variables come from with which a session begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BaseSource {
    /// The state of another session after a cell.
    Session { name: SessionName, id: SessionId, cell: CellNumber },
    /// An archive that was imported; the name is that of the session in it.
    Archive { name: String, cell: CellNumber },
}

/// The rules of all code that took part in making variables, as plain data: they go on binding where the variables go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BoundRules {
    /// The tools that the code may call; none for all tools of the session.
    pub allowed: Option<Vec<String>>,
    /// The tools that a person has to allow, for every call.
    pub approve: Vec<String>,
    /// Whether a person has to allow every call of a tool that acts outside of the sandbox.
    pub approve_outside: bool,
    /// Whether the code runs only if it passes the check of the restricted policy.
    pub restricted: bool,
}

impl BoundRules {
    /// Whether the rules can be those of a session, and are not too large for the messages and events that name them.
    #[must_use]
    pub fn are_possible(&self) -> bool {
        let names = || self.allowed.iter().flatten().chain(&self.approve);
        names().count() <= RULE_NAMES && names().all(|name| name.chars().count() <= TOOL_NAME_CHARS)
    }
}

/// Whether the text can be the name of a snapshot: letters, digits, `-`, `_` and `.`, and no path.
#[must_use]
pub fn is_snapshot_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_short = !name.is_empty() && name.chars().count() <= SNAPSHOT_NAME_CHARS;
    is_short && !name.starts_with(['-', '.']) && name.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_from_elsewhere_have_bounds() {
        let rules = |count: usize, length: usize| BoundRules {
            allowed: Some(vec!["x".repeat(length); count / 2]),
            approve: vec!["y".repeat(length); count - count / 2],
            ..BoundRules::default()
        };
        assert!(BoundRules::default().are_possible() && rules(RULE_NAMES, TOOL_NAME_CHARS).are_possible());
        assert!(!rules(RULE_NAMES + 1, 1).are_possible() && !rules(1, TOOL_NAME_CHARS + 1).are_possible());
    }

    #[test]
    fn a_name_of_a_snapshot_is_a_word() {
        for good in ["a", "before-cleaning", "v1.2", "size_3", &"x".repeat(SNAPSHOT_NAME_CHARS)] {
            assert!(is_snapshot_name(good), "{good}");
        }
        for bad in ["", "-x", "..", ".x", "a/b", "a b", "größe", "a\nb", &"x".repeat(SNAPSHOT_NAME_CHARS + 1)]
        {
            assert!(!is_snapshot_name(bad), "{bad}");
        }
    }
}

//! What a kernel tells of a snapshot: what it has packed, and what came back when it was loaded.
//!
//! All of it is a guest's word, bounded again by the daemon and shown to people, and nothing is decided by it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::ids::CellNumber;

/// Version of the layout of a snapshot, of its manifest and of the records that carry it.
pub const SNAPSHOT_FORMAT: u32 = 1;
/// Bytes of one record's payload.
pub const RECORD_BYTES: usize = 1024 * 1024;
/// Hex digits of the token that a kernel shows before the first record.
pub const TOKEN_DIGITS: usize = 32;
/// Names that a manifest or a report lists as missing, and files that it lists as reopened.
pub const MISSING_NAMES: usize = 200;
/// Characters of such a name, of the reason that belongs to it, and of a file's path.
pub const MISSING_NAME_CHARS: usize = 200;
pub const MISSING_REASON_CHARS: usize = 300;
pub const REOPENED_PATH_CHARS: usize = 4096;

/// A name of the session that a snapshot does not hold, or that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MissingVariable {
    pub name: String,
    pub reason: String,
}

/// A file that was open under this name and was opened again, at the same position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReopenedFile {
    pub name: String,
    pub path: String,
}

/// What a kernel says of the snapshot that it has sent: the payload of the last record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotManifest {
    /// [`SNAPSHOT_FORMAT`].
    pub format: u32,
    /// Version of Python, such as `3.13.5`; only one of the same major and minor number can load it.
    pub python: String,
    /// Names that it holds.
    pub variables: u64,
    pub missing: Vec<MissingVariable>,
    /// Files that are opened again when it is loaded.
    pub files: Vec<ReopenedFile>,
    /// Sections of the stream: the pickle, and each of its buffers.
    pub sections: u32,
    /// Bytes of all sections together.
    pub bytes: u64,
    /// Modules that are imported when it is loaded.
    pub modules: u64,
}

/// What came back when a snapshot was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreReport {
    /// Names that were restored.
    pub restored: u64,
    pub missing: Vec<MissingVariable>,
    pub reopened: Vec<ReopenedFile>,
    /// Why nothing was restored; the variables are then as they were before.
    pub error: Option<String>,
}

impl SnapshotManifest {
    /// Cuts what a guest has made longer than the bounds.
    pub fn bound(&mut self) {
        bound_names(&mut self.missing, &mut self.files);
        cut(&mut self.python, MISSING_NAME_CHARS);
    }
}

impl RestoreReport {
    /// The same.
    pub fn bound(&mut self) {
        bound_names(&mut self.missing, &mut self.reopened);
        if let Some(error) = &mut self.error {
            cut(error, MISSING_REASON_CHARS);
        }
    }
}

/// Adds what else is missing. A name for which there are several reasons is there once, with the first of them.
pub fn add_missing(missing: &mut Vec<MissingVariable>, more: Vec<MissingVariable>) {
    missing.extend(more);
    let mut known = BTreeSet::new();
    missing.retain(|missing| known.insert(missing.name.clone()));
    missing.truncate(MISSING_NAMES);
}

fn bound_names(missing: &mut Vec<MissingVariable>, files: &mut Vec<ReopenedFile>) {
    add_missing(missing, Vec::new());
    for MissingVariable { name, reason } in missing {
        cut(name, MISSING_NAME_CHARS);
        cut(reason, MISSING_REASON_CHARS);
    }
    files.truncate(MISSING_NAMES);
    for ReopenedFile { name, path } in files {
        cut(name, MISSING_NAME_CHARS);
        cut(path, REOPENED_PATH_CHARS);
    }
}

fn cut(text: &mut String, chars: usize) {
    if let Some((end, _)) = text.char_indices().nth(chars) {
        text.truncate(end);
    }
}

/// A snapshot of a session that the daemon keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotRecord {
    /// The first digits of `digest`.
    pub id: String,
    /// BLAKE3 hash of the file that lists what the snapshot is made of.
    pub digest: String,
    /// The newest cell whose changes it has.
    pub cell: CellNumber,
    /// Bytes of its variables, as their kernel packed them.
    pub bytes: u64,
    /// Bytes on the disk, compressed, with those that it shares with other snapshots of the session.
    pub stored_bytes: u64,
    /// Bytes on the disk that no other snapshot of the session had when it was taken.
    pub new_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub at: String,
    /// The version of Python that can load it; the last part of the version may differ.
    pub python: String,
    /// Number of names that it holds.
    pub variables: u64,
    /// Names that could not be packed, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingVariable>,
    /// Files that are opened again when it is loaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<ReopenedFile>,
}

/// What clients see of a snapshot.
pub type SnapshotView = SnapshotRecord;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_missing_for_several_reasons_is_listed_once() {
        let missing = |name: &str, reason: &str| MissingVariable { name: name.into(), reason: reason.into() };
        let twice = vec![missing("a", "a thread"), missing("b", "a lock"), missing("a", "too large")];
        let mut report = RestoreReport { missing: twice, ..RestoreReport::default() };
        report.bound();
        assert_eq!(report.missing, [missing("a", "a thread"), missing("b", "a lock")]);
        add_missing(&mut report.missing, vec![missing("b", "not loaded"), missing("c", "no module")]);
        assert_eq!(report.missing[1..], [missing("b", "a lock"), missing("c", "no module")]);
    }

    #[test]
    fn what_a_guest_lists_is_cut_to_the_bounds() {
        let missing = |number| MissingVariable {
            name: format!("{number}{}", "ä".repeat(9_000)),
            reason: "ö".repeat(9_000),
        };
        let file = ReopenedFile { name: "f".repeat(9_000), path: "p".repeat(9_000) };
        let mut report = RestoreReport {
            restored: 1,
            missing: (0..900).map(missing).collect(),
            reopened: vec![file; 900],
            error: Some("e".repeat(9_000)),
        };
        report.bound();
        assert_eq!((report.missing.len(), report.reopened.len()), (MISSING_NAMES, MISSING_NAMES));
        let (first, file) = (&report.missing[0], &report.reopened[0]);
        assert_eq!(first.name.chars().count(), MISSING_NAME_CHARS);
        assert_eq!(first.reason.chars().count(), MISSING_REASON_CHARS);
        assert_eq!((file.name.len(), file.path.len()), (MISSING_NAME_CHARS, REOPENED_PATH_CHARS));
        assert_eq!(report.error.map(|error| error.len()), Some(MISSING_REASON_CHARS));
    }
}

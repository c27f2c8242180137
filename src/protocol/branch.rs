//! Sessions that begin with what others have: branches and imports; and what two sessions differ in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::api::{NewSession, ReplayReport, SessionView};
use super::frames::Variable;
use super::ids::{CellNumber, SessionName};
use super::packages::InstalledPackage;
use super::receipt::ImageFact;
use super::saved_state::BoundRules;
use super::snapshot::SnapshotManifest;

/// The most branches that one request makes.
pub const BRANCHES_AT_ONCE: u32 = 64;
/// Version of the layout of an archive. The first one did not say by which rules its code is bound.
pub const ARCHIVE_FORMAT: u32 = 3;
/// The oldest layout that is read. It names the packages that were asked for, and not the versions that came of it.
pub const OLDEST_ARCHIVE_FORMAT: u32 = 2;
/// The first member of an archive.
pub const ARCHIVE_MANIFEST: &str = "manifest.json";
/// What makes an archive.
pub const ARCHIVE_MAKER: &str = "`belljar export -s SESSION FILE` makes one";
/// The most names and paths of each list of a comparison; there may be more, of which the number is told.
pub const DIFFERENCES_LISTED: usize = 1000;

/// `POST /v1/sessions/{s}/branch`: new sessions with the variables and the files of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewBranches {
    /// The name of the new session; of several, the beginning of their names, which end in `-1`, `-2` and so on. Absent: the
    /// daemon makes names up.
    pub name: Option<SessionName>,
    /// The variables are as after this cell, not as they are now: while its checkpoint is kept, or a snapshot has them. Files are always as they are now.
    pub at: Option<CellNumber>,
    /// The variables are those of this snapshot of the session, by its name or id, and not as they are now.
    pub snapshot: Option<String>,
    /// How many new sessions; absent for one.
    #[schemars(range(min = 1, max = 64))]
    pub count: Option<u32>,
    /// The daemon removes them when no client holds them any more, as `ephemeral` sessions are.
    pub ephemeral: bool,
}

/// The new sessions, in the order of their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BranchList {
    pub sessions: Vec<SessionView>,
    /// The cell whose variables they begin with.
    pub cell: CellNumber,
    /// Pipes, sockets and files closed to their owner, which are not copied.
    pub left_out: usize,
}

/// `POST /v1/archives`: what became of an archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    pub session: SessionView,
    /// What came of the cells that were run again, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayReport>,
}

/// `GET /v1/sessions/{a}/diff/{b}`: what the second session has otherwise than the first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDiff {
    pub variables: VariableDiff,
    pub files: FileDiff,
}

/// Differences of variables. Two are equal if their type and the digest of their content are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VariableDiff {
    pub only_in_first: Vec<Variable>,
    pub only_in_second: Vec<Variable>,
    pub changed: Vec<ChangedVariable>,
    /// The names of those that look the same, by type, shape and preview, but cannot be compared: what they hold has no
    /// digest, as that of most objects, or is too much.
    #[serde(default)]
    pub not_compared: Vec<String>,
    /// Variables that are equal.
    pub same: u64,
    /// Whether there are more variables or differences than were listed.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedVariable {
    /// What differs: `type`, `shape`, `preview`, `content`.
    pub by: Vec<String>,
    pub first: Variable,
    pub second: Variable,
}

/// Differences of files, by their size and the digest of their content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileDiff {
    pub only_in_first: Vec<ComparedFile>,
    pub only_in_second: Vec<ComparedFile>,
    pub changed: Vec<ChangedFile>,
    pub same: u64,
    /// Files of the same size whose content was not compared, because it is too much, or changes meanwhile.
    pub unread: u64,
    /// Whether there are more files or differences than were listed.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedFile {
    /// Bytes that are not UTF-8 are shown as U+FFFD.
    pub path: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedFile {
    pub path: String,
    pub bytes_in_first: u64,
    pub bytes_in_second: u64,
}

/// `manifest.json`, the first member of the archive of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveManifest {
    /// From [`OLDEST_ARCHIVE_FORMAT`] to [`ARCHIVE_FORMAT`].
    pub format: u32,
    /// The version of Belljar that wrote it.
    pub belljar: String,
    /// RFC 3339.
    pub exported_at: String,
    pub session: SessionName,
    /// The request that the session was made with, with the backend that it got, and without what belongs to its machine:
    /// folders and volumes. Earlier versions did not say the backend.
    pub request: NewSession,
    /// None if the session never had a sandbox.
    pub image: Option<ImageFact>,
    pub python: Option<String>,
    /// What was installed into the session, as it was asked for.
    pub packages: Vec<String>,
    /// The packages that came of it, in the versions that the variables were made with.
    #[serde(default)]
    pub installed: Vec<InstalledPackage>,
    /// Whether packages without a wheel were built from their sources.
    #[serde(default)]
    pub sources: bool,
    /// Cells so far; the number of the newest.
    pub cells: CellNumber,
    /// None if the session has no variables.
    pub snapshot: Option<ArchivedSnapshot>,
    /// The rules of all code that made the variables and of the cells that can run again. They hold in every session that is
    /// made of the archive.
    pub rules: BoundRules,
    /// What the archive lacks, in words for people.
    pub lacks: Vec<String>,
}

/// The snapshot in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchivedSnapshot {
    /// The variables are as after this cell.
    pub cell: CellNumber,
    pub manifest: SnapshotManifest,
}

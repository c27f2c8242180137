//! Requests and answers of the control API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::environment::Environment;
use super::frames::Variable;
use super::ids::{CellNumber, Seq, SessionId, SessionName, VolumeName};
use super::image::ImageOrigin;
use super::labels::Labels;
use super::mounts::{FolderMount, VolumeMount};
use super::preload::Preloaded;
use super::principal::Principal;
use super::quota::QuotaUsage;
use super::receipt::{Backend, ImageFact};
use super::result::{ExecutionResult, Mode};
use super::saved_state::SnapshotPolicy;
use super::word_enums::words;

/// `POST /v1/sessions`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct NewSession {
    /// If absent, the daemon makes up a name.
    pub name: Option<SessionName>,
    pub backend: Option<Backend>,
    pub image: Option<String>,
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub pids: Option<u64>,
    /// When the session's state is kept as a checkpoint. Absent: as the settings say.
    pub checkpointing: Option<Checkpointing>,
    /// A cell begins in the folder that the cell before it left by `os.chdir`, and not in the workspace.
    pub keep_cwd: bool,
    /// Absolute path of a folder of the caller, used instead of a folder that the daemon manages.
    pub workspace: Option<String>,
    /// Seconds without activity until the session ends.
    pub idle_s: Option<u64>,
    /// Variables that are there from the start.
    pub seed: Map<String, Value>,
    /// Modules that are imported from the start: `numpy as np`, `from math import sqrt`, or a family,
    /// `stdlib` or `third-party`. Absent: those of the settings.
    pub preload: Option<Vec<String>>,
    /// Variables of the environment of all its processes; no place for secrets. Names that steer the loader, Python
    /// or Belljar are refused.
    pub env: Environment,
    /// Volumes of the caller. A session with a volume or a mount runs as its user.
    pub volumes: Vec<VolumeMount>,
    /// Folders of the caller that the session can read.
    pub mounts: Vec<FolderMount>,
    /// When the session's variables are saved to the disk. Absent: by itself, unless the session is ephemeral.
    pub snapshots: Option<SnapshotPolicy>,
    /// Words by which the session is found again; see `?label=` of the list.
    pub labels: Labels,
    /// The daemon removes the session when no client holds it any more (`GET /v1/sessions/{s}/hold`).
    pub ephemeral: bool,
    /// An ephemeral session stays for its idle time without a client that holds it (`POST /v1/sessions/{s}/linger`).
    pub lingers: bool,
    /// The sandbox is started by what needs one first, and not with the session. A session whose image was never used on this
    /// machine has one from the start.
    pub lazy: bool,
}

words! {
    /// When a session's state is kept as a checkpoint, which a cell that dies goes back to.
    #[derive(Default)]
    pub enum Checkpointing {
        /// After every cell, before the next one begins.
        #[default]
        Every = "every",
        /// When the session rests. Cells that follow each other at once are quicker, and a death in their midst costs
        /// several of them.
        Idle = "idle",
        /// Never.
        Off = "off",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// The daemon has started anew and still reads the session's journal; requests wait for that.
    Restoring,
    /// The session's sandbox is being made.
    Starting,
    Idle,
    Busy,
    /// The session's sandbox is frozen; the next request thaws it.
    Frozen,
    /// The session has no sandbox; the next cell gets a new one, with the variables of the newest snapshot if there is one.
    Asleep,
    /// The session failed repeatedly inside the daemon, or could not be restored. Its sandbox is kept; the session
    /// accepts only a reset or a removal.
    Parked,
}

/// `GET /v1/sessions/{s}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionView {
    pub id: SessionId,
    pub name: SessionName,
    /// User id of the owner.
    pub owner: Principal,
    pub state: SessionState,
    pub backend: Backend,
    /// None until the session's first sandbox is made.
    pub image: Option<ImageFact>,
    pub python: Option<String>,
    /// One line about how the sandbox is isolated, from its receipt.
    pub isolation: Option<String>,
    pub limits: SessionLimits,
    /// The modules that were imported when the sandbox started, if any were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preloaded: Option<Preloaded>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The names of the variables that the session sets in the environment of its processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<FolderMount>,
    /// Where the workspace is on the host.
    pub workspace: String,
    /// Cells so far; the number of the newest.
    pub cells: CellNumber,
    pub running: Option<CellNumber>,
    pub queued: usize,
    /// Only of a session that sleeps: it wakes with the variables as they were after this cell. Later cells that changed them
    /// run again then. None if it wakes without variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakes_as_after: Option<CellNumber>,
    /// RFC 3339.
    pub created_at: String,
    /// Seconds since the session was last active.
    pub idle_for_s: u64,
    /// Sequence number of the session's newest event.
    pub last_event: Seq,
    /// Resources that the sandbox uses now; none if there is no sandbox, or if it has no control group of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// Resources that a sandbox uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// CPU time since the sandbox was made, in microseconds.
    pub cpu_us: u64,
    /// Memory in use, without the file cache that the host's kernel can drop at once.
    pub memory_bytes: u64,
}

/// `POST /v1/volumes`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    pub name: VolumeName,
}

/// A folder that outlives sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeView {
    /// User id of the owner.
    pub owner: Principal,
    pub name: VolumeName,
    /// Its size when it was measured last.
    pub bytes: u64,
    /// The sessions that use it.
    pub sessions: Vec<SessionName>,
}

/// `GET /v1/volumes`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeList {
    pub volumes: Vec<VolumeView>,
}

/// `GET /v1/quota`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaView {
    pub uid: Principal,
    /// The name of the user, if the user id has one.
    pub user: Option<String>,
    pub quotas: Vec<QuotaUsage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionLimits {
    /// The memory of the session's own processes.
    pub memory_bytes: u64,
    /// The reserve for checkpoints beside it; together they are the limit of the sandbox.
    #[serde(default)]
    pub checkpoint_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
    pub idle_s: u64,
}

/// `GET /v1/sessions`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionList {
    pub sessions: Vec<SessionView>,
}

/// `POST /v1/sessions/{s}/cells`. With `?wait=true` the answer is an `ExecutionResult`, with
/// `?stream=true` an event stream that ends with the cell; else a `CellView`, at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCell {
    pub code: String,
    /// Seconds the cell may run; the default and the maximum are settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    #[serde(default)]
    pub mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CellState {
    Queued,
    Running,
    Done,
}

/// `GET /v1/sessions/{s}/cells/{c}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellView {
    pub cell: CellNumber,
    pub state: CellState,
    /// Events of this cell come after this sequence number.
    pub events_after: Seq,
    pub result: Option<ExecutionResult>,
}

/// `POST /v1/sessions/{s}/eval`: one expression, evaluated in a copy of the session, so that it
/// changes nothing. With `isolated` it sees only `values` and an allow-list of functions; the
/// answer is then a `Computed`, else an `ExecutionResult`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    pub expression: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    #[serde(default)]
    pub isolated: bool,
    /// Only with `isolated`: names the expression may use, `last_result` among them.
    #[serde(default)]
    pub values: Map<String, Value>,
}

/// Exactly one of the two is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Computed {
    /// `str()` of the value.
    pub result: Option<String>,
    /// `PythonError: <type>: <message>`.
    pub error: Option<String>,
}

/// `POST /v1/sessions/{s}/interrupt`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interrupted {
    /// The cell that is being interrupted; none if no cell ran.
    pub cell: Option<CellNumber>,
}

/// `POST /v1/sessions/{s}/undo`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// How many cells of the main line to take back.
    #[serde(default = "one")]
    pub cells: u64,
}

fn one() -> u64 {
    1
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Undone {
    /// The newest cell whose changes are still there; 0 if none is.
    pub state_of: CellNumber,
    /// Files that the undone cells changed: they are not rewound.
    pub files_changed: Vec<String>,
    /// A sentence about what else undo does not restore, such as threads and tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// `POST /v1/sessions/{s}/replay`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplayReport {
    pub cells: Vec<ReplayedCell>,
    /// Cells that did not run because a cell before them died or was interrupted; the next replay runs them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<CellNumber>,
    /// Cells that the replay skips because they were interrupted when they first ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<CellNumber>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplayedCell {
    /// Number of the cell's first run.
    pub cell: CellNumber,
    /// Number of the cell's new run.
    pub replayed_as: CellNumber,
    /// What came out differently: `status`, `stdout`, `stderr`, `result`, `exception`.
    pub differences: Vec<String>,
}

/// Which names `GET /v1/sessions/{s}/variables` lists besides the variables that cells assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct VariablesFilter {
    /// List names that start with `_`, too.
    pub private: bool,
    /// List modules, tools and preloaded names, too.
    pub imports: bool,
    /// List the names alone of what this value has, instead: its attributes. A name, or several with dots between them.
    pub of: Option<String>,
    /// With `of`: its keys, such as the columns of a table.
    pub keys: bool,
    /// With `of`: only names that begin with this.
    pub begins: String,
    /// With digests of what they hold, where they can be had at little cost.
    pub digests: bool,
}

/// `GET /v1/sessions/{s}/variables`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VariableList {
    pub variables: Vec<Variable>,
    /// How many variables there are; more than are listed if the list was cut.
    pub total: u64,
    /// The variables are as before this cell, which is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_before: Option<CellNumber>,
}

/// HTTP trailer of a folder that is sent as tar, for clients that send `TE: trailers`: how many links, pipes and
/// the like were left out.
pub const LEFT_OUT: &str = "belljar-left-out";

/// `GET /v1/sessions/{s}/files/{path}` for a folder, with `Accept: application/json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FolderView {
    pub path: String,
    pub entries: Vec<FileEntry>,
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// Bytes that are not UTF-8 are shown as U+FFFD. Such a name cannot be used in a path; a tar of the folder
    /// holds it unchanged.
    pub name: String,
    pub kind: FileKind,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Folder,
    /// A link, device, pipe or socket: shown, never opened.
    Other,
}

/// `GET /v1/images`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageList {
    pub images: Vec<ImageView>,
    /// Why the images of the container engine are missing from the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageView {
    pub reference: String,
    /// The backend that can use the image: images of the engine are for containers, folders and the host's own
    /// system are for jails.
    pub backend: Backend,
    /// None if the engine does not have the image.
    pub id: Option<String>,
    pub bytes: Option<u64>,
    /// A session that names no image gets this one.
    pub default: bool,
    /// None until a sandbox of the image has been made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<ImagePackages>,
    /// How the image came to be, if a user built it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ImageOrigin>,
}

/// The Python packages of an image, as `pip` names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImagePackages {
    /// All of them.
    pub installed: Vec<String>,
    /// The packages that are worth a look: no other package needs them, or they are widely known.
    pub main: Vec<String>,
}

/// `POST /v1/images`: get an allowed image from its registry. The answer is a stream of JSON
/// lines (`PullProgress`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PullImage {
    pub reference: String,
}

/// `GET /v1/health`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    pub status: HealthStatus,
    /// What is wrong, if something is.
    pub problems: Vec<String>,
    /// Number of the caller's sessions; for administrators, of all users' sessions.
    pub sessions: usize,
    /// The pool, for the daemon's own user and administrators; none if it is switched off.
    #[serde(default)]
    pub pool: Option<PoolView>,
}

/// The sandboxes that were started before a session asked for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolView {
    /// The most that wait of one class.
    pub size: usize,
    /// Backends, images and limits that were asked for lately, each combination of them once.
    pub classes: usize,
    pub waiting: usize,
    /// Whether one is being started.
    pub starting: bool,
    /// Requests that got a waiting sandbox since the daemon began, and those for which there was none.
    pub hits: u64,
    pub misses: u64,
    pub starts: u64,
    /// Starts that failed, and sandboxes that ended while they waited.
    pub failures: u64,
    /// What all that wait take of the machine's memory.
    pub memory_bytes: u64,
    /// Why the last start failed, until one succeeds.
    pub problem: Option<String>,
}

impl std::fmt::Display for PoolView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { waiting, hits, misses, .. } = self;
        write!(f, "{waiting} waiting; {hits} of {} requests got one", hits.saturating_add(*misses))?;
        self.problem.as_ref().map_or(Ok(()), |problem| write!(f, "; the last start failed: {problem}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    Ok,
    /// The daemon answers, but new sandboxes cannot be made, or nothing can be written.
    Degraded,
}

/// `GET /v1/version`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    pub version: String,
    pub pid: u32,
    pub bridge: u32,
    /// Where the daemon keeps its state.
    pub home: String,
    /// Version of the container engine, if it answers.
    pub engine: Option<String>,
}

/// `POST /v1/shutdown`: only for the daemon's own user and root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// Remove the sandboxes too.
    pub remove: bool,
}

/// An empty answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {}

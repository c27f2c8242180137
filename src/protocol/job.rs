//! Jobs: a script that runs once, in a sandbox of its own that is removed with the job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::batch::BatchPlace;
use super::ids::{InputId, JobId};
use super::principal::Principal;
use super::receipt::{Backend, ImageFact, LimitFact};
use super::word_enums::words;

/// `POST /v1/jobs`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewJob {
    /// The job's name in lists and reports; the script's path if absent.
    pub name: Option<String>,
    /// The files of the job (`PUT /v1/job-inputs`); they are its working directory.
    pub input: Option<InputId>,
    /// The file of the input that is run.
    pub script: String,
    pub args: Vec<String>,
    /// Environment variables of the script, on top of the sandbox's own.
    pub env: BTreeMap<String, String>,
    pub timeout_s: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub image: Option<String>,
    /// A container or a jail; `process` is refused.
    pub backend: Option<Backend>,
    /// Patterns of files that are kept when the job has ended.
    pub artifacts: Vec<String>,
    /// Packages that the image has to have, as in `numpy` or `numpy>=2,<3`; nothing is installed for it.
    pub require: Vec<String>,
    /// Packages that are installed before the script runs, as in `POST …/install`.
    pub with: Vec<String>,
    /// The job is cancelled when no client follows its events or waits for its end any more.
    pub ephemeral: bool,
}

/// Files of a job, as they were received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobInput {
    pub id: InputId,
    /// sha256 over a line `<sha256 of the file>  <path>` for each file, by path.
    pub sha256: String,
    pub files: usize,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Queued,
    Running,
    Ended,
}

words! {
    pub enum Verdict {
        /// The script exited with 0.
        Passed = "passed",
        /// The script exited with something else.
        Failed = "failed",
        TimedOut = "timed_out",
        /// A signal or a guard of the host ended the script.
        Crashed = "crashed",
        OutOfMemory = "out_of_memory",
        Cancelled = "cancelled",
        /// The job could not be run to its end, for a reason that is not the script's.
        Error = "error",
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobEnd {
    pub verdict: Verdict,
    /// The script's own exit code; 124 for a timeout, 128 + n for a signal, 125 for an error that is not the
    /// script's, 130 if the job was cancelled. 0 only for `passed`.
    pub exit_code: u8,
    /// Why the job ended this way, in a sentence.
    pub reason: String,
    /// Time the script ran.
    pub duration_ms: f64,
    pub artifacts: Vec<JobArtifact>,
    /// Some files were not kept: they were too many or too large, or their names cannot be used.
    pub artifacts_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobArtifact {
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// What really ran, and in which sandbox: read back, not copied from the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobReceipt {
    pub input: JobInput,
    pub script_sha256: String,
    /// This field and those below are known when the sandbox is ready.
    pub backend: Backend,
    pub image: ImageFact,
    pub python: String,
    /// One line about how the sandbox was isolated.
    pub isolation: String,
    pub seccomp_profile: String,
    pub limits: Option<LimitFact>,
}

/// `GET /v1/jobs/{j}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobView {
    pub id: JobId,
    pub name: String,
    /// User id of the owner.
    pub owner: Principal,
    pub state: JobState,
    pub script: String,
    pub args: Vec<String>,
    /// Names only: values may be secrets.
    pub env: Vec<String>,
    pub timeout_s: f64,
    /// RFC 3339.
    pub created_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub receipt: Option<JobReceipt>,
    pub end: Option<JobEnd>,
    /// The batch that the job is one of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchPlace>,
    /// Requests of administrators about this job of another user; only the view of a single job lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub admin_acts: Vec<AdminAct>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdminAct {
    /// RFC 3339.
    pub at: String,
    /// User id of the administrator.
    pub admin: Principal,
    /// The request.
    pub act: String,
}

/// `GET /v1/jobs`: the newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobList {
    pub jobs: Vec<JobView>,
}

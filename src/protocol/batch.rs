//! Batches: many jobs that one request brings, of which all are taken or none, and which run a few at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::ids::{BatchId, InputId, JobId, Seq};
use super::job::{JobView, NewJob};
use super::limits::{BATCH_BYTES, BATCH_JOBS};
use super::principal::Principal;
use super::problem::{Code, Problem};

/// `POST /v1/batches`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewBatch {
    /// What the jobs have in common. If it is `ephemeral`, those that have not ended are cancelled when no client follows
    /// the events of the batch or waits for its end any more.
    pub common: NewJob,
    /// What each job has of its own, in the order in which they are begun.
    pub jobs: Vec<BatchJob>,
    /// How many of them run at once, at most; `jobs.slots` if absent.
    pub parallel: Option<usize>,
}

/// One job of a batch: what is absent is as the batch's `common` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchJob {
    pub name: Option<String>,
    pub input: Option<InputId>,
    pub script: Option<String>,
    pub args: Option<Vec<String>>,
    /// On top of the variables that all jobs have.
    pub env: BTreeMap<String, String>,
}

impl NewBatch {
    /// The bytes that the descriptions of all jobs take; refused if there are too many jobs, or too many bytes. What the
    /// jobs have in common counts for each of them.
    pub fn checked_bytes(&self) -> Result<u64, Problem> {
        let length = |text: serde_json::Result<String>| text.map_or(0, |text| text.len());
        if self.jobs.is_empty() || self.jobs.len() > BATCH_JOBS {
            let message = format!("a batch has 1 to {BATCH_JOBS} jobs, and this one has {}", self.jobs.len());
            return Err(
                Problem::new(Code::TooLarge, message).hint("send several batches, one after the other")
            );
        }
        if self.parallel == Some(0) {
            return Err(Problem::new(Code::BadRequest, "`parallel` is 0, so no job would run")
                .hint("say how many may run at once, or leave it out"));
        }
        let common = length(serde_json::to_string(&self.common)).saturating_mul(self.jobs.len());
        let bytes =
            self.jobs.iter().fold(common, |sum, job| sum.saturating_add(length(serde_json::to_string(job))));
        if bytes > BATCH_BYTES {
            let message = format!("the jobs of a batch may take {BATCH_BYTES} bytes, and these take {bytes}");
            return Err(Problem::new(Code::TooLarge, message).hint(
                "what all jobs have in common counts for each; put large values into a file of the jobs",
            ));
        }
        Ok(bytes as u64)
    }

    /// The jobs, each with what it has in common with the others.
    #[must_use]
    pub fn into_jobs(self) -> Vec<NewJob> {
        // The batch is ephemeral as a whole: a client follows it, and not each of its jobs.
        let common = NewJob { ephemeral: false, ..self.common };
        let whole = |job: BatchJob| {
            let mut whole = common.clone();
            whole.env.extend(job.env);
            NewJob {
                name: job.name.or(whole.name),
                input: job.input.or(whole.input),
                script: job.script.unwrap_or(whole.script),
                args: job.args.unwrap_or(whole.args),
                ..whole
            }
        };
        self.jobs.into_iter().map(whole).collect()
    }
}

/// The place of a job in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchPlace {
    pub id: BatchId,
    /// 0 for the first job of the request.
    pub index: usize,
}

/// `GET /v1/batches/{b}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchView {
    pub id: BatchId,
    /// User id of the owner.
    pub owner: Principal,
    /// RFC 3339.
    pub created_at: String,
    /// When the last job ended.
    pub ended_at: Option<String>,
    pub parallel: usize,
    /// How many jobs it has, how many of them have ended, and how many of those passed.
    pub size: usize,
    pub ended: usize,
    pub passed: usize,
    /// The jobs that are still kept, in their order; only the view of a single batch lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobId>,
}

/// `GET /v1/batches`: the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchList {
    pub batches: Vec<BatchView>,
}

/// What happens to the jobs of a batch. Events of a batch are numbered by themselves: 1, 2, 3, … in the order in which
/// they came into the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchEvent {
    pub seq: Seq,
    #[serde(flatten)]
    pub body: BatchEventBody,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BatchEventBody {
    /// The sandbox of a job is ready, and its script runs.
    JobStarted {
        index: usize,
        job: JobId,
    },
    JobEnded {
        index: usize,
        job: Box<JobView>,
    },
    /// All jobs have ended. This is the last event.
    BatchEnded {
        ended: usize,
        passed: usize,
    },
}

impl BatchEventBody {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::JobStarted { .. } => "job_started",
            Self::JobEnded { .. } => "job_ended",
            Self::BatchEnded { .. } => "batch_ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_what_is_common_and_its_own_wins() {
        let variables = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let common = NewJob {
            script: "a.py".into(),
            args: vec!["x".into()],
            env: variables(&[("A", "1"), ("B", "1")]),
            cpus: Some(0.5),
            ephemeral: true,
            ..NewJob::default()
        };
        let own = BatchJob {
            name: Some("second".into()),
            script: Some("b.py".into()),
            args: Some(Vec::new()),
            env: variables(&[("B", "2")]),
            ..BatchJob::default()
        };
        let batch = NewBatch { common: common.clone(), jobs: vec![BatchJob::default(), own], parallel: None };
        assert!(batch.checked_bytes().is_ok());
        let jobs = batch.into_jobs();
        let expected = NewJob { ephemeral: false, ..common };
        assert_eq!(jobs[0], expected);
        let second = NewJob {
            name: Some("second".into()),
            script: "b.py".into(),
            args: Vec::new(),
            env: variables(&[("A", "1"), ("B", "2")]),
            ..expected
        };
        assert_eq!(jobs[1], second);
    }

    #[test]
    fn a_batch_is_bounded_before_it_is_spread() {
        let of = |count: usize, bytes: usize| {
            let common = NewJob { args: vec!["x".repeat(bytes)], ..NewJob::default() };
            NewBatch { common, jobs: vec![BatchJob::default(); count], parallel: None }
        };
        let refused = |batch: NewBatch| batch.checked_bytes().unwrap_err().code;
        assert_eq!(refused(of(0, 0)), Code::TooLarge);
        assert_eq!(refused(of(BATCH_JOBS + 1, 0)), Code::TooLarge);
        // A small request can stand for many bytes.
        assert_eq!(refused(of(BATCH_JOBS, 2 * BATCH_BYTES / BATCH_JOBS)), Code::TooLarge);
        assert_eq!(refused(NewBatch { parallel: Some(0), ..of(1, 0) }), Code::BadRequest);
        assert!(of(BATCH_JOBS, 10).checked_bytes().is_ok());
    }
}

//! Jobs that the daemon takes together and runs a few at a time; this process only follows them.

use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;

use super::plan::PlannedJob;
use super::watch::{self, EndedJob, JobProgress, PAUSE, TRIES};
use crate::cli::client::http::Client;
use crate::cli::failure::Failure;
use crate::protocol::batch::{BatchEvent, BatchEventBody, BatchJob, BatchView, NewBatch};
use crate::protocol::ids::{BatchId, InputId, JobId, Seq};
use crate::protocol::job::NewJob;
use crate::protocol::problem::Code;

/// The jobs of a run as one request. `input_of` gives the files of a source that were sent.
pub(in crate::cli) fn batch_of(
    jobs: &[PlannedJob],
    parallel: Option<usize>,
    input_of: impl Fn(usize) -> Option<InputId>,
) -> NewBatch {
    // Jobs of one run differ in what a `BatchJob` has, and in nothing else.
    let common = jobs.first().map(|planned| NewJob {
        name: None,
        input: None,
        script: String::new(),
        args: Vec::new(),
        env: std::collections::BTreeMap::new(),
        ..planned.job.clone()
    });
    let job_of = |planned: &PlannedJob| BatchJob {
        name: planned.job.name.clone(),
        input: input_of(planned.source),
        script: Some(planned.job.script.clone()),
        args: Some(planned.job.args.clone()),
        env: planned.job.env.clone(),
    };
    NewBatch { common: common.unwrap_or_default(), jobs: jobs.iter().map(job_of).collect(), parallel }
}

pub(in crate::cli) async fn submit(client: &Client, batch: &NewBatch) -> Result<BatchView, Failure> {
    client.post("/v1/batches", batch).await?.parse()
}

/// Whether the daemon refused a batch before it took any of it.
pub(in crate::cli) fn has_taken_none(failure: &Failure) -> bool {
    const REFUSALS: [Code; 6] = [
        Code::QuotaExceeded,
        Code::TooMany,
        Code::TooLarge,
        Code::BadRequest,
        Code::Forbidden,
        Code::NoSuchInput,
    ];
    REFUSALS.into_iter().any(|code| failure.has_code(code))
}

/// Follows a batch until all its jobs have ended. Each job that begins is followed by a task of its own, which tells its
/// end; this one tells the ends of jobs that never began.
pub(in crate::cli) async fn follow(
    client: Arc<Client>,
    batch: BatchView,
    live: bool,
    progress: mpsc::Sender<JobProgress>,
) {
    let open = (0..batch.jobs.len()).collect();
    let mut follower =
        BatchFollower { client, id: batch.id, live, progress, last: 0, open, has_ended: false };
    let failure = follower.until_it_ends().await.err();
    for index in std::mem::take(&mut follower.open) {
        let Some(job) = batch.jobs.get(index) else { continue };
        match &failure {
            Some(failure) => {
                let failure = Failure::new(failure.message.clone())
                    .hint(format!("what became of it: `belljar job show {job}`"));
                follower.tell(index, Err(failure)).await;
            }
            // Its end was not among the events that were kept.
            None => follower.follow_job(index, *job),
        }
    }
}

struct BatchFollower {
    client: Arc<Client>,
    id: BatchId,
    live: bool,
    progress: mpsc::Sender<JobProgress>,
    /// Number of the last event that was seen.
    last: Seq,
    /// The jobs that have neither begun nor ended, by their index.
    open: BTreeSet<usize>,
    has_ended: bool,
}

impl BatchFollower {
    async fn until_it_ends(&mut self) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            let before = self.last;
            let broken = match self.events().await {
                Ok(()) if self.has_ended => return Ok(()),
                Ok(()) => Failure::new("the daemon ends the stream again and again"),
                Err(failure) if failure.has_code(Code::NoSuchBatch) => return Err(failure),
                Err(failure) => failure,
            };
            if self.last > before {
                tries = 0;
            }
            if tries >= TRIES {
                return Err(broken);
            }
            tries += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn events(&mut self) -> Result<(), Failure> {
        let path = format!("/v1/batches/{}/events?after={}", self.id, self.last);
        let mut events = self.client.events::<()>(&path, None).await?;
        while let Some(BatchEvent { seq, body }) = events.next_as::<BatchEvent>().await? {
            self.last = seq;
            match body {
                BatchEventBody::JobStarted { index, job } => {
                    if self.open.remove(&index) {
                        self.follow_job(index, job);
                    }
                }
                BatchEventBody::JobEnded { index, job } => {
                    if self.open.remove(&index) {
                        let ended = EndedJob { view: *job, stdout: String::new(), stderr: String::new() };
                        self.tell(index, Ok(ended)).await;
                    }
                }
                BatchEventBody::BatchEnded { .. } => self.has_ended = true,
            }
        }
        Ok(())
    }

    fn follow_job(&self, index: usize, job: JobId) {
        let (client, progress) = (Arc::clone(&self.client), self.progress.clone());
        tokio::spawn(watch::follow(client, job, index, self.live, progress));
    }

    async fn tell(&self, index: usize, seen: Result<EndedJob, Failure>) {
        // The receiver may be gone already.
        let _ = self.progress.send(JobProgress::Ended { index, seen: Box::new(seen) }).await;
    }
}

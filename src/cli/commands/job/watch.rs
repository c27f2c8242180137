//! Handles one job from sending its files to its end, even if the connection breaks several times.

use hyper::Method;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use crate::cli::client::http::{Client, next_chunk};
use crate::cli::client::tar_stream::{SkippedEntries, TAR, receive_unpacked, send_packed};
use crate::cli::failure::Failure;
use crate::protocol::event::EventBody;
use crate::protocol::ids::{InputId, JobId, Seq};
use crate::protocol::job::{JobInput, JobState, JobView, NewJob};
use crate::protocol::problem::Code;
use crate::protocol::result::Stream;

/// How often, and after what pause, a daemon that does not answer is asked again.
pub(in crate::cli) const TRIES: u32 = 40;
pub(in crate::cli) const PAUSE: Duration = Duration::from_millis(500);

/// Messages of the task that follows a job.
pub(in crate::cli) enum JobProgress {
    Output { index: usize, stream: Stream, text: String },
    Ended { index: usize, seen: Box<Result<EndedJob, Failure>> },
}

#[derive(Debug)]
pub(in crate::cli) struct EndedJob {
    pub view: JobView,
    pub stdout: String,
    pub stderr: String,
}

/// Sends the files of a source; also returns what was left out.
pub(in crate::cli) async fn send(
    client: &Client,
    source: &Path,
) -> Result<(InputId, SkippedEntries), Failure> {
    let upload = async |content| client.upload(Method::PUT, "/v1/job-inputs", TAR, content).await;
    let (answer, skipped) =
        send_packed(source.to_owned(), "failed to read the files of the job", upload).await?;
    Ok((answer.parse::<JobInput>()?.id, skipped))
}

pub(in crate::cli) async fn submit(client: &Client, job: &NewJob) -> Result<JobView, Failure> {
    client.post("/v1/jobs", job).await?.parse()
}

/// Follows a job to its end.
pub(in crate::cli) async fn follow(
    client: Arc<Client>,
    id: JobId,
    index: usize,
    live: bool,
    progress: mpsc::Sender<JobProgress>,
) {
    let mut follower = Follower { client, id, index, live, progress, last: 0, output: None };
    let seen = follower.until_it_ends().await;
    // The receiver may be gone already.
    let _ = follower.progress.send(JobProgress::Ended { index, seen: Box::new(seen) }).await;
}

struct Follower {
    client: Arc<Client>,
    id: JobId,
    index: usize,
    live: bool,
    progress: mpsc::Sender<JobProgress>,
    /// Sequence number of the last event that was seen.
    last: Seq,
    /// What the script wrote to stdout and stderr, once it has ended.
    output: Option<(String, String)>,
}

impl Follower {
    async fn until_it_ends(&mut self) -> Result<EndedJob, Failure> {
        let mut tries = 0;
        loop {
            let before = self.last;
            // The stream may end for many reasons, so the state of the job decides what to do.
            let _ = self.events(true).await;
            if self.last > before {
                tries = 0;
            }
            match self.view().await {
                Ok(view) if view.state == JobState::Ended => return Ok(self.seen(view).await),
                Err(failure) if failure.has_code(Code::NoSuchJob) || tries >= TRIES => return Err(failure),
                Ok(_) if tries >= TRIES => {
                    return Err(Failure::new("the daemon ends the stream again and again")
                        .hint(format!("what became of it: `belljar job show {}`", self.id)));
                }
                Ok(_) | Err(_) => {}
            }
            tries += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn view(&self) -> Result<JobView, Failure> {
        self.client.get(&format!("/v1/jobs/{}?wait=true", self.id)).await?.parse()
    }

    async fn seen(&mut self, view: JobView) -> EndedJob {
        if self.output.is_none() && view.started_at.is_some() {
            let _ = self.events(false).await;
        }
        let (stdout, stderr) = self.output.take().unwrap_or_default();
        EndedJob { view, stdout, stderr }
    }

    async fn events(&mut self, follow: bool) -> Result<(), Failure> {
        let path = format!("/v1/jobs/{}/events?follow={follow}&after={}", self.id, self.last);
        let mut events = self.client.events::<()>(&path, None).await?;
        while let Some(event) = events.next().await? {
            self.last = event.seq;
            match event.body {
                EventBody::Output { stream, text, cell: Some(_), .. } if self.live => {
                    let _ = self.progress.send(JobProgress::Output { index: self.index, stream, text }).await;
                }
                EventBody::CellFinished { result } => self.output = Some((result.stdout, result.stderr)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Copies the artifacts of a job into a folder.
pub(in crate::cli) async fn fetch(client: &Client, id: &str, folder: &Path) -> Result<(), Failure> {
    let mut response = client.download::<()>(&format!("/v1/jobs/{id}/artifacts"), None).await?;
    let next = async || next_chunk(response.body_mut()).await;
    let unpacked = receive_unpacked(folder.to_owned(), next).await?;
    unpacked.map(drop).map_err(|e| Failure::io("failed to unpack the artifacts", &e))
}

//! Handles one job from sending its files to its end, even if the connection breaks several times.

use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use super::plan::Source;
use crate::cli::client::http::{Client, next_chunk};
use crate::cli::client::tar_stream::{CHUNKS_WAITING, Skipped, pack, pack_file, unpack};
use crate::cli::failure::Failure;
use crate::protocol::event::EventBody;
use crate::protocol::ids::{InputId, JobId, Seq};
use crate::protocol::job::{JobInput, JobState, JobView, NewJob};
use crate::protocol::problem::Code;
use crate::protocol::result::Stream;

/// How often, and after what pause, a daemon that does not answer is asked again.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(500);
const TAR: &str = "application/x-tar";

/// Messages of the task that follows a job.
pub(in crate::cli) enum Told {
    Output { place: usize, stream: Stream, text: String },
    Ended { place: usize, seen: Box<Result<Seen, Failure>> },
}

#[derive(Debug)]
pub(in crate::cli) struct Seen {
    pub view: JobView,
    pub stdout: String,
    pub stderr: String,
}

/// Sends the files of a source; also returns what was left out.
pub(in crate::cli) async fn send(client: &Client, source: &Source) -> Result<(InputId, Skipped), Failure> {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let source = source.clone();
    let packing = tokio::task::spawn_blocking(move || match source {
        Source::Folder(folder) => pack(&folder, &sender),
        Source::File(file) => pack_file(&file, &sender),
    });
    let content = futures_util::stream::unfold(
        receiver,
        |mut receiver: mpsc::Receiver<std::io::Result<Bytes>>| async {
            Some((receiver.recv().await?, receiver))
        },
    );
    let answer = client.upload("/v1/job-inputs", TAR, content).await;
    let packed = packing.await.map_err(|e| Failure::new(format!("failed to pack: {e}")))?;
    // An error of the local disk is the cause of the daemon's error, so it is the one to report.
    let skipped = packed.map_err(|e| Failure::io("failed to read the files of the job", &e));
    match (answer, skipped) {
        (Ok(answer), Ok(skipped)) => Ok((answer.parse::<JobInput>()?.id, skipped)),
        (Err(failure), Err(packing)) if packing.message.contains("roken pipe") => Err(failure),
        (_, Err(packing)) => Err(packing),
        (Err(failure), _) => Err(failure),
    }
}

pub(in crate::cli) async fn submit(client: &Client, job: &NewJob) -> Result<JobView, Failure> {
    client.post("/v1/jobs", job).await?.parse()
}

/// Follows a job to its end.
pub(in crate::cli) async fn follow(
    client: Arc<Client>,
    id: JobId,
    place: usize,
    live: bool,
    told: mpsc::Sender<Told>,
) {
    let mut follower = Follower { client, id, place, live, told, last: 0, stdout: None, stderr: None };
    let seen = follower.until_it_ends().await;
    // The receiver may be gone already.
    let _ = follower.told.send(Told::Ended { place, seen: Box::new(seen) }).await;
}

struct Follower {
    client: Arc<Client>,
    id: JobId,
    place: usize,
    live: bool,
    told: mpsc::Sender<Told>,
    /// Sequence number of the last event that was seen.
    last: Seq,
    stdout: Option<String>,
    stderr: Option<String>,
}

impl Follower {
    async fn until_it_ends(&mut self) -> Result<Seen, Failure> {
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

    async fn seen(&mut self, view: JobView) -> Seen {
        if self.stdout.is_none() && view.started_at.is_some() {
            let _ = self.events(false).await;
        }
        let (stdout, stderr) =
            (self.stdout.take().unwrap_or_default(), self.stderr.take().unwrap_or_default());
        Seen { view, stdout, stderr }
    }

    async fn events(&mut self, follow: bool) -> Result<(), Failure> {
        let path = format!("/v1/jobs/{}/events?follow={follow}&after={}", self.id, self.last);
        let mut events = self.client.events::<()>(&path, None).await?;
        while let Some(event) = events.next().await? {
            self.last = event.seq;
            match event.body {
                EventBody::Output { stream, text, cell: Some(_) } if self.live => {
                    let _ = self.told.send(Told::Output { place: self.place, stream, text }).await;
                }
                EventBody::CellFinished { result } => {
                    (self.stdout, self.stderr) = (Some(result.stdout), Some(result.stderr));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Copies the artifacts of a job into a folder.
pub(in crate::cli) async fn fetch(client: &Client, id: &str, folder: &Path) -> Result<(), Failure> {
    let mut response = client.download::<()>(&format!("/v1/jobs/{id}/artifacts"), None).await?;
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let target = folder.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || unpack(receiver, &target));
    while let Some(chunk) = next_chunk(response.body_mut()).await? {
        if sender.send(chunk).await.is_err() {
            break;
        }
    }
    drop(sender);
    let unpacked = unpacking.await.map_err(|e| Failure::new(format!("failed to unpack: {e}")))?;
    unpacked.map(drop).map_err(|e| Failure::io("failed to unpack the artifacts", &e))
}

//! Batches: jobs that are submitted together, and what becomes of them.

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::events::{EventsQuery, last_event_id};
use super::requests::WaitQuery;
use crate::actors::jobs::{BatchOrder, JobsMsg, WatchedBatch};
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query, keep_with};
use crate::control::caller::Caller;
use crate::control::idempotency::Key;
use crate::control::problems::{ApiResult, RefusedRequest};
use crate::control::sse;
use crate::memory::{MemoryPurpose, Pool, SMALL_BYTES, offload_if_large};
use crate::protocol::api::Done;
use crate::protocol::batch::{BatchEvent, BatchEventBody, BatchList, BatchView, NewBatch};
use crate::protocol::ids::{BatchId, Seq};
use crate::protocol::limits::{BATCHES_LISTED, REQUEST_BODY, STREAM_KEEPALIVE};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::sse::{KEEPALIVE, encode};
use crate::protocol::text::quotable;
use crate::security_controls;
use crate::store::{BatchEventRow, Journal};

pub const PATH: &str = "/v1/batches";
/// Copies of a job's record in memory while an event is made of it: text, values and the event.
const COPIES: u64 = 3;

/// Takes all jobs of a batch, or none of them.
pub async fn submit(
    State(app): State<App>,
    caller: Caller,
    idempotency: Option<Extension<Key>>,
    JsonBody(batch, mut memory): JsonBody<NewBatch>,
) -> ApiResult<(StatusCode, Json<BatchView>)> {
    let bytes = batch.checked_bytes()?;
    // Each job gets a copy of what they have in common, which is charged before it is made.
    memory.grow(bytes, REQUEST_BODY).await.map_err(Problem::from)?;
    let (parallel, ephemeral) = (batch.parallel, batch.common.ephemeral);
    let jobs = offload_if_large(bytes, || batch.into_jobs());
    let key = idempotency.map(|Extension(Key(key))| key);
    let order = Box::new(BatchOrder { jobs, parallel, ephemeral, key });
    let owner = caller.principal;
    let view = app.jobs.call(|reply_to| JobsMsg::SubmitBatch { owner, order, memory, reply_to }).await?;
    Ok((StatusCode::ACCEPTED, Json(view?)))
}

pub async fn list(State(app): State<App>, caller: Caller) -> ApiResult<Json<BatchList>> {
    Ok(Json(BatchList { batches: app.journal.batches(caller.principal, BATCHES_LISTED)? }))
}

pub async fn show(
    Query(query): Query<WaitQuery>,
    BatchRequest { app, id, .. }: BatchRequest,
) -> ApiResult<Json<BatchView>> {
    while query.wait
        && let Some(mut watched) = watch(&app, id).await?
    {
        tokio::select! {
            () = app.shutdown.cancelled() => {
                return Err(Problem::new(Code::ShuttingDown, "the daemon ends; the batch goes on with the next one")
                    .hint("ask for it again when the next daemon runs")
                    .into());
            }
            // Closed when all jobs have ended, or the actor has died; its successor goes on with the batch.
            () = async { while watched.changes.changed().await.is_ok() {} } => {}
        }
    }
    Ok(Json(view_of(&app, id)?))
}

/// A batch with its jobs.
pub fn view_of(app: &App, id: BatchId) -> ApiResult<BatchView> {
    let record = app.journal.batch(id)?.ok_or_else(|| no_such_batch(&id.to_string()))?;
    Ok(BatchView { jobs: app.journal.jobs_of_batch(id)?, ..record.view })
}

/// How long the answer to a cancellation waits for the ends of all jobs.
const CANCELLED_WITHIN: Duration = Duration::from_secs(60);

/// Cancels the jobs that have not ended. The others, and all verdicts, stay.
pub async fn cancel(BatchRequest { app, id, .. }: BatchRequest) -> ApiResult<Json<Done>> {
    let cancelled = app.jobs.call(|reply_to| JobsMsg::CancelBatch { id, reply_to });
    tokio::time::timeout(CANCELLED_WITHIN, cancelled).await.map_err(|_| {
        Problem::new(
            Code::Storage,
            "the batch is being cancelled, and not all its ends are in the journal yet",
        )
        .hint(format!("look at it with `GET {PATH}/{id}`"))
    })??;
    Ok(Json(Done {}))
}

/// Streams what happens to the jobs of a batch; with `follow`, until all have ended.
pub async fn events(
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
    BatchRequest { app, caller, id }: BatchRequest,
) -> ApiResult<Response> {
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    let follow = query.follow.unwrap_or(true);
    let feed = BatchFeed {
        id,
        after,
        watched: if follow { watch(&app, id).await? } else { None },
        follow,
        ended: false,
        pool: app.ledger.memory(caller.principal),
        shutdown: app.shutdown.clone(),
        app,
    };
    Ok(sse::event_stream(Body::from_stream(stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), feed))
    }))))
}

struct BatchFeed {
    app: App,
    id: BatchId,
    /// The number of the last event that was sent.
    after: Seq,
    follow: bool,
    /// Keeps an ephemeral batch going for as long as the stream lasts. None if all its jobs have ended.
    watched: Option<WatchedBatch>,
    ended: bool,
    /// The memory pool of the user who reads the stream.
    pool: Pool,
    shutdown: CancellationToken,
}

impl BatchFeed {
    /// The next chunk of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.ended {
            if let Some(watched) = &mut self.watched {
                // Marked as seen before the journal is read, so that no event between the two is missed.
                watched.changes.borrow_and_update();
            }
            match self.app.journal.next_batch_event(self.id, self.after) {
                Ok(Some(row)) => return Some(self.event_of(row).await),
                Ok(None) => {}
                Err(error) => return Some(self.end_with(&error.into())),
            }
            if let Some(last) = self.last_event() {
                self.ended = true;
                return Some(last);
            }
            let watched = self.watched.as_mut().filter(|_| self.follow)?;
            tokio::select! {
                biased;
                changed = watched.changes.changed() => {
                    if changed.is_err() {
                        // The batch is over, or the actor has died, whose successor goes on with it.
                        self.watched = watch(&self.app, self.id).await.ok().flatten();
                    }
                }
                () = self.shutdown.cancelled() => return None,
                () = tokio::time::sleep(STREAM_KEEPALIVE) => {
                    return Some(Bytes::from_static(KEEPALIVE.as_bytes()));
                }
            }
        }
        None
    }

    /// An event about a job, whose record is charged before it is read.
    async fn event_of(&mut self, row: BatchEventRow) -> Bytes {
        let mut charge = self.pool.open(MemoryPurpose::Streams);
        if row.bytes > SMALL_BYTES && security_controls::holds("stream_charge") {
            match charge.grow(row.bytes.saturating_mul(COPIES), STREAM_KEEPALIVE).await {
                Ok(()) => {}
                Err(no_room) if no_room.is_for_ever() => return self.end_with(&no_room.into()),
                Err(_) => return Bytes::from_static(KEEPALIVE.as_bytes()),
            }
        }
        self.after = row.seq;
        let chunk = offload_if_large(charge.bytes(), || encoded(&self.app.journal, row));
        charge.shrink_to(chunk.len() as u64);
        keep_with(chunk, charge)
    }

    /// The event that ends the stream of a batch all of whose jobs have ended.
    fn last_event(&self) -> Option<Bytes> {
        let record = self.app.journal.batch(self.id).ok().flatten()?;
        record.view.ended_at.as_ref()?;
        let body = BatchEventBody::BatchEnded { ended: record.view.ended, passed: record.view.passed };
        Some(chunk_of(&BatchEvent { seq: record.events + 1, body }))
    }

    fn end_with(&mut self, problem: &Problem) -> Bytes {
        self.ended = true;
        sse::problem(problem)
    }
}

/// The event of a row; only a comment if its job was forgotten meanwhile.
fn encoded(journal: &Journal, row: BatchEventRow) -> Bytes {
    let record = journal.job(row.job).ok().flatten();
    let Some(view) = record.map(|record| record.view) else {
        return Bytes::from_static(KEEPALIVE.as_bytes());
    };
    let index = view.batch.map_or(0, |place| place.index);
    let body = if row.is_end {
        BatchEventBody::JobEnded { index, job: Box::new(view) }
    } else {
        BatchEventBody::JobStarted { index, job: view.id }
    };
    chunk_of(&BatchEvent { seq: row.seq, body })
}

fn chunk_of(event: &BatchEvent) -> Bytes {
    let json = serde_json::to_string(event).unwrap_or_default();
    let mut text = String::new();
    encode(Some(event.seq), event.body.name(), &json, &mut text);
    text.into()
}

/// A request about one batch of the caller's. Administrators reach the jobs of others one by one, which is recorded, and
/// no batches.
pub struct BatchRequest {
    app: App,
    caller: Caller,
    id: BatchId,
}

impl FromRequestParts<App> for BatchRequest {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RefusedRequest> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Path(key) = Path::<String>::from_request_parts(parts, app).await?;
        let id = BatchId(uuid::Uuid::parse_str(&key).map_err(|_| no_such_batch(&key))?);
        let record = app.journal.batch(id)?.ok_or_else(|| no_such_batch(&id.to_string()))?;
        if record.view.owner != caller.principal && security_controls::holds("jobs_have_an_owner") {
            return Err(no_such_batch(&id.to_string()).into());
        }
        Ok(Self { app: app.clone(), caller, id })
    }
}

fn no_such_batch(key: &str) -> Problem {
    Problem::new(Code::NoSuchBatch, format!("there is no batch `{}`", quotable(key)))
        .hint(format!("list yours with `GET {PATH}`"))
}

/// Watches a batch of which some job has not ended.
async fn watch(app: &App, id: BatchId) -> ApiResult<Option<WatchedBatch>> {
    Ok(app.jobs.call(|reply_to| JobsMsg::WatchBatch { id, reply_to }).await?)
}

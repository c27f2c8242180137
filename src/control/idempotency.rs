//! `Idempotency-Key`: a `POST` that is sent twice has one effect and one answer for a day, even if the daemon dies in
//! between. The same key with another request is refused.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Duration;

use super::app::App;
use super::body::{self, ReadBefore};
use super::caller::Caller;
use super::problems::{ApiResult, RefusedRequest};
use super::requests_in_progress::{Entry, WorkGuard};
use super::routes::{batches, cells, sessions};
use crate::actors::session::keyed_request::CellTarget;
use crate::memory::MemoryPurpose;
use crate::protocol::ids::{BatchId, SessionId};
use crate::protocol::limits::{CONNECTIONS_PER_USER, FRAME_BYTES};
use crate::protocol::problem::{Code, Problem};
use crate::store::{Answered, Claim, JournalError};

pub const HEADER: &str = "idempotency-key";
/// The longest key.
pub const KEY_CHARS: usize = 200;
/// The largest answer to a request with a key: a result with all its displays.
const ANSWER_BYTES: usize = 2 * FRAME_BYTES;
/// A larger answer to a cell is not kept for repetitions, because the events of the session contain it.
const CELL_ANSWER_BYTES: usize = 64 * 1024;
/// Bytes charged for a key without its answer: the key itself, hashes and the target.
const KEY_BYTES: u64 = 1024;

/// The key of a request, for handlers that can record early what they are about to create.
#[derive(Clone, Debug)]
pub struct Key(pub String);

/// The target of a key: the session that the request is about to create.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewTarget {
    pub new_session: SessionId,
}

/// The target of a key: the batch that the request created, and which got into the journal together with it.
#[derive(Debug, Deserialize)]
struct BatchTarget {
    new_batch: BatchId,
}

/// How long the answer to a refused request waits for its key to be released.
const FREED_WITHIN: Duration = Duration::from_secs(2);

/// A middleware for all routes. It does nothing for requests without the header.
pub async fn once(
    State(app): State<App>,
    caller: Caller,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let Some(key) = key_of(&request)? else { return Ok(next.run(request).await) };
    let (parts, body) = request.into_parts();
    let limit = usize::try_from(app.settings.api.body).unwrap_or(usize::MAX);
    let charge = app.ledger.memory(caller.principal).open(MemoryPurpose::Requests);
    let (bytes, charge) = body::read(body, limit, charge).await?;
    // An answer that was given to an administrator is not given again to a user who is none any more.
    let method =
        if caller.admin { format!("{} by an administrator", parts.method) } else { parts.method.to_string() };
    let hash = hash(&method, &parts.uri.to_string(), &bytes);
    let work = loop {
        match app.in_work.enter(caller.principal, &key, &hash) {
            Entry::First(work) => break work,
            // The loop ends when the sender is dropped; then there is an answer, or the key is free again.
            Entry::Repetition(mut first) => while first.changed().await.is_ok() {},
            Entry::Conflict => return Err(conflict(&key).into()),
            Entry::TooMany => {
                let message = format!("{CONNECTIONS_PER_USER} requests of yours are in progress");
                return Err(Problem::new(Code::TooMany, message)
                    .hint("ask again when some have ended")
                    .into());
            }
        }
    };
    app.answer_charges.charge(caller.principal, KEY_BYTES).await?;
    let claim = app.journal.claim(caller.principal, &key, &hash).await;
    if !matches!(claim, Ok(Claim::New)) {
        app.answer_charges.refund(caller.principal, KEY_BYTES);
    }
    match claim? {
        Claim::Conflict => return Err(conflict(&key).into()),
        Claim::Known { answer: Some(answer), .. } => return Ok(again(answer)),
        Claim::Known { answer: None, target } if parts.uri.path() == sessions::PATH => {
            if let Some(answer) = made_before(&app, &caller, target).await? {
                return Ok(answer);
            }
        }
        // Without a target there is no batch, and the request runs now.
        Claim::Known { answer: None, target } if parts.uri.path() == batches::PATH => {
            let target = target.and_then(|target| serde_json::from_value::<BatchTarget>(target).ok());
            if let Some(BatchTarget { new_batch }) = target {
                let view = batches::view_of(&app, new_batch)?;
                return Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response());
            }
        }
        // A key gets its target together with its cell, so without a target there is no cell and the request runs now.
        Claim::Known { answer: None, target: None } if cells::is_path(parts.uri.path()) => {}
        Claim::Known { answer: None, target } => return resume(&app, caller, target).await,
        Claim::New => {}
    }
    let mut request = Request::from_parts(parts, Body::from(bytes));
    request.extensions_mut().insert(Key(key.clone()));
    request.extensions_mut().insert(ReadBefore::new(charge));
    // The work goes on if the client disconnects, and its answer is kept for a repetition.
    let done = tokio::spawn(act(app, caller, key, request, next, work));
    done.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))?
}

async fn act(
    app: App,
    caller: Caller,
    key: String,
    request: Request,
    next: Next,
    work: WorkGuard,
) -> ApiResult<Response> {
    let makes_session = request.uri().path() == sessions::PATH;
    let is_cell = cells::is_path(request.uri().path());
    let response = next.run(request).await;
    let (parts, body) = response.into_parts();
    let is_stream = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if is_stream {
        // The answer is a stream of events, which the client can read again anyway.
        return Ok(Response::from_parts(parts, body));
    }
    let bytes = Limited::new(body, ANSWER_BYTES)
        .collect()
        .await
        .map_err(|error| Problem::new(Code::TooLarge, format!("the answer cannot be kept: {error}")))?
        .to_bytes();
    if parts.status.is_success() {
        let found_in_events = is_cell && bytes.len() > CELL_ANSWER_BYTES;
        if found_in_events || app.answer_charges.charge(caller.principal, bytes.len() as u64).await.is_err() {
            drop(work);
            return Ok(Response::from_parts(parts, Body::from(bytes)));
        }
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        app.journal.answer(caller.principal, &key, parts.status.as_u16(), &answer, None).await?;
        drop(work);
    } else {
        // Nothing was done, so the key becomes free for another try. A full disk may delay its release, and the client
        // need not wait for that. For a session, the handler that creates it clears the target: a session that the disk
        // accepted late may exist after all.
        let unwritten = parts.status.as_u16() == Code::Storage.http_status() && !makes_session;
        let freeing = tokio::spawn(async move {
            let freed = async {
                if unwritten {
                    app.journal.aim(caller.principal, &key, None).await?;
                }
                app.journal.release(caller.principal, &key).await?;
                app.answer_charges.refund(caller.principal, KEY_BYTES);
                Ok::<(), JournalError>(())
            };
            if let Err(error) = freed.await {
                tracing::warn!(%error, "a key is kept for what was not done");
            }
            drop(work);
        });
        let _ = tokio::time::timeout(FREED_WITHIN, freeing).await;
    }
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

fn key_of(request: &Request) -> Result<Option<String>, Problem> {
    let Some(value) = request.headers().get(HEADER).filter(|_| request.method() == Method::POST) else {
        return Ok(None);
    };
    let key = value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= KEY_CHARS);
    key.map(|key| Some(key.to_owned())).ok_or_else(|| {
        Problem::new(Code::BadRequest, "the `Idempotency-Key` cannot be used")
            .hint(format!("use 1 to {KEY_CHARS} visible ASCII characters, such as a UUID"))
    })
}

fn hash(method: &str, uri: &str, body: &[u8]) -> String {
    let mut digest = Sha256::new();
    for part in [method.as_bytes(), uri.as_bytes(), body] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex::encode(digest.finalize())
}

fn again(answer: Answered) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let mut response = (status, axum::Json(answer.body)).into_response();
    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

/// Answers a repetition of a request whose answer was not kept, from the target that it was about to create.
async fn resume(app: &App, caller: Caller, target: Option<Value>) -> ApiResult<Response> {
    let target = target.and_then(|target| serde_json::from_value::<CellTarget>(target).ok());
    if let Some(CellTarget { session, cell, result, events_after }) = target {
        let session = app.session(&caller, &session).await?;
        if let Some(after) = events_after {
            return cells::events_of(app, &caller, &session, (after, cell)).await;
        }
        if result {
            return Ok(axum::Json(&*cells::result_of(&session, cell).await?).into_response());
        }
        let view = cells::view_of(&session, cell).await?;
        return Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response());
    }
    Err(RefusedRequest(
        Problem::new(
            Code::OutcomeUnknown,
            "the answer to this request is not known: the daemon ended over it, or there was no room to keep it",
        )
            .hint("look at `GET /v1/sessions` for what was done, then ask anew with another key"),
    ))
}

/// The session that the first request created. `None` if there is none: a session that was never ready did not survive
/// the daemon's death, one that was removed is gone, and a request without a target was never begun.
async fn made_before(app: &App, caller: &Caller, target: Option<Value>) -> ApiResult<Option<Response>> {
    let target = target.and_then(|target| serde_json::from_value::<NewTarget>(target).ok());
    let Some(NewTarget { new_session: id }) = target else { return Ok(None) };
    if !app.journal.was_ready(id)? || !app.journal.is_living(id)? {
        return Ok(None);
    }
    let view = sessions::view_of(&app.session(caller, &id.to_string()).await?).await?;
    Ok(Some((StatusCode::CREATED, axum::Json(view)).into_response()))
}

fn conflict(key: &str) -> Problem {
    Problem::new(Code::KeyReused, format!("the key `{}` was used for another request", key.escape_default()))
        .hint("use a new key for each request, and the same one only to repeat it")
}

//! `Idempotency-Key`: a `POST` that is sent twice has one effect and one answer, for a day, also if
//! the daemon dies in between. The same key with another request is refused.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

use super::body::{self, ReadBefore};
use super::peer::Peer;
use super::problems::{ApiResult, Refused};
use super::routes::{App, cells, sessions};
use crate::actors::session::keyed::CellTarget;
use crate::memory::MemoryPurpose;
use crate::protocol::ids::SessionId;
use crate::protocol::limits::FRAME_BYTES;
use crate::protocol::problem::{Code, Problem};
use crate::store::{Answered, Claim, JournalError};

pub const HEADER: &str = "idempotency-key";
const KEY_CHARS: usize = 200;
/// Largest answer to a request with a key: a result with all its displays.
const ANSWER_BYTES: usize = 2 * FRAME_BYTES;
/// The answer to a cell that is larger is not kept for a repetition: the events of the session have it.
const CELL_ANSWER_BYTES: usize = 64 * 1024;
/// What a key costs without its answer: the key itself, hashes, what it leads to.
const KEY_BYTES: u64 = 1024;

/// The key of a request, for handlers that can say early what they are about to make.
#[derive(Clone, Debug)]
pub struct Key(pub String);

/// A session that a request with a key is about to make.
#[derive(Debug, Serialize, Deserialize)]
pub struct NewTarget {
    pub new_session: SessionId,
}

/// Requests with a key that are being worked on: a repetition waits for the first.
#[derive(Clone, Default)]
pub struct InWork(Arc<Mutex<Waiting>>);

/// By owner and key.
type Waiting = HashMap<(u32, String), First>;

struct First {
    hash: String,
    /// Ends with the work.
    done: watch::Receiver<()>,
}

enum Entry {
    /// Nobody else works on it.
    First(Work),
    /// Somebody does, and ends some time.
    Repetition(watch::Receiver<()>),
    /// Somebody works on another request with that key.
    Conflict,
}

impl InWork {
    /// In one step, before the journal is asked: of two that come at once, one waits.
    fn enter(&self, owner: u32, key: &str, hash: &str) -> Entry {
        let at = (owner, key.to_owned());
        let mut waiting = self.0.lock();
        match waiting.get(&at) {
            Some(first) if first.hash == hash => Entry::Repetition(first.done.clone()),
            Some(_) => Entry::Conflict,
            None => {
                let (sender, done) = watch::channel(());
                waiting.insert(at.clone(), First { hash: hash.to_owned(), done });
                Entry::First(Work { all: self.clone(), at, _done: sender })
            }
        }
    }
}

/// Whoever waits is woken when this is dropped.
struct Work {
    all: InWork,
    at: (u32, String),
    _done: watch::Sender<()>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.at);
    }
}

/// Longest wait of a client that was refused for its key to be free again.
const FREED_WITHIN: Duration = Duration::from_secs(2);

/// Around every route. Without the header it does nothing.
pub async fn once(State(app): State<App>, peer: Peer, request: Request, next: Next) -> ApiResult<Response> {
    let Some(key) = key_of(&request)? else { return Ok(next.run(request).await) };
    let (parts, body) = request.into_parts();
    let limit = usize::try_from(app.settings.api.body).unwrap_or(usize::MAX);
    let charge = app.ledger.memory(peer.uid).open(MemoryPurpose::Requests);
    let (bytes, charge) = body::read(body, limit, charge).await?;
    let hash = hash(parts.method.as_str(), &parts.uri.to_string(), &bytes);
    let work = loop {
        match app.in_work.enter(peer.uid, &key, &hash) {
            Entry::First(work) => break work,
            // Ends with the sender; then there is an answer, or the key is free again.
            Entry::Repetition(mut first) => while first.changed().await.is_ok() {},
            Entry::Conflict => return Err(conflict(&key).into()),
        }
    };
    app.key_accounts.charge(peer.uid, KEY_BYTES)?;
    let claim = app.journal.claim(peer.uid, &key, &hash).await;
    if !matches!(claim, Ok(Claim::New)) {
        app.key_accounts.refund(peer.uid, KEY_BYTES);
    }
    match claim.map_err(Problem::from)? {
        Claim::Conflict => return Err(conflict(&key).into()),
        Claim::Known { answer: Some(answer), .. } => return Ok(again(answer)),
        Claim::Known { answer: None, target } if parts.uri.path() == sessions::PATH => {
            if let Some(answer) = made_before(&app, &peer, target).await? {
                return Ok(answer);
            }
        }
        // A key leads to its cell as soon as there is one.
        Claim::Known { answer: None, target: None } if cells::is_path(parts.uri.path()) => {}
        Claim::Known { answer: None, target } => return resume(&app, peer, target).await,
        Claim::New => {}
    }
    let mut request = Request::from_parts(parts, Body::from(bytes));
    request.extensions_mut().insert(Key(key.clone()));
    request.extensions_mut().insert(ReadBefore::new(charge));
    // The client may leave: the work and its answer are for whoever asks again.
    let done = tokio::spawn(act(app, peer, key, request, next, work));
    done.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))?
}

async fn act(
    app: App,
    peer: Peer,
    key: String,
    request: Request,
    next: Next,
    work: Work,
) -> ApiResult<Response> {
    let makes_session = request.uri().path() == sessions::PATH;
    let is_cell = cells::is_path(request.uri().path());
    let response = next.run(request).await;
    let (parts, body) = response.into_parts();
    let is_stream = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if is_stream {
        // Its answer is the stream of events, which can be read again anyway.
        return Ok(Response::from_parts(parts, body));
    }
    let bytes = Limited::new(body, ANSWER_BYTES)
        .collect()
        .await
        .map_err(|error| Problem::new(Code::TooLarge, format!("the answer cannot be kept: {error}")))?
        .to_bytes();
    if parts.status.is_success() {
        let found_in_events = is_cell && bytes.len() > CELL_ANSWER_BYTES;
        if found_in_events || app.key_accounts.charge(peer.uid, bytes.len() as u64).is_err() {
            drop(work);
            return Ok(Response::from_parts(parts, Body::from(bytes)));
        }
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let kept = app.journal.answer(peer.uid, &key, parts.status.as_u16(), &answer, None).await;
        kept.map_err(Problem::from)?;
        drop(work);
    } else {
        // Nothing was done, so the key may be used for a better try as soon as the client knows. A disk that is full
        // now may take long to say so, and the client need not wait for that.
        // What became of a session is known where it is made: one that the disk took late may be there after all.
        let unwritten = parts.status.as_u16() == Code::Storage.http_status() && !makes_session;
        let freeing = tokio::spawn(async move {
            let freed = async {
                if unwritten {
                    app.journal.aim(peer.uid, &key, None).await?;
                }
                app.journal.release(peer.uid, &key).await?;
                app.key_accounts.refund(peer.uid, KEY_BYTES);
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

/// The daemon died over the first request. What it was about to make may tell the answer.
async fn resume(app: &App, peer: Peer, target: Option<Value>) -> ApiResult<Response> {
    let target = target.and_then(|target| serde_json::from_value::<CellTarget>(target).ok());
    if let Some(CellTarget { session, cell, result, events_after }) = target {
        let session = app.session(&peer, &session).await?;
        if let Some(after) = events_after {
            return cells::events_of(app, &peer, &session, (after, cell)).await;
        }
        if result {
            return Ok(axum::Json(cells::result_of(&session, cell).await?).into_response());
        }
        let view = cells::view_of(&session, cell).await?;
        return Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response());
    }
    Err(Refused(
        Problem::new(
            Code::OutcomeUnknown,
            "the answer to this request is not known: the daemon ended over it, or there was no room to keep it",
        )
            .hint("look at `GET /v1/sessions` for what was done, then ask anew with another key"),
    ))
}

/// The session that the first request made. None if it came to nothing: one that was never ready did not
/// outlive the daemon, one that was taken back is gone, and what had no target was not begun.
async fn made_before(app: &App, peer: &Peer, target: Option<Value>) -> ApiResult<Option<Response>> {
    let target = target.and_then(|target| serde_json::from_value::<NewTarget>(target).ok());
    let Some(NewTarget { new_session: id }) = target else { return Ok(None) };
    let (journal, failed) = (&app.journal, Problem::from);
    if !journal.was_ready(id).map_err(failed)? || !journal.is_living(id).map_err(failed)? {
        return Ok(None);
    }
    let view = sessions::view_of(app, peer, &id.to_string()).await?;
    Ok(Some((StatusCode::CREATED, axum::Json(view)).into_response()))
}

fn conflict(key: &str) -> Problem {
    Problem::new(Code::KeyReused, format!("the key `{}` was used for another request", key.escape_default()))
        .hint("use a new key for each request, and the same one only to repeat it")
}

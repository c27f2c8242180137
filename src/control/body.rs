//! JSON bodies, query strings and paths: bounded in size and time; a refusal names the place of the mistake.

use axum::body::Body;
use axum::body::HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, TryStreamExt, stream};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

use super::app::App;
use super::caller::Caller;
use super::problems::{ApiResult, RefusedRequest};
use super::request_slots::{Connection, RequestSlot};
use crate::memory::{Charge, MemoryPurpose, Pool, SMALL_BYTES, offload_if_large};
use crate::protocol::limits::REQUEST_BODY;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::values;
use crate::security_controls;

/// A JSON body, and its charge to the sender's share of the memory; an empty body counts as `{}`. The charge goes with
/// the body into the message to an actor: hyper drops a handler as soon as its client hangs up, and the message stays.
pub struct JsonBody<T>(pub T, pub Charge);

/// The charge of a body that the idempotency layer has already read, for the handler that reads it again.
#[derive(Clone)]
pub struct ReadBefore(Arc<Mutex<Option<Charge>>>);

impl ReadBefore {
    pub fn new(charge: Charge) -> Self {
        Self(Arc::new(Mutex::new(Some(charge))))
    }

    fn take(&self) -> Option<Charge> {
        self.0.lock().take()
    }
}

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = RefusedRequest;

    async fn from_request(request: Request, app: &App) -> Result<Self, RefusedRequest> {
        let limit = security_controls::setting("body_size_limit", app.settings.api.body);
        let limit = limit.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        let charge = parts.extensions.get::<ReadBefore>().and_then(ReadBefore::take);
        let charge =
            charge.unwrap_or_else(|| app.ledger.memory(caller.principal).open(MemoryPurpose::Requests));
        let (bytes, mut charge) = read(body, limit, charge).await?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            Problem::new(Code::BadRequest, format!("the body is not UTF-8: {error}"))
                .hint("send the text as UTF-8")
        })?;
        let parsed =
            if security_controls::holds("json_values_charge") { values::parsed_bytes(text) } else { 0 };
        if bytes.len() as u64 + parsed > SMALL_BYTES {
            charge.grow(parsed, REQUEST_BODY).await.map_err(Problem::from)?;
        }
        let text = if text.trim().is_empty() { "{}" } else { text };
        let value = offload_if_large(text.len() as u64, || parse(text))?;
        drop(bytes);
        charge.shrink_to(parsed);
        let connection = parts.extensions.remove::<Connection>();
        Ok(Self(value, charge.keeping(connection.map(|Connection(slot)| slot as _))))
    }
}

/// Reads a whole body. It is charged by the bytes that arrive and not by the announced length, so a client that
/// announces much and sends nothing holds no memory. While there is no room, reading pauses, until the time for the
/// body is over.
pub async fn read(body: Body, limit: usize, mut charge: Charge) -> Result<(bytes::Bytes, Charge), Problem> {
    let deadline = Instant::now() + REQUEST_BODY;
    let (mut body, mut read) = (body, bytes::BytesMut::new());
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            Problem::new(Code::TooSlow, format!("the body took longer than {} s", REQUEST_BODY.as_secs()))
        })?;
        let frame = match frame {
            None => return Ok((read.freeze(), charge)),
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                return Err(Problem::new(Code::BadRequest, format!("the body could not be read: {error}")));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        let size = read.len().saturating_add(data.len());
        if size > limit {
            return Err(Problem::new(Code::TooLarge, format!("the body is larger than {limit} bytes"))
                .hint("send large data as a file (`belljar cp`), or raise `api.body`"));
        }
        let more = (size as u64).saturating_sub(charge.bytes());
        if size as u64 > SMALL_BYTES && more > 0 && security_controls::holds("body_charge") {
            let patience = deadline.saturating_duration_since(Instant::now());
            charge.grow(more, patience).await.map_err(Problem::from)?;
        }
        read.extend_from_slice(&data);
    }
}

/// An answer that is charged until it is sent or its client is gone. Without room for it, the answer is a problem.
pub fn charged(pool: &Pool, bytes: bytes::Bytes) -> Result<Body, Problem> {
    if bytes.len() as u64 <= SMALL_BYTES || !security_controls::holds("answer_memory_charge") {
        return Ok(Body::from(bytes));
    }
    let charge = pool.try_charge(MemoryPurpose::Answers, bytes.len() as u64)?;
    Ok(Body::from(keep_with(bytes, charge)))
}

/// A middleware for all routes: charges a large answer until the client has read it. Streams have charges of their own.
pub async fn charge_answer(
    State(app): State<App>,
    caller: Caller,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let response = next.run(request).await;
    let is_large = response.body().size_hint().exact().is_some_and(|bytes| bytes > SMALL_BYTES);
    if !is_large {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let unread = |error: axum::Error| Problem::new(Code::Internal, error.to_string());
    let bytes = body.collect().await.map_err(unread)?.to_bytes();
    Ok(Response::from_parts(parts, charged(&app.ledger.memory(caller.principal), bytes)?))
}

/// Bytes whose charge is released when the last reference to them is dropped.
pub fn keep_with(bytes: bytes::Bytes, charge: Charge) -> bytes::Bytes {
    struct ChargedBytes(bytes::Bytes, #[expect(dead_code, reason = "dropped with the bytes")] Charge);
    impl AsRef<[u8]> for ChargedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    bytes::Bytes::from_owner(ChargedBytes(bytes, charge))
}

/// A body as a stream with a time limit for each chunk, so that a client that stops sending does not hold a thread for
/// long.
pub fn in_time(body: Body) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + Unpin {
    each_within(REQUEST_BODY, body)
}

fn each_within(
    time: Duration,
    body: Body,
) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + Unpin {
    Box::pin(stream::unfold(body.into_data_stream(), move |mut body| async move {
        let chunk = match tokio::time::timeout(time, body.try_next()).await {
            Ok(Ok(chunk)) => Ok(chunk?),
            Ok(Err(error)) => Err(std::io::Error::other(error)),
            Err(_) => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("nothing came for {} s", time.as_secs()),
            )),
        };
        Some((chunk, body))
    }))
}

/// Takes one of the user's slots for uploads.
pub fn upload_slot(app: &App, user: Principal) -> Result<RequestSlot, Problem> {
    app.uploads.take(user).ok_or_else(|| {
        Problem::new(Code::TooMany, "too many files are being sent at once").hint("send some of them later")
    })
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let bad = |message: String| Problem::new(Code::BadRequest, message).hint("see `GET /openapi.json`");
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let at_path = if path == "." { String::new() } else { format!(" at `{path}`") };
        bad(format!("the body is not what it should be{at_path}: {}", error.inner()))
    })?;
    deserializer.end().map_err(|error| bad(format!("something follows the JSON body: {error}")))?;
    values::check_integers(text)
        .map_err(|problem| Problem::new(Code::BadRequest, format!("the body cannot be taken: {problem}")))?;
    Ok(value)
}

/// A query string; a mistake in it is refused with a message.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, RefusedRequest> {
        let parsed = axum::extract::Query::try_from_uri(&parts.uri);
        parsed
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|error| query_problem(&error.body_text()).into())
    }
}

/// Words the library's message about a query string, which begins with the parameter if it is known.
fn query_problem(text: &str) -> Problem {
    let text = text.rsplit_once("query string: ").map_or(text, |(_, rest)| rest);
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let message = match text.split_once(": ").filter(|(name, _)| is_name(name)) {
        Some((name, why)) => format!("the parameter `{name}` of the query is not what it should be: {why}"),
        None => format!("the query is not what it should be: {text}"),
    };
    Problem::new(Code::BadRequest, message).hint("`GET /openapi.json` has the parameters of each path")
}

/// The parameters in the path; a mistake in them is refused with a message.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RefusedRequest> {
        axum::extract::Path::from_request_parts(parts, app)
            .await
            .map(|axum::extract::Path(value)| Self(value))
            .map_err(|error| {
                Problem::new(Code::BadRequest, error.body_text()).hint("see `GET /openapi.json`").into()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::api::RunCell;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn whoever_stops_sending_is_not_waited_for() {
        let first = stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"begun"))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let mut received = each_within(Duration::from_millis(10), body);
        assert_eq!(received.try_next().await.unwrap().unwrap(), "begun");
        assert_eq!(received.try_next().await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_wrong_query_is_told_with_its_parameter() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Parameters {
            wait: Option<bool>,
        }
        let told = |query: &str| {
            let uri: axum::http::Uri = format!("/x?{query}").parse().unwrap();
            let error = axum::extract::Query::<Parameters>::try_from_uri(&uri).unwrap_err();
            query_problem(&error.body_text()).message
        };
        let message = told("wait=maybe");
        assert!(
            message.starts_with("the parameter `wait` of the query is not what it should be: "),
            "{message}"
        );
        let message = told("tiemout=3");
        assert!(message.contains("`tiemout`") && !message.contains("deserialize"), "{message}");
    }

    #[test]
    fn a_wrong_body_is_told_with_its_place() {
        let problem = parse::<RunCell>(r#"{"code": 1}"#).unwrap_err();
        assert!(problem.message.contains("at `code`"), "{}", problem.message);
        let problem = parse::<RunCell>(r#"{"code": "1", "tiemout_s": 3}"#).unwrap_err();
        assert!(problem.message.contains("tiemout_s"), "{}", problem.message);
        assert!(parse::<RunCell>(r#"{"code": "1"} x"#).is_err());
        assert!(parse::<RunCell>(r#"{"code": "1"}"#).is_ok());
        assert!(parse::<serde_json::Value>(r#"{"n": 99999999999999999999}"#).is_err());
    }
}

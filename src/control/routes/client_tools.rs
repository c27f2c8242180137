//! Tools that a connected client lends to a session. They are there as long as its stream is.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;

use super::{App, ask_patiently};
use crate::actors::session::SessionMsg;
use crate::control::body::{JsonBody, Path};
use crate::control::peer::Peer;
use crate::control::problems::Answer;
use crate::protocol::api::Done;
use crate::protocol::limits::STREAM_KEEPALIVE;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::tool::{ClientAnswer, NewClientTools};

/// Answers with a stream of calls, each an event `tool_call` with a `ClientCall`.
pub async fn lend(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
    JsonBody(new): JsonBody<NewClientTools>,
) -> Answer<Response> {
    let session = app.session(&peer, &key).await?;
    let lease = ask_patiently(&session, |reply_to| SessionMsg::Lend { tools: new.tools, reply_to }).await?;
    let shutdown = app.shutdown.clone();
    let ready = Some(Bytes::from_static(b"event: ready\ndata: {}\n\n"));
    let calls = stream::unfold((lease, ready), move |(mut lease, ready)| {
        let shutdown = shutdown.clone();
        async move {
            if let Some(ready) = ready {
                return Some((Ok::<Bytes, Infallible>(ready), (lease, None)));
            }
            let chunk = tokio::select! {
                call = lease.next_call() => {
                    let json = serde_json::to_string(&call?).ok()?;
                    Bytes::from(format!("event: tool_call\ndata: {json}\n\n"))
                }
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(STREAM_KEEPALIVE) => Bytes::from_static(b": still here\n\n"),
            };
            Some((Ok(chunk), (lease, None)))
        }
    });
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header(header::CACHE_CONTROL, "no-store")
        .body(Body::from_stream(calls));
    Ok(response.map_err(|error| Problem::new(Code::Internal, error.to_string()))?)
}

pub async fn answer(
    State(app): State<App>,
    peer: Peer,
    Path((key, call)): Path<(String, String)>,
    JsonBody(answer): JsonBody<ClientAnswer>,
) -> Answer<Json<Done>> {
    let session = app.session(&peer, &key).await?;
    ask_patiently(&session, |reply_to| SessionMsg::AnswerCall { call, answer, reply_to }).await?;
    Ok(Json(Done {}))
}

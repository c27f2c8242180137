//! Tools that a connected client lends to a session, for as long as the client's stream is open.

use axum::Json;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;

use super::requests::SessionRequest;
use crate::actors::session::messages::SessionMsg;
use crate::control::body::{JsonBody, Path, keep_with};
use crate::control::problems::ApiResult;
use crate::control::sse::event_stream;
use crate::memory::MemoryPurpose;
use crate::protocol::api::Done;
use crate::protocol::limits::STREAM_KEEPALIVE;
use crate::protocol::tool::{ClientAnswer, NewClientTools};

/// Answers with a stream of calls, each an event `tool_call` with a `ClientCall`.
pub async fn lend(
    request: SessionRequest,
    JsonBody(new, memory): JsonBody<NewClientTools>,
) -> ApiResult<Response> {
    let lease = request.try_call(|reply_to| SessionMsg::Lend { new, memory, reply_to }).await?;
    let SessionRequest { app, caller, .. } = request;
    let (shutdown, pool) = (app.shutdown, app.ledger.memory(caller.principal));
    let ready = Some(Bytes::from_static(b"event: ready\ndata: {}\n\n"));
    let calls = stream::unfold((lease, ready), move |(mut lease, ready)| {
        let (shutdown, pool) = (shutdown.clone(), pool.clone());
        async move {
            if let Some(ready) = ready {
                return Some((Ok::<Bytes, Infallible>(ready), (lease, None)));
            }
            let chunk = tokio::select! {
                call = lease.next_call() => {
                    let (call, _memory) = call?;
                    let json = serde_json::to_string(&call).ok()?;
                    let chunk = Bytes::from(format!("event: tool_call\ndata: {json}\n\n"));
                    // The charge for the call's arguments ends here, so the text that the client has to read is charged
                    // instead.
                    let charge = pool.charge_anyway(MemoryPurpose::Streams, chunk.len() as u64);
                    keep_with(chunk, charge)
                }
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(STREAM_KEEPALIVE) => Bytes::from_static(b": still here\n\n"),
            };
            Some((Ok(chunk), (lease, None)))
        }
    });
    Ok(event_stream(Body::from_stream(calls)))
}

pub async fn answer(
    request: SessionRequest,
    Path((_, call)): Path<(String, String)>,
    JsonBody(answer, memory): JsonBody<ClientAnswer>,
) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::AnswerCall { call, answer, memory, reply_to }).await
}

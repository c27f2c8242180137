//! The event stream of a session, and a connection that keeps an ephemeral session alive.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use std::convert::Infallible;

use super::requests::SessionRequest;
use crate::actors::calls::try_call;
use crate::actors::session::messages::SessionMsg;
use crate::control::body::Query;
use crate::control::problems::ApiResult;
use crate::control::sse::{Until, event_stream};
use crate::protocol::ids::Seq;
use crate::protocol::limits::STREAM_KEEPALIVE;
use crate::protocol::problem::{Code, Problem};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    pub after: Option<Seq>,
    pub follow: Option<bool>,
}

/// Streams from `Last-Event-ID` or `after`; without either, from the oldest event that is kept.
pub async fn stream(
    request: SessionRequest,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> ApiResult<Response> {
    let (_, handles) = request.handles().await?;
    let after = match (query.after, last_event_id(&headers)?) {
        (_, Some(after)) | (Some(after), None) => after,
        (None, None) => handles.log.read(0, 1).err().map_or(0, |gone| gone.first - 1),
    };
    let until = if query.follow.unwrap_or(true) { Until::SessionEnd } else { Until::Now };
    request.app.stream(&request.caller, handles.log, after, until)
}

pub fn last_event_id(headers: &HeaderMap) -> Result<Option<Seq>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        Problem::new(Code::BadRequest, "`Last-Event-ID` is no number of an event")
            .hint("send the `id` of the last event that was seen, or leave it out")
    })
}

/// Sends a line at once and then at intervals, because only a failed write shows that the client is gone.
pub async fn hold(request: SessionRequest) -> ApiResult<Response> {
    let session = request.session().await?;
    let hold = try_call(&session, |reply_to| SessionMsg::Hold { reply_to }).await?;
    let shutdown = request.app.shutdown;
    let body = Body::from_stream(stream::unfold((hold, true), move |(hold, first)| {
        let (session, shutdown) = (session.clone(), shutdown.clone());
        async move {
            if first {
                return Some((Ok::<Bytes, Infallible>(Bytes::from_static(b": held\n\n")), (hold, false)));
            }
            tokio::select! {
                () = shutdown.cancelled() => None,
                _ = session.wait(None) => None,
                () = tokio::time::sleep(STREAM_KEEPALIVE) => {
                    Some((Ok(Bytes::from_static(b": still held\n\n")), (hold, false)))
                }
            }
        }
    }));
    Ok(event_stream(body))
}

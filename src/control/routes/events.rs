//! The event stream of a session.

use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

use super::SessionRequest;
use crate::control::body::Query;
use crate::control::problems::ApiResult;
use crate::control::sse::Until;
use crate::protocol::ids::Seq;
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
    request.app.stream(&request.peer, handles.log, after, until)
}

pub fn last_event_id(headers: &HeaderMap) -> Result<Option<Seq>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        Problem::new(Code::BadRequest, "`Last-Event-ID` is no number of an event")
            .hint("send the `id` of the last event that was seen, or leave it out")
    })
}

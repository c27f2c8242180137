//! A connection that keeps an ephemeral session alive for as long as it lasts.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;

use super::SessionRequest;
use crate::actors::calls::ask;
use crate::actors::session::messages::SessionMsg;
use crate::control::problems::ApiResult;
use crate::control::sse::event_stream;
use crate::protocol::limits::STREAM_KEEPALIVE;

/// Sends a line at once and then at intervals, because only a failed write shows that the client is gone.
pub async fn hold(request: SessionRequest) -> ApiResult<Response> {
    let session = request.session().await?;
    let hold = ask(&session, |reply_to| SessionMsg::Hold { reply_to }).await?;
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

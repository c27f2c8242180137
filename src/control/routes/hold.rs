//! A connection that keeps an ephemeral session alive for as long as it lasts.

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;

use super::App;
use crate::actors::calls::ask;
use crate::actors::session::messages::SessionMsg;
use crate::control::body::Path;
use crate::control::peer::Peer;
use crate::control::problems::ApiResult;
use crate::protocol::limits::STREAM_KEEPALIVE;
use crate::protocol::problem::{Code, Problem};

/// Sends a line at once and then at intervals, because only a failed write shows that the client is gone.
pub async fn hold(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Response> {
    let session = app.session(&peer, &key).await?;
    let hold = ask(&session, |reply_to| SessionMsg::Hold { reply_to }).await?;
    let shutdown = app.shutdown.clone();
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
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header(header::CACHE_CONTROL, "no-store")
        .body(body);
    response.map_err(|error| Problem::new(Code::Internal, error.to_string()).into())
}

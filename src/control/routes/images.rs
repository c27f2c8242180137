//! Lists and pulls images.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::sync::mpsc;

use super::App;
use crate::control::body::JsonBody;
use crate::control::peer::Peer;
use crate::control::problems::ApiResult;
use crate::controls;
use crate::protocol::api::{ImageList, PullImage};

/// Progress lines that wait for the client; a slow client misses some.
const PROGRESS_LINES: usize = 64;

pub async fn list(State(app): State<App>) -> ApiResult<Json<ImageList>> {
    Ok(Json(app.launcher.images().await?))
}

/// Answers with a line of JSON for each step, and a last one with `done` or `problem`.
pub async fn pull(
    State(app): State<App>,
    peer: Peer,
    JsonBody(body, _charge): JsonBody<PullImage>,
) -> ApiResult<Response> {
    // A pull changes for all users which image a name refers to.
    if app.launcher.paths.system() && controls::holds("pulls_are_for_administrators") {
        peer.require_admin(&app.settings.admin.group, "get images for all users")?;
    }
    let (sender, receiver) = mpsc::channel::<Value>(PROGRESS_LINES);
    tokio::spawn(async move {
        let steps = sender.clone();
        let progress = move |line: String| drop(steps.try_send(json!({ "status": line })));
        let pull = app.launcher.docker.pull(&body.reference, progress);
        let outcome = tokio::select! {
            outcome = pull => outcome,
            // The client is gone, so the pull is cancelled: no other request could end it.
            () = sender.closed() => return,
        };
        let last = match outcome {
            Ok(()) => json!({ "done": true }),
            Err(problem) => json!({ "problem": problem }),
        };
        let _ = sender.send(last).await;
    });
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line = receiver.recv().await?;
        Some((Ok::<Bytes, Infallible>(Bytes::from(format!("{line}\n"))), receiver))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

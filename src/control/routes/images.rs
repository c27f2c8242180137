//! Images: list, get, build and remove. The user who builds an image may use it; administrators see and remove those of
//! others.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::control::app::App;
use crate::control::body::{JsonBody, Path};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::api::{Done, ImageList, PullImage};
use crate::protocol::image::BuildImage;
use crate::protocol::problem::Problem;
use crate::sandbox::image_build::{BuildCaller, ImageRecipe};
use crate::security_controls;

/// Progress lines that wait for the client; a slow client misses some.
const PROGRESS_LINES: usize = 64;

#[derive(Deserialize)]
pub struct ImageParameter {
    /// `NAME` or `NAME:TAG`.
    image: String,
}

pub async fn list(State(app): State<App>, caller: Caller) -> ApiResult<Json<ImageList>> {
    let seen = (!caller.admin).then_some(caller.principal);
    Ok(Json(app.launcher.images(seen).await?))
}

/// Answers with a line of JSON for each step, and a last one with `done` or `problem`.
pub async fn pull(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body, _charge): JsonBody<PullImage>,
) -> ApiResult<Response> {
    // A pull changes for all users which image a name refers to.
    if app.launcher.paths.system() && security_controls::holds("pulls_are_for_administrators") {
        caller.require_admin(&app.live().admin.group, "get images for all users")?;
    }
    let pull = |steps: Steps, stop: CancellationToken| async move {
        let progress = move |line: String| drop(steps.try_send(json!({ "status": line })));
        let pull = app.launcher.docker.pull(&body.reference, progress);
        stop.run_until_cancelled(pull).await.transpose()?;
        Ok(json!({ "done": true }))
    };
    Ok(told(pull))
}

/// Answers as `pull` does; the last line has the `image`, too.
pub async fn build(
    State(app): State<App>,
    caller: Caller,
    JsonBody(body, _charge): JsonBody<BuildImage>,
) -> ApiResult<Response> {
    // The images of all users take room and names in one engine, and the steps of a Dockerfile have its rights.
    if app.launcher.paths.system() && security_controls::holds("builds_are_for_administrators") {
        caller.require_admin(&app.live().admin.group, "build images in the machine's engine")?;
    }
    let recipe = ImageRecipe::of(body, &app.settings.sandbox.images, &app.settings.packages)?;
    let build = |steps: Steps, stop: CancellationToken| async move {
        let progress = move |line: String| drop(steps.try_send(json!({ "status": line })));
        let (owner, ledger) = (caller.principal, &app.ledger);
        let caller = BuildCaller { owner, ledger, progress: &progress, stop: &stop };
        let built = app.launcher.build_image(caller, recipe).await?;
        Ok(json!({ "done": true, "image": built }))
    };
    Ok(told(build))
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(ImageParameter { image }): Path<ImageParameter>,
) -> ApiResult<Json<Done>> {
    app.launcher.remove_built_image(&image, |owner| caller.reaches(owner)).await?;
    Ok(Json(Done {}))
}

type Steps = mpsc::Sender<Value>;

/// Begins work that tells its steps, and answers with them and its outcome, a line for each. The work is stopped when the
/// client leaves, because no other request could end it, and goes on until it has given back what it holds.
fn told<Work>(work: impl FnOnce(Steps, CancellationToken) -> Work) -> Response
where
    Work: Future<Output = Result<Value, Problem>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel::<Value>(PROGRESS_LINES);
    let stop = CancellationToken::new();
    let work = work(sender.clone(), stop.clone());
    tokio::spawn(async move {
        let mut work = std::pin::pin!(work);
        let outcome = tokio::select! {
            outcome = &mut work => outcome,
            () = sender.closed() => {
                stop.cancel();
                work.await
            }
        };
        let last = outcome.unwrap_or_else(|problem| json!({ "problem": problem }));
        let _ = sender.send(last).await;
    });
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line = receiver.recv().await?;
        Some((Ok::<Bytes, Infallible>(Bytes::from(format!("{line}\n"))), receiver))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

//! Files of a workspace. The blocking work happens on its own threads; bytes are streamed.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};

use super::{App, ask_patiently};
use crate::actors::session::{Handles, SessionMsg, SessionRef};
use crate::control::body::{Path, in_time, upload_place};
use crate::control::peer::Peer;
use crate::control::problems::{Answer, Refused};
use crate::protocol::api::{Done, FolderView, LEFT_OUT};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::sandbox::files::{self, Opened, Upload};
use crate::sandbox::usage;
use crate::sandbox::workspace::Workspace;

const TAR: &str = "application/x-tar";
const CHUNK: usize = 64 * 1024;
/// How long the rest of a body is read that is not wanted.
const PASS_OVER: Duration = Duration::from_secs(5);

async fn workspace(app: &App, peer: &Peer, key: &str) -> Answer<(SessionRef, Arc<Workspace>)> {
    let (session, handles) = handles(app, peer, key).await?;
    Ok((session, handles.workspace))
}

async fn handles(app: &App, peer: &Peer, key: &str) -> Answer<(SessionRef, Handles)> {
    let session = app.session(peer, key).await?;
    let handles = ask_patiently(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
    Ok((session, handles))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Answer<T> {
    let outcome = tokio::task::spawn_blocking(work).await;
    outcome.map_err(|error| Problem::new(Code::Internal, error.to_string()))?.map_err(Refused)
}

pub async fn get_root(
    app: State<App>,
    peer: Peer,
    Path(key): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    get(app, peer, Path((key, String::new())), headers).await
}

pub async fn get(
    State(app): State<App>,
    peer: Peer,
    Path((key, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (_, workspace) = workspace(&app, &peer, &key).await?;
    let path = files::clean(&path)?;
    let as_json = accepts_json(&headers);
    let shown = path.clone();
    let opened = blocking(move || files::open(&workspace, &path)).await?;
    match opened {
        Opened::File { file, bytes } => {
            let body = Body::from_stream(ReaderStream::with_capacity(
                tokio::io::AsyncReadExt::take(tokio::fs::File::from_std(file), bytes),
                CHUNK,
            ));
            let kind = (header::CONTENT_TYPE, "application/octet-stream".to_owned());
            Ok(([kind, (header::CONTENT_LENGTH, bytes.to_string())], body).into_response())
        }
        Opened::Folder(folder) if as_json => {
            let (entries, truncated) = blocking({
                let shown = shown.clone();
                move || files::list(&folder, shown.as_ref())
            })
            .await?;
            Ok(Json(FolderView { path: shown, entries, truncated }).into_response())
        }
        Opened::Folder(folder) => {
            let (reader, writer) = tokio::io::duplex(CHUNK);
            let (told, outcome) = oneshot::channel();
            tokio::task::spawn_blocking(move || {
                let mut writer = SyncIoBridge::new(writer);
                let written = files::write_tar(&folder, &mut writer);
                if let Err(error) = &written {
                    tracing::warn!(%error, "a folder could not be sent whole");
                }
                // Before the stream is seen to end: then it is known how.
                let _ = told.send(written);
                let _ = writer.shutdown();
            });
            let kind = [(header::CONTENT_TYPE, TAR), (header::TRAILER, LEFT_OUT)];
            let data = ReaderStream::new(reader).map_ok(Frame::data);
            // Half a folder ends as a body that broke off, never as one that is over.
            let end = stream::once(outcome)
                .map(|outcome| outcome.unwrap_or_else(|gone| Err(std::io::Error::other(gone))).map(trailer));
            Ok((kind, Body::new(StreamBody::new(data.chain(end)))).into_response())
        }
    }
}

/// What is known only when all was sent.
fn trailer(left_out: usize) -> Frame<bytes::Bytes> {
    Frame::trailers(HeaderMap::from_iter([(
        header::HeaderName::from_static(LEFT_OUT),
        HeaderValue::from(left_out),
    )]))
}

fn accepts_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|text| text.contains("application/json"))
}

pub async fn put_root(
    app: State<App>,
    peer: Peer,
    Path(key): Path<String>,
    request: Request,
) -> Answer<Json<Done>> {
    put(app, peer, Path((key, String::new())), request).await
}

pub async fn put(
    State(app): State<App>,
    peer: Peer,
    Path((key, path)): Path<(String, String)>,
    request: Request,
) -> Answer<Json<Done>> {
    let target = handles(&app, &peer, &key).await;
    let service = app.launcher.service;
    let is_tar = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == TAR);
    let place = upload_place(&app, peer.uid)?;
    let mut input = SyncIoBridge::new(StreamReader::new(in_time(request.into_body())));
    let limit = app.settings.sandbox.workspace_bytes;
    let session = blocking(move || {
        let _place = place;
        let received = target.map_err(|Refused(problem)| problem).and_then(|(session, handles)| {
            let workspace = handles.workspace;
            let path = files::clean(&path)?;
            let used = usage::measure(&workspace).map_err(|error| {
                Problem::new(Code::Storage, format!("the workspace cannot be measured: {error}"))
            })?;
            if let Some(why) = used.beyond(limit) {
                return Err(Problem::new(Code::TooLarge, why).hint("remove some files first"));
            }
            let of_user = handles.gauge.map(|gauge| {
                gauge.measure(Kind::Workspace, used.bytes).map_err(Problem::from)?;
                Ok::<u64, Problem>(gauge.room(Kind::Workspace))
            });
            let room = (limit - used.bytes).min(of_user.transpose()?.unwrap_or(u64::MAX));
            if is_tar {
                files::read_tar(&workspace, service, &path, &mut input, room)?;
            } else {
                let upload = Upload::begin(&workspace, service, &path, room)?;
                receive(upload, &mut input)?;
            }
            Ok(session)
        });
        if received.is_err() {
            pass_over(&mut input);
        }
        received
    })
    .await?;
    let _ = session.cast(SessionMsg::FilesChanged);
    Ok(Json(Done {}))
}

fn receive(mut upload: Upload, input: &mut impl Read) -> Result<(), Problem> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = input
            .read(&mut buffer)
            .map_err(|error| Problem::new(Code::BadRequest, format!("the upload broke off: {error}")))?;
        match buffer.get(..count) {
            Some(chunk) if !chunk.is_empty() => upload.write(chunk)?,
            _ => return upload.finish().map(drop),
        }
    }
}

/// The rest of a body that was refused: a client that still writes when the connection ends would not
/// hear why. One that never comes to an end is cut off.
pub fn pass_over(input: &mut impl Read) {
    let until = Instant::now() + PASS_OVER;
    let mut buffer = vec![0; CHUNK];
    while Instant::now() < until && matches!(input.read(&mut buffer), Ok(1..)) {}
}

pub async fn remove(
    State(app): State<App>,
    peer: Peer,
    Path((key, path)): Path<(String, String)>,
) -> Answer<Json<Done>> {
    let (session, handles) = handles(&app, &peer, &key).await?;
    let path = files::clean(&path)?;
    let most = app.settings.sandbox.workspace_bytes;
    blocking(move || {
        files::remove(&handles.workspace, &path)?;
        // Whoever removes files to get room has it when this is answered.
        if let (Some(gauge), Ok(usage)) = (handles.gauge, usage::measure(&handles.workspace)) {
            let _ = gauge.measure(Kind::Workspace, usage.counted(most));
        }
        Ok(())
    })
    .await?;
    let _ = session.cast(SessionMsg::FilesChanged);
    Ok(Json(Done {}))
}

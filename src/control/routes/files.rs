//! Files of a workspace. The work is done on threads of the session's user, with the rights of the folder's owner.
//! Bytes are streamed, and a transfer to a client that stops reading is given up.

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde::Deserialize;
use std::io::{BufWriter, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};

use super::requests::SessionRequest;
use crate::actors::session::messages::SessionMsg;
use crate::control::app::App;
use crate::control::body::{Path, in_time, upload_slot};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::api::{Done, FileEntry, FolderView, LEFT_OUT};
use crate::protocol::limits::UNREAD;
use crate::protocol::periods::period;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::quota::Gauge;
use crate::sandbox::workspace::files::{self, Opened, Upload};
use crate::sandbox::workspace::owner::WorkKind;
use crate::sandbox::workspace::upload_room::{MeasuringWalk, UploadRoom};
use crate::sandbox::workspace::{Root, Workspace, usage};
use crate::security_controls;

const TAR: &str = "application/x-tar";
pub(super) const CHUNK: usize = 64 * 1024;
/// Chunks that are read ahead of the client.
const AHEAD: usize = 2;
/// How long the rest of a refused body is read.
const PASS_OVER: Duration = Duration::from_secs(5);

/// The path of a file; the root of the workspace if it is left out.
#[derive(Deserialize)]
pub struct FileParameter {
    #[serde(default)]
    path: String,
}

pub async fn get(
    request: SessionRequest,
    Path(FileParameter { path }): Path<FileParameter>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let workspace = request.handles().await?.1.workspace;
    send(workspace, &path, &headers, ()).await
}

/// Sends a file, or a folder as a list or an archive. `kept` is dropped when a folder is sent.
pub(super) async fn send(
    workspace: Arc<Workspace>,
    path: &str,
    headers: &HeaderMap,
    kept: impl Send + 'static,
) -> ApiResult<Response> {
    let path = files::clean(path)?;
    let as_json = accepts_json(headers);
    let found = workspace.access(WorkKind::Look, {
        let path = path.clone();
        move |root| match files::open(root, &path)? {
            Opened::Folder if as_json => files::list(root, path.as_ref()).map(PathContent::List),
            opened => Ok(PathContent::Opened(opened)),
        }
    });
    match found.await?? {
        PathContent::Opened(Opened::File { file, bytes }) => {
            let body = Body::from_stream(ReaderStream::with_capacity(
                tokio::io::AsyncReadExt::take(tokio::fs::File::from_std(file), bytes),
                CHUNK,
            ));
            let kind = (header::CONTENT_TYPE, "application/octet-stream".to_owned());
            Ok(([kind, (header::CONTENT_LENGTH, bytes.to_string())], body).into_response())
        }
        PathContent::List((entries, truncated)) => {
            Ok(Json(FolderView { path, entries, truncated }).into_response())
        }
        PathContent::Opened(Opened::Folder) => {
            let (writer, reader) = Outgoing::new();
            let (outcome_sender, outcome) = oneshot::channel();
            tokio::spawn(async move {
                let _kept = kept;
                let sent = workspace.access(WorkKind::Transfer, move |root| {
                    let mut writer = BufWriter::with_capacity(CHUNK, writer);
                    let tar_outcome = files::write_tar(root, path.as_ref(), &mut writer);
                    let tar_outcome = tar_outcome.and_then(|left_out| writer.flush().map(|()| left_out));
                    // Dropping a `BufWriter` would flush it, but a client that did not take the rest must not be
                    // offered it again.
                    let (_writer, _left) = writer.into_parts();
                    let broken = tar_outcome.as_ref().err().map(ToString::to_string);
                    // The outcome is sent before the stream ends, so that the reader finds it there.
                    let _ = outcome_sender.send(tar_outcome);
                    broken
                });
                match sent.await {
                    Ok(None) => {}
                    Ok(Some(error)) => tracing::warn!(error, "a folder could not be sent whole"),
                    Err(problem) => tracing::warn!(problem = problem.message, "a folder cannot be sent"),
                }
            });
            Ok(tar_response(reader, outcome))
        }
    }
}

/// The answer with a tar stream, whose outcome is known before the stream ends.
pub(super) fn tar_response(
    reader: impl Stream<Item = bytes::Bytes> + Send + 'static,
    outcome: oneshot::Receiver<std::io::Result<usize>>,
) -> Response {
    let kind = [(header::CONTENT_TYPE, TAR), (header::TRAILER, LEFT_OUT)];
    let data = reader.map(|chunk| Ok(Frame::data(chunk)));
    // An incomplete stream ends with a broken body, so that the client cannot take it for a complete one.
    let end = stream::once(async move {
        let outcome = outcome.await.unwrap_or_else(|gone| Err(std::io::Error::other(gone)));
        if outcome.is_err() {
            // The server sends what it has when the body has nothing for it. Without that, a short answer would be
            // dropped with its head, and the client would take it for a daemon that has died.
            tokio::task::yield_now().await;
        }
        outcome.map(trailer)
    });
    (kind, Body::new(StreamBody::new(data.chain(end)))).into_response()
}

/// What a path refers to: an opened file or folder, or the listing of a folder.
enum PathContent {
    Opened(Opened),
    List((Vec<FileEntry>, bool)),
}

/// The trailer with the number of files left out, which is known only after everything is sent.
fn trailer(left_out: usize) -> Frame<bytes::Bytes> {
    Frame::trailers(HeaderMap::from_iter([(
        header::HeaderName::from_static(LEFT_OUT),
        HeaderValue::from(left_out),
    )]))
}

/// A writer with which a thread sends to a client. A client that takes nothing for too long is given up, because the
/// thread is needed.
pub(super) struct Outgoing {
    chunks: mpsc::Sender<bytes::Bytes>,
    runtime: Handle,
}

impl Outgoing {
    pub(super) fn new() -> (Self, impl Stream<Item = bytes::Bytes>) {
        let (chunks, received) = mpsc::channel(AHEAD);
        let received = stream::unfold(received, |mut received| async move {
            received.recv().await.map(|chunk| (chunk, received))
        });
        (Self { chunks, runtime: Handle::current() }, received)
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let chunk = bytes::Bytes::copy_from_slice(bytes);
        let unread = security_controls::setting("unread_downloads_end", period("unread", UNREAD));
        let within = unread.unwrap_or(Duration::MAX);
        let taken =
            self.runtime.block_on(async { tokio::time::timeout(within, self.chunks.send(chunk)).await });
        match taken {
            Ok(Ok(())) => Ok(bytes.len()),
            Ok(Err(_)) => Err(std::io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn accepts_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|text| text.contains("application/json"))
}

pub async fn put(
    target: SessionRequest,
    Path(FileParameter { path }): Path<FileParameter>,
    request: Request,
) -> ApiResult<Json<Done>> {
    let found = target.handles().await;
    let session = found.as_ref().ok().map(|(session, _)| session.clone());
    let sandbox = &target.app.settings.sandbox;
    let folder = found.map(|(_, handles)| (handles.upload_room(sandbox), handles.workspace));
    take(&target.app, &target.caller, folder, path, request, ()).await?;
    if let Some(session) = session {
        let _ = session.cast(SessionMsg::FilesChanged);
    }
    Ok(Json(Done {}))
}

/// Takes a file or an archive into a folder, of which `folder` says how much there is room for. A refused body is read
/// nevertheless, so that the client sees why. `kept` is dropped when the work in the folder has ended, also if the client
/// does not wait for that.
pub(super) async fn take<R>(
    app: &App,
    caller: &Caller,
    folder: ApiResult<(R, Arc<Workspace>)>,
    path: String,
    request: Request,
    kept: impl Send + 'static,
) -> ApiResult<()>
where
    R: FnOnce(&Root<'_>) -> Result<UploadRoom, Problem> + Send + 'static,
{
    let is_tar = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == TAR);
    let slot = upload_slot(app, caller.principal)?;
    let mut input = SyncIoBridge::new(StreamReader::new(in_time(request.into_body())));
    let (open_room, workspace) = match folder {
        Ok(folder) => folder,
        Err(refused) => {
            // No workspace is involved here, so an ordinary blocking thread reads the rest of the body.
            let _ = tokio::task::spawn_blocking(move || pass_over(&mut input)).await;
            return Err(refused);
        }
    };
    let received = workspace.access(WorkKind::Transfer, move |root| {
        let (_slot, _kept) = (slot, kept);
        let received = (|| {
            let path = files::clean(&path)?;
            let upload_room = open_room(root)?;
            if is_tar {
                files::read_tar(root, &path, &mut input, &upload_room).map(drop)
            } else {
                receive(Upload::begin(root, &path, &upload_room)?, &mut input)
            }
        })();
        if received.is_err() {
            pass_over(&mut input);
        }
        received
    });
    received.await??;
    Ok(())
}

fn receive(mut upload: Upload<'_>, input: &mut impl Read) -> Result<(), Problem> {
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

/// Reads the rest of a refused body, because a client that still writes when the connection closes would not see the
/// refusal. A body that does not end in time is cut off.
pub fn pass_over(input: &mut impl Read) {
    let until = Instant::now() + PASS_OVER;
    let mut buffer = vec![0; CHUNK];
    while Instant::now() < until && matches!(input.read(&mut buffer), Ok(1..)) {}
}

pub async fn remove(
    request: SessionRequest,
    Path(FileParameter { path }): Path<FileParameter>,
) -> ApiResult<Json<Done>> {
    let (session, handles) = request.handles().await?;
    let path = files::clean(&path)?;
    let most = request.app.settings.sandbox.workspace_bytes;
    delete(&handles.workspace, handles.gauge, path, most).await?;
    let _ = session.cast(SessionMsg::FilesChanged);
    Ok(Json(Done {}))
}

/// Removes a file or a folder, and measures what is left.
pub(super) async fn delete(
    workspace: &Workspace,
    gauge: Option<Gauge>,
    path: String,
    most: u64,
) -> ApiResult<()> {
    let fill_level = workspace.fill_level();
    let removed = workspace.access(WorkKind::Removal, move |root| {
        files::remove(root, &path)?;
        // The freed room is available to the user as soon as this request is answered.
        let walk = MeasuringWalk::begin(&fill_level);
        if let (Some(gauge), Ok(usage)) = (gauge, usage::measure(root)) {
            let bytes = usage.counted(most).saturating_add(fill_level.unlinked_bytes());
            let _ = walk.record(bytes, |counted| gauge.measure(Kind::Workspace, counted));
        }
        Ok::<(), Problem>(())
    });
    removed.await??;
    Ok(())
}

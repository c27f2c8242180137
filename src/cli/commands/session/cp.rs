//! `belljar cp`: copy files and folders into and out of a session's workspace or a volume.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use futures_util::{Stream, TryStreamExt as _};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Method, Response};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::ReaderStream;

use crate::cli::client::http::{JsonResponse, escaped_path, next_frame};
use crate::cli::client::session_key::SessionKey;
use crate::cli::client::tar_stream::{SkippedEntries, TAR, receive_unpacked, send_packed};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::size;
use crate::protocol::api::{FileKind, LEFT_OUT};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::VolumeName;

const PROGRESS: Duration = Duration::from_millis(200);
const CHUNK_BYTES: usize = 64 * 1024;
const BYTES: &str = "application/octet-stream";
/// What comes before the name of a volume. No name of a session has a slash.
const VOLUME: &str = "volume/";

/// Copy files and folders into or out of a session's workspace or a volume.
///
/// One side is `NAME:PATH`, or `volume/NAME:PATH` for a volume. `-` is stdin or stdout. Links are not copied.
#[derive(Debug, Args)]
pub(in crate::cli) struct Cp {
    /// Where from: a local path, `-`, `NAME:PATH` or `volume/NAME:PATH`.
    #[arg(value_name = "SRC")]
    source: String,
    /// Where to: a local path, `-`, `NAME:PATH` or `volume/NAME:PATH`.
    #[arg(value_name = "DST")]
    target: String,
}

#[derive(Debug, PartialEq, Eq)]
enum CopyEnd {
    /// A local path; none for stdin or stdout.
    Local(Option<PathBuf>),
    /// A path relative to the workspace or the volume; empty for the folder itself.
    Remote { place: Place, path: String },
}

/// What the daemon keeps files in.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Session(SessionKey),
    Volume(VolumeName),
}

impl Place {
    fn url(&self, path: &str) -> String {
        let place = match self {
            Self::Session(session) => format!("sessions/{session}"),
            Self::Volume(volume) => format!("volumes/{volume}"),
        };
        format!("/v1/{place}/files/{}", escaped_path(path))
    }

    fn name(&self) -> &str {
        match self {
            Self::Session(session) => session.as_str(),
            Self::Volume(volume) => volume.as_str(),
        }
    }
}

impl CopyEnd {
    /// To name a local file with a colon, write `./a:b`.
    fn parse(text: &str) -> Result<Self, Failure> {
        if text == "-" {
            return Ok(Self::Local(None));
        }
        let place = |name: &str| match name.strip_prefix(VOLUME) {
            Some(name) => VolumeName::parse(name).ok().map(Place::Volume),
            None => SessionKey::parse(name).ok().map(Place::Session),
        };
        let named = text.split_once(':').and_then(|(name, path)| Some((place(name)?, path)));
        match named {
            Some((place, path)) => {
                let path = if matches!(place, Place::Session(_)) { in_workspace(path) } else { path };
                Ok(Self::Remote { path: inner_path(path)?, place })
            }
            None => Ok(Self::Local(Some(PathBuf::from(text)))),
        }
    }
}

/// A path relative to the workspace. Guests see the workspace as `/workspace`, so that prefix is accepted.
fn in_workspace(path: &str) -> &str {
    let rest = path.strip_prefix("/workspace").filter(|rest| rest.is_empty() || rest.starts_with('/'));
    rest.map_or(path, |rest| rest.trim_start_matches('/'))
}

/// A path that leads nowhere but into the folder.
fn inner_path(path: &str) -> Result<String, Failure> {
    if path.starts_with('/') {
        return Err(Failure::usage(format!(
            "only what is in the workspace or the volume can be copied, not `{path}`"
        ))
        .hint("write the path as in `NAME:folder/file`"));
    }
    if Path::new(path).components().any(|part| part == Component::ParentDir) {
        return Err(Failure::usage(format!("`..` leads out of the workspace or the volume: `{path}`")));
    }
    Ok(path.trim_start_matches("./").to_owned())
}

impl Cp {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match (CopyEnd::parse(&self.source)?, CopyEnd::parse(&self.target)?) {
            (CopyEnd::Local(source), CopyEnd::Remote { place, path }) => {
                upload(context, &place, &path, source).await?;
            }
            (CopyEnd::Remote { place, path }, CopyEnd::Local(target)) => {
                download(context, &place, &path, target).await?;
            }
            (CopyEnd::Remote { .. }, CopyEnd::Remote { .. }) => {
                return Err(Failure::usage("only one side can be a session or a volume"));
            }
            (CopyEnd::Local(_), CopyEnd::Local(_)) => {
                return Err(Failure::usage(
                    "one side has to be a session, as in `NAME:PATH`, or a volume, as in `volume/NAME:PATH`",
                )
                .hint("a name has letters, digits, `-`, `_` and `.` only"));
            }
        }
        Ok(exit::SUCCESS)
    }
}

/// Copies into the session or volume; without a source, from stdin.
async fn upload(
    context: &mut Context,
    place: &Place,
    path: &str,
    source: Option<PathBuf>,
) -> Result<(), Failure> {
    let into_folder = path.is_empty() || path.ends_with('/');
    let Some(source) = source else {
        if into_folder {
            return Err(Failure::usage("what comes from stdin needs a name, as in `NAME:file`"));
        }
        let stdin =
            io::stdin().as_fd().try_clone_to_owned().map_err(|e| Failure::io("failed to open stdin", &e))?;
        return send_file(context, &place.url(path), tokio::fs::File::from_std(stdin.into())).await;
    };
    let opened = |e| {
        Failure::io(format_args!("failed to open `{}`", source.display()), &e)
            .hint("the first path is the file or folder to copy, or `-` for stdin")
    };
    // As with `cp`, a target that is a folder gets the file or folder put into it.
    let path = if into_folder {
        // `.` and `..` have a file name only after they are resolved.
        let whole = if source.file_name().is_some() {
            source.clone()
        } else {
            source.canonicalize().map_err(opened)?
        };
        let name = whole.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
            Failure::usage(format!("`{}` has no name that could be used there", source.display()))
        })?;
        format!("{path}{name}")
    } else {
        path.to_owned()
    };
    let url = place.url(&path);
    if source.is_dir() {
        let upload = async |content| send(context, &url, TAR, content).await;
        let ((), skipped) = send_packed(source, "failed to read the folder", upload).await?;
        return tell_skipped(context, &skipped);
    }
    let file = tokio::fs::File::open(&source).await.map_err(opened)?;
    send_file(context, &url, file).await
}

async fn send_file(context: &mut Context, url: &str, file: tokio::fs::File) -> Result<(), Failure> {
    send(context, url, BYTES, ReaderStream::with_capacity(file, CHUNK_BYTES)).await
}

async fn send(
    context: &mut Context,
    url: &str,
    content_type: &str,
    content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<(), Failure> {
    let answer = send_counted(context, (Method::PUT, url), content_type, content).await?;
    if context.json { context.screen.line(&answer.text()) } else { Ok(()) }
}

/// Sends a body, and shows how much of it has gone.
pub(in crate::cli) async fn send_counted(
    context: &mut Context,
    (method, url): (Method, &str),
    content_type: &str,
    content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<JsonResponse, Failure> {
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let content = content.inspect_ok(move |chunk| {
        counter.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    });
    let client = context.client();
    let mut upload = std::pin::pin!(client.upload(method, url, content_type, content));
    let mut ticks = tokio::time::interval(PROGRESS);
    let answer = loop {
        tokio::select! {
            answer = &mut upload => break answer,
            _ = ticks.tick() => {
                context.screen.progress(&format!("sent {}", size(sent.load(Ordering::Relaxed))))?;
            }
        }
    };
    context.screen.progress("")?;
    answer
}

/// Copies out of the session or volume; without a target, to stdout.
async fn download(
    context: &mut Context,
    place: &Place,
    path: &str,
    target: Option<PathBuf>,
) -> Result<(), Failure> {
    let response = context.client().download::<()>(&place.url(path), None).await?;
    let is_folder =
        response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes() == TAR.as_bytes());
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(place.name()).to_owned();
    let last_shown = tokio::time::Instant::now();
    let mut received = CountedBody { body: response, bytes: 0, left_out: 0, last_shown };
    match target {
        None => {
            while let Some(chunk) = received.next(context).await? {
                context.screen.raw(&chunk)?;
            }
        }
        Some(target) => {
            let inside = target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/");
            let target = if inside { target.join(name) } else { target };
            let mut download_json = json!({ "path": target });
            download_json["kind"] = if is_folder {
                download_json["left_out"] = json!(download_folder(context, &mut received, target).await?);
                json!(FileKind::Folder)
            } else {
                download_file(context, &mut received, &target).await?;
                json!(FileKind::File)
            };
            download_json["bytes"] = json!(received.bytes);
            if context.json {
                context.screen.json(&download_json)?;
            }
        }
    }
    context.screen.progress("")
}

/// Gives the body of an answer to `take`, and shows how much of it has come.
pub(in crate::cli) async fn receive_counted(
    context: &mut Context,
    body: Response<Incoming>,
    mut take: impl AsyncFnMut(Bytes) -> Result<(), Failure>,
) -> Result<ReceivedFile, Failure> {
    let last_shown = tokio::time::Instant::now();
    let mut received = CountedBody { body, bytes: 0, left_out: 0, last_shown };
    while let Some(chunk) = received.next(context).await? {
        take(chunk).await?;
    }
    context.screen.progress("")?;
    Ok(ReceivedFile { bytes: received.bytes, left_out: received.left_out })
}

/// What came of a download.
pub(in crate::cli) struct ReceivedFile {
    pub bytes: u64,
    /// How many entries the daemon did not send.
    pub left_out: usize,
}

/// Copies all files of a session into a folder, which is made if it is not there. Gives how many entries were left out.
pub(in crate::cli) async fn copy_workspace(
    context: &mut Context,
    session: &SessionKey,
    folder: &Path,
) -> Result<usize, Failure> {
    let url = Place::Session(session.clone()).url("");
    let body = context.client().download::<()>(&url, None).await?;
    let last_shown = tokio::time::Instant::now();
    let mut received = CountedBody { body, bytes: 0, left_out: 0, last_shown };
    let left_out = download_folder(context, &mut received, folder.to_owned()).await?;
    context.screen.progress("")?;
    Ok(left_out)
}

async fn download_file(
    context: &mut Context,
    received: &mut CountedBody,
    target: &Path,
) -> Result<(), Failure> {
    let failed = |e| Failure::io(format_args!("failed to write `{}`", target.display()), &e);
    let mut file = tokio::fs::File::create(target).await.map_err(failed)?;
    while let Some(chunk) = received.next(context).await? {
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)
}

/// Returns the number of entries that were left out.
async fn download_folder(
    context: &mut Context,
    received: &mut CountedBody,
    target: PathBuf,
) -> Result<usize, Failure> {
    let unpacked = receive_unpacked(target, async || received.next(context).await).await;
    let unpacked = unpacked.map_err(|failure| {
        failure
            .hint("only a part has arrived; if the daemon still runs, its log names what it could not send")
    })?;
    let mut skipped = unpacked.map_err(|e| Failure::io("failed to unpack", &e))?;
    skipped.count += received.left_out;
    tell_skipped(context, &skipped)?;
    Ok(skipped.count)
}

fn tell_skipped(context: &mut Context, skipped: &SkippedEntries) -> Result<(), Failure> {
    if skipped.count == 0 {
        return Ok(());
    }
    // For entries that the daemon left out, only their number is known.
    let example = match skipped.example.to_string_lossy() {
        example if example.is_empty() => String::new(),
        example => format!(", such as `{example}`"),
    };
    let count = skipped.count;
    context
        .screen
        .warn(&format!("{count} left out, being neither plain files nor folders that may be read{example}"))
}

/// The body of an answer, with a count of its bytes.
struct CountedBody {
    body: Response<Incoming>,
    bytes: u64,
    /// How many entries the daemon did not send, according to the trailer at the end.
    left_out: usize,
    last_shown: tokio::time::Instant,
}

impl CountedBody {
    async fn next(&mut self, context: &mut Context) -> Result<Option<Bytes>, Failure> {
        let chunk = loop {
            match next_frame(self.body.body_mut()).await?.map(Frame::into_data) {
                None => break None,
                Some(Ok(data)) => break Some(data),
                Some(Err(frame)) => {
                    self.left_out = frame.trailers_ref().and_then(left_out).unwrap_or_default();
                }
            }
        };
        self.bytes += chunk.as_ref().map_or(0, Bytes::len) as u64;
        if self.last_shown.elapsed() > PROGRESS {
            self.last_shown = tokio::time::Instant::now();
            context.screen.progress(&format!("received {}", size(self.bytes)))?;
        }
        Ok(chunk)
    }
}

fn left_out(trailers: &HeaderMap) -> Option<usize> {
    trailers.get(LEFT_OUT)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str, path: &str) -> CopyEnd {
        CopyEnd::Remote { place: Place::Session(SessionKey::parse(name).unwrap()), path: path.into() }
    }

    fn volume(name: &str, path: &str) -> CopyEnd {
        CopyEnd::Remote { place: Place::Volume(VolumeName::parse(name).unwrap()), path: path.into() }
    }

    #[test]
    fn a_side_is_a_session_or_a_volume_if_a_name_and_a_colon_come_first() {
        for (text, side) in [
            ("-", CopyEnd::Local(None)),
            ("a.txt", CopyEnd::Local(Some("a.txt".into()))),
            ("./a:b", CopyEnd::Local(Some("./a:b".into()))),
            ("/x/a:b", CopyEnd::Local(Some("/x/a:b".into()))),
            ("s:", session("s", "")),
            ("s:a/b.txt", session("s", "a/b.txt")),
            ("s:./a", session("s", "a")),
            ("s:a:b", session("s", "a:b")),
            ("s:/workspace", session("s", "")),
            ("s:/workspace/a/", session("s", "a/")),
            ("volume:a", session("volume", "a")),
            ("volume/v:", volume("v", "")),
            ("volume/v:a/b", volume("v", "a/b")),
            ("./volume/v:a", CopyEnd::Local(Some("./volume/v:a".into()))),
        ] {
            assert_eq!(CopyEnd::parse(text).unwrap(), side, "{text}");
        }
        for wrong in
            ["s:/etc/passwd", "s:../x", "s:a/../../x", "s:/workspace2", "volume/v:/x", "volume/v:../x"]
        {
            assert_eq!(CopyEnd::parse(wrong).unwrap_err().exit, exit::USAGE, "{wrong}");
        }
    }
}

//! The HTTP client: one connection per request, over the daemon's unix socket.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, TE};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::cli::client::autostart::Starter;
use crate::cli::client::follow::{PAUSE, TRIES};
use crate::cli::failure::Failure;
use crate::config::{SYSTEM_SOCKET, is_system};
use crate::protocol::config::CONFIG_HEADER;
use crate::protocol::event::Event;
use crate::protocol::limits::FRAME_BYTES;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::sse::{SseDecoder, SseEvent};
use crate::protocol::text::inert_json;
use crate::security_controls;

const CONNECT: Duration = Duration::from_secs(5);
/// Largest JSON answer or event: a result with all its displays, doubled for the escapes of JSON.
const ANSWER_BYTES: usize = 2 * FRAME_BYTES;

/// How often a request is sent if no daemon has read it.
const SEND_TRIES: u32 = 3;

pub(in crate::cli) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(in crate::cli) struct Client {
    socket: PathBuf,
    /// Without a starter, a missing daemon is an error.
    starter: Option<Starter>,
    was_connected: AtomicBool,
    tells_steps: bool,
    /// The configuration that the caller names; a daemon that runs with another one is told of, once.
    config: Mutex<Option<PathBuf>>,
}

/// The unparsed bytes of a JSON answer.
pub(in crate::cli) struct JsonResponse {
    bytes: Bytes,
}

impl JsonResponse {
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.bytes).map_err(|e| {
            Failure::new(format!("the daemon's answer makes no sense: {e}"))
                .hint("the daemon may be of another version; restart it with `belljar daemon stop`")
        })
    }

    /// For `--json`: what the daemon answered, on one line, with escapes for what a terminal would obey.
    pub fn text(&self) -> String {
        inert_json(String::from_utf8_lossy(&self.bytes).trim_end())
    }
}

impl Client {
    pub fn new(socket: PathBuf, starter: Option<Starter>) -> Self {
        Self {
            socket,
            starter,
            was_connected: AtomicBool::new(false),
            config: Mutex::new(None),
            tells_steps: false,
        }
    }

    /// Whether the steps of slow requests are shown to a person.
    pub fn tell_steps(self, tells_steps: bool) -> Self {
        Self { tells_steps, ..self }
    }

    pub fn tells_steps(&self) -> bool {
        self.tells_steps
    }

    /// Warns if the daemon runs with another configuration than this.
    pub fn with_config(self, config: Option<PathBuf>) -> Self {
        Self { config: Mutex::new(config), ..self }
    }

    /// Says that the daemon has not read the configuration that the caller names.
    fn compare_config(&self, response: &Response<Incoming>) {
        let read = response.headers().get(CONFIG_HEADER);
        // A request may be refused before the daemon looks at who sent it.
        if read.is_none() && !response.status().is_success() {
            return;
        }
        let wanted = self.config.lock().ok().and_then(|mut config| config.take());
        let Some(wanted) = wanted else { return };
        let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let named = wanted.display();
        let told = match read.map(|read| Path::new(OsStr::from_bytes(read.as_bytes()))) {
            Some(read) if whole(&wanted) == whole(read) => return,
            Some(read) => format!(
                "the daemon runs with `{}`, and `{named}` is not read; `belljar daemon stop` lets the next command start \
                 one with it",
                read.display()
            ),
            // Whoever does not run the daemon is not told which file it has read.
            None => format!("the daemon is not yours, and `{named}` is not read"),
        };
        // Not `eprintln`, which panics if stderr is closed.
        let _ = writeln!(std::io::stderr(), "warning: {told}");
    }

    pub async fn get(&self, path: &str) -> Result<JsonResponse, Failure> {
        self.json(Method::GET, path, Bytes::new()).await
    }

    /// Gets an answer that may take long, also if the daemon ends meanwhile: then the next daemon is asked.
    pub async fn get_in_the_end(&self, path: &str) -> Result<JsonResponse, Failure> {
        self.in_the_end(Method::GET, path, Bytes::new()).await
    }

    /// The same for a request that may be made twice.
    pub async fn post_in_the_end<T: Serialize>(&self, path: &str, body: &T) -> Result<JsonResponse, Failure> {
        self.in_the_end(Method::POST, path, json(body)?).await
    }

    async fn in_the_end(&self, method: Method, path: &str, body: Bytes) -> Result<JsonResponse, Failure> {
        let mut tries = 1;
        loop {
            let request = builder(method.clone(), path).header(CONTENT_TYPE, "application/json");
            let request = request.header(ACCEPT, "application/json");
            let answer = match self.send(path, request, whole(body.clone())).await {
                Ok(response) => read_all(response).await,
                Err(broken) => Err(broken),
            };
            match answer {
                // After an answer was cut off, the next daemon may take a while to start.
                Err(broken)
                    if tries < TRIES
                        && (broken.daemon_ended || (tries > 1 && broken.failure.problem.is_none())) =>
                {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return Ok(answer?),
            }
        }
    }

    pub async fn delete(&self, path: &str) -> Result<JsonResponse, Failure> {
        self.json(Method::DELETE, path, Bytes::new()).await
    }

    pub async fn post<T: Serialize>(&self, path: &str, body: &T) -> Result<JsonResponse, Failure> {
        self.json(Method::POST, path, json(body)?).await
    }

    /// A request whose path says all, without a body.
    pub async fn post_empty(&self, path: &str) -> Result<JsonResponse, Failure> {
        self.json(Method::POST, path, Bytes::new()).await
    }

    /// The events that answer a `GET`, or a `POST` of `body`.
    pub async fn events<T: Serialize>(&self, path: &str, body: Option<&T>) -> Result<Events, Failure> {
        let response = self.with_body(path, "text/event-stream", body).await?;
        Ok(Events {
            body: response.into_body(),
            decoder: SseDecoder::new(ANSWER_BYTES),
            ready: Vec::new().into_iter(),
        })
    }

    /// A body that the caller reads in pieces.
    pub async fn download<T: Serialize>(
        &self,
        path: &str,
        body: Option<&T>,
    ) -> Result<Response<Incoming>, Failure> {
        self.with_body(path, "*/*", body).await
    }

    async fn with_body<T: Serialize>(
        &self,
        path: &str,
        accept: &str,
        body: Option<&T>,
    ) -> Result<Response<Incoming>, Failure> {
        let (method, body) = match body {
            Some(body) => (Method::POST, json(body)?),
            None => (Method::GET, Bytes::new()),
        };
        self.persist(method, path, accept, body).await
    }

    /// Sends a body whose length is not known before.
    pub async fn upload(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<JsonResponse, Failure> {
        let body = StreamBody::new(content.map_ok(Frame::data)).boxed_unsync();
        let request = builder(method, path).header(CONTENT_TYPE, content_type);
        Ok(read_all(self.send(path, request, body).await?).await?)
    }

    async fn json(&self, method: Method, path: &str, body: Bytes) -> Result<JsonResponse, Failure> {
        Ok(read_all(self.persist(method, path, "application/json", body).await?).await?)
    }

    /// Sends the request to the next daemon if the present one ended without having read it.
    async fn persist(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let mut tries = 1;
        loop {
            let request = builder(method.clone(), path).header(CONTENT_TYPE, "application/json");
            match self.send(path, request.header(ACCEPT, accept), whole(body.clone())).await {
                Err(RequestFailure { unread: true, .. }) if tries < SEND_TRIES => tries += 1,
                answer => return Ok(answer?),
            }
        }
    }

    /// Returns a successful answer with its body unread; any other answer becomes the failure in its [`Problem`].
    async fn send(
        &self,
        path: &str,
        request: hyper::http::request::Builder,
        body: Body,
    ) -> Result<Response<Incoming>, RequestFailure> {
        let broken = |e: hyper::Error| {
            RequestFailure {
            daemon_ended: true,
            unread: is_unread(&e),
            failure: Failure::new(format!("the connection to the daemon broke: {e}"))
                .hint("the daemon may have ended, or have too many connections of yours; `belljar ps` shows what is there"),
        }
        };
        let request =
            request.body(body).map_err(|e| Failure::new(format!("the request makes no sense: {e}")))?;
        let stream = self.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Errors of the connection appear where the answer is read.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(broken)?;
        self.compare_config(&response);
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let answer = read_all(response).await?;
        match serde_json::from_slice::<Problem>(&answer.bytes) {
            Ok(problem) => Err(with_hint(problem, path).into()),
            Err(_) => Err(Failure::new(format!("the daemon answered with `{status}` and no reason")).into()),
        }
    }

    async fn connect(&self) -> Result<UnixStream, Failure> {
        let error = match connect(&self.socket).await {
            Ok(stream) => {
                self.was_connected.store(true, Ordering::Relaxed);
                return trusted(&self.socket, stream);
            }
            Err(error) => error,
        };
        if error.kind() == std::io::ErrorKind::NotFound && self.was_connected.load(Ordering::Relaxed) {
            // A daemon that crashes leaves its socket file. This daemon was stopped on purpose, so none is started.
            return Err(Failure::new("the daemon was stopped")
                .hint("any other command starts one again; what runs in sandboxes goes on meanwhile"));
        }
        let absent = is_absent(&error);
        let failed = |e: &std::io::Error| {
            Failure::io(format_args!("failed to connect to the daemon at `{}`", self.socket.display()), e)
        };
        match (&self.starter, error.kind()) {
            (Some(starter), _) if absent => {
                // Boxed, because starting asks for the daemon's health with a client of its own.
                Box::pin(starter.start(&self.socket)).await?;
                trusted(&self.socket, connect(&self.socket).await.map_err(|e| failed(&e))?)
            }
            (_, std::io::ErrorKind::PermissionDenied) => Err(failed(&error)
                .hint("it is open to the members of its group who can reach it: `namei -l` shows both")),
            (None, _) if absent => {
                let is_machines = self.socket == std::path::Path::new(SYSTEM_SOCKET) && !is_system();
                let hint = if is_machines {
                    "ask the administrator to start it: `systemctl start belljar.socket`"
                } else {
                    "start it with `belljar daemon`"
                };
                Err(Failure::new(format!("no daemon listens at `{}`", self.socket.display())).hint(hint))
            }
            _ => Err(failed(&error)),
        }
    }
}

/// The daemon of another user would read all that is typed and could answer anything. So commands only talk to
/// daemons of root and of the caller, judged by the listening process and by the owner of the socket file.
fn trusted(socket: &std::path::Path, stream: UnixStream) -> Result<UnixStream, Failure> {
    use std::os::unix::fs::MetadataExt as _;
    let own = rustix::process::geteuid().as_raw();
    let listens = stream.peer_cred().map(|peer| peer.uid());
    let owns = std::fs::metadata(socket).map(|found| found.uid());
    let is_strange = |uid: &u32| *uid != 0 && *uid != own;
    let unknown = |error: &std::io::Error| {
        Failure::io(format_args!("failed to learn whose daemon listens at `{}`", socket.display()), error)
    };
    let strange =
        [listens.map_err(|e| unknown(&e))?, owns.map_err(|e| unknown(&e))?].into_iter().find(is_strange);
    match strange.filter(|_| security_controls::holds("commands_know_their_daemon")) {
        None => Ok(stream),
        Some(uid) => Err(Failure::new(format!("the daemon at `{}` is that of user {uid}", socket.display()))
            .hint("commands talk only to root's daemon and to your own; look at `BELLJAR_SOCKET`")),
    }
}

/// Connects with a deadline: a daemon whose queue of connections is full would block the command for ever.
pub(in crate::cli) async fn connect(socket: &std::path::Path) -> std::io::Result<UnixStream> {
    match timeout(CONNECT, UnixStream::connect(socket)).await {
        Ok(result) => result,
        Err(_) => {
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not answer within 5 seconds"))
        }
    }
}

/// Whether an attempt to connect failed because no daemon listens.
pub(in crate::cli) fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

fn builder(method: Method, path: &str) -> hyper::http::request::Builder {
    Request::builder().method(method).uri(path).header(HOST, "belljar").header(TE, "trailers")
}

/// Why a request has no answer.
struct RequestFailure {
    /// The daemon never read the request, so it can be sent again even if repeating it would not be safe otherwise.
    unread: bool,
    daemon_ended: bool,
    failure: Failure,
}

impl From<RequestFailure> for Failure {
    fn from(broken: RequestFailure) -> Self {
        broken.failure
    }
}

impl From<Failure> for RequestFailure {
    fn from(failure: Failure) -> Self {
        Self { unread: false, daemon_ended: false, failure }
    }
}

/// Whether the daemon never read the request: a unix socket is reset, and not just closed, if the peer had not read
/// what was sent, or had never accepted the connection.
fn is_unread(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let kind = cause.map(std::io::Error::kind);
    // A cancelled request was not even sent.
    error.is_canceled()
        || matches!(kind, Some(std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe))
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn json<T: Serialize>(value: &T) -> Result<Bytes, Failure> {
    let bytes = serde_json::to_vec(value).map_err(|e| Failure::new(format!("failed to write JSON: {e}")))?;
    Ok(bytes.into())
}

async fn read_all(response: Response<Incoming>) -> Result<JsonResponse, RequestFailure> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    let body = body.map_err(|e| RequestFailure {
        unread: false,
        daemon_ended: e.is::<hyper::Error>(),
        failure: Failure::new(format!("the daemon's answer broke off: {e}")),
    })?;
    Ok(JsonResponse { bytes: body.to_bytes() })
}

/// Adds the command that would help, which the daemon does not know.
fn with_hint(problem: Problem, path: &str) -> Failure {
    let session = path.strip_prefix("/v1/sessions/").and_then(|rest| rest.split(['/', '?']).next());
    let mut failure = Failure::from(problem);
    if let (None, true, Some(name)) = (&failure.hint, failure.has_code(Code::NoSuchSession), session) {
        failure = failure.hint(format!("create it with `belljar new {name}`"));
    }
    failure
}

/// A stream of events, read one by one.
pub(in crate::cli) struct Events {
    body: Incoming,
    decoder: SseDecoder,
    ready: std::vec::IntoIter<SseEvent>,
}

impl Events {
    /// None at the end of the stream. The future can be dropped while it waits; no event is lost.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        self.next_as().await
    }

    /// The same for a stream of other events.
    pub async fn next_as<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        loop {
            if let Some(event) = self.ready.next() {
                // An event of this name is about the stream, not the session: it says why the stream ends.
                if event.name == "problem" {
                    let problem: Problem = serde_json::from_str(&event.data).map_err(|e| no_sense(&e))?;
                    return Err(problem.into());
                }
                return serde_json::from_str(&event.data).map(Some).map_err(|e| no_sense(&e));
            }
            let Some(chunk) = next_chunk(&mut self.body).await? else {
                return Ok(None);
            };
            let events = self.decoder.feed(&chunk).map_err(|e| Failure::new(e.to_string()))?;
            self.ready = events.into_iter();
        }
    }
}

fn no_sense(error: &serde_json::Error) -> Failure {
    Failure::new(format!("an event of the daemon makes no sense: {error}"))
}

/// The next bytes of a body; none at its end.
pub(in crate::cli) async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    while let Some(frame) = next_frame(body).await? {
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// As `next_chunk`, but also returns the trailers that may follow the last bytes.
pub(in crate::cli) async fn next_frame(body: &mut Incoming) -> Result<Option<Frame<Bytes>>, Failure> {
    if body.is_end_stream() {
        return Ok(None);
    }
    let frame = body.frame().await.transpose();
    frame.map_err(|e| Failure::new(format!("the connection to the daemon broke: {e}")))
}

/// Bytes of a path that have a meaning in a URL: all but letters, digits, `-_.~` and the slash.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A path below `/v1/sessions/{s}/files/`, with all bytes escaped that have a meaning in a URL.
pub(in crate::cli) fn escaped_path(path: &str) -> String {
    utf8_percent_encode(path, &ESCAPED).to_string()
}

#[cfg(test)]
mod tests;

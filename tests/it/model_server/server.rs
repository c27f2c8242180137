//! The server itself: it takes requests, refuses what the real service would refuse, and plays its replies.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::plays::{self, Fault, Play, Reply};

/// Bytes of one piece of a stream: small enough to cut events, lines and characters.
const PIECE_BYTES: usize = 37;
/// Bytes of the event that has no end.
const ENDLESS_BYTES: usize = 1 << 30;

pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    plays: Mutex<VecDeque<Play>>,
    received: Mutex<Vec<Received>>,
    /// The key that a request has to bring.
    key: Option<String>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    pub authorization: Option<String>,
    pub body: Value,
}

impl ModelServer {
    pub fn start(plays: impl IntoIterator<Item = Play>) -> Self {
        Self::start_with(plays, None)
    }

    /// Refuses requests that do not bring the key.
    pub fn start_with_key(plays: impl IntoIterator<Item = Play>, key: &str) -> Self {
        Self::start_with(plays, Some(key.to_owned()))
    }

    fn start_with(plays: impl IntoIterator<Item = Play>, key: Option<String>) -> Self {
        let plays = Mutex::new(plays.into_iter().collect());
        let shared = Arc::new(Shared { plays, key, ..Shared::default() });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let router =
            Router::new().route("/v1/chat/completions", post(completions)).with_state(shared.clone());
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    served = async { axum::serve(listener, router).await } => served.unwrap(),
                    () = until.cancelled() => {}
                }
            });
            // A connection that stalls would wait for ever.
            runtime.shutdown_background();
        });
        Self { address, shared, stop, thread: Some(thread) }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// What it was asked so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn completions(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let authorization =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return refusal(400, None, "the body is no JSON");
    };
    shared
        .received
        .lock()
        .unwrap()
        .push(Received { authorization: authorization.clone(), body: request.clone() });
    if let Some(key) = &shared.key
        && authorization.as_ref() != Some(&format!("Bearer {key}"))
    {
        let echoed = authorization.unwrap_or_default().replace("Bearer ", "");
        return refusal(401, None, &format!("Incorrect API key provided: {echoed}"));
    }
    if let Some(wrong) = wrong(&request) {
        return refusal(400, None, &wrong);
    }
    let play = shared.plays.lock().unwrap().pop_front();
    match play {
        None => refusal(418, None, "there is nothing left to play"),
        Some(Play::Reply(reply)) => answer(&request, &reply),
        Some(Play::Fault(fault)) => misbehave(&request, fault).await,
    }
}

/// What the real service would refuse too.
fn wrong(request: &Value) -> Option<String> {
    let messages = request["messages"].as_array()?;
    if request["model"].as_str().is_none_or(str::is_empty) {
        return Some("you must provide a model parameter".into());
    }
    let mut open: Vec<&str> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        if message["content"].is_null() {
            return Some(format!("messages[{place}].content is null"));
        }
        match message["role"].as_str() {
            Some("tool") => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let Some(found) = open.iter().position(|call| *call == id) else {
                    return Some(format!("messages[{place}] answers no tool call"));
                };
                open.remove(found);
            }
            Some(_) if !open.is_empty() => {
                return Some(format!("messages[{place}].role: tool_call_ids without response: {open:?}"));
            }
            Some("assistant") => {
                let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
                open = calls.iter().filter_map(|call| call["id"].as_str()).collect();
            }
            Some(_) => {}
            None => return Some(format!("messages[{place}] has no role")),
        }
    }
    (!open.is_empty()).then(|| format!("tool_call_ids without response: {open:?}"))
}

fn refusal(status: u16, retry_after: Option<&str>, message: &str) -> Response {
    let mut response = Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header("content-type", "application/json");
    if let Some(after) = retry_after {
        response = response.header(header::RETRY_AFTER, after);
    }
    let error = json!({"error": {"message": message, "type": "error", "param": null, "code": null}});
    response.body(Body::from(error.to_string())).unwrap()
}

fn answer(request: &Value, reply: &Reply) -> Response {
    if request["stream"] == json!(true) {
        return streamed("text/event-stream", pieces(plays::events(request, reply).concat()));
    }
    let whole = plays::whole(request, reply).to_string();
    Response::builder().header("content-type", "application/json").body(Body::from(whole)).unwrap()
}

async fn misbehave(request: &Value, fault: Fault) -> Response {
    let events = plays::events(request, &Reply::text("This is never said to its end."));
    let half = events[..events.len() / 2].concat();
    match fault {
        Fault::Status(status, retry_after) => refusal(status, retry_after, "as the test wants it"),
        Fault::Says(status, message) => refusal(status, None, &message),
        Fault::Stall => std::future::pending().await,
        Fault::StallInStream => streamed("text/event-stream", pieces(half).chain(stream::pending())),
        Fault::Cut => {
            let end = stream::iter([Err(std::io::Error::other("cut"))]);
            streamed("text/event-stream", pieces(half).chain(end))
        }
        Fault::EndWithoutFinish => streamed("text/event-stream", pieces(half)),
        Fault::Raw(kind, text) => streamed(kind, pieces(text)),
        Fault::EndlessEvent => {
            let piece = Bytes::from(vec![b'x'; 64 * 1024]);
            let count = ENDLESS_BYTES / piece.len();
            let start = stream::iter([Ok(Bytes::from_static(b"data: "))]);
            streamed(
                "text/event-stream",
                start.chain(stream::iter((0..count).map(move |_| Ok(piece.clone())))),
            )
        }
    }
}

fn pieces(text: String) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
    let text = Bytes::from(text);
    let starts = (0..text.len()).step_by(PIECE_BYTES);
    let cut = starts.map(move |start| Ok(text.slice(start..text.len().min(start + PIECE_BYTES))));
    stream::iter(cut)
}

fn streamed(kind: &str, body: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Response {
    Response::builder().header("content-type", kind).body(Body::from_stream(body)).unwrap()
}

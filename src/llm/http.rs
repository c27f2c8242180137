//! One attempt over HTTP, within its deadlines.

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

use super::assemble::{Assembler, parsed};
use super::client::Delta;
use super::failure::{AttemptFailure, clean};
use super::retry;
use super::secret::Secret;
use crate::config::Model;
use crate::protocol::chat::{ChatReply, ModelFailureKind};
use crate::protocol::clock;
use crate::protocol::sse::SseDecoder;

/// The most bytes of a whole stream. Each token arrives in some hundred bytes of JSON, and none of those are kept.
const STREAM_BYTES: usize = 512 * 1024 * 1024;
/// Estimated bytes of a token while the provider has not counted yet. The estimate is high rather than low, so that no
/// reply within the limit is cut.
const BYTES_PER_TOKEN: u64 = 4;
/// The most bytes of one event of a stream. The arguments of a whole tool call may arrive in one event.
const EVENT_BYTES: usize = 8 * 1024 * 1024;
/// The most bytes of an answer that is not streamed.
const WHOLE_BYTES: usize = 32 * 1024 * 1024;
/// The most bytes of an error that are read, and the time for reading them.
const ERROR_BYTES: usize = 64 * 1024;
const ERROR_WITHIN: Duration = Duration::from_secs(5);
/// How long an unused connection stays open.
const IDLE_CONNECTION: Duration = Duration::from_secs(60);

const USER_AGENT: &str = concat!("belljar/", env!("CARGO_PKG_VERSION"));

pub(super) struct Http {
    client: reqwest::Client,
    url: Url,
    first_byte: Duration,
    idle: Duration,
}

impl Http {
    pub fn new(model: &Model) -> Result<Self, String> {
        let url = format!("{}/chat/completions", model.base_url);
        let url = Url::parse(&url).map_err(|error| format!("`{url}` is no address: {error}"))?;
        // If another client has installed the provider already, it is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(model.connect)
            .pool_idle_timeout(IDLE_CONNECTION)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        if is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| format!("no HTTP client could be made: {error}"))?;
        Ok(Self { client, url, first_byte: model.first_byte, idle: model.idle })
    }

    /// Sends the request once. `turn` is passed on to [`Assembler::reply`]. Of a reply with more than `reply_tokens`,
    /// the rest is not read.
    pub async fn attempt(
        &self,
        body: Bytes,
        key: Option<&Secret>,
        turn: usize,
        reply_tokens: Option<u64>,
        deltas: &mut (impl FnMut(Delta) + Send),
    ) -> Result<ChatReply, AttemptFailure> {
        let mut request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream, application/json")
            .body(body);
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, bearer(key)?);
        }
        let begin_by = Instant::now() + self.first_byte;
        let mut response = timeout_at(begin_by, request.send())
            .await
            .map_err(|_| self.no_first_byte())?
            .map_err(|error| self.transport(&error))?;
        if !response.status().is_success() {
            return Err(refused(response).await);
        }
        let kind = content_type(&response);
        let reply_bytes = reply_tokens
            .map_or(usize::MAX, |tokens| usize::try_from(reply_bytes(tokens)).unwrap_or(usize::MAX));
        let mut body = Body { http: self, begin_by: Some(begin_by), read: 0, reply_bytes };
        match kind.as_str() {
            "text/event-stream" | "" => body.stream(&mut response, deltas).await,
            "application/json" => body.whole(&mut response, deltas).await,
            other => {
                let other = clean(other);
                Err(AttemptFailure::bad_reply(format!(
                    "the provider answered with {other}, not with a reply"
                )))
            }
        }
        .map(|assembler| assembler.reply(turn))
    }

    fn no_first_byte(&self) -> AttemptFailure {
        let message = format!("no answer began within {:?}", self.first_byte);
        AttemptFailure::new(ModelFailureKind::TimedOut, message)
    }

    /// The failure for an error of reqwest: its causes without the address.
    fn transport(&self, error: &reqwest::Error) -> AttemptFailure {
        let mut explanation = String::new();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            if !explanation.is_empty() {
                explanation.push_str(": ");
            }
            explanation.push_str(&error.to_string());
            cause = error.source();
        }
        if explanation.is_empty() && error.is_timeout() {
            explanation.push_str("it took too long");
        }
        let (kind, what) = if error.is_connect() {
            (ModelFailureKind::Unreachable, "cannot be reached")
        } else {
            (ModelFailureKind::CutOff, "broke off")
        };
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        AttemptFailure::new(kind, format!("{host}{port} {what}: {}", clean(&explanation)))
    }
}

/// Reads the body of a successful answer.
struct Body<'h> {
    http: &'h Http,
    /// The deadline for the first byte, until it has arrived.
    begin_by: Option<Instant>,
    read: usize,
    /// Bytes of texts and arguments after which the connection is closed.
    reply_bytes: usize,
}

impl Body<'_> {
    async fn chunk(
        &mut self,
        response: &mut Response,
        limit: usize,
    ) -> Result<Option<Bytes>, AttemptFailure> {
        let deadline = self.begin_by.unwrap_or_else(|| Instant::now() + self.http.idle);
        let late = || {
            if self.begin_by.is_some() {
                return self.http.no_first_byte();
            }
            let message = format!("the stream said nothing for {:?}", self.http.idle);
            AttemptFailure::new(ModelFailureKind::TimedOut, message)
        };
        let chunk = timeout_at(deadline, response.chunk())
            .await
            .map_err(|_| late())?
            .map_err(|error| self.http.transport(&error))?;
        self.begin_by = None;
        self.read = self.read.saturating_add(chunk.as_ref().map_or(0, Bytes::len));
        if self.read > limit {
            return Err(AttemptFailure::bad_reply(format!("the answer is larger than {limit} bytes")));
        }
        Ok(chunk)
    }

    async fn stream(
        &mut self,
        response: &mut Response,
        deltas: &mut (impl FnMut(Delta) + Send),
    ) -> Result<Assembler, AttemptFailure> {
        let (mut decoder, mut assembler) = (SseDecoder::new(EVENT_BYTES), Assembler::default());
        loop {
            let chunk = match self.chunk(response, STREAM_BYTES).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                // The reply is complete; only the end mark is missing.
                Err(failure) if failure.again && assembler.is_whole() => return Ok(assembler),
                Err(failure) => return Err(failure),
            };
            let events =
                decoder.feed(&chunk).map_err(|error| AttemptFailure::bad_reply(error.to_string()))?;
            for event in events {
                assembler.event(&event.data)?.into_iter().for_each(&mut *deltas);
                if assembler.is_done() {
                    return whole(assembler);
                }
                if assembler.bytes() > self.reply_bytes {
                    return Ok(assembler.cut_short());
                }
            }
        }
        // An incomplete event at the end means that the stream was cut off, not that it is garbage.
        if let Ok(Some(event)) = decoder.finish()
            && let Ok(last) = assembler.event(&event.data)
        {
            last.into_iter().for_each(deltas);
        }
        whole(assembler)
    }

    async fn whole(
        &mut self,
        response: &mut Response,
        deltas: &mut (impl FnMut(Delta) + Send),
    ) -> Result<Assembler, AttemptFailure> {
        let mut text = Vec::new();
        while let Some(chunk) = self.chunk(response, WHOLE_BYTES).await? {
            text.extend_from_slice(&chunk);
        }
        let text = std::str::from_utf8(&text)
            .map_err(|error| AttemptFailure::bad_reply(format!("the answer is no text: {error}")))?;
        let answer = parsed(text, "answer")?;
        let mut assembler = Assembler::default();
        assembler.chunk(&answer)?.into_iter().for_each(deltas);
        if !assembler.is_answered() {
            return Err(AttemptFailure::bad_reply("the answer holds no reply"));
        }
        Ok(assembler)
    }
}

/// The bytes after which a reply of at most `tokens` is cut short.
pub fn reply_bytes(tokens: u64) -> u64 {
    tokens.saturating_mul(BYTES_PER_TOKEN)
}

fn whole(assembler: Assembler) -> Result<Assembler, AttemptFailure> {
    if assembler.is_whole() {
        Ok(assembler)
    } else if assembler.is_done() {
        Err(AttemptFailure::bad_reply("the stream ended without a reply"))
    } else {
        Err(AttemptFailure::new(ModelFailureKind::CutOff, "the stream broke off before its end"))
    }
}

/// The failure for an unsuccessful answer, with the message in its body.
async fn refused(mut response: Response) -> AttemptFailure {
    let status = response.status().as_u16();
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = header.and_then(|header| retry::retry_after(header, clock::wall()));
    let mut body = Vec::new();
    let read_by = Instant::now() + ERROR_WITHIN;
    while body.len() < ERROR_BYTES
        && let Ok(Ok(Some(chunk))) = timeout_at(read_by, response.chunk()).await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(ERROR_BYTES);
    AttemptFailure::of_status(status, &String::from_utf8_lossy(&body), retry_after)
}

fn bearer(key: &Secret) -> Result<HeaderValue, AttemptFailure> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| {
        let message = "the key holds characters that no key has";
        AttemptFailure::new(ModelFailureKind::Authentication, message)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn content_type(response: &Response) -> String {
    let header = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = header.unwrap_or_default().split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// Whether the server is on this machine; such a server is never reached through a proxy.
fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_this_machine_are_known() {
        for (url, local) in [
            ("http://127.0.0.1:11434/v1", true),
            ("http://[::1]:80/v1", true),
            ("http://localhost/v1", true),
            ("http://127.9.9.9/v1", true),
            ("https://localhost.example.org/v1", false),
            ("https://10.0.0.1/v1", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(url).unwrap()), local, "{url}");
        }
    }
}

//! The client of one model of the configuration.

use bytes::Bytes;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use super::body::{body, unbend};
use super::cassette::{Recorder, Replayer};
use super::failure::AttemptFailure;
use super::http::Http;
use super::retry;
use super::script;
use super::secret::{Redactor, Secret};
use crate::config::{Model, Provider};
use crate::protocol::chat::{ChatReply, ChatRequest, ModelFailure, ModelFailureKind};

/// A part of a reply that can be shown before the reply is complete.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    Text(String),
    Reasoning(String),
    /// The attempt failed and the next one begins after `wait`; what came so far is not part of the reply.
    Retry {
        failure: ModelFailure,
        wait: Duration,
    },
}

pub struct Client {
    name: String,
    model: Model,
    key: Option<Secret>,
    source: Source,
    recorder: Option<Recorder>,
    /// Permits for simultaneous requests.
    permits: Semaphore,
}

enum Source {
    Http(Http),
    Script,
    Replay(Replayer),
}

impl Client {
    /// `variable` looks up an environment variable. [`Self::chat`] reports a missing key, because a daemon is useful
    /// without one.
    ///
    /// # Errors
    /// No HTTP client can be created.
    pub fn new(
        name: &str,
        model: &Model,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ModelFailure> {
        let source = match model.provider {
            Provider::Script => Source::Script,
            Provider::Replay => Source::Replay(Replayer::default()),
            Provider::OpenAi
            | Provider::DashScope
            | Provider::Ollama
            | Provider::Vllm
            | Provider::LlamaCpp
            | Provider::OpenRouter
            | Provider::Compatible => Source::Http(Http::new(model).map_err(|message| ModelFailure {
                kind: ModelFailureKind::InvalidRequest,
                message: format!("model `{name}`: {message}"),
                attempts: 0,
            })?),
        };
        let key = model.key_variable.as_deref().and_then(variable).as_deref().and_then(Secret::new);
        Ok(Self {
            name: name.to_owned(),
            model: model.clone(),
            key,
            source,
            recorder: model.record.clone().map(Recorder::new),
            permits: Semaphore::new(model.concurrency),
        })
    }

    /// Asks the model. Dropping the future cancels the request.
    ///
    /// # Errors
    /// The failure of the last attempt.
    pub async fn chat(
        &self,
        request: &ChatRequest,
        mut deltas: impl FnMut(Delta) + Send,
    ) -> Result<ChatReply, ModelFailure> {
        let alone = |failure: AttemptFailure| self.failure(failure, 0);
        let _permit =
            self.permits.acquire().await.map_err(|_| {
                alone(AttemptFailure::new(ModelFailureKind::Cancelled, "the client was closed"))
            })?;
        let file = self.model.file.as_deref();
        let reply = match &self.source {
            Source::Http(http) => {
                let mut redactor = KeyRedactor { key: self.key.as_ref(), ..KeyRedactor::default() };
                let mut without_key = |delta| redactor.through(delta).into_iter().for_each(&mut deltas);
                let reply = self.attempt_until_answered(http, request, &mut without_key).await?;
                redactor.rest().for_each(&mut deltas);
                self.without_key(reply)
            }
            Source::Script => script::play(file, request, &mut deltas).await.map_err(alone)?,
            Source::Replay(replayer) => {
                let reply = replayer.play(file, request).await.map_err(alone)?;
                if !reply.message.content.is_empty() {
                    deltas(Delta::Text(reply.message.content.clone()));
                }
                reply
            }
        };
        if let Some(recorder) = &self.recorder {
            recorder.record(&self.model.model, request, &reply, self.key.as_ref()).await;
        }
        Ok(reply)
    }

    /// Repeats attempts until one succeeds, none is left, or the total time is over.
    async fn attempt_until_answered(
        &self,
        http: &Http,
        request: &ChatRequest,
        deltas: &mut (impl FnMut(Delta) + Send),
    ) -> Result<ChatReply, ModelFailure> {
        let key = self.key()?;
        let sent = Bytes::from(body(&self.model, request).to_string());
        let end_by = Instant::now() + self.model.total;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let turn = request.messages.len();
            let attempt = http.attempt(sent.clone(), key, turn, request.reply_tokens, deltas);
            let failure = match timeout_at(end_by, attempt).await {
                Ok(Ok(reply)) => return Ok(unbend(&self.model, request, reply)),
                Ok(Err(failure)) => failure,
                Err(_) => {
                    let message = format!("there was no whole reply within {:?}", self.model.total);
                    let kind = ModelFailureKind::TimedOut;
                    return Err(self.failure(AttemptFailure::new(kind, message), attempts));
                }
            };
            let wait = retry::wait(attempts, failure.retry_after, retry::chance());
            let again = failure.again && attempts <= self.model.retries && Instant::now() + wait < end_by;
            let failure = self.failure(failure, attempts);
            if !again {
                return Err(failure);
            }
            tracing::info!(model = self.name, kind = ?failure.kind, message = failure.message, ?wait, "a request is sent again");
            deltas(Delta::Retry { failure, wait });
            sleep(wait).await;
        }
    }

    fn key(&self) -> Result<Option<&Secret>, ModelFailure> {
        let Some(variable) = &self.model.key_variable else { return Ok(None) };
        if self.key.is_none() {
            let name = &self.name;
            let message = format!(
                "there is no key: set the variable `{variable}` in the environment of the daemon, or \
                 name another one in the configuration, as `key_variable = \"…\"` below `[model.{name}]`"
            );
            let failure = AttemptFailure::new(ModelFailureKind::Authentication, message);
            return Err(self.failure(failure, 0));
        }
        Ok(self.key.as_ref())
    }

    /// Removes the key from a reply, so that no event contains it even if the provider repeats it.
    fn without_key(&self, mut reply: ChatReply) -> ChatReply {
        let message = &mut reply.message;
        let calls = message.tool_calls.iter_mut();
        let calls = calls.flat_map(|call| [&mut call.id, &mut call.name, &mut call.arguments]);
        let legacy = message.function_call.iter_mut();
        let calls = calls.chain(legacy.flat_map(|call| [&mut call.name, &mut call.arguments]));
        let texts = calls.chain([&mut message.content]).chain(&mut reply.reasoning).chain(&mut reply.refusal);
        texts.for_each(|text| *text = self.clean(std::mem::take(text)));
        reply
    }

    fn clean(&self, text: String) -> String {
        match &self.key {
            Some(key) if text.contains(key.expose()) => key.redact(&text),
            _ => text,
        }
    }

    /// The failure as users see it: with the name of the model and without its key.
    fn failure(&self, failure: AttemptFailure, attempts: u32) -> ModelFailure {
        let message = format!("model `{}`: {}", self.name, failure.message);
        let message = self.key.as_ref().map_or_else(|| message.clone(), |key| key.redact(&message));
        ModelFailure { kind: failure.kind, message, attempts }
    }
}

/// Removes the key from the pieces of a reply, because they are shown and journaled before the reply is complete.
#[derive(Default)]
struct KeyRedactor<'a> {
    key: Option<&'a Secret>,
    text: Redactor,
    reasoning: Redactor,
}

impl KeyRedactor<'_> {
    fn through(&mut self, delta: Delta) -> Option<Delta> {
        let Some(key) = self.key else { return Some(delta) };
        match delta {
            Delta::Text(text) => non_empty_delta(self.text.next(&text, key), Delta::Text),
            Delta::Reasoning(text) => non_empty_delta(self.reasoning.next(&text, key), Delta::Reasoning),
            retry @ Delta::Retry { .. } => {
                // The text held back belongs to the failed attempt.
                (self.text, self.reasoning) = Default::default();
                Some(retry)
            }
        }
    }

    /// The text still held back when the reply is complete.
    fn rest(&mut self) -> impl Iterator<Item = Delta> {
        let reasoning = non_empty_delta(self.reasoning.rest(), Delta::Reasoning);
        reasoning.into_iter().chain(non_empty_delta(self.text.rest(), Delta::Text))
    }
}

fn non_empty_delta(text: String, as_delta: fn(String) -> Delta) -> Option<Delta> {
    (!text.is_empty()).then(|| as_delta(text))
}

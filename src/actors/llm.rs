//! The LLM actor: one model of the configuration. Each request is a message and runs in its own task, so that
//! a request that hangs holds up no other; dropping the reply port cancels the request.

use parking_lot::RwLock;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::config::{LiveSettings, Model, Named};
use crate::llm::{Client, Delta};
use crate::protocol::chat::{ChatReply, ChatRequest, ModelFailure, ModelFailureKind};

/// The most requests to one model that run or wait for a place.
const REQUESTS: usize = 256;

/// The most pieces of a reply that wait to be read.
pub const PROGRESS_PIECES: usize = 64;

pub type LlmRef = ActorRef<LlmMsg>;

/// What the caller learns before the reply is complete.
pub enum ChatProgress {
    Text(String),
    /// What the model thinks before it says something.
    Reasoning(String),
    /// The request failed and is sent again; the text so far is void.
    Retries {
        failure: ModelFailure,
        pause: Duration,
    },
}

pub enum LlmMsg {
    Chat {
        request: Box<ChatRequest>,
        progress: mpsc::Sender<ChatProgress>,
        reply_to: oneshot::Sender<Result<ChatReply, ModelFailure>>,
    },
    /// A request has ended, with any outcome.
    RequestDone,
}

pub struct LlmState {
    client: Arc<Client>,
    under_way: usize,
}

pub struct Llm;

impl Actor for Llm {
    type Msg = LlmMsg;
    type State = LlmState;
    type Arguments = Arc<Client>;

    async fn pre_start(&self, _: LlmRef, client: Arc<Client>) -> Result<LlmState, ActorProcessingErr> {
        Ok(LlmState { client, under_way: 0 })
    }

    async fn handle(
        &self,
        myself: LlmRef,
        message: LlmMsg,
        state: &mut LlmState,
    ) -> Result<(), ActorProcessingErr> {
        crate::panics::panic_if_requested("llm");
        match message {
            LlmMsg::Chat { reply_to, .. } if state.under_way >= REQUESTS => {
                let message = format!("{REQUESTS} requests to this model are under way already");
                let _ = reply_to.send(Err(failure(ModelFailureKind::RateLimited, message)));
            }
            LlmMsg::Chat { request, progress, reply_to } => {
                state.under_way += 1;
                let passed_on = PassedOn { progress, unsent: VecDeque::new() };
                tokio::spawn(chat(
                    Arc::clone(&state.client),
                    request,
                    passed_on,
                    reply_to,
                    DoneGuard(myself),
                ));
            }
            LlmMsg::RequestDone => state.under_way = state.under_way.saturating_sub(1),
        }
        Ok(())
    }
}

/// One request, until its reply is there or its caller has gone.
async fn chat(
    client: Arc<Client>,
    request: Box<ChatRequest>,
    mut passed_on: PassedOn,
    mut reply_to: oneshot::Sender<Result<ChatReply, ModelFailure>>,
    done: DoneGuard,
) {
    let outcome = tokio::select! {
        () = reply_to.closed() => None,
        outcome = client.chat(&request, |delta| passed_on.take(delta)) => Some(outcome),
    };
    passed_on.flush().await;
    drop(done);
    if let Some(outcome) = outcome {
        let _ = reply_to.send(outcome);
    }
}

/// Frees the place of a request, also if its task panics.
struct DoneGuard(LlmRef);

impl Drop for DoneGuard {
    fn drop(&mut self) {
        let _ = self.0.cast(LlmMsg::RequestDone);
    }
}

/// Passes on what comes of a reply before it is complete. Text that comes faster than it is read becomes one piece.
struct PassedOn {
    progress: mpsc::Sender<ChatProgress>,
    unsent: VecDeque<ChatProgress>,
}

impl PassedOn {
    fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => match self.unsent.back_mut() {
                Some(ChatProgress::Reasoning(last)) => last.push_str(&text),
                _ => self.unsent.push_back(ChatProgress::Reasoning(text)),
            },
            Delta::Text(text) => match self.unsent.back_mut() {
                Some(ChatProgress::Text(last)) => last.push_str(&text),
                _ => self.unsent.push_back(ChatProgress::Text(text)),
            },
            Delta::Retry { failure, wait } => {
                self.unsent.retain(|piece| matches!(piece, ChatProgress::Retries { .. }));
                self.unsent.push_back(ChatProgress::Retries { failure, pause: wait });
            }
        }
        while let Some(piece) = self.unsent.pop_front() {
            if let Err(TrySendError::Full(piece)) = self.progress.try_send(piece) {
                return self.unsent.push_front(piece);
            }
        }
    }

    /// Sends the rest, unless the caller has gone.
    async fn flush(self) {
        for piece in self.unsent {
            if self.progress.send(piece).await.is_err() {
                return;
            }
        }
    }
}

fn failure(kind: ModelFailureKind, message: impl Into<String>) -> ModelFailure {
    ModelFailure { kind, message: message.into(), attempts: 0 }
}

fn client_of(name: &str, model: &Model) -> Result<Arc<Client>, ModelFailure> {
    Client::new(name, model, |variable| std::env::var(variable).ok()).map(Arc::new)
}

/// The clients that changed models are to have, by name; `None` for a model that goes.
pub type PreparedClients = Vec<(String, Option<Arc<Client>>)>;

/// The models of the configuration by name.
#[derive(Clone)]
pub struct Models {
    actors: Arc<RwLock<BTreeMap<String, LlmRef>>>,
    settings: LiveSettings,
}

impl Models {
    #[must_use]
    pub fn new(settings: LiveSettings) -> Self {
        Self { actors: Arc::default(), settings }
    }

    /// Starts one actor for each model, supervised by `supervisor`.
    pub(super) async fn start(&self, supervisor: &ActorCell) -> Result<(), SpawnErr> {
        for (name, model) in &self.settings.now().models {
            self.spawn_one(name, model, supervisor).await?;
        }
        Ok(())
    }

    async fn spawn_one(&self, name: &str, model: &Model, supervisor: &ActorCell) -> Result<(), SpawnErr> {
        match client_of(name, model) {
            Ok(client) => self.replace(name, client, supervisor).await.map(drop),
            Err(failure) => {
                tracing::error!(name, %failure, "a model cannot be used");
                Ok(())
            }
        }
    }

    /// Lets a new actor take the place of a model's actor, which is returned.
    async fn replace(
        &self,
        name: &str,
        client: Arc<Client>,
        supervisor: &ActorCell,
    ) -> Result<Option<LlmRef>, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, Llm, client, supervisor.clone()).await?;
        Ok(self.actors.write().insert(name.to_owned(), actor))
    }

    /// Restarts the actor of a model if `dead` was one. Its requests have failed.
    pub async fn revive(&self, dead: ractor::ActorId, supervisor: &ActorCell) {
        let found = {
            let actors = self.actors.read();
            actors.iter().find(|(_, actor)| actor.get_id() == dead).map(|(name, _)| name.clone())
        };
        let Some(name) = found else { return };
        if let Some(model) = self.settings.now().models.get(&name)
            && let Err(error) = self.spawn_one(&name, model, supervisor).await
        {
            tracing::error!(name, %error, "a model cannot be started anew");
        }
    }

    /// Makes the clients of models that change, before anything changes: `models` are those of the new settings.
    ///
    /// # Errors
    /// A model cannot be used.
    pub fn prepare(models: &Named<Model>, changed: &[&str]) -> Result<PreparedClients, ModelFailure> {
        let prepare = |name: &&str| {
            let client = models.get(*name).map(|model| client_of(name, model)).transpose()?;
            Ok(((*name).to_owned(), client))
        };
        changed.iter().map(prepare).collect()
    }

    /// Makes the models those of the settings in use, after these have changed. Requests that are under way end
    /// with the model as it was, and at no time is a model missing that stays.
    ///
    /// # Errors
    /// The supervisor ends.
    pub async fn renew(&self, clients: PreparedClients, supervisor: &ActorCell) -> Result<(), SpawnErr> {
        for (name, client) in clients {
            let old = match client {
                Some(client) => self.replace(&name, client, supervisor).await?,
                None => self.actors.write().remove(&name),
            };
            old.inspect(|old| old.stop(None));
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<ModelHandle> {
        self.actor(name).map(|_| ModelHandle { models: self.clone(), name: name.to_owned() })
    }

    fn actor(&self, name: &str) -> Option<LlmRef> {
        self.actors.read().get(name).cloned()
    }

    /// The environment variable that should hold the model's key but does not.
    pub fn missing_key(&self, name: &str) -> Option<String> {
        let variable = self.settings.now().models.get(name)?.key_variable.clone()?;
        let is_set = std::env::var(&variable).is_ok_and(|key| !key.trim().is_empty());
        (!is_set).then_some(variable)
    }
}

/// A model that can be asked.
pub struct ModelHandle {
    models: Models,
    name: String,
}

/// The attempts for a request whose actor dies, and the pause until the actor has been restarted.
const TRIES: u32 = 4;
const REVIVED: Duration = Duration::from_millis(100);

impl ModelHandle {
    /// Sends a request to the model. Dropping the future cancels it.
    pub async fn chat(
        self,
        request: ChatRequest,
        progress: mpsc::Sender<ChatProgress>,
    ) -> Result<ChatReply, ModelFailure> {
        let gone = || failure(ModelFailureKind::Interrupted, "the request was lost inside the daemon");
        for attempt in 1..=TRIES {
            let (reply_to, reply) = oneshot::channel();
            let message =
                LlmMsg::Chat { request: Box::new(request.clone()), progress: progress.clone(), reply_to };
            if self.models.actor(&self.name).is_some_and(|actor| actor.cast(message).is_ok())
                && let Ok(outcome) = reply.await
            {
                return outcome;
            }
            if attempt < TRIES {
                let _ = progress.send(ChatProgress::Retries { failure: gone(), pause: REVIVED }).await;
                tokio::time::sleep(REVIVED).await;
            }
        }
        Err(gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    #[test]
    fn models_that_cannot_be_used_are_known_before_anything_changes() {
        let text = "[model.a]\nprovider = 'vllm'\nmodel = 'x'\n";
        let mut models = load_text("c.toml".as_ref(), text).unwrap().settings.models;
        let prepared = Models::prepare(&models, &["a", "gone"]).unwrap();
        let made: Vec<(&str, bool)> =
            prepared.iter().map(|(name, client)| (name.as_str(), client.is_some())).collect();
        assert_eq!(made, [("a", true), ("gone", false)]);
        models.get_mut("a").unwrap().base_url = "no address".to_owned();
        assert!(Models::prepare(&models, &["a"]).is_err());
        assert!(Models::prepare(&models, &[]).is_ok());
    }
}

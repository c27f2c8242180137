//! The LLM actor: one model of the configuration. Requests come as messages and are worked on in
//! tasks of their own, so that one that hangs holds up no other; whoever asked and leaves cancels.

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use crate::config::{Model, Settings};
use crate::llm::{Client, Delta};
use crate::protocol::chat::{ChatReply, ChatRequest, ModelFailure, ModelFailureKind};

/// Requests to one model that are under way or wait for a place.
const REQUESTS: usize = 256;

pub type LlmRef = ActorRef<LlmMsg>;

/// What can be told before the reply is there.
pub enum News {
    Text(String),
    /// What was told so far does not count.
    Retries {
        failure: ModelFailure,
        pause: Duration,
    },
}

pub enum LlmMsg {
    Chat {
        request: Box<ChatRequest>,
        news: mpsc::UnboundedSender<News>,
        reply_to: oneshot::Sender<Result<ChatReply, ModelFailure>>,
    },
    /// A request is over, however it ended.
    Over,
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
        crate::deaths::on_demand("llm");
        match message {
            LlmMsg::Chat { reply_to, .. } if state.under_way >= REQUESTS => {
                let message = format!("{REQUESTS} requests to this model are under way already");
                let _ = reply_to.send(Err(failure(ModelFailureKind::RateLimited, message)));
            }
            LlmMsg::Chat { request, news, mut reply_to } => {
                state.under_way += 1;
                let client = Arc::clone(&state.client);
                tokio::spawn(async move {
                    let over = Over(myself);
                    let outcome = tokio::select! {
                        () = reply_to.closed() => None,
                        outcome = client.chat(&request, |delta| tell(&news, delta)) => Some(outcome),
                    };
                    drop((news, over));
                    if let Some(outcome) = outcome {
                        let _ = reply_to.send(outcome);
                    }
                });
            }
            LlmMsg::Over => state.under_way = state.under_way.saturating_sub(1),
        }
        Ok(())
    }
}

/// Gives the place back, also if the work panics.
struct Over(LlmRef);

impl Drop for Over {
    fn drop(&mut self) {
        let _ = self.0.cast(LlmMsg::Over);
    }
}

fn tell(news: &mpsc::UnboundedSender<News>, delta: Delta) {
    let piece = match delta {
        // What a reasoning model thinks aloud comes with the reply.
        Delta::Reasoning(_) => return,
        Delta::Text(text) => News::Text(text),
        Delta::Restarted { failure, wait } => News::Retries { failure, pause: wait },
    };
    let _ = news.send(piece);
}

fn failure(kind: ModelFailureKind, message: impl Into<String>) -> ModelFailure {
    ModelFailure { kind, message: message.into(), attempts: 0 }
}

/// The models of the configuration by name.
#[derive(Clone)]
pub struct Models {
    actors: Arc<RwLock<BTreeMap<String, LlmRef>>>,
    settings: Arc<Settings>,
}

impl Models {
    #[must_use]
    pub fn new(settings: Arc<Settings>) -> Self {
        Self { actors: Arc::default(), settings }
    }

    /// One actor a model, supervised by `supervisor`.
    pub(super) async fn start(&self, supervisor: &ActorCell) -> Result<(), SpawnErr> {
        for (name, model) in &self.settings.models {
            self.spawn_one(name, model, supervisor).await?;
        }
        Ok(())
    }

    async fn spawn_one(&self, name: &str, model: &Model, supervisor: &ActorCell) -> Result<(), SpawnErr> {
        let client = match Client::new(name, model, |variable| std::env::var(variable).ok()) {
            Ok(client) => Arc::new(client),
            Err(failure) => {
                tracing::error!(name, %failure, "a model cannot be used");
                return Ok(());
            }
        };
        let (actor, _) = Actor::spawn_linked(None, Llm, client, supervisor.clone()).await?;
        self.actors.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), actor);
        Ok(())
    }

    /// Starts the actor of a model anew, if this was one. Its requests have failed.
    pub async fn revive(&self, dead: ractor::ActorId, supervisor: &ActorCell) {
        let found = {
            let actors = self.actors.read().unwrap_or_else(PoisonError::into_inner);
            actors.iter().find(|(_, actor)| actor.get_id() == dead).map(|(name, _)| name.clone())
        };
        let Some(name) = found else { return };
        if let Some(model) = self.settings.models.get(&name)
            && let Err(error) = self.spawn_one(&name, model, supervisor).await
        {
            tracing::error!(name, %error, "a model cannot be started anew");
        }
    }

    pub fn get(&self, name: &str) -> Option<Asked> {
        self.actor(name).map(|_| Asked { models: self.clone(), name: name.to_owned() })
    }

    fn actor(&self, name: &str) -> Option<LlmRef> {
        self.actors.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The variable that has to hold the model's key and does not.
    pub fn missing_key(&self, name: &str) -> Option<String> {
        let variable = self.settings.models.get(name)?.key_variable.clone()?;
        let is_set = std::env::var(&variable).is_ok_and(|key| !key.trim().is_empty());
        (!is_set).then_some(variable)
    }
}

/// A model that can be asked.
pub struct Asked {
    models: Models,
    name: String,
}

/// Tries of a request that is lost because its actor dies over it, and the pause until there is another one.
const TRIES: u32 = 4;
const REVIVED: Duration = Duration::from_millis(100);

impl Asked {
    /// Dropping the future cancels the request.
    pub async fn chat(
        self,
        request: ChatRequest,
        news: mpsc::UnboundedSender<News>,
    ) -> Result<ChatReply, ModelFailure> {
        let gone = || failure(ModelFailureKind::Interrupted, "the request was lost inside the daemon");
        for attempt in 1..=TRIES {
            let (reply_to, reply) = oneshot::channel();
            let message = LlmMsg::Chat { request: Box::new(request.clone()), news: news.clone(), reply_to };
            if self.models.actor(&self.name).is_some_and(|actor| actor.cast(message).is_ok())
                && let Ok(outcome) = reply.await
            {
                return outcome;
            }
            if attempt < TRIES {
                let _ = news.send(News::Retries { failure: gone(), pause: REVIVED });
                tokio::time::sleep(REVIVED).await;
            }
        }
        Err(gone())
    }
}

//! An actor that must always exist: when it dies it is restarted, and resumes from the journal. Sessions have their own
//! way to begin anew, in `session/generations.rs`.

use ractor::{ActorRef, RpcReplyPort, SpawnErr};
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::calls::{self, PROMPT};
use crate::protocol::problem::{Code, Problem};

/// The pause before a restart, so that an actor that dies at once does not use a whole processor.
const PAUSE: Duration = Duration::from_millis(500);

pub struct RestartingActor<M> {
    name: &'static str,
    /// Cancelled when the daemon ends.
    end: CancellationToken,
    /// The running actor; none between the death of one and the start of the next.
    current: watch::Receiver<Option<ActorRef<M>>>,
}

impl<M> Clone for RestartingActor<M> {
    fn clone(&self) -> Self {
        Self { name: self.name, end: self.end.clone(), current: self.current.clone() }
    }
}

impl<M: ractor::Message> RestartingActor<M> {
    /// Starts the actor; the first start must succeed. Each run gets a token that is cancelled when the run
    /// is over, for the tasks that work for it, because the next run repeats their work. After `end` the
    /// actor is not restarted.
    pub async fn start<F>(
        name: &'static str,
        end: CancellationToken,
        live: impl Fn(CancellationToken) -> F + Send + 'static,
    ) -> Result<Self, SpawnErr>
    where
        F: Future<Output = Result<(ActorRef<M>, JoinHandle<()>), SpawnErr>> + Send + 'static,
    {
        let mut lifetime = CancellationToken::new();
        let (actor, mut ended) = live(lifetime.clone()).await?;
        let (current, receiver) = watch::channel(Some(actor));
        let ends = end.clone();
        tokio::spawn(async move {
            loop {
                let _ = ended.await;
                current.send_replace(None);
                lifetime.cancel();
                (lifetime, ended) = loop {
                    if !end.is_cancelled() {
                        tracing::error!(name, "an actor died and is started anew");
                    }
                    if end.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
                        return;
                    }
                    let lifetime = CancellationToken::new();
                    match live(lifetime.clone()).await {
                        Ok((actor, ended)) => {
                            current.send_replace(Some(actor));
                            break (lifetime, ended);
                        }
                        Err(error) => tracing::error!(name, %error, "it cannot be started"),
                    }
                };
            }
        });
        Ok(Self { name, end: ends, current: receiver })
    }

    /// Asks the actor, which may have to be started anew before.
    pub async fn call<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> M,
    ) -> Result<T, Problem> {
        let died = || {
            if self.end.is_cancelled() {
                return Problem::new(Code::ShuttingDown, "the daemon ended over this request").hint(format!(
                    "when the next daemon runs, look at your {}, and ask again if need be",
                    self.name
                ));
            }
            Problem::new(Code::Internal, format!("what keeps the {} died over this request", self.name))
                .hint(format!("ask again; {} that were taken are taken up again", self.name))
        };
        let actor = tokio::time::timeout(PROMPT, self.get()).await.ok().flatten().ok_or_else(died)?;
        calls::call(&actor, message).await.map_err(|_| died())
    }

    /// Sends a message, which is dropped while the actor is being started anew.
    pub fn cast(&self, message: M) {
        if let Some(actor) = &*self.current.borrow() {
            let _ = actor.cast(message);
        }
    }

    /// Waits until the actor is there; none if it will not be started again.
    async fn get(&self) -> Option<ActorRef<M>> {
        let lives = |current: &Option<ActorRef<M>>| current.as_ref().is_some_and(calls::lives);
        self.current.clone().wait_for(lives).await.ok()?.clone()
    }

    pub fn stop(&self) {
        if let Some(actor) = &*self.current.borrow() {
            actor.stop(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ractor::{Actor, ActorProcessingErr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Mortal;

    enum Msg {
        Die,
        Number(ractor::RpcReplyPort<u64>),
        Drop(ractor::RpcReplyPort<u64>),
    }

    impl Actor for Mortal {
        type Msg = Msg;
        type State = u64;
        type Arguments = u64;

        async fn pre_start(&self, _: ActorRef<Msg>, number: u64) -> Result<u64, ActorProcessingErr> {
            // The second start fails.
            if number == 2 { Err("stillborn".into()) } else { Ok(number) }
        }

        async fn handle(
            &self,
            _: ActorRef<Msg>,
            message: Msg,
            number: &mut u64,
        ) -> Result<(), ActorProcessingErr> {
            match message {
                Msg::Die => panic!("as it was told to"),
                Msg::Number(reply_to) => drop(reply_to.send(*number)),
                Msg::Drop(reply_to) => drop(reply_to),
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn whoever_dies_is_followed_by_another_until_the_end() {
        let (end, lives) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let (tokens, count) = (Arc::new(parking_lot::Mutex::new(Vec::new())), Arc::clone(&lives));
        let restarting = {
            let tokens = Arc::clone(&tokens);
            RestartingActor::start("mortal", end.clone(), move |lifetime| {
                tokens.lock().push(lifetime);
                Actor::spawn(None, Mortal, count.fetch_add(1, Ordering::Relaxed) + 1)
            })
        };
        let restarting = restarting.await.unwrap();
        let number = async || {
            let actor = restarting.get().await.unwrap();
            ractor::call!(actor, Msg::Number).unwrap()
        };
        assert_eq!(number().await, 1);
        let first = restarting.get().await.unwrap();
        first.cast(Msg::Die).unwrap();
        first.wait(None).await.unwrap();
        restarting.current.clone().wait_for(Option::is_none).await.unwrap();
        assert!(tokens.lock()[0].is_cancelled());
        assert_eq!(number().await, 3);
        let refused = restarting.call(Msg::Drop).await.unwrap_err();
        assert_eq!(refused.code, Code::Internal);
        end.cancel();
        // A request whose work is given up because the daemon ends.
        let refused = restarting.call(Msg::Drop).await.unwrap_err();
        assert_eq!(refused.code, Code::ShuttingDown);
        restarting.stop();
        assert!(restarting.current.clone().wait_for(Option::is_none).await.unwrap().is_none());
        assert!(restarting.get().await.is_none());
        let refused = restarting.call(Msg::Number).await.unwrap_err();
        assert_eq!(refused.code, Code::ShuttingDown);
        assert!(refused.message.contains("the daemon ended"), "{refused:?}");
        assert_eq!(lives.load(Ordering::Relaxed), 3);
    }
}

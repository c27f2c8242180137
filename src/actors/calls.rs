//! Calls to actors, with one error type: the only place that knows what a call without an answer means.

use ractor::rpc::CallResult;
use ractor::{ActorRef, ActorStatus, MessagingErr, RpcReplyPort};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::protocol::problem::{Code, Problem};

/// Longest wait for an actor that answers without waiting for anything slow.
pub const PROMPT: Duration = Duration::from_secs(30);

/// Where the outcome of a request to an actor goes.
pub type Reply<T> = RpcReplyPort<Result<T, Problem>>;

/// Calls an actor that may refuse. The answer takes as long as the work does.
pub async fn try_call<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(Reply<T>) -> M,
) -> Result<T, Problem> {
    call(actor, message).await?
}

/// Asks an actor, whose answer takes as long as the work does.
pub async fn call<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Result<T, Problem> {
    call_part(actor, actor, None, message).await
}

/// Asks an actor on behalf of a part that ends with it: without an answer, the session has ended for the part, even if
/// a next generation of the session goes on.
pub(super) async fn call_own<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Result<T, Problem> {
    answer(false, actor.call(message, None).await)
}

/// Asks an actor that answers without waiting for anything slow.
pub async fn call_promptly<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Result<T, Problem> {
    call_part(actor, actor, Some(PROMPT), message).await
}

/// Asks a part of a session, which may die and be followed by another: only the end of `whole` is an end.
pub async fn call_part<W: ractor::Message, M: ractor::Message, T: Send + 'static>(
    whole: &ActorRef<W>,
    part: &ActorRef<M>,
    patience: Option<Duration>,
    message: impl FnOnce(RpcReplyPort<T>) -> M,
) -> Result<T, Problem> {
    let outcome = part.call(message, patience).await;
    answer(lives(whole), outcome)
}

/// Sends the message at once, so that it keeps its place in the actor's mailbox, and returns its answer as a
/// future; none if the actor ended before it answered. A spawned task would send too late.
pub(super) fn send_now<M: ractor::Message, T: Send + 'static, F: FnOnce(Reply<T>) -> M>(
    actor: &ActorRef<M>,
    message: F,
) -> impl Future<Output = Option<Result<T, Problem>>> + Send + use<M, T, F> {
    let (done, is_done) = oneshot::channel();
    // A message that cannot be sent is dropped together with its reply port, so the future gives none.
    let _ = actor.cast(message(done.into()));
    async move { is_done.await.ok() }
}

/// Whether an actor still takes messages.
#[must_use]
pub fn lives<M>(actor: &ActorRef<M>) -> bool {
    actor.get_status() < ActorStatus::Draining
}

/// The problem for a request over which an actor panicked; the actor carries on without it.
#[must_use]
pub fn lost() -> Problem {
    Problem::new(Code::Internal, "an internal error ended the work on this request; it may have had its effect")
        .hint("look at what there is (`belljar logs`), then ask again; with an `Idempotency-Key` it is safe to ask again at once")
}

/// The answer of an actor. Without one, `lives` says whether only the request was lost or the actor has ended.
fn answer<M, T>(lives: bool, outcome: Result<CallResult<T>, MessagingErr<M>>) -> Result<T, Problem> {
    match outcome {
        Ok(CallResult::Success(answer)) => Ok(answer),
        Ok(CallResult::Timeout) => Err(Problem::new(Code::Internal, "an actor did not answer in time")),
        Ok(CallResult::SenderError) | Err(_) if lives => Err(lost()),
        Ok(CallResult::SenderError) | Err(_) => {
            Err(Problem::new(Code::NoSuchSession, "the session has just ended"))
        }
    }
}

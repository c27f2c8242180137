//! Calls to actors, with one error type.

use ractor::rpc::CallResult;
use ractor::{ActorRef, ActorStatus, MessagingErr, RpcReplyPort};
use tokio::sync::oneshot;

use crate::protocol::problem::{Code, Problem};

/// Where the outcome of a request to an actor goes.
pub type Reply<T> = RpcReplyPort<Result<T, Problem>>;

/// Calls an actor that may refuse. The answer takes as long as the work does.
pub(super) async fn ask<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(Reply<T>) -> M,
) -> Result<T, Problem> {
    let outcome = actor.call(message, None).await;
    if matches!(outcome, Ok(CallResult::SenderError)) && actor.get_status() < ActorStatus::Draining {
        return Err(lost());
    }
    answer(outcome)?
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

/// The problem for a request over which an actor panicked; the actor carries on without it.
#[must_use]
pub fn lost() -> Problem {
    Problem::new(Code::Internal, "an internal error ended the work on this request; it may have had its effect")
        .hint("look at what there is (`belljar logs`), then ask again; with an `Idempotency-Key` it is safe to ask again at once")
}

/// The answer of an actor, or a problem if the actor ended first.
pub(super) fn answer<M, T>(outcome: Result<CallResult<T>, MessagingErr<M>>) -> Result<T, Problem> {
    match outcome {
        Ok(CallResult::Success(answer)) => Ok(answer),
        _ => Err(Problem::new(Code::NoSuchSession, "the session has just ended")),
    }
}

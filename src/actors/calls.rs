//! Asking actors, with one kind of error.

use ractor::rpc::CallResult;
use ractor::{ActorRef, ActorStatus, MessagingErr, RpcReplyPort};
use tokio::sync::oneshot;

use crate::protocol::problem::{Code, Problem};

/// Where the outcome of a request to an actor goes.
pub type Reply<T> = RpcReplyPort<Result<T, Problem>>;

/// Asks an actor something that it may refuse. Its answer takes as long as the work does.
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

/// Sends it now, at its place among all that is sent to that actor, and gives its answer to be waited for elsewhere;
/// none if the actor ended over it. A task that first has to run before it sends would come too late.
pub(super) fn send_now<M: ractor::Message, T: Send + 'static, F: FnOnce(Reply<T>) -> M>(
    actor: &ActorRef<M>,
    message: F,
) -> impl Future<Output = Option<Result<T, Problem>>> + Send + use<M, T, F> {
    let (done, is_done) = oneshot::channel();
    // One that cannot be sent is dropped, and with it the end that would be answered on.
    let _ = actor.cast(message(done.into()));
    async move { is_done.await.ok() }
}

/// An actor died over a message and lives on without it.
#[must_use]
pub fn lost() -> Problem {
    Problem::new(Code::Internal, "an internal error ended the work on this request; it may have had its effect")
        .hint("look at what there is (`belljar logs`), then ask again; with an `Idempotency-Key` it is safe to ask again at once")
}

/// What an actor answered, if it lived to do so.
pub(super) fn answer<M, T>(outcome: Result<CallResult<T>, MessagingErr<M>>) -> Result<T, Problem> {
    match outcome {
        Ok(CallResult::Success(answer)) => Ok(answer),
        _ => Err(Problem::new(Code::NoSuchSession, "the session has just ended")),
    }
}

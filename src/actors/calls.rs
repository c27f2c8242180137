//! Asking actors, with one kind of error.

use ractor::rpc::CallResult;
use ractor::{ActorRef, MessagingErr, RpcReplyPort};

use crate::protocol::problem::{Code, Problem};

/// Asks an actor something that it may refuse. Its answer takes as long as the work does.
pub(super) async fn ask<M: ractor::Message, T: Send + 'static>(
    actor: &ActorRef<M>,
    message: impl FnOnce(RpcReplyPort<Result<T, Problem>>) -> M,
) -> Result<T, Problem> {
    answer(actor.call(message, None).await)?
}

/// What an actor answered, if it lived to do so.
pub(super) fn answer<M, T>(outcome: Result<CallResult<T>, MessagingErr<M>>) -> Result<T, Problem> {
    match outcome {
        Ok(CallResult::Success(answer)) => Ok(answer),
        _ => Err(Problem::new(Code::NoSuchSession, "the session has just ended")),
    }
}

//! How the rest of the daemon reaches the asks of a session.

use ractor::RpcReplyPort;
use std::time::Duration;

use super::messages::AsksMsg;
use crate::actors::calls::{call_part, try_call};
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::protocol::problem::Problem;

/// Asks the asks actor of a session. The session names it for each call, because a new one may have taken its place.
pub async fn call_asks<T: Send + 'static>(
    session: &SessionRef,
    patience: Option<Duration>,
    message: impl FnOnce(RpcReplyPort<T>) -> AsksMsg,
) -> Result<T, Problem> {
    let asks = try_call(session, |reply_to| SessionMsg::Asks { reply_to }).await?;
    call_part(session, &asks, patience, message).await
}

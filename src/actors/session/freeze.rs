//! A session whose sandbox is frozen, also over a restart of the daemon.

use ractor::rpc::CallResult;
use std::sync::Arc;

use super::super::executor::ExecutorMsg;
use super::written::JOURNALLED;
use super::{Answer, OwnSession, SessionActorState, SessionMsg};
use crate::protocol::problem::{Code, Problem};
use crate::session::machine::Input;

impl SessionActorState {
    /// First in the journal: the next daemon has to know why nothing answers.
    pub(super) async fn freeze(&mut self, myself: &OwnSession, reply_to: Answer<()>) {
        let may = self.machine.may_freeze().and_then(|()| self.can_write());
        let executor = match (may, self.ready()) {
            (Ok(()), Some(executor)) => executor,
            (Err(problem), _) => return drop(reply_to.send(Err(problem))),
            (Ok(()), None) => return,
        };
        let session = myself.clone();
        self.apply(Input::Freeze).await;
        tokio::spawn(async move {
            let outcome = match executor.call(|reply_to| ExecutorMsg::Freeze { reply_to }, None).await {
                Ok(CallResult::Success(outcome)) => outcome,
                _ => Err(Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile")),
            };
            let _ = session.cast(SessionMsg::FreezeDone { outcome, reply_to });
        });
    }

    pub(super) async fn freeze_done(&mut self, outcome: Result<(), Problem>, reply_to: Answer<()>) {
        if outcome.is_err() {
            self.apply(Input::FreezeFailed).await;
        }
        let (log, late) =
            (Arc::clone(&self.log), self.unwritable("the sandbox is frozen, which may be forgotten"));
        tokio::spawn(async move {
            let written = tokio::time::timeout(JOURNALLED, log.flushed()).await.is_ok();
            let _ = reply_to.send(outcome.and(if written { Ok(()) } else { Err(late) }));
        });
    }
}

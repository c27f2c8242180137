//! A session whose sandbox is frozen, also over a restart of the daemon.

use ractor::rpc::CallResult;
use std::sync::Arc;

use super::super::executor::ExecutorMsg;
use super::written::JOURNALLED;
use super::{Answer, OwnSession, SandboxPhase, SessionActorState, SessionMsg};
use crate::protocol::event::EventBody;
use crate::protocol::problem::{Code, Problem};

impl SessionActorState {
    /// First in the journal: the next daemon has to know why nothing answers.
    pub(super) fn freeze(&mut self, myself: &OwnSession, reply_to: Answer<()>) {
        let SandboxPhase::Ready { executor, .. } = &self.sandbox else {
            let problem = Problem::new(Code::Busy, "the session has no sandbox at the moment");
            let _ = reply_to.send(Err(problem.hint("there is nothing to freeze")));
            return;
        };
        if let Err(problem) = self.can_write() {
            let _ = reply_to.send(Err(problem));
            return;
        }
        let (executor, session) = (executor.clone(), myself.clone());
        if !std::mem::replace(&mut self.frozen, true) {
            self.log.append(EventBody::Frozen);
        }
        tokio::spawn(async move {
            let outcome = match executor.call(|reply_to| ExecutorMsg::Freeze { reply_to }, None).await {
                Ok(CallResult::Success(outcome)) => outcome,
                _ => Err(Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile")),
            };
            let _ = session.cast(SessionMsg::FreezeDone { outcome, reply_to });
        });
    }

    pub(super) fn freeze_done(&mut self, outcome: Result<(), Problem>, reply_to: Answer<()>) {
        if outcome.is_err() {
            self.not_frozen();
        }
        let (log, late) =
            (Arc::clone(&self.log), self.unwritable("the sandbox is frozen, which may be forgotten"));
        tokio::spawn(async move {
            let written = tokio::time::timeout(JOURNALLED, log.flushed()).await.is_ok();
            let _ = reply_to.send(outcome.and(if written { Ok(()) } else { Err(late) }));
        });
    }

    /// Before anything is asked of a frozen sandbox. What is sent meanwhile waits in its socket.
    pub(super) fn thaw(&mut self) {
        if self.not_frozen()
            && let SandboxPhase::Ready { executor, .. } | SandboxPhase::Starting(executor) = &self.sandbox
        {
            let _ = executor.cast(ExecutorMsg::Thaw);
        }
    }

    /// True if it was.
    fn not_frozen(&mut self) -> bool {
        let was = std::mem::take(&mut self.frozen);
        if was {
            self.log.append(EventBody::Thawed);
        }
        was
    }
}

//! Freezing the sandbox of a session, also over a restart of the daemon.

use std::sync::Arc;

use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::{Command, ExecutorMsg};
use crate::panics::spawn_reporting;
use crate::protocol::problem::{Code, Problem};
use crate::session::machine::Input;

pub(super) fn ended_meanwhile() -> Problem {
    Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile")
}

impl SessionActorState {
    /// Freezes the sandbox. The event goes into the journal first, so that the next daemon knows why the
    /// sandbox does not answer.
    pub(super) fn freeze(&mut self, myself: &OwnSession, reply_to: Reply<()>) {
        let may = self.machine.may_freeze().and_then(|()| self.can_write());
        let executor = match (may, self.ready()) {
            (Ok(()), Some(executor)) => executor,
            (Err(problem), _) => return drop(reply_to.send(Err(problem))),
            (Ok(()), None) => return,
        };
        let session = myself.clone();
        self.apply(Input::Freeze);
        let number = self.machine.freezes();
        let frozen = send_now(&executor, |reply_to| ExecutorMsg::Command(Command::Freeze { reply_to }));
        spawn_reporting(frozen, move |outcome| {
            let outcome = outcome.flatten().unwrap_or_else(|| Err(ended_meanwhile()));
            let _ = session.cast(SessionMsg::FreezeDone { number, outcome, reply_to });
        });
    }

    pub(super) fn freeze_done(&mut self, number: u64, outcome: Result<(), Problem>, reply_to: Reply<()>) {
        if outcome.is_err() {
            self.apply(Input::FreezeFailed(number));
        }
        let (log, late) =
            (Arc::clone(&self.log), self.log.unwritten("the sandbox is frozen, which may be forgotten"));
        tokio::spawn(async move {
            let _ = reply_to.send(outcome.and(if log.is_flushed().await { Ok(()) } else { Err(late) }));
        });
    }
}

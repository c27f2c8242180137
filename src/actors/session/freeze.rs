//! Freezing the sandbox of a session, also over a restart of the daemon.

use std::sync::Arc;

use super::messages::{OwnSession, SessionMsg};
use super::snapshots::FROZEN;
use super::state::SessionActorState;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::{Command, ExecutorMsg};
use crate::panics::spawn_reporting;
use crate::protocol::problem::{Code, Problem};
use crate::session::machine::Input;

impl SessionActorState {
    /// The problem of a request that the executor ended over without an answer.
    pub(super) fn ended_meanwhile(&self) -> Problem {
        if self.leaving {
            let what = "the daemon ends, and it is not known whether the request had its effect";
            return Problem::new(Code::ShuttingDown, what)
                .hint("ask the next daemon, which goes on with the session");
        }
        Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile")
    }

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
        self.give_up_snapshots(FROZEN);
        self.apply(Input::Freeze);
        let number = self.machine.freezes();
        let frozen = send_now(&executor, |reply_to| ExecutorMsg::Command(Command::Freeze { reply_to }));
        spawn_reporting(frozen, move |outcome| {
            let outcome = outcome.flatten();
            let _ = session.cast(SessionMsg::FreezeDone { number, outcome, reply_to });
        });
    }

    pub(super) fn freeze_done(
        &mut self,
        number: u64,
        outcome: Option<Result<(), Problem>>,
        reply_to: Reply<()>,
    ) {
        if outcome.is_none() && self.executor.is_some() {
            // The executor has died, of which the session is about to hear. The next generation freezes the sandbox,
            // because the journal has the freeze; the caller learns from its dropped port that the answer is lost.
            return;
        }
        let outcome = outcome.unwrap_or_else(|| Err(self.ended_meanwhile()));
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

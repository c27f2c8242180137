//! Ephemeral sessions: they are removed when no client holds them any more.

use std::time::Instant;

use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::calls::Reply;
use crate::actors::holds::Hold;
use crate::protocol::problem::Problem;

impl SessionActorState {
    pub(super) fn hold(&mut self, myself: &OwnSession) -> Hold {
        self.holders.add();
        let session = myself.any_generation().clone();
        Hold::new(move || drop(session.cast(SessionMsg::Released)))
    }

    /// Whether an ephemeral session has to be removed. While it is being made, no client can hold it yet.
    pub(super) fn is_forsaken(&mut self) -> bool {
        if self.args.created.is_some() {
            self.holders.renew();
        }
        let machine = &self.machine;
        let is_used = || {
            !machine.queue().is_idle()
                || machine.is_frozen()
                || machine.idle_for(Instant::now()) < self.args.idle
        };
        let is_kept = || self.args.lingers && is_used();
        self.args.ephemeral && !self.machine.is_ending() && self.holders.are_gone() && !is_kept()
    }

    /// Lets an ephemeral session stay for its idle time without a client that holds it, also in the next daemon.
    pub(super) fn linger(&mut self, reply_to: Reply<()>) {
        self.args.lingers = true;
        self.touch();
        let (journal, id) = (self.args.journal.clone(), self.args.id);
        tokio::spawn(async move { reply_to.send(journal.let_linger(id).await.map_err(Problem::from)) });
    }
}

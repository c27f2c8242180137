//! Ephemeral sessions: they are removed when no client holds them any more.

use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::holds::Hold;

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
        self.args.ephemeral && !self.machine.is_ending() && self.holders.are_gone()
    }
}

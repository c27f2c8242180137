//! Ephemeral sessions: they go when nobody holds them any more.

use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::holding::Hold;

impl SessionActorState {
    pub(super) fn hold(&mut self, myself: &OwnSession) -> Hold {
        self.holders.add();
        let session = myself.any_generation().clone();
        Hold::new(move || drop(session.cast(SessionMsg::Released)))
    }

    /// Whether it is time for it to go. While it is being made nobody can hold it.
    pub(super) fn is_forsaken(&mut self) -> bool {
        if self.args.created.is_some() {
            self.holders.renew();
        }
        self.args.ephemeral && !self.machine.is_ending() && self.holders.are_gone()
    }
}

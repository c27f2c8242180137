//! A cell runs when its owner may run one more: it waits in turn with those of other users. What a
//! cell holds comes back with its end, of whatever kind.

use std::collections::HashMap;
use tokio_util::task::AbortOnDropHandle;

use super::{OwnSession, SessionActorState, SessionMsg};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Permit};

#[derive(Default)]
pub(super) struct Turns {
    /// Of the cells that run.
    held: HashMap<CellNumber, Permit>,
    /// Came after a wait, for whichever cell is first by now.
    spare: Option<Permit>,
    waiting: Option<AbortOnDropHandle<()>>,
}

impl Turns {
    pub fn begin(&mut self, cell: CellNumber, permit: Permit) {
        self.held.insert(cell, permit);
    }

    pub fn ended(&mut self, cell: CellNumber) {
        self.held.remove(&cell);
    }
}

fn a_cell() -> Amounts {
    Amounts::of([(Kind::Cells, 1)])
}

impl SessionActorState {
    /// A permit for one more cell. None: it comes with a message.
    pub(super) fn turn(&mut self, myself: &OwnSession) -> Result<Option<Permit>, Problem> {
        if let Some(permit) = self.turns.spare.take() {
            return Ok(Some(permit));
        }
        if self.turns.waiting.is_some() {
            return Ok(None);
        }
        let (owner, name) = (self.args.owner, self.args.name.as_str());
        if self.args.nested {
            // The cell that wants it holds one already and does nothing but wait.
            return Ok(Some(self.args.ledger.keep(owner, name, a_cell())));
        }
        let mut turn = self.args.ledger.wait(owner, name, a_cell())?;
        if let Some(permit) = turn.try_take() {
            return Ok(Some(permit));
        }
        let session = myself.clone();
        self.turns.waiting = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(permit) = turn.taken().await {
                let _ = session.cast(SessionMsg::MayRun(permit));
            }
        })));
        Ok(None)
    }

    pub(super) async fn may_run(&mut self, myself: &OwnSession, permit: Permit) {
        self.turns.waiting = None;
        self.turns.spare = Some(permit);
        self.pump(myself).await;
        // What it was for may be gone; somebody else waits.
        self.turns.spare = None;
    }

    /// Runs since an earlier daemon.
    pub(super) fn keep_turn(&mut self, cell: CellNumber) {
        let permit = self.args.ledger.keep(self.args.owner, self.args.name.as_str(), a_cell());
        self.turns.begin(cell, permit);
    }
}

//! A cell runs when its owner may run one more: it waits in turn with those of other users. What a
//! cell holds comes back with its end, of whatever kind.

use std::collections::HashMap;
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, SessionActorState, SessionMsg};
use crate::protocol::api::VariableList;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Permit};
use crate::session::machine::Input;

#[derive(Default)]
pub(super) struct Turns {
    /// Of the cells that run.
    pub held: HashMap<CellNumber, Permit>,
    /// For whichever cell is first by now.
    pub spare: Option<Permit>,
    waiting: Option<AbortOnDropHandle<()>>,
}

fn a_cell() -> Amounts {
    Amounts::of([(Kind::Cells, 1)])
}

impl SessionActorState {
    /// Asks for one more cell. None: the answer comes with a message.
    pub(super) fn turn(&mut self) -> Result<Option<Input<Answer<VariableList>>>, Problem> {
        let (owner, name) = (self.args.owner, self.args.name.as_str());
        if self.args.nested {
            // The cell that wants it holds one already and does nothing but wait.
            self.turns.spare = Some(self.args.ledger.keep(owner, name, a_cell()));
            return Ok(Some(Input::MayRun));
        }
        let mut turn = self.args.ledger.wait(owner, name, a_cell())?;
        if let Some(permit) = turn.try_take() {
            self.turns.spare = Some(permit);
            return Ok(Some(Input::MayRun));
        }
        let session = self.myself.clone();
        self.turns.waiting = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(permit) = turn.taken().await {
                let _ = session.cast(SessionMsg::MayRun(permit));
            }
        })));
        Ok(None)
    }

    pub(super) async fn may_run(&mut self, permit: Permit) {
        self.turns.waiting = None;
        self.turns.spare = Some(permit);
        self.apply(Input::MayRun).await;
    }

    /// Runs since an earlier daemon.
    pub(super) fn keep_turn(&mut self, cell: CellNumber) {
        let permit = self.args.ledger.keep(self.args.owner, self.args.name.as_str(), a_cell());
        self.turns.held.insert(cell, permit);
    }
}

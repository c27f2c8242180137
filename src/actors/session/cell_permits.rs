//! A cell runs when its owner may run one more: it waits in turn with those of other users. What a
//! cell holds comes back with its end, of whatever kind.

use tokio_util::task::AbortOnDropHandle;

use super::messages::SessionMsg;
use super::state::SessionActorState;
use crate::actors::calls::Reply;
use crate::protocol::api::VariableList;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Permit};
use crate::session::machine::Input;

fn a_cell() -> Amounts {
    Amounts::of([(Kind::Cells, 1)])
}

impl SessionActorState {
    /// Asks for one more cell. None: the answer comes with a message.
    pub(super) fn request_cell_permit(&mut self) -> Result<Option<Input<Reply<VariableList>>>, Problem> {
        let (owner, name) = (self.args.owner, self.args.name.as_str());
        if self.args.nested {
            // The cell that wants it holds one already and does nothing but wait.
            self.cell_permits.spare = Some(self.args.ledger.keep(owner, name, a_cell()));
            return Ok(Some(Input::MayRun));
        }
        let mut turn = self.args.ledger.wait(owner, name, a_cell())?;
        if let Some(permit) = turn.try_take() {
            self.cell_permits.spare = Some(permit);
            return Ok(Some(Input::MayRun));
        }
        let session = self.myself.clone();
        self.cell_permits.waiting = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(permit) = turn.taken().await {
                let _ = session.cast(SessionMsg::MayRun(permit));
            }
        })));
        Ok(None)
    }

    pub(super) async fn may_run(&mut self, permit: Permit) {
        self.cell_permits.waiting = None;
        self.cell_permits.spare = Some(permit);
        self.apply(Input::MayRun).await;
    }

    /// Runs since an earlier daemon.
    pub(super) fn keep_cell_permit(&mut self, cell: CellNumber) {
        let permit = self.args.ledger.keep(self.args.owner, self.args.name.as_str(), a_cell());
        self.cell_permits.held.insert(cell, permit);
    }
}

//! Permits for cells: a cell runs when its owner may run one more, and waits in turn with those of other
//! users. Its permit is released when it ends in any way.

use tokio_util::task::AbortOnDropHandle;

use super::messages::SessionMsg;
use super::state::SessionActorState;
use crate::actors::amounts;
use crate::actors::calls::Reply;
use crate::protocol::api::VariableList;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::quota::Permit;
use crate::session::machine::Input;

impl SessionActorState {
    /// Requests a permit for one more cell. None if the permit comes later, as a message.
    pub(super) fn request_cell_permit(&mut self) -> Result<Option<Input<Reply<VariableList>>>, Problem> {
        let (owner, name) = (self.args.owner, self.args.name.as_str());
        if self.args.nested {
            // The cell that requested this session holds a permit already and only waits.
            self.cell_permits.spare = Some(self.args.ledger.keep(owner, name, amounts::of_cell()));
            return Ok(Some(Input::MayRun));
        }
        let mut turn = self.args.ledger.wait(owner, name, amounts::of_cell())?;
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

    pub(super) fn may_run(&mut self, permit: Permit) {
        self.cell_permits.waiting = None;
        self.cell_permits.spare = Some(permit);
        self.apply(Input::MayRun);
    }

    /// Holds a permit for a cell that has been running since an earlier daemon.
    pub(super) fn keep_cell_permit(&mut self, cell: CellNumber) {
        let permit = self.args.ledger.keep(self.args.owner, self.args.name.as_str(), amounts::of_cell());
        self.cell_permits.running.insert(cell, permit);
    }
}

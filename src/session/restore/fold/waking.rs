//! What the fold of a session takes from events about variables that come back: from a snapshot, or at the start of a replay.

use super::Fold;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{ExecutionResult, Reason, Status};
use crate::security_controls;
use crate::session::notices;
use crate::session::restore::Restored;
use crate::session::restore::saved::died_with_sandbox;
use crate::tools::Responses;

impl Fold {
    /// A new sandbox has the variables of a snapshot, or the session begins with some.
    pub(super) fn woken(&mut self, event: &EventBody) {
        let restored = &mut self.restored;
        match event {
            EventBody::Woken { snapshot, cell, missing, reopened, replays, left_out } => {
                let from = self.saved.woken_from(snapshot.is_some(), *cell);
                restored.pending_note = Some(notices::woken(from, missing, reopened, replays, left_out));
                restored.waking.clone_from(replays);
                restored.ran_otherwise.clear();
                self.runs_again = replays.iter().copied().collect();
                if security_controls::holds("rules_go_on_after_waking") {
                    restored.sandbox_rules = std::mem::take(&mut self.earlier_rules);
                }
            }
            EventBody::Based { bound, .. } => restored.sandbox_rules.inherit(bound),
            _ => {}
        }
    }

    /// A cell of before has run again in a session that wakes. After one that died, the others do not run any more, unless the
    /// sandbox died with it, or it never ran: then they run again in the next one.
    pub(super) fn rebuilt(&mut self, replayed: CellNumber, result: &ExecutionResult) {
        if result.reason == Reason::ByCancel {
            return;
        }
        let (status, before) = (result.status, self.restored.status_before(replayed));
        let Restored { waking, pending_note, ran_otherwise, .. } = &mut self.restored;
        waking.retain(|cell| *cell != replayed);
        if status != before {
            ran_otherwise.push(replayed);
        }
        let is_cut = !matches!(status, Status::Success | Status::Failure);
        if is_cut || waking.is_empty() {
            *pending_note = notices::ended_otherwise(pending_note.take(), ran_otherwise);
        }
        if is_cut {
            *pending_note = Some(notices::wake_cut(pending_note.take()));
            if died_with_sandbox(result) {
                waking.clear();
            } else {
                waking.push(replayed);
                self.saved.leaves_out(&std::mem::take(waking));
            }
        }
    }

    /// A cell has ended that can be replayed. One that has run again in the place of another counts as that one until a result
    /// has told that it ended otherwise: if the wake is broken off before, the next one finds that out as well.
    pub(super) fn ended(&mut self, result: &ExecutionResult, in_place_of: Option<CellNumber>) {
        let failed = result.status == Status::Failure;
        let counts_as_failed = match in_place_of {
            Some(replayed) => {
                self.untold.insert(result.cell, failed);
                self.restored.failed.contains(&replayed)
            }
            None => failed,
        };
        if counts_as_failed {
            self.restored.failed.insert(result.cell);
        }
    }

    /// A result has told which of the cells that ran again ended otherwise. From now on they are expected to end as they did.
    pub(super) fn told(&mut self) {
        self.saved.untold.is_told();
        for (cell, failed) in std::mem::take(&mut self.untold) {
            if failed {
                self.restored.failed.insert(cell);
            } else {
                self.restored.failed.remove(&cell);
            }
        }
    }

    /// None of the code up to this cell is left.
    pub(super) fn reset_done(&mut self, cells: CellNumber) {
        let restored = &mut self.restored;
        self.open_resets = self.open_resets.saturating_sub(1);
        restored.reset &= self.open_resets > 0;
        restored.sandbox_rules.reset(cells, self.saved.inherited());
        restored.tool_responses = Responses::default();
    }
}

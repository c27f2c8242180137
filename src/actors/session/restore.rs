//! A session after the daemon was started anew, or in its next life after a panic: what the journal says, and going
//! on from there.

use tokio::sync::oneshot;

use super::messages::{OwnSession, SessionMsg};
use super::state::{CellWaiter, SessionActorState, SessionArgs, expiry};
use crate::actors::asks::messages::AsksMsg;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::{Attach, ExecutorMsg, Resumed};
use crate::protocol::api::VariableList;
use crate::protocol::clock;
use crate::protocol::event::Event;
use crate::protocol::ids::CellNumber;
use crate::protocol::receipt::Receipt;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::session::machine::{Input, Machine, Phase, Unfinished};
use crate::session::notices;
use crate::session::restore::{Begun, Restored};
use crate::store::EventLog;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events read at a time.
const BATCH: usize = 256;

/// All events of a session, without the text of its output.
pub(in crate::actors) fn events(log: &EventLog) -> Vec<Event> {
    let mut found = Vec::new();
    // Nothing of a session that lives is ever dropped from the journal, so it begins at 1.
    let mut after = 0;
    while let Ok((Some(last), batch)) = log.read_told(after, BATCH) {
        after = last;
        found.extend(batch.iter().filter_map(|event| serde_json::from_str::<Event>(&event.json).ok()));
    }
    found
}

/// What a session does next that was there before. `replays`: somebody goes on with the replay.
pub(super) fn machine(args: &SessionArgs, past: &Restored, replays: bool) -> Machine<Reply<VariableList>> {
    let before = Unfinished {
        cells: past.cells,
        queued: past.queued.clone(),
        running: past.running.iter().map(|begun| begun.start.clone()).collect(),
        note: if past.replaying { Some(notices::REPLAY_CUT.into()) } else { past.pending_note.clone() },
        idle: past.active_at.as_deref().map_or(Duration::ZERO, clock::since),
        frozen: past.frozen_since.is_some(),
        replaying: replays && past.replaying,
        sandbox: past.sandbox.is_some(),
        reset: past.reset,
    };
    Machine::restored(expiry(args), before, Instant::now())
}

impl SessionActorState {
    /// Takes up what waits for cells that had not ended. Of those that wait since an earlier life, some wait for cells
    /// that never got into the journal.
    pub(super) fn recall(&mut self, past: Restored, mut waiting: HashMap<CellNumber, CellWaiter>) {
        let events_after = self.log.newest();
        let running = past.running.iter().map(|begun| begun.start.cell);
        for cell in past.queued.iter().map(|start| start.cell).chain(running.clone()) {
            let nobody = || CellWaiter { events_after, done: oneshot::channel().0 };
            self.tickets.insert(cell, waiting.remove(&cell).unwrap_or_else(nobody));
        }
        running.for_each(|cell| self.keep_cell_permit(cell));
        if self.args.before.is_some() {
            self.receipt = past.last_sandbox.clone().map(Arc::new);
            self.keep_image();
            self.preloaded.clone_from(&past.preloaded);
            self.restored = Some(past);
        }
    }

    /// The sandbox to take over, if there was one.
    pub(super) fn take_attach(&mut self) -> Option<Attach> {
        let past = self.restored.take()?;
        let receipt = past.sandbox?;
        let ran = |begun: Begun| Resumed {
            ran: begun.ran(past.frozen_since.as_deref()),
            start: begun.start,
            completed: begun.completed,
            passed: begun.passed,
            to_end: begun.to_end,
            died: begun.died,
        };
        Some(Attach {
            received: self.log.received(&receipt.sandbox),
            receipt,
            running: past.running.into_iter().map(ran).collect(),
            open_calls: past.open_calls,
            responses: past.tool_responses,
            bound: past.sandbox_rules,
            frozen: self.machine.is_frozen(),
        })
    }

    pub(super) async fn sandbox_attached(&mut self, receipt: Receipt) {
        if self.machine.phase() != Phase::Starting {
            return;
        }
        if self.machine.takes_reset_again()
            && let Some(executor) = &self.executor
        {
            // A fresh state can be made fresh once more, so nobody has to know how far it came.
            let (reply_to, _) = oneshot::channel();
            let _ = executor.cast(ExecutorMsg::Reset { reply_to: reply_to.into() });
        }
        self.cgroup = Cgroup::of_sandbox(&receipt);
        self.receipt = Some(Arc::new(receipt));
        self.apply(Input::SandboxAttached).await;
    }

    /// Ends the actor and leaves everything else as it is.
    pub(super) async fn leave(&mut self, myself: &OwnSession, within: Duration) {
        self.leaving = true;
        self.apply(Input::Leave).await;
        let executor = self.executor.take();
        let (session, asks) = (myself.any_generation().clone(), self.asks.clone());
        tokio::spawn(async move {
            let of_asks = asks.call(|reply_to| AsksMsg::Leave { reply_to }, None);
            let of_cells = async {
                if let Some(executor) = &executor {
                    let _ = executor.call(|reply_to| ExecutorMsg::EndPrograms { reply_to }, None).await;
                }
            };
            // The asks are told before the executor leaves, whose open calls would take their questions back.
            let programs = async { tokio::join!(of_asks, of_cells) };
            if tokio::time::timeout(within, programs).await.is_err() {
                tracing::warn!("programs of tools were still running at the end of the drain");
            }
            if let Some(executor) = executor {
                let _ = executor.call(|reply_to| ExecutorMsg::Leave { reply_to }, None).await;
            }
            let _ = session.cast(SessionMsg::Left);
        });
    }
}

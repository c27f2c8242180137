//! A session after the daemon was started anew, or in its next life after a panic: what the journal says, and going
//! on from there.

use tokio::sync::oneshot;

use super::super::asks::AsksMsg;
use super::super::executor::{Attach, ExecutorMsg, Resumed};
use super::{OwnSession, Pending, SandboxPhase, SessionActorState, SessionMsg};
use crate::protocol::clock;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::Seq;
use crate::protocol::receipt::Receipt;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::session::news;
use crate::session::queue::Job;
use crate::session::restore::{Begun, Restored};
use crate::store::EventLog;
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

impl SessionActorState {
    /// Takes up cells that had not ended.
    pub(super) fn recall(&mut self, past: Restored) {
        self.cells = past.cells;
        let idle = past.active_at.as_deref().map_or(Duration::ZERO, clock::since);
        self.active_at = self.active_at.checked_sub(idle).unwrap_or(self.active_at);
        for start in &past.queued {
            self.expect_end(start.cell, self.log.newest());
            self.queue.push(Job::Cell { start: start.clone(), patient: false });
        }
        for begun in &past.running {
            self.expect_end(begun.start.cell, self.log.newest());
            self.queue.resume(begun.start.clone());
            self.keep_turn(begun.start.cell);
        }
        // Of cells that never got into the journal.
        self.inherited.clear();
        self.note = if past.replaying { Some(news::REPLAY_CUT.into()) } else { past.news.clone() };
        if self.args.before.is_some() {
            self.receipt = past.last_sandbox.clone().map(Arc::new);
            self.keep_image();
            self.preloaded.clone_from(&past.preloaded);
            self.frozen = past.frozen_since.is_some();
            self.restored = Some(past);
        }
    }

    /// Its result will be in the events; somebody may still wait for it since an earlier life of the session.
    fn expect_end(&mut self, cell: u64, events_after: Seq) {
        let nobody = || Pending { events_after, done: oneshot::channel().0 };
        let pending = self.inherited.remove(&cell).unwrap_or_else(nobody);
        self.tickets.insert(cell, pending);
    }

    /// The sandbox to take over, if there was one.
    pub(super) fn take_attach(&mut self) -> Option<Attach> {
        let past = self.restored.take()?;
        let receipt = past.sandbox?;
        self.reset_again = past.reset;
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
            said: past.said,
            bound: past.bound,
            frozen: self.frozen,
        })
    }

    /// The workspace is there again: attach to the sandbox, or say that it is gone.
    pub(super) async fn go_on(&mut self, myself: &OwnSession) {
        if self.removing {
            return;
        }
        if self.restored.as_ref().is_some_and(|past| past.sandbox.is_some()) {
            self.start_sandbox(myself).await;
            return;
        }
        self.restored = None;
        self.conclude_lost(None);
        self.resume_deferred();
        self.pump(myself).await;
    }

    pub(super) fn sandbox_attached(&mut self, receipt: Receipt) {
        let SandboxPhase::Starting(executor) = &self.sandbox else { return };
        let executor = executor.clone();
        if std::mem::take(&mut self.reset_again) {
            // A fresh state can be made fresh once more, so nobody has to know how far it came.
            let (reply_to, _) = oneshot::channel();
            let _ = executor.cast(ExecutorMsg::Reset { reply_to: reply_to.into() });
        }
        self.sandbox = SandboxPhase::Ready { executor, since: Instant::now() };
        self.log.append(EventBody::SandboxAttached);
        self.cgroup = Cgroup::of_sandbox(&receipt);
        self.receipt = Some(Arc::new(receipt));
    }

    /// Ends the actor and leaves everything else as it is.
    pub(super) fn leave(&mut self, myself: &OwnSession, within: Duration) {
        (self.removing, self.leaving) = (true, true);
        let executor = match std::mem::replace(&mut self.sandbox, SandboxPhase::None) {
            SandboxPhase::None => None,
            SandboxPhase::Starting(executor) | SandboxPhase::Ready { executor, .. } => Some(executor),
        };
        let (session, asks) = (myself.any_life().clone(), self.asks.clone());
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

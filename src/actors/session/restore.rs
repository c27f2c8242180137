//! Restores a session from the journal, after a restart of the daemon or in the next generation after a
//! panic.

use super::messages::{OwnSession, SessionMsg};
use super::state::{CellWaiter, SessionActorState, SessionArgs, expiry};
use crate::actors::asks::messages::AsksMsg;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::{Attach, ExecutorMsg, ResumedCell};
use crate::actors::journal_charges::CELL_COPIES;
use crate::memory::{Charge, MemoryPurpose};
use crate::panics::spawn_reporting;
use crate::protocol::api::VariableList;
use crate::protocol::clock::{self, Moment};
use crate::protocol::event::Event;
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::receipt::Receipt;
use crate::protocol::values;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::session::machine::{Input, Phase, Replays, SessionMachine, Unfinished};
use crate::session::notices;
use crate::session::replay::RecordedCell;
use crate::session::restore::{AsksFold, BegunCell, Fold, RecalledAsks, Recording, Restored, Span};
use crate::session::rules::CellRules;
use crate::store::{EventLog, JournalError, Overdraft};
use crate::tools;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Folds the events of a session between two numbers, without output and displays. Reading and parsing them
/// blocks, so it runs on a blocking thread.
pub(in crate::actors) async fn fold<T: Send + 'static>(
    log: &Arc<EventLog>,
    between: (Seq, Seq),
    overdraft: Overdraft,
    mut state: T,
    take: impl Fn(&mut T, Event) -> Result<(), JournalError> + Send + 'static,
) -> Result<T, JournalError> {
    let log = Arc::clone(log);
    let read = tokio::task::spawn_blocking(move || {
        log.each_event(between, overdraft, |event| take(&mut state, event))?;
        Ok(state)
    });
    read.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(JournalError::Closed),
    })
}

/// Reads the record of one cell. It is charged to memory as long as the charge exists.
pub(in crate::actors) async fn recorded(
    log: &Arc<EventLog>,
    (cell, span): (CellNumber, Span),
    overdraft: Overdraft,
) -> Result<(Option<RecordedCell>, Option<Charge>), JournalError> {
    let charge = log.memory().map(|pool| pool.open(MemoryPurpose::Cells));
    let held = Arc::new(AtomicU64::new(0));
    let holds = Arc::clone(&held);
    let take = move |(recording, charge): &mut (Recording, Option<Charge>), event| {
        recording.take(event);
        let Some(charge) = charge else { return Ok(()) };
        let more = recording.bytes().saturating_mul(CELL_COPIES).saturating_sub(charge.bytes());
        if overdraft == Overdraft::Allowed {
            charge.grow_anyway(more);
            return Ok(());
        }
        charge.try_grow(more).map_err(JournalError::NoRoom)?;
        holds.store(charge.bytes(), Ordering::Relaxed);
        Ok(())
    };
    let between = (span.first.saturating_sub(1), span.last);
    let read = fold(log, between, overdraft, (Recording::of(cell), charge), take).await;
    // A record grows event by event, so no part of it alone says whether all of it can ever be in memory.
    let (recording, charge) = read.map_err(|error| error.beside(held.load(Ordering::Relaxed)))?;
    Ok((recording.end(), charge))
}

/// Reads from the journal what a session and its asks go on from.
pub(super) async fn read_restored(
    args: &SessionArgs,
    log: &Arc<EventLog>,
    client_rules: &Arc<CellRules>,
) -> Result<(Restored, RecalledAsks), JournalError> {
    let _turn = args.restore_turn.take().await;
    let told_chars = args.launcher.settings.agent.told_chars;
    let folds = (Fold::new(client_rules), AsksFold::new(told_chars));
    let now = Moment::now();
    let take = move |(of_session, of_asks): &mut (Fold, AsksFold), event: Event| {
        let decided = of_session.take(&event, now);
        of_asks.take(event, decided, &of_session.so_far().approvals);
        Ok(())
    };
    let all = (0, log.newest());
    let (of_session, of_asks) = fold(log, all, Overdraft::Allowed, folds, take).await?;
    let (mut records, mut charges) = (BTreeMap::new(), Vec::new());
    for replayed in of_session.replayed().collect::<Vec<_>>() {
        let (record, charge) = recorded(log, replayed, Overdraft::Allowed).await?;
        records.extend(record.map(|record| (replayed.0, record)));
        charges.extend(charge);
    }
    let mut restored = of_session.end(&records, Moment::now());
    drop(charges);
    let pool = args.ledger.memory(args.owner);
    let running = restored.running.iter_mut().map(|begun| &mut begun.start);
    for start in restored.queued.iter_mut().chain(running) {
        let calls =
            start.replay.iter().flat_map(|calls| &calls.0).filter_map(|call| call.outcome.as_ref().ok());
        let calls = calls.map(|value| values::parsed_bytes(&value.to_string()));
        let own = start.code.len() + start.command.as_ref().map_or(0, |command| command.size());
        let bytes = calls.fold(own as u64, u64::saturating_add).saturating_mul(CELL_COPIES);
        start.memory = Some(Arc::new(pool.charge_anyway(MemoryPurpose::Cells, bytes)));
    }
    let asks = of_asks.end(std::mem::take(&mut restored.approvals));
    Ok((restored, asks))
}

/// The machine of a restored session. A replay that runs continues.
pub(super) fn machine(
    args: &SessionArgs,
    restored: &Restored,
    replays: Replays,
) -> SessionMachine<Reply<VariableList>> {
    let before = Unfinished {
        cells: restored.cells,
        queued: restored.queued.clone(),
        running: restored.running.iter().map(|begun| begun.start.clone()).collect(),
        note: if restored.replaying {
            Some(notices::REPLAY_CUT.into())
        } else {
            restored.pending_note.clone()
        },
        not_loaded: restored.saved.untold.not_loaded().map(str::to_owned),
        has_variables: restored.saved.has_variables(),
        idle: restored.active_at.as_deref().map_or(Duration::ZERO, clock::since),
        frozen: restored.frozen_since.is_some(),
        replays: Replays { is_running: replays.is_running && restored.replaying, ..replays },
        waking: restored.sandbox.is_some() && !restored.waking.is_empty(),
        unsaved: restored.unsaved,
        sandbox: restored.sandbox.is_some(),
        reset: restored.reset,
    };
    SessionMachine::restored(expiry(args), before, Instant::now())
}

impl SessionActorState {
    /// Restores the waiters of cells that had not ended. A waiter of the previous generation is dropped if
    /// its cell never got into the journal.
    pub(super) fn recall(&mut self, restored: Restored, mut waiting: HashMap<CellNumber, CellWaiter>) {
        let events_after = self.log.newest();
        let running = restored.running.iter().map(|begun| begun.start.cell);
        for cell in restored.queued.iter().map(|start| start.cell).chain(running.clone()) {
            let nobody = || CellWaiter::nobody(events_after);
            self.tickets.insert(cell, waiting.remove(&cell).unwrap_or_else(nobody));
        }
        running.for_each(|cell| self.keep_cell_permit(cell));
        self.ended_commands.clone_from(&restored.ended_commands);
        if restored.sandbox.is_none() {
            self.args.permit = None;
        }
        if self.args.before.is_some() {
            self.receipt = restored.last_sandbox.clone().map(Arc::new);
            self.keep_image();
            self.preloaded.clone_from(&restored.preloaded);
            self.expect_answers(&restored);
            self.restored = Some(restored);
        }
    }

    /// Takes the answers of clients to calls that an earlier daemon has sent them.
    fn expect_answers(&mut self, restored: &Restored) {
        let Some(receipt) = &restored.sandbox else { return };
        let lent = restored.open_calls.iter().filter(|open| open.lent.is_some()).map(|open| open.call);
        let expect = |call| (call, self.clients.expect(tools::call_id(&receipt.sandbox, call)));
        self.expected = lent.map(expect).collect();
    }

    /// The sandbox to take over, if there was one.
    pub(super) fn take_attach(&mut self) -> Option<Attach> {
        let restored = self.restored.take()?;
        let receipt = restored.sandbox?;
        let ran = |begun: BegunCell| ResumedCell {
            ran: begun.ran(restored.frozen_since.as_deref(), Moment::now()),
            start: begun.start,
            completed: begun.completed,
            passed: begun.passed,
            to_end: begun.to_end,
            died: begun.died,
        };
        Some(Attach {
            received: self.log.received(&receipt.sandbox),
            receipt,
            running: restored.running.into_iter().map(ran).collect(),
            open_calls: restored.open_calls,
            expected: std::mem::take(&mut self.expected),
            answered_calls: restored.answered_calls,
            responses: restored.tool_responses,
            bound: restored.sandbox_rules,
            frozen: self.machine.is_frozen(),
            replays: self.machine.is_replaying() || self.machine.is_waking(),
        })
    }

    pub(super) fn sandbox_attached(&mut self, receipt: Receipt) {
        if self.machine.phase() != Phase::Starting {
            return;
        }
        if self.machine.takes_reset_again() {
            // It is unknown how far the earlier reset came, but resetting a fresh state again is harmless.
            self.reset_late();
        }
        self.cgroup = Cgroup::of_sandbox(&receipt);
        self.receipt = Some(Arc::new(receipt));
        self.apply(Input::SandboxAttached);
        self.rebuild();
    }

    /// Ends the actor and leaves the session and its sandbox as they are.
    pub(super) fn leave(&mut self, myself: &OwnSession, within: Duration) {
        self.leaving = true;
        self.apply(Input::Leave);
        let executor = self.executor.take();
        let (session, asks) = (myself.any_generation().clone(), self.asks.clone());
        let leaving = async move {
            let of_asks = asks.call(|reply_to| AsksMsg::Leave { reply_to }, None);
            let of_cells = async {
                if let Some(executor) = &executor {
                    let _ = executor.call(|reply_to| ExecutorMsg::EndPrograms { reply_to }, None).await;
                }
            };
            // The asks actor is told before the executor leaves, whose open calls would otherwise withdraw
            // their questions.
            let programs = async { tokio::join!(of_asks, of_cells) };
            if tokio::time::timeout(within, programs).await.is_err() {
                tracing::warn!("programs of tools were still running at the end of the drain");
            }
            if let Some(executor) = executor {
                let _ = executor.call(|reply_to| ExecutorMsg::Leave { reply_to }, None).await;
            }
        };
        spawn_reporting(leaving, move |_| drop(session.cast(SessionMsg::Left)));
    }
}

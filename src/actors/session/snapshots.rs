//! Saves the variables of a session, lists and removes what is saved, and puts the session to sleep.
//!
//! A snapshot is on the disk before the journal has it, and the journal has it before anything relies on it: older ones are
//! removed after that, and so is the sandbox of a session that falls asleep.

use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

use super::messages::SessionMsg;
use super::refusals::variables_not_loaded;
use super::state::SessionActorState;
use crate::actors::calls::{Reply, call};
use crate::actors::executor::messages::{Command, ExecutorMsg, WantedSnapshot};
use crate::actors::snapshots::TakenSnapshot;
use crate::panics::spawn_reporting;
use crate::protocol::api::VariableList;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::saved_state::{
    Asleep, BoundRules, SNAPSHOT_NAME_CHARS, SnapshotList, SnapshotPolicy, is_snapshot_name,
};
use crate::protocol::snapshot::SnapshotRecord;
use crate::protocol::text::quotable;
use crate::session::machine::{Input, Phase};
use crate::session::restore::SavedStates;
use crate::store::snapshots::SnapshotError;

/// The most snapshots of a session that clients wait for.
const WANTED_AT_ONCE: usize = 4;

/// Why snapshots are given up.
pub(super) const CHANGED: &str = "the variables were changed while they were saved";
pub(super) const FROZEN: &str = "the session was frozen while it was saved";

/// What a session knows of its snapshots.
pub(super) struct SavedSession {
    pub states: SavedStates,
    /// Snapshots that are being taken, by ticket.
    taking: BTreeMap<u64, Taking>,
    tickets: u64,
    /// Whether the session has told that it cannot be saved, and has not been saved since.
    is_told: bool,
    /// Why the last attempt failed.
    problem: Option<Problem>,
    /// Snapshots that others have replaced of which the journal has not been heard yet.
    unremoved: Vec<String>,
    /// A reset that came while the sandbox was being started, and is repeated when it is there.
    pub late_reset: Option<EventBody>,
    /// A replay that waits for the variables with which it begins, because there was no sandbox to load them into.
    pub replay_without_base: Option<Reply<()>>,
    /// Callers that wait until the session sleeps.
    sleepers: Vec<Reply<Asleep>>,
}

struct Taking {
    /// The machine's number; none if a client wants the snapshot.
    number: Option<u64>,
    /// The changes of the variables that it holds.
    changes: u64,
    /// None once the kernel has sent everything.
    task: Option<AbortOnDropHandle<()>>,
    reply_to: Option<Reply<SnapshotRecord>>,
    record: Option<SnapshotRecord>,
    /// The snapshots that go when the journal has this one.
    replaced: Vec<String>,
}

impl SavedSession {
    pub fn of(states: SavedStates) -> Self {
        Self {
            states,
            taking: BTreeMap::new(),
            tickets: 0,
            is_told: false,
            problem: None,
            unremoved: Vec::new(),
            late_reset: None,
            replay_without_base: None,
            sleepers: Vec::new(),
        }
    }
}

impl SessionActorState {
    /// Whether a new sandbox may get the variables of before: from a snapshot, or by cells that run again.
    pub(super) fn wakes(&self) -> bool {
        let settings = &self.args.launcher.settings.snapshots;
        let may = settings.wake && self.args.policy != SnapshotPolicy::Off;
        let has_base = self.saving.states.base().is_some();
        let states = &self.saving.states;
        let has_any =
            states.latest().is_some() || (has_base && self.machine.is_replaying()) || states.may_rebuild();
        (may || has_base) && has_any
    }

    /// The rules of what the session began with, until a reset.
    pub(super) fn inherited(&self) -> Option<Box<BoundRules>> {
        self.saving.states.inherited().cloned().map(Box::new)
    }

    /// Writes down with what of another session a new one begins.
    pub(super) fn note_base(&mut self) {
        let Some(base) = &self.args.base else { return };
        let based = EventBody::Based {
            on: base.source.clone(),
            snapshot: base.snapshot.clone().map(Box::new),
            bound: Box::new(base.bound.clone()),
        };
        self.saving.states.take(&based);
        self.log.append(based);
    }

    /// Takes a snapshot that the machine wants, unless the journal cannot be written at the moment.
    pub(super) fn save(&mut self, number: u64, urgent: bool) -> Option<Input<Reply<VariableList>>> {
        if let Err(error) = self.args.journal.healthy() {
            self.saving.problem = Some(error.into());
            return Some(Input::SnapshotEnded { number, is_taken: false });
        }
        let changes = self.machine.changes();
        self.begin_snapshot(Some(number), changes, (None, None, urgent), None);
        None
    }

    /// Takes a snapshot that a client wants.
    pub(super) fn take_named(
        &mut self,
        name: Option<String>,
        at: Option<CellNumber>,
        reply_to: Reply<SnapshotRecord>,
    ) {
        self.apply(Input::Thaw);
        if let Err(problem) = self.may_take(name.as_deref(), at) {
            let _ = reply_to.send(Err(problem));
            return;
        }
        // What a running cell changes, this snapshot does not hold.
        let is_of_now = at.is_none() && self.machine.queue().main().is_none();
        let changes = if is_of_now { self.machine.changes() } else { 0 };
        self.begin_snapshot(None, changes, (name, at, true), Some(reply_to));
    }

    /// The newest snapshot, if it holds the variables as they are and nothing runs that could change them. Without a checkpoint
    /// after each cell, a fresh snapshot may have what threads have changed since.
    pub(super) fn newest_snapshot(&self) -> Option<SnapshotRecord> {
        let (machine, wanted) = (&self.machine, &self.args.wanted);
        let would_be_the_same = wanted.checkpoints > 0 && !wanted.checkpoints_at_rest;
        let is_idle = machine.queue().is_idle() && !machine.is_replaying();
        let is_current = !machine.is_unsaved() && is_idle && would_be_the_same;
        self.saving.states.up_to_date().filter(|_| is_current).cloned()
    }

    fn is_saved(&self) -> Result<(), Problem> {
        if self.args.policy != SnapshotPolicy::Off {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, "this session is not saved to the disk")
            .hint("start one with `--snapshots auto`; `snapshots.enabled` is the setting for all"))
    }

    fn may_take(&self, name: Option<&str>, at: Option<CellNumber>) -> Result<(), Problem> {
        self.is_saved()?;
        self.can_write()?;
        if self.machine.is_replaying() {
            // It would hold half of them, and be newer than what the replay begins with.
            return Err(Problem::new(Code::Busy, "a replay rebuilds the variables")
                .hint("wait until it has ended, or interrupt it"));
        }
        // An earlier state is what it is.
        if let Some(reason) = self.saving.states.untold.not_loaded().filter(|_| at.is_none()) {
            return Err(variables_not_loaded(reason));
        }
        let wanted = self.saving.taking.values().filter(|taking| taking.number.is_none()).count();
        if wanted >= WANTED_AT_ONCE {
            return Err(Problem::new(
                Code::Busy,
                format!("{wanted} snapshots of the session are being taken already"),
            )
            .hint("wait for one of them"));
        }
        let Some(name) = name else { return Ok(()) };
        if !is_snapshot_name(name) {
            return Err(Problem::new(
                Code::BadRequest,
                format!(
                    "a snapshot's name has letters, digits, `-`, `_` and `.`, {SNAPSHOT_NAME_CHARS} at most"
                ),
            ));
        }
        let mut names = self.saving.states.snapshots().iter().filter_map(|kept| kept.name.as_deref());
        if names.clone().any(|taken| taken == name) {
            return Err(Problem::new(Code::SnapshotExists, format!("there is a snapshot `{name}` already"))
                .hint(format!(
                    "remove it with `belljar snapshots rm -s {} {name}`, or choose another name",
                    self.args.name
                )));
        }
        let most = self.args.launcher.settings.snapshots.names;
        if names.by_ref().count() + wanted >= most {
            return Err(Problem::new(Code::TooMany, format!("a session may have {most} named snapshots"))
                .hint("remove one with `belljar snapshots rm`"));
        }
        Ok(())
    }

    fn begin_snapshot(
        &mut self,
        number: Option<u64>,
        changes: u64,
        (name, state_of, urgent): (Option<String>, Option<CellNumber>, bool),
        reply_to: Option<Reply<SnapshotRecord>>,
    ) {
        self.saving.tickets += 1;
        let ticket = self.saving.tickets;
        let python = self.receipt.as_ref().map(|receipt| receipt.python.clone()).unwrap_or_default();
        let is_for_a_client = reply_to.is_some();
        let missing = self.saving.states.untold.missing().to_vec();
        let wanted = WantedSnapshot { ticket, name, state_of, urgent, is_for_a_client, python, missing };
        let (executor, turn) = (self.executor.clone(), self.args.snapshot_turn.clone());
        let waiting = self.myself.clone();
        let work = async move {
            let gone = || Problem::new(Code::SandboxFailed, "the sandbox is gone");
            let executor = executor.ok_or_else(gone)?;
            let _turn = turn.take().await;
            if let Some(number) = number {
                let _ = waiting.cast(SessionMsg::Input(Input::SaveBegins { number }));
            }
            call(&executor, |reply_to| ExecutorMsg::Command(Command::Snapshot { wanted, reply_to }))
                .await
                .unwrap_or_else(|_| Err(gone()))
        };
        let session = self.myself.clone();
        let task = spawn_reporting(work, move |outcome| {
            let panicked = || Err(Problem::new(Code::Internal, "an internal error ended the snapshot"));
            let outcome = Box::new(outcome.unwrap_or_else(panicked));
            let _ = session.cast(SessionMsg::SnapshotDone { ticket, outcome });
        });
        let task = Some(AbortOnDropHandle::new(task));
        self.saving
            .taking
            .insert(ticket, Taking { number, changes, task, reply_to, record: None, replaced: Vec::new() });
    }

    /// A snapshot is on the disk, or is not.
    pub(super) fn snapshot_done(&mut self, ticket: u64, outcome: Result<TakenSnapshot, Problem>) {
        let Some(taking) = self.saving.taking.get_mut(&ticket) else {
            // It was given up, but had ended before it learnt of that; it goes with the outcome.
            return;
        };
        taking.task = None;
        match outcome {
            Ok(taken) => {
                let record = taken.keep();
                taking.record = Some(record.clone());
                let taken = EventBody::SnapshotTaken { snapshot: Box::new(record) };
                // From here on the order of the events says what the session wakes from.
                let replaced = self.kept_changes(&taken);
                if let Some(taking) = self.saving.taking.get_mut(&ticket) {
                    taking.replaced = replaced;
                }
                let session = self.myself.clone();
                self.append_and(taken, move |is_written| {
                    let _ = session.cast(SessionMsg::SnapshotNoted { ticket, is_written });
                });
            }
            Err(problem) => self.snapshot_failed(ticket, problem),
        }
    }

    fn snapshot_failed(&mut self, ticket: u64, problem: Problem) {
        let Some(Taking { number, reply_to, .. }) = self.saving.taking.remove(&ticket) else { return };
        if let Some(reply_to) = reply_to {
            let _ = reply_to.send(Err(problem));
            return;
        }
        let Some(number) = number else { return };
        if !std::mem::replace(&mut self.saving.is_told, true) && self.log.has_reserve().is_ok() {
            self.log.append(EventBody::SnapshotFailed { reason: problem.message.clone() });
        }
        self.saving.problem = Some(problem);
        self.apply(Input::SnapshotEnded { number, is_taken: false });
    }

    /// The journal has the snapshot: from here on the session wakes from it.
    pub(super) fn snapshot_noted(&mut self, ticket: u64, is_written: bool) {
        let Some(taking) = self.saving.taking.get_mut(&ticket) else { return };
        let Some(record) = taking.record.take() else { return };
        let replaced = std::mem::take(&mut taking.replaced);
        self.saving.unremoved.extend(replaced);
        if !is_written {
            let problem = self.log.unwritten("the variables were saved, which may be forgotten");
            return self.snapshot_failed(ticket, problem);
        }
        let Some(Taking { number, changes, reply_to, .. }) = self.saving.taking.remove(&ticket) else {
            return;
        };
        (self.saving.is_told, self.saving.problem) = (false, None);
        // The journal keeps the order, so it has all that came before this one as well.
        let unremoved = std::mem::take(&mut self.saving.unremoved);
        self.remove_from_disk(unremoved);
        if let Some(reply_to) = reply_to {
            let _ = reply_to.send(Ok(record));
        }
        self.apply(match number {
            Some(number) => Input::SnapshotEnded { number, is_taken: true },
            None => Input::Saved { changes },
        });
    }

    /// Notes an event that changes which snapshots are kept, and gives those that are not any more.
    fn kept_changes(&mut self, event: &EventBody) -> Vec<String> {
        let ids =
            |states: &SavedStates| states.snapshots().iter().map(|kept| kept.id.clone()).collect::<Vec<_>>();
        let before = ids(&self.saving.states);
        self.saving.states.take(event);
        let after = ids(&self.saving.states);
        before.into_iter().filter(|id| !after.contains(id)).collect()
    }

    /// Removes snapshots from the disk that the journal does not have, or has as removed.
    fn remove_from_disk(&self, ids: Vec<String>) {
        if !ids.is_empty() {
            let snapshots = self.args.snapshots.clone();
            tokio::task::spawn_blocking(move || snapshots.remove_these(&ids));
        }
    }

    /// Removes what an earlier daemon, or an earlier generation, left on the disk without having written it down.
    pub(super) fn remove_unknown(&self) {
        let ids: Vec<String> = self.saving.states.snapshots().iter().map(|kept| kept.id.clone()).collect();
        let snapshots = self.args.snapshots.clone();
        tokio::task::spawn_blocking(move || snapshots.keep_only(&ids));
    }

    /// Stops the snapshot that the machine does not want any more.
    pub(super) fn stop_saving(&mut self, number: u64) {
        let is_it = |(_, taking): &(&u64, &Taking)| taking.number == Some(number) && taking.task.is_some();
        let ticket = self.saving.taking.iter().find(is_it).map(|(ticket, _)| *ticket);
        if let Some(ticket) = ticket.filter(|ticket| self.saving.taking.remove(ticket).is_some()) {
            self.command(Command::EndSnapshot { ticket });
        }
    }

    /// Gives up all snapshots that are being taken: the variables go another way from here, or are gone or frozen.
    pub(super) fn give_up_snapshots(&mut self, why: &str) {
        let all = std::mem::take(&mut self.saving.taking);
        // What the journal has already was true before.
        let (given_up, noted): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|(_, taking)| taking.task.is_some());
        self.saving.taking = noted;
        for (ticket, Taking { reply_to, .. }) in given_up {
            self.command(Command::EndSnapshot { ticket });
            if let Some(reply_to) = reply_to {
                let _ = reply_to.send(Err(Problem::new(Code::Busy, why).hint("ask again")));
            }
        }
    }

    pub(super) fn snapshots(&self) -> SnapshotList {
        let states = &self.saving.states;
        let wakes_from = states.latest().map(|latest| latest.id.clone());
        SnapshotList { snapshots: states.snapshots().to_vec(), wakes_from }
    }

    pub(super) fn remove_snapshot(&mut self, snapshot: &str, reply_to: Reply<()>) {
        let is_it = |kept: &&SnapshotRecord| kept.id == snapshot || kept.name.as_deref() == Some(snapshot);
        let found = self.saving.states.snapshots().iter().find(is_it).map(|kept| kept.id.clone());
        let may = self.can_write().and_then(|()| {
            let none = || Problem::from(SnapshotError::NoSuch(quotable(snapshot)));
            let id = found.ok_or_else(none)?;
            let is_base = self.saving.states.base().is_some_and(|base| base.id == id);
            if is_base {
                return Err(Problem::new(
                    Code::Busy,
                    "the session began with this snapshot, and `replay` needs it",
                )
                .hint("reset the session first"));
            }
            Ok(id)
        });
        let id = match may {
            Ok(id) => id,
            Err(problem) => return drop(reply_to.send(Err(problem))),
        };
        let was_newest = self.saving.states.latest().is_some_and(|latest| latest.id == id);
        let removed = EventBody::SnapshotRemoved { snapshot: id };
        let ids = self.kept_changes(&removed);
        let late = self.log.unwritten("the snapshot was removed, which may be forgotten");
        // The journal calls back on its own thread, which has no runtime.
        let (written, is_written) = tokio::sync::oneshot::channel();
        self.append_and(removed, move |is_written| {
            let _ = written.send(is_written);
        });
        let snapshots = self.args.snapshots.clone();
        tokio::spawn(async move {
            if !is_written.await.unwrap_or(false) {
                let _ = reply_to.send(Err(late));
                return;
            }
            // A failure is logged there, and the next daemon removes what is left.
            let _ = tokio::task::spawn_blocking(move || snapshots.remove_these(&ids)).await;
            let _ = reply_to.send(Ok(()));
        });
        if was_newest {
            self.apply(Input::Unsaved);
        }
    }

    /// Whether a client waits for a snapshot: the end of the sandbox would be that of the snapshot.
    pub(super) fn is_being_saved_for_a_client(&self) -> bool {
        self.saving.taking.values().any(|taking| taking.number.is_none())
    }

    fn may_sleep(&self) -> Result<(), Problem> {
        self.is_saved()?;
        if !self.args.launcher.settings.snapshots.wake && self.saving.states.base().is_none() {
            let what =
                "sessions do not wake with their variables (`snapshots.wake` is false), so all would be lost";
            return Err(Problem::new(Code::Forbidden, what)
                .hint("`belljar snapshot` saves them for a branch, and `belljar rm` ends the session"));
        }
        self.machine.may_sleep()?;
        if self.is_being_saved_for_a_client() {
            return Err(Problem::new(Code::Busy, "a client waits for a snapshot of the session")
                .hint("ask again when it is taken"));
        }
        self.can_write()
    }

    /// Ends the sandbox, once its variables are saved.
    pub(super) fn sleep(&mut self, reply_to: Reply<Asleep>) {
        if let Err(problem) = self.may_sleep() {
            let _ = reply_to.send(Err(problem));
            return;
        }
        if self.machine.phase() == Phase::None {
            let _ = reply_to.send(Ok(self.asleep()));
            return;
        }
        self.saving.problem = None;
        self.saving.sleepers.push(reply_to);
        self.apply(Input::Sleep);
    }

    /// What is saved of a session that sleeps.
    fn asleep(&self) -> Asleep {
        let latest = self.saving.states.latest();
        Asleep {
            snapshot: latest.map(|latest| latest.id.clone()),
            cell: latest.map_or(0, |latest| latest.cell),
            missing: latest.map(|latest| latest.missing.clone()).unwrap_or_default(),
            unsaved: self.machine.is_unsaved(),
        }
    }

    /// How a session was put to sleep that has no sandbox any more.
    fn fell_asleep(&self) -> Result<Asleep, Problem> {
        if self.machine.is_ending() {
            return Err(Problem::new(Code::Busy, "the session is ending"));
        }
        if !self.machine.is_unsaved() {
            return Ok(self.asleep());
        }
        let lost = "the sandbox ended before its newest changes were saved";
        let lost = Problem::new(Code::SandboxFailed, lost);
        Err(lost.hint("the cells after its newest snapshot run again with the next one; `belljar replay` runs all of them again"))
    }

    /// Says that the session sleeps, if it can wake again.
    pub(super) fn sleeps(&self, reason: String) {
        if self.wakes() {
            let snapshot = self.saving.states.latest().map(|latest| latest.id.clone());
            self.log.append(EventBody::Slept { reason, snapshot });
        }
    }

    /// Tells those who want the session to sleep how that went, once it is known.
    pub(super) fn answer_sleepers(&mut self) {
        if self.saving.sleepers.is_empty() || self.machine.falls_asleep() {
            return;
        }
        let used = || Problem::new(Code::Busy, "the session was used before it slept").hint("ask again");
        let is_asleep = self.machine.phase() == Phase::None;
        let outcome =
            if is_asleep { self.fell_asleep() } else { Err(self.saving.problem.take().unwrap_or_else(used)) };
        let (log, sleepers) = (Arc::clone(&self.log), std::mem::take(&mut self.saving.sleepers));
        tokio::spawn(async move {
            log.flushed().await;
            for reply_to in sleepers {
                let _ = reply_to.send(outcome.clone());
            }
        });
    }
}

//! Saves the variables of the sandbox.
//!
//! One transfer goes on at a time. It is a task; the executor passes on what the guardian says of it and holds its
//! deadlines, which do not run while cells of the main line do, because the copy that packs is stopped then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::kernel::request_number;
use super::messages::{ExecutorMsg, ExecutorRef, WantedSnapshot};
use super::progress::Progress;
use super::state::ExecutorState;
use super::transfers::{self, About, DataEnd, Told, failed};
use crate::actors::calls::Reply;
use crate::actors::snapshots::TakenSnapshot;
use crate::memory::{Charge, MemoryPurpose};
use crate::panics::spawn_reporting;
use crate::protocol::frames::{HostFrame, RefusedCode};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Mode;
use crate::protocol::snapshot::RECORD_BYTES;
use crate::store::snapshots::WRITING_BYTES;

/// The guardian lets a stopped copy go on when no cell has run for so long: its own `RESTED`.
const RESTED: Duration = Duration::from_millis(50);
/// Why a snapshot is ended whose caller has gone.
const UNWANTED: &str = "nothing waits for it any more";
/// The records of a transfer that are in memory at once.
pub(super) const TRANSFER_BYTES: u64 = 4 * RECORD_BYTES as u64;
/// The same for one that is received, and put on the disk meanwhile.
const RECEIVING_BYTES: u64 = TRANSFER_BYTES + WRITING_BYTES;

/// A snapshot that is being taken.
pub(super) struct Taking {
    request: u64,
    ticket: u64,
    /// The copy goes on beside cells, all the time or in turns.
    goes_on: bool,
    reply_to: Reply<TakenSnapshot>,
    told: watch::Sender<Told>,
    moved: Arc<AtomicU64>,
    progress: Progress,
    looked_at: Instant,
    /// When a cell of the main line ended last beside it.
    cell_ended: Option<Instant>,
    _task: AbortOnDropHandle<()>,
    _memory: Charge,
}

impl ExecutorState {
    /// The end of a transfer in the daemon, and the token for the kernel.
    pub(super) fn data_end(&self) -> Result<DataEnd, Problem> {
        let gone = || Problem::new(Code::SandboxFailed, "the sandbox is gone");
        let connected = self.connected.as_ref().ok_or_else(gone)?;
        let listener = connected.sandbox.open_data()?;
        let token = uuid::Uuid::new_v4().simple().to_string();
        let (on_disk, ledger) = (self.args.snapshots.clone(), self.args.ledger.clone());
        Ok(DataEnd { listener, token, on_disk, ledger, moved: Arc::default() })
    }

    pub(super) fn take_snapshot(
        &mut self,
        myself: &ExecutorRef,
        wanted: &WantedSnapshot,
        reply_to: Reply<TakenSnapshot>,
    ) {
        // The command that gave it up may have come first.
        if reply_to.is_closed() {
            return;
        }
        // And so may this one, before the command that gives up the snapshot before it.
        if self.taking.as_ref().is_some_and(|taking| taking.reply_to.is_closed()) {
            self.end_snapshot(myself, failed(UNWANTED));
        }
        let (end, about, memory) = match self.prepared(wanted) {
            Ok(prepared) => prepared,
            Err(problem) => return drop(reply_to.send(Err(problem))),
        };
        let (request, urgent, state_of) = (request_number(), wanted.urgent, wanted.state_of);
        let takes_turns = wanted.is_for_a_client;
        let (token, path) = (end.token.clone(), end.listener.path_inside().to_owned());
        let moved = Arc::clone(&end.moved);
        let (told, hears) = watch::channel(Told::default());
        let executor = myself.clone();
        let task = spawn_reporting(transfers::receive(end, about, hears), move |outcome| {
            let outcome = Box::new(outcome.unwrap_or_else(|| Err(failed("an internal error"))));
            let _ = executor.cast(ExecutorMsg::SnapshotReceived { request, outcome });
        });
        self.taking = Some(Taking {
            request,
            ticket: wanted.ticket,
            goes_on: urgent || takes_turns,
            reply_to,
            told,
            moved,
            progress: Progress::default(),
            looked_at: Instant::now(),
            cell_ended: None,
            _task: AbortOnDropHandle::new(task),
            _memory: memory,
        });
        let bytes = self.args.snapshots.max_bytes();
        let frame = HostFrame::Snapshot { request, token, path, state_of, urgent, takes_turns, bytes };
        self.send(myself, &frame);
    }

    fn prepared(&self, wanted: &WantedSnapshot) -> Result<(DataEnd, About, Charge), Problem> {
        if self.taking.is_some() || self.loading.is_some() {
            return Err(Problem::new(Code::Busy, "another snapshot of the session is under way")
                .hint("ask again soon"));
        }
        let memory = self.args.memory.try_charge(MemoryPurpose::Snapshots, RECEIVING_BYTES)?;
        let end = self.data_end()?;
        let image = self.connected.as_ref().map(|connected| connected.sandbox.image().id.clone());
        let about = About {
            python: wanted.python.clone(),
            image: image.unwrap_or_default(),
            packages: self.args.packages.clone(),
            name: wanted.name.clone(),
            missing: wanted.missing.clone(),
        };
        Ok((end, about, memory))
    }

    /// Whether the snapshot that is being taken is the one with this ticket.
    pub(super) fn takes(&self, ticket: u64) -> bool {
        self.taking.as_ref().is_some_and(|taking| taking.ticket == ticket)
    }

    /// Ends the snapshot that is being taken, if there is one.
    pub(super) fn end_snapshot(&mut self, myself: &ExecutorRef, why: Problem) {
        let Some(taking) = self.taking.take() else { return };
        let request = taking.request;
        let _ = taking.reply_to.send(Err(why));
        self.send(myself, &HostFrame::EndSnapshot { request });
    }

    /// The transfer is over, and so is its copy: code in it could have ended the stream itself, and go on.
    pub(super) fn snapshot_received(
        &mut self,
        myself: &ExecutorRef,
        request: u64,
        outcome: Result<TakenSnapshot, Problem>,
    ) {
        if let Some(taking) = self.taking.take_if(|taking| taking.request == request) {
            let _ = taking.reply_to.send(outcome);
            self.send(myself, &HostFrame::EndSnapshot { request });
        }
    }

    /// The guardian says whose state a copy has, or that the copy has ended.
    pub(super) fn told_of_snapshot(&mut self, number: u64, tell: impl FnOnce(&mut Told)) {
        if let Some(taking) = self.taking.as_ref().filter(|taking| taking.request == number) {
            taking.told.send_modify(tell);
        }
    }

    /// The kernel has refused to save or to load. True if the request was one of these.
    pub(super) fn refused_transfer(
        &mut self,
        myself: &ExecutorRef,
        number: u64,
        code: RefusedCode,
        message: &str,
    ) -> bool {
        if let Some(taking) = self.taking.take_if(|taking| taking.request == number) {
            let what = format!("the variables could not be saved: {message}");
            let _ = taking.reply_to.send(Err(match code {
                RefusedCode::OutOfReach => Problem::new(Code::OutOfReach, what),
                RefusedCode::Busy | RefusedCode::NoWorker => {
                    Problem::new(Code::Busy, what).hint("ask again soon")
                }
                _ => Problem::new(Code::SnapshotFailed, what),
            }));
            return true;
        }
        self.refused_loading(myself, number, code, message)
    }

    /// Looks whether a transfer takes too long, or is not wanted any more.
    pub(super) fn look_at_transfers(&mut self, myself: &ExecutorRef) {
        self.look_at_loading(myself);
        let running = self.running.values().map(|running| running.start.mode);
        let is_frozen = self.freezing.at.is_some();
        let Some(taking) = &mut self.taking else { return };
        let is_stopped =
            !taking.goes_on && is_stopped_by(running, taking.cell_ended.map(|end| end.elapsed()));
        let since = taking.looked_at.elapsed();
        taking.looked_at = Instant::now();
        let moved = taking.moved.load(Ordering::Relaxed);
        let why = if taking.reply_to.is_closed() {
            Some(UNWANTED.to_owned())
        } else if is_frozen {
            None
        } else if is_stopped {
            taking.progress.stand(since)
        } else {
            taking.progress.update(since, moved)
        };
        if let Some(why) = why {
            self.end_snapshot(myself, failed(why));
        }
    }

    /// A cell has ended, perhaps beside a snapshot that is being taken.
    pub(super) fn ended_beside_snapshot(&mut self, mode: Mode) {
        if let Some(taking) = self.taking.as_mut().filter(|_| mode.is_in_line()) {
            taking.cell_ended = Some(Instant::now());
        }
    }

    /// Ends a transfer with its sandbox.
    pub(super) fn fail_transfers(&mut self, problem: &Problem) {
        if let Some(taking) = self.taking.take() {
            let _ = taking.reply_to.send(Err(problem.clone()));
        }
    }
}

/// Whether the guardian stops a copy that does not go on beside cells: while cells of these modes run, or when the last one of the main line
/// ended so long ago. Cells that follow each other closely stop it all the time, though at any moment none may run.
fn is_stopped_by(mut running: impl Iterator<Item = Mode>, last_ended: Option<Duration>) -> bool {
    running.any(Mode::is_in_line) || last_ended.is_some_and(|ago| ago < RESTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_in_the_line_stops_a_copy_and_those_beside_it_do_not() {
        let stops = [Mode::Main, Mode::Scratch, Mode::Fork, Mode::Background, Mode::Command]
            .map(|mode| is_stopped_by([mode].into_iter(), None));
        assert_eq!(stops, [true, true, false, false, false]);
    }

    #[test]
    fn a_copy_is_stopped_between_cells_that_follow_each_other_until_the_session_rests() {
        let stopped_after = |ago| is_stopped_by(std::iter::empty(), Some(ago));
        assert!(stopped_after(Duration::ZERO) && stopped_after(RESTED / 2));
        assert!(!stopped_after(RESTED) && !is_stopped_by(std::iter::empty(), None));
    }
}

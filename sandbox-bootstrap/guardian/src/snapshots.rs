//! Packing the variables in a copy, and loading them into a fresh worker.
//!
//! The copy sends what it packs over a socket of its own to the daemon; the guardian only makes the copy, says whose
//! state it has, stops it while cells run, ends it where memory is short, and tells its end.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::endings::KILLED;
use crate::frames::{HostFrame, Refusal};
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::limits::{GIVEN_UP_END, MEMORY_SUM, PACKING, PACKING_STANDS, PACKING_TURN, RESET_POLL, RESTED};
use crate::poller::Timer;
use crate::process::send_signal_to_group;

/// What a copy packs.
#[derive(Default)]
pub struct Packing {
    request: u64,
    /// The sandbox ends after it, or somebody waits for it.
    urgent: bool,
    /// For how long at most the copy stands for cells before it goes on for a turn, and since when it stands.
    stands: Duration,
    held_since: Option<Instant>,
    /// How long its next turn is, and when the one that it has ends.
    turn: Duration,
    turn_ends: Option<Instant>,
    /// Whether a cell ran beside the copy at the last look, and when the last one was seen.
    was_busy: bool,
    cell_seen: Option<Instant>,
    /// Whether the daemon was told that the copy is there.
    is_told: bool,
    /// Why the guardian ended the copy.
    ended_for: Option<&'static str>,
    measured: Option<Measured>,
}

/// What the copy held of memory, and what the sandbox's own counter said then.
#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Instant,
    held: u64,
    counted: u64,
}

impl Packing {
    fn new(request: u64, urgent: bool, stands: Duration) -> Self {
        Self { request, urgent, stands, turn: PACKING_TURN, ..Self::default() }
    }

    /// Whether the copy has to stand from now on: while a cell of the main line runs, and until the session has rested for a
    /// while. Cells come in rows, and a copy that went on in each gap would have the processors busy when the next one comes.
    fn look(&mut self, is_busy: bool, now: Instant) -> bool {
        if is_busy || self.was_busy {
            self.cell_seen = Some(now);
        }
        self.was_busy = is_busy;
        self.turn_ends = self.turn_ends.filter(|end| now < *end);
        if self.turn_ends.is_some() || self.cell_seen.is_none_or(|seen| now.duration_since(seen) >= RESTED) {
            self.held_since = None;
            return false;
        }
        let since = *self.held_since.get_or_insert(now);
        if now.duration_since(since) < self.stands {
            return true;
        }
        (self.held_since, self.turn_ends) = (None, Some(now + self.turn));
        self.turn *= 2;
        false
    }

    /// Whether the copy cannot hold more than `budget` by the counter. To measure that, the system walks all pages of the copy,
    /// and a cell that comes meanwhile would wait for it. What the copy takes is in the counter at once, unless as much is freed
    /// beside it, of the file cache, too; so it is measured again after a while.
    fn is_within(&self, budget: u64, counted: Option<u64>) -> bool {
        self.measured.zip(counted).is_some_and(|(before, counted)| {
            let grown = counted.saturating_sub(before.counted);
            before.at.elapsed() < MEMORY_SUM && before.held.saturating_add(grown) <= budget
        })
    }
}

/// What a worker loads.
#[derive(Debug, Clone, Copy)]
pub struct Loading {
    pub request: u64,
    state_of: u64,
}

impl Guardian {
    pub fn snapshot(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (request, urgent): (u64, bool) = (frame.get("request")?, frame.get("urgent")?);
        let wanted: Option<u64> = frame.get_or_none("state_of")?;
        let stands = match frame.get("takes_turns")? {
            true => PACKING_STANDS,
            false if urgent => Duration::ZERO,
            false => Duration::MAX,
        };
        self.wait_for_room();
        self.wait_for_given_up_packing();
        if self.packing().is_some() {
            return Err(Refusal::Busy("another snapshot is being packed"));
        }
        let (source, redo, given_later) = self.source_of(wanted)?;
        let copy = self.spawn(source, Role::Snapshot)?;
        if let Some(handle) = self.handles.get_mut(&copy) {
            handle.state_of = redo.last().map_or(handle.state_of, |(cell, _)| *cell);
            handle.packing = Some(Packing::new(request, urgent, stands));
        }
        self.repeat(copy, &redo, given_later);
        self.forward(copy, frame.text);
        self.poller.after(Timer::End(copy), PACKING);
        self.poller.within(Timer::WatchMemory, MEMORY_SUM);
        Ok(())
    }

    /// The runner that has the wanted state or can repeat what leads to it, and what it repeats.
    #[allow(clippy::type_complexity)] // the parts of a checkpoint
    fn source_of(&mut self, wanted: Option<u64>) -> Result<(u32, Vec<(u64, Vec<u8>)>, bool), Refusal> {
        if wanted.is_none() && !self.is_idle() && !self.has_source() {
            return Err(Refusal::Busy("the main line runs a cell, and there is no checkpoint"));
        }
        let is_idle = self.is_idle();
        let now = self.state_of();
        if is_idle && wanted.is_none_or(|wanted| wanted == now) {
            // A checkpoint is asked first, so that the worker has nothing to do with it. The number of a cell does not tell
            // states apart: the end of a cell in the background changes a state, too.
            let is_newest = self.has_newest();
            return match self.newest().filter(|newest| is_newest && newest.pid.is_some()) {
                Some(newest) => Ok((newest.index, newest.redo.clone(), newest.given_later)),
                None => Ok((self.line.worker.ok_or_else(Refusal::no_process)?, Vec::new(), false)),
            };
        }
        for index in self.line.ring.iter().rev() {
            let Some(handle) = self.handles.get(index).filter(|handle| handle.pid.is_some()) else {
                continue;
            };
            let last = handle.redo.last().map_or(handle.state_of, |(cell, _)| *cell);
            let cell = wanted.unwrap_or(last);
            if let Some(length) = redo_until(handle, cell) {
                return Ok((*index, handle.redo[..length].to_vec(), handle.given_later));
            }
        }
        Err(match wanted {
            Some(cell) => Refusal::OutOfReach(format!("the state after cell {cell} is not there any more")),
            None => Refusal::Busy("the checkpoint of the newest state is not there yet"),
        })
    }

    pub fn end_snapshot(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let request: u64 = frame.get("request")?;
        let is_it = |handle: &&Handle| handle.packing.as_ref().is_some_and(|it| it.request == request);
        if let Some(index) = self.handles.values().find(is_it).map(|handle| handle.index) {
            self.give_up_packing(index, "the daemon has given it up");
        }
        Ok(())
    }

    /// The copy has had its time: whatever its code does, it does not stay for ever.
    pub fn packing_is_late(&mut self, index: u32) {
        if self.is_packing_held() {
            self.poller.after(Timer::End(index), PACKING); // it could not go on
        } else {
            self.give_up_packing(index, "packing the variables took too long");
        }
    }

    /// A daemon has connected, which waits for nothing that was packed for an earlier connection.
    pub fn give_up_old_packing(&mut self) {
        if let Some(index) = self.packing().map(|handle| handle.index) {
            self.give_up_packing(index, "the connection to the daemon was lost");
        }
    }

    fn give_up_packing(&mut self, index: u32, why: &'static str) {
        if let Some(packing) = self.handles.get_mut(&index).and_then(|handle| handle.packing.as_mut()) {
            packing.ended_for.get_or_insert(why);
        }
        self.end(index);
    }

    /// Waits for the end of a copy that was given up, but not for ever: it is killed already, and the daemon, which wants the
    /// next snapshot, has heard the last of it.
    fn wait_for_given_up_packing(&mut self) {
        let is_given_up =
            |handle: &&Handle| handle.packing.as_ref().is_some_and(|packing| packing.ended_for.is_some());
        let Some(index) = self.packing().filter(is_given_up).map(|handle| handle.index) else { return };
        let deadline = Instant::now() + self.poller.patience(GIVEN_UP_END);
        loop {
            self.reap();
            if !self.handles.contains_key(&index) || Instant::now() > deadline {
                return;
            }
            sleep(RESET_POLL);
        }
    }

    /// The copy that packs, if there is one.
    pub fn packing(&self) -> Option<&Handle> {
        self.handles.values().find(|handle| handle.role == Role::Snapshot)
    }

    /// The copy is there.
    pub fn tell_packing(&mut self, index: u32) {
        let Some(handle) = self.handles.get_mut(&index) else { return };
        let state_of = handle.state_of;
        let Some(packing) = handle.packing.as_mut() else { return };
        packing.is_told = true;
        let request = packing.request;
        self.send(&json!({"type": "snapshotting", "request": request, "state_of": state_of}));
        self.hold_packing();
    }

    /// The copy never came.
    pub fn refuse_packing(&mut self, handle: &Handle, refusal: &Refusal) {
        if let Some(packing) = &handle.packing {
            self.refuse(refusal, Some(packing.request), None);
        }
    }

    /// The copy has ended.
    pub fn packing_ended(&mut self, index: u32, exit_code: i32) {
        let Some(packing) = self.handles.get_mut(&index).and_then(|handle| handle.packing.take()) else {
            return;
        };
        let request = packing.request;
        if !packing.is_told && packing.ended_for.is_none() && exit_code == KILLED {
            self.refuse(&Refusal::Busy("the process ended that holds the variables"), Some(request), None);
            return;
        }
        let reason = packing.ended_for.map(str::to_owned).or_else(|| match exit_code {
            0 => None,
            KILLED => Some("the process that packed it was killed, as where memory is used up".into()),
            signal if signal < 0 => Some(format!("the process that packed it died of signal {}", -signal)),
            code => Some(format!("the process that packed it ended with exit code {code}")),
        });
        self.send(&json!({"type": "snapshot_ended", "request": request, "reason": reason}));
    }

    /// Stops the copy while cells of the main line run, and lets it go on afterwards.
    ///
    /// It is told again and again: what is stopped to look at processes goes on afterwards, and this would, too.
    pub fn hold_packing(&mut self) {
        if self.processes.is_halted() {
            return; // all processes stand until some are killed; this one is told when they go on
        }
        let Some(pid) = self.packing().and_then(|handle| handle.pid) else { return };
        let is_held = self.is_packing_held();
        self.poller.after(Timer::HoldPacking, RESTED); // the session rests then, or a turn is over
        send_signal_to_group(pid, if is_held { Signal::STOP } else { Signal::CONT });
    }

    /// Whether the copy has to stand for cells of the main line.
    fn is_packing_held(&mut self) -> bool {
        let is_busy = self.worker().is_some_and(|worker| worker.cell != 0);
        let packing = self.handles.values_mut().find_map(|handle| handle.packing.as_mut());
        packing.is_some_and(|packing| packing.look(is_busy, Instant::now()))
    }

    /// All processes of the copy that packs.
    pub fn pids_of_packing(&self) -> Vec<i32> {
        let Some(handle) = self.packing() else { return Vec::new() };
        let Some(pid) = handle.pid else { return Vec::new() };
        let tag = self.processes.tag(handle.index, handle.role);
        let is_its = |each: &i32| *each == pid || (tag.is_some() && self.processes.tag_of(*each) == tag);
        self.processes.descendants().into_iter().filter(is_its).collect()
    }

    /// Ends the copy if the pages that it has copied by reading them are more than the budget. True if it is ended.
    pub fn end_large_packing(&mut self) -> bool {
        let Some(index) = self.packing().map(|handle| handle.index) else { return false };
        let (budget, counted) = (self.limits.checkpoint_bytes, self.memory.counted(&self.limits));
        let packing = self.packing().and_then(|handle| handle.packing.as_ref());
        if packing.is_some_and(|packing| packing.is_within(budget, counted)) {
            return false;
        }
        let pids = self.pids_of_packing();
        if pids.is_empty() {
            return false;
        }
        let held = self.memory.held_by_each(&pids, &mut self.processes).values().sum::<u64>();
        if let Some(packing) = self.handles.get_mut(&index).and_then(|handle| handle.packing.as_mut()) {
            packing.measured = counted.map(|counted| Measured { at: Instant::now(), held, counted });
        }
        let is_large = held > budget;
        if is_large {
            self.give_up_packing(index, "reading the variables took more memory than checkpoints may have");
        }
        is_large
    }

    /// Memory is short: ends the copy, before any checkpoint goes. One that is urgent outlasts all checkpoints but the last.
    pub fn end_packing_for_memory(&mut self) -> bool {
        let is_last = self.line.ring.len() <= 1;
        let Some(handle) = self.packing() else { return false };
        if handle.packing.as_ref().is_some_and(|packing| packing.urgent && !is_last) {
            return false;
        }
        let index = handle.index;
        self.give_up_packing(index, "memory was short");
        true
    }

    // Loading.

    pub fn restore(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (request, state_of): (u64, u64) = (frame.get("request")?, frame.get("state_of")?);
        self.can_serve(false)?;
        let Some(worker) = self.worker_mut() else { return Err(Refusal::no_process()) };
        if worker.position != 0 || worker.newest_cell != 0 || worker.has_loaded {
            return Err(Refusal::OutOfReach("variables are loaded before the first cell only".into()));
        }
        worker.has_loaded = true;
        worker.loading = Some(Loading { request, state_of });
        let index = worker.index;
        self.drop_checkpoints(); // no undo leads to the time before
        self.forward(index, frame.text);
        self.watch_memory_soon();
        Ok(())
    }

    /// The worker says that it has loaded a snapshot: `payload` begins with 1 if it has.
    pub fn restored(&mut self, index: u32, payload: &[u8]) -> bool {
        let Some((has_loaded, report)) = payload.split_first() else { return false };
        let Some(handle) = self.handles.get_mut(&index) else { return true };
        let Some(loading) = handle.loading.take() else { return false };
        if *has_loaded == 1 {
            handle.state_of = loading.state_of;
        }
        self.send_of_runner(&json!({"type": "restored", "request": loading.request}), report);
        if self.line.worker == Some(index) {
            self.take_checkpoint();
        }
        true
    }
}

/// How many of the cells that a checkpoint can repeat lead to the state after `cell`.
fn redo_until(handle: &Handle, cell: u64) -> Option<usize> {
    if handle.state_of == cell {
        return Some(0);
    }
    handle.redo.iter().position(|(each, _)| *each == cell).map(|place| place + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stands_while_a_cell_runs_and_until_the_session_has_rested() {
        let mut packing = Packing::new(1, false, Duration::MAX);
        let start = Instant::now();
        assert!(!packing.look(false, start), "no cell has run beside it");
        assert!(packing.look(true, start));
        assert!(packing.look(false, start + 2 * RESTED), "the cell has just ended");
        let soon = start + 2 * RESTED + RESTED / 2;
        assert!(packing.look(false, soon), "the session has not rested yet");
        assert!(packing.look(true, soon), "the next cell");
        assert!(packing.look(false, start + 3 * RESTED), "and its end");
        assert!(!packing.look(false, start + 4 * RESTED));
    }

    #[test]
    fn a_copy_that_has_stood_for_long_enough_has_its_turn_beside_cells_again_and_again() {
        let start = Instant::now();
        let mut packing = Packing::new(1, false, PACKING_STANDS);
        let mut next = start;
        for turn in [PACKING_TURN, 2 * PACKING_TURN, 4 * PACKING_TURN] {
            assert!(packing.look(true, next) && packing.look(true, next + PACKING_STANDS / 2));
            next += PACKING_STANDS;
            assert!(!packing.look(true, next) && !packing.look(true, next + turn / 2), "its turn");
            next += turn;
        }
        assert!(packing.look(true, next) && packing.look(false, next + RESTED / 2), "and stands again");
        assert!(!packing.look(false, next + 2 * RESTED) && packing.turn_ends.is_none(), "a rest is no turn");
        assert!(!Packing::new(1, true, Duration::ZERO).look(true, start), "an urgent one never stands");
    }

    #[test]
    fn a_copy_is_not_measured_again_while_what_it_holds_is_known_to_be_within_its_budget() {
        let mut packing = Packing::new(1, false, Duration::MAX);
        assert!(!packing.is_within(100, Some(1000)), "it was never measured");
        packing.measured = Some(Measured { at: Instant::now(), held: 60, counted: 1000 });
        assert!(packing.is_within(100, Some(1040)));
        assert!(packing.is_within(100, Some(500)), "others have given memory back");
        assert!(!packing.is_within(100, Some(1041)), "the copy may have taken all of that");
        assert!(!packing.is_within(100, None), "there is no counter");
        let Some(before) = Instant::now().checked_sub(MEMORY_SUM) else { return };
        packing.measured = Some(Measured { at: before, held: 0, counted: 1000 });
        assert!(!packing.is_within(100, Some(1000)), "others may have freed what it holds on");
    }
}

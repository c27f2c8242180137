//! When the variables of a session are saved, and when its sandbox ends because nothing needs it.
//!
//! A session that has changed is saved when it rests. Before its sandbox ends because it was not used, because it is old
//! or because somebody wants that, what has changed since is saved first; new work stops that, and the sandbox stays.

use std::time::{Duration, Instant};

use super::{Effect, Expiry, Phase, ReplayPhase, SessionMachine};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::session::notices;

/// How long the end of a sandbox waits for the variables to be saved.
const SAVE_BEFORE_END: Duration = Duration::from_secs(15 * 60);
/// The longest pause after attempts that failed; each one doubles it.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Attempts in a row that fail, until the session is not saved again at rest before it has changed.
const ATTEMPTS: u32 = 6;
/// What the end of a sandbox is called that somebody wants.
const WANTED: &str = "the session was put to sleep";

/// What of the variables is saved.
pub(super) struct Saving {
    /// The number of changes so far, and how many of them the newest snapshot holds.
    changes: u64,
    held: u64,
    /// When the last change was.
    changed_at: Instant,
    /// The snapshot that is being taken.
    current: Option<Save>,
    /// The number of snapshots that were begun.
    begun: u64,
    /// Attempts in a row that failed, and when the next one may begin.
    failures: u32,
    again_at: Option<Instant>,
}

struct Save {
    number: u64,
    /// The changes that it holds.
    changes: u64,
    /// When it was wanted.
    wanted: Instant,
    /// When it was begun, after its turn had come.
    began: Option<Instant>,
    /// Set if the sandbox ends after it.
    then: Option<Sleep>,
}

struct Sleep {
    reason: String,
    /// Somebody asked for it, and is told if the variables cannot be saved.
    is_wanted: bool,
}

impl Saving {
    pub fn new(now: Instant) -> Self {
        Self { changes: 0, held: 0, changed_at: now, current: None, begun: 0, failures: 0, again_at: None }
    }

    pub fn of_before(unsaved: bool, now: Instant) -> Self {
        Self { changes: u64::from(unsaved), ..Self::new(now) }
    }

    pub fn changed(&mut self, now: Instant) {
        self.changes += 1;
        self.changed_at = now;
        self.failures = self.failures.min(ATTEMPTS - 1);
    }

    /// Nothing is there that a snapshot does not hold.
    pub fn is_clean(&mut self, now: Instant) {
        (self.held, self.changed_at) = (self.changes, now);
    }

    /// A snapshot holds this many of the changes.
    pub fn holds(&mut self, changes: u64) {
        self.held = self.held.max(changes);
        (self.failures, self.again_at) = (0, None);
    }

    fn is_unsaved(&self) -> bool {
        self.held < self.changes
    }

    fn failed(&mut self, pause: Duration, now: Instant) {
        let times = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures += 1;
        self.again_at = now.checked_add(pause.saturating_mul(times).min(LONGEST_PAUSE));
    }
}

impl<W> SessionMachine<W> {
    /// The number of changes of the variables so far, for a snapshot that somebody wants.
    pub fn changes(&self) -> u64 {
        self.saving.changes
    }

    /// Whether the variables have changes that no snapshot holds. After the end of a sandbox: whether they had.
    pub fn is_unsaved(&self) -> bool {
        self.saving.is_unsaved()
    }

    /// Whether the sandbox ends as soon as the variables are saved.
    pub fn falls_asleep(&self) -> bool {
        self.saving.current.as_ref().is_some_and(|save| save.then.is_some())
    }

    /// Whether the session rests, so that its sandbox can end.
    pub fn may_sleep(&self) -> Result<(), Problem> {
        if self.phase == Phase::Starting {
            return Err(
                Problem::new(Code::Busy, "the sandbox of the session is being made").hint("ask again soon")
            );
        }
        if self.phase != Phase::None && !self.rests() {
            return Err(Problem::new(Code::Busy, "a cell runs or waits").hint("wait for it, or interrupt it"));
        }
        Ok(())
    }

    fn rests(&self) -> bool {
        let is_free = !self.ending && self.going_back == 0 && self.replay == ReplayPhase::None;
        self.is_ready() && is_free && self.queue.is_idle()
    }

    /// Ends the sandbox of a session that `may_sleep` allows to sleep, once it is saved.
    pub(super) fn sleep_now(&mut self, now: Instant, out: &mut Vec<Effect<W>>) {
        if !self.rests() {
            return;
        }
        let wanted = Sleep { reason: WANTED.to_owned(), is_wanted: true };
        match &mut self.saving.current {
            // A snapshot of the same state is being taken already.
            Some(save) if save.changes == self.saving.changes => {
                (save.wanted, save.began) = (now, save.began.map(|_| now));
                save.then = Some(wanted);
            }
            _ => {
                self.drop_saving(out);
                self.sleep(wanted, now, out);
            }
        }
    }

    /// Saves what has changed, and ends a sandbox that was unused for long, or is old.
    pub(super) fn expire(&mut self, now: Instant, out: &mut Vec<Effect<W>>) {
        let Phase::Ready { since } = self.phase else { return };
        if !self.rests() {
            return;
        }
        // Others' snapshots, for which it waits, end in time themselves.
        let is_late = |save: &Save| {
            save.began.is_some_and(|began| now.saturating_duration_since(began) >= SAVE_BEFORE_END)
        };
        let gives_up = self.saving.current.as_ref().is_some_and(is_late);
        if gives_up {
            self.drop_saving(out);
            self.saving.failed(self.expiry.at_rest.unwrap_or_default(), now);
        } else if self.saving.current.is_some() {
            return;
        }
        let Expiry { idle, max_age, at_rest, .. } = self.expiry;
        // A client that freezes a session intends to return to it, so idleness does not end it.
        let reason = if !self.frozen && self.idle_for(now) >= idle {
            format!("it was not used for {} s", idle.as_secs())
        } else if now.saturating_duration_since(since) >= max_age {
            format!("it was older than {} s", max_age.as_secs())
        } else {
            // A frozen session is left alone.
            let is_due = |rest| now.saturating_duration_since(self.saving.changed_at) >= rest;
            let may_begin =
                self.saving.again_at.is_none_or(|then| then <= now) && self.saving.failures < ATTEMPTS;
            if at_rest.is_some_and(is_due) && self.saving.is_unsaved() && may_begin && !self.frozen {
                self.save(None, now, out);
            }
            return;
        };
        if gives_up {
            // The sandbox does not stay for ever for a snapshot that does not come.
            self.end_unused(reason, out);
        } else {
            self.sleep(Sleep { reason, is_wanted: false }, now, out);
        }
    }

    fn sleep(&mut self, sleep: Sleep, now: Instant, out: &mut Vec<Effect<W>>) {
        let saves = self.expiry.at_rest.is_some() || (sleep.is_wanted && self.expiry.saves);
        let may_try = sleep.is_wanted || self.saving.failures < ATTEMPTS;
        if saves && self.saving.is_unsaved() && may_try {
            // Its kernel has to answer.
            self.thaw(out);
            self.save(Some(sleep), now, out);
        } else {
            self.end_unused(sleep.reason, out);
        }
    }

    fn save(&mut self, then: Option<Sleep>, now: Instant, out: &mut Vec<Effect<W>>) {
        self.saving.begun += 1;
        let (number, changes) = (self.saving.begun, self.saving.changes);
        let urgent = then.is_some();
        self.saving.current = Some(Save { number, changes, wanted: now, began: None, then });
        out.push(Effect::Save { number, urgent });
    }

    /// The turn of the snapshot has come.
    pub(super) fn save_begins(&mut self, number: u64, now: Instant) {
        if let Some(save) = self.saving.current.as_mut().filter(|save| save.number == number) {
            save.began = Some(now);
        }
    }

    pub(super) fn snapshot_ended(
        &mut self,
        number: u64,
        is_taken: bool,
        now: Instant,
        out: &mut Vec<Effect<W>>,
    ) {
        let Some(save) = self.saving.current.take_if(|save| save.number == number) else { return };
        if is_taken {
            self.saving.holds(save.changes);
        } else {
            self.saving.failed(self.expiry.at_rest.unwrap_or_default(), now);
        }
        let Some(sleep) = save.then else { return };
        // Whoever used the session meanwhile goes on using it.
        if self.active_at > save.wanted || !self.rests() {
            return;
        }
        if is_taken && self.saving.is_unsaved() {
            // It is out of date already: the variables changed, or an earlier snapshot was removed.
            self.sleep(sleep, now, out);
        } else if is_taken || !sleep.is_wanted {
            // A client that puts the session to sleep wants its variables back: without a snapshot the sandbox stays.
            self.end_unused(sleep.reason, out);
        }
    }

    /// Lets the sandbox stay that was about to end, because there is work.
    pub(super) fn stay(&mut self, out: &mut Vec<Effect<W>>) {
        if self.falls_asleep() {
            self.drop_saving(out);
        }
    }

    /// Gives up the snapshot that is being taken: what it holds is not what the session has any more.
    pub(super) fn drop_saving(&mut self, out: &mut Vec<Effect<W>>) {
        if let Some(save) = self.saving.current.take() {
            out.push(Effect::StopSaving { number: save.number });
        }
    }

    pub(super) fn end_unused(&mut self, reason: String, out: &mut Vec<Effect<W>>) {
        self.lose_running(None, out); // commands, or what was to make the variables of before: nothing else runs
        out.push(Effect::Sleeps { reason: reason.clone() });
        out.push(Effect::EndSandbox);
        self.sandbox_gone(reason, out);
    }

    /// The sandbox that is about to be ready has the variables of a snapshot. `replays`: cells run again before any other.
    pub(super) fn woken(&mut self, note: String, replays: bool) {
        self.note.woke(note);
        if replays && self.may_run_again() {
            self.replays += 1;
            self.replay = ReplayPhase::Waking;
        }
    }

    /// The next result tells of cells that ran again and ended otherwise than before.
    pub(super) fn ran_otherwise(&mut self, cells: &[CellNumber]) {
        if self.replay == ReplayPhase::Waking
            && !cells.is_empty()
            && let Some(note) = notices::ended_otherwise(self.note.take(), cells)
        {
            self.note.set(note);
        }
    }

    /// The next result tells of cells that did not run again, because they cannot.
    pub(super) fn not_run_again(&mut self, cells: &[CellNumber], problem: &Problem) {
        if self.replay == ReplayPhase::Waking {
            let before = self.note.take();
            self.note.set(notices::not_run_again(before.as_deref(), cells, problem));
        }
    }

    /// Whether cells can run again when the session wakes. A replay that somebody wants takes care of that itself.
    pub fn may_run_again(&self) -> bool {
        self.replay == ReplayPhase::None && !self.ending
    }
}

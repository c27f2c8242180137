//! What the snapshots of a session hold, as its events tell: which there are, and which of them the session wakes from.
//!
//! A snapshot is of use as long as the variables only went on from it: a reset, an undo to before it, and variables that
//! were lost make it a thing of the past. Cells that have to run again after it are those that began after its cell. Where no
//! snapshot is, all cells since the variables were as at the start run again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Restored, Untold};
use crate::protocol::ask::{AskNumber, AskOutcome};
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{ExecutionResult, Mode, Reason, StateKind};
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::{MissingVariable, SnapshotRecord, add_missing};
use crate::session::notices::WokenFrom;

/// The most time that cells took of which all run again by themselves because no snapshot is there. A client who waits for
/// one cell is not to wait for longer.
const REBUILD_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Sandboxes in a row in which cells ran again and after that no other cell, and which the session did not want to end. In the
/// next one they do not run again: it may be they that end it.
const REBUILDS_TRIED: u32 = 3;

/// The place of an event among all that were folded.
type Place = u64;

/// Takes the events of a session in their order.
#[derive(Clone, Debug, Default)]
pub struct SavedStates {
    now: Place,
    /// When each cell that can change the variables began. Cells of a sandbox that is gone stay, as they are in its snapshots.
    began: BTreeMap<CellNumber, Place>,
    /// Whether a cell has begun since the last reset that can have made variables.
    has_run: bool,
    /// When the variables were last as at the start.
    fresh: Place,
    /// Cells whose changes the last undo took back.
    gone: BTreeSet<CellNumber>,
    /// Oldest first.
    kept: Vec<SnapshotRecord>,
    /// The newest one of which something could not be loaded that it has. Those after it do not have that any more.
    loaded_in_part: Option<String>,
    /// The snapshot that the session began with, until a reset.
    base: Option<SnapshotRecord>,
    /// The id of the same, also after a reset.
    base_id: Option<String>,
    /// Where that comes from.
    source: Option<BaseSource>,
    /// The rules of what the session began with, until a reset.
    inherited: Option<BoundRules>,
    /// The snapshot that the session wakes from.
    latest: Option<Latest>,
    /// The same while a sandbox is new: until it has woken, its variables are as at the start.
    unloaded: Option<Latest>,
    /// How the variables came to be since they were as at the start.
    history: History,
    /// `fresh` and `history` before the sandbox was new.
    before: (Place, History),
    /// Sandboxes in a row in which cells ran again and after that no other cell, and which the session did not want to end.
    rebuilds: u32,
    /// Whether the variables have changed since, or it was removed.
    unsaved: bool,
    /// The newest cell that has ended and can have changed the variables.
    ended: CellNumber,
    /// Scratch and background cells, which never run again, and when they ended.
    beside: Vec<(CellNumber, Place)>,
    /// When each variable was given that an ask has brought.
    given: BTreeMap<String, Place>,
    /// The variables of asks whose turn has not come: an ask before them still works.
    to_give: BTreeMap<AskNumber, Vec<String>>,
    /// Cells that can be replayed and whose changes the variables do not have: they did not run again when the session woke.
    left_out: BTreeSet<CellNumber>,
    /// When something last happened that goes otherwise for the cells before it if they run again: code that they left behind
    /// called a tool, which would be called once more, or an ask gave a variable, which a new sandbox has from the start, so that
    /// they would see it too early or overwrite it.
    unrepeatable: Place,
    pub untold: Untold,
}

#[derive(Clone, Debug)]
struct Latest {
    snapshot: SnapshotRecord,
    /// The place of its cell.
    place: Place,
    /// When it was taken.
    taken: Place,
    /// When the variables had been as at the start before it.
    fresh: Place,
}

/// How the variables came to be since they were as at the start.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// Not by cells alone: some were lost, or came from a snapshot.
    is_broken: bool,
    /// How long the cells took.
    took: Duration,
}

/// With what a new sandbox of a session begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waking {
    Loads(Box<Wake>),
    /// No snapshot is there, so the cells that made the variables run again.
    Rebuilds(CellsAgain),
}

/// The cells after a state of the variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellsAgain {
    /// Those that run again, in their order.
    pub replays: Vec<CellNumber>,
    /// Those that do not.
    pub left_out: Vec<CellNumber>,
}

/// A snapshot that a session wakes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    pub snapshot: SnapshotRecord,
    /// The cell of this session after which the variables were so; 0 for those that it began with.
    pub state_of: CellNumber,
    /// Later cells to run again, in their order.
    pub replays: Vec<CellNumber>,
    /// Later cells that are not run again: a user interrupted them, they were scratch or background cells, sandboxes ended
    /// again and again while they ran again, or they cannot be repeated.
    pub left_out: Vec<CellNumber>,
    /// Variables that were given after it was taken.
    pub keep: Vec<String>,
}

impl Wake {
    /// What the session wakes without. What could not be loaded comes first, so that no bound cuts it off: the snapshot has it, and
    /// is kept for that.
    #[must_use]
    pub fn lacks(&self, not_loaded: Vec<MissingVariable>) -> Vec<MissingVariable> {
        let mut missing = not_loaded;
        add_missing(&mut missing, self.snapshot.missing.clone());
        missing
    }
}

/// Whether a cell ended because its sandbox did, for whatever reason: nothing of that sandbox goes on.
pub(super) fn died_with_sandbox(result: &ExecutionResult) -> bool {
    // A process that ended in a sandbox that stays has an exit code.
    let is_gone = result.state.kind == StateKind::Lost && result.exit_code.is_none();
    is_gone || result.reason == Reason::SandboxLost
}

impl SavedStates {
    /// A cell that can change the variables began.
    pub fn began(&mut self, cell: CellNumber) {
        self.now += 1;
        self.began.insert(cell, self.now);
        self.has_run = true;
    }

    /// An ask gives these variables.
    pub fn gives<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        for name in names {
            self.given.insert(name.clone(), self.now);
            self.unrepeatable = self.now;
        }
    }

    /// The turn of an ask has come, at which it gives its variables.
    fn has_turn(&mut self, ask: AskNumber) {
        if let Some(names) = self.to_give.remove(&ask) {
            self.gives(names.iter());
        }
    }

    /// Takes any other event.
    pub fn take(&mut self, event: &EventBody) {
        self.now += 1;
        self.untold.take(event);
        match event {
            EventBody::SnapshotTaken { snapshot } => self.taken(snapshot),
            EventBody::SnapshotRemoved { snapshot } => {
                self.kept.retain(|kept| kept.id != *snapshot);
                let newest = self.latest.take_if(|latest| latest.snapshot.id == *snapshot);
                // Nothing else holds the variables any more.
                self.unsaved |= newest.is_some();
                self.loaded_in_part.take_if(|part| *part == *snapshot);
            }
            EventBody::Based { on, snapshot, bound } => {
                self.inherited = Some((**bound).clone());
                let Some(snapshot) = snapshot.as_deref() else { return };
                self.source = Some(on.clone());
                self.kept.push(snapshot.clone());
                self.base = Some(snapshot.clone());
                self.base_id = Some(snapshot.id.clone());
                self.fresh = self.now;
                self.latest = self.latest_of_base();
            }
            EventBody::SandboxReady { .. } => {
                self.unloaded = self.latest.take();
                self.before = (self.fresh, std::mem::take(&mut self.history));
                (self.fresh, self.unsaved) = (self.now, false);
            }
            EventBody::Woken { snapshot, missing, replays, left_out, .. } => {
                self.rebuilds += u32::from(!replays.is_empty());
                self.leaves_out(left_out);
                match snapshot {
                    Some(snapshot) => self.is_loaded(snapshot, missing),
                    None => self.starts_over(),
                }
            }
            EventBody::WakeFailed { snapshot, .. } => {
                (self.fresh, self.history) = (self.now, History::default());
                for latest in [&mut self.latest, &mut self.unloaded] {
                    latest.take_if(|latest| latest.snapshot.id == *snapshot);
                }
            }
            EventBody::Slept { .. } => self.goes_on(),
            EventBody::Reset => {
                (self.base, self.source, self.inherited) = (None, None, None);
                (self.loaded_in_part, self.has_run) = (None, false);
                self.is_fresh();
            }
            EventBody::ReplayStarted { .. } => {
                self.is_fresh();
                // The replay goes on from what the session began with.
                self.latest = self.latest_of_base();
            }
            EventBody::Undone { state_of } => self.is_back(*state_of),
            EventBody::StateLost { restored_to: Some(cell), .. } => self.is_back(*cell),
            EventBody::StateLost { restored_to: None, .. } => self.is_lost(),
            // A sandbox that is lost takes nothing from a snapshot; nor do cells that never ran.
            EventBody::CellFinished { result }
                if died_with_sandbox(result) || result.reason == Reason::ByCancel => {}
            EventBody::CellFinished { result } if result.mode.has_variables() => {
                self.unsaved = true;
                let took = Duration::try_from_secs_f64(result.duration_ms / 1e3).unwrap_or_default();
                self.history.took = self.history.took.saturating_add(took);
                self.began.entry(result.cell).or_insert(self.now);
                if self.place_of(result.cell) >= self.place_of(self.ended) {
                    self.ended = result.cell;
                }
                if result.mode != Mode::Main {
                    self.beside.push((result.cell, self.now));
                }
                match (result.state.kind, result.state.restored_to) {
                    (StateKind::Lost, _) => self.is_lost(),
                    (StateKind::Restored, Some(cell)) => self.is_back(cell),
                    (StateKind::Kept | StateKind::Restored, _) => {}
                }
            }
            EventBody::AskStarted { ask, spec } if !spec.context.is_empty() => {
                self.to_give.insert(*ask, spec.context.keys().cloned().collect());
                // The first model request of an ask is a little later than its variables, so they may be there from here on.
                self.unrepeatable = self.now;
            }
            // One that was cancelled in the queue gave nothing; others may end before a model is asked.
            EventBody::AskFinished { ask, end } if end.outcome == AskOutcome::Cancelled => {
                self.to_give.remove(ask);
            }
            EventBody::ModelAsked { ask, .. } | EventBody::AskFinished { ask, .. } => self.has_turn(*ask),
            // Only the calls of a cell that runs again are answered from the record. One that was refused had no effect.
            EventBody::ToolCalled { cell: None, refused_bytes: None, .. } => self.unrepeatable = self.now,
            _ => {}
        }
    }

    /// What ran again does not end the sandbox: another cell has run after it, or the session itself ends the sandbox.
    pub fn goes_on(&mut self) {
        self.rebuilds = 0;
    }

    /// The session went on without what these cells made, and so do the next sandboxes: the cells after them have run without
    /// it. A replay runs them.
    pub fn leaves_out(&mut self, cells: &[CellNumber]) {
        self.left_out.extend(cells);
    }

    fn is_loaded(&mut self, snapshot: &str, missing: &[MissingVariable]) {
        let loaded = self.unloaded.take().filter(|latest| latest.snapshot.id == snapshot);
        if let Some(Latest { snapshot, .. }) = &loaded {
            let lacks = |name: &str| snapshot.missing.iter().any(|lacking| lacking.name == name);
            if missing.iter().any(|missing| !lacks(&missing.name)) {
                self.loaded_in_part = Some(snapshot.id.clone());
            }
        }
        self.fresh = loaded.as_ref().map_or(self.fresh, |latest| latest.fresh);
        self.latest = loaded;
        self.history.is_broken = true;
        // It may have been removed while it was loaded.
        self.unsaved |= self.latest.is_none();
    }

    /// The variables of before are being made again from nothing, by the cells that made them.
    fn starts_over(&mut self) {
        self.unloaded = None;
        (self.fresh, self.history) = (self.before.0, History::default());
    }

    fn taken(&mut self, snapshot: &SnapshotRecord) {
        let place = self.place_of(snapshot.cell);
        let latest = Latest { snapshot: snapshot.clone(), place, taken: self.now, fresh: self.fresh };
        self.unsaved &= snapshot.cell < self.ended && self.place_of(self.ended) > latest.place;
        // A snapshot that was wanted before may come after a newer one.
        if self.latest.as_ref().is_none_or(|before| before.place <= latest.place) {
            self.latest = Some(latest);
        }
        // A snapshot without a name is kept if it is the newest, what the session wakes from or began with, or the newest that was
        // loaded in part: a person may get the rest out of it when the machine is less busy.
        let (base, latest) = (self.base().map(|base| &base.id), self.latest().map(|latest| &latest.id));
        let needed = base.into_iter().chain(latest).chain(&self.loaded_in_part);
        let needed: Vec<String> = needed.cloned().collect();
        self.kept.retain(|kept| kept.id != snapshot.id && (kept.name.is_some() || needed.contains(&kept.id)));
        self.kept.push(snapshot.clone());
    }

    /// What the session began with, as what it wakes from.
    fn latest_of_base(&self) -> Option<Latest> {
        let snapshot = self.base.clone()?;
        Some(Latest { snapshot, place: self.fresh, taken: self.fresh, fresh: self.fresh })
    }

    fn place_of(&self, cell: CellNumber) -> Place {
        self.began.get(&cell).copied().unwrap_or(self.fresh)
    }

    fn is_fresh(&mut self) {
        self.began.clear();
        self.left_out.clear();
        self.is_lost();
        (self.history, self.rebuilds) = (History::default(), 0);
        self.unsaved = false;
    }

    fn is_lost(&mut self) {
        (self.latest, self.unloaded) = (None, None);
        self.beside.clear();
        self.fresh = self.now;
        self.history.is_broken = true;
    }

    /// The variables are as after this cell again.
    fn is_back(&mut self, cell: CellNumber) {
        let reach = self.place_of(cell).max(self.fresh);
        let later = self.began.iter().filter(|(_, place)| **place > reach);
        self.gone = later.map(|(cell, _)| *cell).collect();
        self.beside.retain(|(cell, _)| !self.gone.contains(cell));
        self.latest.take_if(|latest| latest.place > reach);
        self.began.retain(|_, place| *place <= reach);
        self.unsaved = true;
    }

    /// Whether the last undo took back what this cell did.
    #[must_use]
    pub fn is_undone(&self, cell: CellNumber) -> bool {
        self.gone.contains(&cell)
    }

    #[must_use]
    pub fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Whether there can be variables of cells, or of what the session began with, since the last reset.
    #[must_use]
    pub fn has_variables(&self) -> bool {
        self.has_run || self.base.is_some()
    }

    /// The snapshots that the session has, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> &[SnapshotRecord] {
        &self.kept
    }

    /// The newest snapshot of the variables as after a cell, unless an older one could be loaded only in part: those after it lack
    /// the rest. What the session began with is none: the number of its cell is that of another session.
    #[must_use]
    pub fn saved_after(&self, cell: CellNumber) -> Option<&SnapshotRecord> {
        let of_cell = |kept: &&SnapshotRecord| kept.cell == cell && self.base_id.as_ref() != Some(&kept.id);
        self.kept.iter().filter(of_cell).max_by_key(|kept| self.loaded_in_part.as_ref() == Some(&kept.id))
    }

    /// What the session wakes from.
    #[must_use]
    pub fn latest(&self) -> Option<&SnapshotRecord> {
        self.latest.as_ref().map(|latest| &latest.snapshot)
    }

    /// The newest snapshot, if it holds the variables as they are. What the session began with is none: the number of its cell
    /// is that of another session. One that could be loaded only in part holds more than is there, and what an ask has given
    /// since is in none.
    #[must_use]
    pub fn up_to_date(&self) -> Option<&SnapshotRecord> {
        let Latest { snapshot, place, .. } = self.latest.as_ref().filter(|_| !self.unsaved)?;
        let is_base = self.base().is_some_and(|base| base.id == snapshot.id);
        let is_in_part = self.loaded_in_part.as_ref() == Some(&snapshot.id);
        let holds_all = self.given_after(*place).next().is_none();
        (holds_all && !is_base && !is_in_part).then_some(snapshot)
    }

    /// The variables that asks have given after a place.
    fn given_after(&self, place: Place) -> impl Iterator<Item = &String> {
        self.given.iter().filter(move |(_, given)| **given > place).map(|(name, _)| name)
    }

    /// What the session began with, if it has not been reset since.
    #[must_use]
    pub fn base(&self) -> Option<&SnapshotRecord> {
        self.base.as_ref()
    }

    /// The same for a replay, which begins with it.
    #[must_use]
    pub fn base_wake(&self) -> Option<Wake> {
        let snapshot = self.base.clone()?;
        // All that asks have brought is newer.
        let keep = self.given.keys().cloned().collect();
        Some(Wake { snapshot, state_of: 0, replays: Vec::new(), left_out: Vec::new(), keep })
    }

    /// The rules of what the session began with, if it has not been reset since.
    #[must_use]
    pub fn inherited(&self) -> Option<&BoundRules> {
        self.inherited.as_ref()
    }

    /// Where the variables come from that a new sandbox has. `cell` is that of the event.
    #[must_use]
    pub fn woken_from(&self, has_snapshot: bool, cell: CellNumber) -> WokenFrom<'_> {
        match &self.source {
            _ if !has_snapshot => WokenFrom::Nothing,
            Some(source) if cell == 0 => WokenFrom::Base { source, is_first: self.began.is_empty() },
            _ => WokenFrom::Cell(cell),
        }
    }

    /// Whether it may be that cells can make the variables again, which no snapshot holds. [`SavedStates::wake`] decides.
    #[must_use]
    pub fn may_rebuild(&self) -> bool {
        let has_run = || self.began.values().any(|place| *place > self.fresh);
        self.latest.is_none() && self.base.is_none() && !self.history.is_broken && has_run()
    }

    /// What a new sandbox of the session wakes with.
    #[must_use]
    pub fn wake(&self, restored: &Restored) -> Option<Waking> {
        let Some(Latest { snapshot, place, taken, .. }) = &self.latest else {
            // A replay begins with what the session began with, and runs its cells itself.
            return if restored.replaying {
                self.base_wake().map(|wake| Waking::Loads(Box::new(wake)))
            } else {
                self.rebuilt(restored).map(Waking::Rebuilds)
            };
        };
        let CellsAgain { mut replays, mut left_out } = self.cells_after(restored, *place, *taken);
        if self.rebuilds >= REBUILDS_TRIED {
            left_out.append(&mut replays);
            left_out.sort_unstable();
        }
        let is_base = self.base().is_some_and(|base| base.id == snapshot.id);
        Some(Waking::Loads(Box::new(Wake {
            snapshot: snapshot.clone(),
            state_of: if is_base { 0 } else { snapshot.cell },
            replays,
            left_out,
            keep: self.given_after(*place).cloned().collect(),
        })))
    }

    fn rebuilt(&self, restored: &Restored) -> Option<CellsAgain> {
        let is_worth_it = self.rebuilds < REBUILDS_TRIED && self.history.took <= REBUILD_LIMIT;
        let again = || self.cells_after(restored, self.fresh, self.fresh);
        (self.may_rebuild() && is_worth_it).then(again).filter(|again| !again.replays.is_empty())
    }

    /// The cells that began after a place, at which a snapshot was taken or the variables were as at the start.
    fn cells_after(&self, restored: &Restored, place: Place, taken: Place) -> CellsAgain {
        let is_later = |cell: &CellNumber| self.place_of(*cell) > place;
        let later = |cells: &[CellNumber]| cells.iter().copied().filter(is_later).collect::<Vec<_>>();
        // A background cell that began before goes on changing the variables after it.
        let beside = self.beside.iter().filter(|(cell, ended)| is_later(cell) || *ended > taken);
        let mut left_out = later(&restored.interrupted);
        left_out.extend(beside.map(|(cell, _)| *cell));
        let (again, mut replays): (Vec<_>, Vec<_>) =
            later(&restored.replayable).into_iter().partition(|cell| self.left_out.contains(cell));
        left_out.extend(again);
        // Which of them it concerns is not known, and those after that one need what it made.
        if replays.iter().any(|cell| self.place_of(*cell) <= self.unrepeatable) {
            left_out.append(&mut replays);
        }
        left_out.sort_unstable();
        CellsAgain { replays, left_out }
    }
}

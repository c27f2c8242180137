//! The waiting and running items of a session, and which one may start next, as a pure structure.
//!
//! Cells of the main line run one after the other, in the order of their arrival. Copies (`fork` cells,
//! expressions, lists of variables) need not wait for the main line: they see the state before the running
//! cell. If the kernel has no such state, they are put back, and then wait («patient») until the main line is
//! idle. A background cell begins in its turn of the main line, and the line goes on beside it. Commands wait for nothing but their own number: they have nothing to do with the variables.

use std::collections::{BTreeMap, VecDeque};

use super::outcome::CellStart;
use crate::protocol::api::VariablesFilter;
use crate::protocol::ask::AskNumber;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{RUNNING_BACKGROUND, RUNNING_COMMANDS};
use crate::protocol::result::Mode;

/// The most copies of a session that run at once.
const RUNNING_COPIES: usize = 4;

/// `W` is the reply port of a list of variables.
pub enum QueueItem<W> {
    Cell { start: CellStart, patient: bool },
    Variables { which: VariablesFilter, patient: bool, reply_to: W },
}

/// The item that starts next; a cell stays in the queue until it has ended.
pub enum Next<W> {
    Cell(CellNumber),
    Variables { which: VariablesFilter, reply_to: W },
}

pub struct Queue<W> {
    waiting: VecDeque<QueueItem<W>>,
    running: BTreeMap<CellNumber, CellStart>,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), running: BTreeMap::new() }
    }
}

impl<W> QueueItem<W> {
    fn is_main(&self) -> bool {
        matches!(self, Self::Cell { start, .. } if start.mode.is_in_line())
    }

    fn is_background(&self) -> bool {
        matches!(self, Self::Cell { start, .. } if start.mode == Mode::Background)
    }

    fn is_command(&self) -> bool {
        matches!(self, Self::Cell { start, .. } if start.mode == Mode::Command)
    }

    fn is_patient(&self) -> bool {
        match self {
            Self::Cell { patient, .. } | Self::Variables { patient, .. } => *patient,
        }
    }
}

impl<W> Queue<W> {
    /// The number of waiting cells.
    pub fn waiting(&self) -> usize {
        self.waiting.iter().filter(|job| matches!(job, QueueItem::Cell { .. })).count()
    }

    /// The number of waiting lists of variables.
    pub fn views(&self) -> usize {
        self.waiting.len() - self.waiting()
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether nothing waits and nothing runs, except for commands.
    pub fn is_idle(&self) -> bool {
        self.waiting.iter().all(QueueItem::is_command)
            && self.running.values().all(|start| start.mode == Mode::Command)
    }

    /// Whether nothing is in the way of going back to earlier variables. A background cell that runs ends with the later
    /// ones.
    pub fn may_go_back(&self) -> bool {
        self.waiting.iter().all(QueueItem::is_command)
            && self.running.values().all(|start| matches!(start.mode, Mode::Command | Mode::Background))
    }

    /// Whether this is a background cell that has not ended.
    pub fn is_background(&self, cell: CellNumber) -> bool {
        let is_it = |start: &CellStart| start.cell == cell && start.mode == Mode::Background;
        let waits = |job: &QueueItem<W>| matches!(job, QueueItem::Cell { start, .. } if is_it(start));
        self.running.get(&cell).is_some_and(is_it) || self.waiting.iter().any(waits)
    }

    /// The commands that have not ended, and whether each runs, in the order of their numbers.
    pub fn commands(&self) -> Vec<(&CellStart, bool)> {
        let waiting = self.waiting.iter().filter_map(|job| match job {
            QueueItem::Cell { start, .. } => Some((start, false)),
            QueueItem::Variables { .. } => None,
        });
        let all = self.running.values().map(|start| (start, true)).chain(waiting);
        let mut commands: Vec<_> = all.filter(|(start, _)| start.mode == Mode::Command).collect();
        commands.sort_by_key(|(start, _)| start.cell);
        commands
    }

    /// How many commands have to end before one that is queued now can run.
    pub fn commands_ahead(&self) -> usize {
        (self.commands().len() + 1).saturating_sub(RUNNING_COMMANDS)
    }

    /// The running cell of the main line.
    pub fn main(&self) -> Option<CellNumber> {
        self.running.iter().find(|(_, start)| start.mode.is_in_line()).map(|(cell, _)| *cell)
    }

    /// The cell that an interrupt applies to: that of the main line, or else the newest copy.
    pub fn foremost(&self) -> Option<CellNumber> {
        let is_copy = |(_, start): &(&CellNumber, &CellStart)| start.mode == Mode::Fork;
        self.main().or_else(|| self.running.iter().rfind(is_copy).map(|(cell, _)| *cell))
    }

    pub fn is_running(&self, cell: CellNumber) -> bool {
        self.running.contains_key(&cell)
    }

    pub fn push(&mut self, job: QueueItem<W>) {
        self.waiting.push_back(job);
    }

    /// Puts an item that has waited already at the front.
    pub fn push_front(&mut self, job: QueueItem<W>) {
        self.waiting.push_front(job);
    }

    /// Makes a running cell wait again.
    pub fn put_back(&mut self, cell: CellNumber, patient: bool) {
        if let Some(start) = self.running.remove(&cell) {
            self.waiting.push_front(QueueItem::Cell { start, patient });
        }
    }

    /// Whether the item that may start now is a cell; none if no item may start.
    pub fn next_is_cell(&self) -> Option<bool> {
        self.waiting.get(self.next_index()?).map(|job| matches!(job, QueueItem::Cell { .. }))
    }

    /// Whether the first item is a cell that runs again, and can start now.
    pub fn replays_next(&self) -> bool {
        let runs_again =
            |item: &QueueItem<W>| matches!(item, QueueItem::Cell { start, .. } if start.replay.is_some());
        self.main().is_none() && self.waiting.front().is_some_and(runs_again)
    }

    /// All cells that run again, waiting or running.
    pub fn replaying(&self) -> Vec<CellNumber> {
        let waiting = self.waiting.iter().filter_map(|item| match item {
            QueueItem::Cell { start, .. } => Some(start),
            QueueItem::Variables { .. } => None,
        });
        let all = self.running.values().chain(waiting);
        all.filter(|start| start.replay.is_some()).map(|start| start.cell).collect()
    }

    /// The first item that may start now. A cell counts as running from here on.
    pub fn next(&mut self) -> Option<Next<W>> {
        match self.waiting.remove(self.next_index()?)? {
            QueueItem::Cell { start, .. } => {
                let cell = start.cell;
                self.running.insert(cell, start);
                Some(Next::Cell(cell))
            }
            QueueItem::Variables { which, reply_to, .. } => Some(Next::Variables { which, reply_to }),
        }
    }

    fn next_index(&self) -> Option<usize> {
        let main_runs = self.main().is_some();
        let run = |mode| self.running.values().filter(|start| start.mode == mode).count();
        let (copies, commands) = (run(Mode::Fork), run(Mode::Command));
        let has_room = run(Mode::Background) < RUNNING_BACKGROUND;
        let (mut main_waits, mut line_is_full) = (false, false);
        self.waiting.iter().position(|job| {
            if job.is_main() || job.is_background() {
                let first = !main_waits;
                main_waits = true;
                line_is_full |= first && job.is_background() && !has_room;
                return first && !main_runs && !line_is_full;
            }
            if job.is_command() {
                return commands < RUNNING_COMMANDS;
            }
            // A copy does not pass a main cell that can start now, so that it sees that cell's work if
            // possible.
            let behind_a_start = main_waits && !main_runs && !line_is_full;
            let has_to_wait = job.is_patient() && main_runs;
            !behind_a_start && !has_to_wait && copies < RUNNING_COPIES
        })
    }

    /// Adds a cell that is running already.
    pub fn resume(&mut self, start: CellStart) {
        self.running.insert(start.cell, start);
    }

    /// The start of a running cell.
    pub fn running(&mut self, cell: CellNumber) -> Option<&mut CellStart> {
        self.running.get_mut(&cell)
    }

    /// The numbers of all running cells.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = CellNumber> {
        self.running.keys().copied()
    }

    /// Takes a cell out, whether it waits or runs.
    pub fn take(&mut self, cell: CellNumber) -> Option<CellStart> {
        if let Some(start) = self.running.remove(&cell) {
            return Some(start);
        }
        let is_it = |job: &QueueItem<W>| matches!(job, QueueItem::Cell { start, .. } if start.cell == cell);
        let index = self.waiting.iter().position(is_it)?;
        match self.waiting.remove(index)? {
            QueueItem::Cell { start, .. } => Some(start),
            QueueItem::Variables { .. } => None,
        }
    }

    /// Takes all running cells, when no executor is left to report their ends.
    pub fn take_running(&mut self) -> Vec<CellStart> {
        std::mem::take(&mut self.running).into_values().collect()
    }

    /// Takes the waiting cells that an ask wants, in their order.
    pub fn take_waiting_of(&mut self, ask: AskNumber) -> Vec<CellStart> {
        let mut taken = Vec::new();
        for job in std::mem::take(&mut self.waiting) {
            match job {
                QueueItem::Cell { start, .. } if start.is_wanted_by(ask) => taken.push(start),
                job => self.waiting.push_back(job),
            }
        }
        taken
    }

    /// The running cells that an ask wants.
    pub fn running_of(&self, ask: AskNumber) -> Vec<CellNumber> {
        self.running.values().filter(|start| start.is_wanted_by(ask)).map(|start| start.cell).collect()
    }

    pub fn take_waiting(&mut self) -> Vec<QueueItem<W>> {
        std::mem::take(&mut self.waiting).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn cell(cell: CellNumber, mode: Mode, patient: bool) -> QueueItem<()> {
        let timeout = Duration::from_secs(1);
        let start = CellStart { cell, mode, timeout, ..CellStart::default() };
        QueueItem::Cell { start, patient }
    }

    fn start(queue: &mut Queue<()>) -> Vec<CellNumber> {
        std::iter::from_fn(|| queue.next())
            .filter_map(|next| if let Next::Cell(cell) = next { Some(cell) } else { None })
            .collect()
    }

    #[test]
    fn the_main_line_runs_one_after_the_other() {
        let mut queue = Queue::default();
        (1..=3).for_each(|n| queue.push(cell(n, Mode::Main, false)));
        assert_eq!(start(&mut queue), [1]);
        assert_eq!(start(&mut queue), Vec::<CellNumber>::new());
        queue.take(1);
        assert_eq!(start(&mut queue), [2]);
        assert_eq!((queue.main(), queue.waiting()), (Some(2), 1));
    }

    #[test]
    fn copies_pass_a_running_cell_but_not_one_that_can_start_first() {
        let mut queue = Queue::default();
        queue.push(cell(1, Mode::Main, false));
        queue.push(cell(2, Mode::Fork, false));
        assert_eq!(start(&mut queue), [1, 2]);
        queue.push(cell(3, Mode::Main, false));
        queue.push(cell(4, Mode::Fork, false));
        assert_eq!(start(&mut queue), [4]);
    }

    #[test]
    fn commands_wait_for_no_cell_and_no_cell_for_them_and_they_are_bounded() {
        let mut queue = Queue::default();
        (1..=2).for_each(|n| queue.push(cell(n, Mode::Main, false)));
        (3..=20).for_each(|n| queue.push(cell(n, Mode::Command, false)));
        let started = start(&mut queue);
        assert_eq!((started[0], started.len()), (1, 1 + RUNNING_COMMANDS));
        queue.push(cell(21, Mode::Fork, false));
        assert_eq!((start(&mut queue), queue.commands().len()), (vec![21], 18));
        for n in [1, 2, 21] {
            queue.take(n);
        }
        assert!(queue.is_idle() && queue.foremost().is_none());
    }

    #[test]
    fn a_background_cell_begins_in_its_turn_and_the_line_goes_on_beside_it() {
        let mut queue = Queue::default();
        queue.push(cell(1, Mode::Main, false));
        queue.push(cell(2, Mode::Background, false));
        queue.push(cell(3, Mode::Main, false));
        assert_eq!(start(&mut queue), [1]);
        assert!(!queue.may_go_back() && queue.is_background(2) && !queue.is_background(3));
        queue.take(1);
        assert_eq!(start(&mut queue), [2, 3]);
        assert_eq!((queue.main(), queue.foremost()), (Some(3), Some(3)));
        queue.take(3);
        assert!(queue.may_go_back() && !queue.is_idle() && queue.foremost().is_none());
    }

    #[test]
    fn background_cells_are_bounded_and_copies_pass_those_that_wait() {
        let mut queue = Queue::default();
        (1..=20).for_each(|n| queue.push(cell(n, Mode::Background, false)));
        queue.push(cell(21, Mode::Fork, false));
        let started = start(&mut queue);
        assert_eq!((started.len(), started.last()), (RUNNING_BACKGROUND + 1, Some(&21)));
        queue.push(cell(22, Mode::Main, false));
        assert_eq!(start(&mut queue), Vec::<CellNumber>::new());
        queue.take(1);
        assert_eq!(start(&mut queue).len(), 1);
    }

    #[test]
    fn patient_copies_wait_for_the_main_line_and_copies_are_bounded() {
        let mut queue = Queue::default();
        queue.push(cell(1, Mode::Main, false));
        assert_eq!(start(&mut queue), [1]);
        queue.push(cell(2, Mode::Fork, true));
        assert_eq!(start(&mut queue), Vec::<CellNumber>::new());
        queue.take(1);
        assert_eq!(start(&mut queue), [2]);
        (3..20).for_each(|n| queue.push(cell(n, Mode::Fork, false)));
        assert_eq!(start(&mut queue).len(), RUNNING_COPIES - 1);
        assert_eq!(queue.foremost(), Some(5));
    }
}

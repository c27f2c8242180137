//! What a session's events say about its present: the fold from which a session goes on after the
//! daemon was started anew.

use std::collections::BTreeMap;
use std::time::Duration;

use super::outcome::CellStart;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::CellNumber;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::{Mode, StateKind, Status};

#[derive(Clone, Debug, Default)]
pub struct Past {
    /// The number of the newest cell.
    pub cells: CellNumber,
    /// Cells that were to run and had not begun, in order.
    pub queued: Vec<CellStart>,
    /// Cells that ran, with the time they began (RFC 3339).
    pub running: Vec<(CellStart, String)>,
    /// The sandbox that was last there, if it was not said to be gone.
    pub sandbox: Option<Receipt>,
    /// Tool calls without an answer.
    pub open_calls: Vec<u64>,
    /// Cells whose changes the variables hold, if nothing was lost since: what `replay` runs again.
    pub kept: Vec<CellNumber>,
}

#[derive(Default)]
struct Fold {
    past: Past,
    open: BTreeMap<CellNumber, (CellStart, Option<String>)>,
}

impl Past {
    /// Events in their order.
    pub fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut fold = Fold::default();
        events.into_iter().for_each(|event| fold.take(event));
        let Fold { mut past, open } = fold;
        for (_, (start, began)) in open {
            match began {
                Some(at) => past.running.push((start, at)),
                None => past.queued.push(start),
            }
        }
        past
    }
}

impl Fold {
    fn take(&mut self, event: Event) {
        let past = &mut self.past;
        match event.body {
            EventBody::CellQueued { cell, mode, code, expression, timeout_s, .. } => {
                let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
                let start = CellStart { cell, code, mode, expression, timeout, note: None, replay: None };
                self.open.insert(cell, (start, None));
                past.cells = past.cells.max(cell);
            }
            EventBody::CellStarted { cell } => {
                if let Some((_, began)) = self.open.get_mut(&cell) {
                    *began = Some(event.at);
                }
            }
            EventBody::CellFinished { result } => {
                self.open.remove(&result.cell);
                let changed =
                    matches!(result.status, Status::Success | Status::Failure | Status::Interrupted);
                if result.mode == Mode::Main && changed && result.state.kind == StateKind::Kept {
                    past.kept.push(result.cell);
                }
            }
            EventBody::SandboxReady { receipt, .. } => past.sandbox = Some(*receipt),
            EventBody::SandboxGone { .. } => {
                past.sandbox = None;
                past.open_calls.clear();
            }
            EventBody::ToolCalled { call, .. } => past.open_calls.push(call),
            EventBody::ToolAnswered { call, .. } => past.open_calls.retain(|open| *open != call),
            EventBody::Undone { state_of } => past.kept.retain(|cell| *cell <= state_of),
            EventBody::Reset => past.kept.clear(),
            EventBody::SessionCreated { .. }
            | EventBody::SandboxStarting { .. }
            | EventBody::ImagePulling { .. }
            | EventBody::SandboxAttached
            | EventBody::Output { .. }
            | EventBody::OutputCut { .. }
            | EventBody::Display { .. }
            | EventBody::Interrupting { .. }
            | EventBody::StateLost { .. }
            | EventBody::SessionRemoved
            | EventBody::AskStarted { .. }
            | EventBody::ModelAsked { .. }
            | EventBody::ModelText { .. }
            | EventBody::ModelReplied { .. }
            | EventBody::ModelFailed { .. }
            | EventBody::AskToolCalled { .. }
            | EventBody::AskToolAnswered { .. }
            | EventBody::AskNoted { .. }
            | EventBody::ApprovalWanted { .. }
            | EventBody::ApprovalDecided { .. }
            | EventBody::PlanChanged { .. }
            | EventBody::AskFinished { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::result::{ExecutionResult, Reason, StateReport, Truncated};

    fn event(seq: u64, body: EventBody) -> Event {
        Event { seq, at: format!("t{seq}"), body }
    }

    fn queued(cell: CellNumber, mode: Mode) -> EventBody {
        EventBody::CellQueued {
            cell,
            mode,
            code: format!("c{cell}"),
            expression: false,
            timeout_s: 2.0,
            origin: None,
        }
    }

    fn finished(cell: CellNumber, status: Status, kind: StateKind) -> EventBody {
        EventBody::CellFinished {
            result: Box::new(ExecutionResult {
                cell,
                mode: Mode::Main,
                status,
                reason: Reason::Ok,
                exit_code: Some(0),
                code: String::new(),
                timeout_s: 2.0,
                stdout: String::new(),
                stderr: String::new(),
                output: Vec::new(),
                result: None,
                displays: Vec::new(),
                artifacts: Vec::new(),
                exception: None,
                duration_ms: 0.0,
                truncated: Truncated::default(),
                state: StateReport {
                    kind,
                    restored_to: None,
                    unprotected: false,
                    as_before: None,
                    maybe_assigned: Vec::new(),
                    completed_tool_calls: Vec::new(),
                    note: None,
                },
            }),
        }
    }

    #[test]
    fn open_cells_and_kept_ones_are_told_apart() {
        let started = |cell| EventBody::CellStarted { cell };
        let bodies = vec![
            queued(1, Mode::Main),
            started(1),
            finished(1, Status::Success, StateKind::Kept),
            queued(2, Mode::Main),
            started(2),
            finished(2, Status::Timeout, StateKind::Restored),
            queued(3, Mode::Main),
            started(3),
            finished(3, Status::Failure, StateKind::Kept),
            queued(4, Mode::Main),
            started(4),
            queued(5, Mode::Fork),
        ];
        let past = Past::of(bodies.into_iter().zip(1..).map(|(body, seq)| event(seq, body)));
        assert_eq!((past.cells, &past.kept[..]), (5, &[1, 3][..]));
        let running: Vec<_> = past.running.iter().map(|(start, at)| (start.cell, at.as_str())).collect();
        assert_eq!(running, [(4, "t11")]);
        assert_eq!(past.queued.iter().map(|start| start.cell).collect::<Vec<_>>(), [5]);
        assert_eq!(past.queued[0].timeout, Duration::from_secs(2));
    }

    #[test]
    fn undo_and_reset_take_cells_back() {
        let mut bodies = vec![];
        for cell in 1..=3 {
            bodies.extend([queued(cell, Mode::Main), finished(cell, Status::Success, StateKind::Kept)]);
        }
        bodies.push(EventBody::Undone { state_of: 1 });
        let fold = |bodies: &[EventBody]| {
            Past::of(bodies.iter().cloned().zip(1..).map(|(body, seq)| event(seq, body))).kept
        };
        assert_eq!(fold(&bodies), [1]);
        bodies.push(EventBody::Reset);
        assert_eq!(fold(&bodies), Vec::<CellNumber>::new());
    }
}

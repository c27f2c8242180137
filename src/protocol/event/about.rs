//! What an event concerns: one cell, one ask, or the whole session.

use std::collections::BTreeSet;

use super::EventBody;
use crate::protocol::ask::AskNumber;
use crate::protocol::ids::CellNumber;

impl EventBody {
    /// The cell that the event is about, for streams of one cell.
    pub fn cell(&self) -> Option<CellNumber> {
        match self {
            Self::CellQueued { cell, .. }
            | Self::CellStarted { cell, .. }
            | Self::OutputCut { cell }
            | Self::CellDied { cell, .. }
            | Self::Display { cell, .. }
            | Self::Interrupting { cell, .. } => Some(*cell),
            Self::Output { cell, .. } | Self::ToolCalled { cell, .. } | Self::ToolBegun { cell, .. } => *cell,
            Self::CellFinished { result } => Some(result.cell),
            Self::ApprovalWanted { approval } => approval.cell,
            _ => None,
        }
    }

    /// The ask that the event names.
    pub fn ask(&self) -> Option<AskNumber> {
        match self {
            Self::AskStarted { ask, .. }
            | Self::ModelAsked { ask, .. }
            | Self::ModelText { ask, .. }
            | Self::ModelReplied { ask, .. }
            | Self::ModelFailed { ask, .. }
            | Self::ModelSpent { ask, .. }
            | Self::AskSpentWithin { ask, .. }
            | Self::AskWaitsWithin { ask, .. }
            | Self::AskToolCalled { ask, .. }
            | Self::AskToolAnswered { ask, .. }
            | Self::AskNoted { ask, .. }
            | Self::AskFinished { ask, .. } => Some(*ask),
            Self::CellQueued { origin, .. } => origin.as_ref().map(|origin| origin.ask),
            Self::PlanChanged { ask, .. } => *ask,
            Self::ApprovalWanted { approval } => approval.ask,
            _ => None,
        }
    }

    /// Whether the event concerns the sandbox or the session, and with it every cell and every ask in it.
    pub fn befalls_session(&self) -> bool {
        matches!(
            self,
            Self::SandboxStarting { .. }
                | Self::ImagePulling { .. }
                | Self::SandboxReady { .. }
                | Self::SandboxAttached
                | Self::SandboxGone { .. }
                | Self::SnapshotFailed { .. }
                | Self::Slept { .. }
                | Self::Woken { .. }
                | Self::WakeFailed { .. }
                | Self::PackagesInstalling { .. }
                | Self::PackagesInstalled { .. }
                | Self::PackagesMissing { .. }
                | Self::StateLost { .. }
                | Self::Reset
                | Self::ResetDone { .. }
                | Self::ReplayStarted { .. }
                | Self::ReplayFinished
                | Self::Frozen
                | Self::Thawed
                | Self::AdminActed { .. }
                | Self::SessionRemoved
        )
    }
}

/// An ask, with the cells, tool calls and approvals that belong to it: their later events do not name the ask.
#[derive(Debug)]
pub struct AskScope {
    ask: AskNumber,
    cells: BTreeSet<CellNumber>,
    /// Calls by its cells that are not answered yet.
    calls: BTreeSet<u64>,
    /// Approvals that are not decided yet.
    approvals: BTreeSet<String>,
}

impl AskScope {
    pub fn new(ask: AskNumber) -> Self {
        Self { ask, cells: BTreeSet::new(), calls: BTreeSet::new(), approvals: BTreeSet::new() }
    }

    /// Whether an event of the session concerns the ask. Each event has to be given once, in order.
    pub fn concerns(&mut self, event: &EventBody) -> bool {
        match event {
            EventBody::ToolAnswered { call, .. } => return self.calls.remove(call),
            EventBody::ApprovalDecided { id, .. } => return self.approvals.remove(id),
            _ => {}
        }
        let is_named = event.ask() == Some(self.ask);
        let is_of_a_cell = event.cell().is_some_and(|cell| self.cells.contains(&cell));
        if !is_named && !is_of_a_cell {
            return event.befalls_session();
        }
        match event {
            EventBody::CellQueued { cell, .. } => self.cells.extend([*cell]),
            EventBody::ToolCalled { call, .. } => self.calls.extend([*call]),
            EventBody::ApprovalWanted { approval } => self.approvals.extend([approval.id.clone()]),
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ask::{Approval, Decision, Subject};
    use crate::protocol::event::{CellOrigin, ToolOutcome};
    use crate::protocol::ids::{SessionId, SessionName};
    use crate::protocol::principal::Principal;
    use crate::protocol::result::{Mode, Stream};
    use serde_json::{Map, Value};

    fn queued(cell: CellNumber, ask: Option<AskNumber>) -> EventBody {
        EventBody::CellQueued {
            cell,
            mode: Mode::Main,
            code: String::new(),
            command: None,
            expression: false,
            timeout_s: 30.0,
            replays: None,
            origin: ask.map(|ask| CellOrigin { ask, id: "c".into(), purpose: None }),
            bound_by: None,
            commands_ahead: 0,
        }
    }

    fn called(cell: CellNumber, call: u64) -> EventBody {
        let (name, arguments) = ("x".into(), Map::new());
        let (refused_bytes, lent, held) = (None, None, false);
        EventBody::ToolCalled { cell: Some(cell), call, name, arguments, refused_bytes, lent, held }
    }

    fn answered(call: u64) -> EventBody {
        EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(Value::Null) }
    }

    fn wanted(id: &str, ask: Option<AskNumber>, cell: Option<CellNumber>) -> EventBody {
        EventBody::ApprovalWanted {
            approval: Box::new(Approval {
                id: id.into(),
                session: SessionId::fresh(),
                session_name: SessionName::parse("lab").unwrap(),
                owner: Principal::ROOT,
                ask,
                call: None,
                cell,
                bound_by: None,
                subject: Subject::Cell { code: String::new(), timeout_s: 1.0, purpose: None },
                asked_at: String::new(),
                deadline_s: None,
                by_default: None,
            }),
        }
    }

    fn decided(id: &str) -> EventBody {
        let decision = Decision::Accept { code: None };
        EventBody::ApprovalDecided { id: id.into(), decision, by: None }
    }

    #[test]
    fn an_ask_is_followed_through_what_does_not_name_it() {
        let mut scope = AskScope::new(1);
        let output =
            |cell| EventBody::Output { cell, stream: Stream::Stdout, text: "x".into(), base64: None };
        for (event, concerned) in [
            (EventBody::SessionCreated { name: "lab".into() }, false),
            (EventBody::SandboxAttached, true),
            (EventBody::ModelAsked { ask: 1, step: 1 }, true),
            (EventBody::ModelAsked { ask: 2, step: 1 }, false),
            (queued(1, Some(1)), true),
            (queued(2, Some(2)), false),
            (queued(3, None), false),
            (output(Some(1)), true),
            (output(Some(2)), false),
            (output(None), false),
            (called(1, 7), true),
            (called(2, 8), false),
            (answered(8), false),
            (answered(7), true),
            (answered(7), false),
            (wanted("a", None, Some(1)), true),
            (wanted("b", Some(1), None), true),
            (wanted("c", Some(2), Some(2)), false),
            (decided("c"), false),
            (decided("a"), true),
            (decided("b"), true),
            (EventBody::Undone { state_of: 0 }, false),
            (EventBody::Frozen, true),
            (EventBody::SessionRemoved, true),
        ] {
            assert_eq!(scope.concerns(&event), concerned, "{event:?}");
        }
    }
}

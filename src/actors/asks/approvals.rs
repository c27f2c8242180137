//! Approvals: the decisions that a person has to make. An approval is in the journal before any client can
//! see it, and its decision before the daemon acts on it.

use ractor::RpcReplyPort;
use std::sync::Arc;
use std::time::Instant;

use super::messages::AsksRef;
use super::messages::PermitWanted;
use super::state::AsksState;
use super::state::PendingApproval;
use crate::actors::calls::Reply;
use crate::agent::Input;
use crate::protocol::ask::{Approval, AskNumber, Decision, Subject};
use crate::protocol::clock;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::problem::{Code, Problem};

/// The most bytes of text that a person may send with a decision.
const WORDS_BYTES: usize = 1024 * 1024;

/// The reason recorded when an approval is withdrawn because its cell has ended.
pub(super) const CALLER_ENDED: &str = "the cell that wanted it has ended";

impl AsksState {
    /// Answers once the approvals are in the journal: no client may see one that a restart would forget.
    pub(super) fn tell_approvals(&self, reply_to: RpcReplyPort<Vec<Approval>>) {
        let approvals = self.approvals.values().map(|pending| pending.approval.clone()).collect();
        let log = Arc::clone(&self.args.log);
        tokio::spawn(async move {
            let written = tokio::time::timeout(JOURNAL_TIMEOUT, log.flushed()).await.is_ok();
            let _ = reply_to.send(if written { approvals } else { Vec::new() });
        });
    }

    /// Asks a person to approve a cell or tool call of the model.
    pub(super) fn ask_person(&mut self, call: String, subject: Subject) {
        let Some(ask) = self.current.as_ref().map(|current| current.ask) else { return };
        let known = |pending: &PendingApproval| {
            pending.is_of(ask) && pending.approval.call.as_ref() == Some(&call) && pending.permit.is_none()
        };
        if !self.approvals.values().any(known) {
            self.want((Some(ask), None, None), Some(call), subject, None);
        }
    }

    /// Asks a person to approve a tool call of a running cell.
    pub(super) fn want_permit(&mut self, wanted: PermitWanted, reply_to: RpcReplyPort<Decision>) {
        let PermitWanted { cell, ask, call, name, arguments, bound_by } = wanted;
        if let Some(decision) = self.early.remove(&(cell, call)) {
            let _ = reply_to.send(decision);
            return;
        }
        let call = Some(call.to_string());
        // After a restart the cell repeats its call, and the approval exists already.
        let known = |pending: &&mut PendingApproval| {
            pending.approval.cell == Some(cell) && pending.approval.call == call
        };
        if let Some(pending) = self.approvals.values_mut().find(known) {
            pending.permit = Some(reply_to);
            return;
        }
        let of = (ask, Some(cell), bound_by);
        self.want(of, call, Subject::Tool { name, arguments }, Some(reply_to));
    }

    fn want(
        &mut self,
        (ask, cell, bound_by): (Option<AskNumber>, Option<CellNumber>, Option<AskNumber>),
        call: Option<String>,
        subject: Subject,
        permit: Option<RpcReplyPort<Decision>>,
    ) {
        let agent = &self.args.settings.agent;
        let approval = Approval {
            id: format!("{}.{}", self.args.id, self.next_approval),
            session: self.args.id,
            session_name: self.args.name.clone(),
            owner: self.args.owner,
            ask,
            call,
            cell,
            bound_by,
            subject,
            asked_at: clock::now(),
            deadline_s: agent.approval_deadline.map(|deadline| deadline.as_secs_f64()),
            by_default: agent.approval_deadline.map(|_| agent.approval_default),
        };
        self.next_approval += 1;
        let id = approval.id.clone();
        self.args.log.append(EventBody::ApprovalWanted { approval: Box::new(approval.clone()) });
        self.approvals.insert(id, PendingApproval { approval, asked: Instant::now(), permit });
    }

    pub(super) fn recall_approvals(&mut self, approvals: Vec<Approval>) {
        for mut approval in approvals {
            approval.owner = self.args.owner;
            let asked =
                Instant::now().checked_sub(clock::since(&approval.asked_at)).unwrap_or_else(Instant::now);
            self.approvals.insert(approval.id.clone(), PendingApproval { approval, asked, permit: None });
        }
    }

    /// Withdraws the approval of a call whose cell no longer waits for it.
    pub(super) fn permit_dropped(&mut self, cell: CellNumber, call: u64) {
        // When the daemon shuts down, the next one sees the call again, so its approval must stay.
        if self.leaving {
            return;
        }
        let call = Some(call.to_string());
        self.withdraw_all(|approval| approval.cell == Some(cell) && approval.call == call, CALLER_ENDED);
    }

    /// Withdraws all approvals of the cell. Its calls may have waited in a sandbox that this daemon never
    /// took over.
    pub(super) fn cell_ended(&mut self, cell: CellNumber) {
        if !self.leaving {
            self.early.retain(|(of, _), _| *of != cell);
            self.withdraw_all(|approval| approval.cell == Some(cell), CALLER_ENDED);
        }
    }

    /// Withdraws an approval that no call waits for any more.
    pub(super) fn withdraw(&mut self, id: &str, reason: &str) {
        if self.approvals.remove(id).is_some() {
            let decision = Decision::Reject { reason: Some(reason.to_owned()) };
            self.args.log.append(EventBody::ApprovalDecided { id: id.to_owned(), decision, by: None });
        }
    }

    pub(super) fn withdraw_all_of(&mut self, ask: AskNumber) {
        self.withdraw_all(|approval| approval.ask == Some(ask), "the ask has ended");
    }

    fn withdraw_all(&mut self, which: impl Fn(&Approval) -> bool, reason: &str) {
        let pending = self.approvals.values().map(PendingApproval::approval);
        let ids: Vec<String> = pending.filter(|it| which(it)).map(|it| it.id.clone()).collect();
        for id in ids {
            self.withdraw(&id, reason);
        }
    }

    /// Takes a decision. The client is told when the journal has it, so that no death of the daemon takes it back.
    pub(super) fn decide(
        &mut self,
        myself: &AsksRef,
        id: &str,
        decision: Decision,
        by: Option<u32>,
        reply_to: Option<Reply<()>>,
    ) {
        let tell = |outcome| drop(reply_to.map(|reply_to| reply_to.send(outcome)));
        let Some(PendingApproval { approval, .. }) = self.approvals.get(id) else {
            return tell(Err(Problem::new(Code::NoSuchApproval, "nothing of this id waits for a decision")
                .hint("list what waits with `belljar approve`")));
        };
        if let Err(problem) = check(&approval.subject, &decision) {
            return tell(Err(problem));
        }
        let Some(PendingApproval { approval, permit, .. }) = self.approvals.remove(id) else { return };
        let event = EventBody::ApprovalDecided { id: id.to_owned(), decision: decision.clone(), by };
        if let Some(permit) = permit {
            let answer = move || {
                let _ = permit.send(decision);
                tell(Ok(()));
            };
            self.args.log.append_then(event, None, answer);
            return;
        }
        self.args.log.append_then(event, None, move || tell(Ok(())));
        if let Some(cell) = approval.cell {
            // The daemon has restarted, and the cell has not repeated this call yet.
            let call = approval.call.and_then(|call| call.parse().ok());
            self.early.extend(call.map(|call| ((cell, call), decision)));
        } else if let Some(call) = approval.call
            && self.current.as_ref().is_some_and(|current| Some(current.ask) == approval.ask)
        {
            self.take(myself, Input::Decided { id: call, decision });
        }
    }

    pub(super) fn decide_overdue(&mut self, myself: &AsksRef) {
        let overdue: Vec<(String, Decision)> = self
            .approvals
            .iter()
            .filter_map(|(id, pending)| Some((id.clone(), pending.overdue()?)))
            .collect();
        for (id, decision) in overdue {
            self.decide(myself, &id, decision, None, None);
        }
    }
}

fn check(subject: &Subject, decision: &Decision) -> Result<(), Problem> {
    let words = match decision {
        Decision::Accept { code: Some(_) } if matches!(subject, Subject::Tool { .. }) => {
            return Err(Problem::new(Code::BadRequest, "only a cell can be accepted with other code"));
        }
        Decision::Accept { code } => code.as_deref(),
        Decision::Reject { reason } => reason.as_deref(),
        Decision::Respond { text } | Decision::Edit { text } => Some(text.as_str()),
    };
    match words {
        Some(words) if words.len() > WORDS_BYTES => {
            Err(Problem::new(Code::TooLarge, format!("at most {WORDS_BYTES} bytes of text")))
        }
        _ => Ok(()),
    }
}

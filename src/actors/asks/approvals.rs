//! Asks people for the decisions that they have to make. An approval is in the journal before any client can
//! see it, and its decision before the daemon acts on it. What waits is in `session::approvals`.

use ractor::RpcReplyPort;
use std::sync::Arc;
use std::time::Instant;

use super::messages::AsksRef;
use super::state::AsksState;
use crate::actors::calls::Reply;
use crate::agent::Input;
use crate::protocol::ask::{Approval, AskNumber, Decision, Subject};
use crate::protocol::clock::Moment;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::principal::Principal;
use crate::session::approvals::{Asker, Question};

impl AsksState {
    /// Answers once the approvals are in the journal: no client may see one that a restart would forget.
    pub(super) fn tell_approvals(&self, reply_to: RpcReplyPort<Vec<Approval>>) {
        let approvals = self.approvals.iter().cloned().collect();
        let log = Arc::clone(&self.args.log);
        tokio::spawn(async move {
            let _ = reply_to.send(if log.is_flushed().await { approvals } else { Vec::new() });
        });
    }

    /// Asks a person to approve a cell or tool call of the model.
    pub(super) fn ask_person(&mut self, call: String, subject: Subject) {
        let ask = self.current.as_ref().map(|current| current.ask);
        self.want(Question { ask, cell: None, call, bound_by: None, subject });
    }

    /// Asks a person to approve a tool call of a running cell.
    pub(super) fn want_permit(&mut self, question: Question, reply_to: RpcReplyPort<Decision>) {
        if let Some(decision) = self.approvals.decision(&question) {
            let _ = reply_to.send(decision.clone());
            return;
        }
        let id = self.want(question);
        self.permits.insert(id, reply_to);
    }

    /// Gives the id of the approval, which may wait since before a restart.
    fn want(&mut self, question: Question) -> String {
        if let Some(id) = self.approvals.find(&question) {
            return id.to_owned();
        }
        let (session, name, owner) = (self.args.id, &self.args.name, self.args.owner);
        let settings = self.args.settings.now();
        let asker = Asker { session, name, owner, agent: &settings.agent };
        let approval = self.approvals.approval(question, &asker, Moment::now());
        let id = approval.id.clone();
        self.record(EventBody::ApprovalWanted { approval: Box::new(approval) });
        id
    }

    fn record(&mut self, event: EventBody) {
        let _ = self.approvals.take(&event, Moment::now());
        self.args.log.append(event);
    }

    pub(super) fn caller_ended(&mut self, cell: CellNumber, call: Option<u64>) {
        // When the daemon shuts down, the next one sees the call again, so its approval must stay.
        if !self.leaving {
            self.approvals.caller_ended(Some(cell), call);
            self.withdraw_void();
        }
    }

    pub(super) fn withdraw_all_of(&mut self, ask: AskNumber) {
        self.approvals.ask_ended(ask);
        self.withdraw_void();
    }

    /// Withdraws the approvals that nothing needs any more.
    pub(super) fn withdraw_void(&mut self) {
        for event in self.approvals.withdrawals() {
            if let EventBody::ApprovalDecided { id, .. } = &event {
                self.permits.remove(id);
            }
            self.record(event);
        }
    }

    /// Takes a decision. The client is told when the journal has it, so that no death of the daemon takes it back.
    pub(super) fn decide(
        &mut self,
        myself: &AsksRef,
        id: String,
        decision: Decision,
        by: Option<Principal>,
        reply_to: Option<Reply<()>>,
    ) {
        let tell = |outcome| drop(reply_to.map(|reply_to| reply_to.send(outcome)));
        if let Err(problem) = self.approvals.check(&id, &decision) {
            return tell(Err(problem));
        }
        let permit = self.permits.remove(&id);
        let event = EventBody::ApprovalDecided { id, decision: decision.clone(), by };
        let decided = self.approvals.take(&event, Moment::now());
        let for_call = decision.clone();
        self.args.log.append_then(event, None, move || {
            permit.map(|permit| permit.send(for_call));
            tell(Ok(()));
        });
        // A call of a cell that has not repeated it since a restart finds the decision when it does.
        if let Some(approval) = decided
            && let (None, Some(call)) = (approval.cell, approval.call)
            && self.current.as_ref().is_some_and(|current| Some(current.ask) == approval.ask)
        {
            self.take(myself, Input::Decided { id: call, decision });
        }
    }

    pub(super) fn decide_overdue(&mut self, myself: &AsksRef) {
        for (id, decision) in self.approvals.overdue(Instant::now()) {
            self.decide(myself, id, decision, None, None);
        }
    }
}

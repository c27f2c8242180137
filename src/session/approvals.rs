//! The approvals of a session: the questions that wait for a person, and the decisions of which nothing has come yet. The
//! book takes events, those of live work and those of the journal alike, so a restarted daemon knows the same approvals.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::config::Agent;
use crate::protocol::ask::{Approval, AskNumber, Decision, DefaultDecision, Subject};
use crate::protocol::clock::Moment;
use crate::protocol::event::EventBody;
use crate::protocol::ids::{CellNumber, SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};

/// The most bytes of text that a person may send with a decision.
const DECISION_BYTES: usize = 1024 * 1024;

/// The reasons for which approvals are withdrawn.
const CALLER_ENDED: &str = "the cell that wanted it has ended";
const ASK_ENDED: &str = "the ask has ended";

/// Something that a person has to allow.
#[derive(Clone, Debug)]
pub struct Question {
    /// The ask that wants it, or that the calling cell belongs to.
    pub ask: Option<AskNumber>,
    /// The cell whose code makes the call; none for what the model itself wants.
    pub cell: Option<CellNumber>,
    /// The id of the model's call, or the number of the code's call.
    pub call: String,
    /// The ask whose rules require the approval, if it is another one.
    pub bound_by: Option<AskNumber>,
    pub subject: Subject,
}

/// The session whose approvals these are.
#[derive(Debug)]
pub struct Asker<'a> {
    pub session: SessionId,
    pub name: &'a SessionName,
    pub owner: Principal,
    pub agent: &'a Agent,
}

#[derive(Clone, Debug, Default)]
pub struct Approvals {
    waiting: BTreeMap<String, WaitingApproval>,
    /// The number of all approvals so far, decided ones included.
    wanted: u64,
    /// The waiting approvals that nothing needs any more, and why: they have to be withdrawn.
    void: BTreeMap<String, &'static str>,
    /// Decisions on calls of cells that have neither begun nor been answered. After a restart a cell repeats such a call.
    decisions: BTreeMap<(CellNumber, u64), Decision>,
}

#[derive(Clone, Debug)]
struct WaitingApproval {
    approval: Approval,
    since: Instant,
}

impl Approvals {
    /// Takes an event. Gives the approval that the event decides on.
    pub fn take(&mut self, event: &EventBody, now: Moment) -> Option<Approval> {
        match event {
            EventBody::ApprovalWanted { approval } => {
                let age = now.since(&approval.asked_at);
                let since = now.instant.checked_sub(age).unwrap_or(now.instant);
                self.wanted += 1;
                self.waiting
                    .insert(approval.id.clone(), WaitingApproval { approval: (**approval).clone(), since });
            }
            EventBody::ApprovalDecided { id, decision, .. } => return self.decided(id, decision),
            EventBody::ToolBegun { cell: Some(cell), call, .. } => {
                self.decisions.remove(&(*cell, *call));
            }
            EventBody::ToolAnswered { call, .. } => self.caller_ended(None, Some(*call)),
            EventBody::CellFinished { result } => self.caller_ended(Some(result.cell), None),
            EventBody::AskFinished { ask, .. } => {
                self.waiting.retain(|_, waiting| waiting.approval.ask != Some(*ask));
            }
            _ => {}
        }
        None
    }

    fn decided(&mut self, id: &str, decision: &Decision) -> Option<Approval> {
        let WaitingApproval { approval, .. } = self.waiting.remove(id)?;
        let is_void = self.void.remove(id).is_some();
        if let Some(call) = code_call(&approval).filter(|_| !is_void) {
            self.decisions.insert(call, decision.clone());
        }
        Some(approval)
    }

    /// The calls of this cell with this number wait no longer; none stands for all. After the end of a cell, its calls
    /// may have waited in a sandbox that this daemon never took over.
    pub fn caller_ended(&mut self, cell: Option<CellNumber>, call: Option<u64>) {
        let is_meant = |(of, number): (CellNumber, u64)| {
            cell.is_none_or(|cell| cell == of) && call.is_none_or(|call| call == number)
        };
        self.decisions.retain(|of, _| !is_meant(*of));
        self.void(CALLER_ENDED, |approval| code_call(approval).is_some_and(is_meant));
    }

    pub fn ask_ended(&mut self, ask: AskNumber) {
        self.void(ASK_ENDED, |approval| approval.ask == Some(ask));
    }

    fn void(&mut self, reason: &'static str, which: impl Fn(&Approval) -> bool) {
        let void = self.waiting.values().filter(|waiting| which(&waiting.approval));
        self.void.extend(void.map(|waiting| (waiting.approval.id.clone(), reason)));
    }

    /// The events that withdraw what nothing needs any more.
    #[must_use]
    pub fn withdrawals(&self) -> Vec<EventBody> {
        let void = self.void.iter().filter(|(id, _)| self.waiting.contains_key(*id));
        let rejected = |(id, reason): (&String, &&str)| EventBody::ApprovalDecided {
            id: id.clone(),
            decision: Decision::Reject { reason: Some((*reason).to_owned()) },
            by: None,
        };
        void.map(rejected).collect()
    }

    /// The approval that a question leads to. It waits once its event is taken.
    #[must_use]
    pub fn approval(&self, question: Question, asker: &Asker<'_>, now: Moment) -> Approval {
        let Asker { session, name, owner, agent } = asker;
        let Question { ask, cell, call, bound_by, subject } = question;
        Approval {
            id: format!("{session}.{}", self.wanted + 1),
            session: *session,
            session_name: (*name).clone(),
            owner: *owner,
            ask,
            call: Some(call),
            cell,
            bound_by,
            subject,
            asked_at: now.timestamp(),
            deadline_s: agent.approval_deadline.map(|deadline| deadline.as_secs_f64()),
            by_default: agent.approval_deadline.map(|_| agent.approval_default),
        }
    }

    /// The id of the approval that waits for this question already, as after a restart.
    #[must_use]
    pub fn find(&self, question: &Question) -> Option<&str> {
        let is_same = |approval: &&Approval| {
            (approval.ask, approval.cell, approval.call.as_deref())
                == (question.ask, question.cell, Some(question.call.as_str()))
        };
        self.iter().find(is_same).map(|approval| approval.id.as_str())
    }

    /// The decision that was made before the cell repeated its call.
    #[must_use]
    pub fn decision(&self, question: &Question) -> Option<&Decision> {
        self.decisions.get(&(question.cell?, question.call.parse().ok()?))
    }

    /// Whether a person may decide so.
    pub fn check(&self, id: &str, decision: &Decision) -> Result<(), Problem> {
        let Some(WaitingApproval { approval, .. }) = self.waiting.get(id) else {
            return Err(Problem::new(Code::NoSuchApproval, "nothing of this id waits for a decision")
                .hint("list what waits with `belljar approve`"));
        };
        let text = match decision {
            Decision::Accept { code: Some(_) } if matches!(approval.subject, Subject::Tool { .. }) => {
                return Err(Problem::new(Code::BadRequest, "only a cell can be accepted with other code"));
            }
            Decision::Accept { code } => code.as_deref(),
            Decision::Reject { reason } => reason.as_deref(),
            Decision::Respond { text } | Decision::Edit { text } => Some(text.as_str()),
        };
        match text {
            Some(text) if text.len() > DECISION_BYTES => {
                Err(Problem::new(Code::TooLarge, format!("at most {DECISION_BYTES} bytes of text")))
            }
            _ => Ok(()),
        }
    }

    /// The decisions on approvals that no person decided on in time.
    #[must_use]
    pub fn overdue(&self, now: Instant) -> Vec<(String, Decision)> {
        let overdue = self.waiting.values().filter_map(|WaitingApproval { approval, since }| {
            let deadline = Duration::try_from_secs_f64(approval.deadline_s?).ok()?;
            let decision = match approval.by_default? {
                DefaultDecision::Accept => Decision::Accept { code: None },
                DefaultDecision::Reject => {
                    Decision::Reject { reason: Some("nobody decided in time".to_owned()) }
                }
            };
            let is_over = now.saturating_duration_since(*since) >= deadline;
            is_over.then(|| (approval.id.clone(), decision))
        });
        overdue.collect()
    }

    /// Whether at least one of the approvals that wait has a deadline.
    #[must_use]
    pub fn have_deadlines(&self) -> bool {
        self.iter().any(|approval| approval.deadline_s.is_some())
    }

    /// The approvals that wait.
    pub fn iter(&self) -> impl Iterator<Item = &Approval> {
        self.waiting.values().map(|waiting| &waiting.approval)
    }

    pub fn of_ask(&self, ask: AskNumber) -> impl Iterator<Item = &Approval> {
        self.iter().filter(move |approval| approval.ask == Some(ask))
    }

    /// Names the owner, whom events of earlier versions do not name.
    pub fn owned_by(&mut self, owner: Principal) {
        self.waiting.values_mut().for_each(|waiting| waiting.approval.owner = owner);
    }
}

/// The cell and the number of the call that the approval is about, if code made the call.
#[must_use]
pub fn code_call(approval: &Approval) -> Option<(CellNumber, u64)> {
    Some((approval.cell?, approval.call.as_ref()?.parse().ok()?))
}

#[cfg(test)]
mod tests;

//! The calls of one reply: cells run one after the other, other tools at once, and each call waits for
//! approval first where required.

use super::arguments::Work;
use super::effects::{Effect, ModelApprovals, Setup};
use crate::protocol::ask::{AskSpec, Subject};
use crate::protocol::chat::Message;
use crate::protocol::timeout::Timeouts;

/// Whether a call counts as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallVerdict {
    Good,
    Bad,
    /// The answer says nothing about the progress: a person answered, or Python is off.
    Neither,
}

/// A call that has its answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AnsweredCall {
    pub id: String,
    /// The name as the model wrote it.
    pub name: String,
    /// The name of the tool; none if there is no such tool.
    pub tool: Option<String>,
    /// Whether the call came as `function_call`.
    pub legacy: bool,
    pub text: String,
    pub verdict: CallVerdict,
    /// The same for calls that ask for the same.
    pub fingerprint: u64,
}

#[derive(Debug)]
enum State {
    Waiting(Work),
    /// A person has been asked to approve it.
    Asked(Work),
    Running(Work),
    Done(String, CallVerdict),
}

/// What is known of a call before it runs.
#[derive(Clone, Debug)]
pub(super) struct CallOrigin {
    /// The id that answers name.
    pub id: String,
    /// The name as the model wrote it.
    pub name: String,
    /// The name of the tool; none if there is no such tool.
    pub tool: Option<String>,
    /// Whether the call came as `function_call`.
    pub legacy: bool,
    /// The same for calls that ask for the same.
    pub fingerprint: u64,
}

#[derive(Debug)]
struct Slot {
    origin: CallOrigin,
    is_cell: bool,
    /// Whether a person changed the code.
    is_edited: bool,
    state: State,
}

#[derive(Debug)]
pub(super) struct Turn {
    /// The model's reply, in the form that its dialect keeps.
    pub message: Message,
    /// The user message to add when all calls are answered.
    pub after: Option<String>,
    slots: Vec<Slot>,
}

/// The rules that all cells and calls of an ask share.
pub(super) struct Rules<'a> {
    approvals: &'a ModelApprovals,
    restricted: bool,
    timeouts: Timeouts,
}

impl<'a> Rules<'a> {
    pub fn of(spec: &'a AskSpec, setup: &'a Setup) -> Self {
        Self { approvals: &setup.approvals, restricted: spec.restricted, timeouts: setup.cell_timeouts() }
    }

    fn wants_approval(&self, work: &Work) -> bool {
        match work {
            Work::Cell { .. } => self.approvals.cells,
            Work::Tool { name, .. } => self.approvals.tools.contains(name),
        }
    }

    pub fn timeout_s(&self, wanted: Option<f64>) -> f64 {
        self.timeouts.nearest(wanted).as_secs_f64()
    }
}

impl Turn {
    pub fn new(message: Message, after: Option<String>) -> Self {
        Self { message, after, slots: Vec::new() }
    }

    pub fn add(&mut self, origin: CallOrigin, work: Work) {
        let is_cell = matches!(work, Work::Cell { .. });
        self.slots.push(Slot { origin, is_cell, is_edited: false, state: State::Waiting(work) });
    }

    /// Adds a call that is answered without running anything.
    pub fn add_answered(&mut self, origin: CallOrigin, text: String, verdict: CallVerdict) {
        let state = State::Done(text, verdict);
        self.slots.push(Slot { origin, is_cell: false, is_edited: false, state });
    }

    /// Starts all calls that may start now.
    pub fn advance(&mut self, rules: &Rules) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut cell_ahead = false;
        for slot in &mut self.slots {
            let turn_of_slot = !slot.is_cell || !cell_ahead;
            cell_ahead |= slot.is_cell && !matches!(slot.state, State::Done(..));
            if !turn_of_slot {
                continue;
            }
            if let State::Waiting(work) = &slot.state {
                let work = work.clone();
                slot.state =
                    if rules.wants_approval(&work) { State::Asked(work) } else { State::Running(work) };
                effects.extend(slot.effect(rules));
            }
        }
        effects
    }

    /// The work that a person was asked about, if the call waits for a person.
    pub fn asked(&self, id: &str) -> Option<&Work> {
        match &self.slot(id)?.state {
            State::Asked(work) => Some(work),
            State::Waiting(_) | State::Running(_) | State::Done(..) => None,
        }
    }

    pub fn running(&self, id: &str) -> Option<&Work> {
        match &self.slot(id)?.state {
            State::Running(work) => Some(work),
            State::Waiting(_) | State::Asked(_) | State::Done(..) => None,
        }
    }

    /// Starts the work that a person accepted; the person may have replaced the code of a cell.
    pub fn accept(&mut self, id: &str, code: Option<String>, rules: &Rules) -> Option<Effect> {
        let slot = self.slots.iter_mut().find(|slot| slot.origin.id == id)?;
        let State::Asked(work) = &slot.state else { return None };
        let mut work = work.clone();
        if let (Work::Cell { code: own, .. }, Some(code)) = (&mut work, code) {
            slot.is_edited = *own != code;
            *own = code;
        }
        slot.state = State::Running(work);
        slot.effect(rules)
    }

    pub fn is_edited(&self, id: &str) -> bool {
        self.slot(id).is_some_and(|slot| slot.is_edited)
    }

    pub fn answer(&mut self, id: &str, text: String, verdict: CallVerdict) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.origin.id == id) {
            slot.state = State::Done(text, verdict);
        }
    }

    pub fn is_complete(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot.state, State::Done(..)))
    }

    /// The effects that still wait for their answer.
    pub fn outstanding(&self, rules: &Rules) -> Vec<Effect> {
        self.slots.iter().filter_map(|slot| slot.effect(rules)).collect()
    }

    /// The reply, its answered calls and the user message after them; calls without an answer get
    /// `unanswered`.
    pub fn close(self, unanswered: &str) -> (Message, Vec<AnsweredCall>, Option<String>) {
        let answered = self.slots.into_iter().map(|slot| {
            let (text, verdict) = match slot.state {
                State::Done(text, verdict) => (text, verdict),
                State::Waiting(_) | State::Asked(_) | State::Running(_) => {
                    (unanswered.to_owned(), CallVerdict::Neither)
                }
            };
            let CallOrigin { id, name, tool, legacy, fingerprint } = slot.origin;
            AnsweredCall { id, name, tool, legacy, text, verdict, fingerprint }
        });
        (self.message, answered.collect(), self.after)
    }

    fn slot(&self, id: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.origin.id == id)
    }
}

impl Slot {
    fn effect(&self, rules: &Rules) -> Option<Effect> {
        let id = self.origin.id.clone();
        match &self.state {
            State::Waiting(_) | State::Done(..) => None,
            State::Asked(Work::Cell { code, timeout_s, purpose }) => Some(Effect::AskPerson {
                id,
                subject: Subject::Cell {
                    code: code.clone(),
                    timeout_s: rules.timeout_s(*timeout_s),
                    purpose: purpose.clone(),
                },
            }),
            State::Asked(Work::Tool { name, arguments }) => Some(Effect::AskPerson {
                id,
                subject: Subject::Tool { name: name.clone(), arguments: arguments.clone() },
            }),
            State::Running(Work::Cell { code, timeout_s, purpose }) => Some(Effect::RunCell {
                id,
                code: code.clone(),
                purpose: purpose.clone(),
                timeout_s: rules.timeout_s(*timeout_s),
                restricted: rules.restricted,
            }),
            State::Running(Work::Tool { name, arguments }) => {
                Some(Effect::CallTool { id, name: name.clone(), arguments: arguments.clone() })
            }
        }
    }
}

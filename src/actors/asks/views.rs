//! The views of asks, their plans, and the time that they take.

use super::messages::AsksRef;
use super::port::ended;
use super::state::{ASK_COPIES, AsksState, Current, QueuedAsk};
use crate::actors::calls::Reply;
use crate::actors::session::messages::SessionMsg;
use crate::agent::{Effect, Input};
use crate::memory::{MemoryPurpose, TINY_BYTES};
use crate::protocol::ask::{Approval, AskNumber, AskState, AskView, PlanVersion};
use crate::protocol::chat::Message;
use crate::protocol::event::EventBody;
use crate::protocol::ids::SessionId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::values::parsed_bytes;
use crate::security_controls;
use crate::tools::PlanTree;
use std::sync::Arc;

/// The memory of one version of a plan: as values, and as text for people.
pub(super) fn plan_bytes(tree: &serde_json::Value) -> u64 {
    if security_controls::holds("plan_memory_charge") {
        parsed_bytes(&tree.to_string()).saturating_mul(2)
    } else {
        0
    }
}

impl AsksState {
    /// Charges the view of an ask, which stays in memory while it is shown, however large its answer is.
    pub(super) fn keeps(&mut self, ask: AskNumber) {
        let Some(view) = self.asks.get(&ask) else { return };
        let text = serde_json::to_string(view).unwrap_or_default();
        let bytes = parsed_bytes(&text).saturating_mul(ASK_COPIES);
        if bytes <= TINY_BYTES {
            return;
        }
        let pool = self.args.quotas.memory(self.args.owner);
        let charge = self.memory.entry(ask).or_insert_with(|| pool.open(MemoryPurpose::Conversations));
        charge.grow_anyway(bytes.saturating_sub(charge.bytes()));
    }

    /// Keeps what was said in asks that have ended for the next one, and charges it: calls and their results are not
    /// part of what an ask shows.
    pub(super) fn keep_history(&mut self, history: Vec<Message>) {
        let bytes = serde_json::to_string(&history).map_or(0, |text| text.len() as u64);
        let charged =
            if bytes > TINY_BYTES && security_controls::holds("history_memory_charge") { bytes } else { 0 };
        self.history_memory.shrink_to(charged);
        self.history_memory.grow_anyway(charged.saturating_sub(self.history_memory.bytes()));
        self.history = history;
    }

    pub(super) fn view(&self, ask: AskNumber) -> Option<AskView> {
        let mut view = self.asks.get(&ask)?.clone();
        if let Some(current) = self.current.as_ref().filter(|current| current.ask == ask) {
            (view.steps, view.usage) = (current.machine.steps_in_all(), current.machine.usage());
            view.waits_for = self.waits_for(current);
            view.state = if !view.waits_for.is_empty() {
                AskState::Waiting
            } else if current.model.is_some() {
                AskState::Thinking
            } else {
                AskState::Acting
            };
        }
        Some(view)
    }

    pub(super) fn waits_for(&self, current: &Current) -> Vec<Approval> {
        let own = self.approvals.of_ask(current.ask);
        own.chain(current.waiting_within.values().flatten()).cloned().collect()
    }

    /// Cancels an ask. Answered when its end is in the journal.
    pub(super) fn cancel(&mut self, myself: &AsksRef, ask: AskNumber, reply_to: Reply<AskView>) {
        self.cancel_now(myself, ask);
        let (asks, log) = (myself.clone(), Arc::clone(&self.args.log));
        tokio::spawn(async move {
            let _ = reply_to.send(ended(&asks, &log, ask, |_| {}).await);
        });
    }

    /// Cancels all asks, the one that goes on last, so that no other begins. Those whose prompt is still being read are
    /// refused when it has been.
    pub(super) fn cancel_all(&mut self, myself: &AsksRef) {
        self.is_removed = true;
        let waiting: Vec<AskNumber> = self.waiting.iter().map(|waiting| waiting.ask).collect();
        for ask in waiting.into_iter().chain(self.current.as_ref().map(|current| current.ask)) {
            self.cancel_now(myself, ask);
        }
    }

    fn cancel_now(&mut self, myself: &AsksRef, ask: AskNumber) {
        if self.current.as_ref().is_some_and(|current| current.ask == ask) {
            self.take(myself, Input::Cancel);
        } else if let Some(index) = self.waiting.iter().position(|waiting| waiting.ask == ask)
            && let Some(QueuedAsk { spec, .. }) = self.waiting.remove(index)
        {
            let tools = (self.args.tools)();
            let mut machine = self.machine(&spec, &tools, Vec::new());
            for end in machine.step(Input::Cancel).into_iter().filter_map(Effect::into_end) {
                self.finish(myself, ask, end);
            }
        }
    }

    pub(super) fn submit_plan(&mut self, plan: PlanTree, reply_to: Reply<PlanVersion>) {
        let language =
            self.current.as_ref().map_or(self.args.settings.now().agent.language, |now| now.spec.language);
        // All versions of a plan stay in memory, so each is charged before it is taken.
        let bytes = serde_json::to_value(&plan).map_or(0, |tree| plan_bytes(&tree));
        if let Err(no_room) = self.plans_memory.try_grow(bytes) {
            let _ = reply_to.send(Err(no_room.into()));
            return;
        }
        match self.plan.submit(plan, language) {
            Ok(version) => {
                self.plans.push(version.clone());
                let ask = self.current.as_ref().map(|current| current.ask);
                let event = EventBody::PlanChanged { ask, plan: Box::new(version.clone()) };
                self.args.log.append_then(event, None, move || drop(reply_to.send(Ok(version))));
            }
            Err(problems) => {
                self.plans_memory.shrink_to(self.plans_memory.bytes().saturating_sub(bytes));
                let _ = reply_to.send(Err(Problem::new(Code::BadRequest, problems.join("; "))));
            }
        }
    }

    pub(super) fn waits_within(&mut self, ask: AskNumber, within: SessionId, approvals: Vec<Approval>) {
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        if approvals.is_empty() {
            current.waiting_within.remove(&within);
        } else {
            current.waiting_within.insert(within, approvals);
        }
        let approvals = current.waiting_within.values().flatten().cloned().collect();
        self.args.log.append(EventBody::AskWaitsWithin { ask, approvals });
    }

    pub(super) fn tick(&mut self, myself: &AsksRef) {
        if self.leaving {
            return;
        }
        self.decide_overdue(myself);
        let waits = self.current.as_ref().is_some_and(|current| !self.waits_for(current).is_empty());
        let Some(current) = &mut self.current else { return };
        current.clock.run(!waits, current.taken_up.elapsed());
        // An ask is activity, also while it waits for a person.
        let _ = self.args.session.cast(SessionMsg::Touch);
        if current.work_time().as_secs_f64() > current.spec.limits.seconds {
            self.take(myself, Input::TimeUp);
        }
    }
}

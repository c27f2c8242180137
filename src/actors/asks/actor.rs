//! The asks actor: how it handles each message.

use super::messages::{AsksMsg, AsksRef};
use super::state::{AsksArgs, AsksState};
use super::views::plan_bytes;
use crate::actors::asks::spec;
use crate::memory::MemoryPurpose;
use crate::protocol::ask::{AskNumber, AskState};
use crate::protocol::event::EventBody;
use crate::tools::PlanHistory;
use ractor::{Actor, ActorProcessingErr, SpawnErr};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// The interval at which deadlines are checked, while there are any.
const TICK: Duration = Duration::from_millis(250);

pub struct Asks;

impl Asks {
    pub async fn spawn(args: AsksArgs) -> Result<AsksRef, SpawnErr> {
        let supervisor = args.session.get_cell();
        Actor::spawn_linked(None, Self, args, supervisor).await.map(|(asks, _)| asks)
    }
}

impl Actor for Asks {
    type Msg = AsksMsg;
    type State = AsksState;
    type Arguments = AsksArgs;

    async fn pre_start(&self, myself: AsksRef, mut args: AsksArgs) -> Result<AsksState, ActorProcessingErr> {
        let memory = std::mem::take(&mut args.before);
        let prompt = if memory.asks.is_empty() {
            None
        } else {
            spec::read_prompt(&args.settings.now().agent, args.owner).await.unwrap_or_else(|problem| {
                tracing::warn!(message = problem.message, "the built-in prompt is used");
                None
            })
        };
        let pool = args.quotas.memory(args.owner);
        let mut plans_memory = pool.open(MemoryPurpose::Conversations);
        plans_memory.grow_anyway(memory.plans.iter().map(|version| plan_bytes(&version.tree)).sum());
        let mut state = AsksState {
            plans_memory,
            plan: memory.plans.last().map(PlanHistory::after).unwrap_or_default(),
            plans: memory.plans,
            args,
            asks: BTreeMap::new(),
            memory: BTreeMap::new(),
            newest: 0,
            prompt,
            waiting: VecDeque::new(),
            current: None,
            remains: BTreeMap::new(),
            history: Vec::new(),
            history_memory: pool.open(MemoryPurpose::Conversations),
            approvals: memory.approvals,
            permits: HashMap::new(),
            leaving: false,
            is_removed: false,
            is_ticking: false,
            last_programs: None,
        };
        state.approvals.owned_by(state.args.owner);
        state.recall(&myself, memory.asks);
        let known: Vec<AskNumber> = state.asks.keys().copied().collect();
        for ask in known {
            state.keeps(ask);
        }
        state.withdraw_void();
        state.tick_later(&myself);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: AsksRef,
        message: AsksMsg,
        state: &mut AsksState,
    ) -> Result<(), ActorProcessingErr> {
        crate::panics::panic_if_requested("asks");
        match message {
            AsksMsg::Start { new, outer, memory, reply_to } => {
                state.read_prompt(&myself, new, outer, memory, reply_to);
            }
            AsksMsg::PromptRead { prompt, new, outer, memory, reply_to } => {
                state.prompt = prompt;
                state.start(&myself, *new, outer, reply_to);
                drop(memory);
            }
            AsksMsg::View { ask, reply_to } => drop(reply_to.send(state.view(ask))),
            AsksMsg::List { reply_to } => {
                let _ = reply_to.send(state.asks.keys().filter_map(|ask| state.view(*ask)).collect());
            }
            AsksMsg::Cancel { ask, reply_to } => state.cancel(&myself, ask, reply_to),
            AsksMsg::CancelAll => state.cancel_all(&myself),
            AsksMsg::History { reply_to } => drop(reply_to.send(state.history.clone())),
            AsksMsg::Plans { reply_to } => drop(reply_to.send(state.plans.clone())),
            AsksMsg::SubmitPlan { plan, reply_to } => state.submit_plan(*plan, reply_to),
            AsksMsg::Outer { caller, reply_to } => {
                let outer = state.outer(&myself, caller).and_then(|outer| {
                    spec::may_nest(Some(&outer), &state.args.settings.now().agent)?;
                    Ok(Box::new(outer))
                });
                let _ = reply_to.send(outer);
            }
            AsksMsg::Approvals { reply_to } => state.tell_approvals(reply_to),
            AsksMsg::Decide { id, decision, by, memory, reply_to } => {
                state.decide(&myself, id, decision, Some(by), Some(reply_to));
                drop(memory);
            }
            AsksMsg::Permit { question, reply_to } => state.want_permit(question, reply_to),
            AsksMsg::CallerEnded { cell, call } => state.caller_ended(cell, call),
            AsksMsg::Spent { ask, usage, steps } => state.spent_within(&myself, ask, usage, steps),
            AsksMsg::Lasted { asks, took } => state.lasted(&asks, took),
            AsksMsg::WaitsWithin { ask, within, approvals } => state.waits_within(ask, within, approvals),
            AsksMsg::Leave { reply_to } => state.leave(reply_to),
            AsksMsg::ModelText { ask, step, text, is_reasoning } => {
                state.count_delta(ask, &text);
                if state.current.as_ref().is_some_and(|current| current.ask == ask) {
                    state.args.log.append(EventBody::ModelText { ask, step, text, is_reasoning });
                }
            }
            AsksMsg::ModelRetries { ask, step, failure, pause } => {
                state.note_unanswered_tokens(ask);
                let retry_in_s = Some(pause.as_secs_f64());
                state.args.log.append(EventBody::ModelFailed { ask, step, failure, retry_in_s });
            }
            AsksMsg::ModelDone { ask, step, outcome } => state.model_done(&myself, ask, step, *outcome),
            AsksMsg::CellDone { ask, id, outcome } => state.cell_done(&myself, ask, id, *outcome),
            AsksMsg::ToolDone { ask, id, outcome } => state.tool_done(&myself, ask, id, outcome),
            AsksMsg::Begun { ask } => state.begun(&myself, ask),
            AsksMsg::AskEnded { ask, end } => {
                if let Some(view) = state.asks.get_mut(&ask) {
                    view.state = AskState::Done;
                    (view.steps, view.usage) = (end.steps, end.usage);
                    view.end = Some(*end);
                    state.keeps(ask);
                }
                state.next_ask(&myself);
            }
            AsksMsg::Tick => {
                state.is_ticking = false;
                state.tick(&myself);
            }
        }
        state.tick_later(&myself);
        Ok(())
    }
}

impl AsksState {
    /// Has deadlines checked again after a while, if something has one: the present ask, or an approval.
    fn tick_later(&mut self, myself: &AsksRef) {
        let has_deadline = self.current.is_some() || self.approvals.have_deadlines();
        if has_deadline && !self.leaving && !std::mem::replace(&mut self.is_ticking, true) {
            myself.send_after(TICK, || AsksMsg::Tick);
        }
    }
}

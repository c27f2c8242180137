//! The asks of a session: which there are, which one is being worked on, and what a person has to
//! decide. [`Machine`] says what has to be done; this actor does it, journals every input before
//! anything follows from it, and after a restart feeds the same inputs again.
//!
//! `wish` turns a request into an ask, `life` begins and recalls asks, `carry` carries effects out,
//! `approvals` asks people, `around` says what an ask within is bound to, `ledger` counts the tokens and steps that asks share, `recall` reads the journal,
//! `port` is what tools may do with the session.

mod approvals;
mod around;
mod carry;
mod ledger;
mod life;
mod messages;
mod port;
mod recall;
mod wish;

use ractor::{Actor, ActorProcessingErr, SpawnErr};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::calls;
use super::directory::Directory;
use super::llm::Models;
use super::session::{OwnSession, SessionMsg};
use super::supervisor::SupervisorRef;
use crate::agent::{Effect, Input, Machine};
use crate::config::Settings;
use crate::controls;
use crate::deaths::watched;
use crate::memory::{Charge, TINY_BYTES, Use};
use crate::protocol::ask::{Approval, AskNumber, AskSpec, AskState, AskView, Decision, PlanVersion};
use crate::protocol::chat::Message;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SessionId, SessionName};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::values::parsed_bytes;
use crate::quota;
use crate::store::EventLog;
use crate::tools::{PlanHistory, PlanTree, Registry};

use approvals::{CALLER_ENDED, Pending};
use around::Remains;
use ledger::{Above, Ledger, Left, Reserved};
use life::LastPrograms;
use messages::Answer;
use recall::{Memory, Recalled};

pub use messages::{AsksMsg, AsksRef, PermitWanted};
pub use port::{Calling, Port, PortCaller, ended};
pub use wish::{Outer, default_model};

/// Asks that wait for their turn.
const ASKS_WAITING: usize = 16;
/// Copies of what is said in an ask: as it is shown, as it is worked on, in the conversation.
const ASK_COPIES: u64 = 3;
/// Ended asks that are still shown.
const ASKS_SHOWN: usize = 100;
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);

pub struct AsksArgs {
    pub session: OwnSession,
    pub supervisor: SupervisorRef,
    pub directory: Directory,
    pub id: SessionId,
    pub name: SessionName,
    pub owner: u32,
    pub quotas: quota::Ledger,
    pub log: Arc<EventLog>,
    pub settings: Arc<Settings>,
    pub models: Models,
    /// The tools of the session, with those that clients lend it.
    pub tools: Arc<dyn Fn() -> Arc<Registry> + Send + Sync>,
    /// What `compute_with_python` gave last.
    pub last_result: Arc<Mutex<Option<String>>>,
    /// Packages that the image of the sandbox has.
    pub packages: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The image that the session asked for, if it did.
    pub image: Option<String>,
    /// Isolated by a container or a jail.
    pub contained: bool,
    /// What the journal has of the session, where it was there before.
    pub events: Vec<Event>,
}

pub struct AsksState {
    args: AsksArgs,
    asks: BTreeMap<AskNumber, AskView>,
    /// What each of them takes of its owner's part of the memory, with what is said in it.
    memory: BTreeMap<AskNumber, Charge>,
    newest: AskNumber,
    waiting: VecDeque<Waiting>,
    current: Option<Current>,
    /// What is left of the limits of asks that have ended, for code of theirs that runs on.
    remains: BTreeMap<AskNumber, Remains>,
    /// What was said in asks that have ended.
    history: Vec<Message>,
    plans: Vec<PlanVersion>,
    /// What they take of their owner's part of the memory.
    plans_memory: Charge,
    plan: PlanHistory,
    approvals: BTreeMap<String, Pending>,
    next_approval: u64,
    /// Decisions on calls of cells that were not made, and have not come again since the daemon was
    /// started anew.
    early: BTreeMap<(CellNumber, u64), Decision>,
    /// The daemon ends.
    leaving: bool,
    /// What it waits for.
    last_programs: Option<LastPrograms>,
}

/// An ask that waits for its turn.
struct Waiting {
    ask: AskNumber,
    spec: AskSpec,
    above: Option<Above>,
}

/// The ask that is being worked on.
struct Current {
    ask: AskNumber,
    spec: AskSpec,
    machine: Machine,
    /// What is under way, by the call's id; dropping it stops it.
    tasks: HashMap<String, Task>,
    model: Option<Task>,
    clock: Clock,
    tools: Arc<Registry>,
    ledger: Arc<Ledger>,
    /// For the request that is under way.
    reserved: Option<Reserved>,
    /// Tokens of that request, as estimated.
    request_tokens: u64,
    /// Of what was spent already, while the reply to it came.
    heard_tokens: u64,
    above: Option<Above>,
    /// What waits for a person in asks within it, by their sessions.
    waiting_within: BTreeMap<SessionId, Vec<Approval>>,
    /// Of an ask of before: what had been begun already.
    recalled: Option<Recalled>,
}

impl Current {
    fn new(waiting: Waiting, machine: Machine, clock: Clock, tools: Arc<Registry>) -> Self {
        let Waiting { ask, spec, above } = waiting;
        // A request that was under way when the daemon ended is sent again, and is the same step.
        let is_asked = matches!(machine.outstanding().first(), Some(Effect::AskModel { .. }));
        let steps = machine.steps_in_all().saturating_sub(u32::from(is_asked));
        let left = Left {
            tokens: spec.limits.tokens.saturating_sub(machine.usage().total()),
            steps: spec.limits.steps.saturating_sub(steps),
        };
        let around = above.as_ref().map(|above| above.ledgers.clone());
        let ledger = Ledger::new(left, around.unwrap_or_default());
        Self {
            ask,
            spec,
            machine,
            tasks: HashMap::new(),
            model: None,
            clock,
            tools,
            ledger,
            reserved: None,
            request_tokens: 0,
            heard_tokens: 0,
            above,
            waiting_within: BTreeMap::new(),
            recalled: None,
        }
    }
}

/// Ends with its owner.
struct Task {
    handle: tokio::task::AbortHandle,
    /// A program of the host runs for it.
    is_program: bool,
}

impl Task {
    /// What comes of the work is told; `lost` if it panicked. Nothing is if it was stopped.
    fn spawn(
        asks: &AsksRef,
        work: impl Future<Output = Option<AsksMsg>> + Send + 'static,
        lost: impl FnOnce(Problem) -> AsksMsg + Send + 'static,
    ) -> Self {
        let asks = asks.clone();
        let task = watched(work, move |told| {
            let panicked = || std::thread::panicking().then(|| lost(calls::lost()));
            if let Some(message) = told.unwrap_or_else(panicked) {
                let _ = asks.cast(message);
            }
        });
        Self { handle: task.abort_handle(), is_program: false }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// Wall time of an ask, without the time that it waited for a person.
struct Clock {
    spent: Duration,
    since: Option<Instant>,
}

impl Clock {
    fn running(spent: Duration) -> Self {
        Self { spent, since: Some(Instant::now()) }
    }

    fn spent(&self) -> Duration {
        self.spent + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn run(&mut self, on: bool) {
        self.spent = self.spent();
        self.since = on.then(Instant::now);
    }
}

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
        let memory = Memory::of(std::mem::take(&mut args.events));
        let mut plans_memory = args.quotas.memory(args.owner).open(Use::Conversations);
        plans_memory.grow_anyway(memory.plans.iter().map(|version| plan_bytes(&version.tree)).sum());
        let mut state = AsksState {
            plans_memory,
            plan: memory.plans.last().map(PlanHistory::after).unwrap_or_default(),
            plans: memory.plans,
            args,
            asks: BTreeMap::new(),
            memory: BTreeMap::new(),
            newest: 0,
            waiting: VecDeque::new(),
            current: None,
            remains: BTreeMap::new(),
            history: Vec::new(),
            approvals: BTreeMap::new(),
            next_approval: memory.approvals_wanted + 1,
            early: memory.early,
            leaving: false,
            last_programs: None,
        };
        state.recall(&myself, memory.asks, memory.approvals);
        let known: Vec<AskNumber> = state.asks.keys().copied().collect();
        for ask in known {
            state.keeps(ask);
        }
        for id in &memory.void {
            state.withdraw(id, CALLER_ENDED);
        }
        myself.send_interval(TICK, || AsksMsg::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: AsksRef,
        message: AsksMsg,
        state: &mut AsksState,
    ) -> Result<(), ActorProcessingErr> {
        crate::deaths::on_demand("asks");
        match message {
            AsksMsg::Start { new, outer, reply_to } => state.start(&myself, *new, outer, reply_to),
            AsksMsg::View { ask, reply_to } => drop(reply_to.send(state.view(ask))),
            AsksMsg::List { reply_to } => {
                let _ = reply_to.send(state.asks.keys().filter_map(|ask| state.view(*ask)).collect());
            }
            AsksMsg::Cancel { ask, reply_to } => state.cancel(&myself, ask, reply_to),
            AsksMsg::History { reply_to } => drop(reply_to.send(state.history.clone())),
            AsksMsg::Plans { reply_to } => drop(reply_to.send(state.plans.clone())),
            AsksMsg::SubmitPlan { plan, reply_to } => state.submit_plan(*plan, reply_to),
            AsksMsg::Outer { caller, reply_to } => {
                let outer = state.outer(&myself, caller).and_then(|outer| {
                    wish::may_nest(Some(&outer), &state.args.settings.agent)?;
                    Ok(Box::new(outer))
                });
                let _ = reply_to.send(outer);
            }
            AsksMsg::Approvals { reply_to } => state.tell_approvals(reply_to),
            AsksMsg::Decide { id, decision, by, reply_to } => {
                let _ = reply_to.send(state.decide(&myself, &id, decision, Some(by)));
            }
            AsksMsg::Permit { wanted, reply_to } => state.want_permit(wanted, reply_to),
            AsksMsg::PermitDropped { cell, call } => state.permit_dropped(cell, call),
            AsksMsg::CellEnded { cell } => state.cell_ended(cell),
            AsksMsg::Spent { ask, usage, steps } => state.spent_within(&myself, ask, usage, steps),
            AsksMsg::Lasted { asks, took } => state.lasted(&asks, took),
            AsksMsg::WaitsWithin { ask, within, approvals } => state.waits_within(ask, within, approvals),
            AsksMsg::Leave { reply_to } => state.leave(reply_to),
            AsksMsg::ModelText { ask, step, text } => {
                state.heard(ask, &text);
                if state.current.as_ref().is_some_and(|current| current.ask == ask) {
                    state.args.log.append(EventBody::ModelText { ask, step, text });
                }
            }
            AsksMsg::ModelRetries { ask, step, failure, pause } => {
                state.note_heard(ask);
                let retry_in_s = Some(pause.as_secs_f64());
                state.args.log.append(EventBody::ModelFailed { ask, step, failure, retry_in_s });
            }
            AsksMsg::ModelDone { ask, step, outcome } => state.model_done(&myself, ask, step, *outcome),
            AsksMsg::CellDone { ask, id, outcome } => state.cell_done(&myself, ask, id, *outcome),
            AsksMsg::ToolDone { ask, id, outcome } => state.tool_done(&myself, ask, id, outcome),
            AsksMsg::Begun { ask } => state.begun(&myself, ask),
            AsksMsg::Over { ask, end } => {
                if let Some(view) = state.asks.get_mut(&ask) {
                    view.state = AskState::Done;
                    (view.steps, view.usage) = (end.steps, end.usage);
                    view.end = Some(*end);
                    state.keeps(ask);
                }
                state.next_ask(&myself);
            }
            AsksMsg::Tick => state.tick(&myself),
        }
        Ok(())
    }
}

/// What a version of a plan takes: as values, and as text for people.
fn plan_bytes(tree: &serde_json::Value) -> u64 {
    if controls::holds("plan_memory_charge") { parsed_bytes(&tree.to_string()).saturating_mul(2) } else { 0 }
}

impl AsksState {
    /// What is known of an ask is kept in memory while it is shown, however large its answer is.
    fn keeps(&mut self, ask: AskNumber) {
        let Some(view) = self.asks.get(&ask) else { return };
        let text = serde_json::to_string(view).unwrap_or_default();
        let bytes = parsed_bytes(&text).saturating_mul(ASK_COPIES);
        if bytes <= TINY_BYTES {
            return;
        }
        let pool = self.args.quotas.memory(self.args.owner);
        let charge = self.memory.entry(ask).or_insert_with(|| pool.open(Use::Conversations));
        charge.grow_anyway(bytes.saturating_sub(charge.bytes()));
    }

    fn view(&self, ask: AskNumber) -> Option<AskView> {
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

    fn waits_for(&self, current: &Current) -> Vec<Approval> {
        let own = self.approvals.values().filter(|pending| pending.is_of(current.ask));
        own.map(Pending::approval).chain(current.waiting_within.values().flatten()).cloned().collect()
    }

    /// Answered when the end is in the journal.
    fn cancel(&mut self, myself: &AsksRef, ask: AskNumber, reply_to: Answer<AskView>) {
        if self.current.as_ref().is_some_and(|current| current.ask == ask) {
            self.take(myself, Input::Cancel);
        } else if let Some(place) = self.waiting.iter().position(|waiting| waiting.ask == ask)
            && let Some(Waiting { spec, .. }) = self.waiting.remove(place)
        {
            let tools = (self.args.tools)();
            let mut machine = self.machine(&spec, &tools, Vec::new());
            for end in machine.step(Input::Cancel).into_iter().filter_map(Effect::into_end) {
                self.finish(myself, ask, end);
            }
        }
        let (asks, log) = (myself.clone(), Arc::clone(&self.args.log));
        tokio::spawn(async move {
            let _ = reply_to.send(ended(&asks, &log, ask, |_| {}).await);
        });
    }

    fn submit_plan(&mut self, plan: PlanTree, reply_to: Answer<PlanVersion>) {
        let language =
            self.current.as_ref().map_or(self.args.settings.agent.language, |now| now.spec.language);
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

    fn waits_within(&mut self, ask: AskNumber, within: SessionId, approvals: Vec<Approval>) {
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        if approvals.is_empty() {
            current.waiting_within.remove(&within);
        } else {
            current.waiting_within.insert(within, approvals);
        }
        let approvals = current.waiting_within.values().flatten().cloned().collect();
        self.args.log.append(EventBody::AskWaitsWithin { ask, approvals });
    }

    fn tick(&mut self, myself: &AsksRef) {
        if self.leaving {
            return;
        }
        self.decide_overdue(myself);
        let waits = self.current.as_ref().is_some_and(|current| !self.waits_for(current).is_empty());
        let Some(current) = &mut self.current else { return };
        current.clock.run(!waits);
        // An ask is activity, also while it waits for a person.
        let _ = self.args.session.cast(SessionMsg::Touch);
        if current.clock.spent().as_secs_f64() > current.spec.limits.seconds {
            self.take(myself, Input::TimeUp);
        }
    }
}

//! The asks of a session: which there are, which one is being worked on, and what a person has to
//! decide. [`Machine`] says what has to be done; this actor does it, journals every input before
//! anything follows from it, and after a restart feeds the same inputs again.
//!
//! `wish` turns a request into an ask, `carry` carries effects out, `approvals` asks people, `recall`
//! reads the journal, `port` is what tools may do with the session.

mod approvals;
mod carry;
mod port;
mod recall;
mod wish;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::llm::Models;
use super::session::{SessionMsg, SessionRef, events_of};
use super::supervisor::SupervisorRef;
use crate::agent::{Effect, Input, Machine};
use crate::config::Settings;
use crate::protocol::ask::{
    Approval, AskEnd, AskLimits, AskNumber, AskSpec, AskState, AskView, Decision, NewAsk, PlanVersion,
};
use crate::protocol::chat::{ChatReply, Message, ModelFailure, Usage};
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::ids::{CellNumber, SessionId, SessionName};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::ExecutionResult;
use crate::store::EventLog;
use crate::tools::{PlanHistory, PlanTree, Registry};

use approvals::Pending;
use recall::{Memory, Recalled};

pub use port::{Port, end_of};
pub use wish::{Outer, default_model};

/// Asks that wait for their turn.
const ASKS_WAITING: usize = 16;
/// Ended asks that are still shown.
const ASKS_SHOWN: usize = 100;
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);

pub type AsksRef = ActorRef<AsksMsg>;

type Answer<T> = RpcReplyPort<Result<T, Problem>>;

pub enum AsksMsg {
    /// Answered when the ask is in the journal.
    Start {
        new: Box<NewAsk>,
        /// The ask of whose cell or tool this one is.
        outer: Option<Box<Outer>>,
        reply_to: Answer<AskView>,
    },
    View {
        ask: AskNumber,
        reply_to: RpcReplyPort<Option<AskView>>,
    },
    List {
        reply_to: RpcReplyPort<Vec<AskView>>,
    },
    /// An ask that has ended stays as it is.
    Cancel {
        ask: AskNumber,
        reply_to: Answer<AskView>,
    },
    /// The conversation that the next ask continues.
    History {
        reply_to: RpcReplyPort<Vec<Message>>,
    },
    Plans {
        reply_to: RpcReplyPort<Vec<PlanVersion>>,
    },
    SubmitPlan {
        plan: Box<PlanTree>,
        reply_to: Answer<PlanVersion>,
    },
    /// What an ask within the present one is bound to; none if there is no present one.
    Outer {
        reply_to: Answer<Option<Box<Outer>>>,
    },
    Approvals {
        reply_to: RpcReplyPort<Vec<Approval>>,
    },
    Decide {
        id: String,
        decision: Decision,
        by: u32,
        reply_to: Answer<()>,
    },
    /// A tool call of a running cell has to be allowed. Answered with the decision.
    Permit {
        cell: CellNumber,
        call: u64,
        name: String,
        arguments: Map<String, Value>,
        reply_to: RpcReplyPort<Decision>,
    },
    /// The call that waited for it is gone.
    PermitDropped {
        cell: CellNumber,
        call: u64,
    },
    /// An ask within the present one used this many tokens.
    Spent {
        tokens: u64,
    },
    /// The daemon ends: the next one goes on from the journal, in which nothing may come of that.
    Leave,

    /// A piece of what the model says.
    ModelText {
        ask: AskNumber,
        step: u32,
        text: String,
    },
    /// A request failed and is sent again.
    ModelRetries {
        ask: AskNumber,
        step: u32,
        failure: ModelFailure,
        pause: Duration,
    },
    ModelDone {
        ask: AskNumber,
        step: u32,
        outcome: Box<Result<ChatReply, ModelFailure>>,
    },
    CellDone {
        ask: AskNumber,
        id: String,
        outcome: Box<Result<Arc<ExecutionResult>, Problem>>,
    },
    ToolDone {
        ask: AskNumber,
        id: String,
        outcome: ToolOutcome,
    },
    /// The start of an ask is in the journal.
    Begun {
        ask: AskNumber,
    },
    /// Its end is.
    Over {
        ask: AskNumber,
        end: Box<AskEnd>,
    },
    Tick,
}

pub struct AsksArgs {
    pub session: SessionRef,
    pub supervisor: SupervisorRef,
    pub id: SessionId,
    pub name: SessionName,
    pub owner: u32,
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
    /// There was a daemon before this one.
    pub restored: bool,
}

pub struct AsksState {
    args: AsksArgs,
    asks: BTreeMap<AskNumber, AskView>,
    newest: AskNumber,
    waiting: VecDeque<(AskNumber, AskSpec)>,
    current: Option<Current>,
    /// What was said in asks that have ended.
    history: Vec<Message>,
    plans: Vec<PlanVersion>,
    plan: PlanHistory,
    approvals: BTreeMap<String, Pending>,
    next_approval: u64,
    /// Decisions on calls of cells that have not come again since the daemon was started anew.
    early: BTreeMap<(CellNumber, u64), Decision>,
    /// The daemon ends.
    leaving: bool,
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
    /// Tokens that asks within it used.
    spent_within: u64,
    /// Of an ask of before: what had been begun already.
    recalled: Option<Recalled>,
}

impl Current {
    fn new(ask: AskNumber, spec: AskSpec, machine: Machine, clock: Clock, tools: Arc<Registry>) -> Self {
        let (tasks, model, spent_within, recalled) = (HashMap::new(), None, 0, None);
        Self { ask, spec, machine, tasks, model, clock, tools, spent_within, recalled }
    }
}

/// Ends with its owner.
struct Task(tokio::task::AbortHandle);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
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

    async fn pre_start(&self, myself: AsksRef, args: AsksArgs) -> Result<AsksState, ActorProcessingErr> {
        let memory = if args.restored { Memory::of(events_of(&args.log)) } else { Memory::default() };
        let mut state = AsksState {
            plan: memory.plans.last().map(PlanHistory::after).unwrap_or_default(),
            plans: memory.plans,
            args,
            asks: BTreeMap::new(),
            newest: 0,
            waiting: VecDeque::new(),
            current: None,
            history: Vec::new(),
            approvals: BTreeMap::new(),
            next_approval: memory.approvals_wanted + 1,
            early: BTreeMap::new(),
            leaving: false,
        };
        state.recall(&myself, memory.asks, memory.approvals);
        myself.send_interval(TICK, || AsksMsg::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: AsksRef,
        message: AsksMsg,
        state: &mut AsksState,
    ) -> Result<(), ActorProcessingErr> {
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
            AsksMsg::Outer { reply_to } => {
                let outer = state.outer().map(Box::new);
                let allowed = wish::inner_depth(outer.as_deref(), &state.args.settings.agent);
                let _ = reply_to.send(allowed.map(|_| outer));
            }
            AsksMsg::Approvals { reply_to } => drop(reply_to.send(state.pending_approvals())),
            AsksMsg::Decide { id, decision, by, reply_to } => {
                let _ = reply_to.send(state.decide(&myself, &id, decision, Some(by)));
            }
            AsksMsg::Permit { cell, call, name, arguments, reply_to } => {
                state.want_permit(cell, call, name, arguments, reply_to);
            }
            AsksMsg::PermitDropped { cell, call } => state.permit_dropped(cell, call),
            AsksMsg::Spent { tokens } => {
                if let Some(current) = &mut state.current {
                    current.spent_within = current.spent_within.saturating_add(tokens);
                }
            }
            AsksMsg::Leave => {
                state.leaving = true;
                state.current = None;
                state.waiting.clear();
            }
            AsksMsg::ModelText { ask, step, text } => {
                if state.current.as_ref().is_some_and(|current| current.ask == ask) {
                    state.args.log.append(EventBody::ModelText { ask, step, text });
                }
            }
            AsksMsg::ModelRetries { ask, step, failure, pause } => {
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
                }
                state.next_ask(&myself);
            }
            AsksMsg::Tick => state.tick(&myself),
        }
        Ok(())
    }
}

impl AsksState {
    fn start(&mut self, myself: &AsksRef, new: NewAsk, outer: Option<Box<Outer>>, reply_to: Answer<AskView>) {
        let admitted = self.admit(new, outer.as_deref());
        let spec = match admitted {
            Ok(spec) => spec,
            Err(problem) => {
                let _ = reply_to.send(Err(problem));
                return;
            }
        };
        self.newest += 1;
        let ask = self.newest;
        let view = AskView {
            ask,
            state: AskState::Queued,
            text: spec.text.clone(),
            model: spec.model.clone(),
            dialect: spec.dialect,
            steps: 0,
            usage: Usage::default(),
            events_after: self.args.log.newest(),
            end: None,
        };
        self.asks.insert(ask, view.clone());
        while self.asks.len() > ASKS_SHOWN + ASKS_WAITING {
            self.asks.pop_first();
        }
        if !spec.context.is_empty() {
            let _ = self.args.session.cast(SessionMsg::Seed(spec.context.clone()));
        }
        self.waiting.push_back((ask, spec.clone()));
        let asks = myself.clone();
        self.args.log.append_then(EventBody::AskStarted { ask, spec: Box::new(spec) }, None, move || {
            let _ = reply_to.send(Ok(view));
            let _ = asks.cast(AsksMsg::Begun { ask });
        });
    }

    fn admit(&self, new: NewAsk, outer: Option<&Outer>) -> Result<AskSpec, Problem> {
        if self.leaving {
            return Err(Problem::new(Code::ShuttingDown, "the daemon ends"));
        }
        if self.waiting.len() >= ASKS_WAITING {
            return Err(Problem::new(Code::Busy, format!("{ASKS_WAITING} asks wait already"))
                .hint("wait for one to end, or cancel one"));
        }
        let tools = (self.args.tools)();
        let around = wish::Circumstances {
            settings: &self.args.settings,
            tools: &tools,
            outer,
            contained: self.args.contained,
        };
        let spec = wish::resolve(new, &around)?;
        if let Some(variable) = self.args.models.missing_key(&spec.model) {
            return Err(Problem::new(
                Code::ModelFailed,
                format!("the model `{}` needs a key, and `{variable}` is not set for the daemon", spec.model),
            )
            .hint(format!(
                "start the daemon with `{variable}` in its environment, or set `key_variable` in `[model.{}]`",
                spec.model
            )));
        }
        wish::setup(&self.args.settings, &spec, &tools, Vec::new())
            .check(&spec)
            .map_err(|problem| Problem::new(Code::BadRequest, problem.to_string()))?;
        Ok(spec)
    }

    fn begun(&mut self, myself: &AsksRef, ask: AskNumber) {
        if self.waiting.iter().any(|(waiting, _)| *waiting == ask) {
            self.next_ask(myself);
        }
    }

    /// Takes up the next ask, if none is being worked on.
    fn next_ask(&mut self, myself: &AsksRef) {
        if self.current.is_some() {
            return;
        }
        let Some((ask, spec)) = self.waiting.pop_front() else { return };
        let tools = (self.args.tools)();
        let machine = self.machine(&spec, &tools, self.history.clone());
        let clock = Clock::running(Duration::ZERO);
        self.current = Some(Current::new(ask, spec, machine, clock, tools));
        self.take(myself, Input::Begin);
    }

    fn machine(&self, spec: &AskSpec, tools: &Registry, history: Vec<Message>) -> Machine {
        let setup = wish::setup(&self.args.settings, spec, tools, (self.args.packages)());
        Machine::new(spec.clone(), setup, history)
    }

    /// Goes through the asks of before. Those that ended leave their conversation; one that had not
    /// goes on from what it was waiting for.
    fn recall(
        &mut self,
        myself: &AsksRef,
        asks: BTreeMap<AskNumber, Recalled>,
        mut approvals: Vec<Approval>,
    ) {
        let tools = (self.args.tools)();
        let mut context = Map::new();
        for (ask, mut recalled) in asks {
            self.newest = self.newest.max(ask);
            context.extend(recalled.spec.context.clone());
            let mut view = recalled.view();
            let untouched = recalled.inputs.len() == 1 && recalled.end.is_none();
            if untouched && self.current.is_some() {
                self.asks.insert(ask, view);
                self.waiting.push_back((ask, recalled.spec));
                continue;
            }
            if recalled.end.is_some() && !recalled.worked {
                self.asks.insert(ask, view);
                continue;
            }
            let mut machine = self.machine(&recalled.spec, &tools, self.history.clone());
            let inputs = std::mem::take(&mut recalled.inputs);
            let effects: Vec<Effect> = inputs.into_iter().flat_map(|input| machine.step(input)).collect();
            (view.steps, view.usage) = (machine.steps(), machine.usage());
            self.asks.insert(ask, view);
            // The daemon may have ended between the input that ended the ask and its end.
            let unwritten = effects.into_iter().find_map(Effect::into_end).filter(|_| recalled.end.is_none());
            if recalled.end.is_some() || unwritten.is_some() {
                self.history = machine.into_history();
                if let Some(end) = unwritten {
                    approvals.retain(|approval| approval.ask != Some(ask));
                    self.finish(myself, ask, end);
                }
                continue;
            }
            let questions = approvals.iter().filter(|approval| approval.ask == Some(ask));
            let asked_at = questions.map(|approval| approval.asked_at.as_str()).min();
            let clock = Clock::running(recalled.spent(asked_at));
            let current = Current::new(ask, recalled.spec.clone(), machine, clock, Arc::clone(&tools));
            self.current = Some(Current { recalled: Some(recalled), ..current });
        }
        if !context.is_empty() {
            let _ = self.args.session.cast(SessionMsg::Seed(context));
        }
        self.recall_approvals(approvals);
        self.go_on(myself);
    }

    fn view(&self, ask: AskNumber) -> Option<AskView> {
        let mut view = self.asks.get(&ask)?.clone();
        if let Some(current) = self.current.as_ref().filter(|current| current.ask == ask) {
            (view.steps, view.usage) = (current.machine.steps(), current.machine.usage());
            view.state = if self.approvals.values().any(|pending| pending.is_of(ask)) {
                AskState::Waiting
            } else if current.model.is_some() {
                AskState::Thinking
            } else {
                AskState::Acting
            };
        }
        Some(view)
    }

    fn cancel(&mut self, myself: &AsksRef, ask: AskNumber, reply_to: Answer<AskView>) {
        if self.current.as_ref().is_some_and(|current| current.ask == ask) {
            self.take(myself, Input::Cancel);
        } else if let Some(place) = self.waiting.iter().position(|(waiting, _)| *waiting == ask)
            && let Some((_, spec)) = self.waiting.remove(place)
        {
            let tools = (self.args.tools)();
            let mut machine = self.machine(&spec, &tools, Vec::new());
            for end in machine.step(Input::Cancel).into_iter().filter_map(Effect::into_end) {
                self.finish(myself, ask, end);
            }
        }
        let _ = reply_to.send(
            self.view(ask).ok_or_else(|| Problem::new(Code::NoSuchAsk, format!("there is no ask {ask}"))),
        );
    }

    fn submit_plan(&mut self, plan: PlanTree, reply_to: Answer<PlanVersion>) {
        let language =
            self.current.as_ref().map_or(self.args.settings.agent.language, |now| now.spec.language);
        match self.plan.submit(plan, language) {
            Ok(version) => {
                self.plans.push(version.clone());
                let ask = self.current.as_ref().map(|current| current.ask);
                let event = EventBody::PlanChanged { ask, plan: Box::new(version.clone()) };
                self.args.log.append_then(event, None, move || drop(reply_to.send(Ok(version))));
            }
            Err(problems) => drop(reply_to.send(Err(Problem::new(Code::BadRequest, problems.join("; "))))),
        }
    }

    fn outer(&self) -> Option<Outer> {
        let current = self.current.as_ref()?;
        let limits = current.spec.limits;
        let used = current.machine.usage().total().saturating_add(current.spent_within);
        let left = AskLimits {
            steps: limits.steps.saturating_sub(current.machine.steps()).max(1),
            failures: limits.failures,
            tokens: limits.tokens.saturating_sub(used),
            seconds: (limits.seconds - current.clock.spent().as_secs_f64()).max(0.0),
        };
        Some(Outer { spec: current.spec.clone(), left })
    }

    fn tick(&mut self, myself: &AsksRef) {
        if self.leaving {
            return;
        }
        self.decide_overdue(myself);
        let Some(current) = &mut self.current else { return };
        let ask = current.ask;
        let waits = self.approvals.values().any(|pending| pending.is_of(ask));
        current.clock.run(!waits);
        // An ask is activity, also while it waits for a person.
        let _ = self.args.session.cast(SessionMsg::Touch);
        if current.clock.spent().as_secs_f64() > current.spec.limits.seconds {
            self.take(myself, Input::TimeUp);
        }
    }
}

impl Recalled {
    fn view(&self) -> AskView {
        AskView {
            ask: self.ask,
            state: if self.end.is_some() { AskState::Done } else { AskState::Queued },
            text: self.spec.text.clone(),
            model: self.spec.model.clone(),
            dialect: self.spec.dialect,
            steps: self.end.as_ref().map_or(0, |end| end.steps),
            usage: self.end.as_ref().map_or_else(Usage::default, |end| end.usage),
            events_after: self.events_after,
            end: self.end.clone(),
        }
    }
}

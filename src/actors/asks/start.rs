//! How an ask begins, how it is left to the next daemon, and how asks of an earlier daemon are resumed.

use ractor::RpcReplyPort;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::messages::{AsksMsg, AsksRef};
use super::spec::{self, Outer};
use super::state::{
    ASK_COPIES, ASKS_SHOWN, ASKS_WAITING, AsksState, Current, LastPrograms, QueuedAsk, Remains,
};
use crate::actors::calls::Reply;
use crate::actors::journal_charges::ROOM_TO_BEGIN_BYTES;
use crate::actors::session::messages::SessionMsg;
use crate::agent::{AskMachine, Effect, Input, most_schema_bytes, schema_bytes};
use crate::memory::{Charge, MemoryPurpose, NoRoom, TINY_BYTES};
use crate::protocol::api::ImagePackages;
use crate::protocol::ask::{AskEnd, AskNumber, AskOutcome, AskSpec, AskView, NewAsk};
use crate::protocol::chat::{Message, Usage};
use crate::protocol::clock::Moment;
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::values::parsed_bytes;
use crate::security_controls;
use crate::session::approvals::Approvals;
use crate::session::machine::Input as SessionInput;
use crate::session::restore::{RecalledAsk, queued_view};
use crate::store::Payment;
use crate::tools::Registry;

/// The message of an ask that cannot be resumed.
const STRAYED: &str = "the daemon was started anew, and the ask cannot go on from where it was: its tools or the configuration have changed";

impl AsksState {
    /// Lets host programs end and puts their answers into the journal, so that the ask resumes with them in
    /// the next daemon. All other work is started again there.
    pub(super) fn leave(&mut self, reply_to: RpcReplyPort<()>) {
        self.leaving = true;
        self.waiting.clear();
        if let Some(ask) = self.current.as_ref().map(|current| current.ask) {
            self.note_unanswered_tokens(ask);
        }
        let programs = self.current.take().map(|Current { ask, mut tasks, .. }| {
            tasks.retain(|_, task| task.is_program);
            (ask, tasks)
        });
        match programs {
            Some((ask, tasks)) if !tasks.is_empty() => {
                self.last_programs = Some(LastPrograms { ask, tasks, reply_to });
            }
            _ => drop(reply_to.send(())),
        }
    }

    pub(super) fn last_program_done(&mut self, ask: AskNumber, id: String, outcome: ToolOutcome) {
        let Some(mut last) = self.last_programs.take_if(|last| last.ask == ask) else { return };
        if last.tasks.remove(&id).is_some() {
            self.args.log.append(EventBody::AskToolAnswered { ask, id, outcome });
        }
        if last.tasks.is_empty() {
            let _ = last.reply_to.send(());
        } else {
            self.last_programs = Some(last);
        }
    }

    /// Reads the prompt for a new ask, if the configuration names one, and lets the ask start then.
    pub(super) fn read_prompt(
        &mut self,
        myself: &AsksRef,
        new: Box<NewAsk>,
        outer: Option<Box<Outer>>,
        memory: Option<Charge>,
        reply_to: Reply<AskView>,
    ) {
        let settings = self.args.settings.now();
        if settings.agent.prompt.is_none() {
            return self.start(myself, *new, outer, reply_to);
        }
        let (asks, owner) = (myself.clone(), self.args.owner);
        tokio::spawn(async move {
            match spec::read_prompt(&settings.agent, owner).await {
                Ok(prompt) => {
                    let _ = asks.cast(AsksMsg::PromptRead { prompt, new, outer, memory, reply_to });
                }
                Err(problem) => drop(reply_to.send(Err(problem))),
            }
        });
    }

    pub(super) fn start(
        &mut self,
        myself: &AsksRef,
        new: NewAsk,
        outer: Option<Box<Outer>>,
        reply_to: Reply<AskView>,
    ) {
        let ask = self.newest + 1;
        let (queued, started, paid, memory) = match self.admit_charged(ask, new, outer) {
            Ok(admitted) => admitted,
            Err(problem) => return drop(reply_to.send(Err(problem))),
        };
        self.memory.insert(ask, memory);
        self.newest = ask;
        let _ = self.args.session.cast(SessionMsg::Touch);
        let view = queued_view(ask, &queued.spec, self.args.log.newest());
        self.asks.insert(ask, view.clone());
        while self.asks.len() > ASKS_SHOWN + ASKS_WAITING {
            if let Some((oldest, _)) = self.asks.pop_first() {
                self.memory.remove(&oldest);
            }
        }
        self.waiting.push_back(queued);
        let asks = myself.clone();
        self.args.log.append_keyed_then(started, paid, None, move || {
            let _ = reply_to.send(Ok(view));
            let _ = asks.cast(AsksMsg::Begun { ask });
        });
    }

    /// Admits an ask and charges its event, its memory and the schema of its answer.
    fn admit_charged(
        &self,
        ask: AskNumber,
        new: NewAsk,
        outer: Option<Box<Outer>>,
    ) -> Result<(QueuedAsk, EventBody, Payment, Charge), Problem> {
        let spec = self.admit(new, outer.as_deref())?;
        let started = EventBody::AskStarted { ask, spec: Box::new(spec.clone()) };
        let log = &self.args.log;
        log.has_room(ROOM_TO_BEGIN_BYTES)?;
        let paid = log.pay_for(&started)?;
        let (memory, schema_memory) = (self.ask_in_memory(&started)?, self.schema_in_memory(&spec)?);
        let above = outer.and_then(|outer| outer.above);
        Ok((QueuedAsk { ask, spec, above, schema_memory }, started, paid, memory))
    }

    /// Charges the memory of an ask from its admission until it is no longer shown.
    fn ask_in_memory(&self, started: &EventBody) -> Result<Charge, NoRoom> {
        let text = serde_json::to_string(started).unwrap_or_default();
        let bytes = parsed_bytes(&text).saturating_mul(ASK_COPIES);
        let pool = self.args.quotas.memory(self.args.owner);
        if bytes > TINY_BYTES && security_controls::holds("ask_memory_charge") {
            pool.try_charge(MemoryPurpose::Conversations, bytes)
        } else {
            Ok(pool.open(MemoryPurpose::Conversations))
        }
    }

    /// Charges the compiled schema of an answer, before it is compiled.
    fn schema_in_memory(&self, spec: &AskSpec) -> Result<Charge, NoRoom> {
        let mut charge = self.args.quotas.memory(self.args.owner).open(MemoryPurpose::Schemas);
        if security_controls::holds("answer_schema_memory_charge") {
            charge.try_grow(most_schema_bytes(spec))?;
            charge.shrink_to(schema_bytes(spec));
        }
        Ok(charge)
    }

    /// Charges the schema of an ask of an earlier daemon, which had room for it, even if there is no room now.
    fn schema_in_memory_anyway(&self, spec: &AskSpec) -> Charge {
        self.args.quotas.memory(self.args.owner).charge_anyway(MemoryPurpose::Schemas, schema_bytes(spec))
    }

    pub(super) fn admit(&self, new: NewAsk, outer: Option<&Outer>) -> Result<AskSpec, Problem> {
        if self.leaving {
            return Err(Problem::new(Code::ShuttingDown, "the daemon ends"));
        }
        if self.is_removed {
            return Err(Problem::new(Code::NoSuchSession, "the session was removed"));
        }
        if self.waiting.len() >= ASKS_WAITING {
            return Err(Problem::new(Code::Busy, format!("{ASKS_WAITING} asks wait already")).hint(format!(
                "wait for one to end, or cancel one with `belljar interrupt {} --ask N`",
                self.args.name
            )));
        }
        let (tools, settings) = ((self.args.tools)(), self.args.settings.now());
        let around =
            spec::Circumstances { settings: &settings, tools: &tools, outer, contained: self.args.contained };
        let spec = spec::resolve(new, &around)?;
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
        spec::setup(&settings, &spec, &tools, ImagePackages::default(), self.prompt.clone())
            .check(&spec)
            .map_err(|problem| Problem::new(Code::BadRequest, problem.to_string()))?;
        Ok(spec)
    }

    pub(super) fn begun(&mut self, myself: &AsksRef, ask: AskNumber) {
        if self.waiting.iter().any(|waiting| waiting.ask == ask) {
            self.next_ask(myself);
        }
    }

    /// Takes up the next ask, if none is being worked on.
    pub(super) fn next_ask(&mut self, myself: &AsksRef) {
        if self.current.is_some() {
            return;
        }
        let Some(waiting) = self.waiting.pop_front() else { return };
        let tools = (self.args.tools)();
        let machine = self.machine(&waiting.spec, &tools, self.history.clone());
        // The values are set only at the ask's turn: the ask before it has its own values.
        self.seed(waiting.spec.context.clone(), true);
        self.current = Some(Current::new(waiting, machine, Duration::ZERO, tools));
        self.take(myself, Input::Begin);
    }

    fn seed(&self, values: Map<String, Value>, anew: bool) {
        if !values.is_empty() {
            let _ = self.args.session.cast(SessionMsg::Seed { values, anew });
        }
    }

    pub(super) fn machine(&self, spec: &AskSpec, tools: &Registry, history: Vec<Message>) -> AskMachine {
        let packages = (self.args.packages)();
        let setup = spec::setup(&self.args.settings.now(), spec, tools, packages, self.prompt.clone());
        AskMachine::new(spec.clone(), setup, history)
    }

    /// Replays the asks of earlier daemons. An ended ask leaves its conversation; an unended one resumes with
    /// the effects that it was waiting for.
    pub(super) fn recall(&mut self, myself: &AsksRef, asks: BTreeMap<AskNumber, RecalledAsk>) {
        if asks.values().any(|recalled| recalled.spec.depth > 0) {
            // The caller that created this session for an inner ask ended with the earlier daemon.
            self.leaving = true;
            self.approvals = Approvals::default();
            let _ = self.args.session.cast(SessionMsg::Remove { remover: None });
            return;
        }
        let tools = (self.args.tools)();
        for (ask, mut recalled) in asks {
            self.newest = self.newest.max(ask);
            let mut view = recalled.view();
            let untouched = recalled.inputs.len() == 1 && recalled.end.is_none();
            if untouched && self.current.is_some() {
                self.asks.insert(ask, view);
                let schema_memory = self.schema_in_memory_anyway(&recalled.spec);
                self.waiting.push_back(QueuedAsk { ask, spec: recalled.spec, above: None, schema_memory });
                continue;
            }
            if recalled.end.is_some() && !recalled.worked {
                self.asks.insert(ask, view);
                continue;
            }
            // For an ask that had begun, the values are only for later sandboxes: its cells may have changed
            // them in the present one.
            self.seed(recalled.spec.context.clone(), untouched);
            let mut machine = self.machine(&recalled.spec, &tools, self.history.clone());
            let begun = recalled.begun();
            let inputs = std::mem::take(&mut recalled.inputs);
            let mut effects: Vec<Effect> = Vec::new();
            let (mut used, mut steps) = (Usage::default(), 0);
            for input in inputs {
                match input {
                    // The ask has ended, but its code in the sandbox went on and spent more.
                    Input::SpentWithin { usage, steps: more } if machine.has_ended() => {
                        used += usage;
                        steps += more;
                    }
                    input => effects.extend(machine.step(input)),
                }
            }
            (view.steps, view.usage) = (machine.steps_in_all(), machine.usage());
            used += machine.usage();
            let steps = machine.steps_in_all().saturating_add(steps);
            self.keep_remains(
                ask,
                Remains::of(&recalled.spec, used, steps, recalled.work_time(Moment::now())),
            );
            self.asks.insert(ask, view);
            let wanted: BTreeSet<&str> = effects.iter().filter_map(Effect::id).collect();
            let strayed =
                machine.steps() < recalled.asked || begun.iter().any(|id| !wanted.contains(id.as_str()));
            // The daemon may have ended after the input that ended the ask was written, but before its end
            // was.
            let unwritten = effects.into_iter().find_map(Effect::into_end).filter(|_| recalled.end.is_none());
            if recalled.end.is_some() || unwritten.is_some() {
                self.keep_history(machine.into_history());
                if let Some(end) = unwritten {
                    let _ = self.args.session.cast(SessionMsg::Input(SessionInput::CancelCells(ask)));
                    self.finish(myself, ask, end);
                }
                continue;
            }
            if strayed {
                // The tools or the settings have changed, and the machine takes another path with them: it
                // would repeat work, or report finished work as never done.
                let end = AskEnd {
                    outcome: AskOutcome::Cancelled,
                    answer: None,
                    value: None,
                    message: Some(STRAYED.to_owned()),
                    steps: recalled.asked.max(machine.steps_in_all()),
                    usage: machine.usage(),
                    replies: machine.replies(),
                };
                self.keep_history(machine.into_history());
                let _ = self.args.session.cast(SessionMsg::Input(SessionInput::CancelCells(ask)));
                self.finish(myself, ask, end);
                continue;
            }
            let (spec, schema_memory) = (recalled.spec.clone(), self.schema_in_memory_anyway(&recalled.spec));
            let begun = QueuedAsk { ask, spec, above: None, schema_memory };
            self.remains.remove(&ask);
            let current = Current::new(begun, machine, recalled.work_time(Moment::now()), Arc::clone(&tools));
            *current.last_result.lock() = recalled.last_result.take();
            self.current = Some(Current { recalled: Some(recalled), ..current });
        }
        self.go_on(myself);
    }
}

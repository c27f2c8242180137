//! Carries out the effects that the machine requests, and feeds their results back to it. Every input is in
//! the journal before its effects take place: events are committed in the order in which they were appended,
//! and an effect outside the daemon waits until its own event is committed.

use std::sync::Arc;
use std::time::Duration;

use super::messages::{AsksMsg, AsksRef};
use super::shared_budget::{REPLY_TOKENS, Short};
use super::state::{AsksState, Task};
use crate::actors::journal_charges::ROOM_TO_BEGIN_BYTES;
use crate::actors::llm::{ChatProgress, PROGRESS_PIECES};
use crate::actors::results::result_of;
use crate::actors::session::messages::{CellRequest, SessionMsg};
use crate::agent::{Effect, Input, tokens_of_text};
use crate::protocol::ask::{AskEnd, AskNumber, AskOutcome, AskState, ENDED_WITH_SESSION};
use crate::protocol::chat::{ChatReply, ChatRequest, ModelFailure, ModelFailureKind, Usage};
use crate::protocol::clock::{self, Moment};
use crate::protocol::event::{CellOrigin, EventBody, ToolOutcome};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::session::machine::Input as SessionInput;
use crate::session::restore::CELL_REFUSED;
use crate::session::rules::CellRules;
use crate::store::{Durability, Payment};
use crate::tools::Caller;

/// The least time between two pieces of the model's streamed text.
const TEXT_EVERY: Duration = Duration::from_millis(50);

impl AsksState {
    /// Gives the machine of the present ask an input. The caller has put the input into the journal.
    pub(super) fn take(&mut self, myself: &AsksRef, input: Input) {
        if input.ends()
            && let Some(ask) = self.current.as_ref().map(|current| current.ask)
        {
            self.note_unanswered_tokens(ask);
        }
        let Some(current) = &mut self.current else { return };
        for effect in current.machine.step(input) {
            self.start_effect(myself, effect);
        }
    }

    /// Carries on after a restart: starts the effects that have no answer yet, unless they had been started
    /// already.
    pub(super) fn go_on(&mut self, myself: &AsksRef) {
        let Some(current) = &self.current else {
            self.next_ask(myself);
            return;
        };
        for effect in current.machine.outstanding() {
            self.resume_effect(myself, effect);
        }
    }

    /// Starts an effect that has no answer after a restart, or waits for what it started before.
    fn resume_effect(&mut self, myself: &AsksRef, effect: Effect) {
        let Some(current) = &self.current else { return };
        let ask = current.ask;
        let recalled = current.recalled.as_ref();
        match &effect {
            Effect::RunCell { id, .. } => {
                if let Some(cell) = recalled.and_then(|recalled| recalled.cells.get(id)).copied() {
                    self.await_cell(myself, id.clone(), cell);
                    return;
                }
            }
            Effect::CallTool { id, name, .. } => {
                if recalled.is_some_and(|recalled| recalled.called.contains(id)) {
                    // The call may have had its effect before the restart, so it is not repeated.
                    let failure = ToolFailure {
                        code: "outcome_unknown".into(),
                        message: format!(
                            "the daemon ended while `{name}` was being called; whether it had its effect is not known"
                        ),
                    };
                    self.tool_done(myself, ask, id.clone(), ToolOutcome::Failure(failure));
                    return;
                }
            }
            Effect::AskModel { .. } => {
                let note = "the daemon was started anew; the model is asked again".to_owned();
                self.args.log.append(EventBody::AskNoted { ask, note });
            }
            Effect::AskPerson { .. } | Effect::Note { .. } | Effect::Finish { .. } => {}
        }
        self.start_effect(myself, effect);
    }

    fn start_effect(&mut self, myself: &AsksRef, effect: Effect) {
        let Some(ask) = self.current.as_ref().map(|current| current.ask) else { return };
        match effect {
            Effect::AskModel { step, request, tokens } => {
                self.ask_model(myself, ask, step, request, tokens);
            }
            Effect::RunCell { id, code, purpose, timeout_s, restricted } => {
                self.run_cell(myself, CellOrigin { ask, id, purpose }, code, timeout_s, restricted);
            }
            Effect::CallTool { id, name, arguments } => self.call_tool(myself, ask, id, name, arguments),
            Effect::AskPerson { id, subject } => self.ask_person(id, subject),
            Effect::Note { text } => drop(self.args.log.append(EventBody::AskNoted { ask, note: text })),
            Effect::Finish { end } => self.finish_current(myself, end),
        }
    }

    fn ask_model(
        &mut self,
        myself: &AsksRef,
        ask: AskNumber,
        step: u32,
        mut request: ChatRequest,
        tokens: u64,
    ) {
        let Some(current) = &mut self.current else { return };
        let configured =
            self.args.settings.now().models.get(&current.spec.model).and_then(|model| model.max_tokens);
        let reply = configured.unwrap_or(REPLY_TOKENS);
        let reserved = match current.budget.reserve(tokens, reply) {
            Ok(reserved) => reserved,
            Err(Short::Tokens) => return self.take(myself, Input::OutOfTokens),
            Err(Short::Steps) => return self.take(myself, Input::OutOfSteps),
        };
        // For a model without a configured bound, the reserved reply size is a guess; the limit is all that
        // is left.
        request.reply_tokens = Some(reserved.reply.saturating_add(current.budget.left().tokens));
        current.reserved = Some(reserved);
        (current.request_tokens, current.counted_tokens) = (tokens, 0);
        self.args.log.append(EventBody::ModelAsked { ask, step });
        let asks = myself.clone();
        let tokens = self.args.quotas.may_spend(self.args.owner, clock::today());
        let tokens = tokens.map_err(|refusal| Problem::from(refusal).message_with_hint());
        // The reply and the events that follow from it go into the journal, so the journal needs room for
        // them.
        let check_room =
            || self.args.log.has_room(ROOM_TO_BEGIN_BYTES).map_err(|exceeded| exceeded.to_string());
        let pool = self.args.quotas.memory(self.args.owner);
        let mut memory = || current.keep_in_memory(&pool, &request).map_err(|no_room| no_room.sentence());
        if let Err(message) = tokens.and_then(|()| check_room()).and_then(|()| memory()) {
            let failure = ModelFailure { kind: ModelFailureKind::QuotaExceeded, message, attempts: 0 };
            let _ = asks.cast(AsksMsg::ModelDone { ask, step, outcome: Box::new(Err(failure)) });
            return;
        }
        let model = self.args.models.get(&current.spec.model);
        let work = async move {
            let outcome = match model {
                Some(model) => {
                    let (progress, mut pieces) = tokio::sync::mpsc::channel(PROGRESS_PIECES);
                    let work = model.chat(request, progress);
                    let teller = asks.clone();
                    let tell = async move {
                        let (mut reasoning, mut text) = (String::new(), String::new());
                        let mut last = tokio::time::Instant::now();
                        while let Some(piece) = pieces.recv().await {
                            // Pieces that have arrived meanwhile are sent together.
                            let mut next = Some(piece);
                            while let Some(piece) = next {
                                match piece {
                                    ChatProgress::Reasoning(more) => reasoning.push_str(&more),
                                    ChatProgress::Text(more) => text.push_str(&more),
                                    ChatProgress::Retries { failure, pause } => {
                                        reasoning.clear();
                                        text.clear();
                                        let retries = AsksMsg::ModelRetries { ask, step, failure, pause };
                                        let _ = teller.cast(retries);
                                    }
                                }
                                next = pieces.try_recv().ok();
                            }
                            if reasoning.is_empty() && text.is_empty() {
                                continue;
                            }
                            tokio::time::sleep_until(last + TEXT_EVERY).await;
                            last = tokio::time::Instant::now();
                            for (text, is_reasoning) in [(&mut reasoning, true), (&mut text, false)] {
                                let text = std::mem::take(text);
                                if !text.is_empty() {
                                    let _ = teller.cast(AsksMsg::ModelText { ask, step, text, is_reasoning });
                                }
                            }
                        }
                    };
                    let (outcome, ()) = tokio::join!(work, tell);
                    outcome
                }
                None => Err(ModelFailure {
                    kind: ModelFailureKind::InvalidRequest,
                    message: "the model is not configured any more".into(),
                    attempts: 0,
                }),
            };
            Some(AsksMsg::ModelDone { ask, step, outcome: Box::new(outcome) })
        };
        current.model = Some(Task::spawn(myself, work, move |problem| {
            let (kind, message) = (ModelFailureKind::Interrupted, problem.message);
            let failure = ModelFailure { kind, message, attempts: 0 };
            AsksMsg::ModelDone { ask, step, outcome: Box::new(Err(failure)) }
        }));
    }

    /// Spends tokens as the text arrives: a provider also charges for a reply that breaks off or is
    /// cancelled.
    pub(super) fn count_delta(&mut self, ask: AskNumber, text: &str) {
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        let request = if current.counted_tokens == 0 { current.request_tokens } else { 0 };
        let tokens = request + tokens_of_text(text);
        current.counted_tokens += tokens;
        self.args.quotas.spend(self.args.owner, clock::today(), self.args.name.as_str(), tokens);
    }

    /// Counts the tokens of a request that gets no reply, and puts them into the journal.
    pub(super) fn note_unanswered_tokens(&mut self, ask: AskNumber) {
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        let (step, tokens) = (current.machine.steps(), std::mem::take(&mut current.counted_tokens));
        if tokens > 0 {
            self.args.log.append(EventBody::ModelSpent { ask, step, tokens });
            // The machine gives no effects for this input.
            let _ = current.machine.step(Input::Unanswered { tokens });
        }
    }

    pub(super) fn model_done(
        &mut self,
        myself: &AsksRef,
        ask: AskNumber,
        step: u32,
        mut outcome: Result<ChatReply, ModelFailure>,
    ) {
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        current.model = None;
        let cost = outcome.as_ref().map_or_else(|_| Usage::default(), |reply| current.machine.cost(reply));
        if let Ok(reply) = &mut outcome {
            // Recorded, so that the next daemon counts the same tokens.
            reply.usage = Some(cost);
        }
        let counted_tokens = current.counted_tokens;
        if let Some(reserved) = current.reserved.take() {
            reserved.spent(cost.total().max(counted_tokens));
        }
        let more = cost.total().saturating_sub(counted_tokens);
        self.args.quotas.spend(self.args.owner, clock::today(), self.args.name.as_str(), more);
        if let Some(above) = &current.above {
            above.tell(cost, 1);
        }
        let paid_reply = outcome.and_then(|reply| Ok((self.pay_for_reply(ask, step, &reply)?, reply)));
        match paid_reply {
            Ok(((paid, event), reply)) => {
                // The reply names its cost itself.
                if let Some(current) = &mut self.current {
                    current.counted_tokens = 0;
                }
                self.args.log.append_keyed_then(event, paid, None, || {});
                self.take(myself, Input::ModelReplied { step, reply: Box::new(reply) });
            }
            Err(failure) => {
                self.note_unanswered_tokens(ask);
                let failed = failure.clone();
                self.args.log.append(EventBody::ModelFailed { ask, step, failure: failed, retry_in_s: None });
                self.take(myself, Input::ModelFailed { step, failure });
            }
        }
    }

    /// Charges a reply before it is written, and checks for room for the events that follow: its calls, or
    /// the answer.
    fn pay_for_reply(
        &self,
        ask: AskNumber,
        step: u32,
        reply: &ChatReply,
    ) -> Result<(Payment, EventBody), ModelFailure> {
        let event = EventBody::ModelReplied { ask, step, reply: Box::new(reply.clone()) };
        let paid = self.args.log.pay_for(&event).and_then(|paid| {
            self.args.log.has_room(paid.bytes())?;
            Ok(paid)
        });
        let paid = paid.map_err(|exceeded| {
            let message = format!("the model's reply cannot be kept: {exceeded}");
            ModelFailure { kind: ModelFailureKind::QuotaExceeded, message, attempts: 1 }
        })?;
        Ok((paid, event))
    }

    fn run_cell(
        &mut self,
        myself: &AsksRef,
        origin: CellOrigin,
        code: String,
        timeout_s: f64,
        restricted: bool,
    ) {
        let Some(current) = &mut self.current else { return };
        let (ask, id) = (origin.ask, origin.id.clone());
        let timeout =
            Duration::try_from_secs_f64(timeout_s).unwrap_or(self.args.settings.now().cells.timeout);
        let request = CellRequest {
            origin: Some(origin),
            rules: Some(Arc::new(CellRules { restricted, ..CellRules::of_ask(&current.spec) })),
            ..CellRequest::new(code, Mode::Main, timeout)
        };
        let session = self.args.session.clone();
        let task = task_of_cell(myself, ask, &id, async move { session.run(request).await });
        current.tasks.insert(id, task);
    }

    /// Waits for a cell that an earlier daemon queued: the session resumes the cell by itself.
    fn await_cell(&mut self, myself: &AsksRef, id: String, cell: CellNumber) {
        let Some(current) = &mut self.current else { return };
        let (ask, log) = (current.ask, Arc::clone(&self.args.log));
        let session = self.args.session.any_generation().clone();
        let result = async move { result_of(&session, &log, cell).await };
        let task = task_of_cell(myself, ask, &id, result);
        current.tasks.insert(id, task);
    }

    pub(super) fn cell_done(
        &mut self,
        myself: &AsksRef,
        ask: AskNumber,
        id: String,
        outcome: Result<Arc<ExecutionResult>, Problem>,
    ) {
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        if current.tasks.remove(&id).is_none() {
            return;
        }
        let input = match outcome {
            Ok(result) => Input::CellFinished { id, result: Box::new((*result).clone()) },
            Err(problem) if is_sandbox_trouble(&problem) => {
                Input::SandboxFailed { message: problem.message_with_hint() }
            }
            Err(problem) => {
                let message = problem.message_with_hint();
                let failure = ToolFailure { code: CELL_REFUSED.into(), message: message.clone() };
                let outcome = ToolOutcome::Failure(failure);
                self.args.log.append(EventBody::AskToolAnswered { ask, id: id.clone(), outcome });
                Input::CellRefused { id, message }
            }
        };
        self.take(myself, input);
    }

    fn call_tool(
        &mut self,
        myself: &AsksRef,
        ask: AskNumber,
        id: String,
        name: String,
        arguments: serde_json::Map<String, serde_json::Value>,
    ) {
        let port = self.port(myself);
        let Some(current) = &mut self.current else { return };
        let context =
            crate::tools::Context::new(serde_json::json!({ "session": self.args.name })).with_port(port);
        let tools = Arc::clone(&current.tools);
        let is_program = tools.definition(&name).is_some_and(|definition| definition.program);
        let (call_id, lost_id) = (id.clone(), id.clone());
        let (committed, is_written) = tokio::sync::oneshot::channel();
        let called = EventBody::AskToolCalled {
            ask,
            id: id.clone(),
            name: name.clone(),
            arguments: arguments.clone(),
        };
        // The event is on the disk before the tool is called, so that it survives a power failure as well.
        self.args.log.append_intent_then(Durability::Full, called, None, None, move || {
            let _ = committed.send(());
        });
        let work = async move {
            is_written.await.ok()?;
            let outcome = match tools.call(&name, arguments, Caller::Model, context) {
                Ok(work) => work.await,
                Err(failure) => Err(failure),
            };
            let outcome = match outcome {
                Ok(output) => ToolOutcome::Value(output.into_value()),
                Err(failure) => ToolOutcome::Failure(failure),
            };
            Some(AsksMsg::ToolDone { ask, id: call_id, outcome })
        };
        let mut task = Task::spawn(myself, work, move |problem| {
            let failure = ToolFailure { code: "failed".into(), message: problem.message };
            AsksMsg::ToolDone { ask, id: lost_id, outcome: ToolOutcome::Failure(failure) }
        });
        task.is_program = is_program;
        current.tasks.insert(id, task);
    }

    pub(super) fn tool_done(&mut self, myself: &AsksRef, ask: AskNumber, id: String, outcome: ToolOutcome) {
        if self.leaving {
            return self.last_program_done(ask, id, outcome);
        }
        let Some(current) = self.current.as_mut().filter(|current| current.ask == ask) else { return };
        current.tasks.remove(&id);
        let answered = EventBody::AskToolAnswered { ask, id: id.clone(), outcome: outcome.clone() };
        self.args.log.append(answered);
        self.take(myself, Input::ToolFinished { id, outcome });
    }

    fn finish_current(&mut self, myself: &AsksRef, end: AskEnd) {
        let Some(current) = self.current.take() else { return };
        self.current_ended(&current);
        let (ask, cell_runs) = (current.ask, current.machine_ran_cell());
        self.keep_history(current.machine.into_history());
        if cell_runs {
            let _ = self.args.session.cast(SessionMsg::Input(SessionInput::CancelCells(ask)));
        }
        self.withdraw_all_of(ask);
        // The end becomes visible only when it is in the journal.
        if let Some(view) = self.asks.get_mut(&ask) {
            (view.state, view.steps, view.usage) = (AskState::Acting, end.steps, end.usage);
        }
        self.finish(myself, ask, end);
    }

    pub(super) fn finish(&mut self, myself: &AsksRef, ask: AskNumber, mut end: AskEnd) {
        if self.is_removed && end.outcome == AskOutcome::Cancelled {
            end.message.get_or_insert_with(|| ENDED_WITH_SESSION.to_owned());
        }
        let end = Box::new(end);
        let asks = myself.clone();
        let finished = EventBody::AskFinished { ask, end: end.clone() };
        let _ = self.approvals.take(&finished, Moment::now());
        self.args.log.append_then(finished, None, move || {
            let _ = asks.cast(AsksMsg::AskEnded { ask, end });
        });
    }
}

fn task_of_cell(
    asks: &AsksRef,
    ask: AskNumber,
    id: &str,
    result: impl Future<Output = Result<Arc<ExecutionResult>, Problem>> + Send + 'static,
) -> Task {
    let (done, lost) = (id.to_owned(), id.to_owned());
    let cell_done = move |id, outcome| AsksMsg::CellDone { ask, id, outcome: Box::new(outcome) };
    Task::spawn(asks, async move { Some(cell_done(done, result.await)) }, move |problem| {
        cell_done(lost, Err(problem))
    })
}

fn is_sandbox_trouble(problem: &Problem) -> bool {
    matches!(
        problem.code,
        Code::SandboxFailed
            | Code::EngineUnavailable
            | Code::ImageMissing
            | Code::ImageArchitecture
            | Code::PreloadFailed
            | Code::PolicyViolation
            | Code::NoSuchSession
            | Code::ShuttingDown
            | Code::Storage
    )
}

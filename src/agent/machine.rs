//! Leads one ask from its text to its end.
//!
//! The machine is deterministic: the same spec, setup, history and inputs give the same effects. So an actor
//! that journals inputs can feed them again after a restart of the daemon, drop the effects, and carry on
//! with those that [`AskMachine::outstanding`] lists.

mod answers;

use std::hash::{DefaultHasher, Hash, Hasher as _};

use super::answer;
use super::arguments::{Toolbox, Work};
use super::conversation::Conversation;
use super::dialect::{Call, CallInput, DialectContext, Format, Intent, ParsedReply, Speech, speech};
use super::effects::{Effect, Input, Setup};
use super::failures::{Failures, Repetition};
use super::ids::Ids;
use super::pictures::ShownPictures;
use super::prompts;
use super::turn::{AnsweredCall, CallOrigin, CallVerdict, Rules, Turn};
use super::words::Words;
use crate::protocol::ask::{AskEnd, AskOutcome, AskSpec, ReplyCount};
use crate::protocol::chat::{
    ChatReply, ChatRequest, Finish, Message, ModelFailure, ModelFailureKind, Role, Usage,
};
use crate::protocol::text::{brief, clipped, visible_line};
use crate::protocol::tool_names::{CELL_TOOL, PLAN_TOOL};
use crate::schema::Checker;

/// The most characters of a call that was not made, and of its name, in a note.
const NOTE_CHARS: usize = 400;
const NAME_CHARS: usize = 64;

pub struct AskMachine {
    spec: AskSpec,
    setup: Setup,
    words: Words,
    speech: &'static dyn Speech,
    toolbox: Toolbox,
    /// Checks a typed answer.
    answer: Option<Checker>,
    format: Format,
    conversation: Conversation,
    /// The pictures of the turn so far.
    shown: ShownPictures,
    ids: Ids,
    phase: Phase,
    steps: u32,
    /// The requests of inner asks, which count for this one.
    steps_within: u32,
    usage: Usage,
    failures: Failures,
    python: bool,
    malformed: u32,
    last_reply_text: Option<String>,
    replies: ReplyCount,
    /// Whether the last reply is known not to be valid.
    is_spoilt: bool,
}

enum Phase {
    New,
    Thinking { request: ChatRequest },
    Acting { turn: Turn },
    Ended,
}

impl AskMachine {
    /// `history` is the result of [`AskMachine::into_history`] of the previous ask, or empty.
    pub fn new(spec: AskSpec, setup: Setup, history: Vec<Message>) -> Self {
        let words = Words(spec.language);
        let scene = DialectContext { spec: &spec, setup: &setup, words };
        let speech = speech(spec.dialect);
        let format = speech.format(scene);
        let prompt = prompts::system(scene);
        let toolbox = Toolbox::new(setup.allowed(&spec));
        let answer = spec.schema.as_ref().and_then(|schema| Checker::new(schema).ok());
        let earlier = if spec.fresh { Vec::new() } else { history };
        Self {
            words,
            speech,
            toolbox,
            answer,
            ids: Ids::of(&earlier),
            conversation: Conversation::new(prompt, earlier, format.tokens(), setup.context_tokens, words),
            format,
            shown: ShownPictures::default(),
            phase: Phase::New,
            steps: 0,
            steps_within: 0,
            usage: Usage::default(),
            failures: Failures::default(),
            python: setup.python,
            malformed: 0,
            last_reply_text: None,
            replies: ReplyCount::default(),
            is_spoilt: false,
            spec,
            setup,
        }
    }

    /// Takes an input and gives the effects to carry out, in this order.
    pub fn step(&mut self, input: Input) -> Vec<Effect> {
        if self.has_ended() {
            return Vec::new();
        }
        match input {
            Input::Begin => self.begin(),
            Input::ModelReplied { step, reply } => match self.phase {
                Phase::Thinking { .. } if step == self.steps => self.replied(&reply),
                _ => Vec::new(),
            },
            Input::ModelFailed { step, failure } => match self.phase {
                Phase::Thinking { .. } if step == self.steps => self.failed(failure),
                _ => Vec::new(),
            },
            Input::CellFinished { id, result } => self.cell_finished(&id, &result),
            Input::CellRefused { id, message } => self.cell_refused(&id, &message),
            Input::ToolFinished { id, outcome } => self.tool_finished(&id, outcome),
            Input::Decided { id, decision } => self.decided(&id, decision),
            Input::SandboxFailed { message } => self.finish(AskOutcome::SandboxFailed, None, Some(message)),
            Input::SpentWithin { usage, steps } => {
                self.usage += usage;
                self.steps_within = self.steps_within.saturating_add(steps);
                Vec::new()
            }
            Input::Unanswered { tokens } => {
                let prompt_tokens = self.conversation.tokens().min(tokens);
                self.usage += Usage { prompt_tokens, completion_tokens: tokens - prompt_tokens };
                Vec::new()
            }
            Input::OutOfTokens => {
                let message = "the next request would exceed the tokens that this ask shares with those around and within it";
                self.finish(AskOutcome::TokenLimit, None, Some(message.to_owned()))
            }
            Input::OutOfSteps => {
                let message = "the requests to the model that this ask shares with those around and within it are used up";
                self.finish(AskOutcome::StepLimit, None, Some(message.to_owned()))
            }
            Input::Cancel => self.finish(AskOutcome::Cancelled, None, None),
            Input::TimeUp => {
                let message = format!("the ask took longer than {} seconds", self.spec.limits.seconds);
                self.finish(AskOutcome::TimeLimit, None, Some(message))
            }
        }
    }

    /// The effects that wait for their answer, in the order in which they were given.
    pub fn outstanding(&self) -> Vec<Effect> {
        match &self.phase {
            Phase::New | Phase::Ended => Vec::new(),
            Phase::Thinking { request } => {
                let (step, tokens) = (self.steps, self.conversation.tokens());
                vec![Effect::AskModel { step, request: request.clone(), tokens }]
            }
            Phase::Acting { turn } => turn.outstanding(&Rules::of(&self.spec, &self.setup)),
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The ask's own requests to the model so far.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The requests to the model, including those of inner asks.
    pub fn steps_in_all(&self) -> u32 {
        self.steps.saturating_add(self.steps_within)
    }

    /// The tokens used so far, including those of inner asks.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    pub fn replies(&self) -> ReplyCount {
        self.replies
    }

    /// The last reply had not the agreed form.
    fn spoil(&mut self) {
        if !std::mem::replace(&mut self.is_spoilt, true) {
            self.replies.valid = self.replies.valid.saturating_sub(1);
        }
    }

    /// The cost of the present request and this reply.
    pub fn cost(&self, reply: &ChatReply) -> Usage {
        self.conversation.cost(reply)
    }

    /// The conversation for the next ask of the session, valid at any stage of this ask.
    pub fn into_history(mut self) -> Vec<Message> {
        self.close_turn();
        self.conversation.into_messages()
    }

    fn begin(&mut self) -> Vec<Effect> {
        if !matches!(self.phase, Phase::New) {
            return Vec::new();
        }
        if let Err(problem) = self.setup.check(&self.spec) {
            return self.finish(AskOutcome::Malformed, None, Some(problem.to_string()));
        }
        let mut effects = noted(self.conversation.repair());
        self.conversation.push_ask_text(self.spec.text.clone());
        effects.extend(self.ask_model());
        effects
    }

    /// Asks the model, unless a limit is reached; all limits are checked here.
    fn ask_model(&mut self) -> Vec<Effect> {
        if self.steps_in_all() >= self.spec.limits.steps {
            let message = format!("it may make at most {} requests to the model", self.spec.limits.steps);
            return self.finish(AskOutcome::StepLimit, None, Some(message));
        }
        let mut effects = noted(self.conversation.prepare());
        let limit = self.spec.limits.tokens;
        let tokens = self.conversation.tokens();
        if self.usage.total().saturating_add(tokens) > limit {
            let used = self.usage.total();
            let message =
                format!("the next request takes about {tokens} tokens; {used} of at most {limit} are used");
            effects.extend(self.finish(AskOutcome::TokenLimit, None, Some(message)));
            return effects;
        }
        let messages = self.conversation.messages(self.speech.has_calls() && self.setup.model_tools);
        let Format { tools, answer } = self.format.clone();
        let request = ChatRequest { messages, tools, answer, reply_tokens: None };
        self.steps += 1;
        self.phase = Phase::Thinking { request: request.clone() };
        effects.push(Effect::AskModel { step: self.steps, request, tokens });
        effects
    }

    fn replied(&mut self, reply: &ChatReply) -> Vec<Effect> {
        self.replies.all = self.replies.all.saturating_add(1);
        self.replies.valid = self.replies.valid.saturating_add(1);
        self.is_spoilt = false;
        self.usage += self.conversation.count(reply);
        if let Some(refusal) = reply.refusal.as_ref().filter(|refusal| !refusal.is_empty()) {
            self.last_reply_text = Some(refusal.clone());
            return self.finish(AskOutcome::ModelFailed, None, Some("the model refused".to_owned()));
        }
        if reply.finish == Finish::ContentFilter {
            let message = "the provider's filter withheld the reply".to_owned();
            return self.finish(AskOutcome::ModelFailed, None, Some(message));
        }
        if !reply.message.content.is_empty() {
            self.last_reply_text = Some(reply.message.content.clone());
        }
        let ParsedReply { message, intent, after } = self.speech.parse(reply, self.steps, self.scene());
        match intent {
            Intent::Answer { text, value } => self.final_answer(message, text, value.as_ref()),
            Intent::Calls(calls) => self.act(message, after, calls),
            Intent::Malformed(why) => {
                let contract = prompts::contract(self.scene());
                let correction = self.words.malformed(&why, &contract);
                self.correct(message, correction, &why)
            }
            Intent::Correct(correction) => {
                let why = correction.clone();
                self.correct(message, correction, &why)
            }
        }
    }

    fn final_answer(
        &mut self,
        message: Message,
        text: String,
        carried: Option<&serde_json::Value>,
    ) -> Vec<Effect> {
        let Some(checker) = &self.answer else {
            self.conversation.push(message);
            return self.finish(AskOutcome::Answered, Some((text, None)), None);
        };
        match answer::typed_answer(checker, &text, carried, self.words) {
            Ok(value) => {
                self.conversation.push(message);
                self.finish(AskOutcome::Answered, Some((text, Some(value))), None)
            }
            Err(problems) => {
                let why = format!("the answer does not fit its schema: {}", problems.join("; "));
                self.correct(message, self.words.answer_unfit(&problems), &why)
            }
        }
    }

    /// Tells the model what is wrong with its reply, a bounded number of times.
    fn correct(&mut self, message: Message, correction: String, why: &str) -> Vec<Effect> {
        self.spoil();
        self.conversation.push(message);
        self.malformed += 1;
        if self.malformed > self.setup.malformed {
            let message =
                format!("{} replies in a row could not be used; the last one: {why}", self.malformed);
            return self.finish(AskOutcome::Malformed, None, Some(message));
        }
        self.conversation.push(Message::new(Role::User, correction));
        let mut effects = vec![Effect::Note { text: format!("the reply could not be used: {why}") }];
        effects.extend(self.ask_model());
        effects
    }

    fn act(&mut self, message: Message, after: Option<String>, calls: Vec<Call>) -> Vec<Effect> {
        self.malformed = 0;
        let mut turn = Turn::new(message, after);
        let mut effects = Vec::new();
        for Call { id, name, input, legacy } in calls {
            let tool = match &input {
                CallInput::Call(_) => self.toolbox.name_of(&name),
                CallInput::Cell(_) | CallInput::Impossible(_) => Some(CELL_TOOL.to_owned()),
            };
            let written = fingerprint(&(&name, &input));
            let mut origin =
                CallOrigin { id: self.ids.unique(&id), name, tool, legacy, fingerprint: written };
            let work = match input {
                CallInput::Call(arguments) => self.toolbox.resolve(&origin.name, &arguments, self.words),
                CallInput::Cell(code) if self.toolbox.has_cells() => {
                    Ok(Work::Cell { code, timeout_s: None, purpose: None })
                }
                CallInput::Cell(_) => Err(self.words.no_python()),
                CallInput::Impossible(why) => Err(why),
            };
            if let Ok(work) = &work {
                origin.fingerprint = fingerprint(&work.without_purpose());
            }
            match work {
                Ok(work) if work.is_python() && !self.python => {
                    let answer = self.words.python_off();
                    effects.push(not_made(&origin.name, &answer));
                    turn.add_answered(origin, answer, CallVerdict::Neither);
                }
                Ok(work) => turn.add(origin, work),
                Err(answer) => {
                    self.spoil();
                    effects.push(not_made(&origin.name, &answer));
                    turn.add_answered(origin, answer, CallVerdict::Bad);
                }
            }
        }
        effects.extend(turn.advance(&Rules::of(&self.spec, &self.setup)));
        self.phase = Phase::Acting { turn };
        self.go_on(effects)
    }

    /// Ends the turn if all its calls are answered.
    fn go_on(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        let Phase::Acting { turn } = &self.phase else { return effects };
        if turn.is_complete() {
            effects.extend(self.end_turn());
        }
        effects
    }

    fn answered(&mut self, id: &str, text: String, verdict: CallVerdict) -> Vec<Effect> {
        let rules = Rules::of(&self.spec, &self.setup);
        let Phase::Acting { turn } = &mut self.phase else { return Vec::new() };
        turn.answer(id, text, verdict);
        let effects = turn.advance(&rules);
        self.go_on(effects)
    }

    fn end_turn(&mut self) -> Vec<Effect> {
        let answered = self.close_turn();
        self.failures.take(&answered);
        let (tool, count) = self.failures.most(&answered);
        let tool = tool.map(str::to_owned);
        if count > 0 && count >= self.spec.limits.failures {
            let message = failed_in_a_row(tool.as_deref(), count);
            return self.finish(AskOutcome::FailureLimit, None, Some(message));
        }
        if self.failures.repetition() == Repetition::TooOften {
            let message = "the same step failed three times, though the model was told so".to_owned();
            return self.finish(AskOutcome::RepeatedFailure, None, Some(message));
        }
        let mut effects = Vec::new();
        if answered.iter().any(|answer| answer.verdict == CallVerdict::Bad) {
            effects.extend(self.advise(tool.as_deref(), count));
        }
        effects.extend(self.ask_model());
        effects
    }

    /// Adds advice for the model to the last result when failures repeat. `count` is how often `tool` failed.
    fn advise(&mut self, tool: Option<&str>, count: u32) -> Option<Effect> {
        let limit = self.spec.limits.failures;
        let degrade = self.setup.degrade_after;
        let of_python = self.failures.of_python();
        let (advice, note) = if self.python && degrade > 0 && of_python >= degrade {
            self.python = false;
            (
                self.words.python_given_up(of_python),
                format!("Python failed {of_python} times in a row and is off for the rest of the ask"),
            )
        } else if count > 0 && count.saturating_add(1) == limit {
            let plans = self.setup.told(&self.spec).any(|tool| tool.name == PLAN_TOOL);
            let advice = self.words.skip(plans);
            (advice, format!("{}; one more ends the ask", failed_in_a_row(tool, count)))
        } else if self.failures.repetition() == Repetition::Again {
            (self.words.repeated(), "the model repeated a step that had failed".to_owned())
        } else if count > 0 && count >= limit.div_ceil(2) {
            (self.words.try_otherwise(tool, count), failed_in_a_row(tool, count))
        } else {
            return None;
        };
        self.conversation.add_to_last_result(&advice);
        Some(Effect::Note { text: note })
    }

    /// Moves the last reply and its calls into the history, answered or not.
    fn close_turn(&mut self) -> Vec<AnsweredCall> {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Acting { turn } => {
                let (message, answered, after) = turn.close(&self.words.never_answered());
                self.conversation.extend(self.speech.record(message, answered.clone()));
                self.conversation.extend(after.map(|text| Message::new(Role::User, text)));
                self.conversation.push_pictures(std::mem::take(&mut self.shown));
                answered
            }
            Phase::New | Phase::Thinking { .. } | Phase::Ended => Vec::new(),
        }
    }

    fn failed(&mut self, failure: ModelFailure) -> Vec<Effect> {
        let note = match failure.kind {
            ModelFailureKind::ContextTooLong => self.conversation.halve(),
            ModelFailureKind::InvalidRequest => self.conversation.refuse_pictures(),
            _ => None,
        };
        if let Some(note) = note {
            let mut effects = noted([note]);
            effects.extend(self.ask_model());
            return effects;
        }
        let outcome = match failure.kind {
            ModelFailureKind::Cancelled => AskOutcome::Cancelled,
            _ => AskOutcome::ModelFailed,
        };
        self.finish(outcome, None, Some(failure.message))
    }

    fn finish(
        &mut self,
        outcome: AskOutcome,
        answer: Option<(String, Option<serde_json::Value>)>,
        message: Option<String>,
    ) -> Vec<Effect> {
        self.close_turn();
        let (answer, value) = match answer {
            Some((text, value)) => (Some(text), value),
            None => (self.last_reply_text.take(), None),
        };
        let (steps, usage, replies) = (self.steps_in_all(), self.usage, self.replies);
        let end = AskEnd { outcome, answer, value, message, steps, usage, replies };
        vec![Effect::Finish { end }]
    }

    fn scene(&self) -> DialectContext<'_> {
        DialectContext { spec: &self.spec, setup: &self.setup, words: self.words }
    }
}

/// A hash of what a call asks for, equal for equal calls.
fn fingerprint(asked_for: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    asked_for.hash(&mut hasher);
    hasher.finish()
}

fn failed_in_a_row(tool: Option<&str>, count: u32) -> String {
    match tool {
        Some(tool) => format!("`{tool}` failed {count} times in a row"),
        None => format!("{count} times in a row a tool was called that is not there"),
    }
}

/// A note about a call that was not made: people would not see the call otherwise.
fn not_made(name: &str, answer: &str) -> Effect {
    let name = visible_line(&clipped(name, NAME_CHARS));
    Effect::Note { text: format!("the call of `{name}` was not made: {}", brief(answer, NOTE_CHARS)) }
}

fn noted(notes: impl IntoIterator<Item = String>) -> Vec<Effect> {
    notes.into_iter().map(|text| Effect::Note { text }).collect()
}

//! Tool calls that code in the sandbox makes. A call is in the journal before the tool is called.

use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::call_approvals::{CallApproval, on_waiting};
use super::lent_calls::hold;
use super::messages::{ExecutorMsg, ExecutorRef};
use super::pending::{CallGuard, CallSource};
use super::running::places_for_questions;
use super::state::ExecutorState;
use crate::actors::asks::port::{CallerContext, LastResult, Port, PortCaller};
use crate::bridge::{FrameGuard, Refusal};
use crate::memory::{Charge, MemoryPurpose, NoRoom, Pool, TINY_BYTES};
use crate::panics::spawn_reporting;
use crate::protocol::ask::Subject;
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::frames::{HostFrame, ToolFailure};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{EXCEPTION_CHARS, MARKERS_BYTES, TOOL_CALLS_LISTED, TOOL_NAME_CHARS};
use crate::protocol::result::{Display, ValueView};
use crate::protocol::text::{brief, truncate};
use crate::protocol::tool::LentAnswer;
use crate::protocol::tool_names::INSTALL_TOOL;
use crate::protocol::values;
use crate::security_controls;
use crate::session::approvals::Question;
use crate::session::digest::json_bytes;
use crate::session::replay::RecordedCalls;
use crate::session::rules::{CallDecision, CallOrigin};
use crate::store::{AppliedFrame, CellRecord, Durability};
use crate::tools::{Caller, ToolFuture, ToolOutput, as_failure, call_id, continued_ask, expand_markers};

/// The copies of a call's arguments while it is worked on: for the tool, and for the person who has to allow
/// it.
const ARGUMENT_COPIES: u64 = 2;

/// The known answer to a call, or the work that leads to one.
pub(super) enum StartedCall {
    Known(Result<ToolOutput, ToolFailure>),
    Works {
        work: ToolFuture,
        permit: Option<CallApproval>,
        is_program: bool,
        is_read_only: bool,
    },
    /// Nothing answers, until the code gives the call up or its cell ends: so it was when the cell first ran.
    Unanswered,
}

impl ExecutorState {
    pub(super) fn tool_called(
        &mut self,
        myself: &ExecutorRef,
        call: u64,
        (cell, origin): (Option<CellNumber>, CallOrigin),
        name: &str,
        arguments: Map<String, Value>,
        frame_guard: &FrameGuard,
    ) {
        match self.calls.admit(call) {
            Ok(()) => {}
            Err(Refusal::Duplicate) => {
                self.give_up(myself, "the kernel used the number of a tool call twice".into());
                return;
            }
            Err(Refusal::TooMany) => {
                let error =
                    ToolFailure { code: "busy".into(), message: "too many tool calls at once".into() };
                self.send(myself, &HostFrame::ToolFailed { call, error });
                return;
            }
        }
        let memory = match self.arguments_in_memory(frame_guard) {
            Ok(memory) => memory,
            Err(no_room) => {
                let message = format!("{no_room}. What to do: {}.", no_room.hint());
                let error = ToolFailure { code: "quota_exceeded".into(), message };
                self.send(myself, &HostFrame::ToolFailed { call, error });
                return;
            }
        };
        let brief_name = brief(name, TOOL_NAME_CHARS);
        // The call is checked and charged before any of it is written.
        let source = CallSource { cell, origin, has_waited: false };
        let mut held = None;
        let begun = match self.recorded(cell, name, &arguments) {
            Some(begun) => begun,
            None if self.may_be_lent_again(name) => {
                let (held_call, begun) = hold(source, name, arguments.clone(), memory.clone());
                held = Some(held_call);
                begun
            }
            None => self.begin(myself, source, call, name, arguments.clone(), memory.clone()),
        };
        let lent = self.args.tools.lent_answer(name).filter(|_| begun.goes_to_its_client());
        let of_client = (lent, held.is_some());
        let called = called((cell, call), brief_name.clone(), arguments, &begun, of_client);
        let paid = match self.args.log.pay_for(&called) {
            Ok(paid) => paid,
            Err(exceeded) => {
                let error = ToolFailure { code: "quota_exceeded".into(), message: exceeded.to_string() };
                self.send(myself, &HostFrame::ToolFailed { call, error });
                self.over_quota(myself, &exceeded);
                return;
            }
        };
        let applied = self.connected.as_ref().map(|connected| AppliedFrame {
            sandbox: connected.sandbox.id().clone(),
            received: frame_guard.number,
        });
        let (committed, is_written) = tokio::sync::oneshot::channel();
        self.args.log.append_intent_then(begun.durability(), called, Some(paid), applied, move || {
            let _ = committed.send(());
        });
        self.held.extend(held.map(|held| (call, held)));
        let guard = begun.spawn(myself, call, Some(is_written), memory, self.args.memory.clone());
        self.calls.begin(call, cell, brief_name, guard);
    }

    /// Charges the arguments, which stay in memory until the call has its answer. A call without room is
    /// refused.
    fn arguments_in_memory(&self, frame_guard: &FrameGuard) -> Result<Option<Arc<Charge>>, NoRoom> {
        if let Some(no_room) = frame_guard.refused() {
            return Err(no_room.clone());
        }
        let bytes = frame_guard.parsed_bytes().saturating_mul(ARGUMENT_COPIES);
        if bytes <= TINY_BYTES || !security_controls::holds("call_memory_charge") {
            return Ok(None);
        }
        self.args.memory.try_charge(MemoryPurpose::Calls, bytes).map(|charge| Some(Arc::new(charge)))
    }

    /// Makes a call that a person had to allow and that was not made yet when the earlier daemon ended.
    pub(super) fn tool_called_again(
        &mut self,
        myself: &ExecutorRef,
        call: u64,
        cell: CellNumber,
        name: String,
        arguments: Map<String, Value>,
    ) {
        if self.calls.admit(call).is_err() {
            return;
        }
        let origin = self.origin_of(Some(cell), false);
        let source = CallSource { cell: Some(cell), origin, has_waited: true };
        let begun = if self.may_be_lent_again(&name) {
            let (held, begun) = hold(source, &name, arguments, None);
            self.held.insert(call, held);
            begun
        } else {
            self.begin(myself, source, call, &name, arguments, None)
        };
        let guard = begun.spawn(myself, call, None, None, self.args.memory.clone());
        self.calls.begin(call, Some(cell), name, guard);
    }

    /// In whose name a call of this cell is made. A call names the cell that is running, which may not be the cell whose
    /// code makes the call.
    pub(super) fn origin_of(&self, cell: Option<CellNumber>, from_program: bool) -> CallOrigin {
        match cell.and_then(|cell| self.running.get(&cell)) {
            None => CallOrigin::Leftover,
            Some(running) if from_program => CallOrigin::Program(running.start.ask),
            Some(running) => CallOrigin::Cell(running.start.ask),
        }
    }

    /// Decides whether the call may be made, and whether a person has to allow it.
    pub(super) fn begin(
        &self,
        myself: &ExecutorRef,
        CallSource { cell, origin, has_waited }: CallSource,
        call: u64,
        name: &str,
        arguments: Map<String, Value>,
        memory: Option<Arc<Charge>>,
    ) -> StartedCall {
        let refused = |message| StartedCall::Known(Err(ToolFailure { code: "not_allowed".into(), message }));
        let definition = self.args.tools.definition(name);
        let continued = definition.and_then(|tool| continued_ask(&tool.name, &arguments));
        if continued.is_some_and(|ask| !self.lending.has(ask)) {
            let message = "the ask that called this function has ended; ask again".into();
            return StartedCall::Known(Err(ToolFailure { code: "failed".into(), message }));
        }
        // The tool itself would refuse an owner's code only after a person had allowed the call.
        if definition.is_some_and(|tool| tool.name == INSTALL_TOOL)
            && origin.ask().is_none()
            && let Err(problem) = self.args.port.settings.now().packages.check_owner_may_install()
        {
            return StartedCall::Known(Err(as_failure(problem)));
        }
        let is_program = definition.is_some_and(|definition| definition.program);
        let is_read_only = definition.is_some_and(|definition| definition.read_only);
        let decide = |tool| {
            let decision = self.bound.decide(tool, &arguments, origin);
            if has_waited { decision.after_waiting() } else { decision }
        };
        let decision = definition.map(|tool| (tool, decide(tool)));
        let permit = match (decision, cell) {
            // An unknown tool needs no permission; the registry answers with the known ones.
            (None | Some((_, CallDecision::Free)), _) => None,
            // The ask was allowed when it began.
            _ if continued.is_some() => None,
            (Some((_, CallDecision::Never(why))), _) => return refused(why),
            (Some((tool, CallDecision::Person { .. })), None) => {
                return refused(format!("a person has to allow `{}`", tool.name));
            }
            (Some((tool, CallDecision::Person { bound_by })), Some(cell)) => {
                let subject = Subject::Tool { name: tool.name.clone(), arguments: arguments.clone() };
                let (ask, number) = (origin.ask(), call.to_string());
                let running = self.running.get(&cell);
                let places =
                    running.map_or_else(places_for_questions, |running| Arc::clone(&running.question_places));
                Some(CallApproval {
                    asks: self.args.asks.clone(),
                    log: Arc::clone(&self.args.log),
                    executor: myself.clone(),
                    left: Arc::clone(&self.left),
                    places,
                    cell,
                    call,
                    question: Question { ask, cell: Some(cell), call: number, bound_by, subject },
                })
            }
        };
        // What the tool begins has the strict rules of a program if a program may have made the call.
        let acts_as = if has_waited { CallOrigin::Program(origin.ask()) } else { origin };
        let context =
            self.args.context.clone().with_port(Arc::new(self.port(acts_as, cell))).with_memory(memory);
        let context = match cell {
            Some(cell) => context.with_on_waiting(on_waiting(myself, cell)),
            None => context,
        };
        let context = match &self.connected {
            Some(connected) => context.with_call(call_id(connected.sandbox.id(), call)),
            None => context,
        };
        match self.args.tools.call(name, arguments, Caller::Code, context) {
            Ok(work) => StartedCall::Works { work, permit, is_program, is_read_only },
            Err(mut failure) => {
                // The message may quote names that the guest chose.
                truncate(&mut failure.message, EXCEPTION_CHARS);
                StartedCall::Known(Err(failure))
            }
        }
    }

    /// The port for a tool: the tool acts on the session for this code, and so within the code's rules.
    fn port(&self, origin: CallOrigin, cell: Option<CellNumber>) -> Port {
        let (lending, memory) = (Arc::downgrade(&self.lending), self.args.memory.clone());
        let calling = CallerContext { origin, rules: self.bound.clone(), cell, lending, memory };
        Port {
            caller: PortCaller::Code(calling),
            last_result: LastResult::default(),
            ..self.args.port.clone()
        }
    }

    /// What becomes of a call of a cell that is replayed, by the record.
    fn recorded(
        &mut self,
        cell: Option<CellNumber>,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<StartedCall> {
        // What runs between cells may have called when the cells first ran, and has no record of its own.
        let mut none = RecordedCalls::default();
        let replay = match cell {
            Some(cell) => self.running.get_mut(&cell)?.start.replay.as_mut()?,
            None if self.replays || self.runs_a_cell_again() => &mut none,
            None => return None,
        };
        let gives_text = self.args.tools.definition(name).is_some_and(|tool| tool.output.is_none());
        let Some(answer) = replay.answer(name, arguments) else { return Some(StartedCall::Unanswered) };
        Some(StartedCall::Known(answer.map(|value| match value {
            Value::String(text) if gives_text => ToolOutput::Text(text),
            value => ToolOutput::Value(value),
        })))
    }

    /// Whether a cell runs again at this moment; its replay may have ended with an earlier daemon.
    pub(super) fn runs_a_cell_again(&self) -> bool {
        self.running.values().any(|running| running.start.replay.is_some())
    }

    pub(super) fn tool_done(&mut self, call: u64, outcome: Result<ToolOutput, ToolFailure>) {
        let Some(ended) = self.calls.end(call) else { return };
        let event_outcome = match &outcome {
            Ok(output) => ToolOutcome::Value(output.clone().into_value()),
            Err(failure) => ToolOutcome::Failure(failure.clone()),
        };
        self.args.log.append(EventBody::ToolAnswered { call, outcome: event_outcome });
        if outcome.is_ok()
            && let Some(running) = ended.cell.and_then(|cell| self.running.get_mut(&cell))
            && running.completed.len() < TOOL_CALLS_LISTED
        {
            running.completed.push(ended.name.clone());
        }
        let frame = match outcome {
            Ok(output) => HostFrame::ToolResult { call, value: self.answer(call, output) },
            Err(error) => HostFrame::ToolFailed { call, error },
        };
        let sent = self.connected.as_ref().and_then(|connected| {
            connected.link.send(&frame).ok().or_else(|| {
                let error =
                    ToolFailure { code: "failed".into(), message: "the tool's answer is too large".into() };
                connected.link.send(&HostFrame::ToolFailed { call, error }).ok()
            })
        });
        self.last_program_done(sent);
    }

    /// Keeps the text of a tool for its marker. It is charged even without room, because the code waits for
    /// it; while there is no room, large calls are refused.
    pub(super) fn answer(&mut self, call: u64, output: ToolOutput) -> Value {
        let mut responses = self.responses.0.lock();
        let value = responses.answer(call, output);
        let bytes = responses.bytes();
        drop(responses);
        self.responses_memory.grow_anyway(bytes.saturating_sub(self.responses_memory.bytes()));
        self.responses_memory.shrink_to(bytes);
        value
    }

    /// Answers a call that is not made, or whose progress is unknown.
    pub(super) fn settle(&self, call: u64, error: ToolFailure) {
        let outcome = ToolOutcome::Failure(error.clone());
        self.args.log.append(EventBody::ToolAnswered { call, outcome });
        if let Some(connected) = &self.connected {
            // A kernel that does not take this frame takes no other frame either, which is noticed elsewhere.
            let _ = connected.link.send(&HostFrame::ToolFailed { call, error });
        }
    }

    /// Replaces the markers of tool answers by their text, in the whole output of a cell and in its value.
    pub(super) fn expand(&self, record: &mut CellRecord, value: Option<&mut ValueView>) {
        let responses = self.responses.0.lock();
        let mut calls = Vec::new();
        let mut expand = |text: &mut String| {
            let expanded = expand_markers(text, |call| responses.text(call), MARKERS_BYTES);
            if !expanded.calls.is_empty() {
                *text = expanded.text;
                calls.extend(expanded.calls);
            }
        };
        let captured = &mut record.captured;
        expand(&mut captured.stdout);
        expand(&mut captured.stderr);
        captured.output.iter_mut().for_each(|segment| expand(&mut segment.text));
        if let Some(value) = value {
            expand(&mut value.repr);
        }
        calls.sort_unstable();
        calls.dedup();
        for image in calls.into_iter().flat_map(|call| responses.images(call)) {
            let mime = Map::from_iter([(image.mime.clone(), Value::String(image.base64.clone()))]);
            record.displays.push(Display { mime });
        }
    }
}

/// Charges the answer of a tool until it is a frame. It is charged even without room, because it exists
/// already and the code waits for it.
fn answer_in_memory(pool: &Pool, outcome: &Result<ToolOutput, ToolFailure>) -> Option<Charge> {
    let bytes = match outcome {
        Ok(ToolOutput::Value(value)) => values::parsed_bytes(&value.to_string()),
        Ok(ToolOutput::Text(text)) => text.len() as u64,
        Ok(ToolOutput::Parts { text, images }) => {
            images.iter().map(|image| image.base64.len() as u64).fold(text.len() as u64, u64::saturating_add)
        }
        Err(failure) => failure.message.len() as u64,
    };
    let is_charged = bytes > TINY_BYTES && security_controls::holds("tool_answer_charge");
    is_charged.then(|| pool.charge_anyway(MemoryPurpose::Calls, bytes))
}

/// The journal's event for a call. Of the arguments of a refused call, only the size is kept.
fn called(
    (cell, call): (Option<CellNumber>, u64),
    name: String,
    arguments: Map<String, Value>,
    begun: &StartedCall,
    (lent, held): (Option<LentAnswer>, bool),
) -> EventBody {
    let refused =
        matches!(begun, StartedCall::Known(Err(_))) && security_controls::holds("refused_arguments_left_out");
    let refused_bytes = refused.then(|| json_bytes(&arguments));
    let arguments = if refused { Map::new() } else { arguments };
    EventBody::ToolCalled { cell, call, name, arguments, refused_bytes, lent, held }
}

impl StartedCall {
    /// Work that nothing has to be asked about.
    pub fn of(work: ToolFuture) -> Self {
        Self::Works { work, permit: None, is_program: false, is_read_only: false }
    }

    /// Whether nobody has to allow the call of a client's tool first: only then may a later daemon send it, too.
    pub fn goes_to_its_client(&self) -> bool {
        let is_free = !security_controls::holds("later_daemons_send_only_free_calls");
        matches!(self, Self::Works { permit, .. } if permit.is_none() || is_free)
    }

    /// What the record of the call has to survive before the call is made.
    fn durability(&self) -> Durability {
        match self {
            Self::Works { is_read_only: false, .. } => Durability::Full,
            // Nothing has an effect that would be left without its record.
            Self::Works { is_read_only: true, .. } | Self::Known(_) | Self::Unanswered => Durability::Normal,
        }
    }

    /// Starts the work once the call is in the journal.
    pub fn spawn(
        self,
        executor: &ExecutorRef,
        call: u64,
        is_written: Option<tokio::sync::oneshot::Receiver<()>>,
        memory: Option<Arc<Charge>>,
        pool: Pool,
    ) -> CallGuard {
        let begins = matches!(&self, Self::Works { permit: None, is_program: true, .. });
        let program_runs = Arc::new(AtomicBool::new(begins));
        let (executor, runs) = (executor.clone(), Arc::clone(&program_runs));
        let work = async move {
            if let Some(is_written) = is_written
                && is_written.await.is_err()
            {
                let message = "the journal is closed".into();
                return Err(ToolFailure { code: "cancelled".into(), message });
            }
            self.outcome(&runs).await
        };
        let task = spawn_reporting(work, move |outcome| {
            let outcome = outcome.unwrap_or_else(|| {
                let message = "the tool failed inside of the daemon; how far it came is not known".into();
                Err(ToolFailure { code: "failed".into(), message })
            });
            let memory = answer_in_memory(&pool, &outcome);
            let _ = executor.cast(ExecutorMsg::ToolDone { call, outcome, memory });
        });
        CallGuard::new(task, memory, program_runs)
    }

    pub async fn outcome(self, program_runs: &AtomicBool) -> Result<ToolOutput, ToolFailure> {
        match self {
            Self::Known(outcome) => outcome,
            Self::Unanswered => std::future::pending().await,
            Self::Works { work, permit, is_program, .. } => {
                if let Some(permit) = permit {
                    permit.wait_for_decision().await?;
                }
                program_runs.store(is_program, Ordering::Relaxed);
                work.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::protocol::principal::Principal;
    use crate::tools::Image;

    #[test]
    fn what_a_tool_says_is_charged_until_it_is_a_frame() {
        let memory = Memory::new(Some(1), None);
        let pool = memory.pool(Principal::ANN);
        let large = "x".repeat(1 << 20);
        let image = Image { mime: "image/png".into(), base64: large.clone() };
        for output in [
            ToolOutput::Text(large.clone()),
            ToolOutput::Value(serde_json::json!([large.clone()])),
            ToolOutput::Parts { text: String::new(), images: vec![image] },
        ] {
            let charge = answer_in_memory(&pool, &Ok(output));
            assert!(memory.taken(Principal::ANN).0 >= 1 << 20, "{:?}", memory.taken(Principal::ANN));
            drop(charge);
            assert_eq!(memory.taken(Principal::ANN).0, 0);
        }
        assert!(answer_in_memory(&pool, &Ok(ToolOutput::Text("small".into()))).is_none());
    }
}

//! The state of the asks actor.

use super::messages::{AsksMsg, AsksRef};
use super::port::LastResult;
use super::shared_budget::{ParentBudget, RemainingBudget, ReservedTokens, SharedBudget};
use crate::actors::calls;
use crate::actors::directory::Directory;
use crate::actors::llm::Models;
use crate::actors::session::messages::OwnSession;
use crate::actors::supervisor::messages::SupervisorRef;
use crate::agent::{AskMachine, Effect};
use crate::config::LiveSettings;
use crate::llm::{REPLY_BYTES, reply_bytes};
use crate::memory::{Charge, MemoryPurpose};
use crate::memory::{NoRoom, Pool};
use crate::panics::spawn_reporting;
use crate::protocol::api::ImagePackages;
use crate::protocol::ask::AskLimits;
use crate::protocol::ask::{Approval, AskNumber, AskSpec, AskView, Decision, PlanVersion};
use crate::protocol::chat::ChatRequest;
use crate::protocol::chat::Message;
use crate::protocol::chat::Usage;
use crate::protocol::ids::{SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::quota;
use crate::sandbox::uid_accounts::UidAccounts;
use crate::security_controls;
use crate::session::approvals::Approvals;
use crate::session::ask_clock::AskClock;
use crate::session::restore::{RecalledAsk, RecalledAsks};
use crate::store::EventLog;
use crate::tools::{PlanHistory, Registry};
use ractor::RpcReplyPort;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most asks that wait for their turn.
pub(super) const ASKS_WAITING: usize = 16;
/// The copies of an ask's text: in its view, in its specification, in the conversation.
pub(super) const ASK_COPIES: u64 = 3;
/// The number of ended asks that are still shown.
pub(super) const ASKS_SHOWN: usize = 100;
/// The copies of a conversation: in the machine, in the request, and in the body of the request.
const CONVERSATION_COPIES: u64 = 3;

pub struct AsksArgs {
    pub session: OwnSession,
    pub supervisor: SupervisorRef,
    pub directory: Directory,
    pub id: SessionId,
    pub name: SessionName,
    pub owner: Principal,
    /// Says whether the owner's user id is still the owner's account.
    pub accounts: UidAccounts,
    pub quotas: quota::Ledger,
    pub log: Arc<EventLog>,
    pub settings: LiveSettings,
    pub models: Models,
    /// The tools of the session, including those that clients lend it.
    pub tools: Arc<dyn Fn() -> Arc<Registry> + Send + Sync>,
    /// The packages of the sandbox image.
    pub packages: Arc<dyn Fn() -> ImagePackages + Send + Sync>,
    /// The image that the session asked for, if it named one.
    pub image: Option<String>,
    /// Whether a container or a jail isolates the sandbox.
    pub contained: bool,
    /// The asks in the journal, if the session existed before.
    pub before: RecalledAsks,
}

pub struct AsksState {
    pub(super) args: AsksArgs,
    pub(super) asks: BTreeMap<AskNumber, AskView>,
    /// The memory charged for each ask and its conversation to the owner's share.
    pub(super) memory: BTreeMap<AskNumber, Charge>,
    pub(super) newest: AskNumber,
    /// The text that replaces the built-in prompt, as it was when it was last read.
    pub(super) prompt: Option<String>,
    pub(super) waiting: VecDeque<QueuedAsk>,
    pub(super) current: Option<Current>,
    /// What ended asks have left of their limits, because their code may still run.
    pub(super) remains: BTreeMap<AskNumber, Remains>,
    /// The conversation of the ended asks.
    pub(super) history: Vec<Message>,
    /// What the history takes of the owner's part of the memory.
    pub(super) history_memory: Charge,
    pub(super) plans: Vec<PlanVersion>,
    /// The memory charged for the plans to the owner's share.
    pub(super) plans_memory: Charge,
    pub(super) plan: PlanHistory,
    pub(super) approvals: Approvals,
    /// The tool calls of cells that wait for a decision, by the id of the approval.
    pub(super) permits: HashMap<String, RpcReplyPort<Decision>>,
    /// Whether the daemon is shutting down.
    pub(super) leaving: bool,
    /// Whether the session is being removed, so that no ask begins any more.
    pub(super) is_removed: bool,
    /// Whether the next check of deadlines is on its way.
    pub(super) is_ticking: bool,
    /// The host programs that the shutdown waits for.
    pub(super) last_programs: Option<LastPrograms>,
}

/// An ask that waits for its turn.
pub(super) struct QueuedAsk {
    pub(super) ask: AskNumber,
    pub(super) spec: AskSpec,
    pub(super) above: Option<ParentBudget>,
    /// The memory charged for the compiled schema of the answer, which is passed on to [`Current`].
    pub(super) schema_memory: Charge,
}

/// The ask that is being worked on.
pub(super) struct Current {
    pub(super) ask: AskNumber,
    pub(super) spec: AskSpec,
    pub(super) machine: AskMachine,
    /// The running calls by their id; dropping one stops it.
    pub(super) tasks: HashMap<String, Task>,
    pub(super) model: Option<Task>,
    /// How long the ask has worked, counted by the time since `taken_up`.
    pub(super) clock: AskClock,
    pub(super) taken_up: Instant,
    pub(super) tools: Arc<Registry>,
    pub(super) budget: Arc<SharedBudget>,
    /// The reservation for the running request.
    pub(super) reserved: Option<ReservedTokens>,
    /// The estimated tokens of the running request.
    pub(super) request_tokens: u64,
    /// The tokens of that request and its reply that have been spent so far, while the reply arrives.
    pub(super) counted_tokens: u64,
    /// The memory charged for the conversation.
    pub(super) conversation: Option<Charge>,
    pub(super) above: Option<ParentBudget>,
    /// The memory charged for the compiled schema of the answer.
    pub(super) _schema_memory: Charge,
    /// The approvals that inner asks wait for, by the session of the inner ask.
    pub(super) waiting_within: BTreeMap<SessionId, Vec<Approval>>,
    pub(super) last_result: LastResult,
    /// What an ask that is resumed after a restart had begun before it; none for other asks.
    pub(super) recalled: Option<RecalledAsk>,
}

impl Current {
    pub fn new(waiting: QueuedAsk, machine: AskMachine, worked: Duration, tools: Arc<Registry>) -> Self {
        let QueuedAsk { ask, spec, above, schema_memory } = waiting;
        // A request that was running when the daemon ended is sent again, and counts as the same step.
        let is_asked = matches!(machine.outstanding().first(), Some(Effect::AskModel { .. }));
        let steps = machine.steps_in_all().saturating_sub(u32::from(is_asked));
        let left = RemainingBudget {
            tokens: spec.limits.tokens.saturating_sub(machine.usage().total()),
            steps: spec.limits.steps.saturating_sub(steps),
        };
        let around = above.as_ref().map(|above| above.budgets.clone());
        let budget = SharedBudget::new(left, around.unwrap_or_default());
        Self {
            ask,
            spec,
            machine,
            tasks: HashMap::new(),
            model: None,
            clock: AskClock::after(worked),
            taken_up: Instant::now(),
            tools,
            budget,
            reserved: None,
            request_tokens: 0,
            conversation: None,
            counted_tokens: 0,
            above,
            _schema_memory: schema_memory,
            waiting_within: BTreeMap::new(),
            last_result: LastResult::default(),
            recalled: None,
        }
    }
}

/// A running task. Dropping it stops the work.
pub(super) struct Task {
    pub(super) handle: tokio::task::AbortHandle,
    /// Whether the task runs a program of the host.
    pub(super) is_program: bool,
}

impl Task {
    /// Sends the message that the work results in, or `lost` if it panicked; a stopped task sends nothing.
    pub fn spawn(
        asks: &AsksRef,
        work: impl Future<Output = Option<AsksMsg>> + Send + 'static,
        lost: impl FnOnce(Problem) -> AsksMsg + Send + 'static,
    ) -> Self {
        let asks = asks.clone();
        let task = spawn_reporting(work, move |message| {
            let panicked = || std::thread::panicking().then(|| lost(calls::lost()));
            if let Some(message) = message.unwrap_or_else(panicked) {
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

impl Current {
    /// Charges the conversation so far and the largest possible reply, before the model is asked.
    pub fn keep_in_memory(&mut self, pool: &Pool, request: &ChatRequest) -> Result<(), NoRoom> {
        let request_bytes = serde_json::to_string(request).map_or(0, |text| text.len() as u64);
        let reply = request.reply_tokens.map_or(u64::MAX, reply_bytes).min(REPLY_BYTES as u64);
        let wanted = request_bytes.saturating_mul(CONVERSATION_COPIES).saturating_add(reply);
        let charge = self.conversation.get_or_insert_with(|| pool.open(MemoryPurpose::Conversations));
        charge.shrink_to(wanted);
        if security_controls::holds("conversation_memory_charge") {
            charge.try_grow(wanted.saturating_sub(charge.bytes()))?;
        }
        Ok(())
    }

    /// How long the ask has worked, without waiting for people.
    pub fn work_time(&self) -> Duration {
        self.clock.worked(self.taken_up.elapsed())
    }

    /// Whether a call of the ask may still be in the session's queue.
    pub fn machine_ran_cell(&self) -> bool {
        !self.tasks.is_empty()
    }
}

/// What an ended ask has left of its limits.
pub(super) struct Remains {
    pub budget: Arc<SharedBudget>,
    pub limits: AskLimits,
    pub seconds: f64,
    pub depth: u32,
}

impl Remains {
    /// What an earlier ask has left of its limits, given what it used and how long it took.
    pub fn of(spec: &AskSpec, used: Usage, steps: u32, took: Duration) -> Self {
        let left = RemainingBudget {
            tokens: spec.limits.tokens.saturating_sub(used.total()),
            steps: spec.limits.steps.saturating_sub(steps),
        };
        Self::with(spec, SharedBudget::new(left, Vec::new()), took)
    }

    pub fn with(spec: &AskSpec, budget: Arc<SharedBudget>, took: Duration) -> Self {
        let seconds = (spec.limits.seconds - took.as_secs_f64()).max(0.0);
        Self { budget, limits: spec.limits, seconds, depth: spec.depth }
    }
}

/// Host programs of the present ask that still run when the daemon shuts down.
pub(super) struct LastPrograms {
    pub ask: AskNumber,
    pub tasks: HashMap<String, Task>,
    pub reply_to: RpcReplyPort<()>,
}

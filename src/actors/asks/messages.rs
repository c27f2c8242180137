//! The messages to a session's asks actor: requests of other actors, and reports of its own tasks.

use ractor::{ActorRef, RpcReplyPort};
use std::sync::Arc;
use std::time::Duration;

use super::port::PortCaller;
use super::spec::Outer;
use crate::actors::calls::Reply;
use crate::memory::Charge;
use crate::protocol::ask::{Approval, AskEnd, AskNumber, AskView, Decision, NewAsk, PlanVersion};
use crate::protocol::chat::{ChatReply, Message, ModelFailure, Usage};
use crate::protocol::event::ToolOutcome;
use crate::protocol::ids::{CellNumber, SessionId};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::protocol::result::ExecutionResult;
use crate::session::approvals::Question;
use crate::tools::PlanTree;

pub type AsksRef = ActorRef<AsksMsg>;

pub enum AsksMsg {
    /// Starts an ask. Answered when it is in the journal.
    Start {
        new: Box<NewAsk>,
        /// The ask whose cell or tool starts this one.
        outer: Option<Box<Outer>>,
        /// The charge for the client's request, until the ask has its own.
        memory: Option<Charge>,
        reply_to: Reply<AskView>,
    },
    /// The prompt for an ask that is to start was read.
    PromptRead {
        prompt: Option<String>,
        new: Box<NewAsk>,
        outer: Option<Box<Outer>>,
        memory: Option<Charge>,
        reply_to: Reply<AskView>,
    },
    View {
        ask: AskNumber,
        reply_to: RpcReplyPort<Option<AskView>>,
    },
    List {
        reply_to: RpcReplyPort<Vec<AskView>>,
    },
    /// Cancels an ask; one that has ended stays as it is. Answered with the ended ask.
    Cancel {
        ask: AskNumber,
        reply_to: Reply<AskView>,
    },
    /// The session is being removed: no model is asked any more what to do about the end of its cell.
    CancelAll,
    /// The conversation that the next ask continues.
    History {
        reply_to: RpcReplyPort<Vec<Message>>,
    },
    Plans {
        reply_to: RpcReplyPort<Vec<PlanVersion>>,
    },
    SubmitPlan {
        plan: Box<PlanTree>,
        reply_to: Reply<PlanVersion>,
    },
    /// The bounds of an ask that the present ask's model, or code in the sandbox, is about to start.
    Outer {
        caller: PortCaller,
        reply_to: Reply<Box<Outer>>,
    },
    Approvals {
        reply_to: RpcReplyPort<Vec<Approval>>,
    },
    Decide {
        id: String,
        decision: Decision,
        by: Principal,
        /// The charge for the client's request, until the decision is on its way to the journal.
        memory: Option<Charge>,
        reply_to: Reply<()>,
    },
    /// Requests a person's permit for a tool call of a running cell. Answered with the decision.
    Permit {
        question: Question,
        reply_to: RpcReplyPort<Decision>,
    },
    /// This call of a cell no longer waits for its permit, because it was dropped or has begun; without a call, the cell
    /// has ended. The approvals that are left are withdrawn.
    CallerEnded {
        cell: CellNumber,
        call: Option<u64>,
    },
    /// An inner ask of this one used tokens and steps.
    Spent {
        ask: AskNumber,
        usage: Usage,
        steps: u32,
    },
    /// A nested ask took this long, which is deducted from the time left to these ended asks.
    Lasted {
        asks: Vec<AskNumber>,
        took: Duration,
    },
    /// The approvals that an inner ask of this one waits for; the inner ask has its own session.
    WaitsWithin {
        ask: AskNumber,
        within: SessionId,
        approvals: Vec<Approval>,
    },
    /// The daemon shuts down. The next one resumes from the journal, so the shutdown must leave no effect in
    /// it. Answered when no host program of an ask runs any more and their outcomes are in the journal.
    Leave {
        reply_to: RpcReplyPort<()>,
    },

    /// A piece of the model's streamed text.
    ModelText {
        ask: AskNumber,
        step: u32,
        text: String,
        is_reasoning: bool,
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
    /// The end of an ask is in the journal.
    AskEnded {
        ask: AskNumber,
        end: Box<AskEnd>,
    },
    Tick,
}

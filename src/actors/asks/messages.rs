//! What is asked of the asks of a session, and what their own tasks tell them.

use ractor::{ActorRef, RpcReplyPort};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

use super::port::PortCaller;
use super::spec::Outer;
use crate::actors::calls::Reply;
use crate::protocol::ask::{Approval, AskEnd, AskNumber, AskView, Decision, NewAsk, PlanVersion};
use crate::protocol::chat::{ChatReply, Message, ModelFailure, Usage};
use crate::protocol::event::ToolOutcome;
use crate::protocol::ids::{CellNumber, SessionId};
use crate::protocol::problem::Problem;
use crate::protocol::result::ExecutionResult;
use crate::tools::PlanTree;

pub type AsksRef = ActorRef<AsksMsg>;

/// A tool call of a running cell that a person has to allow.
pub struct PermitWanted {
    pub cell: CellNumber,
    /// The ask of that cell.
    pub ask: Option<AskNumber>,
    pub call: u64,
    pub name: String,
    pub arguments: Map<String, Value>,
    /// The ask whose rules want it, if it is another one.
    pub bound_by: Option<AskNumber>,
}

pub enum AsksMsg {
    /// Answered when the ask is in the journal.
    Start {
        new: Box<NewAsk>,
        /// The ask of whose cell or tool this one is.
        outer: Option<Box<Outer>>,
        reply_to: Reply<AskView>,
    },
    View {
        ask: AskNumber,
        reply_to: RpcReplyPort<Option<AskView>>,
    },
    List {
        reply_to: RpcReplyPort<Vec<AskView>>,
    },
    /// An ask that has ended stays as it is. Answered with its end.
    Cancel {
        ask: AskNumber,
        reply_to: Reply<AskView>,
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
        reply_to: Reply<PlanVersion>,
    },
    /// What an ask is bound to that the present one begins, or code.
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
        by: u32,
        reply_to: Reply<()>,
    },
    /// A tool call of a running cell has to be allowed. Answered with the decision.
    Permit {
        wanted: PermitWanted,
        reply_to: RpcReplyPort<Decision>,
    },
    /// The call that waited for it is gone.
    PermitDropped {
        cell: CellNumber,
        call: u64,
    },
    /// Nothing that its calls wait for is to be decided any more.
    CellEnded {
        cell: CellNumber,
    },
    /// An ask within this one used tokens and steps.
    Spent {
        ask: AskNumber,
        usage: Usage,
        steps: u32,
    },
    /// A nested ask took this long: it is taken off the time that is left for these asks, which have ended.
    Lasted {
        asks: Vec<AskNumber>,
        took: Duration,
    },
    /// What waits for a person in an ask within this one, which has a session of its own.
    WaitsWithin {
        ask: AskNumber,
        within: SessionId,
        approvals: Vec<Approval>,
    },
    /// The daemon ends: the next one goes on from the journal, in which nothing may come of that.
    /// Answered when no program of the host runs any more and what came of them is noted.
    Leave {
        reply_to: RpcReplyPort<()>,
    },

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
    AskEnded {
        ask: AskNumber,
        end: Box<AskEnd>,
    },
    Tick,
}

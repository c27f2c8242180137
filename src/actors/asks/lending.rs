//! Inner asks that may call functions of the cell that asks.
//!
//! To the inner session such a function is a tool that a client lends. The client is the cell: its call of `ask` is
//! answered with the next call of a function, it runs the function, and its next call of `ask` brings what came of that.
//! Between the two the inner ask is kept here, as long as its cell runs.

use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Weak;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::port::{CallerContext, Port, PortCaller};
use crate::actors::calls::try_call;
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::memory::{MemoryPurpose, Pool};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::TOOL_OUTPUT_BYTES;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::tool::ClientAnswer;
use crate::session::digest::json_bytes;
use crate::tools::{Lease, NestedAsk, OnWaiting};

/// The inner asks of one sandbox that wait for their functions at once.
const LENDING_ASKS: usize = 64;
/// The calls of functions in one inner ask.
const FUNCTION_CALLS: u32 = 1_000;
/// Bytes of the arguments of one such call: with what is around them, they are the answer of a tool.
const FUNCTION_ARGUMENT_BYTES: u64 = TOOL_OUTPUT_BYTES as u64 / 2;

/// The inner asks that wait until a cell has run a function, by the id with which the cell goes on.
#[derive(Default)]
pub struct LendingAsks(Mutex<HashMap<String, LendingAsk>>);

/// The tools that an inner session was lent.
pub(super) struct Lent {
    pub session: SessionRef,
    pub lease: Lease,
}

/// One inner ask. Dropping it ends the ask.
struct LendingAsk {
    lent: Lent,
    /// The cell whose functions the ask may call; none if no cell ran when it began.
    cell: Option<CellNumber>,
    /// The call of a function that the cell has to answer.
    call: Option<String>,
    calls_left: u32,
    memory: Pool,
    end: AbortOnDropHandle<Result<Value, Problem>>,
}

impl LendingAsks {
    /// Whether an inner ask waits for a function under this id.
    pub fn has(&self, ask: &str) -> bool {
        self.0.lock().contains_key(ask)
    }

    /// Ends the asks of cells that do not run any more.
    pub fn end_unless(&self, runs: impl Fn(CellNumber) -> bool) {
        self.0.lock().retain(|_, lending| lending.cell.is_none_or(&runs));
    }

    fn keep(&self, ask: &str, lending: LendingAsk) -> Result<(), Problem> {
        let mut asks = self.0.lock();
        if asks.len() >= LENDING_ASKS {
            let message = format!("{LENDING_ASKS} asks of this sandbox wait for functions already");
            return Err(Problem::new(Code::Busy, message).hint("let some of them end first"));
        }
        asks.insert(ask.to_owned(), lending);
        Ok(())
    }
}

impl Port {
    /// Begins an inner ask that may call functions of the calling cell. Gives its answer or its first call.
    pub(super) async fn lend(
        &self,
        nested: NestedAsk,
        on_waiting: Option<OnWaiting>,
    ) -> Result<Value, Problem> {
        let PortCaller::Code(CallerContext { cell, lending, memory, .. }) = &self.caller else {
            let message = "only code in a cell can give functions to an ask";
            return Err(Problem::new(Code::BadRequest, message).hint("ask without `functions`"));
        };
        let (lent, lease) = oneshot::channel();
        let (port, charge) = (self.clone(), memory.open(MemoryPurpose::Calls));
        let work = async move { port.nested(nested, Some((lent, charge)), on_waiting).await };
        let end = AbortOnDropHandle::new(tokio::spawn(work));
        match lease.await {
            Ok(lent) => {
                let (cell, memory) = (*cell, memory.clone());
                let ask = LendingAsk { lent, cell, call: None, calls_left: FUNCTION_CALLS, memory, end };
                ask.next(lending).await
            }
            // The ask ended before it had the functions.
            Err(_) => answered(end.await),
        }
    }

    /// Goes on with an inner ask. Without an answer, the cell wants it to end.
    pub(super) async fn go_on_lending(
        &self,
        ask: String,
        returned: Option<ClientAnswer>,
    ) -> Result<Value, Problem> {
        let PortCaller::Code(CallerContext { lending, .. }) = &self.caller else { return Err(is_over()) };
        let kept = lending.upgrade().and_then(|asks| asks.0.lock().remove(&ask));
        let mut ask = kept.ok_or_else(is_over)?;
        let Some(returned) = returned else { return Ok(Value::Null) };
        ask.answer(returned).await;
        ask.next(lending).await
    }
}

impl LendingAsk {
    /// Waits for the next call of a function, or for the end of the ask.
    async fn next(mut self, asks: &Weak<LendingAsks>) -> Result<Value, Problem> {
        loop {
            let called = tokio::select! {
                biased;
                end = &mut self.end => return answered(end),
                called = self.lent.lease.next_call() => called,
            };
            // Without its session, the ask ends soon.
            let Some((call, _memory)) = called else { return answered((&mut self.end).await) };
            self.call = Some(call.call);
            if let Some(failure) = self.refusal(&call.name, json_bytes(&call.arguments)) {
                self.answer(ClientAnswer::Failure(failure)).await;
                continue;
            }
            self.calls_left = self.calls_left.saturating_sub(1);
            let id = Uuid::new_v4().simple().to_string();
            let told = json!({"call": {"ask": id, "name": call.name, "arguments": call.arguments}});
            let asks = asks.upgrade().ok_or_else(is_over)?;
            asks.keep(&id, self)?;
            return Ok(told);
        }
    }

    /// Why a call does not get to the cell.
    fn refusal(&self, name: &str, bytes: u64) -> Option<ToolFailure> {
        if self.calls_left == 0 {
            let message = format!("functions were called {FUNCTION_CALLS} times, and an ask may not do more");
            return Some(ToolFailure { code: "too_many".into(), message });
        }
        (bytes > FUNCTION_ARGUMENT_BYTES).then(|| ToolFailure {
            code: "too_large".into(),
            message: format!(
                "the arguments of `{name}` have {bytes} bytes, more than {FUNCTION_ARGUMENT_BYTES}"
            ),
        })
    }

    /// Answers the open call. The inner ask may not wait for the answer any more.
    async fn answer(&mut self, answer: ClientAnswer) {
        let Some(call) = self.call.take() else { return };
        let memory = self.memory.open(MemoryPurpose::Calls);
        let message = |reply_to| SessionMsg::AnswerCall { call, answer, memory, reply_to };
        let _: Result<(), Problem> = try_call(&self.lent.session, message).await;
    }
}

fn answered(end: Result<Result<Value, Problem>, JoinError>) -> Result<Value, Problem> {
    match end {
        Ok(answer) => Ok(json!({"answer": answer?})),
        Err(error) => Err(Problem::new(Code::Internal, format!("the inner ask broke off: {error}"))),
    }
}

fn is_over() -> Problem {
    Problem::new(Code::NoSuchAsk, "the ask that called this function has ended").hint("ask again")
}

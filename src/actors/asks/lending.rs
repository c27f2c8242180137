//! Inner asks that may call functions of the cell that asks.
//!
//! To the inner session such a function is a tool that a client lends. The client is the cell: its call of `ask` is
//! answered with the next call of a function, it runs the function, and its next call of `ask` brings what came of that.
//! Between the two the inner ask is kept here, as long as its cell runs.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::memory::{Charge, MemoryPurpose, Pool};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::TOOL_OUTPUT_BYTES;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::tool::ClientAnswer;
use crate::session::digest::json_bytes;
use crate::tools::Lease;

/// The inner asks of one sandbox that wait for their functions at once.
const LENDING_ASKS: usize = 64;
/// The calls of functions in one inner ask.
const FUNCTION_CALLS: u32 = 1_000;
/// The longest time that functions stay lent to an ask that has ended.
const INNER_REMOVAL: Duration = Duration::from_secs(30);
/// Bytes of the arguments of one such call: with what is around them, they are the answer of a tool.
const FUNCTION_ARGUMENT_BYTES: u64 = TOOL_OUTPUT_BYTES as u64 / 2;

/// The inner asks that wait until a cell has run a function, by the id with which the cell goes on.
#[derive(Default)]
pub struct LendingAsks(Mutex<HashMap<String, LendingAsk>>);

/// Answers the call of this id in the inner session.
pub(super) type AnswerCall =
    Box<dyn Fn(String, ClientAnswer, Charge) -> BoxFuture<'static, ()> + Send + Sync>;

/// The tools that an inner session was lent.
pub(super) struct Lent {
    pub answer: AnswerCall,
    pub lease: Lease,
}

/// One inner ask. Dropping it ends the ask.
pub(super) struct LendingAsk {
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
        let is_over = |_: &String, lending: &mut LendingAsk| !lending.cell.is_none_or(&runs);
        let over: Vec<_> = self.0.lock().extract_if(is_over).collect();
        for (_, lending) in over {
            lending.end();
        }
    }

    pub(super) fn take(&self, ask: &str) -> Option<LendingAsk> {
        self.0.lock().remove(ask)
    }

    fn keep(&self, ask: &str, lending: LendingAsk) -> Result<(), Problem> {
        let mut asks = self.0.lock();
        asks.retain(|_, lending| !lending.end.is_finished());
        if asks.len() >= LENDING_ASKS {
            let message = format!("{LENDING_ASKS} asks of this sandbox wait for functions already");
            return Err(Problem::new(Code::Busy, message).hint("let some of them end first"));
        }
        asks.insert(ask.to_owned(), lending);
        Ok(())
    }
}

impl LendingAsk {
    pub(super) fn new(
        lent: Lent,
        cell: Option<CellNumber>,
        memory: Pool,
        end: AbortOnDropHandle<Result<Value, Problem>>,
    ) -> Self {
        Self { lent, cell, call: None, calls_left: FUNCTION_CALLS, memory, end }
    }

    /// Waits for the next call of a function, or for the end of the ask.
    pub(super) async fn next(mut self, asks: &Weak<LendingAsks>) -> Result<Value, Problem> {
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

    /// Ends the ask. Its functions stay lent until its session is gone: the model would be told of a call that failed before
    /// that, and asked once more.
    pub(super) fn end(self) {
        tokio::spawn(async move {
            let Self { lent: Lent { mut lease, .. }, end, .. } = self;
            drop(end);
            let is_gone = async { while lease.next_call().await.is_some() {} };
            let _ = tokio::time::timeout(INNER_REMOVAL, is_gone).await;
        });
    }

    /// Answers the open call. The inner ask may not wait for the answer any more.
    pub(super) async fn answer(&mut self, answer: ClientAnswer) {
        let Some(call) = self.call.take() else { return };
        (self.lent.answer)(call, answer, self.memory.open(MemoryPurpose::Calls)).await;
    }
}

pub(super) fn answered(end: Result<Result<Value, Problem>, JoinError>) -> Result<Value, Problem> {
    match end {
        Ok(answer) => Ok(json!({"answer": answer?})),
        Err(error) => Err(Problem::new(Code::Internal, format!("the inner ask broke off: {error}"))),
    }
}

pub(super) fn is_over() -> Problem {
    Problem::new(Code::NoSuchAsk, "the ask that called this function has ended").hint("ask again")
}

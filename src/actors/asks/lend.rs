//! The operations of a cell that asks another model, and lends functions to it.

use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::lending::{LendingAsk, answered, is_over};
use super::port::{CallerContext, Port, PortCaller};
use crate::memory::MemoryPurpose;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::tool::ClientAnswer;
use crate::tools::{NestedAsk, OnWaiting};

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
                LendingAsk::new(lent, cell, memory, end).next(lending).await
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
        let kept = lending.upgrade().and_then(|asks| asks.take(&ask));
        let mut ask = kept.ok_or_else(is_over)?;
        let Some(returned) = returned else {
            ask.end();
            return Ok(Value::Null);
        };
        ask.answer(returned).await;
        ask.next(lending).await
    }
}

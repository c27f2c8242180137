//! Calls of tools that clients lend, over a death of the daemon. A client that got a call before may answer it now, and a
//! call that comes before the client has lent its tools again waits for that.

use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::{Semaphore, oneshot};

use super::call_approvals::record_start;
use super::messages::{ExecutorMsg, ExecutorRef};
use super::pending::{CallSource, HeldCall};
use super::state::ExecutorState;
use super::tool_calls::StartedCall;
use crate::actors::session::restore::fold;
use crate::memory::{Charge, MemoryPurpose, Pool, TINY_BYTES};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::Seq;
use crate::protocol::limits::CLIENT_RETURNS_WITHIN;
use crate::protocol::values;
use crate::session::replay::cell_ended;
use crate::session::restore::{LentCall, UnmadeCall};
use crate::store::{EventLog, JournalError, Overdraft};
use crate::tools::{ExpectedAnswer, RecordedArguments, ToolFuture, ToolOutput};

/// Holds a call back, and gives what the call does until it is made.
pub(super) fn hold(
    source: CallSource,
    name: &str,
    arguments: Map<String, Value>,
    memory: Option<Arc<Charge>>,
) -> (HeldCall, StartedCall) {
    let (ready, work) = oneshot::channel();
    let begun = StartedCall::of(Box::pin(once_ready(work)));
    (HeldCall { source, name: name.to_owned(), arguments, memory, ready }, begun)
}

/// Does the work of a held call when it is there.
async fn once_ready(work: oneshot::Receiver<ToolFuture>) -> Result<ToolOutput, ToolFailure> {
    match work.await {
        Ok(work) => work.await,
        Err(_) => Err(cell_ended()),
    }
}

impl ExecutorState {
    /// Called when the sandbox of an earlier daemon is attached: from now on its clients have a while to come back.
    pub(super) fn give_clients_time(&mut self, myself: &ExecutorRef) {
        self.clients_may_return = true;
        myself.send_after(CLIENT_RETURNS_WITHIN, || ExecutorMsg::ClientsAreLate);
    }

    pub(super) fn may_be_lent_again(&self, name: &str) -> bool {
        self.clients_may_return && self.args.tools.definition(name).is_none()
    }

    /// Makes the held calls whose tools are there now; all of them once no client is waited for any more.
    pub(super) fn make_held_calls(&mut self, myself: &ExecutorRef) {
        if self.connected.is_none() {
            return;
        }
        let ready = |held: &HeldCall| !self.may_be_lent_again(&held.name);
        let ready: Vec<u64> =
            self.held.iter().filter(|(_, held)| ready(held)).map(|(call, _)| *call).collect();
        for call in ready {
            let Some(HeldCall { source, name, arguments, memory, ready }) = self.held.remove(&call) else {
                continue;
            };
            // A call that was cancelled meanwhile has its answer.
            if ready.is_closed() {
                continue;
            }
            let begun = self.begin(myself, source, call, &name, arguments, memory);
            let lent = self.args.tools.lent_answer(&name).filter(|_| begun.goes_to_its_client());
            // A call that a person has to allow has its start recorded after that.
            let is_made_now = matches!(begun, StartedCall::Works { permit: None, .. });
            let log = Arc::clone(&self.args.log);
            let work = async move {
                if is_made_now {
                    record_start(&log, (source.cell, call), lent).await?;
                }
                // The tools of the daemon's own were there all the time, so that this is no program of the host.
                let program_runs = AtomicBool::new(false);
                begun.outcome(&program_runs).await
            };
            let _ = ready.send(Box::pin(work));
        }
    }

    /// Waits for the answer of the client that got this call from an earlier daemon.
    pub(super) fn wait_for_client(
        &mut self,
        myself: &ExecutorRef,
        call: u64,
        LentCall { cell, name, answer, seq }: LentCall,
        expected: ExpectedAnswer,
    ) {
        let is_over = cell.is_some_and(|cell| !self.running.contains_key(&cell));
        if is_over || self.calls.admit(call).is_err() {
            return self.settle(call, cell_ended());
        }
        let arguments = self.arguments_of(seq);
        let tool = name.clone();
        let work: ToolFuture = Box::pin(async move { expected.wait(&tool, answer, arguments).await });
        let begun = StartedCall::of(work);
        let guard = begun.spawn(myself, call, None, None, self.args.memory.clone());
        self.calls.begin(call, cell, name, guard);
    }

    /// Holds a call that the earlier daemon held and did not make.
    pub(super) fn hold_again(
        &mut self,
        myself: &ExecutorRef,
        call: u64,
        UnmadeCall { cell, name, seq }: UnmadeCall,
    ) {
        let is_over = cell.is_some_and(|cell| !self.running.contains_key(&cell));
        if is_over || self.calls.admit(call).is_err() {
            return self.settle(call, cell_ended());
        }
        // The journal does not say whether a program made the call; the rules for programs are the stricter ones.
        let source = CallSource { cell, origin: self.origin_of(cell, true), has_waited: false };
        let (arguments, executor, tool) = (self.arguments_of(seq), myself.clone(), name.clone());
        let begun = StartedCall::of(Box::pin(async move {
            let (arguments, memory) = arguments.await?;
            let (ready, work) = oneshot::channel();
            let held = Box::new(HeldCall { source, name: tool, arguments, memory, ready });
            let _ = executor.cast(ExecutorMsg::HeldAgain { call, held });
            once_ready(work).await
        }));
        let guard = begun.spawn(myself, call, None, None, self.args.memory.clone());
        self.calls.begin(call, cell, name, guard);
    }

    fn arguments_of(
        &self,
        seq: Seq,
    ) -> impl Future<Output = Result<RecordedArguments, ToolFailure>> + Send + use<> {
        let turn = Arc::clone(&self.arguments_turn);
        arguments_of(turn, Arc::clone(&self.args.log), seq, self.args.memory.clone())
    }
}

/// Reads the arguments of a call from the journal. They are charged while they are read, and for as long as they are there.
async fn arguments_of(
    turn: Arc<Semaphore>,
    log: Arc<EventLog>,
    seq: Seq,
    pool: Pool,
) -> Result<RecordedArguments, ToolFailure> {
    let _turn = turn.acquire().await;
    let take = move |found: &mut Option<RecordedArguments>, event: Event| -> Result<(), JournalError> {
        if let EventBody::ToolCalled { arguments, .. } = event.body {
            let json = serde_json::to_string(&arguments).unwrap_or_default();
            let bytes = values::parsed_bytes(&json);
            let charge = (bytes > TINY_BYTES).then(|| pool.try_charge(MemoryPurpose::Calls, bytes));
            let charge = charge.transpose().map_err(JournalError::NoRoom)?;
            *found = Some((arguments, charge.map(Arc::new)));
        }
        Ok(())
    };
    let failure = |code: &str, message: String| ToolFailure { code: code.into(), message };
    match fold(&log, (seq.saturating_sub(1), seq), Overdraft::Refused, None, take).await {
        Ok(Some(arguments)) => Ok(arguments),
        Ok(None) => Err(failure("failed", "the arguments of this call are not in the journal".into())),
        Err(JournalError::NoRoom(no_room)) => {
            Err(failure("quota_exceeded", format!("{no_room}. What to do: {}.", no_room.hint())))
        }
        Err(error) => Err(failure("failed", format!("the arguments of this call cannot be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::protocol::ids::SessionId;
    use crate::protocol::principal::Principal;
    use crate::store::Journal;

    #[tokio::test]
    async fn arguments_of_an_earlier_daemon_are_charged_for_as_long_as_they_are_there() {
        const POOL_BYTES: u64 = 8 << 20;
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::open(home.path()).unwrap();
        let log = journal.log(SessionId::fresh()).unwrap();
        let arguments = Map::from_iter([("text".to_owned(), Value::from("x".repeat(1 << 20)))]);
        let (cell, call, name) = (None, 1, "tool".into());
        let called = EventBody::ToolCalled {
            cell,
            call,
            name,
            arguments,
            refused_bytes: None,
            lent: None,
            held: true,
        };
        let (committed, is_written) = oneshot::channel();
        let seq = log.append_then(called, None, move || {
            let _ = committed.send(());
        });
        is_written.await.unwrap();
        let memory = Memory::new(Some(POOL_BYTES), None);
        let pool = memory.pool(Principal::ANN);
        let read = || arguments_of(Arc::new(Semaphore::new(1)), Arc::clone(&log), seq, pool.clone());
        let (found, charge) = read().await.unwrap();
        assert_eq!(found.len(), 1);
        assert!(memory.taken(Principal::ANN).0 >= 1 << 20, "{:?}", memory.taken(Principal::ANN));
        drop(charge);
        assert_eq!(memory.taken(Principal::ANN).0, 0);
        let _full = pool.charge_anyway(MemoryPurpose::Calls, POOL_BYTES);
        assert_eq!(read().await.err().map(|failure| failure.code), Some("quota_exceeded".to_owned()));
    }
}

//! Calls that an earlier daemon has sent to a client, which may answer them to this one.
//!
//! The id of a call follows from its event in the journal, which is written before the client gets the call. So the next
//! daemon knows it and takes the answer, whether or not the client has lent its tools again by then. A client that says
//! that it has come back gets the call a second time, because the first daemon may have ended before it was sent; the
//! client tells by the id whether it has it already.

use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, ClientTools, ForgetOnDrop, gone, output_of};
use crate::memory::Charge;
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::SandboxId;
use crate::protocol::limits::CLIENT_RETURNS_WITHIN;
use crate::protocol::tool::{ClientCall, LentAnswer};
use crate::protocol::tool_names;
use crate::tools::contract::{Caller, ToolOutput, failure};
use crate::tools::registry::{Entry, bounded_output};

/// The id of a call that code in a sandbox makes. The guardian counts the calls of its sandbox.
#[must_use]
pub fn call_id(sandbox: &SandboxId, call: u64) -> String {
    format!("{sandbox}-{call}")
}

/// The answer to a call of an earlier daemon. It is taken from the moment on that this value exists.
pub struct ExpectedAnswer {
    answered: oneshot::Receiver<Answer>,
    open: ForgetOnDrop,
}

/// The arguments of a call as the journal has them, with their charge.
pub type RecordedArguments = (Map<String, Value>, Option<Arc<Charge>>);

impl ClientTools {
    pub fn expect(&self, call: String) -> ExpectedAnswer {
        let (wait, answered) = self.state.lock().open(call.clone(), None);
        ExpectedAnswer { answered, open: ForgetOnDrop { call, wait, clients: self.clone() } }
    }

    /// The client that lends a tool, found by any name that code may call the tool by, with the tool, and whether the client
    /// wants its open calls again.
    fn lender(&self, name: &str) -> Option<(u64, Entry, bool)> {
        let state = self.state.lock();
        let named = |name: &str| state.tools.iter().find(|(_, entry)| entry.name() == name);
        let (lease, entry) = tool_names::find_by(name, named)?;
        let client = state.leases.get(lease)?;
        Some((*lease, entry.clone(), client.again))
    }

    /// The client of a tool that wants its open calls again, once it is there; none if the time for that is over.
    async fn returned(&self, name: &str, patience: &mut Patience) -> Option<(u64, Entry)> {
        let mut changes = self.changes();
        loop {
            let lender = self.lender(name);
            if lender.is_some() {
                patience.extend(Instant::now());
            }
            if let Some((lease, entry, true)) = lender {
                return Some((lease, entry));
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(patience.until) => return None,
            }
        }
    }

    /// What the answer means, held against the schema of the tool if its client is back. Without that client the schema is
    /// not known.
    async fn outcome(
        &self,
        name: &str,
        promised: LentAnswer,
        (answer, _memory): Answer,
    ) -> Result<ToolOutput, ToolFailure> {
        let output = output_of(answer, promised)?;
        match self.lender(name) {
            Some((_, entry, _)) => entry.checked(output).await,
            None => bounded_output(name, output),
        }
    }
}

impl ExpectedAnswer {
    /// Waits for the answer. The client has [`CLIENT_RETURNS_WITHIN`] to send it, once more that long from the moment on
    /// that it lends its tools again, and as long as it takes if it gets the call again.
    pub async fn wait(
        self,
        name: &str,
        promised: LentAnswer,
        arguments: impl Future<Output = Result<RecordedArguments, ToolFailure>> + Send,
    ) -> Result<ToolOutput, ToolFailure> {
        let Self { answered, open } = self;
        let answer = tokio::select! {
            // An answer counts, whatever has happened beside it.
            biased;
            answer = answered => answer.map_err(|_| gone(name))?,
            () = ask_again(&open, name, arguments) => return Err(no_answer()),
        };
        open.clients.outcome(name, promised, answer).await
    }
}

/// How long a client has to come back or to answer.
struct Patience {
    until: Instant,
    is_extended: bool,
}

impl Patience {
    fn begin(now: Instant) -> Self {
        Self { until: now + CLIENT_RETURNS_WITHIN, is_extended: false }
    }

    /// Called when the tool is lent. Only the first time counts: clients that come and go keep no code waiting for ever.
    fn extend(&mut self, now: Instant) {
        if !self.is_extended {
            *self = Self { until: now + CLIENT_RETURNS_WITHIN, is_extended: true };
        }
    }
}

/// Sends the call to its client once that has come back; then its answer, or the end of its stream, ends the call. Returns
/// when the time for an answer is over without that: where the call cannot be sent again, the client may still work on it.
async fn ask_again(
    open: &ForgetOnDrop,
    name: &str,
    arguments: impl Future<Output = Result<RecordedArguments, ToolFailure>> + Send,
) {
    let mut patience = Patience::begin(Instant::now());
    if open.clients.returned(name, &mut patience).await.is_none() {
        return;
    }
    // The client may have gone and come back while they were read.
    if let Ok(arguments) = arguments.await
        && let Some((lease, entry)) = open.clients.returned(name, &mut patience).await
        && send_again(open, lease, &entry, arguments).is_ok()
    {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep_until(patience.until).await;
}

/// Sends the call to the client that has come back. From now on the call ends with that client's stream.
fn send_again(
    open: &ForgetOnDrop,
    lease: u64,
    entry: &Entry,
    (arguments, memory): RecordedArguments,
) -> Result<(), ToolFailure> {
    let arguments = entry.checked_arguments(arguments, Caller::Code)?;
    let mut state = open.clients.state.lock();
    // Without it the answer has arrived meanwhile.
    if state.open.contains_key(&open.call) {
        let name = entry.name().to_owned();
        state.send(lease, ClientCall { call: open.call.clone(), name, arguments }, memory)?;
    }
    if let Some(waiting) = state.open.get_mut(&open.call) {
        waiting.lease = Some(lease);
    }
    Ok(())
}

/// The failure of a call whose client has not come back.
fn no_answer() -> ToolFailure {
    let seconds = Duration::as_secs(&CLIENT_RETURNS_WITHIN);
    failure(
        "interrupted",
        format!(
            "the daemon was started anew while the client worked on this call, and no answer came within {seconds} s; it \
             is not known whether it took effect"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_an_answer_is_extended_once() {
        let (second, began) = (Duration::from_secs(1), Instant::now());
        let mut patience = Patience::begin(began);
        assert_eq!(patience.until, began + CLIENT_RETURNS_WITHIN);
        for seconds in [3, 6, 9] {
            patience.extend(began + second * seconds);
            assert_eq!(patience.until, began + second * 3 + CLIENT_RETURNS_WITHIN);
        }
    }
}

//! Tools that connected clients lend to a session.
//!
//! A client registers its tools and holds a [`Lease`], on which it receives calls, and answers each call by its id.
//! When the lease is dropped, its tools are removed and every open call fails. Calls that an earlier daemon has sent are in
//! [`expected`].

mod expected;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use uuid::Uuid;

use super::contract::{Context, Definition, Image, Tool, ToolFuture, ToolOutput, failure};
use super::foreign_schemas;
use super::registry::{Entry, Registry, RegistryError};
use crate::memory::{Charge, MemoryPurpose, Pool};
use crate::protocol::frames::ToolFailure;
use crate::protocol::limits::{CLIENT_CALLS, CLIENT_TOOLS, EXCEPTION_CHARS, TOOL_NAME_CHARS};
use crate::protocol::text::quotable;
use crate::protocol::tool::{ClientAnswer, ClientCall, ClientTool, LentAnswer, NewClientTools, ToolImage};
use crate::schema::Checker;
use crate::security_controls;

pub use expected::{ExpectedAnswer, RecordedArguments, call_id};

/// How often the compiled schemas of a lent tool are in memory: with the tool, and in the ask that is being worked on.
const LENT_COPIES: u64 = 2;
const GONE: &str = "client_gone";
/// The types of pictures that a client may answer with.
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Why an answer was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("no call of this id is waiting for an answer")]
    NoSuchCall,
}

/// The lent tools of one session.
#[derive(Clone)]
pub struct ClientTools {
    state: Arc<Mutex<State>>,
    /// Held while the tools of a client are registered, which takes as long as their schemas make it.
    registering: Arc<Mutex<()>>,
    /// A place for the one answer that is checked at a time.
    checks: Arc<Semaphore>,
}

struct State {
    next_lease: u64,
    /// The lent tools, each with its lease.
    tools: Vec<(u64, Entry)>,
    /// The clients, by lease.
    leases: HashMap<u64, Client>,
    open: HashMap<String, OpenCall>,
    next_wait: u64,
    /// The number of changes of the set of tools.
    changes: watch::Sender<u64>,
}

/// A call, and the charge for its arguments until the client has read it.
type SentCall = (ClientCall, Option<Arc<Charge>>);

struct Client {
    calls: mpsc::Sender<SentCall>,
    /// Whether the client wants the calls again that an earlier daemon left without an answer.
    again: bool,
}

struct OpenCall {
    /// None while the client has not come back after a death of the daemon.
    lease: Option<u64>,
    /// Tells this wait for the answer from a later one for the same call.
    wait: u64,
    answer: oneshot::Sender<Answer>,
}

/// An answer, and its charge until it is the outcome of the call.
type Answer = (ClientAnswer, Option<Charge>);

/// A client's registration, which is dropped when the client is gone.
pub struct Lease {
    id: u64,
    calls: mpsc::Receiver<SentCall>,
    clients: ClientTools,
}

impl Lease {
    /// The next call for this client.
    pub async fn next_call(&mut self) -> Option<(ClientCall, Option<Arc<Charge>>)> {
        self.calls.recv().await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.clients.state.lock().release(self.id);
    }
}

impl Default for ClientTools {
    fn default() -> Self {
        let state = State {
            next_lease: 0,
            tools: Vec::new(),
            leases: HashMap::new(),
            open: HashMap::new(),
            next_wait: 0,
            changes: watch::Sender::new(0),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            registering: Arc::default(),
            checks: Arc::new(Semaphore::new(1)),
        }
    }
}

impl ClientTools {
    /// Registers all tools or none. `others` are the tools that the session has anyway. The pool pays for the schemas
    /// before they are compiled. Compiling holds up other registrations of this session, but no call of a tool, because
    /// `state` is not locked meanwhile.
    pub fn register(
        &self,
        NewClientTools { tools, again }: NewClientTools,
        others: &Registry,
        pool: &Pool,
    ) -> Result<Lease, RegistryError> {
        let _registering = self.registering.lock();
        // Every error that a registry would report later is found now.
        let mut rehearsal = others.clone();
        let (lease, known) = {
            let state = self.state.lock();
            rehearsal.extend(state.tools.iter().map(|(_, entry)| entry));
            (state.next_lease, state.tools.len())
        };
        let mut charge = pool.open(MemoryPurpose::Schemas);
        let mut lent = Vec::new();
        for tool in tools {
            if known + lent.len() >= CLIENT_TOOLS {
                let problem = format!("clients may lend a session at most {CLIENT_TOOLS} tools");
                return Err(RegistryError::BadSchema { tool: quotable(&tool.name), problem });
            }
            let (name, paid) = (tool.name.clone(), charge.bytes());
            if security_controls::holds("lent_tools_memory_charge") {
                let schemas = std::iter::once(&tool.parameters).chain(&tool.output);
                charge.try_grow(LENT_COPIES * schemas.map(Checker::most_bytes).sum::<u64>())?;
            }
            rehearsal.add(Arc::new(LentTool::new(tool, lease, self.clone())?))?;
            let entry = rehearsal.entry(&name).cloned().ok_or(RegistryError::BadName(name))?;
            charge.shrink_to(paid + LENT_COPIES * entry.checker_bytes());
            lent.push(entry);
        }
        let charge = Arc::new(charge);
        let (sender, calls) = mpsc::channel(CLIENT_CALLS);
        let client = Client { calls: sender, again };
        let mut state = self.state.lock();
        state.next_lease += 1;
        state.leases.insert(lease, client);
        let paid = lent.into_iter().map(|entry| (lease, entry.lent(&charge, &self.checks)));
        state.tools.extend(paid);
        state.changed();
        drop(state);
        Ok(Lease { id: lease, calls, clients: self.clone() })
    }

    /// A session's own tools together with the lent ones.
    #[must_use]
    pub fn added_to(&self, own: &Arc<Registry>) -> Arc<Registry> {
        let state = self.state.lock();
        if state.tools.is_empty() {
            return Arc::clone(own);
        }
        let mut registry = (**own).clone();
        registry.extend(state.tools.iter().map(|(_, entry)| entry));
        Arc::new(registry)
    }

    /// A receiver that changes with the set of tools.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.state.lock().changes.subscribe()
    }

    pub fn answer(
        &self,
        call: &str,
        answer: ClientAnswer,
        memory: Option<Charge>,
    ) -> Result<(), AnswerError> {
        let open = self.state.lock().open.remove(call).ok_or(AnswerError::NoSuchCall)?;
        open.answer.send((answer, memory)).map_err(|_| AnswerError::NoSuchCall)
    }
}

impl State {
    fn release(&mut self, lease: u64) {
        self.leases.remove(&lease);
        self.tools.retain(|(owner, _)| *owner != lease);
        // Dropping the senders notifies the calls that wait for an answer.
        self.open.retain(|_, open| open.lease != Some(lease));
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn send(&self, lease: u64, call: ClientCall, memory: Option<Arc<Charge>>) -> Result<(), ToolFailure> {
        let name = call.name.clone();
        let client = self.leases.get(&lease).ok_or_else(|| gone(&name))?;
        client.calls.try_send((call, memory)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                failure("busy", format!("the client of `{name}` does not take its calls"))
            }
            mpsc::error::TrySendError::Closed(_) => gone(&name),
        })
    }

    /// Takes the answer to a call from now on. Gives the number of this wait.
    fn open(&mut self, call: String, lease: Option<u64>) -> (u64, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let wait = self.next_wait;
        self.next_wait += 1;
        self.open.insert(call, OpenCall { lease, wait, answer });
        (wait, answered)
    }

    fn deliver(
        &mut self,
        lease: u64,
        call: ClientCall,
        memory: Option<Arc<Charge>>,
    ) -> Result<(u64, oneshot::Receiver<Answer>), ToolFailure> {
        if self.open.len() >= CLIENT_CALLS {
            return Err(failure("busy", "too many calls wait for clients"));
        }
        let id = call.call.clone();
        self.send(lease, call, memory)?;
        Ok(self.open(id, Some(lease)))
    }
}

/// One lent tool.
struct LentTool {
    definition: Definition,
    lease: u64,
    clients: ClientTools,
}

impl LentTool {
    fn new(tool: ClientTool, lease: u64, clients: ClientTools) -> Result<Self, RegistryError> {
        let bad = |problem| RegistryError::BadSchema { tool: quotable(&tool.name), problem };
        let parameters = foreign_schemas::parameters(&tool.parameters).map_err(bad)?;
        let definition = Definition {
            output: tool.output,
            outside: true,
            read_only: tool.read_only,
            ..Definition::new(tool.name, tool.description, parameters)
        };
        Ok(Self { definition, lease, clients })
    }
}

impl Tool for LentTool {
    fn definition(&self) -> Definition {
        self.definition.clone()
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        let (clients, lease) = (self.clients.clone(), self.lease);
        let (name, promised) = (self.definition.name.clone(), self.definition.promised());
        let call = context.call().map_or_else(|| Uuid::new_v4().simple().to_string(), ToOwned::to_owned);
        Box::pin(async move {
            let sent = ClientCall { call: call.clone(), name: name.clone(), arguments };
            let (wait, answered) = clients.state.lock().deliver(lease, sent, context.memory())?;
            let _forgotten = ForgetOnDrop { call, wait, clients };
            let (answer, _memory) = answered.await.map_err(|_| gone(&name))?;
            output_of(answer, promised)
        })
    }
}

fn output_of(answer: ClientAnswer, promised: LentAnswer) -> Result<ToolOutput, ToolFailure> {
    match answer {
        ClientAnswer::Value(value) if promised == LentAnswer::Value => Ok(ToolOutput::Value(value)),
        ClientAnswer::Value(Value::String(text)) => Ok(ToolOutput::Text(text)),
        ClientAnswer::Value(value) => Ok(ToolOutput::Text(value.to_string())),
        ClientAnswer::Parts { text, images } => parts(text, images),
        ClientAnswer::Failure(failure) => Err(bounded(failure)),
    }
}

/// Removes a call when its caller no longer waits for it.
struct ForgetOnDrop {
    call: String,
    wait: u64,
    clients: ClientTools,
}

impl Drop for ForgetOnDrop {
    fn drop(&mut self) {
        let mut state = self.clients.state.lock();
        if state.open.get(&self.call).is_some_and(|open| open.wait == self.wait) {
            state.open.remove(&self.call);
        }
    }
}

fn gone(name: &str) -> ToolFailure {
    failure(GONE, format!("the client that lent the tool `{name}` is gone"))
}

/// Checks a client's pictures, because they become displays without further checks.
fn parts(text: String, images: Vec<ToolImage>) -> Result<ToolOutput, ToolFailure> {
    let image = |image: ToolImage| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        if !IMAGES.contains(&image.mime.as_str()) {
            return Err(failure("failed", format!("a picture is one of {}", IMAGES.join(", "))));
        }
        if image.base64.is_empty() || !image.base64.bytes().all(plain) {
            return Err(failure("failed", "a picture is no base64"));
        }
        Ok(Image { mime: image.mime, base64: image.base64 })
    };
    let images = images.into_iter().map(image).collect::<Result<_, _>>()?;
    Ok(ToolOutput::Parts { text, images })
}

/// Bounds the failure that a client reports, because its text is not trusted.
fn bounded(failure: ToolFailure) -> ToolFailure {
    let is_plain = !failure.code.is_empty()
        && failure.code.len() <= TOOL_NAME_CHARS
        && failure.code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let code = if is_plain { failure.code } else { "failed".to_owned() };
    ToolFailure { code, message: failure.message.chars().take(EXCEPTION_CHARS).collect() }
}

#[cfg(test)]
mod tests;

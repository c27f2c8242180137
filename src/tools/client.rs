//! Tools that connected clients lend to a session.
//!
//! A client registers its tools and holds a [`Lease`], on which it receives calls, and answers each call by its id.
//! When the lease is dropped, its tools are removed and every open call fails.

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
use crate::protocol::tool::{ClientAnswer, ClientCall, ClientTool, ToolImage};
use crate::schema::Checker;
use crate::security_controls;

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
    /// The channel to each client, by lease.
    leases: HashMap<u64, mpsc::Sender<SentCall>>,
    open: HashMap<String, OpenCall>,
    /// The number of changes of the set of tools.
    changes: watch::Sender<u64>,
}

/// A call, and the charge for its arguments until the client has read it.
type SentCall = (ClientCall, Option<Arc<Charge>>);

struct OpenCall {
    lease: u64,
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
        tools: Vec<ClientTool>,
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
        let mut state = self.state.lock();
        state.next_lease += 1;
        state.leases.insert(lease, sender);
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
        self.open.retain(|_, open| open.lease != lease);
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn deliver(
        &mut self,
        lease: u64,
        name: &str,
        arguments: Map<String, Value>,
        memory: Option<Arc<Charge>>,
    ) -> Result<(String, oneshot::Receiver<Answer>), ToolFailure> {
        let client = self.leases.get(&lease).ok_or_else(|| gone(name))?;
        if self.open.len() >= CLIENT_CALLS {
            return Err(failure("busy", "too many calls wait for clients"));
        }
        let call = Uuid::new_v4().simple().to_string();
        let sent = ClientCall { call: call.clone(), name: name.to_owned(), arguments };
        let sent = client.try_send((sent, memory));
        match sent {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(failure("busy", format!("the client of `{name}` does not take its calls")));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(gone(name)),
        }
        let (answer, answered) = oneshot::channel();
        self.open.insert(call.clone(), OpenCall { lease, answer });
        Ok((call, answered))
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
        let (name, has_schema) = (self.definition.name.clone(), self.definition.output.is_some());
        Box::pin(async move {
            let (call, answered) = clients.state.lock().deliver(lease, &name, arguments, context.memory())?;
            let _forgotten = ForgetOnDrop { call, clients };
            let (answer, _memory) = answered.await.map_err(|_| gone(&name))?;
            match answer {
                ClientAnswer::Value(value) if has_schema => Ok(ToolOutput::Value(value)),
                ClientAnswer::Value(Value::String(text)) => Ok(ToolOutput::Text(text)),
                ClientAnswer::Value(value) => Ok(ToolOutput::Text(value.to_string())),
                ClientAnswer::Parts { text, images } => parts(text, images),
                ClientAnswer::Failure(failure) => Err(bounded(failure)),
            }
        })
    }
}

/// Removes a call when its caller no longer waits for it.
struct ForgetOnDrop {
    call: String,
    clients: ClientTools,
}

impl Drop for ForgetOnDrop {
    fn drop(&mut self) {
        self.clients.state.lock().open.remove(&self.call);
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
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::protocol::principal::Principal;
    use crate::tools::Allowed;
    use crate::tools::Caller;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn weather(output: Option<Value>) -> ClientTool {
        ClientTool {
            name: "weather".into(),
            description: "Tells the weather.".into(),
            parameters: json!({"properties": {"city": {"type": "string"}}, "required": ["city"]}),
            output,
        }
    }

    fn registry(clients: &ClientTools) -> Registry {
        Registry::clone(&clients.added_to(&Arc::new(Registry::built_in().unwrap())))
    }

    fn register(
        clients: &ClientTools,
        tools: Vec<ClientTool>,
        others: &Registry,
    ) -> Result<Lease, RegistryError> {
        clients.register(tools, others, &Memory::new(None, None).pool(Principal::ANN))
    }

    #[test]
    fn the_schemas_of_lent_tools_are_paid_for_before_they_are_there_and_while_a_registry_has_them() {
        const POOL_BYTES: u64 = 64 << 20;
        let (clients, memory) = (ClientTools::default(), Memory::new(Some(POOL_BYTES), None));
        let patterns: Map<String, Value> =
            (0..60).map(|n| (format!("^{n}[a-z]{{1,20}}$"), json!({"type": "string"}))).collect();
        let tool = |n: usize| ClientTool {
            name: format!("t{n}"),
            output: Some(json!({"patternProperties": patterns})),
            ..weather(None)
        };
        let none = Registry::default();
        let many = clients
            .register((0..CLIENT_TOOLS).map(tool).collect(), &none, &memory.pool(Principal::ANN))
            .err();
        assert!(matches!(many, Some(RegistryError::NoRoom(_))), "{many:?}");
        assert_eq!(memory.taken(Principal::ANN).0, 0);
        let lease = clients.register(vec![tool(0)], &none, &memory.pool(Principal::ANN)).unwrap();
        let one = memory.taken(Principal::ANN).0;
        assert!(one > 60 * 8 * 1024 * LENT_COPIES, "{one}");
        let registry = clients.added_to(&Arc::new(none));
        drop(lease);
        assert_eq!(memory.taken(Principal::ANN).0, one, "the registry still has the tool");
        drop(registry);
        assert_eq!(memory.taken(Principal::ANN).0, 0);
    }

    fn call(clients: &ClientTools) -> ToolFuture {
        let arguments = json!({"city": "Oslo"}).as_object().unwrap().clone();
        registry(clients).call("weather", arguments, Caller::Code, Context::new(Value::Null)).unwrap()
    }

    #[tokio::test]
    async fn a_call_reaches_its_client_and_its_answer_the_caller() {
        let clients = ClientTools::default();
        let mut lease = register(&clients, vec![weather(None)], &Registry::default()).unwrap();
        let calling = tokio::spawn(call(&clients));
        let (delivered, _) = lease.next_call().await.unwrap();
        assert_eq!((delivered.name.as_str(), &delivered.arguments["city"]), ("weather", &json!("Oslo")));
        clients.answer(&delivered.call, ClientAnswer::Value(json!("sunny")), None).unwrap();
        assert_eq!(calling.await.unwrap(), Ok(ToolOutput::Text("sunny".into())));
        let again = clients.answer(&delivered.call, ClientAnswer::Value(json!("rain")), None);
        assert_eq!(again, Err(AnswerError::NoSuchCall));
    }

    #[tokio::test]
    async fn an_answer_is_held_against_the_output_schema() {
        let clients = ClientTools::default();
        let tool = weather(Some(json!({"type": "object", "required": ["degrees"]})));
        let mut lease = register(&clients, vec![tool], &Registry::default()).unwrap();
        for (answer, expected) in [
            (json!({"degrees": 3}), Ok(ToolOutput::Value(json!({"degrees": 3})))),
            (json!({}), Err("failed")),
            (json!("text"), Err("failed")),
        ] {
            let calling = tokio::spawn(call(&clients));
            let (delivered, _) = lease.next_call().await.unwrap();
            clients.answer(&delivered.call, ClientAnswer::Value(answer), None).unwrap();
            assert_eq!(
                calling.await.unwrap().map_err(|failure| failure.code),
                expected.map_err(str::to_owned)
            );
        }
    }

    #[tokio::test]
    async fn open_calls_of_a_client_that_is_gone_fail() {
        let clients = ClientTools::default();
        let mut changes = clients.changes();
        let mut lease = register(&clients, vec![weather(None)], &Registry::default()).unwrap();
        changes.changed().await.unwrap();
        let (first, second) = (tokio::spawn(call(&clients)), call(&clients));
        lease.next_call().await.unwrap();
        drop(lease);
        changes.changed().await.unwrap();
        // The first call was delivered; the second is sent only now, through an outdated registry.
        assert_eq!(first.await.unwrap().unwrap_err().code, "client_gone");
        assert_eq!(second.await.unwrap_err().code, "client_gone");
        assert!(clients.state.lock().tools.is_empty());
        register(&clients, vec![weather(None)], &Registry::default()).unwrap();
    }

    #[tokio::test]
    async fn a_failure_of_the_client_is_told_within_bounds() {
        let clients = ClientTools::default();
        let mut lease = register(&clients, vec![weather(None)], &Registry::default()).unwrap();
        let calling = tokio::spawn(call(&clients));
        let (delivered, _) = lease.next_call().await.unwrap();
        let failure = ToolFailure { code: "\u{1b}[31m".into(), message: "x".repeat(1_000_000) };
        clients.answer(&delivered.call, ClientAnswer::Failure(failure), None).unwrap();
        let failure = calling.await.unwrap().unwrap_err();
        assert_eq!((failure.code.as_str(), failure.message.len()), ("failed", EXCEPTION_CHARS));
    }

    #[tokio::test]
    async fn a_call_that_nobody_waits_for_is_taken_back() {
        let clients = ClientTools::default();
        let mut lease = register(&clients, vec![weather(None)], &Registry::default()).unwrap();
        let calling = tokio::spawn(call(&clients));
        let (delivered, _) = lease.next_call().await.unwrap();
        calling.abort();
        let _ = calling.await;
        let late = clients.answer(&delivered.call, ClientAnswer::Value(json!("sunny")), None);
        assert_eq!(late, Err(AnswerError::NoSuchCall));
    }

    #[tokio::test]
    async fn a_client_that_takes_no_calls_does_not_pile_them_up() {
        let clients = ClientTools::default();
        let _lease = register(&clients, vec![weather(None)], &Registry::default()).unwrap();
        let waiting: Vec<_> = (0..CLIENT_CALLS).map(|_| tokio::spawn(call(&clients))).collect();
        tokio::task::yield_now().await;
        let failure = loop {
            if clients.state.lock().open.len() == CLIENT_CALLS {
                break call(&clients).await.unwrap_err();
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(failure.code, "busy");
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[test]
    fn names_that_are_taken_and_bad_schemas_are_refused_and_nothing_is_left() {
        let clients = ClientTools::default();
        let built_in = Registry::built_in().unwrap();
        let lease = register(&clients, vec![weather(None)], &built_in).unwrap();
        let collision = |name: &str| Some(RegistryError::Collision(name.into()));
        assert_eq!(register(&clients, vec![weather(None)], &built_in).err(), collision("weather"));
        let named = |name: &str| ClientTool { name: name.into(), ..weather(None) };
        for name in ["file_reader", "file_read", "exec_code"] {
            assert_eq!(
                register(&clients, vec![named("fine"), named(name)], &built_in).err(),
                collision(name)
            );
        }
        // The names stay reserved even if the session may not use the tools.
        for allowed in [Allowed::All, Allowed::only(["list_variables"]), Allowed::Only(BTreeSet::new())] {
            let few = built_in.narrowed(&allowed).unwrap().narrowed(&Allowed::All).unwrap();
            for name in ["exec_code", "execute_python_code", "file_read", "update_recursive_plan_tree"] {
                assert_eq!(register(&clients, vec![named(name)], &few).err(), collision(name), "{allowed:?}");
            }
        }
        let twice = register(&clients, vec![named("twice"), named("twice")], &built_in);
        assert_eq!(twice.err(), collision("twice"));
        assert!(matches!(
            register(&clients, vec![named("a b")], &built_in).err(),
            Some(RegistryError::BadName(_))
        ));
        let endless = ClientTool { parameters: json!({"$ref": "#"}), ..named("endless") };
        let refused = register(&clients, vec![endless], &built_in).err();
        assert!(matches!(refused, Some(RegistryError::BadSchema { .. })));
        let many = (0..=CLIENT_TOOLS).map(|n| named(&format!("t{n}"))).collect();
        assert!(register(&clients, many, &built_in).is_err());
        assert_eq!(clients.state.lock().tools.len(), 1);
        drop(lease);
        assert_eq!(clients.state.lock().tools.len(), 0);
    }
}

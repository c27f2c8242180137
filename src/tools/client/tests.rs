//! Tests of tools that clients lend.

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
        read_only: false,
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
    let new = NewClientTools { tools, again: false };
    clients.register(new, others, &Memory::new(None, None).pool(Principal::ANN))
}

#[test]
fn a_lent_tool_is_free_of_effects_if_its_client_says_so() {
    for read_only in [false, true] {
        let clients = ClientTools::default();
        let lent = vec![ClientTool { read_only, ..weather(None) }];
        let _lease = register(&clients, lent, &Registry::default()).unwrap();
        assert_eq!(registry(&clients).definition("weather").unwrap().read_only, read_only);
    }
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
    let new = |tools| NewClientTools { tools, again: false };
    let every = new((0..CLIENT_TOOLS).map(tool).collect());
    let many = clients.register(every, &none, &memory.pool(Principal::ANN)).err();
    assert!(matches!(many, Some(RegistryError::NoRoom(_))), "{many:?}");
    assert_eq!(memory.taken(Principal::ANN).0, 0);
    let lease = clients.register(new(vec![tool(0)]), &none, &memory.pool(Principal::ANN)).unwrap();
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
        assert_eq!(calling.await.unwrap().map_err(|failure| failure.code), expected.map_err(str::to_owned));
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
        assert_eq!(register(&clients, vec![named("fine"), named(name)], &built_in).err(), collision(name));
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

fn come_back(clients: &ClientTools, again: bool, output: Option<Value>) -> Lease {
    let new = NewClientTools { tools: vec![weather(output)], again };
    clients.register(new, &Registry::default(), &Memory::new(None, None).pool(Principal::ANN)).unwrap()
}

fn wait(expected: ExpectedAnswer, promised: LentAnswer) -> tokio::task::JoinHandle<CallOutcome> {
    tokio::spawn(async move {
        let arguments = json!({"city": "Oslo", "tool_call_purpose": "to know"}).as_object().unwrap().clone();
        expected.wait("weather", promised, async { Ok((arguments, None)) }).await
    })
}

type CallOutcome = Result<ToolOutput, ToolFailure>;

#[tokio::test]
async fn an_answer_to_a_call_of_before_is_taken_before_its_client_is_back() {
    let clients = ClientTools::default();
    for (promised, outcome) in [
        (LentAnswer::Text, ToolOutput::Text("sunny".into())),
        (LentAnswer::Value, ToolOutput::Value(json!("sunny"))),
    ] {
        let expected = clients.expect("s-1".into());
        clients.answer("s-1", ClientAnswer::Value(json!("sunny")), None).unwrap();
        assert_eq!(wait(expected, promised).await.unwrap(), Ok(outcome));
    }
    let dropped = clients.expect("s-1".into());
    let later = clients.expect("s-1".into());
    drop(dropped);
    clients.answer("s-1", ClientAnswer::Value(json!("sunny")), None).unwrap();
    drop(later);
    assert!(clients.state.lock().open.is_empty());
}

#[tokio::test]
async fn only_a_client_that_has_come_back_gets_a_call_of_before_and_under_its_id() {
    let degrees = json!({"type": "object", "required": ["degrees"]});
    let clients = ClientTools::default();
    // Another client that lends a tool of this name could do a second time what the first one has done.
    let mut other = come_back(&clients, false, Some(degrees.clone()));
    let waiting = wait(clients.expect("s-1".into()), LentAnswer::Value);
    tokio::task::yield_now().await;
    assert!(other.calls.try_recv().is_err());
    drop(other);
    let mut same = come_back(&clients, true, Some(degrees.clone()));
    let (sent, _) = same.next_call().await.unwrap();
    assert_eq!(
        (sent.call.as_str(), sent.arguments),
        ("s-1", json!({"city": "Oslo"}).as_object().unwrap().clone())
    );
    clients.answer("s-1", ClientAnswer::Value(json!({"degrees": 3})), None).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(ToolOutput::Value(json!({"degrees": 3}))));
    // What it answers is held against the schema, and the call ends with its stream.
    let waiting = wait(clients.expect("s-2".into()), LentAnswer::Value);
    same.next_call().await.unwrap();
    clients.answer("s-2", ClientAnswer::Value(json!({})), None).unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code, "failed");
    let waiting = wait(clients.expect("s-3".into()), LentAnswer::Value);
    same.next_call().await.unwrap();
    drop(same);
    assert_eq!(waiting.await.unwrap().unwrap_err().code, "client_gone");
}

#[tokio::test]
async fn a_call_of_before_finds_its_tool_by_any_name_that_code_may_use() {
    let clients = ClientTools::default();
    let mut client = come_back(&clients, true, None);
    let arguments = json!({"city": "Oslo"}).as_object().unwrap().clone();
    let expected = clients.expect("s-1".into());
    let waiting = tokio::spawn(async move {
        expected.wait("WeatherTool", LentAnswer::Text, async { Ok((arguments, None)) }).await
    });
    let (sent, _) = client.next_call().await.unwrap();
    assert_eq!((sent.call.as_str(), sent.name.as_str()), ("s-1", "weather"));
    clients.answer("s-1", ClientAnswer::Value(json!("sunny")), None).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(ToolOutput::Text("sunny".into())));
}

#[tokio::test]
async fn an_answer_counts_though_its_call_cannot_be_sent_again() {
    type Read = fn() -> Result<RecordedArguments, ToolFailure>;
    let unread: Read = || Err(failure("quota_exceeded", "no room"));
    let unfit: Read = || Ok((Map::new(), None));
    for arguments in [unread, unfit] {
        let clients = ClientTools::default();
        let mut client = come_back(&clients, true, None);
        let expected = clients.expect("s-1".into());
        let waiting = tokio::spawn(async move {
            expected.wait("weather", LentAnswer::Text, async move { arguments() }).await
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(client.calls.try_recv().is_err());
        clients.answer("s-1", ClientAnswer::Value(json!("sunny")), None).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(ToolOutput::Text("sunny".into())));
    }
}

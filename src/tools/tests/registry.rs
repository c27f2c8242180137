//! Registration, allow-lists, the descriptions of tools, and the checks of arguments.

use serde_json::{Map, Value, json};
use std::sync::Arc;

use super::port::MemoryPort;
use super::{call, context, object};
use crate::protocol::ask::Language;
use crate::protocol::tool_names::PURPOSE;
use crate::tools::contract::{Definition, Tool, ToolFuture};
use crate::tools::{Allowed, Caller, Context, Registry, RegistryError, ToolOutput};

/// Returns its arguments.
struct Echo(Definition);

impl Tool for Echo {
    fn definition(&self) -> Definition {
        self.0.clone()
    }

    fn run(&self, arguments: Map<String, Value>, _context: Context) -> ToolFuture {
        Box::pin(async move { Ok(ToolOutput::Text(Value::Object(arguments).to_string())) })
    }
}

struct Panics;

impl Tool for Panics {
    fn definition(&self) -> Definition {
        Definition::new("panics", "", closed(&json!({})))
    }

    fn run(&self, _arguments: Map<String, Value>, _context: Context) -> ToolFuture {
        panic!("a bug");
    }
}

fn closed(properties: &Value) -> Value {
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn echo(name: &str) -> Arc<dyn Tool> {
    Arc::new(Echo(Definition::new(name, "Echoes.", closed(&json!({"x": {"type": "integer"}})))))
}

fn failure_of(name: &str, arguments: Value) -> String {
    let registry = Registry::built_in().unwrap();
    let port = Arc::new(MemoryPort::default());
    let called = registry.call(name, object(arguments), Caller::Model, context(&port));
    called.err().map(|failure| format!("{}: {}", failure.code, failure.message)).unwrap_or_default()
}

#[test]
fn exec_code_is_off_by_default_and_there_when_it_is_asked_for() {
    let registry = Registry::built_in().unwrap();
    assert!(!registry.narrowed(&Allowed::All).unwrap().names().contains(&"exec_code".to_owned()));
    let narrowed = registry.narrowed(&Allowed::only(["exec_code"])).unwrap();
    assert_eq!(narrowed.names(), ["exec_code"]);
    let tools = narrowed.model_tools(Language::English);
    assert!(tools[0].parameters["properties"]["code"].is_object(), "{tools:?}");
}

#[test]
fn exec_code_goes_together_with_the_readers_of_variables() {
    let allowed = Allowed::only(["exec_code", "read_variable", "list_variables"]);
    let registry = Registry::built_in().unwrap().narrowed(&allowed).unwrap();
    assert_eq!(registry.names(), ["exec_code", "list_variables", "read_variable"]);
    assert!(registry.specs().iter().all(|spec| spec.local));
}

#[test]
fn a_name_can_be_taken_only_once() {
    let mut registry = Registry::built_in().unwrap();
    for name in ["exec_code", "file_reader", "file_read", "update_recursive_plan_tree"] {
        assert_eq!(registry.add(echo(name)), Err(RegistryError::Collision(name.into())));
    }
    registry.add(echo("mine")).unwrap();
    assert_eq!(registry.add(echo("mine")), Err(RegistryError::Collision("mine".into())));
    assert_eq!(registry.add(echo("a b")), Err(RegistryError::BadName("a b".into())));
}

#[test]
fn a_tool_that_is_not_as_it_says_is_found_when_it_is_added() {
    for (parameters, why) in [
        (json!({"type": "array"}), "no object"),
        (json!({"type": "object", "properties": {}}), "closed"),
        (json!({"type": "object", "additionalProperties": false}), "no `properties`"),
        (closed(&json!({PURPOSE: {}})), "cannot be its own"),
        (closed(&json!({"x": {"type": "nothing"}})), "no JSON Schema"),
        (
            json!({"type": "object", "properties": {}, "required": ["x"], "additionalProperties": false}),
            "not described",
        ),
    ] {
        let tool = Arc::new(Echo(Definition::new("tool", "", parameters)));
        let error = Registry::default().add(tool).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn every_tool_that_is_told_of_can_be_called_and_the_other_way_round() {
    let registry = Registry::built_in().unwrap();
    let names: Vec<String> =
        registry.model_tools(Language::English).into_iter().map(|tool| tool.name).collect();
    let specs: Vec<String> = registry.specs().into_iter().map(|spec| spec.name).collect();
    assert_eq!((&names, &specs), (&registry.names(), &registry.names()));
    let port = Arc::new(MemoryPort::default());
    for name in names {
        let refused = registry.call(&name, Map::new(), Caller::Model, context(&port)).err().unwrap();
        assert_eq!(refused.code, "bad_arguments", "{name}");
    }
}

#[test]
fn every_tool_is_told_with_a_required_purpose_and_closed_parameters() {
    for language in [Language::English, Language::Chinese] {
        for tool in Registry::built_in().unwrap().model_tools(language) {
            let parameters = &tool.parameters;
            assert!(!tool.description.is_empty());
            assert_eq!(parameters["properties"][PURPOSE]["type"], "string", "{}", tool.name);
            assert!(parameters["required"].as_array().unwrap().contains(&json!(PURPOSE)), "{}", tool.name);
            assert_eq!(parameters["additionalProperties"], false, "{}", tool.name);
            assert!(crate::schema::check(parameters).is_ok(), "{}", tool.name);
        }
    }
    for spec in Registry::built_in().unwrap().specs() {
        assert!(spec.parameters["properties"][PURPOSE].is_object());
        let required = spec.parameters["required"].as_array().cloned().unwrap_or_default();
        assert!(!required.contains(&json!(PURPOSE)), "{}", spec.name);
    }
}

#[test]
fn the_schemas_of_the_python_tool_and_the_plan_are_as_the_models_know_them() {
    let tools = Registry::built_in().unwrap().model_tools(Language::English);
    let schema = |name: &str| {
        let tool = tools.iter().find(|tool| tool.name == name).unwrap();
        serde_json::to_string_pretty(&tool.parameters).unwrap()
    };
    insta::assert_snapshot!("execute_python_code", schema("execute_python_code"));
    insta::assert_snapshot!("recursive_plan_tree_todo", schema("recursive_plan_tree_todo"));
    insta::assert_snapshot!("ask", schema("ask"));
}

#[test]
fn a_tool_without_a_description_says_so() {
    let mut registry = Registry::default();
    registry.add(Arc::new(Panics)).unwrap();
    assert_eq!(registry.model_tools(Language::English)[0].description, "no tool description");
    assert_eq!(registry.model_tools(Language::Chinese)[0].description, "无工具描述");
}

#[test]
fn an_unknown_tool_is_answered_with_the_known_ones() {
    let failure = failure_of("weather\u{1b}", json!({}));
    assert!(failure.starts_with("unknown_tool: there is no tool `weather\\u{1b}`"), "{failure}");
    assert!(failure.contains("execute_python_code, file_reader"), "{failure}");
    let registry = Registry::built_in().unwrap();
    let error = registry.narrowed(&Allowed::only(["weather"])).err().unwrap().to_string();
    assert!(error.contains("`weather`") && error.contains("ask, compute_with_python"), "{error}");
    let none = registry.narrowed(&Allowed::only::<String>([])).unwrap();
    assert!(none.names().is_empty());
}

#[test]
fn wrong_arguments_are_told_with_their_path_what_is_there_and_what_should_be() {
    let failure = failure_of("execute_python_code", json!({"timeout": "soon", "extra": 1}));
    for part in [
        "`/tool_call_purpose`: is required, but missing",
        "`/python_code_snippet`: is required, but missing",
        "`/timeout`: expected integer, got \"soon\"",
        "`/extra`: there is no such field",
    ] {
        assert!(failure.contains(part), "{part} in {failure}");
    }
    let plan = json!({PURPOSE: "p", "recursive_plan_tree": {"core_goal": "g", "tree_nodes": [
        {"task_name": "a", "children": [{"task_name": "b", "status": "done"}]}]}});
    let failure = failure_of("recursive_plan_tree_todo", plan);
    assert!(failure.contains("/recursive_plan_tree/tree_nodes/0/children"), "{failure}");
    let many = json!({PURPOSE: 5, "timeout": "x".repeat(100_000)});
    let failure = failure_of("execute_python_code", many);
    assert!(failure.len() < 2_000 && failure.contains("expected string"), "{failure}");
}

#[tokio::test]
async fn names_and_parameters_by_which_models_call_tools_are_understood() {
    let registry = Registry::built_in().unwrap();
    let port = Arc::new(MemoryPort::default());
    for (name, arguments) in [
        ("execute_python_code", json!({"code": "1"})),
        ("ExecutePythonCodeTool", json!({"python_code_snippet": "1", "timeout": null})),
        ("exec_code", json!({"code": "1"})),
        ("exec_code", json!({"python_code_snippet": "1"})),
    ] {
        let understood = call(&registry, &port, name, arguments).await.unwrap_err();
        assert_eq!(understood.code, "unavailable", "{name}");
    }
    let plan = json!({"current_plan_tree": {"core_goal": "g"}});
    assert!(call(&registry, &port, "update_recursive_plan_tree", plan).await.is_ok());
}

#[tokio::test]
async fn a_null_stands_for_an_optional_value_that_is_not_given() {
    let registry = Registry::built_in().unwrap();
    let port = Arc::new(MemoryPort::default());
    let node = json!({"task_id": null, "task_name": "a", "description": null, "status": null, "output": null,
                      "dependencies": null, "research_directions": null, "references": null,
                      "children": [{"task_name": "b", "status": null}]});
    let plan = json!({"recursive_plan_tree": {"core_goal": "g", "tree_nodes": [node], "next_action": null}});
    call(&registry, &port, "recursive_plan_tree_todo", plan).await.unwrap();
    let mut registry_of_one = Registry::default();
    let nullable = closed(&json!({"x": {"type": ["integer", "null"]}, "y": {"type": "string"}}));
    registry_of_one.add(Arc::new(Echo(Definition::new("echo", "", nullable)))).unwrap();
    let echoed = call(&registry_of_one, &port, "echo", json!({"x": null, "y": null})).await;
    assert_eq!(echoed, Ok(ToolOutput::Text("{\"x\":null}".into())));
    let required = json!({"recursive_plan_tree": {"core_goal": null}});
    let failure = call(&registry, &port, "recursive_plan_tree_todo", required).await.unwrap_err();
    assert!(failure.message.contains("core_goal"), "{failure:?}");
}

#[tokio::test]
async fn the_purpose_is_not_for_the_tool() {
    let mut registry = Registry::default();
    registry.add(echo("echo")).unwrap();
    let arguments = object(json!({PURPOSE: "to see", "x": 1}));
    let called = registry.call("echo", arguments, Caller::Model, Context::new(Value::Null)).unwrap();
    assert_eq!(called.await, Ok(ToolOutput::Text("{\"x\":1}".into())));
}

#[tokio::test]
async fn a_panic_in_a_tool_is_an_answer() {
    let mut registry = Registry::default();
    registry.add(Arc::new(Panics)).unwrap();
    let called = registry.call("panics", Map::new(), Caller::Code, Context::new(Value::Null)).unwrap();
    let failure = called.await.unwrap_err();
    assert_eq!(failure.code, "failed");
    assert!(failure.message.contains("`panics` has a bug"), "{failure:?}");
}

#[tokio::test]
async fn a_tool_that_needs_a_session_says_so_where_there_is_none() {
    let registry = Registry::built_in().unwrap();
    let called =
        registry.call("list_variables", Map::new(), Caller::Code, Context::new(Value::Null)).unwrap();
    assert_eq!(called.await.unwrap_err().code, "unavailable");
}

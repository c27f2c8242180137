//! Tools called through a registry, with a session in memory.

mod built_in;
mod command;
mod port;
mod registry;

use serde_json::{Map, Value, json};
use std::sync::Arc;

use super::{Caller, Context, Registry, ToolOutput};
use crate::protocol::frames::ToolFailure;
use port::MemoryPort;

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is no object"),
    }
}

fn context(port: &Arc<MemoryPort>) -> Context {
    Context::new(json!({"session": "test"})).with_port(Arc::clone(port) as _)
}

/// Calls a tool the way code in a cell does.
/// What a model or a person reads of an answer.
fn text_of(output: ToolOutput) -> String {
    match output.into_value() {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

async fn call(
    registry: &Registry,
    port: &Arc<MemoryPort>,
    name: &str,
    arguments: Value,
) -> Result<ToolOutput, ToolFailure> {
    registry.call(name, object(arguments), Caller::Code, context(port))?.await
}

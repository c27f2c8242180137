//! Structured steps: each reply is a `NextStep`, an object with `current_state` and one `function`,
//! which is a union on its field `tool`.
//!
//! In the history a step is an assistant message `Thought: …` with one call that was never sent by the
//! provider, and a tool message that answers it. The call has the name of the union's member.

use serde_json::{Map, Value, json};

use super::{Call, CallInput, DialectContext, Format, Intent, ParsedReply, Speech, nothing_said, only_text};
use crate::agent::json;
use crate::agent::words::Field;
use crate::protocol::chat::{AnswerSchema, ChatReply, Finish, Message, ModelTool, Role, ToolCall};
use crate::protocol::limits::TOOL_NAME_CHARS;
use crate::protocol::tool_names::{COMPLETION, PURPOSE};

/// The keys of a schema whose meaning stays when it is put into words.
const IN_WORDS: [&str; 5] = ["type", "description", "default", "examples", "title"];

pub(super) struct NextStep;

impl Speech for NextStep {
    fn format(&self, scene: DialectContext) -> Format {
        let tools: Vec<&ModelTool> = scene.setup.told(scene.spec).collect();
        let schema = schema(&tools, scene.spec.schema.as_ref());
        Format { tools: Vec::new(), answer: Some(AnswerSchema { name: "NextStep".to_owned(), schema }) }
    }

    fn parse(&self, reply: &ChatReply, step: u32, scene: DialectContext) -> ParsedReply {
        let words = scene.words;
        let malformed = |why| ParsedReply::new(only_text(reply), Intent::Malformed(why));
        if let Some(why) = nothing_said(reply, words) {
            return malformed(why);
        }
        let is_step = |value: &Value| value.get("function").is_some();
        let found = match json::find(&reply.message.content, is_step) {
            Ok(found) => found,
            Err(_) if reply.finish == Finish::Length => return malformed(words.cut_reply()),
            Err(problem) => return malformed(words.no_object(&problem)),
        };
        let Some(thought) = found.get("current_state").and_then(Value::as_str) else {
            return malformed(words.field("current_state", Field::NoText));
        };
        let Some(function) = found.get("function").and_then(Value::as_object) else {
            return malformed(words.field("function", Field::NoObject));
        };
        let Some(tool) = function.get("tool").and_then(Value::as_str) else {
            return malformed(words.field("function/tool", Field::NoText));
        };
        let mut fields = function.clone();
        fields.remove("tool");
        if tool == COMPLETION {
            return completed(reply, fields, thought, scene);
        }
        // `current_state` already says why the tool is called.
        if wants_purpose(scene, tool) {
            fields.entry(PURPOSE).or_insert_with(|| Value::String(thought.to_owned()));
        }
        let mut message = Message::new(Role::Assistant, format!("Thought: {thought}"));
        let call = Call::of_step(step, tool, CallInput::Call(Value::Object(fields).to_string()));
        message.tool_calls.push(ToolCall {
            id: call.id.clone(),
            name: member_name(tool),
            arguments: Value::Object(function.clone()).to_string(),
        });
        ParsedReply::new(message, Intent::Calls(vec![call]))
    }
}

fn wants_purpose(scene: DialectContext, name: &str) -> bool {
    let described = |tool: &&ModelTool| tool.parameters.pointer("/properties/tool_call_purpose").is_some();
    scene.setup.tools.iter().filter(|tool| tool.name == name).any(|tool| described(&tool))
}

/// A completion without an answer takes `current_state` as its answer.
fn completed(
    reply: &ChatReply,
    mut fields: Map<String, Value>,
    thought: &str,
    scene: DialectContext,
) -> ParsedReply {
    let intent = match fields.remove("answer") {
        Some(Value::Null) | None if scene.spec.schema.is_none() && !thought.trim().is_empty() => {
            Intent::Answer { text: thought.to_owned(), value: None }
        }
        Some(Value::String(text)) => Intent::Answer { value: Some(Value::String(text.clone())), text },
        Some(Value::Null) | None => Intent::Malformed(scene.words.field("function/answer", Field::Empty)),
        Some(value) => Intent::Answer { text: value.to_string(), value: Some(value) },
    };
    ParsedReply::new(only_text(reply), intent)
}

/// The name of a tool's member of the union: `compute_with_python` becomes `Req_ComputeWithPython`.
fn member_name(tool: &str) -> String {
    let mut name = "Req_".to_owned();
    for word in tool.split(|c: char| !c.is_ascii_alphanumeric()) {
        let mut letters = word.chars();
        name.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        name.extend(letters);
    }
    name.truncate(TOOL_NAME_CHARS);
    name
}

/// The union of all allowed tools and of the completion.
fn schema(tools: &[&ModelTool], answer: Option<&Value>) -> Value {
    let mut definitions = Map::new();
    let mut members = Vec::new();
    for tool in tools {
        members.push(member(&tool.name, &tool.parameters, &mut definitions));
    }
    let answer_wanted = answer.is_some();
    let answer = answer.cloned().unwrap_or_else(|| json!({"type": "string"}));
    let completion = json!({
        "type": "object",
        "properties": {"answer": hoisted(answer, COMPLETION, &mut definitions)},
        "required": if answer_wanted { vec!["answer"] } else { Vec::new() },
    });
    members.push(member(COMPLETION, &completion, &mut definitions));
    let mut schema = json!({
        "type": "object",
        "properties": {
            "current_state": {"type": "string"},
            "function": {"anyOf": members},
        },
        "required": ["current_state", "function"],
        "additionalProperties": false,
    });
    if let (Some(map), false) = (schema.as_object_mut(), definitions.is_empty()) {
        map.insert("$defs".to_owned(), Value::Object(definitions));
    }
    schema
}

/// The member of a tool. The prompt describes the tool and its parameters, so the schema does not repeat that.
fn member(name: &str, parameters: &Value, definitions: &mut Map<String, Value>) -> Value {
    let parameters = hoisted(parameters.clone(), name, definitions);
    let mut properties = Map::new();
    properties.insert("tool".to_owned(), json!({"type": "string", "enum": [name]}));
    if let Some(own) = parameters.get("properties").and_then(Value::as_object) {
        let own = own.iter().filter(|(key, _)| *key != "tool" && *key != PURPOSE);
        properties.extend(own.map(|(key, schema)| (key.clone(), undescribed(schema))));
    }
    let mut required = vec![json!("tool")];
    if let Some(own) = parameters.get("required").and_then(Value::as_array) {
        required.extend(own.iter().filter(|key| **key != "tool" && **key != PURPOSE).cloned());
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn undescribed(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        map.retain(|key, _| key != "description" && key != "examples");
    }
    schema
}

/// The parameters of a tool for the prompt: what the schema does not tell. The purpose is left out, because
/// `current_state` says it.
pub(in crate::agent) fn described_parameters(tool: &ModelTool) -> Value {
    let mut properties = tool.parameters.get("properties").cloned().unwrap_or_default();
    if let Some(properties) = properties.as_object_mut() {
        properties.remove(PURPOSE);
        for schema in properties.values_mut() {
            if let Some(words) = in_words(schema) {
                *schema = words.into();
            } else if let Some(schema) = schema.as_object_mut() {
                schema.remove("examples");
            }
        }
    }
    properties
}

/// The type of a value as in Python; none if the schema does not name one.
pub(in crate::agent) fn python_type(schema: &Value) -> Option<&'static str> {
    Some(match schema.get("type").and_then(Value::as_str)? {
        "string" => "str",
        "integer" => "int",
        "number" => "float",
        "boolean" => "bool",
        "array" => "list",
        "object" => "dict",
        _ => return None,
    })
}

/// A plain value in words: its type as in Python, its default, and what it is. None if its schema says more, which the
/// model could not know.
fn in_words(schema: &Value) -> Option<String> {
    if schema.as_object()?.keys().any(|key| !IN_WORDS.contains(&key.as_str())) {
        return None;
    }
    let kind = python_type(schema).filter(|kind| !matches!(*kind, "list" | "dict"))?;
    let default = schema.get("default").map(|default| format!(" = {default}")).unwrap_or_default();
    let about = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    Some(format!("{kind}{default}: {about}"))
}

/// Moves the definitions of a schema to those of the outer schema, where references look for them. Each name
/// is prefixed with its owner, so that two schemas may use the same name.
pub(super) fn hoisted(mut schema: Value, owner: &str, definitions: &mut Map<String, Value>) -> Value {
    let Some(map) = schema.as_object_mut() else { return schema };
    let mut own = Map::new();
    for key in ["$defs", "definitions"] {
        if let Some(Value::Object(more)) = map.remove(key) {
            own.extend(more);
        }
    }
    map.remove("$schema");
    for (name, mut definition) in own {
        point_to(&mut definition, owner);
        definitions.insert(format!("{owner}_{name}"), definition);
    }
    point_to(&mut schema, owner);
    schema
}

fn point_to(schema: &mut Value, owner: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                let name = value.as_str().filter(|_| key == "$ref").and_then(|pointer| {
                    pointer.strip_prefix("#/$defs/").or_else(|| pointer.strip_prefix("#/definitions/"))
                });
                match name {
                    Some(name) => *value = Value::String(format!("#/$defs/{owner}_{name}")),
                    None => point_to(value, owner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| point_to(item, owner)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Checker;

    #[test]
    fn members_have_the_names_of_the_source() {
        assert_eq!(member_name("compute_with_python"), "Req_ComputeWithPython");
        assert_eq!(member_name("get_secret"), "Req_GetSecret");
        assert_eq!(member_name("ünïcode"), "Req_NCode");
    }

    #[test]
    fn parameters_with_further_rules_are_told_by_their_schema() {
        let mode = json!({"type": "string", "enum": ["fast", "slow"]});
        let size = json!({"type": "integer", "minimum": 1, "default": 3});
        let name = json!({"type": "string", "title": "Name", "description": "Its name.", "default": "x"});
        let tool = ModelTool {
            name: "t".into(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {"mode": mode, "size": size, "name": name}}),
        };
        assert_eq!(
            described_parameters(&tool),
            json!({"mode": mode, "size": size, "name": "str = \"x\": Its name."})
        );
    }

    #[test]
    fn tools_with_definitions_of_the_same_name_share_one_union() {
        let tool = |name: &str, kind: &str| ModelTool {
            name: name.into(),
            description: String::new(),
            parameters: json!({
                "type": "object",
                "properties": {"node": {"$ref": "#/$defs/Node"}},
                "required": ["node"],
                "$defs": {"Node": {"type": kind}},
            }),
        };
        let (plan, count) = (tool("plan", "array"), tool("count", "integer"));
        let checker = Checker::new(&schema(&[&plan, &count], None)).unwrap();
        let fits = |tool: &str, node: Value| {
            let step = json!({"current_state": "", "function": {"tool": tool, "node": node}});
            checker.fits(&step)
        };
        assert!(fits("plan", json!([])) && fits("count", json!(1)));
        assert!(!fits("plan", json!(1)) && !fits("count", json!([])) && !fits("other", json!(1)));
    }
}

//! One JSON object per reply: `thought`, `action`, `code`, `final_answer`. Results return as a system message
//! `EXECUTION_RESULT: …`. Other tools are called as functions in Python.

use serde_json::{Map, Value, json};

use super::next_step::hoisted;
use super::{Call, CallInput, DialectContext, Format, Intent, ParsedReply, Speech, nothing_said, only_text};
use crate::agent::json;
use crate::agent::turn::AnsweredCall;
use crate::agent::words::{Field, Words};
use crate::protocol::chat::{AnswerSchema, ChatReply, Finish, Message, Role};
use crate::protocol::tool_names::{ANSWER_ACTION, CELL_TOOL};

const RESULT: &str = "EXECUTION_RESULT: ";
const EXECUTE: &str = "execute_code";
const DEBUG: &str = "debug_error";
/// An older name of `debug_error`.
const CONTINUE: &str = "continue_debugging";

pub(super) struct JsonAction;

impl Speech for JsonAction {
    fn format(&self, scene: DialectContext) -> Format {
        let mut definitions = Map::new();
        let answer = match &scene.spec.schema {
            Some(schema) => {
                json!({"anyOf": [hoisted(schema.clone(), "answer", &mut definitions), {"type": "null"}]})
            }
            None => json!({"type": ["string", "null"]}),
        };
        let schema = json!({
            "type": "object",
            "properties": {
                "thought": {"type": "string"},
                "action": {"type": "string", "enum": [EXECUTE, DEBUG, ANSWER_ACTION]},
                "code": {"type": ["string", "null"]},
                "final_answer": answer,
            },
            "required": ["thought", "action", "code", "final_answer"],
            "additionalProperties": false,
            "$defs": definitions,
        });
        Format { tools: Vec::new(), answer: Some(AnswerSchema { name: "CodeAction".to_owned(), schema }) }
    }

    fn has_calls(&self) -> bool {
        false
    }

    fn parse(&self, reply: &ChatReply, step: u32, scene: DialectContext) -> ParsedReply {
        let intent = intent(reply, step, scene.words).unwrap_or_else(Intent::Malformed);
        ParsedReply::new(only_text(reply), intent)
    }

    fn record(&self, message: Message, answered: Vec<AnsweredCall>) -> Vec<Message> {
        let mut messages = vec![message];
        let results =
            answered.into_iter().map(|answer| Message::new(Role::System, format!("{RESULT}{}", answer.text)));
        messages.extend(results);
        messages
    }
}

fn intent(reply: &ChatReply, step: u32, words: Words) -> Result<Intent, String> {
    if let Some(why) = nothing_said(reply, words) {
        return Err(why);
    }
    let is_action = |value: &Value| value.get("action").is_some();
    let found = json::find(&reply.message.content, is_action).map_err(|problem| match reply.finish {
        Finish::Length => words.cut_reply(),
        _ => words.no_object(&problem),
    })?;
    let Value::Object(fields) = found else { return Err(words.no_object("")) };
    match fields.get("action").and_then(Value::as_str) {
        Some(EXECUTE | DEBUG | CONTINUE) => cell(&fields, step, words),
        Some(ANSWER_ACTION) => answer(fields, words),
        _ => {
            let given = fields.get("action").map(Value::to_string).unwrap_or_default();
            let known = [EXECUTE, DEBUG, ANSWER_ACTION].join(", ");
            Err(words.unknown_action(&crate::schema::excerpt(&given), &known))
        }
    }
}

fn cell(fields: &Map<String, Value>, step: u32, words: Words) -> Result<Intent, String> {
    match fields.get("code") {
        Some(Value::String(code)) if !code.trim().is_empty() => {
            Ok(Intent::Calls(vec![Call::of_step(step, CELL_TOOL, CallInput::Cell(code.clone()))]))
        }
        Some(Value::String(_) | Value::Null) | None => Err(words.field("code", Field::Empty)),
        Some(_) => Err(words.field("code", Field::NoText)),
    }
}

fn answer(mut fields: Map<String, Value>, words: Words) -> Result<Intent, String> {
    match fields.remove("final_answer") {
        Some(Value::Null) | None => Err(words.field("final_answer", Field::Empty)),
        Some(Value::String(text)) if text.trim().is_empty() => Err(words.field("final_answer", Field::Empty)),
        Some(Value::String(text)) => Ok(Intent::Answer { value: Some(Value::String(text.clone())), text }),
        Some(value) => Ok(Intent::Answer { text: value.to_string(), value: Some(value) }),
    }
}

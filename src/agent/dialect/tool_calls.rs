//! Calls as in chat completions: `tool_calls`, and the older `function_call`.
//!
//! A reply without calls is the final answer. Each call is answered by a message of role `tool`
//! under its id, a `function_call` by one of role `function`; a reply with both becomes two in the
//! history, because providers accept only one kind per message.

use serde_json::{Map, Value};

use super::{Call, CallInput, DialectContext, Format, Intent, ParsedReply, Speech, tame_name};
use crate::agent::history::{NO_ARGUMENTS, function_result, tool_result};
use crate::agent::turn::AnsweredCall;
use crate::protocol::chat::{AnswerSchema, ChatReply, Finish, FunctionCall, Message, Role, ToolCall};

/// The most calls of one reply that are carried out.
const CALLS_PER_REPLY: usize = 32;

pub(super) struct ToolCalls;

impl Speech for ToolCalls {
    /// The schema of the answer is sent only if there are no tools: many servers give it priority over the
    /// tools, so that the model could never call one. With tools, the prompt asks for the schema.
    fn format(&self, scene: DialectContext) -> Format {
        let tools: Vec<_> = scene.setup.told(scene.spec).cloned().collect();
        let schema = scene.spec.schema.clone().filter(|_| tools.is_empty());
        let answer = schema.map(|schema| AnswerSchema { name: "answer".to_owned(), schema });
        Format { tools, answer }
    }

    fn has_headings(&self) -> bool {
        true
    }

    fn parse(&self, reply: &ChatReply, step: u32, scene: DialectContext) -> ParsedReply {
        let words = scene.words;
        let mut message = Message::new(Role::Assistant, reply.message.content.clone());
        let mut calls: Vec<Call> = Vec::new();
        for call in reply.message.tool_calls.iter().take(CALLS_PER_REPLY) {
            message.tool_calls.push(ToolCall {
                id: call.id.clone(),
                name: tame_name(&call.name),
                arguments: tame_arguments(&call.arguments),
            });
            let input = CallInput::Call(call.arguments.clone());
            calls.push(Call { id: call.id.clone(), name: call.name.clone(), input, legacy: false });
        }
        let mut after = Vec::new();
        let dropped = reply.message.tool_calls.len().saturating_sub(CALLS_PER_REPLY);
        if dropped > 0 {
            after.push(words.too_many_calls(dropped, CALLS_PER_REPLY));
        }
        match &reply.message.function_call {
            Some(call) if scene.setup.legacy_function_call => {
                message.function_call = Some(FunctionCall {
                    name: tame_name(&call.name),
                    arguments: tame_arguments(&call.arguments),
                });
                let input = CallInput::Call(call.arguments.clone());
                let id = format!("function_{step}");
                calls.push(Call { id, name: call.name.clone(), input, legacy: true });
            }
            // The model should see its call, but as text, because a call would need an answer.
            Some(call) if calls.is_empty() => {
                let call_text = format!("[function_call {} {}]", call.name, call.arguments);
                message.content.push_str(&call_text);
                return ParsedReply::new(message, Intent::Correct(words.no_function_call()));
            }
            Some(_) => after.push(words.no_function_call()),
            None => {}
        }
        let intent = if !calls.is_empty() {
            Intent::Calls(calls)
        } else if reply.finish == Finish::Length {
            Intent::Correct(words.malformed(&words.cut_reply(), ""))
        } else if message.content.trim().is_empty() {
            Intent::Correct(words.malformed(&words.empty_reply(), ""))
        } else {
            Intent::Answer { text: message.content.clone(), value: None }
        };
        ParsedReply { message, intent, after: (!after.is_empty()).then(|| after.join("\n")) }
    }

    fn record(&self, mut message: Message, answered: Vec<AnsweredCall>) -> Vec<Message> {
        let mut legacy = None;
        if !message.tool_calls.is_empty() {
            legacy = message.function_call.take();
        }
        let (functions, tools): (Vec<_>, Vec<_>) = answered.into_iter().partition(|answer| answer.legacy);
        for (call, answer) in message.tool_calls.iter_mut().zip(&tools) {
            call.id.clone_from(&answer.id);
        }
        let mut messages = vec![message];
        messages.extend(tools.into_iter().map(|answer| tool_result(&answer.id, answer.text)));
        for answer in functions {
            if let Some(call) = legacy.take() {
                let mut second = Message::new(Role::Assistant, "");
                second.function_call = Some(call);
                messages.push(second);
            }
            messages.push(function_result(&tame_name(&answer.name), answer.text));
        }
        messages
    }
}

/// Replaces invalid arguments: some servers parse the arguments of earlier calls and refuse the whole request
/// if they cannot. The answer to such a call quotes the original.
fn tame_arguments(arguments: &str) -> String {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(_) => arguments.to_owned(),
        Err(_) => NO_ARGUMENTS.to_owned(),
    }
}

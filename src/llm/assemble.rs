//! Assembles a reply from the pieces of a stream.
//!
//! Compatible servers differ most here: a part that is missing or of another type is left out instead of refused, and
//! only sizes are strict.

use serde_json::Value;

use super::client::Delta;
use super::failure::AttemptFailure;
use crate::protocol::chat::{ChatReply, Finish, FunctionCall, Message, Role, ToolCall, Usage};
use crate::protocol::values;

/// More tokens than any context window has.
const USAGE_TOKENS: u64 = 16 << 20;
/// The most bytes of all texts and arguments of one reply together.
pub const REPLY_BYTES: usize = 16 * 1024 * 1024;
/// The most bytes of one call's arguments.
const ARGUMENTS_BYTES: usize = 4 * 1024 * 1024;
/// The most bytes of memory of a chunk or of a whole answer as parsed values, with its text.
const PARSED_BYTES: u64 = 64 * 1024 * 1024;
/// The most tool calls of one reply.
const TOOL_CALLS: usize = 128;
/// The most bytes of a call's id or name; longer ones are ignored.
const NAME_BYTES: usize = 256;

/// The provider's mark for the end of a stream.
const DONE: &str = "[DONE]";

#[derive(Debug, Default)]
pub(super) struct Assembler {
    content: String,
    reasoning: String,
    refusal: String,
    calls: Vec<Slot>,
    function_call: Option<FunctionCall>,
    finish: Option<Finish>,
    usage: Option<Usage>,
    /// Whether the stream contained a choice.
    answered: bool,
    done: bool,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Slot {
    index: Option<u64>,
    id: String,
    function: FunctionCall,
}

/// Parses what a server sent as a stream or as an answer, unless it would take much more memory than its text: a list
/// of small values does.
pub(super) fn parsed(json: &str, source: &str) -> Result<Value, AttemptFailure> {
    if values::parsed_bytes(json) > PARSED_BYTES {
        return Err(AttemptFailure::bad_reply(format!("the {source} holds too many values")));
    }
    serde_json::from_str(json)
        .map_err(|error| AttemptFailure::bad_reply(format!("the {source} holds no JSON: {error}")))
}

impl Assembler {
    /// Processes the data of one event and returns the parts that can be shown already.
    pub fn event(&mut self, data: &str) -> Result<Vec<Delta>, AttemptFailure> {
        if data.trim() == DONE {
            self.done = true;
            return Ok(Vec::new());
        }
        self.chunk(&parsed(data, "stream")?)
    }

    /// Processes one chunk of a stream, or a whole answer that was not streamed.
    pub fn chunk(&mut self, chunk: &Value) -> Result<Vec<Delta>, AttemptFailure> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(AttemptFailure::of_event(error));
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let count = |key| usage.get(key).and_then(Value::as_u64).unwrap_or_default();
            let (prompt_tokens, completion_tokens) = (count("prompt_tokens"), count("completion_tokens"));
            // An implausible count is ignored and later estimated, because the tokens are charged to a user's quota.
            self.usage = (prompt_tokens.max(completion_tokens) <= USAGE_TOKENS)
                .then_some(Usage { prompt_tokens, completion_tokens });
        }
        let mut deltas = Vec::new();
        let choices = chunk.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for choice in choices {
            // The request asked for only one choice.
            if choice.get("index").and_then(Value::as_u64).unwrap_or_default() == 0 {
                self.choice(choice, &mut deltas)?;
            }
        }
        Ok(deltas)
    }

    /// Whether the provider marked the end of the stream.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the reply counts as complete if nothing more arrives.
    pub fn is_whole(&self) -> bool {
        self.answered && (self.done || self.finish.is_some())
    }

    /// The bytes of all texts and arguments so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Ends the reply here, as if the provider had stopped at a length limit.
    pub fn cut_short(mut self) -> Self {
        self.finish = Some(Finish::Length);
        self
    }

    pub fn is_answered(&self) -> bool {
        self.answered
    }

    fn choice(&mut self, choice: &Value, deltas: &mut Vec<Delta>) -> Result<(), AttemptFailure> {
        self.answered = true;
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish = Some(match reason {
                "stop" => Finish::Stop,
                "tool_calls" | "function_call" => Finish::ToolCalls,
                "length" => Finish::Length,
                "content_filter" => Finish::ContentFilter,
                _ => Finish::Other,
            });
        }
        let delta =
            ["delta", "message"].iter().find_map(|key| choice.get(key).filter(|delta| delta.is_object()));
        let Some(delta) = delta else { return Ok(()) };
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|key| text_of(delta.get(key)?));
        if let Some(text) = reasoning {
            self.count(text.len())?;
            self.reasoning.push_str(&text);
            deltas.push(Delta::Reasoning(text));
        }
        if let Some(text) = delta.get("content").and_then(text_of) {
            self.count(text.len())?;
            self.content.push_str(&text);
            deltas.push(Delta::Text(text));
        }
        if let Some(text) = delta.get("refusal").and_then(text_of) {
            self.count(text.len())?;
            self.refusal.push_str(&text);
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
            self.tool_call(call)?;
        }
        if let Some(call) = delta.get("function_call").filter(|call| call.is_object()) {
            self.legacy_call(call)?;
        }
        Ok(())
    }

    fn tool_call(&mut self, piece: &Value) -> Result<(), AttemptFailure> {
        let function = piece.get("function").unwrap_or(&Value::Null);
        let index = piece.get("index").and_then(Value::as_u64);
        let id = short(piece.get("id"));
        let name = short(function.get("name"));
        let arguments = arguments_of(function);
        self.count(id.len() + name.len() + arguments.len())?;
        let slot = self.slot(index, id, name)?;
        if slot.id.is_empty() {
            id.clone_into(&mut slot.id);
        }
        extend(&mut slot.function, name, &arguments, "a tool call")
    }

    /// The call that a piece belongs to: the one with its index or its id, or the last one.
    fn slot(&mut self, index: Option<u64>, id: &str, name: &str) -> Result<&mut Slot, AttemptFailure> {
        // A piece with another id and a name begins another call, even if the index is the same.
        let other = |slot: &Slot| !id.is_empty() && !slot.id.is_empty() && slot.id != id && !name.is_empty();
        let found = match (index, id) {
            (Some(_), _) => self.calls.iter().rposition(|slot| slot.index == index && !other(slot)),
            (None, "") => {
                let last = self.calls.len().checked_sub(1);
                // A name that follows arguments begins the next call.
                let next = self.calls.last().is_some_and(|slot| !slot.function.arguments.is_empty());
                last.filter(|_| name.is_empty() || !next)
            }
            (None, id) => self.calls.iter().rposition(|slot| slot.id == id),
        };
        let slot_index = match found {
            Some(slot_index) => slot_index,
            None if self.calls.len() < TOOL_CALLS => {
                self.calls.push(Slot { index, ..Slot::default() });
                self.calls.len() - 1
            }
            None => return Err(too_large("the number of tool calls", TOOL_CALLS)),
        };
        self.calls.get_mut(slot_index).ok_or_else(|| AttemptFailure::bad_reply("a tool call got lost"))
    }

    fn legacy_call(&mut self, piece: &Value) -> Result<(), AttemptFailure> {
        let (name, arguments) = (short(piece.get("name")), arguments_of(piece));
        self.count(name.len() + arguments.len())?;
        extend(self.function_call.get_or_insert_default(), name, &arguments, "a function call")
    }

    fn count(&mut self, bytes: usize) -> Result<(), AttemptFailure> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > REPLY_BYTES { Err(too_large("the reply", REPLY_BYTES)) } else { Ok(()) }
    }

    /// The reply. `turn` makes ids unique that the provider left out or used twice.
    pub fn reply(self, turn: usize) -> ChatReply {
        let mut tool_calls: Vec<ToolCall> = Vec::new();
        let calls = self.calls.into_iter().filter(|slot| slot.function != FunctionCall::default());
        for (number, slot) in calls.enumerate() {
            let taken = slot.id.is_empty() || tool_calls.iter().any(|call| call.id == slot.id);
            let id = if taken { format!("call_{turn}_{number}") } else { slot.id };
            let FunctionCall { name, arguments } = slot.function;
            tool_calls.push(ToolCall { id, name, arguments });
        }
        let finish = match self.finish {
            Some(Finish::Stop) if !tool_calls.is_empty() => Finish::ToolCalls,
            finish => finish.unwrap_or(Finish::Other),
        };
        let some = |text: String| (!text.is_empty()).then_some(text);
        let (thought, content) = apart(self.content);
        let reasoning = if self.reasoning.is_empty() { thought } else { self.reasoning };
        ChatReply {
            message: Message {
                tool_calls,
                function_call: self.function_call,
                ..Message::new(Role::Assistant, content)
            },
            reasoning: some(reasoning),
            refusal: some(self.refusal),
            finish,
            usage: self.usage,
        }
    }
}

/// Separates the reasoning, which servers without a parser for it leave in front of the content.
fn apart(content: String) -> (String, String) {
    match content.trim_start().strip_prefix("<think>").and_then(|rest| rest.split_once("</think>")) {
        Some((thought, answer)) => (thought.trim().to_owned(), answer.trim_start().to_owned()),
        None => (String::new(), content),
    }
}

/// Adds a piece to a call. Some servers send the name in pieces, others repeat the whole name with every piece of the
/// arguments.
fn extend(call: &mut FunctionCall, name: &str, arguments: &str, what: &str) -> Result<(), AttemptFailure> {
    if call.name != name && call.name.len() + name.len() <= NAME_BYTES {
        call.name.push_str(name);
    }
    call.arguments.push_str(arguments);
    if call.arguments.len() > ARGUMENTS_BYTES {
        return Err(too_large(&format!("the arguments of {what}"), ARGUMENTS_BYTES));
    }
    Ok(())
}

fn too_large(what: &str, limit: usize) -> AttemptFailure {
    AttemptFailure::bad_reply(format!("{what} is over the limit of {limit}"))
}

/// A text, or the joined text parts of a list; `None` if that is empty.
fn text_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    };
    (!text.is_empty()).then_some(text)
}

fn short(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).filter(|text| text.len() <= NAME_BYTES).unwrap_or_default()
}

/// Arguments are JSON in a string; some servers send the JSON itself.
fn arguments_of(function: &Value) -> String {
    match function.get("arguments") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests;

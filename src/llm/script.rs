//! Replies from a file written by hand, for examples and tests: no model is asked.
//!
//! ```toml
//! [[reply]]
//! expect = "words that the newest message has to contain"
//! content = "What the model says."        # or: json = { … }, sent as JSON
//! delay_ms = 500                          # spreads the reply over this time
//! [[reply.call]]
//! name = "execute_python_code"
//! arguments = { python_code_snippet = "1 + 1" }    # or: arguments_text = "{broken"
//! # The legacy form: reply.function_call = { name = "…", arguments = { … } }
//!
//! # Another list for the conversation whose first message of a user contains this.
//! [[conversation]]
//! first = "words"
//! [[conversation.reply]]
//! content = "…"
//! ```
//!
//! The place of a reply in the list is the number of assistant messages in the request. So the script needs no memory:
//! after a restart of the daemon it goes on where the conversation is, and a further ask continues in the list. A
//! history whose turns were summarised has fewer messages; `expect` notices that.

use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

use super::client::Delta;
use super::failure::{AttemptFailure, clean};
use crate::protocol::chat::{ChatReply, ChatRequest, Finish, FunctionCall, Message, Role, ToolCall};

/// A script is written by hand; a file larger than this is refused as something else.
const SCRIPT_BYTES: u64 = 4 * 1024 * 1024;
/// The longest delay of a reply.
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// The number of pieces of a delayed reply.
const PIECES: usize = 40;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    #[serde(default, rename = "reply")]
    replies: Vec<ScriptedReply>,
    #[serde(default, rename = "conversation")]
    conversations: Vec<Conversation>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    first: String,
    #[serde(default, rename = "reply")]
    replies: Vec<ScriptedReply>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedReply {
    expect: Option<String>,
    content: Option<String>,
    json: Option<Value>,
    #[serde(default, rename = "call")]
    calls: Vec<ScriptedCall>,
    function_call: Option<ScriptedCall>,
    #[serde(default)]
    delay_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedCall {
    name: String,
    arguments: Option<Value>,
    arguments_text: Option<String>,
}

impl ScriptedCall {
    fn arguments(&self) -> String {
        let text = self.arguments_text.clone();
        text.or_else(|| self.arguments.as_ref().map(Value::to_string)).unwrap_or_else(|| "{}".to_owned())
    }
}

/// The reply to a request. The file is read each time, so that it can be edited meanwhile.
pub(super) async fn play(
    file: Option<&Path>,
    request: &ChatRequest,
    deltas: &mut (impl FnMut(Delta) + Send),
) -> Result<ChatReply, AttemptFailure> {
    let text = super::cassette::read(file, SCRIPT_BYTES).await?;
    let (reply, delay) = answer(&text, request)?;
    tell(&reply.message.content, delay, deltas).await;
    Ok(reply)
}

fn answer(text: &str, request: &ChatRequest) -> Result<(ChatReply, Duration), AttemptFailure> {
    let script: Script = toml::from_str(text).map_err(|error| {
        AttemptFailure::not_recorded(format!("the script is wrong: {}", clean(&error.to_string())))
    })?;
    let first = request.messages.iter().find(|message| message.role == Role::User);
    let first = first.map_or("", |message| message.content.as_str());
    let own = script.conversations.iter().find(|conversation| first.contains(&conversation.first));
    let replies = own.map_or(script.replies.as_slice(), |conversation| conversation.replies.as_slice());
    let index = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
    let Some(scripted) = replies.get(index) else {
        return Err(AttemptFailure::not_recorded(format!(
            "the script ends after {} replies, and this is request {}",
            replies.len(),
            index + 1
        )));
    };
    let newest = request.messages.last().map_or("", |message| message.content.as_str());
    if let Some(expected) = scripted.expect.as_ref().filter(|expected| !newest.contains(expected.as_str())) {
        return Err(AttemptFailure::not_recorded(format!(
            "reply {} of the script expects `{}` in the newest message, which is: {}",
            index + 1,
            clean(expected),
            clean(newest)
        )));
    }
    let delay = Duration::from_millis(scripted.delay_ms).min(LONGEST_DELAY);
    Ok((reply(scripted, index), delay))
}

fn reply(scripted: &ScriptedReply, index: usize) -> ChatReply {
    let json = scripted.json.as_ref().map(Value::to_string);
    let content = scripted.content.clone().or(json).unwrap_or_default();
    let tool_calls: Vec<ToolCall> = scripted
        .calls
        .iter()
        .enumerate()
        .map(|(number, call)| ToolCall {
            id: format!("call_{index}_{number}"),
            name: call.name.clone(),
            arguments: call.arguments(),
        })
        .collect();
    let function_call = scripted
        .function_call
        .as_ref()
        .map(|call| FunctionCall { name: call.name.clone(), arguments: call.arguments() });
    let calls = !tool_calls.is_empty() || function_call.is_some();
    ChatReply {
        message: Message { tool_calls, function_call, ..Message::new(Role::Assistant, content) },
        reasoning: None,
        refusal: None,
        finish: if calls { Finish::ToolCalls } else { Finish::Stop },
        usage: None,
    }
}

/// Sends the text in pieces, spread over the delay.
async fn tell(text: &str, delay: Duration, deltas: &mut (impl FnMut(Delta) + Send)) {
    let chars: Vec<char> = text.chars().collect();
    let size = if delay.is_zero() { chars.len() } else { chars.len().div_ceil(PIECES) }.max(1);
    let count = u32::try_from(chars.chunks(size).len()).unwrap_or(u32::MAX).max(1);
    if chars.is_empty() {
        tokio::time::sleep(delay).await;
    }
    for piece in chars.chunks(size) {
        tokio::time::sleep(delay / count).await;
        deltas(Delta::Text(piece.iter().collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = r#"
[[reply]]
expect = "sum"
content = "I shall compute."
[[reply.call]]
name = "execute_python_code"
arguments = { python_code_snippet = "1 + 1", timeout = 5 }
[[reply.call]]
name = "broken"
arguments_text = "{oops"

[[reply]]
json = { action = "final", answer = [1, 2] }

[[reply]]
function_call = { name = "file_read", arguments = { path = "a" } }

[[conversation]]
first = "nested"
[[conversation.reply]]
content = "inner"
"#;

    fn request(turns: &[(Role, &str)]) -> ChatRequest {
        let messages = turns.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        ChatRequest { messages, tools: Vec::new(), answer: None, reply_tokens: None }
    }

    fn played(turns: &[(Role, &str)]) -> Result<Message, String> {
        answer(SCRIPT, &request(turns)).map(|(reply, _)| reply.message).map_err(|failure| failure.message)
    }

    #[test]
    fn the_place_in_the_script_is_that_in_the_conversation() {
        let first = played(&[(Role::System, "s"), (Role::User, "the sum?")]).unwrap();
        assert_eq!(first.content, "I shall compute.");
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(
            first.tool_calls,
            [
                call("call_0_0", "execute_python_code", r#"{"python_code_snippet":"1 + 1","timeout":5}"#),
                call("call_0_1", "broken", "{oops"),
            ]
        );
        let so_far = [(Role::User, "the sum?"), (Role::Assistant, ""), (Role::Tool, "2")];
        assert_eq!(played(&so_far).unwrap().content, r#"{"action":"final","answer":[1,2]}"#);
        let more = [so_far.as_slice(), &[(Role::Assistant, "2"), (Role::User, "more")]].concat();
        assert_eq!(played(&more).unwrap().function_call.unwrap().arguments, r#"{"path":"a"}"#);
        assert_eq!(played(&[(Role::User, "a nested one")]).unwrap().content, "inner");
    }

    #[test]
    fn what_does_not_fit_is_told() {
        insta::assert_snapshot!(played(&[(Role::User, "product\u{1b}[1m")]).unwrap_err(), @r#"
        reply 1 of the script expects `sum` in the newest message, which is: product
        "#);
        let long = [(Role::User, "sum"), (Role::Assistant, ""), (Role::Assistant, ""), (Role::Assistant, "")];
        insta::assert_snapshot!(played(&long).unwrap_err(), @r#"
        the script ends after 3 replies, and this is request 4
        "#);
        let wrong = answer("[[reply]]\ncontnt = \"x\"\n", &request(&[])).unwrap_err().message;
        assert!(wrong.contains("contnt"), "{wrong}");
    }

    #[tokio::test]
    async fn a_reply_may_take_its_time() {
        let mut deltas = Vec::new();
        let begun = tokio::time::Instant::now();
        tell(&"é".repeat(100), Duration::from_millis(170), &mut |delta| deltas.push(delta)).await;
        assert!(begun.elapsed() >= Duration::from_millis(165), "{:?}", begun.elapsed());
        assert_eq!(deltas.len(), 34);
        deltas.clear();
        tell("at once", Duration::ZERO, &mut |delta| deltas.push(delta)).await;
        assert_eq!(deltas, [Delta::Text("at once".into())]);
    }
}

//! What the server plays, and how it is written as OpenAI writes it.

use serde_json::{Value, json};

/// Characters of text, and of arguments, in one chunk.
const CHUNK_CHARS: usize = 5;
const CREATED: u64 = 1_700_000_000;

#[derive(Clone, Debug)]
pub enum Play {
    Reply(Reply),
    Fault(Fault),
}

#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub content: Option<String>,
    /// Name and arguments.
    pub calls: Vec<(String, String)>,
    pub function_call: Option<(String, String)>,
    pub reasoning: Option<String>,
    pub refusal: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Fault {
    /// A status, with `Retry-After` if given.
    Status(u16, Option<&'static str>),
    /// A status with an error message.
    Says(u16, String),
    /// No answer at all.
    Stall,
    /// Half a reply, and then nothing.
    StallInStream,
    /// Half a reply, and then the connection ends.
    Cut,
    /// Half a reply, and then a proper end of the body.
    EndWithoutFinish,
    /// A body of this type and text.
    Raw(&'static str, String),
    /// One event of 1 GiB.
    EndlessEvent,
}

impl Reply {
    pub fn text(content: &str) -> Self {
        Self { content: Some(content.into()), ..Self::default() }
    }

    pub fn call(name: &str, arguments: Value) -> Self {
        Self::default().and_call(name, arguments)
    }

    pub fn and_call(mut self, name: &str, arguments: Value) -> Self {
        self.calls.push((name.into(), arguments.to_string()));
        self
    }

    fn finish(&self) -> &'static str {
        match (self.calls.is_empty(), &self.function_call) {
            (false, _) => "tool_calls",
            (true, Some(_)) => "function_call",
            (true, None) => "stop",
        }
    }

    fn usage(&self, request: &Value) -> Value {
        let prompt = request["messages"].to_string().len() / 4;
        let said = self.content.as_deref().unwrap_or_default().len() / 4
            + self.calls.iter().map(|call| call.1.len() / 4).sum::<usize>()
            + 1;
        json!({"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said})
    }
}

impl From<Reply> for Play {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl From<Fault> for Play {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Unique in a conversation.
fn call_id(request: &Value, place: usize) -> String {
    format!("call_{:04}_{place}", request["messages"].as_array().map_or(0, Vec::len))
}

/// The events of a stream, each with its empty line.
pub fn events(request: &Value, reply: &Reply) -> Vec<String> {
    let mut chunks = vec![delta(request, json!({"role": "assistant", "content": ""}))];
    for text in split(reply.reasoning.as_deref()) {
        chunks.push(delta(request, json!({"reasoning_content": text})));
    }
    for text in split(reply.content.as_deref()) {
        chunks.push(delta(request, json!({"content": text})));
    }
    for text in split(reply.refusal.as_deref()) {
        chunks.push(delta(request, json!({"refusal": text})));
    }
    for (place, (name, arguments)) in reply.calls.iter().enumerate() {
        let opening = json!({"index": place, "id": call_id(request, place), "type": "function",
            "function": {"name": name, "arguments": ""}});
        chunks.push(delta(request, json!({"tool_calls": [opening]})));
        for text in split(Some(arguments)) {
            let piece = json!({"index": place, "function": {"arguments": text}});
            chunks.push(delta(request, json!({"tool_calls": [piece]})));
        }
    }
    if let Some((name, arguments)) = &reply.function_call {
        chunks.push(delta(request, json!({"function_call": {"name": name, "arguments": ""}})));
        for text in split(Some(arguments)) {
            chunks.push(delta(request, json!({"function_call": {"arguments": text}})));
        }
    }
    chunks.push(chunk(
        request,
        json!([{"index": 0, "delta": {}, "finish_reason": reply.finish(), "logprobs": null}]),
    ));
    if request["stream_options"]["include_usage"] == json!(true) {
        let mut last = chunk(request, json!([]));
        last["usage"] = reply.usage(request);
        chunks.push(last);
    }
    let mut events: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    events.insert(1, ": still here\n\n".into());
    events.push("data: [DONE]\n\n".into());
    events
}

/// The answer in one piece.
pub fn whole(request: &Value, reply: &Reply) -> Value {
    let mut message = json!({"role": "assistant", "content": reply.content, "refusal": reply.refusal});
    if !reply.calls.is_empty() {
        let call = |(place, (name, arguments)): (usize, &(String, String))| {
            json!({"id": call_id(request, place), "type": "function",
                "function": {"name": name, "arguments": arguments}})
        };
        message["tool_calls"] = reply.calls.iter().enumerate().map(call).collect();
    }
    if let Some((name, arguments)) = &reply.function_call {
        message["function_call"] = json!({"name": name, "arguments": arguments});
    }
    json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": CREATED,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish(), "logprobs": null}],
        "usage": reply.usage(request),
    })
}

fn delta(request: &Value, delta: Value) -> Value {
    chunk(request, json!([{"index": 0, "delta": delta, "finish_reason": null, "logprobs": null}]))
}

fn chunk(request: &Value, choices: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": CREATED,
        "model": request["model"], "choices": choices})
}

fn split(text: Option<&str>) -> Vec<String> {
    let chars: Vec<char> = text.unwrap_or_default().chars().collect();
    chars.chunks(CHUNK_CHARS).map(|piece| piece.iter().collect()).collect()
}

//! The JSON body of a request in the form that one provider expects.

use serde_json::{Map, Value, json};

use crate::config::{Model, Provider};
use crate::protocol::chat::{ChatReply, ChatRequest, Message, ModelTool, Picture, ToolCall};
use crate::schema::{strict, undo};

/// A limit of reply tokens that every model accepts.
const TAKEN_BY_ALL: u64 = 4_096;

/// `POST …/chat/completions`
pub(super) fn body(model: &Model, request: &ChatRequest) -> Value {
    let mut body = Map::new();
    let mut set = |key: &str, value: Value| body.insert(key.to_owned(), value);
    set("model", model.model.as_str().into());
    set("messages", request.messages.iter().map(message).collect());
    set("stream", true.into());
    set("stream_options", json!({"include_usage": true}));
    if model.tools && !request.tools.is_empty() {
        set("tools", request.tools.iter().map(|declared| tool(model, declared)).collect());
        set("parallel_tool_calls", true.into());
    }
    if let Some(answer) = request.answer.as_ref().filter(|_| model.json_schema) {
        let form = model.strict.then(|| strict(&answer.schema)).flatten();
        let checked = form.is_some() || !model.strict;
        let schema = form.unwrap_or_else(|| answer.schema.clone());
        set(
            "response_format",
            json!({
                "type": "json_schema",
                "json_schema": {"name": answer.name, "schema": schema, "strict": checked},
            }),
        );
    }
    if let Some(temperature) = model.temperature {
        set("temperature", temperature.into());
    }
    let left = request.reply_tokens.filter(|tokens| takes(model, *tokens));
    if let Some(tokens) = model.max_tokens.into_iter().chain(left).min() {
        // OpenAI's newer models refuse the name that all other providers use.
        let key = if model.provider == Provider::OpenAi { "max_completion_tokens" } else { "max_tokens" };
        set(key, tokens.into());
    }
    body.into()
}

/// Whether a provider accepts `tokens` as the limit of a reply. Some providers refuse a limit above what the model can
/// write; for those no limit is sent, and the part of a reply beyond the limit is not read.
fn takes(model: &Model, tokens: u64) -> bool {
    let takes_any = match model.provider {
        Provider::Ollama | Provider::LlamaCpp | Provider::Script | Provider::Replay => true,
        Provider::OpenAi
        | Provider::DashScope
        | Provider::Vllm
        | Provider::OpenRouter
        | Provider::Compatible => false,
    };
    takes_any || tokens <= model.max_tokens.unwrap_or(TAKEN_BY_ALL)
}

fn message(message: &Message) -> Value {
    let text = Message { pictures: Vec::new(), ..message.clone() };
    let mut out = json!(text);
    if !message.pictures.is_empty() {
        let picture = |picture: &Picture| {
            let url = format!("data:{};base64,{}", picture.mime, picture.base64);
            json!({"type": "image_url", "image_url": {"url": url}})
        };
        let text = json!({"type": "text", "text": message.content});
        out["content"] = std::iter::once(text).chain(message.pictures.iter().map(picture)).collect();
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        out["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    out
}

fn tool(model: &Model, tool: &ModelTool) -> Value {
    let form = model.strict.then(|| strict(&tool.parameters)).flatten();
    // A server without strict mode either ignores the word or holds the model to the schema as it is; OpenAI would
    // refuse a schema that has no strict form.
    let checked = form.is_some() || !model.strict;
    let mut function = json!({
        "name": tool.name,
        "description": tool.description,
        "parameters": form.unwrap_or_else(|| tool.parameters.clone()),
        "strict": checked,
    });
    // The type is repeated here for servers that look for it in this place; OpenAI refuses unknown fields.
    if !matches!(model.provider, Provider::OpenAi | Provider::OpenRouter)
        && let Some(function) = function.as_object_mut()
    {
        function.insert("type".to_owned(), "function".into());
    }
    json!({"type": "function", "function": function})
}

/// Converts the arguments and the answer of a reply from the strict form back to the real schemas.
pub(super) fn unbend(model: &Model, request: &ChatRequest, mut reply: ChatReply) -> ChatReply {
    if !model.strict {
        return reply;
    }
    for call in &mut reply.message.tool_calls {
        let tool = request.tools.iter().find(|tool| tool.name == call.name);
        if let Some(tool) = tool.filter(|tool| strict(&tool.parameters).is_some()) {
            call.arguments = undo(&tool.parameters, &call.arguments);
        }
    }
    let bent = |schema: &Value| model.json_schema && strict(schema).is_some();
    if let Some(answer) = request.answer.as_ref().filter(|answer| bent(&answer.schema)) {
        reply.message.content = undo(&answer.schema, &reply.message.content);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::chat::{AnswerSchema, Finish, FunctionCall, Role};
    use std::path::Path;

    fn model(text: &str) -> Model {
        let loaded =
            crate::config::load_text(Path::new("config.toml"), &format!("[model.m]\n{text}")).unwrap();
        loaded.settings.models["m"].clone()
    }

    fn request() -> ChatRequest {
        let parameters = json!({"type": "object", "required": ["code"], "additionalProperties": false,
            "properties": {"code": {"type": "string"}, "timeout": {"type": "integer", "default": 30}}});
        let mut asked = Message::new(Role::Assistant, "");
        asked.tool_calls.push(ToolCall { id: "a".into(), name: "run".into(), arguments: "{}".into() });
        asked.function_call = Some(FunctionCall { name: "old".into(), arguments: "{}".into() });
        let mut answered = Message::new(Role::Tool, "4");
        answered.tool_call_id = Some("a".into());
        let mut legacy = Message::new(Role::Function, "5");
        legacy.name = Some("old".into());
        ChatRequest {
            messages: vec![Message::new(Role::User, "Hi"), asked, answered, legacy],
            tools: vec![ModelTool { name: "run".into(), description: "Run it.".into(), parameters }],
            answer: Some(AnswerSchema {
                name: "answer".into(),
                schema: json!({"type": "object", "properties": {"x": {"type": "integer"}}}),
            }),
            reply_tokens: None,
        }
    }

    #[test]
    fn a_request_as_most_servers_want_it() {
        let model = model("provider = \"dashscope\"\ntemperature = 0.5\nmax_tokens = 9\n");
        assert_eq!(
            body(&model, &request()),
            json!({
                "model": "qwen-plus",
                "stream": true,
                "stream_options": {"include_usage": true},
                "parallel_tool_calls": true,
                "temperature": 0.5,
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "",
                        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}],
                        "function_call": {"name": "old", "arguments": "{}"}},
                    {"role": "tool", "content": "4", "tool_call_id": "a"},
                    {"role": "function", "content": "5", "name": "old"},
                ],
                "tools": [{"type": "function", "function": {
                    "type": "function",
                    "name": "run",
                    "description": "Run it.",
                    "parameters": {"type": "object", "required": ["code"], "additionalProperties": false,
                        "properties": {"code": {"type": "string"}, "timeout": {"type": "integer", "default": 30}}},
                    "strict": true,
                }}],
            })
        );
    }

    #[test]
    fn pictures_are_parts_of_their_message() {
        let mut message = Message::new(Role::User, "Look:");
        message.pictures.push(Picture { mime: "image/png".into(), base64: "iVBO".into(), tokens: 9 });
        let url = "data:image/png;base64,iVBO";
        let parts =
            json!([{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": url}}]);
        assert_eq!(super::message(&message), json!({"role": "user", "content": parts}));
    }

    #[test]
    fn a_request_as_openai_wants_it() {
        let model = model("provider = \"openai\"\nmodel = \"gpt-4o-mini\"\nmax_tokens = 9\n");
        let body = body(&model, &request());
        assert_eq!(body["max_completion_tokens"], json!(9));
        assert_eq!(body["response_format"]["json_schema"]["strict"], json!(true));
        assert_eq!(body["response_format"]["json_schema"]["schema"]["required"], json!(["x"]));
        let function = &body["tools"][0]["function"];
        assert_eq!(function.get("type"), None);
        assert_eq!(function["parameters"]["required"], json!(["code", "timeout"]));
        let mut open_request = request();
        open_request.tools[0].parameters =
            json!({"type": "object", "additionalProperties": true, "properties": {}});
        let function = &super::body(&model, &open_request)["tools"][0]["function"];
        assert_eq!(
            (&function["strict"], &function["parameters"]["additionalProperties"]),
            (&json!(false), &json!(true))
        );
    }

    #[test]
    fn a_reply_is_as_long_as_all_allow() {
        for (provider, configured, left, sent) in [
            ("dashscope", "", None, None),
            ("dashscope", "", Some(7), Some(7)),
            ("dashscope", "", Some(100_000), None),
            ("dashscope", "max_tokens = 9\n", Some(7), Some(7)),
            ("dashscope", "max_tokens = 9\n", Some(70), Some(9)),
            ("dashscope", "max_tokens = 9000\n", Some(8_000), Some(8_000)),
            ("ollama", "model = \"m\"\n", Some(100_000), Some(100_000)),
        ] {
            let model = model(&format!("provider = \"{provider}\"\n{configured}"));
            let body = body(&model, &ChatRequest { reply_tokens: left, ..request() });
            assert_eq!(body.get("max_tokens").and_then(Value::as_u64), sent, "{configured} {left:?}");
        }
    }

    #[test]
    fn a_model_without_tools_is_not_told_of_them() {
        let model = model("provider = \"ollama\"\nmodel = \"m\"\ntools = false\njson_schema = false\n");
        let body = body(&model, &request());
        assert!(
            ["tools", "parallel_tool_calls", "response_format"].iter().all(|key| body.get(key).is_none())
        );
    }

    #[test]
    fn strict_replies_come_back_as_the_real_schemas_mean_them() {
        let call = ToolCall {
            id: "b".into(),
            name: "run".into(),
            arguments: r#"{"code":"1","timeout":null}"#.into(),
        };
        let mut message = Message::new(Role::Assistant, r#"{"x": null}"#);
        message.tool_calls.push(call);
        let reply = ChatReply { message, reasoning: None, refusal: None, finish: Finish::Stop, usage: None };
        let strict = model("provider = \"openai\"\nmodel = \"m\"\n");
        let unbent = unbend(&strict, &request(), reply.clone()).message;
        assert_eq!(
            (unbent.tool_calls[0].arguments.as_str(), unbent.content.as_str()),
            (r#"{"code":"1"}"#, "{}")
        );
        assert_eq!(unbend(&model("provider = \"dashscope\"\n"), &request(), reply.clone()), reply);
    }
}

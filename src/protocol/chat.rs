//! Messages to and from a model, in the form that all dialects and providers share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
    /// The answer to a legacy `function_call`.
    Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    pub role: Role,
    /// Never null: "" if the model only calls tools.
    pub content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall>,
    /// In a `tool` message, the id of the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// In a `function` message, the function's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Pictures beside the text, for a model that sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<Picture>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Picture {
    /// Its MIME type.
    pub mime: String,
    pub base64: String,
    /// The estimated tokens by its size; 0 if it is not known.
    #[serde(default)]
    pub tokens: u64,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
            function_call: None,
            tool_call_id: None,
            name: None,
            pictures: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments as the model wrote them, which may be invalid JSON.
    pub arguments: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionCall {
    pub name: String,
    pub arguments: String,
}

/// A tool as it is described to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelTool {
    pub name: String,
    pub description: String,
    /// JSON Schema of an object; `additionalProperties` is false.
    pub parameters: Value,
}

/// One request to a model, before it is converted to a provider's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChatRequest {
    pub messages: Vec<Message>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ModelTool>,
    /// The reply has to be JSON that matches this schema, where the provider supports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerSchema>,
    /// Tokens that may still be spent, which bounds the length of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_tokens: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AnswerSchema {
    pub name: String,
    pub schema: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChatReply {
    /// Role `assistant`.
    pub message: Message,
    /// The reasoning of the model, if its provider shows it. It is never sent back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    pub finish: Finish,
    /// Tokens as the provider counted them; none if it did not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    Stop,
    ToolCalls,
    /// The reply was cut at the provider's limit of tokens.
    Length,
    ContentFilter,
    /// Any other reason, or none.
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl Usage {
    pub fn total(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(other.completion_tokens);
    }
}

/// Why a request to a model has no reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ModelFailure {
    pub kind: ModelFailureKind,
    /// For people; holds no secret.
    pub message: String,
    /// How often the request was sent.
    pub attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelFailureKind {
    /// There is no API key, or it is wrong, or it may not be used for this.
    Authentication,
    RateLimited,
    /// The provider refused the request as it is; sending it again would not help.
    InvalidRequest,
    /// The conversation does not fit into the model.
    ContextTooLong,
    Unreachable,
    /// 5xx.
    ServerError,
    /// The first byte, the next byte or the end of the reply did not come in time.
    TimedOut,
    /// The stream broke off.
    CutOff,
    /// The provider's answer is not a valid reply, or is too large.
    BadReply,
    /// A script or a cassette has no reply for this request.
    NotRecorded,
    Cancelled,
    /// The user has no tokens left for today.
    QuotaExceeded,
    /// The daemon ended while the request was under way.
    Interrupted,
}

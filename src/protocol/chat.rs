//! What is said to a model and what it says, in the shape that all dialects and providers share.

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
    /// Never null: a model that only calls tools says "".
    pub content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall>,
    /// Of a `tool` message: the call it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Of a `function` message: the function's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    #[must_use]
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
            function_call: None,
            tool_call_id: None,
            name: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON as the model wrote it, right or wrong.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionCall {
    pub name: String,
    pub arguments: String,
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelTool {
    pub name: String,
    pub description: String,
    /// JSON Schema of an object; `additionalProperties` is false.
    pub parameters: Value,
}

/// One request to a model, before a provider gives it its own form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChatRequest {
    pub messages: Vec<Message>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ModelTool>,
    /// The reply has to be JSON of this schema, where the provider can do that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerSchema>,
    /// Tokens that may still be spent, so that the reply cannot have more.
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
    /// What a reasoning model thought aloud, if its provider shows it. Never sent back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    pub finish: Finish,
    /// As the provider counted; none if it did not say.
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
    /// Anything else, or nothing.
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl Usage {
    #[must_use]
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

/// Why there is no reply.
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
    /// No key, a wrong one, or one that may not do this.
    Authentication,
    RateLimited,
    /// The provider refused the request as it is; sending it again would not help.
    InvalidRequest,
    /// The conversation does not fit into the model.
    ContextTooLong,
    Unreachable,
    /// 5xx.
    ServerError,
    /// No byte, no further byte, or no end within the time for it.
    TimedOut,
    /// The stream broke off.
    CutOff,
    /// It answered with something that is no reply, or with too much.
    BadReply,
    /// A script or a cassette has no reply for this request.
    NotRecorded,
    Cancelled,
    /// The user has no tokens left for today.
    QuotaExceeded,
    /// The daemon ended over it.
    Interrupted,
}

//! Tools that a connected client lends to a session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::frames::ToolFailure;

/// `POST /v1/sessions/{s}/tools`: answered with a stream of `ClientCall`s. The tools exist until the
/// stream ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClientTools {
    pub tools: Vec<ClientTool>,
    /// Whether this client has lent the same tools before, until its stream broke. Then it gets the calls again that an
    /// earlier daemon left without an answer, and recognises those that it has received already by their ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientTool {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments: an object.
    pub parameters: Value,
    /// JSON Schema of the answer; without one it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether a call changes nothing anywhere. Then it does not wait until its record would survive a loss of power.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// What a client has promised to answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LentAnswer {
    /// A value, because the tool has an output schema.
    Value,
    Text,
}

/// A call for the client to answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientCall {
    /// Unique in its session; safe in a URL. A call that is sent again, after a death of the daemon, has the id it had.
    pub call: String,
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// `POST /v1/sessions/{s}/tool-calls/{call}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientAnswer {
    /// From a tool with an output schema, a value of that schema; from other tools, a string. An answer to a call of an
    /// earlier daemon that comes before the tool is lent again is not held against the schema, which is not known then.
    Value(Value),
    /// From a tool without an output schema, text with pictures, which become displays of the cell.
    Parts {
        text: String,
        images: Vec<ToolImage>,
    },
    Failure(ToolFailure),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolImage {
    /// Such as `image/png`.
    pub mime: String,
    pub base64: String,
}

//! `session_info`: lets code ask what it runs in, so that it can fit its work to the limits.

use serde_json::{Map, Value, json};

use super::registry::{Context, Tool, ToolFuture};
use crate::protocol::frames::{ToolFailure, ToolSpec};

pub struct SessionInfo;

impl Tool for SessionInfo {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "session_info".into(),
            description: "Name, limits and image of this session, as a dict.".into(),
            parameters: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            match arguments.keys().next() {
                None => Ok(context.session),
                Some(extra) => Err(ToolFailure {
                    code: "bad_arguments".into(),
                    message: format!("session_info takes no arguments, but got `{}`", extra.escape_default()),
                }),
            }
        })
    }
}

//! `session_info`: tells code the limits of its session, so that it can adapt its work to them.

use serde_json::{Map, Value, json};

use super::NoArguments;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput};

pub struct SessionInfo;

impl Tool for SessionInfo {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some("以字典形式返回本会话的名称、限制和工作目录。".into()),
            output: Some(json!({"type": "object"})),
            read_only: true,
            ..Definition::new(
                "session_info",
                "Name, limits and image of this session, as a dict.",
                parameters_of::<NoArguments>(),
            )
        }
    }

    fn run(&self, _arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move { Ok(ToolOutput::Value(context.session)) })
    }
}

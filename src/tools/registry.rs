//! The tool contract and the set of tools of a session.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::session_info::SessionInfo;
use crate::protocol::frames::{ToolFailure, ToolSpec};

pub type ToolFuture = Pin<Box<dyn Future<Output = Result<Value, ToolFailure>> + Send>>;

/// What a tool may know about its caller.
#[derive(Clone, Debug)]
pub struct Context {
    /// The session's name, limits and image, as JSON.
    pub session: Value,
}

pub trait Tool: Send + Sync {
    fn spec(&self) -> ToolSpec;
    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture;
}

#[derive(Clone, Default)]
pub struct Registry {
    tools: BTreeMap<String, Arc<dyn Tool>>,
}

impl Registry {
    /// The tools that every session has.
    #[must_use]
    pub fn built_in() -> Self {
        let mut registry = Self::default();
        registry.add(Arc::new(SessionInfo));
        registry
    }

    fn add(&mut self, tool: Arc<dyn Tool>) {
        self.tools.insert(tool.spec().name, tool);
    }

    #[must_use]
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.values().map(|tool| tool.spec()).collect()
    }

    /// An unknown name is answered with the known ones.
    pub fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        context: Context,
    ) -> Result<ToolFuture, ToolFailure> {
        if let Some(tool) = self.tools.get(name) {
            Ok(tool.run(arguments, context))
        } else {
            let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
            let shown: String = name.chars().take(crate::protocol::limits::TOOL_NAME_CHARS).collect();
            Err(ToolFailure {
                code: "unknown_tool".into(),
                message: format!(
                    "there is no tool `{}`; known are: {}",
                    shown.escape_default(),
                    known.join(", ")
                ),
            })
        }
    }
}

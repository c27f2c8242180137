//! The tree as a model writes it.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::protocol::word_enums::words;

words! {
    #[derive(Default, PartialOrd, Ord)]
    pub enum TaskStatus {
        #[default]
        Pending = "pending",
        Processing = "processing",
        Completed = "completed",
        Failed = "failed",
        Retry = "retry",
        Skipped = "skipped",
    }
}

impl TaskStatus {
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Pending => "[⏳]",
            Self::Processing => "[⚡️]",
            Self::Completed => "[✅]",
            Self::Failed => "[❌]",
            Self::Retry => "[♻️]",
            Self::Skipped => "[⏭️]",
        }
    }
}

/// One task, with its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RecursivePlanTreeNode")]
pub struct PlanNode {
    /// Stays the same from call to call, so that the task can be followed. Made up if not given.
    #[serde(default)]
    #[schemars(extend("examples" = ["T1"]))]
    pub task_id: Option<String>,
    /// What the task is, in a few words. No two tasks of a plan may have the same name.
    pub task_name: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub status: TaskStatus,
    /// What came out of it.
    #[serde(default)]
    pub output: String,
    /// Names (`task_name`) of tasks that have to be done before.
    #[serde(default)]
    pub dependencies: Option<Vec<String>>,
    /// Where to look further.
    #[serde(default)]
    pub research_directions: Option<Vec<String>>,
    /// Files and sources of this task.
    #[serde(default)]
    pub references: Option<Vec<String>>,
    /// The parts of this task.
    #[serde(default, deserialize_with = "none_if_empty")]
    pub children: Option<Vec<PlanNode>>,
}

impl PlanNode {
    #[must_use]
    pub fn children(&self) -> &[Self] {
        self.children.as_deref().unwrap_or_default()
    }

    /// The task's id; empty only before `PlanHistory` has filled in the ids.
    pub(super) fn id(&self) -> &str {
        self.task_id.as_deref().unwrap_or_default()
    }
}

fn none_if_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<PlanNode>>, D::Error> {
    let children = Option::<Vec<PlanNode>>::deserialize(deserializer)?;
    Ok(children.filter(|children| !children.is_empty()))
}

/// The whole plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RecursivePlanTree")]
pub struct PlanTree {
    /// What all of it is for.
    pub core_goal: String,
    /// The tasks at the top.
    #[serde(default)]
    pub tree_nodes: Vec<PlanNode>,
    /// What to do next, in any form; kept as it is.
    #[serde(default)]
    #[schemars(extend("examples" = [{"priority": "high"}]))]
    pub next_action: Map<String, Value>,
    /// Documents, addresses and data the plan rests on.
    #[serde(default)]
    pub references: Option<Vec<String>>,
}

impl PlanTree {
    /// All tasks, each with its parent, parents first.
    pub(super) fn walk(&self) -> Vec<(&PlanNode, Option<&PlanNode>)> {
        let mut found = Vec::new();
        let mut waiting: Vec<_> = self.tree_nodes.iter().rev().map(|node| (node, None)).collect();
        while let Some((node, parent)) = waiting.pop() {
            found.push((node, parent));
            waiting.extend(node.children().iter().rev().map(|child| (child, Some(node))));
        }
        found
    }
}

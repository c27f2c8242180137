//! `recursive_plan_tree_todo`: the model writes its plan down.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::read;
use crate::protocol::tool_names::PLAN_TOOL;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput};
use crate::tools::plan::{PlanTree, plan_report};
use crate::tools::port::as_failure;

pub struct PlanTodo;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The whole plan as it is now: all tasks with their parts and their status.
    recursive_plan_tree: PlanTree,
}

const DESCRIPTION: &str = "Keeps your plan: a tree of tasks with status, results and dependencies. Call it first, before \
other tools, to think the task through and write the plan down; call it again whenever a task begins, ends, fails or \
changes. Always give the whole tree, with the same task_id for the same task. Returns what changed, the plan as Markdown, and \
how far it is.";

const DESCRIPTION_ZH: &str = "记录你的计划：一棵带有状态、结果和依赖关系的任务树。必须先于其他工具调用，用来思考并写下计划；每当任务开始、结束、失败或调整时再次调用。\
每次都给出完整的树，同一任务保持同一个 task_id。返回变更、Markdown 格式的计划和完成情况。";

impl Tool for PlanTodo {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(DESCRIPTION_ZH.into()),
            ..Definition::new(PLAN_TOOL, DESCRIPTION, parameters_of::<Arguments>())
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let tree = read::<Arguments>(arguments)?.recursive_plan_tree;
            let port = context.port()?;
            let plan = port.submit_plan(tree).await.map_err(as_failure)?;
            Ok(ToolOutput::Text(plan_report(&plan, port.language())))
        })
    }
}

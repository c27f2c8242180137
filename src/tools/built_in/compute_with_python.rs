//! `compute_with_python`: one expression, evaluated apart from the session's variables. The expression sees the values
//! that were given to the session, in their original state.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::read;
use crate::protocol::frames::PYTHON_ERROR;
use crate::protocol::tool_names::COMPUTE_TOOL;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use crate::tools::port::as_failure;

/// The variable that holds the result of the previous expression.
const LAST_RESULT: &str = "last_result";
const TIMEOUT: Duration = Duration::from_secs(5);

pub struct ComputeWithPython;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// One Python expression. It may use `last_result`, and re, math, statistics, decimal,
    /// fractions, json, datetime, itertools, string and textwrap without importing them.
    #[schemars(extend("examples" = ["'abc123'[::-1]", "'a,b,c'.split(',')[1]", "last_result.upper()"]))]
    code: String,
    /// What is computed, in words for people.
    #[expect(dead_code, reason = "for those who read the journal")]
    description: String,
}

const DESCRIPTION: &str = "Evaluates one Python expression exactly: arithmetic, strings (slicing, reversing, counting), sorting, \
dates, regular expressions. No statements, imports, files or network; it sees the values that were given with the task, not the \
variables of cells. The result is a string, and the next expression finds it as `last_result`.";

const DESCRIPTION_ZH: &str = "精确计算一个 Python 表达式：算术、字符串切片、反转、拆分、计数、排序、日期、正则表达式。凡是自行抄写或计算可能出错时都应使用它。\
不能使用语句、导入、文件和网络；可以使用随任务给出的值，但看不到单元里的变量。结果是字符串，下一个表达式可以用 `last_result` 取得它。";

impl Tool for ComputeWithPython {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(DESCRIPTION_ZH.into()),
            // The value is the bare text, also for code.
            output: Some(json!({"type": "string"})),
            read_only: true,
            ..Definition::new(COMPUTE_TOOL, DESCRIPTION, parameters_of::<Arguments>())
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let arguments: Arguments = read(arguments)?;
            let port = context.port()?;
            let mut values = port.given().await.map_err(as_failure)?;
            // The given values may be large, and most expressions use none of them.
            values.retain(|name, _| arguments.code.contains(name.as_str()));
            if let Some(last) = port.last_result() {
                values.insert(LAST_RESULT.into(), last.into());
            }
            let computed = port.compute(arguments.code, values, TIMEOUT).await.map_err(as_failure)?;
            let Some(result) = computed.result else {
                return Err(failure(PYTHON_ERROR, computed.error.unwrap_or_default()));
            };
            port.keep_last_result(result.clone());
            Ok(ToolOutput::Value(result.into()))
        })
    }
}

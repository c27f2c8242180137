//! `execute_python_code` and `exec_code`, which is the same tool with the name and the parameter that another source
//! system uses.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::protocol::tool_names::{CELL_TOOL, SHORT_CELL_TOOL};
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, failure};

const DEFAULT_TIMEOUT_S: u64 = 30;
/// The longest time that a model may request; the session may allow less.
const MAX_TIMEOUT_S: u64 = 24 * 60 * 60;

pub struct ExecutePython {
    name: &'static str,
    on_request: bool,
}

impl ExecutePython {
    pub const EXECUTE_PYTHON_CODE: Self = Self { name: CELL_TOOL, on_request: false };
    pub const EXEC_CODE: Self = Self { name: SHORT_CELL_TOOL, on_request: true };

    fn parameters(&self) -> Value {
        if self.on_request { parameters_of::<ShortArguments>() } else { parameters_of::<Arguments>() }
    }
}

/// Only for its schema.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a call becomes a cell before it is read")]
struct Arguments {
    /// The Python code of the cell. It has to be complete and valid.
    #[schemars(extend("examples" = ["print('Hello, World!')"]))]
    python_code_snippet: String,
    /// Seconds the code may run. After that it is ended, and the answer says so.
    #[schemars(default = "default_timeout", range(min = 1, max = MAX_TIMEOUT_S))]
    timeout: u64,
}

/// Only for its schema.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a call becomes a cell before it is read")]
struct ShortArguments {
    /// The Python code to run. It has to be complete and valid.
    #[schemars(extend("examples" = ["print('Hello, World!')"]))]
    code: String,
    /// Seconds the code may run. After that it is ended, and the answer says so.
    #[schemars(default = "default_timeout", range(min = 1, max = MAX_TIMEOUT_S))]
    timeout: u64,
}

fn default_timeout() -> u64 {
    DEFAULT_TIMEOUT_S
}

const DESCRIPTION: &str = "Runs Python code as the next cell of a notebook and returns what it printed, the value of its last \
expression, its figures and new files, or the traceback. Variables, functions and imports stay; after a cell that ran out of \
time or crashed everything is as before it. There is no network.";

const DESCRIPTION_ZH: &str = "把 Python 代码作为笔记本的下一个单元运行，返回打印内容、最后一个表达式的值、图像和新文件，失败时返回 traceback。\
变量、函数和导入会保留到后续单元；单元超时或崩溃后，状态回到该单元之前。没有网络。";

impl Tool for ExecutePython {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(DESCRIPTION_ZH.into()),
            local: true,
            on_request: self.on_request,
            ..Definition::new(self.name, DESCRIPTION, self.parameters())
        }
    }

    /// A model's call becomes a cell, and code's call is run by the kernel: neither gets here.
    fn run(&self, _: Map<String, Value>, _: Context) -> ToolFuture {
        Box::pin(std::future::ready(Err(failure("unavailable", "code runs as a cell, not through a call"))))
    }
}

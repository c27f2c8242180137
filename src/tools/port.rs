//! The operations that a tool may perform on its session. The actors implement them.

use async_trait::async_trait;
use serde_json::{Map, Value};
use std::time::Duration;

use super::contract::OnWaiting;
use super::plan::PlanTree;
use crate::protocol::api::{Computed, VariableList};
use crate::protocol::ask::{Language, PlanVersion};
use crate::protocol::command::NewCommand;
use crate::protocol::frames::ToolFailure;
use crate::protocol::packages::InstalledPackages;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::ExecutionResult;
use crate::protocol::tool::{ClientAnswer, ClientTool};

#[async_trait]
pub trait SessionPort: Send + Sync {
    /// Evaluates an expression that sees only the given values.
    async fn compute(
        &self,
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
    ) -> Result<Computed, Problem>;

    async fn variables(&self) -> Result<VariableList, Problem>;

    /// Installs packages into the session.
    async fn install(&self, packages: Vec<String>) -> Result<InstalledPackages, Problem>;

    /// Evaluates an expression in a copy of the session; its changes are discarded.
    async fn evaluate(&self, expression: String) -> Result<ExecutionResult, Problem>;

    /// Runs a command in the sandbox; none if it runs in the background. `Code::Forbidden` where only restricted code may
    /// run.
    async fn run_command(&self, command: NewCommand) -> Result<Option<ExecutionResult>, Problem>;

    /// Reads a file of the workspace without following links. `Code::NoSuchFile` if it does not exist.
    async fn read_file(&self, path: String, max_bytes: u64) -> Result<FileRead, Problem>;

    /// The values that were given to the session, by name.
    async fn given(&self) -> Result<Map<String, Value>, Problem>;

    /// The last result of `compute_with_python`.
    fn last_result(&self) -> Option<String>;

    fn keep_last_result(&self, result: String);

    /// Checks, numbers and journals the plan (`PlanHistory::submit`). `Code::BadRequest` lists everything that is wrong
    /// with it.
    async fn submit_plan(&self, plan: PlanTree) -> Result<PlanVersion, Problem>;

    /// Starts a nested ask, which sees only what it is given. `on_waiting` is called when it begins and when it stops
    /// waiting for a person. Gives the answer; for an ask with functions, an object with either the `answer` or the next
    /// `call` of a function.
    async fn ask(&self, ask: NestedAsk, on_waiting: Option<OnWaiting>) -> Result<Value, Problem>;

    /// Goes on with a nested ask after a call of a function: with what the function returned, or with nothing, which ends
    /// the ask. Gives the same as `ask`.
    async fn go_on(&self, ask: String, returned: Option<ClientAnswer>) -> Result<Value, Problem>;

    /// The user as whom programs of the host run for the session. `Code::Forbidden` if the owner's user id is another
    /// account by now.
    async fn owner(&self) -> Result<Owner, Problem>;

    fn language(&self) -> Language;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRead {
    Whole(Vec<u8>),
    TooLarge { bytes: u64, lines: u64 },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NestedAsk {
    /// Empty if a template says what to do.
    pub prompt: String,
    pub template: Option<String>,
    /// Whether the template itself was called as a tool, and so was judged by the rules for tools.
    pub by_tool: bool,
    pub parameters: Map<String, Value>,
    pub schema: Option<Value>,
    pub context: Map<String, Value>,
    /// Paths of files of the caller's workspace that it finds in its own.
    pub files: Vec<String>,
    /// Functions of the calling cell that it may call as tools.
    pub functions: Vec<ClientTool>,
}

/// The owner of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub principal: Principal,
    pub gid: u32,
}

/// Turns a problem of the session into a failure of the tool.
pub fn as_failure(problem: Problem) -> ToolFailure {
    let code = match problem.code {
        Code::BadRequest => "bad_arguments",
        Code::Busy | Code::TooMany => "busy",
        Code::TooLarge => "too_large",
        Code::TooSlow => "timed_out",
        _ => "failed",
    };
    let message = match problem.hint {
        Some(hint) => format!("{}; {hint}", problem.message),
        None => problem.message,
    };
    ToolFailure { code: code.into(), message }
}

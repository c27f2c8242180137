//! What tools may do with the session that they are called in. The actors implement it.

use serde_json::{Map, Value};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::contract::OnWaiting;
use super::plan::PlanTree;
use crate::protocol::api::{Computed, VariableList};
use crate::protocol::ask::{Language, PlanVersion};
use crate::protocol::frames::ToolFailure;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::ExecutionResult;

pub type PortFuture<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

pub trait SessionPort: Send + Sync {
    /// Runs a cell on the main line, after those that wait.
    fn run_cell(&self, code: String, timeout: Duration) -> PortFuture<ExecutionResult>;

    /// What a model is told about a cell.
    fn told(&self, result: &ExecutionResult) -> String;

    /// An expression that sees the given values only.
    fn compute(
        &self,
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
    ) -> PortFuture<Computed>;

    fn variables(&self) -> PortFuture<VariableList>;

    /// An expression in a copy of the session; what it changes is dropped.
    fn evaluate(&self, expression: String) -> PortFuture<ExecutionResult>;

    /// A file of the workspace, without following a link. `Code::NoSuchFile` if there is none.
    fn read_file(&self, path: String, max_bytes: u64) -> PortFuture<FileRead>;

    /// The values that the session was given, by their names.
    fn given(&self) -> PortFuture<Map<String, Value>>;

    /// What `compute_with_python` gave last.
    fn last_result(&self) -> Option<String>;

    fn keep_last_result(&self, result: String);

    /// Checks the plan, numbers and journals it (`PlanHistory::submit`). `Code::BadRequest` with
    /// everything that is wrong with it.
    fn submit_plan(&self, plan: PlanTree) -> PortFuture<PlanVersion>;

    /// An ask of its own, that sees only what it is given. `on_waiting` is told while it waits for a
    /// person.
    fn ask(&self, ask: NestedAsk, on_waiting: Option<OnWaiting>) -> PortFuture<Value>;

    fn owner(&self) -> Owner;

    fn language(&self) -> Language;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileRead {
    Whole(Vec<u8>),
    TooLarge { bytes: u64, lines: u64 },
}

#[derive(Clone, Debug, PartialEq)]
pub struct NestedAsk {
    pub prompt: String,
    pub schema: Option<Value>,
    pub context: Map<String, Value>,
}

/// Whose session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// A problem of the session, as the failure of the tool that had it.
pub(super) fn as_failure(problem: Problem) -> ToolFailure {
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

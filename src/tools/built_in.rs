//! The built-in tools, one file each.

mod ask;
mod compute_with_python;
mod execute_python;
mod file_reader;
mod install_packages;
mod list_variables;
mod plan_todo;
mod read_variable;
mod run_command;
mod session_info;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::Arc;

pub use ask::continued_ask;

use super::contract::{Tool, failure};
use crate::protocol::frames::ToolFailure;

pub fn all() -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(execute_python::ExecutePython::EXECUTE_PYTHON_CODE),
        Arc::new(execute_python::ExecutePython::EXEC_CODE),
        Arc::new(compute_with_python::ComputeWithPython),
        Arc::new(plan_todo::PlanTodo),
        Arc::new(file_reader::FileReader),
        Arc::new(read_variable::ReadVariable),
        Arc::new(list_variables::ListVariables),
        Arc::new(ask::Ask),
        Arc::new(session_info::SessionInfo),
        Arc::new(run_command::RunCommand),
        Arc::new(install_packages::InstallPackages),
    ]
}

/// The arguments of a tool that takes none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

/// Parses arguments into the struct from which their schema was generated.
fn read<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, ToolFailure> {
    serde_path_to_error::deserialize(Value::Object(arguments))
        .map_err(|error| failure("bad_arguments", format!("`{}`: {}", error.path(), error.inner())))
}

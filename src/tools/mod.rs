//! Tools: functions that a model or code in a cell may call. This module has the contract, the registry, and the
//! built-in tools, those of the configuration and those of connected clients. A tool does not know which actor calls
//! it; it acts on its session through [`SessionPort`].

mod built_in;
mod client;
mod command;
mod contract;
mod foreign_schemas;
pub mod keeper;
mod markers;
mod plan;
mod port;
mod process_limits;
mod registry;
mod template;
#[cfg(test)]
mod tests;

pub use crate::schema::check as check_schema;
pub use built_in::continued_ask;
pub use client::{ClientTools, ExpectedAnswer, Lease, RecordedArguments, call_id};
pub use contract::{Caller, Context, Definition, Image, OnWaiting, Tool, ToolFuture, ToolOutput};
pub use markers::{Responses, before_begun_marker, expand_markers, replace_markers};
pub use plan::{PlanHistory, PlanTree};
pub use port::{FileRead, NestedAsk, Owner, SessionPort, as_failure};
pub use registry::{Allowed, Registry, RegistryError};

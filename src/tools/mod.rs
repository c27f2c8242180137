//! Host-side functions that code in a cell may call: the contract, the registry, and the tools that
//! are always there. A tool does not know which actor calls it.

mod registry;
mod session_info;

pub use registry::{Context, Registry, Tool, ToolFuture};

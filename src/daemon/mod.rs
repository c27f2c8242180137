//! The daemon: `serve` boots in order, serves until it is asked to stop, and shuts down in order.

mod boot;
mod journals;
mod log_limit;
mod notify;
mod serve;
mod snapshots;
mod socket;
mod tool_registry;
mod trust;

pub use serve::{DaemonError, main};

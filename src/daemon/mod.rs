//! The daemon: `serve` boots in order, serves until it is told to stop, ends in order.

mod boot;
mod journals;
mod log_limit;
mod notify;
mod serve;
mod socket;
mod trust;

pub use serve::{DaemonError, main};

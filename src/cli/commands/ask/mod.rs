//! Commands about models: asking one, deciding what it may do, and what it said and planned.

pub(in crate::cli) mod approval;
pub(in crate::cli) mod approve;
pub(in crate::cli) mod history;
pub(in crate::cli) mod line_reader;
mod live;
pub(in crate::cli) mod models;
pub(in crate::cli) mod plan;
mod speech;
pub(in crate::cli) mod submit;
pub(in crate::cli) mod tools;
mod watch;

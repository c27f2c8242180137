//! Commands about models: asking one, deciding what it may do, and what it said and planned.

pub(in crate::cli) mod approval;
pub(in crate::cli) mod approve;
mod arriving;
pub(in crate::cli) mod inspect;
pub(in crate::cli) mod line_reader;
mod live;
mod speech;
pub(in crate::cli) mod stats;
pub(in crate::cli) mod submit;
mod watch;

//! The commands, grouped by what they act on.

pub(in crate::cli) mod ask;
pub(in crate::cli) mod cell;
pub(in crate::cli) mod command;
pub(in crate::cli) mod job;
pub(in crate::cli) mod machine;
pub(in crate::cli) mod session;

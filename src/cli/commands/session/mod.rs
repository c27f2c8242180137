//! Commands about sessions: list, create, inspect, change and remove them.

pub(in crate::cli) mod cp;
pub(in crate::cli) mod freeze;
pub(in crate::cli) mod interrupt;
pub(in crate::cli) mod logs;
pub(in crate::cli) mod new;
pub(in crate::cli) mod ps;
pub(in crate::cli) mod receipt;
pub(in crate::cli) mod replay;
pub(in crate::cli) mod reset;
pub(in crate::cli) mod rm;
pub(in crate::cli) mod show;
pub(in crate::cli) mod top;
pub(in crate::cli) mod undo;
pub(in crate::cli) mod vars;
pub(in crate::cli) mod wait;

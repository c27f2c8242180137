//! Commands about sessions: list, create, inspect, change and remove them.

pub(in crate::cli) mod act;
pub(in crate::cli) mod branch;
pub(in crate::cli) mod cp;
pub(in crate::cli) mod diff;
pub(in crate::cli) mod export;
pub(in crate::cli) mod import;
pub(in crate::cli) mod inspect;
pub(in crate::cli) mod install;
pub(in crate::cli) mod logs;
pub(in crate::cli) mod ls;
pub(in crate::cli) mod new;
pub(in crate::cli) mod packages;
pub(in crate::cli) mod receipt;
pub(in crate::cli) mod replay;
pub(in crate::cli) mod snapshot;
pub(in crate::cli) mod top;
pub(in crate::cli) mod volume;
pub(in crate::cli) mod wait;

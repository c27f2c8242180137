//! Commands that run Python.

pub(in crate::cli) mod missing_package;
pub(in crate::cli) mod notebook;
pub(in crate::cli) mod once;
pub(in crate::cli) mod repl;
pub(in crate::cli) mod run;
pub(in crate::cli) mod silence;
pub(in crate::cli) mod stream;

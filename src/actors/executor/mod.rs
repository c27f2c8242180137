//! The executor: one sandbox and its bridge. It owns the deadlines, interrupts and tool calls in flight, and
//! reports the end of each cell to the session. It ends with its sandbox; if it dies earlier, the sandbox
//! stays and the session attaches another executor to it.
//!
//! `actor` handles messages; `state` holds the state, with `running` cells and `pending` requests. `kernel`
//! is the connection to the sandbox, `attach` takes over a sandbox of an earlier daemon, with the help of
//! `notes`; `cells` begins and ends cells, `overdue` handles those that take too long, `requests` are all
//! other requests to the kernel, `tool_calls` the tool calls of the kernel, `call_approvals` asks people about them,
//! `abandoned_calls` cancels them, `lent_calls` are those that clients of an earlier daemon answer, `responses` keeps the
//! answers of tools, `preload` imports modules into a new sandbox, `workspace` watches the files, `freeze` and
//! `foreign_pauses` handle frozen sandboxes, `snapshots` saves variables by the `progress` of a copy and `loading` loads
//! them, with the tasks in `transfers`, `teardown` ends a sandbox.

mod abandoned_calls;
pub mod actor;
mod attach;
mod call_approvals;
mod cells;
mod foreign_pauses;
mod freeze;
mod kernel;
mod lent_calls;
mod loading;
pub mod messages;
mod notes;
mod overdue;
mod packages;
mod pending;
mod preload;
mod progress;
mod requests;
mod responses;
mod running;
mod snapshots;
pub mod state;
mod teardown;
mod tool_calls;
mod transfers;
mod workspace;

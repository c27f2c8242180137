//! The executor: one sandbox and its bridge. It owns the deadlines, interrupts and tool calls in
//! flight, and tells the session how each cell ended. It ends with its sandbox; if it dies before, the sandbox stays
//! and the session attaches another executor to it.
//!
//! `actor` takes messages; `state` is what it knows, with `running` cells and `pending` requests. `kernel` is the way to
//! the sandbox and back, `attach` goes on where an earlier daemon ended, with what `notes` kept; `cells` begins and ends
//! cells, `deadlines` is what happens when they take too long, `requests` everything else that is asked of the kernel, `calls` the tool calls that the
//! kernel makes, `permits` what a person has to allow, `responses` what tools said, `preload` what a sandbox begins with,
//! `workspace` looks at its files, `freeze` and `pauses` are about sandboxes that stand still, `teardown` is the end of one.

pub mod actor;
mod attach;
mod calls;
mod cells;
mod deadlines;
mod freeze;
mod kernel;
pub mod messages;
mod notes;
mod pauses;
mod pending;
mod permits;
mod preload;
mod requests;
mod responses;
mod running;
pub mod state;
mod teardown;
mod workspace;

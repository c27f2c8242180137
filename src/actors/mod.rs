//! The actors: thin shells around the layers below, and the only folder that defines any.
//!
//! Commands go down (supervisor → session → executor), reports go up as casts, and no handler waits for slow
//! work: slow work runs in a task that sends its outcome as a message.

mod amounts;
pub mod asks;
pub mod branches;
pub mod calls;
pub mod directory;
pub mod executor;
pub mod holds;
pub mod jobs;
mod journal_charges;
mod launch;
pub mod llm;
mod pace;
pub mod pool;
pub mod reaper;
pub mod replay;
pub mod restarting_actor;
pub mod results;
pub mod session;
mod sink;
pub mod snapshots;
pub mod supervisor;
#[cfg(test)]
mod tests;
pub mod turns;

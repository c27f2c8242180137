//! Jobs: scripts that wait for a slot, run once in a sandbox of their own, and leave a verdict.
//!
//! A job runs in a session of its own that no client sees. A job's state is in the journal before any client
//! sees it; this actor holds only jobs that have not ended.
//!
//! `actor` handles messages, `state` holds the actor's state. `admission` takes jobs in (`check` says what a job may be,
//! `inputs` keeps the files that were sent for jobs, `batches` the jobs that were sent together), `schedule` starts them (`lack` says when again), `run` leads one through its sandbox with
//! the cell of `script`, `ending` puts its end into the journal, `verdict` says what that end is. `restore` goes on with
//! the jobs of an earlier daemon.

mod actor;
mod admission;
mod batches;
mod check;
mod ending;
mod inputs;
mod lack;
mod messages;
mod restore;
mod run;
mod schedule;
mod script;
mod state;
mod verdict;

pub use actor::Jobs;
pub use inputs::{InputReservation, Inputs};
pub use messages::{BatchOrder, JobsArgs, JobsMsg, WatchedBatch, WatchedJob};
pub use restore::{artifacts, artifacts_of};

//! The persistent store: the sessions, their events in order, and the output of their cells, all of which survive a
//! restart of the daemon.
//!
//! The journal is one `SQLite` file written through one connection, by a thread of its own or, for a few small events, by
//! whoever appends them. Output lies in spill files, and events hold ranges of them;
//! large values lie in files named by their hash. A change of state is committed to the journal before clients or
//! actors see it; clients read events by sequence number. The variables of sessions lie beside it, as `snapshots` says.
//! Nothing in this module depends on HTTP or containers.

mod account;
mod batches;
mod blobs;
mod capture;
mod commands;
mod crash;
mod durability;
mod error;
mod event_log;
mod idempotency;
mod jobs;
mod journal;
mod lane;
mod owners;
mod recorder;
mod recovery;
mod rows;
mod schema;
mod sessions;
pub mod snapshots;
mod spill;
#[cfg(test)]
mod tests;
mod used_amounts;
mod writer;

pub use account::{Account, Exceeded, Overdraft, ROW_BYTES, act_bytes};
pub use batches::{BatchEventRow, BatchRecord};
pub use capture::OutputCaps;
pub use durability::Durability;
pub use error::JournalError;
pub use event_log::{EventLog, EventsGone, Payment};
pub use idempotency::{Answered, Claim, KeyTarget};
pub use jobs::JobRecord;
pub use journal::Journal;
pub use recorder::{CellRecord, Placeholders, Recorder};
pub use rows::{AppliedFrame, RenderedEvent};
pub use sessions::{KEEP_REMOVED, SessionRecord};
pub use spill::Spill;

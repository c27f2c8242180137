//! What must outlive the daemon: the sessions, their events in order, the output of their cells.
//!
//! The journal is one `SQLite` file with a thread that writes it; output lies in spill files, of
//! which events hold ranges, and large values in files named by their hash. State is first in the
//! journal, then told to others; clients read by sequence number. Nothing here knows of HTTP or
//! containers.

mod account;
mod blobs;
mod capture;
mod crash;
mod error;
mod event_log;
mod idempotency;
mod jobs;
mod journal;
mod lane;
mod recorder;
mod recovery;
mod rows;
mod schema;
mod sessions;
mod spent;
mod spill;
#[cfg(test)]
mod tests;
mod writer;

pub use account::{Account, Exceeded, Overdraft, ROW_BYTES, SESSION_RESERVE_BYTES};
pub use capture::{Captured, OutputCaps};
pub use error::JournalError;
pub use event_log::{EventLog, Gone, Paid};
pub use idempotency::{Answered, Claim, KEY_LIFE, KeyTarget};
pub use jobs::JobRecord;
pub use journal::Journal;
pub use recorder::{CellRecord, Placeholders, Recorder};
pub use rows::{AppliedFrame, Rendered};
pub use schema::OpenError;
pub use sessions::{KEEP_REMOVED, SessionRecord, Tidied};
pub use spent::SpentTokens;
pub use spill::Spill;
pub use writer::Durability;

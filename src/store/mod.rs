//! What a session did: its events, in order, and the output of its cells.
//!
//! Events are kept in memory and output in spill files, both within bounds; clients read by
//! sequence number. Nothing here knows of HTTP or containers.

mod capture;
mod event_log;
mod recorder;
mod spill;

pub use capture::{Captured, OutputCaps};
pub use event_log::{EventLog, Gone, Rendered};
pub use recorder::{CellRecord, Recorder};
pub use spill::Spill;

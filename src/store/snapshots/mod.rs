//! The snapshots of sessions: their variables, as their kernels packed them, in chunks that are the same for all
//! snapshots of a session that have the same bytes there.
//!
//! The folder of a session has a file for each chunk (`chunks/`, named by the hash of the content) and a file for each
//! snapshot, which lists its chunks with their hashes. The hash of that file is in the journal, so that whatever is
//! changed in the folder is noticed before a byte of it reaches a sandbox. What a snapshot says is never interpreted
//! here. All of this is blocking code, for the threads that may wait.

mod catalogue;
mod chunker;
mod chunks;
mod copy;
mod disk_thread;
mod error;
mod limits;
mod lz4;
mod manifest;
mod reader;
pub mod records;
#[cfg(test)]
mod tests;
mod uses;
mod writer;

pub use catalogue::{SnapshotStore, Swept};
pub use copy::HeldSnapshot;
pub use disk_thread::{WRITING_BYTES, spawn_last_in_line};
pub use error::SnapshotError;
pub use limits::{SnapshotCharge, SnapshotLimits};
pub use manifest::SnapshotAbout;
pub use reader::{SnapshotPiece, SnapshotReader};
pub use writer::SnapshotWriter;

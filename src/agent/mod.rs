//! What belongs between a model and a session. Pure: no I/O, no clock, no actors.

mod report;

pub use report::report;

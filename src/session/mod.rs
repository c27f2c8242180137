//! The session as a pure structure: what waits and what runs, what code may do, what became of a cell, and what the
//! events of a session say about its present. Nothing here does anything; `actors::session` does.

pub mod digest;
pub mod machine;
pub mod notices;
pub mod outcome;
pub mod queue;
pub mod recorded;
pub mod restore;
pub mod rules;

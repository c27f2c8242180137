//! Events of a session: one ordered sequence, 1, 2, 3, … that clients can resume anywhere. What kinds there are, whom
//! each of them concerns, and what it says to a person.

mod about;
mod kinds;
pub mod phrases;
mod sentence;

pub use about::AskScope;
pub use kinds::{CellOrigin, Counters, Event, EventBody, ToolOutcome};
pub use sentence::{Sentence, Severity};

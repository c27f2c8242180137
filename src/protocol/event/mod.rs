//! Events of a session: one ordered sequence, 1, 2, 3, … that clients can resume anywhere. The submodules define the
//! kinds of events, what each kind concerns, and its sentence for people.

mod about;
mod kinds;
pub mod phrases;
mod sentence;

pub use about::AskScope;
pub use kinds::{CellOrigin, Counters, Event, EventBody, ToolOutcome};
pub use sentence::Severity;

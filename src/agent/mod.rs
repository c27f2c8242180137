//! The logic between a model and a session. Pure: no I/O, no clock, no randomness, no actors.
//!
//! [`AskMachine`] leads one ask: inputs in, effects out. A dialect renders requests and reads replies, `turn`
//! keeps the calls of one reply, `conversation` the messages, valid (`history`) and small enough (`budget`).

mod answer;
mod arguments;
mod budget;
mod conversation;
mod dialect;
mod effects;
mod failures;
mod history;
mod ids;
mod json;
mod machine;
mod pictures;
mod prompts;
mod report;
mod template;
mod turn;
mod words;

pub use answer::{most_schema_bytes, schema_bytes};
pub use budget::tokens_of_text;
pub use effects::{Effect, Input, ModelApprovals, Setup};
pub use machine::AskMachine;
pub use report::{plain_report, report};
pub use template::{fill as fill_template, misfit};

#[cfg(test)]
mod tests;

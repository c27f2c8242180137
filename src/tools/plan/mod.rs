//! The plan tree: a model writes down its tasks, submits the whole tree again whenever something changes, and gets back
//! what changed, what the plan looks like now, and how far it is.
//!
//! Pure: `check` finds what is wrong with a tree, `diff` compares two, `render` shows and counts one, `history` numbers
//! the versions, `words` has the texts in both languages.

mod check;
mod diff;
mod history;
mod model;
mod render;
mod words;

pub use history::{PlanHistory, plan_report};
pub use model::PlanTree;

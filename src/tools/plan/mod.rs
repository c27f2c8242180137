//! The plan tree: a model writes down its tasks, submits the whole tree again whenever something
//! changes, and is told what changed, how the plan looks now, and how far it is.
//!
//! Pure: `check` says what is wrong with a tree, `diff` what differs between two, `render` how one
//! looks and counts, `history` makes numbered versions of them, `words` says it in both languages.

mod check;
mod diff;
mod history;
mod model;
mod render;
mod words;

pub use history::{PlanHistory, plan_report};
pub use model::{PlanNode, PlanTree, TaskStatus};

//! Who may have how much, and who has it.
//!
//! [`Books`] is the pure part: limits, what is held, by whom. A [`Ledger`] shares one set of books
//! between actors and hands out [`Permit`]s: a permit travels with the work that it is for and gives
//! back what it holds when it is dropped, however that work ended. Nothing else ever counts down.
//!
//! What may wait instead of being refused takes its turn in a [`FairQueue`](crate::fair_queue::FairQueue).

mod books;
mod ledger;
mod refusal;

pub use books::{Amounts, Books, HoldId};
pub use ledger::{Gauge, Ledger, Permit, PermitWaiter};
pub use refusal::{Refusal, Whose, show_amount};

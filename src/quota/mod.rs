//! Quotas: how much each user may have, and how much each user holds.
//!
//! [`Books`] is the pure part: the limits, the amounts that are held, and their holders. A [`Ledger`] shares one set of
//! books between actors and hands out [`Permit`]s: a permit travels with the work that it is for and gives back what it
//! holds when it is dropped, however that work ended. Only that drop ends a hold, apart from holds that are left behind
//! for data on the disk.
//!
//! Work that may wait instead of being refused takes its turn in a [`FairQueue`](crate::fair_queue::FairQueue).

mod books;
mod ledger;
mod refusal;
mod shared_permit;

pub use books::Amounts;
pub use ledger::{Gauge, Ledger, Permit};
pub use refusal::Refusal;
pub use shared_permit::SharedPermit;

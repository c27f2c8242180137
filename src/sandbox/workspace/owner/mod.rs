//! The rights with which the daemon acts in a folder that a user controls: never its own.
//!
//! A daemon of root that opens `x/y` below a user's folder could read another user's file for that user, because the
//! owner of a folder need not own what lies in it. So all such work happens on separate threads ([`threads`]), each
//! with the rights of another user ([`switch`]): in a folder that the daemon made, those of the guest; in a caller's
//! folder, those of its owner, with the groups that user has now ([`current`]). A daemon of an ordinary user has that user's rights already.

mod current;
mod ids;
mod switch;
mod threads;

pub use current::CurrentIds;
pub use ids::{Ids, NO_GROUP};
pub use switch::acting_as;
pub use threads::{WorkKind, begin, late, run};

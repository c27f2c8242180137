//! With whose rights the daemon acts in a folder that a user controls: never with its own.
//!
//! A daemon of root that opens `x/y` below a folder of a user reads for that user what is somebody else's, and
//! who owns the folder says nothing about what lies in it. So all of it happens on threads of their own
//! ([`threads`]), and on each as somebody ([`switch`]): in a folder that the daemon made, as the guest; in a
//! caller's folder, as its owner, with that user's groups. A daemon of a user is that user already.

mod ids;
mod switch;
mod threads;

pub use ids::{Ids, NO_GROUP};
pub use switch::acting_as;
pub use threads::{WorkKind, run};

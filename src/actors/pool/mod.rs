//! The pool: sandboxes that are started, attested and connected before a session asks for one.
//!
//! A waiting sandbox is a launch that was made before it was asked for (`fill`, `waiting`): it has a workspace and a
//! user id of its own, which the session that claims it takes over. The journal learns of it at the claim, as of any
//! other launch; a sandbox that was not claimed belongs to no session, so the reaper of the next daemon removes it.
//!
//! `sandbox/pool` says what is started and who gets what. `actor` handles messages, `state` holds what waits, `handle`
//! is what sessions use.

mod actor;
mod fill;
mod handle;
mod messages;
mod state;
mod waiting;

pub use handle::Pool;
pub use messages::PoolArgs;
pub use waiting::WaitingSandbox;

//! Sessions that begin with what another one has: branches of a session, and archives that come from elsewhere. Also what
//! two sessions differ in.

pub mod beginning;
pub mod branch;
pub mod compare;
pub mod export;
pub mod import;
mod maker;
mod packages;
mod place;
mod spool;

pub use maker::SessionMaker;
pub use spool::Spool;

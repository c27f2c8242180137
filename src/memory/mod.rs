//! The daemon's own memory, user by user.
//!
//! Everything that a user, a guest or a model can make the daemon keep in memory is charged to a pool of its owner
//! before it is there. A [`Charge`] travels with the bytes that it is for and gives them back when it is dropped.
//! Without room the daemon stops reading from that client or sandbox, or refuses the request; other users do not wait.
//!
//! Small amounts need no room: each connection, stream and frame may take [`SMALL_BYTES`] without a charge, so that
//! ends, refusals, interrupts and removals get through however full a pool is.

mod charge;
mod heap;
mod pool;
mod small_sizes;

pub use charge::{Charge, Memory, Pool};
pub use heap::{bound_arenas, keep_small};
pub use pool::{MemoryPurpose, NoRoom};
pub use small_sizes::{OVERDRAFT_AFTER, SMALL_BYTES, TINY_BYTES, offload_if_large};

//! What needs no charge, and what is done elsewhere because it is too large.

use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};

/// What a request, an answer, a piece of a stream or a frame may take without a charge.
pub const SMALL_BYTES: u64 = 64 * 1024;
/// What things may take without a charge of which a session may have hundreds: tool calls, frames that wait to be sent.
pub const TINY_BYTES: u64 = 4 * 1024;
/// After this time without room one frame of a sandbox is read in any case, one at a time for each user: behind it may
/// be the word that a cell has ended.
pub const OVERDRAFT_AFTER: Duration = Duration::from_secs(1);

/// Work on so many bytes. On many it takes its time, in which the other tasks of this thread of the runtime go on
/// elsewhere: nobody waits for what somebody else's sandbox or client has sent.
pub fn offload_if_large<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let is_shared =
        || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > SMALL_BYTES && is_shared() { tokio::task::block_in_place(work) } else { work() }
}

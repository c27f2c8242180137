//! Which sizes need no charge, and where work on large sizes is done.

use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The bytes that a request, an answer, a piece of a stream or a frame may take without a charge.
pub const SMALL_BYTES: u64 = 64 * 1024;
/// The same limit for things of which a session may have hundreds: tool calls, and frames that wait to be sent.
pub const TINY_BYTES: u64 = 4 * 1024;
/// After this time without room a frame of a sandbox is read although the pool is full, one at a time for each user,
/// because the end of a cell may be reported behind it.
pub const OVERDRAFT_AFTER: Duration = Duration::from_secs(1);

/// Does `work` on `bytes` bytes. Long work runs in `block_in_place`, which moves the other tasks of this runtime thread
/// elsewhere, so that no user waits while the data of another user's sandbox or client is handled.
pub fn offload_if_large<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let is_shared =
        || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > SMALL_BYTES && is_shared() { tokio::task::block_in_place(work) } else { work() }
}

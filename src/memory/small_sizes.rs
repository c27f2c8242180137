//! Which sizes need no charge, and where work on large sizes is done.

use std::time::Duration;

use crate::offload::offload_if;

/// The bytes that a request, an answer, a piece of a stream or a frame may take without a charge.
pub const SMALL_BYTES: u64 = 64 * 1024;
/// The same limit for things of which a session may have hundreds: tool calls, and frames that wait to be sent.
pub const TINY_BYTES: u64 = 4 * 1024;
/// After this time without room a frame of a sandbox is read although the pool is full, one at a time for each user,
/// because the end of a cell may be reported behind it.
pub const OVERDRAFT_AFTER: Duration = Duration::from_secs(1);

/// Does `work` on `bytes` bytes, off the shared threads if these are many.
pub fn offload_if_large<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    offload_if(bytes > SMALL_BYTES, work)
}

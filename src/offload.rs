//! Moves long work off the runtime threads that all users share (`block_in_place`).

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does some work. Long work runs in `block_in_place`, which moves the other tasks of this runtime thread elsewhere, so
/// that no user waits while the data of another user's sandbox or client is handled.
pub fn offload_if<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    let is_shared =
        || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_long && is_shared() { tokio::task::block_in_place(work) } else { work() }
}

//! The few system calls that have no safe function: the only unsafe code of this program.

#![allow(unsafe_code)]

/// Gives signals their default effect that Rust's runtime handles: a pid namespace protects its init only from signals
/// without a handler.
pub fn handle_no_signals() {
    for number in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action is installed, and no code of this process depends on another one.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// Whether a new user namespace can be made. The caller is a process that does nothing else, and ends.
pub fn can_make_user_namespace() -> bool {
    // SAFETY: the call takes a number and touches no memory of this process, which has one thread.
    unsafe { libc::unshare(libc::CLONE_NEWUSER) == 0 }
}

/// Closes a descriptor that was open when the program started, and that nothing in it owns.
pub fn close(descriptor: i32) {
    // SAFETY: the caller names only descriptors from before the program opened any itself, or that are closed again.
    unsafe { libc::close(descriptor) };
}

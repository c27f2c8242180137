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

/// Makes a child that does the work and ends with its result. Unlike `Command::spawn`, this does not wait until the child
/// runs another program: code of the session could stop the child before that, and the guardian would wait for ever.
pub fn fork_into(work: impl FnOnce() -> i32) -> rustix::io::Result<i32> {
    // SAFETY: this process has one thread, so that no lock is held by another one; the child never returns from here.
    match unsafe { libc::fork() } {
        -1 => Err(rustix::io::Errno::AGAIN),
        0 => {
            let code = work();
            // SAFETY: the process ends at once.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid),
    }
}

/// Closes a descriptor that was open when the program started, and that nothing in it owns.
pub fn close(descriptor: i32) {
    // SAFETY: the caller names only descriptors from before the program opened any itself, or that are closed again.
    unsafe { libc::close(descriptor) };
}

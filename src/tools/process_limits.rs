//! Limits that a program of the host starts with. They are set between `fork` and `exec`, so that no code of the
//! program ever runs without them; this takes the only `unsafe` block of the tools.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit, setsid};
use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use super::contract::failure;
use crate::protocol::frames::ToolFailure;
use crate::protocol::principal::Principal;
use crate::security_controls;

/// The most programs of tools that run at once for one user.
pub const PROGRAMS_PER_USER: usize = 8;
/// The most writable memory of each process of a program.
const MEMORY_BYTES: u64 = 4 << 30;
/// The largest file that a program may write.
const FILE_BYTES: u64 = 4 << 30;
const OPEN_FILES: u64 = 1024;
/// The most processes and threads of the program's user in total; with more, the program cannot create another.
const PROCESSES: u64 = 4096;
/// Seconds of CPU time per second of the program's timeout, and the least in total.
const CPU_PER_SECOND: u64 = 4;
const LEAST_CPU: u64 = 10;

/// Makes the program start with these limits, in a session of its own.
pub fn limit(process: &mut Command, timeout: Duration) {
    let cpu = timeout.as_secs().saturating_mul(CPU_PER_SECOND).max(LEAST_CPU);
    let limits = [
        (Resource::Data, MEMORY_BYTES),
        (Resource::Fsize, FILE_BYTES),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Nproc, PROCESSES),
        (Resource::Cpu, cpu),
        (Resource::Core, 0),
    ];
    let begin = move || {
        setsid()?;
        if security_controls::holds("programs_of_tools_are_limited") {
            for (resource, most) in limits {
                // A limit is never higher than the daemon's own.
                let most = rustix::process::getrlimit(resource).maximum.map_or(most, |own| own.min(most));
                setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
            }
        }
        Ok(())
    };
    // SAFETY: between `fork` and `exec` the closure makes system calls only: it allocates nothing and takes no lock.
    unsafe { process.pre_exec(begin) };
}

/// The number of running programs of each user.
static RUNNING: Mutex<Option<HashMap<Principal, usize>>> = Mutex::new(None);

/// The place of one counted program.
pub struct ProgramSlot(Principal);

impl ProgramSlot {
    pub fn take(owner: Principal) -> Result<Self, ToolFailure> {
        let mut running = RUNNING.lock();
        let count = running.get_or_insert_default().entry(owner).or_default();
        if *count >= PROGRAMS_PER_USER && security_controls::holds("programs_of_tools_are_counted") {
            let message = format!("{PROGRAMS_PER_USER} programs of tools run for this user already");
            return Err(failure("busy", message));
        }
        *count += 1;
        Ok(Self(owner))
    }
}

impl Drop for ProgramSlot {
    fn drop(&mut self) {
        let mut running = RUNNING.lock();
        if let Some(running) = running.as_mut()
            && let Some(count) = running.get_mut(&self.0)
        {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.0);
            }
        }
    }
}

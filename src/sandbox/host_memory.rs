//! The memory of this machine, of which a reserve is left to everything that is no sandbox. The limits of sandboxes may
//! add up to more than there is; when it runs short, Linux ends processes, and so no sandbox is added then.

use std::path::Path;

use crate::config::show_size;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::attest::facts::read_small;
use crate::security_controls;

/// A refusal while less than `reserve` bytes are available.
pub(super) fn check(reserve: u64) -> Result<(), Problem> {
    judge(read_small(Path::new("/proc/meminfo")).ok().as_deref().and_then(available), reserve)
}

/// If the kernel does not tell what is available, the check passes.
fn judge(available: Option<u64>, reserve: u64) -> Result<(), Problem> {
    match available {
        Some(available) if available < reserve && security_controls::holds("memory_reserve") => Err(Problem::new(
            Code::QuotaExceeded,
            format!(
                "no sandbox can be made: this machine has {} of memory available, less than the {} that are left to \
                 everything else",
                show_size(available),
                show_size(reserve)
            ),
        )
        .hint("try again later, or remove sessions that hold much; `sandbox.memory_reserve` sets what is left")),
        _ => Ok(()),
    }
}

/// What programs can still have without swapping, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let row = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    row.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_the_reserve_is_too_little() {
        let meminfo = "MemTotal:       24681472 kB\nMemFree:  100 kB\nMemAvailable:     262143 kB\n";
        assert_eq!(available(meminfo), Some(262_143 * 1024));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        judge(available(meminfo), 262_143 * 1024).unwrap();
        judge(None, u64::MAX).unwrap();
        let problem = judge(available(meminfo), 256 << 20).unwrap_err();
        assert_eq!(problem.code, Code::QuotaExceeded);
        assert!(problem.message.contains("256 MiB"), "{problem:?}");
        check(0).unwrap();
        check(u64::MAX).unwrap_err();
    }
}

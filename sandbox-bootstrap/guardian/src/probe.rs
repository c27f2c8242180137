//! Tries out what the sandbox really prevents, before any user code runs.
//!
//! Every finding is true only if the attempt was made and refused.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType};
use rustix::process::{self, DumpableBehavior, Pid, Resource, Signal};
use serde_json::{Value, json};

use crate::helpers;

/// `AF_ALG`.
const KERNEL_CRYPTO: AddressFamily = AddressFamily::from_raw(38);
const PROBE_FILE: &str = "/.belljar-probe";

pub fn probe() -> Value {
    let (no_foreign_prlimit, no_new_namespaces) = try_on_child();
    json!({
        "no_network": only_loopback(),
        "no_kernel_crypto": net::socket(KERNEL_CRYPTO, SocketType::SEQPACKET, None).is_err(),
        "read_only_root": is_root_read_only(),
        "no_foreign_prlimit": no_foreign_prlimit,
        "no_new_namespaces": no_new_namespaces,
        "is_init": process::getpid() == Pid::INIT,
        "not_dumpable": process::dumpable_behavior() == Ok(DumpableBehavior::NotDumpable),
    })
}

/// Whether there is no interface but the loopback. A jail has no `/sys`.
fn only_loopback() -> bool {
    let listed = fs::read_to_string("/proc/self/net/dev").map(|text| parse_interfaces(&text)).or_else(|_| {
        let listing = fs::read_dir("/sys/class/net")?;
        listing.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
    });
    listed.is_ok_and(|names: Vec<String>| names.iter().all(|name| name == "lo"))
}

/// Two lines of headings, then `name: counters`.
fn parse_interfaces(text: &str) -> Vec<String> {
    text.lines().skip(2).map(|line| line.split(':').next().unwrap_or(line).trim().to_owned()).collect()
}

fn is_root_read_only() -> bool {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(PROBE_FILE, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => {
            let _ = rustix::fs::unlink(PROBE_FILE);
            false
        }
        Err(error) => matches!(error, Errno::ROFS | Errno::ACCESS | Errno::PERM),
    }
}

/// Whether `prlimit` on another process is refused, and whether a new user namespace is.
fn try_on_child() -> (bool, bool) {
    let Ok(mut child) = helpers::start_probe() else { return (false, false) };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let own = process::getrlimit(Resource::Nofile);
    let tried = process::prlimit(pid, Resource::Nofile, own);
    let prlimit_refused = pid.is_some() && matches!(tried, Err(Errno::PERM | Errno::NOSYS));
    drop(child.stdin.take());
    // A seccomp filter may also kill the child for the attempt.
    let refused =
        |status: std::process::ExitStatus| status.success() || status.signal() == Some(Signal::SYS.as_raw());
    (prlimit_refused, child.wait().is_ok_and(refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_stand_below_the_headings() {
        let text = "Inter-|   Receive\n face |bytes\n    lo:     0       0\n  eth0: 1 2\n";
        assert_eq!(parse_interfaces(text), ["lo", "eth0"]);
    }
}

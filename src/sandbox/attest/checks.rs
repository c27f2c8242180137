//! The properties that every sandbox must have, in any backend. The attestation of a backend adds its own checks.

use crate::protocol::frames::Probe;
use crate::protocol::receipt::{Holder, LimitFact, ProcessFact};
use crate::sandbox::attest::facts::Ceilings;
use crate::sandbox::spec::{LOCKED_MEMORY_BYTES, SandboxSpec};

/// Collects the names of the differences between the requested sandbox and the actual one.
#[derive(Default)]
pub(in crate::sandbox) struct Checks {
    found: Vec<String>,
}

impl Checks {
    pub fn check(&mut self, holds: bool, what: &str) {
        if !holds {
            self.found.push(what.to_owned());
        }
    }

    /// Checks which user and groups the process runs as.
    pub fn user(&mut self, spec: &SandboxSpec, process: &ProcessFact, owner_groups: &[u32]) {
        self.check(process.uid == spec.user.host_uid, "the user id of the process");
        self.check(process.uid != 0, "the process is root on the host");
        self.check(process.gid == spec.user.host_gid, "the group id of the process");
        self.check(process.gid != 0, "the process is of root's group on the host");
        let may_have = |gid: &u32| *gid == spec.user.host_gid || owner_groups.contains(gid);
        let groups = process.groups.as_deref();
        self.check(groups.is_some_and(|groups| groups.iter().all(may_have)), "supplementary groups");
    }

    /// Checks which rights the kernel denies the process.
    pub fn rights(&mut self, process: &ProcessFact) {
        self.check(is_zero_hex(&process.cap_eff) && is_zero_hex(&process.cap_bnd), "capabilities");
        self.check(process.no_new_privs, "no-new-privileges");
        self.check(process.seccomp == 2, "the seccomp filter");
    }

    /// Checks the limits. A limit that nothing enforces is not a difference, because the receipt shows it.
    pub fn limits(&mut self, spec: &SandboxSpec, limits: &LimitFact) {
        let (wanted, held_by) = (&spec.limits, &limits.held_by);
        self.check(limits.memory_bytes <= wanted.memory_bytes, "the memory limit");
        let cpus = held_by.cpus == Holder::Nothing || limits.cpus <= wanted.cpus + 0.01;
        self.check(cpus, "the CPU limit");
        let pids = held_by.pids == Holder::Nothing || limits.pids <= wanted.pids;
        self.check(pids, "the limit on processes");
        self.check(limits.open_files <= wanted.open_files, "the limit on open files");
        self.check(limits.file_bytes <= wanted.file_bytes, "the limit on file size");
        self.check(limits.core_bytes == 0, "the limit on core files");
    }

    /// Checks the limits that the receipt leaves out, because they are the same for all sandboxes.
    pub fn ceilings(&mut self, ceilings: Ceilings) {
        let locked = i64::try_from(ceilings.locked_memory).is_ok_and(|bytes| bytes <= LOCKED_MEMORY_BYTES);
        self.check(locked, "the limit on locked memory");
        self.check(ceilings.message_queues == 0, "the limit on message queues");
    }

    /// Checks what the guardian found out before any code ran.
    pub fn probe(&mut self, probe: &Probe) {
        self.check(probe.no_network, "probe: a network interface is there");
        self.check(probe.no_kernel_crypto, "probe: an AF_ALG socket can be opened");
        self.check(probe.read_only_root, "probe: the root can be written");
        self.check(probe.no_foreign_prlimit, "probe: prlimit on another process was not refused");
        self.check(probe.no_new_namespaces, "probe: a new user namespace was not refused");
        self.check(probe.is_init, "probe: the guardian is not pid 1");
        self.check(probe.not_dumpable, "probe: the guardian's memory can be read");
    }

    /// The differences found; code may run only if there are none.
    pub fn differences(self) -> Vec<String> {
        self.found
    }
}

fn is_zero_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'0')
}

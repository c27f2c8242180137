//! The seccomp profile of every sandbox, in the engine's format; `jail::seccomp` compiles the same text.

use serde_json::{Value, json};
use std::sync::LazyLock;

use crate::security_controls;

/// The filter denies by default and is passed inline, so that an engine without seccomp refuses to start instead of
/// running the sandbox unconfined.
const PROFILE: &str = include_str!("../../../config/seccomp.json");

/// System calls that can set the mode of a file.
const CALLS_WITH_MODES: [&str; 8] =
    ["chmod", "creat", "fchmod", "fchmodat", "fchmodat2", "open", "openat", "openat2"];

/// The profile that is applied.
pub fn seccomp_profile() -> &'static str {
    static APPLIED: LazyLock<String> = LazyLock::new(|| {
        let open = switched_off();
        let profile = if open.is_empty() { PROFILE.to_owned() } else { allowing(PROFILE, &open) };
        if security_controls::holds("seccomp_one_abi") { profile } else { with_other_abis(&profile) }
    });
    &APPLIED
}

/// System calls whose rules a test build leaves out, to prove that a test notices.
fn switched_off() -> Vec<&'static str> {
    let groups: [(bool, &[&'static str]); 24] = [
        (security_controls::holds("no_set_id_modes"), &CALLS_WITH_MODES),
        (security_controls::holds("seccomp_sockets"), &["socket", "socketpair"]),
        (
            security_controls::holds("seccomp_io_uring"),
            &["io_uring_setup", "io_uring_enter", "io_uring_register"],
        ),
        (security_controls::holds("seccomp_userfaultfd"), &["userfaultfd"]),
        (security_controls::holds("seccomp_bpf"), &["bpf"]),
        (security_controls::holds("seccomp_perf"), &["perf_event_open"]),
        (
            security_controls::holds("seccomp_memory_of_others"),
            &["ptrace", "process_vm_readv", "process_vm_writev"],
        ),
        (security_controls::holds("seccomp_descriptors_of_others"), &["pidfd_getfd", "kcmp"]),
        (security_controls::holds("seccomp_keys"), &["keyctl", "add_key", "request_key"]),
        (
            security_controls::holds("seccomp_mounts"),
            &["mount", "umount2", "pivot_root", "chroot", "open_tree"],
        ),
        (security_controls::holds("seccomp_namespaces"), &["unshare", "setns", "clone"]),
        (security_controls::holds("seccomp_clone3"), &["clone3"]),
        (security_controls::holds("seccomp_splice"), &["splice"]),
        (security_controls::holds("seccomp_file_handles"), &["open_by_handle_at", "name_to_handle_at"]),
        (security_controls::holds("seccomp_memfd_secret"), &["memfd_secret"]),
        (security_controls::holds("seccomp_kernel_code"), &["init_module", "finit_module", "kexec_load"]),
        (security_controls::holds("seccomp_limits_of_others"), &["prlimit64"]),
        (
            security_controls::holds("seccomp_scheduling_of_others"),
            &["sched_setscheduler", "sched_setattr", "sched_setparam"],
        ),
        (security_controls::holds("seccomp_priority_of_others"), &["setpriority"]),
        (security_controls::holds("seccomp_processors_of_others"), &["sched_setaffinity"]),
        (security_controls::holds("seccomp_personality"), &["personality"]),
        (security_controls::holds("seccomp_devices"), &["mknod", "mknodat"]),
        (security_controls::holds("seccomp_terminals"), &["ioctl"]),
        (
            security_controls::holds("seccomp_machine"),
            &["adjtimex", "modify_ldt", "syslog", "reboot", "acct"],
        ),
    ];
    groups.into_iter().filter(|(is_enforced, _)| !is_enforced).flat_map(|(_, calls)| calls).copied().collect()
}

/// The profile with these system calls allowed, regardless of their arguments.
fn allowing(profile: &str, calls: &[&str]) -> String {
    let mut profile: Value = serde_json::from_str(profile).unwrap_or_default();
    if let Some(rules) = profile["syscalls"].as_array_mut() {
        for rule in rules.iter_mut() {
            if let Some(names) = rule["names"].as_array_mut() {
                names.retain(|name| !calls.iter().any(|call| name == call));
            }
        }
        rules.retain(|rule| rule["names"] != json!([]));
        rules.push(json!({"names": calls, "action": "SCMP_ACT_ALLOW"}));
    }
    profile.to_string()
}

/// The profile with the 32-bit numbers of the same calls, whose arguments no rule checks.
fn with_other_abis(profile: &str) -> String {
    let mut profile: Value = serde_json::from_str(profile).unwrap_or_default();
    profile["archMap"][0]["subArchitectures"] = json!(["SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
    profile.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(profile: &str) -> Vec<Value> {
        let profile: Value = serde_json::from_str(profile).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        profile["syscalls"].as_array().unwrap().clone()
    }

    fn allowed(profile: &str, call: &str) -> Vec<Value> {
        let names = |rule: &Value| rule["names"].as_array().unwrap().iter().any(|name| name == call);
        let allows = |rule: &Value| rule["action"] == "SCMP_ACT_ALLOW";
        rules(profile).into_iter().filter(|rule| allows(rule) && names(rule)).collect()
    }

    #[test]
    fn the_profile_denies_what_it_does_not_name() {
        for never in [
            "add_key",
            "bpf",
            "delete_module",
            "fanotify_init",
            "finit_module",
            "init_module",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "kexec_load",
            "keyctl",
            "mount",
            "mount_setattr",
            "name_to_handle_at",
            "open_by_handle_at",
            "openat2",
            "perf_event_open",
            "pidfd_getfd",
            "pivot_root",
            "process_vm_readv",
            "process_vm_writev",
            "ptrace",
            "reboot",
            "request_key",
            "setns",
            "settimeofday",
            "swapon",
            "unshare",
            "userfaultfd",
        ] {
            assert!(allowed(seccomp_profile(), never).is_empty(), "{never}");
        }
    }

    /// The kernel reads 32 bits of a pid; a rule must not mistake pid 1 with other bits above them for another pid.
    #[test]
    fn the_priority_of_every_process_but_pid_1_can_be_set() {
        const LARGEST_PID: u64 = 1 << 22;
        let rules = allowed(PROFILE, "setpriority");
        assert!(
            rules.iter().all(|rule| rule["args"][0] == json!({"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}))
        );
        let pids: Vec<(u64, u64)> = rules
            .iter()
            .map(|rule| {
                let pid = &rule["args"][1];
                assert_eq!((&pid["index"], &pid["op"]), (&json!(1), &json!("SCMP_CMP_MASKED_EQ")));
                (pid["value"].as_u64().unwrap(), pid["valueTwo"].as_u64().unwrap())
            })
            .collect();
        let is_allowed = |pid: u64| pids.iter().any(|(mask, bits)| pid & mask == *bits);
        assert!((0..=LARGEST_PID).all(|pid| is_allowed(pid) == (pid != 1)));
        assert!((32..64).all(|bit| !is_allowed(1 | 1 << bit)));
    }

    #[test]
    fn no_call_that_takes_a_mode_is_allowed_whatever_it_is() {
        for call in CALLS_WITH_MODES.into_iter().chain(["mknod", "mknodat"]) {
            let rules = allowed(PROFILE, call);
            assert!(rules.iter().all(|rule| rule["args"].as_array().is_some()), "{call}: {rules:?}");
        }
        let open = allowing(PROFILE, &CALLS_WITH_MODES);
        for call in CALLS_WITH_MODES {
            assert!(allowed(&open, call).iter().all(|rule| rule["args"].is_null()), "{call}");
        }
        assert_eq!(allowed(&open, "read").len(), 1);
    }
}

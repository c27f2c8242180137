//! The seccomp profile of every sandbox, as an engine takes it; `jail::seccomp` compiles the same text.

use serde_json::{Value, json};
use std::sync::LazyLock;

use crate::controls;

/// Default-deny filter, passed inline: an engine without seccomp then refuses to start instead of
/// running unconfined.
const PROFILE: &str = include_str!("../../config/seccomp.json");

/// Calls that can give a file a mode.
const CALLS_WITH_MODES: [&str; 8] =
    ["chmod", "creat", "fchmod", "fchmodat", "fchmodat2", "open", "openat", "openat2"];

/// The profile that is applied.
#[must_use]
pub fn seccomp_profile() -> &'static str {
    static APPLIED: LazyLock<String> = LazyLock::new(|| {
        let open = switched_off();
        if open.is_empty() { PROFILE.to_owned() } else { allowing(PROFILE, &open) }
    });
    &APPLIED
}

/// Calls whose rules a test build leaves out, to see who notices.
fn switched_off() -> Vec<&'static str> {
    let mut calls = Vec::new();
    if !controls::holds("no_set_id_modes") {
        calls.extend(CALLS_WITH_MODES);
    }
    calls
}

/// The profile with these calls allowed, whatever their arguments are.
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
            "finit_module",
            "init_module",
            "io_uring_setup",
            "kexec_load",
            "keyctl",
            "mount",
            "mount_setattr",
            "open_by_handle_at",
            "openat2",
            "perf_event_open",
            "pivot_root",
            "process_vm_readv",
            "process_vm_writev",
            "ptrace",
            "request_key",
            "setns",
            "unshare",
            "userfaultfd",
        ] {
            assert!(allowed(PROFILE, never).is_empty(), "{never}");
        }
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

//! A control group for the jail of an ordinary user: a transient scope of the user's own systemd, where there is one.
//! Only systemd may move a process out of the user's login session.

use std::process::Stdio;
use std::time::Duration;

use crate::config::has_user_manager;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::backend::jail::group::Group;
use crate::sandbox::spec::Limits;

const BUSCTL: &str = "busctl";
/// Time for the manager to accept a request; it then has `LOOKS` times `LOOK_EVERY` to fulfil it.
const CALL: Duration = Duration::from_secs(2);
const LOOKS: usize = 50;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Puts a process into a scope of its own. `None` if the scope cannot have all the limits: then they are enforced as
/// without one.
pub async fn make(name: &str, pid: i32, limits: &Limits) -> Option<Group> {
    if !has_user_manager() {
        return None;
    }
    // Older managers refuse the unknown policy, but do not end the rest of a scope anyway.
    if !(asked(words(name, pid, limits, Some("continue"))).await
        || asked(words(name, pid, limits, None)).await)
    {
        tracing::debug!(name, "no scope for a jail");
        // A slow manager may have made the scope nevertheless.
        return find(name, pid).filter(|group| holds(&group.cgroup, limits));
    }
    for _ in 0..LOOKS {
        if let Some(group) = find(name, pid).filter(|group| holds(&group.cgroup, limits)) {
            return Some(group);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    tracing::debug!(name, "the scope of a jail does not hold all its limits");
    None
}

async fn asked(words: Vec<String>) -> bool {
    let mut command = tokio::process::Command::new(BUSCTL);
    command.args(words).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let taken = tokio::time::timeout(CALL, command.status()).await;
    matches!(&taken, Ok(Ok(status)) if status.success())
}

/// The scope with this name, if the process is in it.
pub fn find(name: &str, pid: i32) -> Option<Group> {
    Cgroup::of_process(pid).filter(|cgroup| is_of(cgroup, name)).map(|cgroup| Group { cgroup })
}

fn is_of(cgroup: &Cgroup, name: &str) -> bool {
    match cgroup {
        Cgroup::V1 { .. } => false,
        Cgroup::V2 { folder } => folder.ends_with(unit(name)),
    }
}

/// Whether the group has all the limits: a manager that lacks a controller ignores the properties for it.
fn holds(cgroup: &Cgroup, limits: &Limits) -> bool {
    cgroup.memory_limit().is_some_and(|bytes| bytes <= limits.memory_bytes)
        && cgroup.pids_limit().is_some_and(|pids| pids <= limits.pids)
        && cgroup.cpus().is_some_and(|cpus| cpus <= limits.cpus + 0.01)
}

fn unit(name: &str) -> String {
    format!("belljar-{name}.scope")
}

/// The call of `StartTransientUnit` on the user's bus: each property with its type and value, and no further units.
/// Without the policy `on_oom`, a manager ends the whole scope, with its checkpoints, when the kernel has killed one of
/// its processes for lack of memory.
fn words(name: &str, pid: i32, limits: &Limits, on_oom: Option<&str>) -> Vec<String> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "settings bound it to a few hundred CPUs"
    )]
    let cpu_us = (limits.cpus * 1e6).round() as u64;
    let numbers = [
        ("MemoryMax", limits.memory_bytes),
        ("MemorySwapMax", 0),
        ("TasksMax", limits.pids),
        ("CPUQuotaPerSecUSec", cpu_us),
    ];
    let mut words: Vec<String> = ["--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"]
        .into_iter()
        .chain(["org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"])
        .map(str::to_owned)
        .collect();
    words.extend([
        unit(name),
        "fail".to_owned(),
        (numbers.len() + 2 + usize::from(on_oom.is_some())).to_string(),
    ]);
    words.extend(["PIDs", "au", "1"].map(str::to_owned));
    words.push(pid.to_string());
    // The scope is removed when its last process ends, with any result.
    words.extend(["CollectMode", "s", "inactive-or-failed"].map(str::to_owned));
    if let Some(policy) = on_oom {
        words.extend(["OOMPolicy", "s", policy].map(str::to_owned));
    }
    for (property, value) in numbers {
        words.extend([property.to_owned(), "t".to_owned(), value.to_string()]);
    }
    words.push("0".to_owned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::spec::tests::spec;

    #[test]
    fn the_manager_is_asked_for_every_limit() {
        let without = words("x", 7, &spec().limits, None).join(" ");
        let with = words("x", 7, &spec().limits, Some("continue")).join(" ");
        assert_eq!(with.replace(" OOMPolicy s continue", "").replace("fail 7", "fail 6"), without);
        assert!(with.contains(" fail 7 ") && with.contains(" OOMPolicy s continue "), "{with}");
        insta::assert_snapshot!(without, @"--user call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager StartTransientUnit ssa(sv)a(sa(sv)) belljar-x.scope fail 6 PIDs au 1 7 CollectMode s inactive-or-failed MemoryMax t 1073741824 MemorySwapMax t 0 TasksMax t 256 CPUQuotaPerSecUSec t 1500000 0");
    }

    #[test]
    fn only_a_scope_of_that_name_with_all_limits_counts() {
        let folder = tempfile::tempdir().unwrap();
        let scope = folder.path().join("belljar-x.scope");
        std::fs::create_dir(&scope).unwrap();
        let cgroup = Cgroup::V2 { folder: scope.clone() };
        assert!(is_of(&cgroup, "x") && !is_of(&cgroup, "y"));
        let limits = spec().limits;
        let files = [("memory.max", "1073741824"), ("pids.max", "256"), ("cpu.max", "150000 100000")];
        for (file, value) in files {
            assert!(!holds(&cgroup, &limits), "{file} is not there yet");
            std::fs::write(scope.join(file), value).unwrap();
        }
        assert!(holds(&cgroup, &limits));
        for (file, value) in files {
            std::fs::write(scope.join(file), "max").unwrap();
            assert!(!holds(&cgroup, &limits), "{file} is without a bound");
            std::fs::write(scope.join(file), value).unwrap();
        }
    }
}

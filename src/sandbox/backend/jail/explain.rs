//! Explains why bubblewrap could not build a jail, and what to do about it.

use std::path::Path;

use crate::protocol::problem::{Code, Problem};
use crate::sandbox::attest::facts::read_small;

/// Characters of bubblewrap's own message that are passed on.
const STDERR_CHARS: usize = 400;

/// The host's settings for user namespaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceSettings {
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`.
    pub apparmor_restricts: bool,
    /// Debian's `kernel.unprivileged_userns_clone` is 0.
    pub clone_forbidden: bool,
    /// `user.max_user_namespaces` is 0.
    pub none_allowed: bool,
}

impl NamespaceSettings {
    pub fn read() -> Self {
        let is = |path: &str, value: &str| read_small(Path::new(path)).is_ok_and(|text| text.trim() == value);
        Self {
            apparmor_restricts: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            clone_forbidden: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            none_allowed: is("/proc/sys/user/max_user_namespaces", "0"),
        }
    }
}

/// The problem behind a message that bubblewrap wrote to its stderr.
pub fn failure(stderr: &str, settings: NamespaceSettings) -> Problem {
    let stderr: String = stderr.trim().chars().take(STDERR_CHARS).collect();
    let about_namespaces =
        ["uid map", "namespace", "No permissions to creat"].iter().any(|it| stderr.contains(it));
    let about_proc = stderr.contains("mount proc") || stderr.contains("/proc: Operation not permitted");
    let (why, hint) = if about_namespaces && settings.apparmor_restricts {
        (
            "AppArmor keeps ordinary users of this machine from making user namespaces",
            "allow it for bubblewrap: install `apparmor-profiles` and run `ln -s /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/ && apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`, or for all with `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    } else if about_namespaces && settings.clone_forbidden {
        (
            "this machine keeps ordinary users from making user namespaces",
            "allow it with `sysctl kernel.unprivileged_userns_clone=1`",
        )
    } else if about_namespaces && settings.none_allowed {
        ("this machine allows no user namespaces", "allow some with `sysctl user.max_user_namespaces=10000`")
    } else if about_namespaces {
        (
            "no namespaces can be made here",
            "inside a container, start that one with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`, or use an engine instead",
        )
    } else if about_proc {
        (
            "no `/proc` can be mounted here, as in a container that hides parts of its own",
            "start that container with `--security-opt systempaths=unconfined`, or use an engine instead",
        )
    } else {
        (
            "bubblewrap failed",
            "try `bwrap --ro-bind / / --unshare-all true`; it has to work for the daemon's user",
        )
    };
    Problem::new(Code::SandboxFailed, format!("no jail can be built: {why} ({})", stderr.escape_default()))
        .hint(hint)
}

/// The problem that bubblewrap is not installed or cannot be run.
pub fn missing(error: &std::io::Error) -> Problem {
    Problem::new(Code::SandboxFailed, format!("bubblewrap cannot be run: {error}"))
        .hint("install it with `apt-get install bubblewrap`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_restriction_has_its_own_remedy() {
        let nothing = NamespaceSettings::default();
        let cases = [
            (
                "bwrap: setting up uid map: Permission denied",
                NamespaceSettings { apparmor_restricts: true, ..nothing },
                "apparmor_parser",
            ),
            (
                "bwrap: No permissions to create new namespace, likely because the kernel does not allow it",
                NamespaceSettings { clone_forbidden: true, ..nothing },
                "unprivileged_userns_clone=1",
            ),
            (
                "bwrap: Creating new namespace failed: No space left on device",
                NamespaceSettings { none_allowed: true, ..nothing },
                "max_user_namespaces",
            ),
            ("bwrap: Creating new namespace failed: Operation not permitted", nothing, "seccomp=unconfined"),
            ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", nothing, "systempaths"),
            ("bwrap: Unknown option --size", nothing, "bwrap --ro-bind"),
        ];
        for (stderr, settings, remedy) in cases {
            let problem = failure(stderr, settings);
            assert!(problem.hint.as_ref().is_some_and(|hint| hint.contains(remedy)), "{stderr}: {problem:?}");
        }
        // A restriction that has nothing to do with the failure is not blamed.
        let other = failure(
            "bwrap: Can't find source path /x",
            NamespaceSettings { apparmor_restricts: true, ..nothing },
        );
        assert!(other.message.contains("bubblewrap failed"), "{other:?}");
    }
}

//! The command line of bubblewrap as one pure function: every restriction of a jail is written here, as
//! `docker::config` writes those of a container, and a snapshot test shows each change.
//!
//! A daemon of root has bubblewrap build the jail as root, and switches to the guest's user inside, before the first
//! byte of Python runs: the daemon's home is closed to guests, so a guest's user could not mount anything from it, and
//! no user namespace is needed where a machine forbids them. Any other user builds the jail in a user namespace in
//! which only that user is mapped.

use std::path::{Path, PathBuf};

use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::backend::jail::root::Root;
use crate::sandbox::etc;
use crate::sandbox::spec::{
    BRIDGE_DIR, BRIDGE_SOCKET, Errand, HOSTNAME, KERNEL_DIR, MASKED_PATHS, PACKAGES_DIR, READONLY_PATHS,
    SandboxSpec, WORKSPACE, fixed_environment, kernel_command,
};
use crate::security_controls;

/// Numbers of the descriptors that bubblewrap inherits.
pub const OPTIONS_FD: i32 = 9;
pub const STATUS_FD: i32 = 10;
pub const BLOCK_FD: i32 = 11;
pub const FIRST_SECCOMP_FD: i32 = 12;

/// Folders of the jail's root below which something is mounted.
const PARENTS: [&str; 5] = ["/belljar", "/etc", "/sys", "/sys/fs", "/sys/fs/cgroup"];

/// The properties of the host that decide what is mounted.
pub struct Host<'a> {
    pub root: &'a Root,
    /// Whether the daemon runs as root.
    pub system: bool,
    pub group: Option<&'a Cgroup>,
    /// The names of the files in the spec's folder that are mounted in `/etc`.
    pub etc: &'a [&'a str],
    /// The number of seccomp filters; each has a descriptor.
    pub filters: usize,
    /// `Some(true)` if a path of `/proc` is a folder, `Some(false)` if it is a file, `None` if it does not exist.
    pub is_folder: &'a dyn Fn(&str) -> Option<bool>,
}

/// What bubblewrap is started with. Every user of the host can read a command line, and the options have the paths of
/// workspaces, the ids of sessions and the values of their variables, so bubblewrap reads them from a descriptor.
pub struct CommandLine {
    pub options: Vec<String>,
    /// The program that runs in the jail, with its arguments.
    pub command: Vec<String>,
}

impl CommandLine {
    /// The words on the command line of bubblewrap.
    pub fn argv(&self) -> Vec<String> {
        let before = ["--args".to_owned(), OPTIONS_FD.to_string(), "--".to_owned()];
        before.into_iter().chain(self.command.iter().cloned()).collect()
    }

    /// The options, as bubblewrap reads them from the descriptor.
    pub fn hidden(&self) -> Vec<u8> {
        self.options.iter().flat_map(|word| word.bytes().chain([0])).collect()
    }
}

/// Builds the list of options.
#[derive(Default)]
struct Line(Vec<String>);

impl Line {
    fn add(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| (*word).to_owned()));
    }

    /// Adds a restriction, unless a test build switches it off.
    fn wall(&mut self, holds: bool, words: &[&str]) {
        if holds {
            self.add(words);
        }
    }

    fn mount(&mut self, option: &str, source: &Path, target: &str) {
        self.add(&[option, &source.to_string_lossy(), target]);
    }
}

/// Begins the names of a session's variables until the guardian gives them to what it starts (its `helpers.rs`).
const HELD_BACK: &str = "BELLJAR_SET_";

/// The jail that serves one session.
pub fn session(spec: &SandboxSpec, host: &Host<'_>) -> CommandLine {
    let mut line = walls(spec, host);
    line.mount("--bind", &spec.workspace, WORKSPACE);
    line.mount(read_only(security_controls::holds("jail_bridge_is_read_only")), &spec.bridge_dir, BRIDGE_DIR);
    line.mount(read_only(security_controls::holds("jail_kernel_is_read_only")), &spec.kernel_dir, KERNEL_DIR);
    line.mount(
        read_only(security_controls::holds("jail_packages_are_read_only")),
        &spec.packages_dir,
        PACKAGES_DIR,
    );
    for mount in &spec.mounts {
        // A parent that bubblewrap makes implicitly would be closed to the guest.
        let parents: Vec<&Path> = Path::new(&mount.target).ancestors().skip(1).collect();
        for parent in
            parents.iter().rev().filter_map(|parent| parent.to_str()).filter(|parent| *parent != "/")
        {
            line.add(&["--perms", "0755", "--dir", parent]);
        }
        let is_read_only = !mount.writable && security_controls::holds("jail_mounts_are_read_only");
        line.mount(read_only(is_read_only), &mount.source, &mount.target);
    }
    line.wall(security_controls::holds("jail_read_only_root"), &["--remount-ro", "/"]);
    line.0.extend(of_session_variables(spec));
    // The kernel enters the workspace itself, as the guest, because bubblewrap's root may not be allowed to enter it.
    line.add(&["--chdir", "/"]);
    line.add(&["--json-status-fd", &STATUS_FD.to_string(), "--block-fd", &BLOCK_FD.to_string()]);
    let command = command(spec, host, &kernel_command(KERNEL_DIR, BRIDGE_SOCKET, WORKSPACE));
    CommandLine { options: line.0, command }
}

/// The options for the variables of the session.
///
/// Until the guardian gives them to Python, they have names that steer no program: `setpriv` runs with capabilities, and
/// the C library would load code from where `GCONV_PATH` and others like it say.
fn of_session_variables(spec: &SandboxSpec) -> Vec<String> {
    let prefix = if security_controls::holds("jail_variables_are_held_back") { HELD_BACK } else { "" };
    let words =
        |(name, value): (&String, &String)| ["--setenv".to_owned(), format!("{prefix}{name}"), value.clone()];
    spec.env.iter().flat_map(words).collect()
}

/// A short-lived jail that runs one program, and sees only the errand's folders.
pub fn errand(spec: &SandboxSpec, host: &Host<'_>, errand: &Errand) -> CommandLine {
    let mut line = walls(spec, host);
    for mount in &errand.mounts {
        line.mount(read_only(!mount.writable), &mount.source, mount.target);
    }
    line.add(&["--remount-ro", "/", "--chdir", "/"]);
    line.add(&["--json-status-fd", &STATUS_FD.to_string(), "--block-fd", &BLOCK_FD.to_string()]);
    CommandLine { options: line.0, command: command(spec, host, &errand.command) }
}

fn walls(spec: &SandboxSpec, host: &Host<'_>) -> Line {
    let limits = &spec.limits;
    let mut line = Line::default();
    if host.system {
        // `setpriv` needs these capabilities to become the guest, and keeps none of them.
        line.wall(security_controls::holds("jail_no_capabilities"), &["--cap-drop", "ALL"]);
        for capability in ["CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"] {
            line.add(&["--cap-add", capability]);
        }
    } else {
        line.add(&["--unshare-user", "--cap-drop", "ALL"]);
    }
    // Without a namespace of its own, bubblewrap refuses to make anything the first process.
    line.wall(security_controls::holds("jail_own_process_namespace"), &["--unshare-pid", "--as-pid-1"]);
    line.wall(security_controls::holds("jail_new_terminal_session"), &["--new-session"]);
    line.wall(security_controls::holds("jail_environment_is_cleared"), &["--clearenv"]);
    line.wall(security_controls::holds("jail_no_network"), &["--unshare-net"]);
    line.wall(security_controls::holds("jail_own_ipc_namespace"), &["--unshare-ipc"]);
    line.wall(security_controls::holds("jail_own_host_name"), &["--unshare-uts", "--hostname", HOSTNAME]);
    line.wall(security_controls::holds("jail_own_cgroup_namespace"), &["--unshare-cgroup"]);
    for variable in fixed_environment(limits.cpus, KERNEL_DIR) {
        let (name, value) = variable.split_once('=').unwrap_or((&variable, ""));
        line.add(&["--setenv", name, value]);
    }
    // Parents that bubblewrap makes implicitly are closed to all but its own user.
    for folder in PARENTS {
        line.add(&["--perms", "0755", "--dir", folder]);
    }
    for entry in &host.root.entries {
        line.add(&entry.words());
    }
    for name in host.etc {
        let option = read_only(security_controls::holds("jail_etc_is_read_only"));
        line.mount(option, &spec.etc_dir.join(name), &etc::target(name));
    }
    line.add(&["--proc", "/proc"]);
    // Some kernel settings are writable for a process that is alone in a namespace.
    let readonly_paths =
        security_controls::setting("jail_readonly_paths", READONLY_PATHS).into_iter().flatten();
    for path in readonly_paths.filter(|path| (host.is_folder)(path).is_some()) {
        line.mount("--ro-bind", Path::new(path), path);
    }
    let masked = security_controls::setting("jail_masked_paths", MASKED_PATHS).into_iter().flatten();
    let masked = masked.chain(spec.hidden.iter().map(String::as_str));
    for path in masked.filter(|path| path.starts_with("/proc/")) {
        match (host.is_folder)(path) {
            Some(true) => line.add(&["--tmpfs", path, "--remount-ro", path]),
            Some(false) => line.add(&["--ro-bind", "/dev/null", path]),
            None => {}
        }
    }
    line.add(&["--dev", "/dev", "--perms", "1777"]);
    line.wall(
        security_controls::holds("jail_shared_memory_limit"),
        &["--size", &limits.shm_bytes.to_string()],
    );
    line.add(&["--tmpfs", "/dev/shm"]);
    line.wall(security_controls::holds("jail_read_only_devices"), &["--remount-ro", "/dev"]);
    line.add(&["--perms", "1777"]);
    line.wall(security_controls::holds("jail_tmp_size_limit"), &["--size", &limits.tmp_bytes.to_string()]);
    line.add(&["--tmpfs", "/tmp"]);
    match host.group {
        // The guardian watches how much memory is left, and makes workers yield where CPU time is short.
        Some(Cgroup::V1 { memory, cpu, .. }) => {
            line.mount("--ro-bind", memory, "/sys/fs/cgroup/memory");
            line.mount("--ro-bind", cpu, "/sys/fs/cgroup/cpu");
        }
        Some(Cgroup::V2 { folder }) => line.mount("--ro-bind", folder, "/sys/fs/cgroup"),
        None => {}
    }
    for filter in 0..host.filters {
        let descriptor = FIRST_SECCOMP_FD + i32::try_from(filter).unwrap_or_default();
        line.wall(security_controls::holds("jail_seccomp"), &["--add-seccomp-fd", &descriptor.to_string()]);
    }
    line
}

fn command(spec: &SandboxSpec, host: &Host<'_>, command: &[String]) -> Vec<String> {
    let mut line = Line::default();
    if host.system {
        let (uid, gid) = (spec.user.host_uid, spec.user.host_gid);
        let groups =
            if security_controls::holds("jail_no_groups") { "--clear-groups" } else { "--keep-groups" };
        line.add(&["setpriv"]);
        line.wall(security_controls::holds("jail_guest_has_a_group"), &[&format!("--regid={gid}")]);
        line.add(&[groups]);
        line.wall(security_controls::holds("jail_guest_is_a_user"), &[&format!("--reuid={uid}")]);
        line.wall(
            security_controls::holds("jail_no_capabilities"),
            &["--bounding-set=-all", "--inh-caps=-all"],
        );
        line.add(&["--"]);
    }
    line.0.extend_from_slice(command);
    line.0
}

fn read_only(holds: bool) -> &'static str {
    if holds { "--ro-bind" } else { "--bind" }
}

/// The mount points of a jail with these options.
pub fn targets(options: &[String]) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let target = match word.as_str() {
            "--bind" | "--ro-bind" => words.nth(1),
            "--proc" | "--dev" | "--tmpfs" => words.next(),
            // The value of a variable may look like an option.
            "--setenv" => {
                words.nth(1);
                None
            }
            _ => None,
        };
        found.extend(target.map(PathBuf::from));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::backend::jail::root::Entry;
    use crate::sandbox::spec::tests::spec;

    fn arguments_text(system: bool, group: Option<&Cgroup>) -> String {
        let root = Root {
            entries: vec![
                Entry::Bind { source: "/usr".into(), target: "/usr".into() },
                Entry::Link { to: "usr/bin".into(), target: "/bin".into() },
            ],
        };
        let host = Host {
            root: &root,
            system,
            group,
            etc: &etc::FILES,
            filters: 2,
            is_folder: &|path| match path {
                "/proc/acpi" | "/proc/sys" => Some(true),
                "/proc/kcore" | "/proc/interrupts" => Some(false),
                _ => None,
            },
        };
        let line = session(&spec(), &host);
        // The snapshot has one option per line.
        format!("{} -- {}", line.options.join(" "), line.command.join(" ")).replace(" --", "\n--")
    }

    #[test]
    fn the_command_line_shows_nothing_of_the_session() {
        let line =
            CommandLine { options: vec!["--bind".into(), "/a b".into()], command: vec!["python3".into()] };
        assert_eq!(line.argv(), ["--args", "9", "--", "python3"]);
        assert_eq!(line.hidden(), b"--bind\0/a b\0");
    }

    #[test]
    fn no_variable_of_a_session_has_its_name_where_programs_have_capabilities() {
        let env = [("GCONV_PATH", "/data"), ("LANGUAGE", "../x")];
        let spec = SandboxSpec { env: env.map(|(name, value)| (name.into(), value.into())).into(), ..spec() };
        let expected =
            ["--setenv", "BELLJAR_SET_GCONV_PATH", "/data", "--setenv", "BELLJAR_SET_LANGUAGE", "../x"];
        assert_eq!(of_session_variables(&spec), expected);
    }

    #[test]
    fn every_wall_of_a_jail_is_meant() {
        insta::assert_snapshot!(arguments_text(false, None));
    }

    #[test]
    fn a_daemon_of_root_drops_the_user_inside() {
        let group = Cgroup::V2 { folder: "/sys/fs/cgroup/belljar/0123456789abcdef".into() };
        insta::assert_snapshot!(arguments_text(true, Some(&group)));
    }

    #[test]
    fn the_targets_of_mounts_are_found() {
        let options: Vec<String> = "--proc /proc --bind /a /b --size 3 --setenv A --bind --tmpfs /tmp"
            .split(' ')
            .map(str::to_owned)
            .collect();
        assert_eq!(targets(&options), ["/", "/proc", "/b", "/tmp"].map(PathBuf::from));
    }
}

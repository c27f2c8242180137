//! Each single difference is found, and by its own name.

use crate::sandbox::attest::tests as sample;
use crate::sandbox::backend::jail::attest::*;
use crate::sandbox::spec::tests::spec;

/// The mounts of a jail of an ordinary user without any difference.
const MOUNTINFO: &str = "\
106 43 0:51 /newroot / ro,nosuid,nodev,relatime - tmpfs tmpfs rw
107 106 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw
108 107 254:1 / /usr/local ro,nosuid,nodev,relatime - ext4 /dev/vdb rw
110 106 0:52 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
114 106 0:53 / /dev ro,nosuid,nodev,relatime - tmpfs tmpfs rw,mode=755
115 114 0:6 /null /dev/null rw,nosuid,relatime - devtmpfs devtmpfs rw
122 114 0:55 / /dev/shm rw,nosuid,nodev,relatime - tmpfs tmpfs rw,size=16384k
123 106 0:56 / /tmp rw,nosuid,nodev,relatime - tmpfs tmpfs rw,size=65536k
125 106 254:0 /w /workspace rw,nosuid,nodev,relatime - ext4 /dev/vda rw
";

fn targets() -> Vec<PathBuf> {
    ["/", "/usr", "/proc", "/dev", "/dev/shm", "/tmp", "/workspace"].map(PathBuf::from).to_vec()
}

fn well() -> (Evidence, Probe) {
    let spec = spec();
    let evidence = Evidence {
        process: sample::process(&spec),
        owner_groups: vec![24],
        limits: LimitFact {
            cpus: 64.0,
            cgroup_version: 0,
            held_by: HeldBy { memory: Holder::Guardian, cpus: Holder::Nothing, pids: Holder::Rlimit },
            ..sample::limits(&spec)
        },
        ceilings: Ceilings { locked_memory: 65_536, message_queues: 0 },
        namespaces: NAMESPACES.into_iter().chain([USER_NAMESPACE]).map(str::to_owned).collect(),
        mounts: visible(MOUNTINFO),
        workspace_is_ours: Some(true),
        mounts_are_ours: true,
    };
    (evidence, sample::probe())
}

fn differences_after(change: impl FnOnce(&mut Evidence, &mut Probe)) -> Vec<String> {
    let (mut evidence, mut probe) = well();
    change(&mut evidence, &mut probe);
    differences(&spec(), Isolation::Bubblewrap, false, &targets(), &evidence, &probe)
}

fn mount(evidence: &mut Evidence, target: &str) -> usize {
    evidence.mounts.iter().position(|mount| mount.target == Path::new(target)).unwrap()
}

#[test]
fn a_jail_as_it_has_to_be_has_no_differences() {
    assert_eq!(differences_after(|_, _| {}), Vec::<String>::new());
}

/// The mounts that systemd makes on most machines.
#[test]
fn only_the_upper_one_of_two_mounts_at_a_place_counts() {
    let on_demand =
        "35 25 0:30 / /proc/sys/fs/binfmt_misc rw,relatime master:12 - autofs systemd-1 rw,fd=37\n";
    let mounted =
        "48 35 0:38 / /proc/sys/fs/binfmt_misc ro,nosuid,nodev,noexec master:49 - binfmt_misc m rw\n";
    let with = |rows: &str| {
        differences_after(|evidence, _| evidence.mounts = visible(&format!("{MOUNTINFO}{rows}")))
    };
    assert_eq!(with(&format!("{on_demand}{mounted}")), Vec::<String>::new());
    assert_eq!(with(on_demand), ["the mount at /proc/sys/fs/binfmt_misc"]);
    let elsewhere = mounted.replace("/proc/sys/fs/binfmt_misc", "/proc/sys/fs/binfmt_misc/below");
    assert_eq!(with(&format!("{on_demand}{elsewhere}")), ["the mount at /proc/sys/fs/binfmt_misc"]);
}

#[test]
fn every_difference_has_its_name() {
    type Change = fn(&mut Evidence, &mut Probe);
    let cases: [(Change, &str); 25] = [
        (|e, _| e.process.uid = 0, "the process is root on the host"),
        (|e, _| e.process.gid = 5, "the group id of the process"),
        (|e, _| e.process.groups = Some(vec![24, 42]), "supplementary groups"),
        (|e, _| e.process.cap_eff = "00000000a80425fb".into(), "capabilities"),
        (|e, _| e.process.cap_bnd = "0000000000000080".into(), "capabilities"),
        (|e, _| e.process.no_new_privs = false, "no-new-privileges"),
        (|e, _| e.process.seccomp = 0, "the seccomp filter"),
        (|e, _| e.namespaces.retain(|name| name != "net"), "the net namespace"),
        (|e, _| e.namespaces.retain(|name| name != "user"), "the user namespace"),
        (|e, _| e.workspace_is_ours = None, "the folder mounted as the workspace"),
        (|e, _| e.limits.open_files = 20_000, "the limit on open files"),
        (|e, _| e.limits.file_bytes = u64::MAX, "the limit on file size"),
        (|e, _| e.limits.core_bytes = 1, "the limit on core files"),
        (|e, _| e.ceilings.locked_memory = u64::MAX, "the limit on locked memory"),
        (|e, _| e.ceilings.message_queues = 819_200, "the limit on message queues"),
        (|e, _| e.limits.memory_bytes = u64::MAX, "the memory limit"),
        (|e, _| e.limits.pids = 999_999, "the limit on processes"),
        (|e, _| e.limits.held_by.cpus = Holder::Cgroup, "the CPU limit"),
        (
            |e, _| {
                let usr = mount(e, "/usr");
                e.mounts[usr].writable = true;
            },
            "the mount at /usr",
        ),
        (
            |e, _| {
                let workspace = mount(e, "/workspace");
                e.mounts[workspace].nosuid = false;
            },
            "the mount at /workspace",
        ),
        (
            |e, _| {
                let usr = mount(e, "/usr");
                e.mounts[usr].target = "/home".into();
            },
            "the mount at /home",
        ),
        (
            |e, _| {
                let tmp = mount(e, "/tmp");
                e.mounts.remove(tmp);
            },
            "nothing is mounted at /tmp",
        ),
        (|_, p| p.no_network = false, "probe: a network interface is there"),
        (|_, p| p.is_init = false, "probe: the guardian is not pid 1"),
        (|_, p| p.no_new_namespaces = false, "probe: a new user namespace was not refused"),
    ];
    for (change, name) in cases {
        let found = differences_after(change);
        assert!(found.iter().any(|difference| difference == name), "{name}: {found:?}");
    }
}

#[test]
fn root_builds_jails_without_a_user_namespace() {
    let (mut evidence, probe) = well();
    evidence.namespaces.retain(|name| name != "user");
    let found = |system| differences(&spec(), Isolation::Bubblewrap, system, &targets(), &evidence, &probe);
    assert_eq!(found(true), Vec::<String>::new());
    assert_eq!(found(false), ["the user namespace"]);
}

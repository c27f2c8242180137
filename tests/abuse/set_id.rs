//! Rights that lie in files and groups: no file with a set-id bit comes out of a sandbox, and no guest has a group
//! that its owner has not.

use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::grounds::{ANN, on_every_ground};
use crate::docker::helpers::{S, printed, session};
use crate::docker::many_users::{ALICE, USERS, ask, shared};
use crate::support::{Daemon, engine, jails};

on_every_ground!(
    no_file_with_a_set_id_bit_can_be_made,
    ordinary_programs_do_not_notice,
    a_folder_with_a_set_id_program_that_the_guest_could_replace_is_no_workspace,
);

/// Every call that takes a mode, with every bit. What is printed was possible.
const ATTEMPTS: &str = r#"
import ctypes, errno, os, platform, stat, struct
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
def fresh(name):
    open(name, "w").close()
    return name.encode()
O = os.O_CREAT | os.O_WRONLY
for bits in (0o4000, 0o2000, 0o6000):
    mode = bits | 0o755
    attempts = {
        "chmod": lambda: os.chmod(fresh("a"), mode),
        "chmod, with bits above": lambda: call(90 if x86 else -1, fresh("b"), ctypes.c_long(mode | 1 << 40)),
        "fchmod": lambda: os.fchmod(os.open(fresh("c"), os.O_RDONLY), mode),
        "fchmodat": lambda: os.chmod(fresh("d").decode(), mode, dir_fd=os.open(".", os.O_RDONLY)),
        "fchmodat2": lambda: call(452, -100, fresh("e"), mode, 0),
        "chmod of a folder": lambda: (os.makedirs("f", exist_ok=True), os.chmod("f", mode)),
        "creat": lambda: call(85 if x86 else -1, b"g", mode),
        "open": lambda: call(2 if x86 else -1, b"h", O, mode),
        "openat": lambda: os.close(os.open("i", O, mode)),
        "openat, truncating": lambda: os.close(os.open("j", O | os.O_TRUNC | os.O_EXCL, mode)),
        "openat without a name": lambda: os.link(
            f"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_WRONLY, mode)}", f"k{bits}"),
        "openat without a name, by its bit alone": lambda: call(257 if x86 else 56, -100, b".", 0o20000000 | 1, mode),
        "openat2": lambda: call(437, -100, b"l", struct.pack("QQQ", O, mode, 0), 24),
        "mknod": lambda: os.mknod("m", stat.S_IFIFO | mode),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError as error:
            # On some file systems there are no files without a name.
            expected = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
            if error.errno not in expected:
                print(name, oct(mode), error)
        else:
            print(name, oct(mode))
try:
    call(437, -100, b"n", struct.pack("QQQ", O, 0o644, 0), 24)
except OSError as error:
    assert error.errno == errno.ENOSYS, error
else:
    print("openat2 is there")
"#;

fn with_set_id_bits(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let facts = entry.metadata().expect("metadata");
        if facts.mode() & 0o6000 != 0 {
            found.push(format!("{} {:o}", entry.path().display(), facts.mode()));
        }
        if facts.is_dir() {
            found.extend(with_set_id_bits(&entry.path()));
        }
    }
    found
}

fn no_file_with_a_set_id_bit_can_be_made() {
    let Some(daemon) = session() else { return };
    let made = printed(&daemon, ATTEMPTS);
    assert_eq!(with_set_id_bits(&daemon.home().join("w")), Vec::<String>::new());
    assert_eq!(made, "", "these were possible");
}

/// What programs do with modes every day.
const ORDINARY: &str = r#"
import io, os, pathlib, shutil, stat, subprocess, sys, tarfile, tempfile, zipfile, sqlite3
os.makedirs("src/deep/er", mode=0o755)
for path, mode in (("src/a", 0o644), ("src/deep/run.sh", 0o755), ("src/deep/er/private", 0o600)):
    pathlib.Path(path).write_text("echo here")
    os.chmod(path, mode)
os.mkdir("sticky"); os.chmod("sticky", 0o1777)
assert stat.S_IMODE(os.stat("sticky").st_mode) == 0o1777
shutil.copytree("src", "copy")
assert stat.S_IMODE(os.stat("copy/deep/run.sh").st_mode) == 0o755
with tarfile.open("all.tar.gz", "w:gz") as tar:
    tar.add("src")
with tarfile.open("all.tar.gz") as tar:
    tar.extractall("out")
assert open("out/src/deep/run.sh").read() == "echo here"
shutil.make_archive("zipped", "zip", "src")
zipfile.ZipFile("zipped.zip").extractall("unzipped")
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file, tempfile.NamedTemporaryFile() as named:
    file.write(b"x"); named.write(b"x")
fd = os.open("made", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
os.fchmod(fd, 0o600); os.close(fd)
os.mkfifo("pipe", 0o600)
open("appended", "a").write("x")
sqlite3.connect("data.db").execute("create table t (x)")
assert subprocess.run(["cp", "-a", "src", "again"]).returncode == 0
assert subprocess.run(["sh", "src/deep/run.sh"], capture_output=True).stdout == b"here\n"
os.rename("copy", "moved"); shutil.rmtree("moved")
# A register may hold anything where a call does not read it.
import ctypes
assert ctypes.CDLL(None).syscall(257 if os.uname().machine == "x86_64" else 56, -100, b"made", 0, 0o7777) >= 0
print("fine")
"#;

fn ordinary_programs_do_not_notice() {
    let Some(daemon) = session() else { return };
    assert_eq!(printed(&daemon, ORDINARY), "fine\n");
}

/// The group that may read the passwords of this machine.
const SHADOW: u32 = 42;

/// A folder of Alice's in a group that she is not in, as one is born below a folder with the set-group-id bit.
fn folder_in_a_foreign_group() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o2770)).expect("chmod");
    chown(folder.path(), Some(ALICE.uid), Some(SHADOW)).expect("chown");
    folder
}

fn groups_inside(daemon: &Daemon, workspace: &Path) -> Value {
    let image = if daemon.is_jailed() { Value::Null } else { json!("belljar/base") };
    let request = json!({"name": S, "workspace": workspace, "image": image});
    ask(daemon, ALICE, "POST", "/v1/sessions", request).expect_status(201);
    let code = "import os\nfirst = dict(l.split(':\\t', 1) for l in open('/proc/1/status'))\n\
                print([*map(int, first['Gid'].split())], os.getgroups(), os.getresgid())\n\
                open('made', 'w').close()\nos.mkdir('folder')";
    let path = format!("/v1/sessions/{S}/cells?wait=true");
    let result = ask(daemon, ALICE, "POST", &path, json!({"code": code})).expect_status(200);
    assert_eq!(result["status"], "success", "{result:#}");
    result["stdout"].clone()
}

fn a_guest_has_no_group_that_its_owner_has_not() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let folder = folder_in_a_foreign_group();
    let own = ALICE.gid;
    let seen = groups_inside(&daemon, folder.path());
    let expected = |groups: &str| format!("[{own}, {own}, {own}, {own}] {groups} ({own}, {own}, {own})\n");
    // Some engines list the first group also among the others.
    assert!(seen == expected("[]") || seen == expected(&format!("[{own}]")), "{seen}");
    let receipt =
        ask(&daemon, ALICE, "GET", &format!("/v1/sessions/{S}/receipt"), Value::Null).expect_status(200);
    let groups = receipt["process"]["groups"].as_array().expect("a list").clone();
    assert!(groups.iter().all(|gid| *gid == json!(own)), "{receipt:#}");
    assert_ne!(USERS.1, own);
}

#[test]
fn a_guest_has_no_group_that_its_owner_has_not_in_a_container() {
    a_guest_has_no_group_that_its_owner_has_not();
}

#[test]
fn a_guest_has_no_group_that_its_owner_has_not_in_a_jail() {
    jails::in_a_jail(None, a_guest_has_no_group_that_its_owner_has_not);
}

/// The owner of a program gives itself the right to write by a list of access rights, which leaves the set-id bits, and
/// writes through a mapping, which leaves them, too.
const REPLACE: &str = r#"
import mmap, os, struct
owner, group, others = (1, 7), (4, 5), (0x20, 5)
entries = (struct.pack("<HHI", who, rights, 0xffffffff) for who, rights in (owner, group, others))
try:
    os.setxattr("deep/program", "system.posix_acl_access", struct.pack("<I", 2) + b"".join(entries))
except OSError as error:
    print(error)
with open("deep/program", "r+b") as program, mmap.mmap(program.fileno(), 4096) as content:
    content[:4] = b"EVIL"
print(oct(os.stat("deep/program").st_mode))
"#;

fn a_folder_with_a_set_id_program_that_the_guest_could_replace_is_no_workspace() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
    let deep = folder.path().join("deep");
    let program = deep.join("program");
    std::fs::create_dir(&deep).expect("made");
    std::fs::write(&program, "x".repeat(4096)).expect("written");
    for path in [folder.path(), &*deep, &*program] {
        chown(path, Some(ANN.uid), Some(ANN.gid)).expect("chown");
    }
    let make = |mode| {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).expect("chmod");
        let image = if daemon.is_jailed() { Value::Null } else { json!("belljar/base") };
        let request = json!({"name": S, "workspace": folder.path(), "image": image});
        daemon.http("POST", "/v1/sessions", request.to_string().as_bytes())
    };
    for mode in [0o4555, 0o4755, 0o2775, 0o6444] {
        let answer = make(mode);
        if answer.status == 201 {
            let told = daemon.run(S, REPLACE)["stdout"].clone();
            let now = std::fs::metadata(&program).expect("it is there").mode();
            let begins = std::fs::read(&program).expect("it can be read")[..4].to_vec();
            panic!("{mode:o} became {now:o} with {:?}: {told}", String::from_utf8_lossy(&begins));
        }
        let refused = answer.expect_status(403);
        let told = refused["message"].as_str().unwrap_or_default();
        assert!(told.contains("`deep/program`") && told.contains("set-user-id"), "{refused:#}");
    }
    make(0o755).expect_status(201);
    daemon.assert_sound();
}

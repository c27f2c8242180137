//! The kernel that all sandboxes run: only the daemon ever writes it.

use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::grounds::on_every_ground;
use crate::docker::many_users::{ALICE, BOB, ask, run, shared};
use crate::support::kernels::compiled_anew;
use crate::support::{Daemon, User, engine, jails};

/// Writes into the kernel of every sandbox that it can enter, for as long as it lives, and tells where it could.
const ATTACKER: &str = r#"
import os, sys
told = set()
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for place in ("kernel", "compiled"):
            folder = f"/proc/{pid}/root/belljar/{place}"
            try:
                names = [os.path.join(top, name) for top, _, files in os.walk(folder) for name in files]
            except OSError:
                continue
            for path in [*names, folder + "/evil.pyc"]:
                try:
                    with open(path, "ab") as file:
                        file.write(b"\n# written by another user\n")
                except OSError:
                    continue
                if path not in told:
                    told.add(path)
                    print(path, flush=True)
"#;

struct Attacker {
    child: Child,
    said: tempfile::NamedTempFile,
}

impl Attacker {
    fn of(user: User) -> Self {
        let said = tempfile::NamedTempFile::new().expect("a file");
        let child = Command::new("setpriv")
            .args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid), "--clear-groups".into()])
            .args(["/usr/bin/python3", "-I", "-c", ATTACKER])
            .stdin(Stdio::null())
            .stdout(said.reopen().expect("a file"))
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv");
        Self { child, said }
    }

    fn wrote(&mut self) -> String {
        assert!(self.child.try_wait().expect("its state").is_none(), "nobody attacks");
        std::fs::read_to_string(self.said.path()).expect("what it said")
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trees(daemon: &Daemon) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(daemon.home().join("kernel")).expect("kernels").flatten();
    entries.map(|entry| entry.path()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Every file is root's alone, and every source is that of the repository.
#[track_caller]
fn assert_is_as_the_daemon_wrote_it(tree: &Path) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("sandbox-bootstrap");
    for path in files(tree) {
        let facts = std::fs::symlink_metadata(&path).expect("metadata");
        let is_program = path.ends_with("belljar-guardian") || path.starts_with(tree.join("shims/bin"));
        let mode = if is_program { 0o755 } else { 0o644 };
        assert_eq!((facts.uid(), facts.mode() & 0o7777, facts.nlink()), (0, mode, 1), "{}", path.display());
        let text = std::fs::read(&path).expect("a file");
        let marker = b"written by another user";
        assert!(!text.windows(marker.len()).any(|part| part == marker), "{}", path.display());
        if path.extension().is_some_and(|extension| extension == "py") && cfg!(not(feature = "mutate")) {
            let source = own.join(path.strip_prefix(tree).expect("below"));
            assert_eq!(text, std::fs::read(source).expect("a source"), "{}", path.display());
        }
    }
}

fn a_user_cannot_write_into_the_kernel_while_it_is_prepared() {
    if !engine() {
        return;
    }
    let daemon = shared("");
    let folder = tempfile::Builder::new().prefix("bjw").tempdir_in("/tmp").expect("a folder");
    chown(folder.path(), Some(ALICE.uid), Some(ALICE.gid)).expect("chown");
    let mut attacker = Attacker::of(ALICE);
    // In a folder of Alice's the sandbox runs as Alice.
    let mut request = json!({"name": "a", "workspace": folder.path()});
    if !daemon.is_jailed() {
        request["image"] = json!("belljar/base");
    }
    let made = ask(&daemon, ALICE, "POST", "/v1/sessions", request);
    assert_eq!(attacker.wrote(), "", "it could write there");
    made.expect_status(201);
    // Not while it is used, either.
    run(&daemon, ALICE, "a", "import time; time.sleep(1)");
    assert_eq!(attacker.wrote(), "", "it could write there");
    let trees = trees(&daemon);
    assert_eq!(trees.len(), 1, "a draft is left: {trees:?}");
    assert_is_as_the_daemon_wrote_it(&trees[0]);
}

#[test]
fn a_user_cannot_write_into_the_kernel_while_it_is_prepared_in_a_container() {
    compiled_anew(a_user_cannot_write_into_the_kernel_while_it_is_prepared);
}

#[test]
fn a_user_cannot_write_into_the_kernel_while_it_is_prepared_in_a_jail() {
    jails::in_a_jail(None, || compiled_anew(a_user_cannot_write_into_the_kernel_while_it_is_prepared));
}

/// The bytecode is what is run: it is used, and it is the image's.
#[test]
fn a_tree_that_somebody_could_have_changed_is_made_anew() {
    jails::in_a_jail(None, || {
        let mut daemon = shared("");
        let session = |daemon: &Daemon, name: &str| {
            ask(daemon, BOB, "POST", "/v1/sessions", json!({ "name": name })).expect_status(201);
            assert_eq!(run(daemon, BOB, name, "6 * 7")["result"]["repr"], "42");
        };
        session(&daemon, "a");
        let tree = trees(&daemon).pop().expect("a tree");
        assert_is_as_the_daemon_wrote_it(&tree);
        let bytecode = files(&tree).into_iter().filter(|path| path.extension().is_some_and(|e| e == "pyc"));
        assert!(bytecode.count() > 10, "{:?}", files(&tree));

        let main = tree.join("__main__.py");
        let bytecode = files(&tree).into_iter().find(|path| path.extension().is_some_and(|e| e == "pyc"));
        let bytecode = bytecode.expect("bytecode");
        // A source that others may write to, then bytecode that is the daemon's, and another.
        for (name, changed, mode) in [("b", &main, 0o666), ("c", &bytecode, 0o644)] {
            daemon.kill();
            let text =
                [&std::fs::read(changed).expect("it is there")[..], b"written by another user"].concat();
            std::fs::write(changed, text).expect("written");
            std::fs::set_permissions(changed, std::fs::Permissions::from_mode(mode)).expect("chmod");
            std::fs::create_dir(tree.parent().expect("a folder").join(".draft-0123456789abcdef"))
                .expect("a draft");
            daemon.restart();
            session(&daemon, name);
            assert_eq!(trees(&daemon), std::slice::from_ref(&tree));
            assert_is_as_the_daemon_wrote_it(&tree);
        }
    });
}

/// A daemon finds its kernel after a restart. Those of nearly all tests find one that another daemon has compiled.
fn a_sound_tree_is_not_compiled_again() {
    if !engine() || cfg!(feature = "mutate") {
        return;
    }
    let daemon = Daemon::start();
    let made = || {
        let trees = trees(&daemon);
        assert_eq!(trees.len(), 1, "{trees:?}");
        std::fs::metadata(trees[0].join("__main__.py")).expect("a source").ino()
    };
    let before = made();
    daemon.session("a", json!({"image": "belljar/base"}));
    assert_eq!(daemon.run("a", "6 * 7")["result"]["repr"], "42");
    assert_eq!(made(), before, "it is another file\n{}", daemon.log());
}

on_every_ground!(a_sound_tree_is_not_compiled_again);

//! `make install` into a folder of its own, and `make uninstall` out of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{binary, in_own_home};

fn make(target: &str, root: &Path) {
    let output = Command::new("make")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([target, "PREFIX=/usr"])
        // The one that this test was built with.
        .arg(format!("BINARY={}", binary().display()))
        .arg(format!("DESTDIR={}", root.display()))
        .output()
        .expect("make");
    assert!(output.status.success(), "make {target}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Every file below `folder`, relative to it.
fn files(folder: &Path, root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, root));
        } else {
            found.push(path.strip_prefix(root).expect("below").to_owned());
        }
    }
    found
}

#[test]
fn all_that_is_installed_works_and_goes_again() {
    let root = tempfile::tempdir().expect("a folder");
    make("install", root.path());
    let read = |path: &str| std::fs::read_to_string(root.path().join(path)).expect(path);

    let version =
        Command::new(root.path().join("usr/bin/belljar")).arg("--version").output().expect("it runs");
    assert!(version.status.success());
    for completions in [
        "usr/share/bash-completion/completions/belljar",
        "usr/share/zsh/site-functions/_belljar",
        "usr/share/fish/vendor_completions.d/belljar.fish",
    ] {
        assert!(read(completions).contains("doctor"), "{completions}");
    }
    assert!(read("usr/share/man/man1/belljar-run.1").contains("belljar"));
    let service = read("usr/lib/systemd/system/belljar.service");
    assert!(service.contains("ExecStart=/usr/bin/belljar daemon --system\n"), "{service}");
    assert!(service.contains("KillMode=process\n"), "{service}");
    assert!(read("usr/lib/systemd/system/belljar.socket").contains("SocketGroup=belljar\n"));
    let config = read("etc/belljar/config.toml");
    assert!(config.lines().all(|line| line.is_empty() || line.starts_with('#')), "{config}");

    let own = "[cells]\ntimeout = 1\n";
    std::fs::write(root.path().join("etc/belljar/config.toml"), own).expect("written");
    make("install", root.path());
    assert_eq!(read("etc/belljar/config.toml"), own);

    make("uninstall", root.path());
    assert_eq!(files(root.path(), root.path()), [Path::new("etc/belljar/config.toml")]);
}

#[test]
fn bash_takes_the_completions() {
    let script = format!(
        "source <({} completions bash); COMP_WORDS=(belljar doc); COMP_CWORD=1; _belljar belljar doc belljar; \
         echo \"${{COMPREPLY[@]}}\"",
        binary().display()
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "doctor", "{output:?}");
}

#[test]
fn the_bare_word_shows_first_steps() {
    let output = Command::new(binary()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("belljar doctor"), "{output:?}");
    assert!(!said.contains('\x1b'), "{said}");
}

/// The socket is handed over as systemd does it: it is descriptor 3, and stays when the daemon ends.
#[test]
fn a_socket_that_is_handed_over_is_served_and_left() {
    let home = tempfile::Builder::new().prefix("bj").tempdir_in("/tmp").expect("a folder");
    let socket = home.path().join("handed.sock");
    let script = r#"
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen()
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[1], [sys.argv[1], "daemon"])
"#;
    let mut daemon = in_own_home(&mut Command::new("python3"), home.path())
        .args(["-c", script])
        .arg(binary())
        .arg(&socket)
        .spawn()
        .expect("python3");
    let told = |command: &[&str]| {
        let output = in_own_home(&mut Command::new(binary()), home.path())
            .env("BELLJAR_SOCKET", &socket)
            .env("BELLJAR_NO_AUTOSTART", "1")
            .args(command)
            .output();
        output.expect("it runs").status.success()
    };
    crate::support::eventually("the daemon serves", || told(&["daemon", "status"]).then_some(()));
    assert!(!home.path().join("belljar.sock").exists());
    Command::new("kill").arg(daemon.id().to_string()).status().expect("kill");
    assert!(daemon.wait().expect("it ends").success());
    assert!(socket.exists());
}

//! Folders as root file systems of jails, and what is said of images where no engine answers.

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::ANN;
use super::choice::NO_ENGINE;
use crate::support::{Daemon, docker, engine, is_long_run, jails};

fn images(daemon: &Daemon) -> Value {
    daemon.http("GET", "/v1/images", b"").expect_status(200)
}

/// A session on that folder sees its files, with its Python, and cannot change them.
fn serves(daemon: &Daemon, image: &str) {
    daemon.session("a", json!({"image": image}));
    let receipt = daemon.http("GET", "/v1/sessions/a/receipt", b"").expect_status(200);
    assert_eq!((&receipt["backend"], &receipt["image"]["reference"]), (&json!("bubblewrap"), &json!(image)));
    let code = "import os\ntry:\n    open('/usr/x', 'w')\nexcept OSError as error:\n    print(error.errno)\n\
                print(os.path.exists('/usr/belljar-was-here'), os.path.exists('/home'))";
    let result = daemon.run("a", code);
    assert_eq!(result["stdout"], "30\nTrue False\n", "{result:#}");
}

/// Marks a root, so that it can be told from the host's.
fn mark(root: &Path) {
    std::fs::write(root.join("usr/belljar-was-here"), "").expect("a root with /usr");
}

#[test]
fn a_folder_is_the_root_of_a_jail() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_environment("", &[NO_ENGINE]);
    // What a build leaves there, had from the engine in a moment.
    let root = daemon.home().join("rootfs/base");
    std::fs::create_dir_all(&root).expect("a folder");
    let container = docker(["create", "--network=none", "belljar/base", "true"]);
    let unpack =
        format!("docker export {container} | tar -x --no-same-owner --exclude='dev/*' -C {}", root.display());
    let unpacked = Command::new("bash").args(["-o", "pipefail", "-c", &unpack]).status().expect("bash runs");
    docker(["rm", "-f", &container]);
    assert!(unpacked.success());
    mark(&root);
    serves(&daemon, "belljar/base");
    let listed = images(&daemon);
    assert_eq!(listed["images"][0]["reference"], "belljar/base", "{listed:#}");
    assert_eq!(listed["images"][0]["default"], true, "{listed:#}");
}

/// Takes minutes and a mirror of Debian.
#[test]
fn a_folder_built_for_jails_serves_them() {
    if !is_long_run() {
        eprintln!("NOT RUN: it takes minutes; BELLJAR_LONG_TESTS=1 runs it");
        return;
    }
    for kind in ["base", "science"] {
        let daemon = Daemon::with_environment("", &[NO_ENGINE]);
        let built = daemon.cli(["image", "build", "--rootfs", kind]).ok();
        mark(Path::new(built.stdout.trim()));
        serves(&daemon, &format!("belljar/{kind}"));
        if kind == "science" {
            has_packages(&daemon, "a");
            serves_a_user(Path::new(built.stdout.trim()));
        }
    }
}

/// The usual packages work there, and a bomb ends as in a container.
fn has_packages(daemon: &Daemon, session: &str) {
    let code = "import numpy as np, pandas as pd, matplotlib.pyplot as plt\nplt.title('测试'); plt.plot([1, 4, 9])\nplt.show()\n\
                print(int(pd.Series(np.arange(4)).sum()))";
    let result = daemon.run(session, code);
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("6\n"), &json!("")), "{result:#}");
    assert!(result["displays"][0]["mime"]["image/png"].is_string(), "{result:#}");
    let result = daemon.run(session, "held = np.ones(3 << 30, dtype='i1')");
    assert_eq!(
        (&result["status"], &result["reason"]),
        (&json!("crashed"), &json!("out_of_memory")),
        "{result:#}"
    );
    assert_eq!(daemon.run(session, "int(np.ones(2).sum())")["result"]["repr"], "2");
}

/// A folder that root has built serves a user who has a copy of it.
fn serves_a_user(root: &Path) {
    jails::in_a_jail(Some(ANN), || {
        let daemon = Daemon::start();
        let roots = daemon.home().join("rootfs");
        std::fs::create_dir(&roots).expect("a folder");
        let copied =
            Command::new("cp").args(["-r", "--no-preserve=ownership"]).arg(root).arg(&roots).status();
        assert!(copied.expect("cp").success());
        std::fs::set_permissions(&roots, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        daemon.session("a", json!({}));
        let receipt = daemon.http("GET", "/v1/sessions/a/receipt", b"").expect_status(200);
        assert_eq!(receipt["image"]["reference"], "belljar/science", "{receipt:#}");
        assert_eq!(receipt["process"]["uid"], ANN.uid, "{receipt:#}");
        has_packages(&daemon, "a");
    });
}

#[test]
fn a_user_who_cannot_build_a_folder_is_told_how() {
    let daemon = Daemon::as_user(ANN);
    let refused = daemon.cli(["image", "build", "--rootfs", "base"]).exits(125);
    for part in ["only root, or a user with a range of further user ids", "usermod --add-subuids"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
}

#[test]
fn images_are_listed_without_an_engine() {
    let daemon = Daemon::with_environment("", &[NO_ENGINE]);
    let listed = images(&daemon);
    let host = &listed["images"][0];
    assert_eq!((&host["reference"], &host["backend"]), (&json!("host"), &json!("bubblewrap")), "{listed:#}");
    assert_eq!(host["default"], true, "{listed:#}");
    let shown = daemon.cli(["image", "list"]).ok();
    assert!(shown.stdout.contains("host") && shown.stderr.contains("does not answer"), "{shown:?}");
    // Where only a container would do, there is nothing to list.
    let strict = Daemon::with_environment("[sandbox]\nminimum_isolation = \"container\"\n", &[NO_ENGINE]);
    assert_eq!(strict.http("GET", "/v1/images", b"").status, 503);
}

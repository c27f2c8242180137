//! Folders as root file systems of jails, and what is said of images where no engine answers.

use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

use super::choice::NO_ENGINE;
use crate::support::{Daemon, docker, engine};

const LONG: &str = "BELLJAR_LONG_TESTS";

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
    if std::env::var_os(LONG).is_none() {
        eprintln!("NOT RUN: it takes minutes; {LONG}=1 runs it");
        return;
    }
    for kind in ["base", "science"] {
        let daemon = Daemon::with_environment("", &[NO_ENGINE]);
        let built = daemon.cli(["image", "build", "--rootfs", kind]).ok();
        mark(Path::new(built.stdout.trim()));
        serves(&daemon, &format!("belljar/{kind}"));
        if kind == "science" {
            assert_eq!(daemon.run("a", "import pandas; print(1)")["stdout"], "1\n");
        }
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

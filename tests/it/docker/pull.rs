//! Images that come from a registry: a small one on loopback, which every engine trusts.

use std::ffi::OsStr;
use std::process::Command;

use serde_json::json;

use crate::support::{Daemon, ScriptServer, docker, engine};

struct Registry {
    _server: ScriptServer,
    /// What the image is called there.
    reference: String,
}

impl Registry {
    /// A registry that has `belljar/base`, slightly changed, so that the engine has to fetch something.
    fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let saved = folder.path().join("image.tar");
        let container = docker(["create", "belljar/base", "true"]);
        let changed = docker(["commit", "--change", &format!("LABEL test={name}"), container.trim()]);
        docker(["rm", container.trim()]);
        docker(["save", "-o", saved.to_str().expect("UTF-8"), changed.trim()]);
        docker(["rmi", changed.trim()]);
        let server = ScriptServer::start("registry.py", [saved.as_os_str(), OsStr::new(name)]);
        let reference = format!("127.0.0.1:{}/{name}:1", server.port);
        Self { _server: server, reference }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", &self.reference]).output();
    }
}

#[test]
fn a_missing_image_is_pulled_if_that_is_wanted_and_the_progress_is_told() {
    if !engine() {
        return;
    }
    let registry = Registry::start("pulled");
    let image = &registry.reference;
    let config =
        |pull: &str| format!("[sandbox]\nbackend = \"docker\"\nimages = [\"{image}\"]\npull = \"{pull}\"\n");

    let never = Daemon::with_config(&config("never"));
    let refused = never.http("POST", "/v1/sessions", br#"{"name": "s"}"#).expect_status(424);
    assert_eq!(refused["code"], "image_missing");
    assert!(refused["hint"].as_str().is_some_and(|hint| hint.contains("belljar image pull")), "{refused}");

    let missing = Daemon::with_config(&config("missing"));
    missing.session("s", json!({}));
    assert_eq!(missing.run("s", "6 * 7")["result"]["repr"], "42");
    let pulling = missing.events("s", 0).iter().filter(|event| event["type"] == "image_pulling").count();
    assert!(pulling > 0, "no progress was told");
    let receipt = missing.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
    assert_eq!(receipt["image"]["reference"], json!(image));
    missing.assert_sound();
}

/// An image without content for processors of another kind.
struct ForeignImage {
    reference: String,
    architecture: &'static str,
}

impl ForeignImage {
    fn load() -> Self {
        let architecture = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
        let reference = format!("belljar-test/foreign:{}", std::process::id());
        let folder = tempfile::tempdir().expect("a folder");
        let rootfs = json!({"type": "layers", "diff_ids": []});
        let config = json!({"architecture": architecture, "os": "linux", "config": {}, "rootfs": rootfs});
        let manifest = json!([{"Config": "config.json", "RepoTags": [&reference], "Layers": []}]);
        for (name, content) in [("config.json", &config), ("manifest.json", &manifest)] {
            std::fs::write(folder.path().join(name), content.to_string()).expect("it is written");
        }
        let (path, saved) = (folder.path().to_str().expect("UTF-8"), folder.path().join("image.tar"));
        let saved = saved.to_str().expect("UTF-8");
        let packed =
            Command::new("tar").args(["-C", path, "-cf", saved, "config.json", "manifest.json"]).status();
        assert!(packed.expect("tar").success());
        docker(["load", "--quiet", "-i", saved]);
        Self { reference, architecture }
    }
}

impl Drop for ForeignImage {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", &self.reference]).output();
    }
}

#[test]
fn an_image_for_other_processors_is_told_as_such() {
    if !engine() {
        return;
    }
    let ForeignImage { reference, architecture } = &ForeignImage::load();
    let daemon =
        Daemon::with_config(&format!("[sandbox]\nbackend = \"docker\"\nimages = [\"{reference}\"]\n"));
    let refused = daemon.http("POST", "/v1/sessions", br#"{"name": "s"}"#).expect_status(424);
    assert_eq!(refused["code"], "image_architecture", "{refused}");
    assert!(refused["message"].as_str().is_some_and(|said| said.contains(architecture)), "{refused}");
    let told = daemon.cli(["new", "s", "--image", reference.as_str()]).exits(125);
    assert!(told.stderr.contains("--platform"), "{told:?}");
    crate::support::assert_nothing_left(&daemon, &[]);
    daemon.assert_sound();
}

#[test]
fn the_command_line_pulls_an_allowed_image() {
    if !engine() {
        return;
    }
    let registry = Registry::start("fetched");
    let image = registry.reference.as_str();
    let daemon = Daemon::with_config(&format!("[sandbox]\nbackend = \"docker\"\nimages = [\"{image}\"]\n"));
    let ran = daemon.cli(["image", "pull", image]).ok();
    assert!(!format!("{}{}", ran.stdout, ran.stderr).trim().is_empty(), "{ran:?}");
    assert_eq!(daemon.cli(["run", "-"]).code, Some(0));
    daemon.cli(["image", "pull", "127.0.0.1:1/other"]).exits(125);
}

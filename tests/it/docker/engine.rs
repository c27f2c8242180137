//! An engine that ends under the sandboxes. The tests have one of their own for it.

use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::helpers::{S, gapless, list, outcome, post, printed, queue, text, value, wait_for_line};
use crate::support::{Daemon, docker, engine, eventually};

pub(super) struct OwnEngine {
    folder: tempfile::TempDir,
    driver: String,
    child: Option<Child>,
}

impl OwnEngine {
    /// None where none can be started.
    pub fn start() -> Option<Self> {
        let is_there = Path::new("/usr/sbin/dockerd").exists() || Path::new("/usr/bin/dockerd").exists();
        if !is_there || !rustix::process::geteuid().is_root() {
            eprintln!("NOT RUN: an engine of its own needs root and `dockerd`");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("bje").tempdir_in("/tmp").expect("a folder");
        std::fs::write(folder.path().join("config.json"), "{}").expect("a configuration");
        let driver = docker(["info", "--format", "{{.Driver}}"]);
        let mut engine = Self { folder, driver, child: None };
        engine.begin();
        Some(engine)
    }

    pub fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("sock").display())
    }

    fn spawn(&mut self) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let log = std::fs::File::create(path("log")).expect("a log");
        // In a network of its own: an engine without a bridge removes the bridge that it finds.
        let child = Command::new("unshare")
            .args(["--net", "dockerd"])
            .args(["--config-file", &path("config.json"), "--data-root", &path("data")])
            .args(["--exec-root", &path("exec"), "--pidfile", &path("pid"), "--host", &self.host()])
            .args(["--bridge=none", "--iptables=false", "--ip-masq=false", "--shutdown-timeout=2"])
            .args(["--storage-driver", &self.driver])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("dockerd starts"));
    }

    /// After a kill it may fail over what is left of its other half, and has to be started once more.
    pub fn begin(&mut self) {
        self.spawn();
        eventually("the engine answers", || {
            if self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_some())) {
                self.spawn();
            }
            let version = Command::new("docker").args(["--host", &self.host(), "version"]).output();
            version.expect("docker").status.success().then_some(())
        });
    }

    pub fn end(&mut self, signal: &str) {
        let Some(mut child) = self.child.take() else { return };
        let _ = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        let _ = child.wait();
    }

    pub fn load(&self, image: &str) {
        let saved = Command::new("docker").args(["save", image]).stdout(Stdio::piped()).spawn();
        let mut saved = saved.expect("docker");
        let piped = saved.stdout.take().expect("piped");
        let loaded = Command::new("docker").args(["--host", &self.host(), "load"]).stdin(piped).output();
        assert!(loaded.expect("docker").status.success() && saved.wait().expect("it ends").success());
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        self.end("TERM");
        // It mounts its folder over itself, and after a kill that stays.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path().join("data")).output();
    }
}

#[test]
fn an_engine_that_is_started_anew_costs_the_sandbox_and_nothing_else() {
    if !engine() {
        return;
    }
    let Some(mut own) = OwnEngine::start() else { return };
    own.load("belljar/base");
    let daemon = Daemon::with_environment("", &[("DOCKER_HOST", &own.host())]);
    daemon.session(S, json!({"image": "belljar/base"}));
    for signal in ["TERM", "KILL"] {
        printed(&daemon, "x = 1; open('file', 'w').write('kept')");
        let cell = queue(&daemon, &json!({"code": "print('busy')\nwhile True: pass", "timeout_s": 300}));
        wait_for_line(&daemon, cell, "busy");
        own.end(signal);
        own.begin();
        let result = outcome(&daemon, cell);
        assert_eq!(
            (text(&result, "status"), text(&result, "reason")),
            ("crashed", "sandbox_lost"),
            "{signal}"
        );
        assert_eq!((text(&result, "stdout"), text(&result, "/state/kind")), ("busy\n", "lost"), "{signal}");
        let result = daemon.run(S, "('x' in globals(), open('file').read())");
        assert_eq!(text(&result, "/result/repr"), "(True, 'kept')", "{signal}: {result:#}");
        assert!(text(&result, "/state/note").starts_with("The sandbox is a new one"), "{result:#}");
        let report = post(&daemon, "replay", &json!({})).expect_status(200);
        assert!(!list(&report, "cells").is_empty(), "{report:#}");
        assert_eq!(value(&daemon, "x"), "1");
    }
    gapless(&daemon, S);
    daemon.assert_sound();
    daemon.http("DELETE", "/v1/sessions/s?wait=true", b"").expect_status(200);
}

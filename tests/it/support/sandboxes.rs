//! The sandboxes of a test's daemon as the machine sees them: containers of an engine, or jails.

use std::process::Command;

use super::{Daemon, docker, jails};

impl Daemon {
    /// Whether its sandboxes are jails.
    pub fn is_jailed(&self) -> bool {
        self.jailed
    }

    /// A light image, by its name; a jail shows the host's own system.
    pub fn image(&self) -> &'static str {
        if self.jailed { "host" } else { "belljar/base" }
    }

    /// Ids of the containers of this daemon, running or not; of jails, those that live.
    pub fn containers(&self) -> Vec<String> {
        if self.jailed {
            return jails::living(self.home()).iter().map(|(folder, _)| jails::name(folder)).collect();
        }
        let Ok(instance) = std::fs::read_to_string(self.home.path().join("instance")) else {
            return Vec::new();
        };
        let filter = format!("label=belljar.instance={}", instance.trim());
        docker(["ps", "-aq", "--no-trunc", "--filter", &filter]).lines().map(str::to_owned).collect()
    }

    /// Behind the back of the daemon, which finds out by itself.
    pub fn remove_sandboxes(&self) {
        if self.jailed {
            for (_, pid) in jails::living(self.home()) {
                let killed = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
                assert!(killed.expect("kill").success());
            }
            return;
        }
        for container in self.containers() {
            let removed = Command::new("docker").args(["rm", "-f", &container]).output().expect("docker");
            // The daemon may be at it already.
            let said = String::from_utf8_lossy(&removed.stderr);
            assert!(removed.status.success() || said.contains("is already in progress"), "{said}");
        }
    }

    /// Its first process, as the host sees it.
    pub fn first_process(&self, session: &str) -> u32 {
        let receipt = self.http("GET", &format!("/v1/sessions/{session}/receipt"), b"").expect_status(200);
        receipt["process"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid")
    }

    /// Stops the only sandbox behind the back of the daemon.
    pub fn pause_sandbox(&self) {
        if self.jailed {
            jails::stop(jails::living(self.home())[0].1);
        } else {
            docker(["pause", &self.containers()[0]]);
        }
    }

    /// Whether the only sandbox stands still.
    pub fn is_paused(&self) -> bool {
        if self.jailed {
            let (folder, pid) = jails::living(self.home())[0].clone();
            return jails::is_stopped(&folder, pid);
        }
        docker(["inspect", "-f", "{{.State.Paused}}", &self.containers()[0]]) == "true"
    }
}

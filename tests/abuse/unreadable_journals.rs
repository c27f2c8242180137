//! Journals that cannot be read when the daemon is started: the session is there and says so, and nothing of it is lost
//! that was not lost before.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::docker::helpers::{S, end, post, printed, text, value};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, eventually};

/// Makes the reaper of a daemon look every other second.
const LOOKS_OFTEN: (&str, &str) = ("BELLJAR_PERIODS", "reaper:2");
/// Longer than the reaper takes to find what has no owner.
const REAPED_BY_THEN: Duration = Duration::from_secs(4);

/// A file of the daemon's home that is not what it has to be, until it is put back.
struct Broken {
    path: PathBuf,
    aside: PathBuf,
}

impl Broken {
    /// A file stands where a folder was, if it was there.
    fn folder(path: PathBuf) -> Self {
        let aside = path.with_extension("aside");
        let _ = std::fs::rename(&path, &aside);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, "no folder").expect("written");
        Self { path, aside }
    }

    /// Something takes the places of large values.
    fn blobs(home: &Path) -> Self {
        let (path, aside) = (home.join("blobs"), home.join("blobs.aside"));
        std::fs::rename(&path, &aside).expect("large values");
        Self { path, aside }
    }

    fn mend(self) {
        let _ = std::fs::remove_file(&self.path).or_else(|_| std::fs::remove_dir_all(&self.path));
        if self.aside.exists() {
            std::fs::rename(&self.aside, &self.path).expect("put back");
        }
    }
}

/// A session with a variable, of whose events one is large.
fn with_a_variable() -> (Daemon, Value) {
    let daemon = Daemon::with_environment("", &[LOOKS_OFTEN]);
    let view = daemon.session(S, json!({}));
    printed(&daemon, "x = 'kept'");
    printed(&daemon, &format!("large = '{}'", "x".repeat(500_000)));
    (daemon, view)
}

fn spill(daemon: &Daemon, view: &Value) -> PathBuf {
    daemon.home().join("spill").join(text(view, "id"))
}

fn view(daemon: &Daemon) -> Value {
    daemon.http("GET", "/v1/sessions/s", b"").expect_status(200)
}

#[track_caller]
fn assert_parked(daemon: &Daemon, why: &str) {
    assert_eq!(view(daemon)["state"], "parked", "{}", daemon.log());
    let refused = post(daemon, "cells?wait=true", &json!({"code": "x"})).expect_status(500);
    let told = text(&refused, "message");
    assert!(told.contains("is parked; its sandbox is kept") && told.contains(why), "{told}");
    std::thread::sleep(REAPED_BY_THEN);
    assert_eq!(daemon.containers().len(), 1, "its sandbox is gone\n{}", daemon.log());
}

#[test]
fn a_session_whose_journal_cannot_be_read_is_parked_with_its_sandbox() {
    in_a_jail(None, || {
        let (mut daemon, _) = with_a_variable();
        end(&mut daemon, "KILL");
        let broken = Broken::blobs(daemon.home());
        daemon.restart();
        assert_parked(&daemon, "cannot be read");
        let refused = daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(500);
        assert!(text(&refused, "message").contains("cannot be read"), "{refused}");
        broken.mend();
        end(&mut daemon, "TERM");
        daemon.restart();
        assert_eq!(value(&daemon, "x, len(large)"), "('kept', 500000)");
        // No number of a cell was used twice.
        assert_eq!(view(&daemon)["cells"], 3);
    });
}

#[test]
fn a_session_that_cannot_begin_is_listed_and_takes_a_reset() {
    in_a_jail(None, || {
        let (mut daemon, made) = with_a_variable();
        end(&mut daemon, "KILL");
        let broken = Broken::folder(spill(&daemon, &made));
        daemon.restart();
        assert_parked(&daemon, "cannot go on");
        broken.mend();
        daemon.http("POST", "/v1/sessions/s/reset", b"").expect_status(200);
        assert_eq!(value(&daemon, "'x' in globals()"), "False");
        assert_eq!(view(&daemon)["cells"], 3);
    });
}

#[test]
fn a_session_that_cannot_begin_can_be_removed() {
    in_a_jail(None, || {
        let (mut daemon, made) = with_a_variable();
        end(&mut daemon, "KILL");
        let _broken = Broken::folder(spill(&daemon, &made));
        daemon.restart();
        assert_eq!(view(&daemon)["state"], "parked", "{}", daemon.log());
        let workspace = daemon.home().join("w").join(text(&made, "id"));
        assert!(workspace.exists());
        daemon.cli(["rm", S]).ok();
        eventually("its sandbox is gone", || daemon.containers().is_empty().then_some(()));
        assert!(!workspace.exists(), "its folder is left");
        daemon.session(S, json!({}));
    });
}

#[test]
fn a_replay_whose_cells_cannot_be_read_changes_nothing_and_a_busy_session_reads_nothing() {
    in_a_jail(None, || {
        let (daemon, _) = with_a_variable();
        let broken = Broken::blobs(daemon.home());
        let body = json!({"code": "import time; time.sleep(2)"});
        post(&daemon, "cells", &body).expect_status(202);
        let refused = post(&daemon, "replay", &json!({}));
        assert_eq!((refused.status, text(&refused.json(), "code")), (409, "busy"), "{}", refused.text());
        let refused = eventually("the cell ends", || {
            let refused = post(&daemon, "replay", &json!({}));
            (refused.status != 409).then_some(refused)
        });
        assert!(refused.text().contains("cannot be read"), "{}", refused.text());
        assert_eq!(value(&daemon, "x"), "'kept'");
        broken.mend();
        post(&daemon, "replay", &json!({})).expect_status(200);
        assert_eq!(value(&daemon, "x, len(large)"), "('kept', 500000)");
    });
}

/// A session that was left for its owner to come back to is not gone with the first daemon that cannot read it.
#[test]
fn a_parked_session_that_lingers_stays_for_its_idle_time() {
    in_a_jail(None, || {
        // Whoever holds a session has three seconds to come back.
        let mut daemon = Daemon::with_environment("", &[("BELLJAR_PERIODS", "unheld:3")]);
        let made = daemon.session(S, json!({"ephemeral": true, "idle_s": 15}));
        daemon.http("POST", "/v1/sessions/s/linger", b"").expect_status(200);
        end(&mut daemon, "KILL");
        let _broken = Broken::folder(spill(&daemon, &made));
        daemon.restart();
        std::thread::sleep(REAPED_BY_THEN);
        assert_eq!(view(&daemon)["state"], "parked", "{}", daemon.log());
        eventually("it is gone", || (daemon.http("GET", "/v1/sessions/s", b"").status == 404).then_some(()));
    });
}

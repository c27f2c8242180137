//! The clock of the machine jumps, by weeks and in both directions. No deadline goes by it, and nothing is lost.
//!
//! `BELLJAR_CLOCK` names a file with the seconds by which a daemon's clock is wrong; release builds do not look.

use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::docker::helpers::{
    S, gapless, go, outcome, printed, queue, restart_by, text, value, wait_for_line, with_go,
};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, eventually};

/// Longer than anything is kept.
const FAR: i64 = 40 * 24 * 3600;
/// The time within which all that looks at a clock has looked.
const WHILE: Duration = Duration::from_secs(2);

fn jump(file: &Path, seconds: i64) {
    // The file changes in one step: a daemon that finds half a number would see yet another time.
    let draft = file.with_extension("draft");
    std::fs::write(&draft, seconds.to_string()).expect("written");
    std::fs::rename(&draft, file).expect("renamed");
}

#[test]
fn a_clock_that_jumps_moves_no_deadline_and_loses_nothing() {
    in_a_jail(None, || {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("clock");
        jump(&file, 0);
        let mut daemon = Daemon::with_environment("", &[("BELLJAR_CLOCK", file.to_str().expect("UTF-8"))]);
        daemon.session(S, json!({}));
        printed(&daemon, "x = 1");
        let busy = with_go("print('busy')\nwait_for_go()\nx += 1\nprint('over')");
        let cell = queue(&daemon, &json!({"code": busy, "timeout_s": 100}));
        wait_for_line(&daemon, cell, "busy");
        for seconds in [FAR, -FAR, FAR] {
            jump(&file, seconds);
            std::thread::sleep(WHILE);
            let view = daemon.http("GET", &format!("/v1/sessions/s/cells/{cell}"), b"").expect_status(200);
            assert_eq!(view["state"], "running", "after {seconds} s: {view:#}\n{}", daemon.log());
            let seen = daemon.http("POST", "/v1/sessions/s/eval", br#"{"expression": "x"}"#);
            assert_eq!(text(&seen.expect_status(200), "/result/repr"), "1");
        }
        go(&daemon);
        let result = outcome(&daemon, cell);
        assert_eq!(
            (text(&result, "status"), text(&result, "stdout")),
            ("success", "busy\nover\n"),
            "{result:#}"
        );
        let lasted = result["duration_ms"].as_f64().expect("a number");
        assert!((0.0..100_000.0).contains(&lasted), "{lasted} ms");

        // A deadline comes neither sooner nor later.
        let began = Instant::now();
        let endless = queue(&daemon, &json!({"code": "while True: pass", "timeout_s": 4}));
        std::thread::sleep(Duration::from_secs(1));
        jump(&file, -FAR);
        let view = daemon.http("GET", &format!("/v1/sessions/s/cells/{endless}"), b"").expect_status(200);
        assert!(view["state"] != "done" || began.elapsed() > Duration::from_secs(4), "{view:#}");
        assert_eq!(text(&outcome(&daemon, endless), "status"), "timeout");
        assert!(began.elapsed() > Duration::from_secs(4));
        assert_eq!(value(&daemon, "x"), "2");

        // The next daemon finds moments that lie ahead of it.
        let cell = queue(&daemon, &json!({"code": "import time; time.sleep(4); x += 1", "timeout_s": 60}));
        eventually("it runs", || {
            let view = daemon.http("GET", &format!("/v1/sessions/s/cells/{cell}"), b"").expect_status(200);
            (view["state"] == "running").then_some(())
        });
        jump(&file, -2 * FAR);
        restart_by(&mut daemon, "KILL");
        assert_eq!(text(&outcome(&daemon, cell), "status"), "success");
        assert_eq!(value(&daemon, "x"), "3");
        gapless(&daemon, S);
        daemon.assert_sound();
    });
}

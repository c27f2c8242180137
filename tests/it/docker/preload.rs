//! Modules that a session begins with.

use serde_json::{Value, json};

use super::helpers::{S, end, list, names, post, restart_by, session_with, text, value};
use crate::support::{Daemon, engine, eventually};

const NAMES: &str = "j.dumps([sqrt(4)]), statistics.mean([1, 3])";
const VALUES: &str = "('[2.0]', 2)";

#[test]
pub fn modules_are_there_from_the_start_and_after_a_loss() {
    // The session's own wish holds, and not that of the settings.
    let config = "[sessions]\npreload = [\"no_such_module\"]\n";
    let entries = json!(["json as j", "from math import sqrt", "import statistics"]);
    let request = json!({"image": "belljar/base", "idle_s": 1, "preload": entries});
    let Some(mut daemon) = session_with(config, request) else { return };
    assert_eq!(value(&daemon, NAMES), VALUES);
    assert_eq!(names(&daemon), Vec::<String>::new());
    // They are part of the state that a dead cell goes back to.
    let died = daemon.run(S, "del j; import os; os._exit(1)");
    assert_eq!(died["state"]["restored_to"], json!(1), "{died:#}");
    assert_eq!(value(&daemon, NAMES), VALUES);
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(value(&daemon, NAMES), VALUES);
    // A daemon that goes on with the sandbox does not import anew, and knows what is there.
    restart_by(&mut daemon, "KILL");
    let view = eventually("the session is there", || {
        let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
        view["preloaded"].is_object().then_some(view)
    });
    assert_eq!(view["preloaded"], json!({"names": 3, "skipped": []}));
    assert_eq!(value(&daemon, NAMES), VALUES);
    // Neither does one that finds it gone, but its next sandbox has them.
    eventually("the sandbox goes", || daemon.containers().is_empty().then_some(()));
    assert_eq!(value(&daemon, NAMES), VALUES);
    end(&mut daemon, "TERM");
}

#[test]
pub fn what_cannot_be_imported_is_an_error_of_new() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let refused = |preload: Value, status| {
        let request = json!({"name": "a", "preload": preload}).to_string();
        daemon.http("POST", "/v1/sessions", request.as_bytes()).expect_status(status)
    };
    let missing = refused(json!(["json", "no_such_module as x"]), 424);
    assert_eq!(text(&missing, "code"), "preload_failed");
    assert!(text(&missing, "message").contains("No module named 'no_such_module'"), "{missing:#}");
    assert!(text(&missing, "hint").contains("--preload"), "{missing:#}");
    let wrong = refused(json!(["x = 1"]), 400);
    assert!(text(&wrong, "message").contains("`x = 1` is no import"), "{wrong:#}");
    // Nothing is left of it, and the name is free.
    assert_eq!(daemon.containers(), Vec::<String>::new());
    daemon.cli(["new", "a", "--preload", "import os, json"]).ok();
    assert_eq!(daemon.cli(["exec", "-s", "a", "json.dumps(os.sep)"]).ok().stdout, "'\"/\"'\n");
    let told = daemon.cli(["new", "b", "--preload", "numpy as"]).exits(64);
    assert!(told.stderr.contains("is no import such as"), "{told:?}");
}

#[test]
pub fn families_are_imported_as_far_as_they_are_there() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let file = daemon.home().join("mine.py");
    std::fs::write(&file, "# what I always need\nfrom math import *\nstdlib\n").unwrap();
    let entry = format!("@{}", file.display());
    let made = daemon.cli(["new", S, "--preload", &entry]).ok();
    assert!(made.stderr.contains("cannot be imported here:") && made.stderr.contains("winreg"), "{made:?}");
    assert_eq!(value(&daemon, "fractions.Fraction(1, 2) + 1, floor(pi)"), "(Fraction(3, 2), 3)");
    assert_eq!(names(&daemon), Vec::<String>::new());
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert!(list(&view["preloaded"], "skipped").iter().any(|each| each["import"] == "winreg"), "{view:#}");
    let script = daemon.cli_with_input(["run", "--preload", "json", "-"], "print(json.dumps(1))").ok();
    assert_eq!(script.stdout, "1\n");
}

#[test]
fn packages_of_the_image_are_a_family_too() {
    let request = json!({"image": "belljar/science", "preload": ["numpy as np", "third-party"]});
    let Some(daemon) = session_with("", request) else { return };
    assert_eq!(value(&daemon, "bool(np.arange(3).sum() == pandas.Series([0, 1, 2]).sum())"), "True");
}

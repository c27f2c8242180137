//! Habits of notebooks in cells, and the hints below the errors that stop most users.

use serde_json::{Value, json};

use super::asking::{answer, runs, says, scripted, told};
use super::helpers::{S, assert_ended, base, names, post, printed, raised, take_away, text, value};
use super::repl::{Step, play};
use crate::support::{Daemon, engine};

const MISSING: &str = "hint: the package `yfinance` is not installed: `%pip install yfinance` in a cell installs it, \
                       and so does `belljar install -s SESSION yfinance` outside of the session";
const NO_NETWORK: &str = "hint: this sandbox has no network: no host can be reached, and trying again does not help. \
                          There are the files of the workspace (`belljar cp` puts more there), the tools of the \
                          session, and `%pip install NAME` for packages";
const FETCH: &str = "import urllib.request\nurllib.request.urlopen('http://example.invalid/', timeout=5)";

#[test]
pub fn commands_of_notebooks_run_in_the_sandbox_and_in_a_replay() {
    let Some(daemon) = base() else { return };
    assert_eq!(printed(&daemon, "!mkdir sub && echo made {40 + 2}"), "made 42\n");
    assert_eq!(value(&daemon, "found = !ls\n%cd sub\nlist(found)"), "['sub']");
    assert_eq!(names(&daemon), ["found"]);
    assert_eq!(printed(&daemon, "!pwd"), "/workspace/sub\n");
    // A cell that dies goes back to where it began, and says which names it may have assigned.
    let died = daemon.run(S, "%cd ..\nlost = !kill -9 $PPID");
    assert_eq!(
        (text(&died, "status"), &died["state"]["maybe_assigned"]),
        ("crashed", &json!(["lost"])),
        "{died:#}"
    );
    assert_eq!(printed(&daemon, "!pwd"), "/workspace/sub\n");
    take_away(&daemon);
    post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(printed(&daemon, "!pwd; echo {found}"), "/workspace/sub\n[sub]\n");
    let wrong = daemon.run(S, "print(1)\n%load_ext x");
    assert_ended(&wrong, "failure", "syntax", 0);
    assert!(
        text(&wrong, "/exception/value").contains("there is no notebook command `%load_ext` here"),
        "{wrong:#}"
    );
}

#[test]
pub fn a_missing_package_and_a_missing_network_say_what_to_do() {
    let Some(daemon) = base() else { return };
    let once = |result: &Value, hint: &str| {
        let shown = text(result, "/exception/traceback");
        assert!(shown.ends_with(&format!("\n\n{hint}\n")) && shown.matches("hint: ").count() == 1, "{shown}");
    };
    once(&raised(&daemon, "import yfinance", "ModuleNotFoundError"), MISSING);
    once(&raised(&daemon, FETCH, "urllib.error.URLError"), NO_NETWORK);
    once(
        &raised(&daemon, "import socket\nsocket.create_connection(('192.0.2.1', 80))", "OSError"),
        NO_NETWORK,
    );
    let seen = daemon.cli(["exec", "-s", S, "import yfinance"]).exits(1);
    assert_eq!(seen.stderr.matches(MISSING).count(), 1, "{seen:?}");
}

#[test]
fn a_model_is_told_what_a_person_is() {
    let script = [runs("import yfinance"), runs(FETCH), says("Given up.")].concat();
    let Some(daemon) = scripted("", &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "Look."})), "Given up.");
    let results = told(&daemon);
    for (result, hint) in results.iter().zip([MISSING, NO_NETWORK]) {
        assert_eq!(result.matches(hint).count(), 1, "{result}");
    }
    assert_eq!(results.len(), 2);
}

#[test]
fn what_an_image_has_is_shown_without_what_its_packages_need() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    // No session has used the image yet.
    let shown = daemon.cli(["image", "show", "belljar/science:latest"]).ok().stdout;
    assert!(daemon.containers().is_empty(), "what was made for it is gone");
    let packages = shown.lines().find(|line| line.starts_with("packages: ")).unwrap_or_default();
    assert!(packages.contains(" numpy, pandas,") && packages.contains(" that these need)"), "{shown}");
    assert!(!packages.contains("kiwisolver") && !packages.contains("threadpoolctl"), "{shown}");
    let all: Value =
        serde_json::from_str(&daemon.cli(["--json", "image", "show", "belljar/science"]).ok().stdout)
            .expect("JSON");
    assert!(all["packages"]["installed"].to_string().contains("kiwisolver"), "{all:#}");
    daemon.cli(["image", "show", "belljar/nothing"]).exits(125);
}

#[test]
pub fn commands_are_whole_lines_for_the_repl() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let steps = [
        Step::Line("!echo 'a (b' && echo done:"),
        Step::Shows("^a \\(b$"),
        Step::Shows("^done:$"),
        Step::Line("x = !echo [ 7"),
        Step::Line("x"),
        Step::Shows("^\\['\\[ 7'\\]$"),
        Step::Line("%time 6 * 7"),
        Step::Shows("^42$"),
        Step::Line("%%time"),
        Step::Keys("y = 5\ry + 1\r\r"),
        Step::Shows("^6$"),
        Step::Line("exit"),
    ];
    play(&daemon, &["repl", "-s", "r"], &[], &steps);
}

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
    // The session of a script is gone when its user reads the hint.
    let script = daemon.home().join("script.py");
    std::fs::write(&script, "import yfinance\n").expect("a script");
    let seen = daemon.cli(["run", "--image", daemon.image(), script.to_str().expect("UTF-8")]).exits(1);
    let way = "and so does `belljar run --with yfinance` before the script begins\n";
    assert!(seen.stderr.contains(way) && !seen.stderr.contains("belljar install"), "{seen:?}");
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
fn a_failed_import_names_the_allowed_image_that_has_the_package() {
    let Some(daemon) = base() else { return };
    // What an image has is known from its first use on.
    daemon.cli(["image", "show", "belljar/science"]).ok();
    let seen = daemon.cli(["exec", "-s", S, "import sklearn"]).exits(1);
    let hint = "has `scikit-learn`: `--image belljar/science";
    assert_eq!(seen.stderr.matches(hint).count(), 1, "{seen:?}");
    let seen = daemon.cli(["exec", "-s", S, "import no_such_package_at_all"]).exits(1);
    assert!(!seen.stderr.contains("--image"), "{seen:?}");
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

/// A notebook of code cells, as Jupyter would save it.
fn notebook_of(cells: &[&str]) -> String {
    let title = json!({"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# Title"]});
    let code = cells.iter().enumerate().map(|(index, code)| {
        json!({"cell_type": "code", "id": format!("c{index}"), "metadata": {}, "source": code, "outputs": [],
            "execution_count": null})
    });
    let cells: Vec<Value> = std::iter::once(title).chain(code).collect();
    json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).to_string()
}

#[test]
pub fn the_cells_of_a_notebook_run_in_order() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let file = daemon.home().join("a.ipynb");
    let path = file.to_str().expect("UTF-8").to_owned();
    let ran = |more: &[&str], cells: &[&str]| {
        std::fs::write(&file, notebook_of(cells)).expect("written");
        let words = ["run", "--image", daemon.image(), &path];
        daemon.cli(words.iter().chain(more).copied().collect::<Vec<_>>())
    };
    let whole =
        ran(&["a b"], &["import sys\nx = sys.argv[1]", " ", "print(x)\n!echo of a shell", "x * 2"]).ok();
    assert_eq!(whole.stdout, "a b\nof a shell\n'a ba b'\n");
    let failed = ran(&[], &["def f():\n    return 1 / 0", "print('on')", "f()", "print('never')"]).exits(1);
    assert_eq!(failed.stdout, "on\n");
    for line in [
        format!("File \"{path}, code cell 3\", line 1"),
        format!("File \"{path}, code cell 1\", line 2, in f"),
        "error: stopped at code cell 3 of 4".to_owned(),
    ] {
        assert!(failed.stderr.contains(&line), "{line}: {failed:?}");
    }
    assert!(!failed.stderr.contains("<cell"), "{failed:?}");
    assert_eq!(ran(&[], &["import sys; sys.exit(7)", "print('never')"]).exits(7).stdout, "");
    assert_eq!(ran(&[], &["import sys; sys.exit()", "print('never')"]).ok().stdout, "");
    let json = ran(&["--json"], &["1", "1 / 0", "2"]).exits(1);
    let statuses: Vec<String> = json
        .stdout
        .lines()
        .map(|line| text(&serde_json::from_str(line).expect("JSON"), "status").to_owned())
        .collect();
    assert_eq!(statuses, ["success", "failure"]);
    std::fs::write(&file, "{}").expect("written");
    let wrong = daemon.cli(["run", &path]).exits(125);
    assert!(wrong.stderr.contains("cannot be run: it is not in the format of notebooks"), "{wrong:?}");
}

#[test]
pub fn a_session_is_written_as_a_notebook() {
    let Some(daemon) = base() else { return };
    let picture =
        "class Picture:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\ndisplay(Picture())";
    for code in ["x = 20\nprint('on')\nx + 22", picture, "x = 1", "1 / 0", "taken = 'back'"] {
        daemon.run(S, code);
    }
    daemon.cli(["undo", "-s", S]).ok();
    daemon.run(S, "import ctypes; ctypes.string_at(0)");
    daemon.run_with(S, json!({"code": "x", "mode": "fork"}));
    daemon.cli(["sh", "-s", S, "true"]).ok();
    let file = daemon.home().join("out.ipynb");
    let path = file.to_str().expect("UTF-8");
    let told = daemon.cli(["export", "-s", S, path]).ok();
    assert!(told.stderr.contains("out.ipynb`: 5"), "{told:?}");
    let notebook: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("a notebook is JSON");
    let shown = |cell: usize| {
        let outputs = notebook["cells"][cell]["outputs"].as_array().expect("a list");
        outputs.iter().map(|output| text(output, "output_type").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(0), ["stream", "execute_result"]);
    assert_eq!(notebook["cells"][0]["outputs"][1]["data"]["text/plain"], "42");
    assert_eq!(shown(1), ["display_data"]);
    let png = text(&notebook["cells"][1]["outputs"][0], "/data/image~1png");
    assert!(png.starts_with("iVBORw0KGgo"), "{png}");
    assert_eq!(shown(2), [] as [&str; 0]);
    assert_eq!(notebook["cells"][3]["outputs"][0]["ename"], "ZeroDivisionError");
    assert_eq!(shown(4), ["stream", "error"]);
    assert!(text(&notebook["cells"][4]["outputs"][0], "text").starts_with("belljar: variables are back as "));
    // What was written runs, up to the cell that fails.
    let again = daemon.cli(["run", "--image", daemon.image(), path]).exits(1);
    assert!(again.stdout.starts_with("on\n42\n"), "{again:?}");
    assert!(again.stderr.contains("stopped at code cell 4 of 5"), "{again:?}");
    let wrong = daemon.cli(["export", "-s", S, "out.txt"]).exits(64);
    assert!(wrong.stderr.contains("`.ipynb` is a notebook"), "{wrong:?}");
}

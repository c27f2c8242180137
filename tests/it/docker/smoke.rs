//! The first thing that has to work.

use crate::support::{Daemon, engine};

#[test]
fn a_variable_lives_from_cell_to_cell() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.cli(["new", "a"]).ok();
    daemon.cli_with_input(["exec", "-s", "a", "-"], "x=41").ok();
    let answer = daemon.cli(["exec", "-s", "a", "x+1"]).ok();
    assert_eq!(answer.stdout, "42\n");
    daemon.cli(["exec", "-s", "a", "import os; os.makedirs('sub/in'); open('sub/é.txt', 'w').close()"]).ok();
    let shown = daemon.cli(["ls", "-s", "a", "/sub/"]).ok().stdout;
    let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
    assert_eq!(lines, ["FILE   SIZE", "in/    -", "é.txt  0 B"]);
    // The session may also stand where most people put it first.
    assert_eq!(daemon.cli(["exec", "a", "x+2"]).ok().stdout, "43\n");
    assert_eq!(daemon.cli(["eval", "a", "x - 82"]).ok().stdout, "-41\n");
    assert_eq!(daemon.cli(["wait", "a"]).ok().stdout, daemon.cli(["wait", "-s", "a"]).ok().stdout);
    assert_eq!(daemon.cli(["wait", "a", "2"]).ok().stdout, "42\n");
    let refused = daemon.cli(["exec", "x", "=", "1"]).exits(64);
    assert!(refused.stderr.contains("[SESSION] CODE"), "{refused:?}");
    let refused = daemon.cli(["exec", "x =", "1"]).exits(64);
    assert!(refused.stderr.contains("put code that has spaces in quotes"), "{refused:?}");
}

const SCRIPT: &str = r#"from __future__ import annotations
import sys
print(sys.argv[1:], __name__, __file__)
def divide(by: nothing):
    return 1 / by
divide(0)
"#;

#[test]
pub fn a_script_is_run_as_python_would_run_it() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let file = daemon.home().join("script.py");
    std::fs::write(&file, SCRIPT).expect("written");
    let file = file.to_str().expect("UTF-8");
    let ran = daemon.cli(["run", "--image", daemon.image(), file, "a b", "--", "--c"]).exits(1);
    assert_eq!(ran.stdout, "['a b', '--c'] __main__ /workspace/script.py\n");
    for line in [format!("File \"{file}\", line 6"), format!("File \"{file}\", line 5, in divide")] {
        assert!(ran.stderr.contains(&line), "{ran:?}");
    }
    assert!(!ran.stderr.contains("<cell"), "{ran:?}");
    let piped =
        daemon.cli_with_input(["run", "--image", daemon.image(), "-", "x"], "import sys; print(sys.argv)");
    assert_eq!(piped.ok().stdout, "['-', 'x']\n");
}

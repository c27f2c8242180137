//! `belljar repl`, typed into through a pseudo-terminal.

use serde_json::json;
use std::process::Command;

use crate::support::{Daemon, engine, keeps_variables};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/terminal.py");
const PROMPT: &str = ">>> $";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

pub enum Step {
    /// A line that is typed at a prompt of the REPL.
    Line(&'static str),
    Keys(&'static str),
    Shows(&'static str),
}
use Step::{Keys, Line, Shows};

/// Plays the steps in a terminal and gives all that was shown.
#[track_caller]
pub fn play(daemon: &Daemon, arguments: &[&str], environment: &[(&str, &str)], steps: &[Step]) -> String {
    let mut script = Vec::new();
    for step in steps {
        match step {
            Line(text) => {
                script.push(json!(["expect", PROMPT]));
                script.push(json!(["send", format!("{text}\r")]));
            }
            Keys(keys) => script.push(json!(["send", keys])),
            Shows(pattern) => script.push(json!(["expect", pattern])),
        }
    }
    let repl = daemon.command(arguments);
    let mut driver = Command::new("python3");
    driver.arg(DRIVER).arg(json!(script).to_string()).arg(repl.get_program()).args(repl.get_args());
    for (name, value) in repl.get_envs() {
        match value {
            Some(value) => driver.env(name, value),
            None => driver.env_remove(name),
        };
    }
    for name in ["TMUX", "STY", "KITTY_WINDOW_ID", "TERM_PROGRAM", "LC_TERMINAL", "NO_COLOR"] {
        driver.env_remove(name);
    }
    let output = driver.envs(environment.iter().copied()).output().expect("python3");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    shown
}

#[test]
pub fn a_person_types_python_and_comes_back() {
    if !engine() || !keeps_variables() {
        return;
    }
    let daemon = Daemon::start();
    let shown = play(
        &daemon,
        &["repl", "-s", "r"],
        &[],
        &[
            Shows("session `r`"),
            // A block ends with an empty line.
            Line("def double(x):"),
            // Its lines begin where they belong, although no blanks are typed.
            Keys("if x > 1000:\rreturn 0\rreturn x * 2\r\r"),
            Line("double(21)"),
            Shows("^42$"),
            // Brackets go on.
            Line("total = sum([1,"),
            Keys("2, 4000])\r"),
            Line("total"),
            Shows("^4003$"),
            // Output comes while the cell runs, and Ctrl-C ends the cell alone.
            Line("import time; print('sleep' + 'ing', flush=True); time.sleep(600)"),
            Shows("^sleeping$"),
            Keys(CTRL_C),
            Shows("KeyboardInterrupt"),
            Line("double(100)"),
            Shows("^200$"),
            // At the prompt, Ctrl-C forgets the line.
            Shows(PROMPT),
            Keys("never run this"),
            Shows("never run this"),
            Keys(CTRL_C),
            // Tab knows the names of the session.
            Line("very_long_name = 1000"),
            Shows(PROMPT),
            Keys("very_lo\t + 234\r"),
            Shows("^1234$"),
            Line("import statistics as numbers_of_people"),
            Shows(PROMPT),
            Keys("numbers_o\t.mean([1, 3])\r"),
            Shows("^2$"),
            // It asks the session for attributes, keys and files.
            Line("prices = {'apples': 31, 'pears': 7}; open('fruit.txt', 'w').write('ripe')"),
            Shows(PROMPT),
            Keys("numbers_of_people.fme\t([1, 2])\r"),
            Shows("^1.5$"),
            Shows(PROMPT),
            Keys("prices['app\t'] + 1\r"),
            Shows("^32$"),
            // Of more names than are listed it asks for those that begin so.
            Line("wide = type('Wide', (), {f'a{n}': n for n in range(1000)} | {'zeta': 42})()"),
            Shows(PROMPT),
            Keys("wide.zet\t * 2\r"),
            Shows("^84$"),
            Shows(PROMPT),
            Keys("open('fru\t').read() * 2\r"),
            Shows("^'riperipe'$"),
            Line("numbers_of_people.fmean?"),
            Shows("arithmetic mean"),
            Line("?"),
            Shows(":timeout \\[TIME\\] "),
            // What is typed or pasted beyond the Enter is the next line.
            Line("first = 20\rsecond = 22"),
            Line("first + second"),
            Shows("^42$"),
            // What was undone is gone.
            Line("gone = 1"),
            Line(":undo"),
            Shows("the variables are as after cell"),
            Line("gone"),
            Shows("NameError"),
            Line(":vars"),
            Shows("very_long_name +int"),
            Line("open('made.txt', 'w').write('1234')"),
            Line(":files"),
            Shows("made.txt +4 B"),
            Line(":timeout 1s"),
            Line("time.sleep(300)"),
            Shows("ran longer than 1 s"),
            Line(":nope"),
            Shows("there is no `:nope`"),
            Line(":help"),
            Shows(":timeout \\[TIME\\] "),
            Shows(PROMPT),
            Keys(CTRL_D),
            Shows("the session lives on: `belljar repl -s r` comes back"),
        ],
    );
    assert!(!shown.contains("SyntaxError"), "{shown}");
    play(
        &daemon,
        &["repl", "-s", "r"],
        &[],
        &[
            Line("double(very_long_name)"),
            Shows("^2000$"),
            // The history of before.
            Shows(PROMPT),
            Keys(UP),
            Keys(UP),
            Shows(":help"),
            Keys(CTRL_C),
            Line(":reset"),
            Shows("the variables are gone"),
            Line("very_long_name"),
            Shows("NameError"),
            Shows(PROMPT),
            Keys(CTRL_D),
            Shows("lives on"),
        ],
    );
    daemon.assert_sound();
}

#[test]
pub fn modules_are_there_before_the_first_line() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let preload = ["repl", "-s", "m", "--preload", "json as j", "--preload", "from math import sqrt"];
    play(
        &daemon,
        &preload,
        &[],
        &[
            Shows("preloaded: 2 names"),
            Shows(PROMPT),
            Keys("j.dumps([sq\t(16)])\r"),
            Shows("^'\\[4.0\\]'$"),
            // They are part of what a lost cell goes back to.
            Line("del j; import os; os._exit(1)"),
            Line("j.dumps(1 + 1)"),
            Shows("^'2'$"),
            Shows(PROMPT),
            Keys(CTRL_D),
        ],
    );
    // A session that is there keeps what it was made with.
    let refused = daemon.cli(preload).exits(64);
    assert!(refused.stderr.contains("keeps the sandbox that it was made with"), "{refused:?}");
    // A session without a name ends with the dialog.
    let leave =
        [Line("1 + 1"), Shows("^2$"), Shows(PROMPT), Keys(CTRL_D), Shows("the session is removed; `--keep`")];
    play(&daemon, &["repl"], &[], &leave);
    let listed = daemon.cli(["--json", "ps"]).ok().stdout;
    assert_eq!(listed.matches("\"created_at\"").count(), 1, "{listed}");
    let refused = daemon.cli(["repl", "--preload", "no_such_module"]).exits(125);
    assert!(refused.stderr.contains("No module named 'no_such_module'"), "{refused:?}");
}

#[test]
pub fn pictures_are_saved_and_shown_where_the_terminal_can() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let steps = |sequence| {
        [
            Line("type('P', (), {'_repr_png_': lambda s: b'\\x89PNG\\r\\n\\x1a\\n' + b'picture'})()"),
            Shows(sequence),
            Shows("picture: (\\S+/repl/p-[0-9]-1.png)"),
            Shows(PROMPT),
            Keys(CTRL_D),
        ]
    };
    let shown = play(&daemon, &["repl", "-s", "p"], &[], &steps(""));
    assert!(!shown.contains("\x1b_G"), "{shown}");
    let saved = std::fs::read(daemon.home().join("repl/p-1-1.png")).expect("a picture");
    assert!(saved.ends_with(b"picture"));
    play(&daemon, &["repl", "-s", "p"], &[("KITTY_WINDOW_ID", "1")], &steps("\x1b_Ga=T,f=100,m=0;iVBORw"));
    assert!(daemon.home().join("repl/p-2-1.png").exists());
    let inline = "\x1b\\]1337;File=inline=1;size=15:iVBORw";
    play(&daemon, &["repl", "-s", "p"], &[("TERM_PROGRAM", "iTerm.app")], &steps(inline));
}

#[test]
pub fn without_a_terminal_lines_are_read_all_the_same() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let ran = daemon.cli_with_input(["repl", "-s", "q"], "def f():\n    return 'o' * 3\n\nf()\n").ok();
    assert!(ran.stdout.contains("'ooo'"), "{ran:?}");
    assert!(ran.stderr.contains("belljar repl -s q"), "{ran:?}");
    daemon.cli(["repl", "--json"]).exits(64);
}

#[test]
pub fn a_silent_cell_shows_its_time_and_what_can_be_done_before_its_deadline() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.cli(["new", "quiet"]).ok();
    let code = "import time; time.sleep(4.9); 6 * 7";
    let shown = play(
        &daemon,
        &["exec", "-s", "quiet", "--timeout", "6s", code],
        &[],
        &[
            Shows("2 s"),
            Shows("4 s; ends at 6 s: `--timeout 5min` allows more, `--detach` does not wait"),
            Shows("42"),
        ],
    );
    assert!(!shown.contains("1 s"), "{shown}");
    // Where no person watches, nothing is shown.
    let run = daemon.cli(["exec", "-s", "quiet", "import time; time.sleep(3)"]).ok();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
    daemon.assert_sound();
}

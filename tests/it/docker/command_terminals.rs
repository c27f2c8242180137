//! Commands with a terminal: shells that a person types into, and what the API has for them.

use serde_json::json;

use super::commands::{background, started};
use super::helpers::{S, assert_ended, outcome, post, session, text, written};
use super::repl::Step::{Keys, Shows};
use super::repl::play;
use crate::support::eventually;

#[test]
pub fn a_person_types_into_a_shell() {
    let Some(daemon) = session() else { return };
    let raw = "python3 -c 'import sys, termios, tty; old = termios.tcgetattr(0); tty.setraw(0); print(\"raw mode\", flush=True); \
               key = ord(sys.stdin.read(1)); termios.tcsetattr(0, 1, old); print(\"key\", key)'\r";
    let shown = play(
        &daemon,
        &["sh", "-s", S],
        &[],
        &[
            Shows("[$#] $"),
            Keys("echo one$((1 + 1)); echo $TERM; pwd\r"),
            Shows("^one2$"),
            Shows("^xterm-256color$"),
            Shows("^/workspace$"),
            // The key for the line before: an interactive shell keeps a history.
            Keys("\x1b[A\r"),
            Shows("^one2$"),
            Shows("^/workspace$"),
            Keys("stty size\r"),
            Shows("^40 120$"),
            // Ctrl-C ends what runs, and not the shell. It says itself that it runs: between two commands, nothing does.
            Keys("sh -c 'echo begun; exec sleep 100'\r"),
            Shows("^begun$"),
            Keys("\x03"),
            Shows("[$#] $"),
            Keys(raw),
            Shows("^raw mode$"),
            Keys("\x03"),
            Shows("^key 3$"),
            Keys("printf '\\033]52;c;aGk=\\007clipboard\\n'\r"),
            Shows("^clipboard$"),
            Keys("exit\r"),
        ],
    );
    assert!(!shown.contains("]52;c;aGk=\x07"), "{shown:?}");
    let bare = daemon.cli(["sh", "-s", S]).exits(64);
    assert!(bare.stderr.contains("needs a terminal"), "{}", bare.stderr);
}

#[test]
pub fn a_person_comes_back_to_a_shell() {
    let Some(daemon) = session() else { return };
    let shell = started(&daemon, &json!({"tty": {"rows": 10, "columns": 20}}));
    let typed = "bWFyaz1rZXB0OyBlY2hvIGZpcnN0JG1hcms7IGVjaG8gZG9uZSQoKDEgKyAxKSkK";
    post(&daemon, &format!("commands/{shell}/type"), &json!({ "data_base64": typed })).expect_status(200);
    eventually("it answers", || written(&daemon, Some(shell)).contains("done2").then_some(()));
    let number = shell.to_string();
    play(
        &daemon,
        &["sh", "-s", S, "--attach", &number],
        &[],
        &[
            // What it had written before comes first.
            Shows("firstkept"),
            Shows("done2"),
            Keys("echo still $mark\r"),
            Shows("still kept"),
            Keys("stty size\r"),
            Shows("40 120"),
            Keys("exit\r"),
        ],
    );
    assert_ended(&outcome(&daemon, shell), "success", "ok", 0);
    let bare = daemon.cli(["sh", "-s", S, "--attach", &number]).exits(64);
    assert!(bare.stderr.contains("needs one"), "{}", bare.stderr);
}

#[test]
pub fn a_terminal_can_be_typed_into_and_resized_over_the_api() {
    let Some(daemon) = session() else { return };
    let line = "stty size; read word; stty size; echo got $word; test -t 2 && exit 6";
    let command = started(&daemon, &json!({"line": line, "tty": {"rows": 10, "columns": 20}}));
    eventually("its size is shown", || written(&daemon, Some(command)).contains("10 20").then_some(()));
    post(&daemon, &format!("commands/{command}/resize"), &json!({"rows": 30, "columns": 40}))
        .expect_status(200);
    post(&daemon, &format!("commands/{command}/type"), &json!({"data_base64": "aGVsbG8K"}))
        .expect_status(200);
    let result = outcome(&daemon, command);
    assert_ended(&result, "failure", "exit", 6);
    assert_eq!(text(&result, "stdout").replace('\r', ""), "10 20\nhello\n30 40\ngot hello\n");
    let refused = post(&daemon, &format!("commands/{command}/type"), &json!({"data_base64": "aGVsbG8K"}));
    assert_eq!(text(&refused.expect_status(404), "code"), "no_such_cell");
    let plain = background(&daemon, "sleep 3000");
    post(&daemon, &format!("commands/{plain}/type"), &json!({"data_base64": "eA=="})).expect_status(404);
}

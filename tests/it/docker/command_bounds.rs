//! What commands may take, and what is said of it.

use serde_json::json;
use std::process::Command;

use super::helpers::{S, assert_ended, post, session, text, value};
use super::volumes::of_a_user;
use crate::support::jails::ground;
use crate::support::{Daemon, engine, eventually};

fn with_session(config: &str) -> Option<Daemon> {
    if !engine() {
        return None;
    }
    let daemon = Daemon::with_config(config);
    daemon.session(S, json!({"image": "belljar/base"}));
    Some(daemon)
}

#[test]
pub fn commands_stay_within_the_quotas() {
    let Some(daemon) = with_session("[quota]\nworkspace = \"64MiB\"\njournal = \"8MiB\"\n") else { return };
    daemon.run(S, "x = 41");
    let line = "while head -c 8000000 /dev/zero >>big; do sleep 0.2; done; sleep 60";
    let wrote =
        post(&daemon, "commands?wait=true", &json!({"line": line, "timeout_s": 60})).expect_status(200);
    assert_eq!(text(&wrote, "reason"), "policy_violation", "{wrote:#}");
    assert!(text(&wrote, "/state/note").contains("workspace"), "{wrote:#}");
    daemon.http("DELETE", "/v1/sessions/s/files/big", b"").expect_status(200);
    let line = "yes 0123456789012345678901234567890123456789 | head -c 100000000";
    let said = post(&daemon, "commands?wait=true", &json!({ "line": line }));
    assert!(
        said.status == 429 || said.text().contains("journal_quota"),
        "its output ends it: {}",
        said.text()
    );
    // A full journal takes no further cell, but a look at the variables needs none of it.
    let variables = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    assert_eq!(variables["variables"][0]["preview"], "41", "the variables are as they were");
}

#[test]
pub fn the_bytes_of_a_command_come_through_as_they_are() {
    let Some(daemon) = session() else { return };
    let line = "printf '\\377\\000\\376half \\344\\270'; printf 'err\\200' >&2";
    let output = daemon.command(["sh", "-s", S, line]).output().expect("belljar runs");
    assert_eq!(output.stdout, b"\xff\x00\xfehalf \xe4\xb8");
    assert_eq!(output.stderr, b"err\x80");
    let plain = daemon.events(S, 0).into_iter().filter(|event| event["type"] == "output");
    assert!(plain.clone().all(|event| event["base64"].is_string()), "bytes that are no text");
    daemon.cli(["sh", "-s", S, "echo text"]).ok();
    let last = daemon.events(S, 0).into_iter().rfind(|event| event["type"] == "output").expect("output");
    assert_eq!((text(&last, "text"), last.get("base64")), ("text\n", None));
}

#[test]
pub fn a_new_sandbox_is_told_of_once() {
    let Some(daemon) = session() else { return };
    daemon.run(S, "x = 1");
    daemon.remove_sandboxes();
    let note = || {
        let result = post(&daemon, "commands?wait=true", &json!({"line": "true"})).expect_status(200);
        result["state"]["note"].as_str().unwrap_or_default().contains("The sandbox is a new one")
    };
    assert!(eventually("the loss is noticed", || note().then_some(true)));
    assert!(!note() && !note(), "the next ones go on in it");
    let cell = daemon.run(S, "1");
    assert!(text(&cell, "/state/note").contains("Run again, with the recorded answers"), "{cell:#}");
}

#[test]
pub fn more_input_than_a_command_takes_is_refused_with_a_way_that_works() {
    let Some(daemon) = session() else { return };
    let input = "0123456\n".repeat((4 << 17) + 1);
    let refused = daemon.cli_with_input(["sh", "-s", S, "-i", "wc -c"], &input);
    assert!(refused.stderr.contains("belljar cp FILE NAME:FILE"), "{refused:?}");
    let path = daemon.home().join("input");
    std::fs::write(&path, &input).expect("a file");
    daemon.cli(["cp", path.to_str().expect("UTF-8"), "s:input"]).ok();
    let told = daemon.cli(["sh", "-s", S, "wc -c <input"]).ok();
    assert_eq!(told.stdout.trim(), input.len().to_string());
}

#[test]
fn what_a_volume_does_not_have_is_not_said_to_be_missing_in_a_workspace() {
    let Some(daemon) = of_a_user("") else { return };
    daemon.cli(["volume", "create", "m"]).ok();
    let missing = daemon.cli(["cp", "volume/m:nosuch", "-"]);
    assert!(missing.stderr.contains("`nosuch` is not there"), "{missing:?}");
    assert!(missing.code != Some(0) && !missing.stderr.contains("in the workspace"), "{missing:?}");
}

/// A tmux server of the test.
struct Tmux(String);

impl Tmux {
    /// The screen of a program in a terminal of 80 columns and 24 rows.
    fn start(daemon: &Daemon, arguments: &[&str]) -> Self {
        let tmux = Self(format!("bj-{}", uuid::Uuid::new_v4().simple()));
        let program = daemon.command(arguments);
        let mut command = tmux.command(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"]);
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        assert!(command.env_remove("TMUX").status().expect("tmux: `images/setup.sh` installs it").success());
        tmux
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.0]).args(arguments);
        command
    }

    fn type_text(&self, text: &str) {
        assert!(self.command(&["send-keys", "-l", text]).status().expect("tmux").success());
    }

    fn press(&self, key: &str) {
        assert!(self.command(&["send-keys", key]).status().expect("tmux").success());
    }

    fn line(&self, text: &str) {
        self.type_text(text);
        self.press("Enter");
    }

    #[track_caller]
    fn shows(&self, what: &str) {
        let screen = || {
            let shown = self.command(&["capture-pane", "-p"]).output().expect("tmux");
            String::from_utf8_lossy(&shown.stdout).into_owned()
        };
        eventually(&format!("the screen shows {what:?}"), || screen().contains(what).then_some(()));
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}

#[test]
pub fn programs_that_fill_the_screen_work_in_tmux() {
    let Some(daemon) = session() else { return };
    daemon.run(S, "open('lines', 'w').write(''.join(f'line {n}\\n' for n in range(1, 501)))");
    let tmux = Tmux::start(&daemon, &["sh", "-s", S]);
    // What is typed before its terminal is ready is lost.
    eventually("the shell asks", || {
        let shown = tmux.command(&["capture-pane", "-p"]).output().expect("tmux");
        shown.stdout.iter().any(|byte| matches!(byte, b'$' | b'#')).then_some(())
    });
    tmux.line("echo begun$((1 + 1))");
    tmux.shows("begun2");
    tmux.line("clear; stty size");
    tmux.shows("24 80");
    if ground().is_none() {
        // The image has neither `vi` nor `less`.
        tmux.line("more lines; echo left$((1 + 1))");
        tmux.shows("--More--");
        tmux.type_text("q");
        tmux.shows("left2");
    } else {
        // A program that ends drops what was typed before: each says that it has left.
        tmux.line("less lines; echo left$((1 + 1))");
        tmux.shows("line 23");
        tmux.type_text("G");
        tmux.shows("line 500");
        tmux.type_text("g/line 77");
        tmux.press("Enter");
        tmux.shows("line 99");
        tmux.type_text("q");
        tmux.shows("left2");
        tmux.line("clear; vi -u NONE written; echo left$((2 + 2))");
        tmux.shows("~\n~\n");
        tmux.type_text("ihello from vi");
        tmux.press("Escape");
        tmux.line(":wq");
        tmux.shows("left4");
    }
    tmux.line("clear; echo back$((1 + 1))");
    tmux.shows("back2");
    assert!(tmux.command(&["resize-window", "-x", "100", "-y", "30"]).status().expect("tmux").success());
    eventually("the new size is known", || {
        tmux.line("clear; stty size");
        let shown = tmux.command(&["capture-pane", "-p"]).output().expect("tmux");
        String::from_utf8_lossy(&shown.stdout).contains("30 100").then_some(())
    });
    if ground().is_some() {
        assert_eq!(value(&daemon, "open('written').read()"), "'hello from vi\\n'");
    }
    tmux.line("exit 3");
    let ended = eventually("the command ends", || {
        let list = daemon.http("GET", "/v1/sessions/s/commands", b"").expect_status(200);
        let last = list["commands"].as_array()?.last()?.clone();
        (text(&last, "state") == "done").then_some(last)
    });
    assert_eq!(ended["exit_code"], json!(3), "{ended}");
    assert_ended(&daemon.run(S, "1"), "success", "ok", 0);
}

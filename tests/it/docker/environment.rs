//! What a session says of itself when it is made: variables of its environment, and labels.

use serde_json::{Value, json};

use super::helpers::{S, end, list, outcome, post, printed, queue, restart_by, session_with, text};
use crate::support::{Daemon, engine, eventually};

/// What cells and the programs that they start see.
const SEEN: &str = "import os, subprocess, sys\n\
                    child = [sys.executable, '-c', 'import os; print(os.environ.get(\"GREETING\"))']\n\
                    print(os.environ.get('GREETING'), os.environ['LANG'], subprocess.run(child, capture_output=True, text=True).stdout, end='')";

#[test]
pub fn variables_of_the_environment_are_there_in_every_sandbox_of_the_session() {
    let env = json!({"GREETING": "hello, wörld = 1", "LANG": "C"});
    let request = json!({"image": "belljar/base", "idle_s": 1, "env": env});
    let Some(mut daemon) = session_with("", request) else { return };
    let expected = "hello, wörld = 1 C hello, wörld = 1\n";
    assert_eq!(printed(&daemon, SEEN), expected);
    // After a death, a reset and a restart of the daemon.
    daemon.run(S, "import os; os._exit(1)");
    assert_eq!(printed(&daemon, SEEN), expected);
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(printed(&daemon, SEEN), expected);
    restart_by(&mut daemon, "KILL");
    eventually("the sandbox goes", || daemon.containers().is_empty().then_some(()));
    assert_eq!(printed(&daemon, SEEN), expected);
    post(&daemon, "replay", &json!({})).expect_status(200);
    assert_eq!(printed(&daemon, SEEN), expected);
    // The values are not shown: neither in the view of the session nor in command lines, which all users of the host see.
    let view = daemon.http("GET", "/v1/sessions/s", b"").expect_status(200);
    assert_eq!(view["env"], json!(["GREETING", "LANG"]));
    assert!(!view.to_string().contains("hello, w"), "{view:#}");
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        assert!(!line.contains("hello, wörld"), "{line}");
    }
    end(&mut daemon, "TERM");
}

#[test]
pub fn variables_that_steer_the_kernel_are_refused_by_name() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let refused = |env: Value| {
        let request = json!({"name": "a", "env": env}).to_string();
        let refused = daemon.http("POST", "/v1/sessions", request.as_bytes()).expect_status(400);
        assert_eq!(text(&refused, "code"), "bad_request");
        text(&refused, "message").to_owned()
    };
    for name in ["LD_PRELOAD", "PYTHONSTARTUP", "PATH", "HOME", "BELLJAR_CONTROLS_OFF", "A B", ""] {
        let said = refused(json!({name: "x"}));
        assert!(said.contains(&format!("`{name}`")), "{said}");
    }
    assert!(refused(json!({"A": "x".repeat(40_000)})).contains("more than"));
    let told = daemon.cli(["new", "a", "--env", "LD_PRELOAD=/x.so"]).exits(64);
    assert!(told.stderr.contains("would steer the loader"), "{}", told.stderr);
    assert_eq!(daemon.containers(), Vec::<String>::new());
    daemon.cli(["new", "a", "--env", "A=b=c", "--env", "EMPTY="]).ok();
    let said = daemon.cli(["exec", "-s", "a", "import os; os.environ['A'], os.environ['EMPTY']"]).ok().stdout;
    assert_eq!(said, "('b=c', '')\n");
    assert!(daemon.cli(["show", "a"]).ok().stdout.contains("A, EMPTY"));
    // A command takes them in the same way.
    let said = daemon.cli(["sh", "-s", "a", "--env", "PATH", "--env", "B=1=2", "echo $B $PATH"]).ok().stdout;
    assert!(said.starts_with("1=2 ") && said.contains("/bin"), "{said}");
    for words in [&["new", "--env", "NOT_SET", "b"][..], &["sh", "-s", "a", "--env", "NOT_SET", "ls"]] {
        let told = daemon.cli(words.iter().copied()).exits(64);
        assert!(told.stderr.contains("the variable `NOT_SET` is not set"), "{}", told.stderr);
    }
    let script = daemon.home().join("script.py");
    std::fs::write(&script, "import os; print(os.environ['A'])").expect("a script");
    let script = script.to_str().expect("a path");
    assert_eq!(daemon.cli(["run", "--env", "A=of a run", script]).ok().stdout, "of a run\n");
}

#[test]
pub fn sessions_are_found_by_their_labels() {
    if !engine() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.cli(["new", "a", "--label", "team=red", "--label", "stage=try out"]).ok();
    daemon.cli(["new", "b", "--label", "team=red"]).ok();
    daemon.cli(["new", "c"]).ok();
    let names = |daemon: &Daemon, query: &str| -> Vec<String> {
        let found = daemon.http("GET", &format!("/v1/sessions{query}"), b"").expect_status(200);
        let mut names: Vec<String> =
            list(&found, "sessions").iter().map(|view| text(view, "name").to_owned()).collect();
        names.sort();
        names
    };
    let hold = |daemon: &Daemon| {
        assert_eq!(names(daemon, ""), ["a", "b", "c"]);
        assert_eq!(names(daemon, "?label=team%3Dred"), ["a", "b"]);
        assert_eq!(names(daemon, "?label=team=red&label=stage=try%20out"), ["a"]);
        assert_eq!(names(daemon, "?label=team=blue"), Vec::<String>::new());
    };
    hold(&daemon);
    for wrong in ["?label=team", "?label=%00=1", "?lable=a=b", "?all=maybe"] {
        daemon.http("GET", &format!("/v1/sessions{wrong}"), b"").expect_status(400);
    }
    let shown = daemon.cli(["ps", "--label", "stage=try out"]).ok().stdout;
    assert!(shown.contains("\na ") && !shown.contains("\nb "), "{shown}");
    assert!(daemon.cli(["show", "a"]).ok().stdout.contains("stage=try out, team=red"));
    daemon.cli(["new", "d", "--label", "no value"]).exits(64);
    let many: Vec<(String, String)> = (0..40).map(|n| (n.to_string(), String::new())).collect();
    let many: serde_json::Map<_, _> = many.into_iter().map(|(key, value)| (key, json!(value))).collect();
    let request = json!({"labels": many}).to_string();
    daemon.http("POST", "/v1/sessions", request.as_bytes()).expect_status(400);
    restart_by(&mut daemon, "KILL");
    eventually("the sessions are there", || (names(&daemon, "").len() == 3).then_some(()));
    hold(&daemon);
    end(&mut daemon, "TERM");
}

#[test]
fn every_library_of_the_science_image_can_be_imported() {
    let Some(daemon) = session_with("", json!({"image": "belljar/science"})) else { return };
    let requirements = include_str!("../../../images/science-requirements.txt").lines();
    let packages = requirements.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let packages: Vec<&str> =
        packages.filter_map(|line| line.split(['>', '<', '=', '~', '!']).next()).collect();
    assert!(packages.contains(&"scikit-learn") && packages.len() >= 10, "{packages:?}");
    let module = |package: &&str| if *package == "scikit-learn" { "sklearn" } else { *package }.to_owned();
    let modules: Vec<String> = packages.iter().map(module).collect();
    let code = format!("import {}\nprint('all')", modules.join(", "));
    let cell = queue(&daemon, &json!({"code": code, "timeout_s": 120}));
    assert_eq!(text(&outcome(&daemon, cell), "stdout"), "all\n");
}

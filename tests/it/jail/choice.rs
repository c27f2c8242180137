//! Which backend serves, and what is said when none does.

use serde_json::json;

use crate::support::{Daemon, jails};

pub const NO_ENGINE: (&str, &str) = ("DOCKER_HOST", "unix:///nonexistent/docker.sock");
/// No bubblewrap in it; `python3` is not needed to find that out.
const NO_PROGRAMS: (&str, &str) = ("PATH", "/nonexistent");

#[test]
fn without_an_engine_auto_takes_a_jail_and_says_why() {
    let daemon = Daemon::with_environment("", &[NO_ENGINE]);
    assert_eq!(daemon.http("GET", "/v1/health", b"").expect_status(200)["status"], "ok");
    let made = daemon.cli(["new", "a"]).ok();
    assert!(made.stderr.contains("bubblewrap jail"), "{made:?}");
    assert!(made.stderr.contains("the container engine does not answer"), "{made:?}");
    assert_eq!(daemon.cli(["exec", "-s", "a", "6 * 7"]).ok().stdout, "42\n");
    // So does a script, which also hears what becomes of its files.
    let ran = daemon.cli_with_input(["run", "-"], "open('f', 'w').close(); print(7)").ok();
    assert_eq!(ran.stdout, "7\n");
    assert!(ran.stderr.contains("the container engine does not answer"), "{ran:?}");
    assert!(ran.stderr.contains("`--workspace DIR` keeps them"), "{ran:?}");
    let receipt = daemon.http("GET", "/v1/sessions/a/receipt", b"").expect_status(200);
    assert_eq!(receipt["backend"], "bubblewrap");
    assert!(receipt["chosen"].as_str().is_some_and(|why| why.contains("does not answer")), "{receipt:#}");
    assert!(daemon.log().contains("backend chosen"), "{}", daemon.log());
}

#[test]
fn with_neither_both_remedies_are_told() {
    let daemon = Daemon::with_environment("", &[NO_ENGINE, NO_PROGRAMS]);
    let refused = daemon.cli(["new", "a"]).exits(125);
    for part in [
        "does not answer",
        "bubblewrap cannot be run",
        "systemctl start docker",
        "apt-get install bubblewrap",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    let health = daemon.http("GET", "/v1/health", b"").expect_status(200);
    assert_eq!(
        (&health["status"], health["problems"].as_array().map(Vec::len)),
        (&json!("degraded"), Some(2))
    );
}

#[test]
fn isolation_is_not_lowered_below_the_minimum() {
    let config = "[sandbox]\nminimum_isolation = \"container\"\n";
    let daemon = Daemon::with_environment(config, &[NO_ENGINE]);
    let refused = daemon.cli(["new", "a"]).exits(125);
    assert!(refused.stderr.contains("minimum_isolation"), "{refused:?}");
    let refused = daemon.cli(["new", "a", "--backend", "bubblewrap"]).exits(125);
    assert!(refused.stderr.contains("isolates less than the `container`"), "{refused:?}");
    assert!(jails::living(daemon.home()).is_empty());
}

#[test]
fn an_archive_of_a_jail_is_imported_into_one_whatever_the_default_is() {
    let daemon = Daemon::with_environment("[sandbox]\nbackend = \"docker\"\n", &[NO_ENGINE]);
    daemon.cli(["new", "a", "--backend", "bubblewrap"]).ok();
    daemon.cli(["exec", "-s", "a", "x = 6"]).ok();
    let file = daemon.home().join("a.belljar");
    let file = file.to_str().expect("UTF-8");
    daemon.cli(["export", "-s", "a", file]).ok();
    assert_eq!(daemon.cli(["import", file, "b"]).ok().stdout, "b\n");
    assert_eq!(daemon.cli(["exec", "-s", "b", "x"]).ok().stdout, "6\n");
    assert_eq!(daemon.cli(["import", file, "c", "--image", "host"]).ok().stdout, "c\n");
    let refused = daemon.cli(["import", file, "d", "--backend", "docker"]).exits(125);
    assert!(refused.stderr.contains("does not answer"), "{refused:?}");
}

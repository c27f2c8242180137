//! Each example of `examples/`, run as a person runs it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{binary, engine};

/// Runs `run.sh` of the example, which checks its own answers, and gives what it printed.
fn run(example: &str) -> String {
    if !engine() {
        return String::new();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example).join("run.sh");
    let output = Command::new(script)
        .env("BELLJAR", binary())
        .env_remove("BELLJAR_HOME")
        .env_remove("BELLJAR_SOCKET")
        .env_remove("MODEL")
        .stdin(Stdio::null())
        .output()
        .expect("the example runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("The model is scripted"), "{said}");
    said
}

#[test]
fn spec2() {
    run("spec2");
}

#[test]
fn outliers() {
    run("outliers");
}

#[test]
fn compound_interest() {
    run("compound-interest");
}

#[test]
fn first_steps() {
    run("first-steps");
}

#[test]
fn scenic_spots() {
    run("scenic-spots");
}

#[test]
fn continuous_login() {
    run("continuous-login");
}

#[test]
fn emergency_response() {
    let said = run("emergency-response");
    let parts =
        ["The plan, as it is now", "What changed with its newest version", "Its statistics", "Figures"];
    for part in parts {
        assert!(said.contains(part) || said.is_empty(), "no «{part}»: {said}");
    }
}

//! Each example of `examples/`, run as a person runs it.

use std::path::Path;
use std::process::{Command, Stdio};

use super::jobs::python;
use crate::support::{Daemon, binary, engine};

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
fn subway_map() {
    run("subway-map");
}

#[test]
fn street_network() {
    run("street-network");
}

#[test]
fn tourist_route() {
    run("tourist-route");
}

#[test]
fn city_trip() {
    run("city-trip");
}

#[test]
fn subway_times() {
    run("subway-times");
}

#[test]
fn street_houses() {
    run("street-houses");
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

/// The step of a workflow, as its runner would run it.
const STEP: &str = r#"
import sys, yaml
workflow = yaml.safe_load(open(sys.argv[1], encoding="utf-8"))
assert workflow["permissions"] == {"contents": "read"}, workflow
(job,) = workflow["jobs"].values()
assert all(("uses" in step) != ("run" in step) for step in job["steps"]), job
(step,) = [step for step in job["steps"] if "belljar job run" in step.get("run", "")]
print(step["run"])
"#;

#[test]
fn the_workflow_of_the_examples_works() {
    if !engine() {
        return;
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let step = python(STEP, &examples.join("ci/workflow.yml"));
    let daemon = Daemon::with_config("[sandbox]\nimage = \"belljar/base\"\n");
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    std::os::unix::fs::symlink(&examples, folder.path().join("examples")).expect("a link");
    let binaries = binary().parent().expect("a folder").display().to_string();
    let own = daemon.command(["version"]);
    let mut command = Command::new("bash");
    command.args(["-e", "-c", &step]).current_dir(folder.path()).stdin(Stdio::null());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", format!("{binaries}:{}", std::env::var("PATH").expect("a path")));
    let output = command.output().expect("bash");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.matches("::group::passed check_").count(), 4, "{said}");
    let read = "import sys, junitparser; x = junitparser.JUnitXml.fromfile(sys.argv[1]); print(x.tests, x.failures, x.errors)";
    assert_eq!(python(read, &folder.path().join("report.xml")), "4 0 0");
    let kept = folder.path().join("kept/check_prices.py__limit=1000_/report/prices.json");
    assert_eq!(std::fs::read_to_string(kept).expect("kept"), r#"{"currency": "EUR", "highest": 99.0}"#);
    let mut run = Command::new(examples.join("ci/run.sh"));
    run.env("BELLJAR", binary()).env_remove("BELLJAR_HOME").env_remove("BELLJAR_SOCKET");
    let run = run.output();
    let run = run.expect("it runs");
    assert!(run.status.success(), "{run:?}");
}

//! `make demo` where no engine answers. Only its steps are run: make itself would compile once more.

use std::path::Path;
use std::process::{Command, Output};

use super::choice::NO_ENGINE;
use crate::support::binary;

fn step(script: &str, arguments: &[&str]) -> (String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let (name, nowhere) = NO_ENGINE;
    let Output { status, stdout, stderr } = Command::new(path)
        .args(arguments)
        .env(name, nowhere)
        .env("BELLJAR", binary())
        .env_remove("BELLJAR_HOME")
        .env_remove("BELLJAR_SOCKET")
        .env_remove("BELLJAR_TEST_NO_DOCKER")
        .env_remove("MODEL")
        .output()
        .expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(status.success(), "{script}: {stdout}\n{stderr}");
    (stdout, stderr)
}

/// A step that is added there has to be added here.
#[test]
fn the_demo_works_without_an_engine_and_says_so() {
    let mut make = Command::new("make");
    make.args(["--dry-run", "demo"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let planned = String::from_utf8(make.output().expect("make is there").stdout).expect("UTF-8");
    for part in ["images/setup.sh --or-jail base", "examples/demo.sh", "examples/spec2/run.sh"] {
        assert!(planned.contains(part), "{part}: {planned}");
    }
    let (_, told) = step("images/setup.sh", &["--or-jail", "base"]);
    assert!(told.contains("sessions run in jails that bubblewrap builds"), "{told}");
    let (shown, told) = step("examples/demo.sh", &[binary().to_str().expect("UTF-8")]);
    assert!(told.contains("bubblewrap jail") && told.contains("does not answer"), "{told}");
    assert!(shown.contains("\n20\n") && shown.contains("bubblewrap"), "{shown}");
    let (shown, _) = step("examples/spec2/run.sh", &[]);
    assert!(shown.contains("\"score\": 1.0"), "{shown}");
}

/// The examples whose code needs the standard library alone.
#[test]
fn examples_that_take_any_python_work_without_an_engine() {
    for example in ["city-trip", "subway-times", "street-houses"] {
        let mut make = Command::new("make");
        make.args(["--dry-run", &format!("demo-{example}")]).current_dir(env!("CARGO_MANIFEST_DIR"));
        let planned = String::from_utf8(make.output().expect("make is there").stdout).expect("UTF-8");
        assert!(planned.contains("--or-jail base"), "{planned}");
        let (shown, _) = step(&format!("examples/{example}/run.sh"), &[]);
        assert!(shown.contains("The answer: "), "{shown}");
    }
}

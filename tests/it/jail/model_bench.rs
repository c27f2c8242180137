//! The benchmark of models (`benches/models.py`), with a server that plays one. Its own tests are in Python.

use std::path::Path;
use std::process::Command;

use crate::support::binary;

#[test]
fn the_benchmark_of_models_counts_solved_tasks_and_valid_replies() {
    let output = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "tests/benches"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .env("BELLJAR", binary())
        .env_remove("BELLJAR_HOME")
        .env_remove("BELLJAR_SOCKET")
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

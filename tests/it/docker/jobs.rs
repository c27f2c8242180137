//! Jobs: verdicts, what they leave behind, and what outlives the daemon.

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::invariants::{self, Canary};
use crate::support::jails::ground;
use crate::support::{Daemon, Pulse, ROOT, assert_nothing_left, engine, eventually};

/// A folder of scripts; each is a name and its text.
pub fn scripts(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bjj").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    folder
}

/// A folder into which every user may write.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    folder
}

/// The command, with the light image where there are images.
pub fn job_run(arguments: &[&str]) -> Vec<String> {
    let image = if ground().is_some() { &[][..] } else { &["--image", "belljar/base"] };
    let all = ["job", "run"].iter().chain(image).chain(arguments);
    all.map(|argument| (*argument).to_owned()).collect()
}

pub fn path(folder: &tempfile::TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

pub fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

pub fn python(code: &str, argument: &Path) -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/jobs/bin/python");
    assert!(
        python.exists(),
        "this test needs packages in target/jobs: run `make job-packages`, which needs pip"
    );
    let output = Command::new(python).arg("-c").arg(code).arg(argument).output().expect("python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

const EVIL: &str = r##"
import os, signal, sys, threading
# Everything that a verdict might hang on is tried, and then it fails as it should.
print("::error::forged\n##[error]forged\n<testcase name='x'/>]]>\x1b[2J\x00", flush=True)
print("::set-output name=a::b", file=sys.stderr, flush=True)
for number in range(3, 2048):
    for message in (b'\x00\x00\x00\x02{}', b'{"type":"cell_done","cell":1,"status":"success"}'):
        try:
            os.write(number, message)
        except OSError:
            pass
for pid in (1, -1, os.getppid()):
    try:
        os.kill(pid, signal.SIGKILL) if pid != -1 else os.kill(1, signal.SIGTERM)
    except OSError:
        pass
for path in ("/etc/passwd", "/belljar/kernel/x", "/proc/1/mem", "/proc/1/oom_score_adj"):
    try:
        open(path, "ab").write(b"0")
        print("written:", path)
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            pass
    os._exit(0)
threading.Thread(target=threading.Event().wait).start()
os._exit(9)
"##;

#[test]
pub fn five_scripts_have_five_verdicts() {
    if !engine() {
        return;
    }
    let (daemon, canary) = (Daemon::start(), Canary::set());
    let pulse = Pulse::of(&daemon);
    let folder = scripts(&[
        ("a_pass.py", "import helper, sys; print('fine', helper.X); sys.stdout.write('no newline')"),
        ("b_fail.py", "import sys; print('wrong', file=sys.stderr); sys.exit(3)"),
        (
            "c_hang.py",
            "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nwhile True: time.sleep(1)",
        ),
        ("d_crash.py", "print('before', end='')\nimport ctypes; ctypes.string_at(0)"),
        ("e_evil.py", EVIL),
        ("lib/unused.py", ""),
    ]);
    std::fs::write(folder.path().join("helper.txt"), "").expect("written");
    std::fs::create_dir(folder.path().join("helper")).expect("made");
    std::fs::write(folder.path().join("helper/__init__.py"), "X = 1").expect("written");
    let xml = folder.path().with_extension("xml");
    let ran = daemon.cli(job_run(&[
        path(&folder),
        "--timeout",
        "3s",
        "--json",
        "--junit",
        xml.to_str().expect("UTF-8"),
    ]));
    let ran = ran.exits(1);
    let told = lines(&ran.stdout);
    let (summary, jobs) = told.split_last().expect("a summary");
    let mut verdicts: Vec<_> = jobs
        .iter()
        .map(|job| {
            format!(
                "{} {} {}",
                job["name"].as_str().unwrap(),
                job["verdict"].as_str().unwrap(),
                job["exit_code"]
            )
        })
        .collect();
    verdicts.sort();
    assert_eq!(
        verdicts,
        [
            "a_pass.py passed 0",
            "b_fail.py failed 3",
            "c_hang.py timed_out 124",
            "d_crash.py crashed 139",
            "e_evil.py failed 9"
        ]
    );
    assert_eq!(
        (&summary["total"], &summary["passed"], &summary["exit_code"]),
        (&json!(5), &json!(1), &json!(1))
    );
    let job = |name: &str| jobs.iter().find(|job| job["name"] == name).expect("a job");
    assert_eq!(job("a_pass.py")["stdout"], "fine 1\nno newline");
    assert_eq!(job("b_fail.py")["stderr"], "wrong\n");
    assert_eq!(job("d_crash.py")["stdout"], "before");
    assert!(!job("e_evil.py")["stdout"].as_str().unwrap().contains("written:"));
    // The receipt is read back, and says what was run.
    let receipt = &job("b_fail.py")["receipt"];
    assert_eq!(receipt["script_sha256"], sha256(&folder.path().join("b_fail.py")));
    assert_eq!(receipt["input"]["files"], 8);
    assert!(receipt["isolation"].as_str().unwrap().contains("network none"), "{receipt}");
    assert_ne!(receipt["image"]["id"], "");
    let counted = python(
        "import sys, junitparser\n\
         xml = junitparser.JUnitXml.fromfile(sys.argv[1])\n\
         print(xml.tests, xml.failures, xml.errors, xml.skipped)\n\
         for suite in xml:\n\
         \x20   for case in suite: print(case.name, [type(r).__name__ for r in case.result])",
        &xml,
    );
    assert_eq!(
        counted.lines().collect::<Vec<_>>(),
        [
            "5 2 2 0",
            "a_pass.py []",
            "b_fail.py ['Failure']",
            "c_hang.py ['Error']",
            "d_crash.py ['Error']",
            "e_evil.py ['Failure']"
        ]
    );
    std::fs::remove_file(&xml).expect("removed");
    assert_nothing_left(&daemon, &[]);
    invariants::assert_hold(&daemon, &[daemon.owner()], &canary);
    pulse.assert_steady();
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum");
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a digest").to_owned()
}

/// What a script finds when it begins; it exits with 0 only if all is as it should be.
const CLEAN: &str = r#"
import json, os, signal, sys
assert json.__name__ == "json" and hasattr(json, "MINE"), "modules of the folder come first, for the script"
assert sys.argv == ["clean.py", "a b", "--x={y}"], sys.argv
assert os.getcwd() == "/workspace" and sys.path[0] == "/workspace", sys.path
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "signals are blocked"
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.lexists(f"/proc/self/fd/{fd}")]
assert not any("socket" in name or "pipe" in name for name in open_files), open_files
assert os.environ["GIVEN"] == "1" and os.environ["PASSED"] == "on" and os.environ["k"] == "v"
assert "SECRET" not in os.environ and not any(name.startswith("BELLJAR") for name in os.environ), dict(os.environ)
assert sys.stdin.read() == ""
print("clean")
"#;

#[test]
pub fn a_script_begins_with_a_clean_slate_and_alone() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_environment("", &[("SECRET", "x"), ("PASSED", "on")]);
    // Modules that stand in the way of the library's must not be run by anything but the script.
    let shadow = "import os\nopen('imported', 'a').write('x')\nMINE = 1\n";
    let folder =
        scripts(&[("clean.py", CLEAN), ("json.py", shadow), ("email.py", shadow), ("csv.py", shadow)]);
    let spec = "scripts = [\"clean.py\"]\nargs = [\"a b\", \"--x={{y}}\"]\npass_env = [\"PASSED\"]\nrequire = [\"pip-x\"]\n\
                artifacts = [\"imported\"]\n[env]\nGIVEN = \"1\"\n[matrix]\nk = [\"v\"]\n";
    let file = folder.path().join("job.toml");
    std::fs::write(&file, spec).expect("written");
    let file = file.to_str().expect("UTF-8");
    // A package that is not there is told before anything runs.
    let out = open_folder();
    let to = out.path().to_str().expect("UTF-8");
    let ran = daemon.cli(job_run(&["--spec", file, "--artifacts-to", to])).exits(125);
    assert!(ran.stderr.contains("no package `pip-x`"), "{ran:?}");
    assert!(!out.path().join("imported").exists(), "a module of the folder was run");
    std::fs::write(folder.path().join("job.toml"), spec.replace("require = [\"pip-x\"]\n", ""))
        .expect("written");
    let ran = daemon.cli(job_run(&["--spec", file, "--artifacts-to", to]));
    assert_eq!(ran.ok().stdout, "clean\n");
    // Values of variables are nowhere in what is kept of the job.
    let ran =
        daemon.cli(job_run(&["--spec", file, "--env", "GIVEN=1", "--env", "TOKEN=hunter2hunter2", "--json"]));
    assert!(!ran.ok().stdout.contains("hunter2"));
    let list = daemon.http("GET", "/v1/jobs", b"").text();
    let newest = serde_json::from_str::<Value>(&list).expect("JSON")["jobs"][0]["id"].clone();
    let told =
        daemon.http("GET", &format!("/v1/jobs/{}/events", newest.as_str().expect("an id")), b"").text();
    assert!(list.contains("TOKEN") && told.contains("cell_queued"), "{list}{told}");
    assert!(!list.contains("hunter2") && !told.contains("hunter2"));
    assert_eq!(std::fs::read_to_string(out.path().join("imported")).expect("kept"), "x");
    let wrong = spec.replace("scripts", "skripts");
    std::fs::write(folder.path().join("job.toml"), wrong).expect("written");
    let ran = daemon.cli(job_run(&["--spec", file])).exits(64);
    assert!(ran.stderr.contains("skripts") && ran.stderr.contains("scripts"), "{ran:?}");
    let refused = daemon.cli(["job", "run", path(&folder), "--backend", "process"]).exits(1);
    assert!(refused.stderr.contains("container or a jail"), "{refused:?}");
}

#[test]
pub fn artifacts_are_data() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let folder = scripts(&[(
        "make.py",
        "import os, sys\n\
         os.makedirs('out/deep')\n\
         open('out/run.sh', 'w').write('#!/bin/sh')\nos.chmod('out/run.sh', 0o755)\n\
         open('out/deep/a.txt', 'w').write('a')\nopen('out/.secret', 'w').write('s')\n\
         os.symlink('/etc/passwd', 'out/link')\nos.symlink('/etc', 'out/folder')\nos.mkfifo('out/pipe')\n\
         os.link('out/deep/a.txt', 'out/hard')\nsys.exit(4)",
    )]);
    let out = open_folder();
    let to = out.path().join("here");
    daemon
        .cli(job_run(&[
            &format!("{}/make.py", path(&folder)),
            "--artifacts",
            "out/**",
            "--artifacts-to",
            to.to_str().expect("UTF-8"),
        ]))
        .exits(4);
    let found = Command::new("find").arg(&to).args(["!", "-type", "d", "-printf", "%P %y %m %s\n"]).output();
    let found = String::from_utf8(found.expect("find").stdout).expect("UTF-8");
    let mut found: Vec<_> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, ["out/deep/a.txt f 644 1", "out/hard f 644 1", "out/run.sh f 644 9"]);
    assert_nothing_left(&daemon, &[]);
}

#[test]
fn artifacts_count_for_their_owner_and_the_oldest_go_first() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[quota]\njournal = \"8MiB\"\n");
    let folder = scripts(&[("make.py", "import os; open('big', 'wb').write(os.urandom(3 << 20))")]);
    let input = send(&daemon, &folder);
    let one = || {
        let id = submit(&daemon, &input, json!({"script": "make.py", "artifacts": ["big"]}));
        assert_eq!(wait(&daemon, &id)["end"]["verdict"], "passed");
        id
    };
    let has_artifacts =
        |id: &String| daemon.http("GET", &format!("/v1/jobs/{id}/artifacts"), b"").status == 200;
    let kept = [one(), one()];
    assert!(kept.iter().all(has_artifacts));
    let used = || {
        let view = daemon.http("GET", "/v1/quota", b"").expect_status(200);
        view.to_string()
    };
    let newest = eventually("there is room for a third", || {
        let id = submit(&daemon, &input, json!({"script": "make.py", "artifacts": ["big"]}));
        (wait(&daemon, &id)["end"]["verdict"] == "passed").then_some(id)
    });
    eventually("the first has made room", || (!has_artifacts(&kept[0])).then_some(()));
    assert!(has_artifacts(&newest), "{}", used());
}

pub fn send(daemon: &Daemon, folder: &tempfile::TempDir) -> Value {
    let tar = Command::new("tar").args(["-C", path(folder), "-cf", "-", "."]).output().expect("tar").stdout;
    daemon
        .http_with("PUT", "/v1/job-inputs", &[("Content-Type", "application/x-tar")], &tar)
        .expect_status(200)
}

#[test]
pub fn a_script_that_lacks_a_package_or_a_network_says_what_to_do() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let folder = scripts(&[
        ("a.py", "import sys\nsys.modules['polars'] = None\nimport polars\n"),
        ("b.py", "import urllib.request\nurllib.request.urlopen('http://example.org')\n"),
    ]);
    let mut told = lines(&daemon.cli(job_run(&[path(&folder), "--json"])).exits(1).stdout);
    // They are told in the order in which they end, and a sum comes last.
    told.sort_by_key(|job| job["stderr"].as_str().map_or(2, |stderr| u8::from(stderr.contains("urllib"))));
    for (job, hint) in told.iter().zip([
        "the package `polars` is not installed: `belljar job run --with polars` installs it",
        "this sandbox has no network: no host can be reached, and trying again does not help",
    ]) {
        let stderr = job["stderr"].as_str().expect("its traceback");
        assert_eq!(stderr.matches("\nhint: ").count(), 1, "{stderr}");
        assert!(stderr.contains(hint), "{stderr}");
        assert_eq!((&job["verdict"], &job["exit_code"]), (&json!("failed"), &json!(1)));
    }
}

fn submit(daemon: &Daemon, input: &Value, job: Value) -> String {
    let mut job = job;
    job["input"] = input["id"].clone();
    if ground().is_none() {
        job["image"] = json!("belljar/base");
    }
    let view = daemon.http("POST", "/v1/jobs", job.to_string().as_bytes()).expect_status(202);
    view["id"].as_str().expect("an id").to_owned()
}

pub fn wait(daemon: &Daemon, id: &str) -> Value {
    daemon.http("GET", &format!("/v1/jobs/{id}?wait=true"), b"").expect_status(200)
}

#[test]
pub fn jobs_outlive_the_daemon() {
    if !engine() {
        return;
    }
    let (mut daemon, canary) = (Daemon::with_config("[jobs]\nslots = 2\n"), Canary::set());
    let folder = scripts(&[(
        "slow.py",
        "import sys, time\nfor n in range(8): print(n, flush=True); time.sleep(0.5)\nsys.exit(int(sys.argv[1]))",
    )]);
    let input = send(&daemon, &folder);
    let ids: Vec<String> = (0..5)
        .map(|n| submit(&daemon, &input, json!({"script": "slow.py", "args": [n.to_string()]})))
        .collect();
    let state = |daemon: &Daemon, id: &str| {
        daemon.http("GET", &format!("/v1/jobs/{id}"), b"").expect_status(200)["state"].clone()
    };
    eventually("both slots are taken", || {
        (state(&daemon, &ids[0]) == "running" && state(&daemon, &ids[1]) == "running").then_some(())
    });
    assert_eq!(state(&daemon, &ids[4]), "queued");
    daemon.kill();
    daemon.restart();
    for (code, id) in ids.iter().enumerate() {
        let end = wait(&daemon, id);
        assert_eq!(end["end"]["exit_code"], code, "{end}");
        let text = daemon.http("GET", &format!("/v1/jobs/{id}/events?follow=false"), b"").text();
        let printed: String = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .filter(|event| event["type"] == "output")
            .filter_map(|event| event["text"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(printed, "0\n1\n2\n3\n4\n5\n6\n7\n", "each ran once, and nothing of it is lost");
    }
    assert_nothing_left(&daemon, &[]);
    // A sandbox that goes while no daemon runs is told, and is no success.
    let id = submit(&daemon, &send(&daemon, &folder), json!({"script": "slow.py", "args": ["0"]}));
    eventually("it runs", || (state(&daemon, &id) == "running").then_some(()));
    daemon.kill();
    crate::support::jails::remove_all(daemon.home());
    if ground().is_none() {
        for container in daemon.containers() {
            Command::new("docker").args(["rm", "-f", &container]).output().expect("docker");
        }
    }
    daemon.restart();
    let end = wait(&daemon, &id);
    assert_eq!((&end["end"]["verdict"], &end["end"]["exit_code"]), (&json!("error"), &json!(125)), "{end}");
    assert_nothing_left(&daemon, &[]);
    invariants::assert_hold(&daemon, &[ROOT], &canary);
}

#[test]
fn jobs_wait_until_their_user_has_room() {
    if !engine() {
        return;
    }
    let config = "[sandbox]\ncpus = 0.5\n[quota]\ncpus = 1\n[jobs]\nslots = 2\n";
    let daemon = Daemon::with_config(config);
    for name in ["a", "b"] {
        daemon.session(name, json!({"image": "belljar/base"}));
    }
    let folder = scripts(&[("ok.py", "print('ran')")]);
    let ids = [(); 3].map(|()| submit(&daemon, &send(&daemon, &folder), json!({"script": "ok.py"})));
    // A look later than the daemon's next.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    for id in &ids {
        let job = daemon.http("GET", &format!("/v1/jobs/{id}"), b"").expect_status(200);
        assert_eq!(job["state"], "queued", "{job}");
    }
    daemon.cli(["rm", "a"]).ok();
    for id in &ids {
        let end = wait(&daemon, id)["end"].clone();
        assert_eq!(end["verdict"], "passed", "{end}");
    }
    // What could never be had is not waited for.
    let id = submit(&daemon, &send(&daemon, &folder), json!({"script": "ok.py", "cpus": 1.5}));
    let end = wait(&daemon, &id)["end"].clone();
    assert_eq!(end["exit_code"], 125, "{end}");
    assert!(end["reason"].as_str().is_some_and(|reason| reason.contains("quota of CPUs")), "{end}");
}

#[test]
pub fn a_cancelled_run_leaves_nothing() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[jobs]\nslots = 2\n");
    let folder = scripts(&[("hang.py", "print('on', flush=True)\nwhile True: pass")]);
    let arguments = job_run(&[path(&folder), "--matrix", "n=1,2,3,4,5"]);
    let child = daemon
        .command(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("belljar runs");
    eventually("two run and three wait", || {
        let list = daemon.http("GET", "/v1/jobs", b"").expect_status(200);
        let jobs = list["jobs"].as_array().expect("a list").clone();
        let running = jobs.iter().filter(|job| job["state"] == "running").count();
        (jobs.len() == 5 && running == 2).then_some(())
    });
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let list = daemon.http("GET", "/v1/jobs", b"").expect_status(200);
    for job in list["jobs"].as_array().expect("a list") {
        assert_eq!((&job["state"], &job["end"]["verdict"]), (&json!("ended"), &json!("cancelled")), "{job}");
        // How long it ran is told, if it did.
        let ran = job["end"]["duration_ms"].as_f64().expect("a time") > 0.0;
        assert_eq!(ran, !job["started_at"].is_null(), "{job}");
    }
    assert_eq!(
        daemon.containers(),
        Vec::<String>::new(),
        "the end of a cancelled job is told when it is gone"
    );
    assert_nothing_left(&daemon, &[]);
    // The first that fails ends the others.
    let folder = scripts(&[
        ("a.py", "import sys; sys.exit(1)"),
        ("b.py", "while True: pass"),
        ("c.py", "while True: pass"),
    ]);
    let ran = daemon.cli(job_run(&[path(&folder), "--fail-fast", "--json"])).exits(1);
    let told = lines(&ran.stdout);
    let summary = told.last().expect("a summary");
    assert_eq!((&summary["failed"], &summary["passed"]), (&json!(1), &json!(0)), "{summary}");
    assert_nothing_left(&daemon, &[]);
}

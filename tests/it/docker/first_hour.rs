//! What somebody meets in the first hour with the command line. It is the command line's alone, whatever holds the sandbox.

use serde_json::Value;
use std::process::Command;

use super::jobs::scripts;
use crate::support::{Daemon, binary, engine};

#[test]
fn names_of_sessions_and_jobs_complete_in_the_shell() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.cli(["new", "laboratory"]).ok();
    let folder = scripts(&[("check.py", "print(1)")]);
    let script = folder.path().join("check.py");
    daemon.cli(["job", "run", script.to_str().expect("UTF-8")]).ok();
    let completed = |words: &str, last: usize| {
        let binary = binary().display();
        let shell = format!(
            "source <({binary} completions bash); COMP_WORDS=({words}); COMP_CWORD={last}; _belljar {binary}; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let asked = daemon.command([""; 0]);
        let mut bash = Command::new("bash");
        bash.args(["-c", &shell]).envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
        String::from_utf8_lossy(&bash.output().expect("bash").stdout).trim().to_owned()
    };
    assert_eq!(completed("belljar show la", 2), "laboratory");
    assert_eq!(completed("belljar exec -s ''", 3), "laboratory");
    assert_eq!(completed("belljar job show ch", 3), "check.py");
    assert!(completed("belljar sh", 1).contains("show"));
    // Without a daemon there are no names, and none is started for them.
    drop(daemon);
}

#[test]
fn a_job_is_found_by_its_name_and_says_its_id() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let folder = scripts(&[("check.py", "import sys; open('made.txt', 'w').write(sys.argv[1])")]);
    let script = folder.path().join("check.py");
    let script = script.to_str().expect("UTF-8");
    let run = |more: &[&str]| daemon.cli(["job", "run", script].iter().chain(more));
    let first = run(&["--artifacts", "*.txt", "--artifacts", "nope/*", "--", "{word}"]).ok();
    assert!(
        first.stderr.contains("warning: check.py: no file matches `nope/*` of `--artifacts`"),
        "{first:?}"
    );
    assert!(!first.stderr.contains("`*.txt`"), "{first:?}");
    let id_of = |stderr: &str| {
        let line = stderr.lines().find_map(|line| line.strip_prefix("job ")).expect("an id");
        line.to_owned()
    };
    let id = id_of(&first.stderr);
    let show = |key: &str| -> Value {
        serde_json::from_str(&daemon.cli(["job", "show", key, "--json"]).ok().stdout).expect("JSON")
    };
    assert_eq!(
        (&show(&id)["name"], show("check.py")["id"].as_str()),
        (&"check.py".into(), Some(id.as_str()))
    );
    assert_eq!(show("check.py")["args"][0], "{word}");
    // The newest is meant, and where that could be a mistake, the id has to be given.
    let second = id_of(&run(&["--", "2"]).ok().stderr);
    assert_eq!(show("check.py")["id"], second.as_str());
    let several = daemon.cli(["job", "rm", "check.py"]).exits(64);
    assert!(several.stderr.contains(&id) && several.stderr.contains(&second), "{several:?}");
    daemon.cli(["job", "rm", &id]).ok();
    daemon.cli(["job", "rm", "check.py"]).ok();
    let gone = daemon.cli(["job", "show", "check.py"]).exits(125);
    assert!(gone.stderr.contains("there is no job `check.py`"), "{gone:?}");
    // Several jobs are told with their ids, and a placeholder that nothing stands for is a mistake.
    let both = run(&["--matrix", "n=1,2", "--", "{n}"]).ok();
    assert_eq!(both.stderr.matches(" s, job ").count(), 2, "{both:?}");
    let wrong = run(&["--matrix", "n=1,2", "--", "{m}"]).exits(64);
    assert!(wrong.stderr.contains("`{m}` in an argument is no name of the matrix"), "{wrong:?}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let gone = daemon.cli(["rm", "nope"]).exits(125);
    assert_eq!(gone.stderr, "error: there is no session `nope`\n");
    let wrong = daemon.cli(["run", "script.py", "a", "--c"]).exits(64);
    assert_eq!(
        wrong.stderr,
        "error: `--c` is no flag of `run`; arguments of the script that begin with a hyphen follow `--`: \
         `belljar run script.py a -- --c`\n"
    );
}

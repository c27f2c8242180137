//! What a new user meets in the first hour with the command line. These tests are about the command line alone, whatever
//! holds the sandbox.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

use super::asking::{conversation, runs, says, scripted, write_script};
use super::helpers::text;
use super::jobs::scripts;
use super::many_users::{ALICE, USERS};
use super::repl::Step::{Keys, Shows};
use super::repl::play;
use crate::support::{Daemon, Journal, User, binary, engine, eventually};

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
            "source <({binary} completions bash); COMP_WORDS=({binary} {words}); COMP_CWORD={last}; \
             _belljar {binary} \"${{COMP_WORDS[{last}]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let asked = daemon.command([""; 0]);
        let mut bash = Command::new("bash");
        bash.args(["-c", &shell]).envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
        String::from_utf8_lossy(&bash.output().expect("bash").stdout).trim().to_owned()
    };
    assert_eq!(completed("show la", 2), "laboratory");
    assert_eq!(completed("exec -s ''", 3), "laboratory");
    assert_eq!(completed("job show ch", 3), "check.py");
    assert!(completed("sh", 1).contains("show"));
    // Without a daemon there are no names, and none is started for them.
    drop(daemon);
}

#[test]
fn a_job_is_found_by_its_name_and_says_its_id() {
    const CODE: &str = "import sys\nopen('made.txt', 'w').write(sys.argv[1])\n\
                        sys.stdout.write('half a ')\nsys.stdout.flush()\nprint('line')";
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let folder = scripts(&[("check.py", CODE)]);
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
    // Each line of their output says whose it is.
    let is_told = |line: &str| line.starts_with("[check.py") && line.ends_with("] half a line");
    assert!(both.stdout.lines().count() == 2 && both.stdout.lines().all(is_told), "{both:?}");
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

const ASK: [&str; 3] = ["ask", "--image", "belljar/base"];

fn ask(daemon: &Daemon, more: &[&str]) -> crate::support::Ran {
    daemon.cli(ASK.iter().chain(more)).ok()
}

#[test]
fn an_ask_that_only_talks_costs_no_sandbox() {
    let outer = "print(ask('inner'))";
    let script = [
        conversation("talk", &[says("Hello.")]),
        conversation("work", &[runs("print(6 * 7)"), says("42")]),
        conversation("outer", &[runs(outer), says("done")]),
        conversation("inner", &[says("inside")]),
    ];
    let Some(daemon) = scripted("", &script.concat()) else { return };
    let started = || Journal::of(&daemon).count("sandbox_starting");
    let before = started();
    assert_eq!(ask(&daemon, &["talk"]).stdout, "Hello.\n");
    assert_eq!(started(), before, "a sandbox was started for words");
    assert_eq!(ask(&daemon, &["work"]).stdout, "42\n");
    assert_eq!(started(), before + 1);
    // So it is with asks within asks.
    let ran = ask(&daemon, &["outer"]);
    assert!(ran.stderr.contains("inside"), "{ran:?}");
    assert_eq!(started(), before + 2);
    // A session that waits for its first cell is there in the next daemon, and has no place in the quotas of sandboxes.
    let made =
        daemon.http("POST", "/v1/sessions", br#"{"name": "later", "image": "belljar/base", "lazy": true}"#);
    let made = made.expect_status(201);
    assert_eq!(text(&made, "state"), "asleep");
    // Where it is to run is written down before it runs.
    let request = Journal::of(&daemon).request_of("later");
    assert_eq!((&request["backend"], &request["image"]), (&made["backend"], &"belljar/base".into()));
    let mut daemon = daemon;
    daemon.kill();
    daemon.restart();
    let ran = daemon.run("later", "6 * 7");
    assert_eq!(text(&ran, "/result/repr"), "42");
    let wrong = daemon.cli(["ask", "--image", "belljar/nope", "talk"]);
    assert!(wrong.code != Some(0) && wrong.stderr.contains("belljar/nope"), "{wrong:?}");
    daemon.assert_sound();
}

#[test]
fn what_an_ask_without_a_session_made_is_handed_over() {
    let write = "import pathlib; pathlib.Path('sums').mkdir(); pathlib.Path('sums/a.txt').write_text('42')";
    let script = [
        conversation("make", &[runs(write), says("made")]),
        conversation("look", &[runs("1"), says("looked")]),
    ];
    let Some(mut daemon) = scripted("[sessions]\nidle = \"8s\"\n", &script.concat()) else { return };
    daemon.set_environment(&[("BELLJAR_PERIODS", "unheld:1")]);
    daemon.kill();
    daemon.restart();
    write_script(&daemon, &script.concat());
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let out = out.to_str().expect("UTF-8");
    let sessions = || Journal::of(&daemon).living_sessions().len();
    let before = sessions();
    // Into a folder.
    let ran = ask(&daemon, &["--out", out, "make"]);
    assert_eq!(ran.stdout, "made\n");
    assert!(ran.stderr.contains(&format!("files: {out}\n")), "{ran:?}");
    assert_eq!(std::fs::read_to_string(format!("{out}/sums/a.txt")).expect("a file"), "42");
    assert_eq!(sessions(), before);
    // Nothing was made, so nothing stays.
    ask(&daemon, &["look"]);
    assert_eq!(sessions(), before);
    // The files stay in a session, which is named, survives a restart of the daemon, and goes when it is not used.
    let ran = ask(&daemon, &["make"]);
    assert!(ran.stderr.contains("file: /workspace/sums/a.txt (new, 2 B)"), "{ran:?}");
    let said = ran.stderr.split_once("its files stay in the session `").expect("it says where").1;
    let name = said.split_once('`').expect("a name").0.to_owned();
    assert!(said.contains("was not used for 8s"), "{said}");
    daemon.kill();
    daemon.restart();
    std::thread::sleep(std::time::Duration::from_secs(3));
    daemon.cli(["cp", &format!("{name}:/workspace/sums/a.txt"), "-"]).ok();
    eventually("the session goes", || {
        let gone = daemon.http("GET", &format!("/v1/sessions/{name}"), b"").status == 404;
        gone.then_some(())
    });
    let wrong = daemon.cli(["ask", "-s", "s", "--out", out, "make"]).exits(64);
    assert!(wrong.stderr.contains("belljar cp s: DIR"), "{wrong:?}");
    daemon.assert_sound();
}

/// Runs a command as a user who sees the daemon where that of the machine is, and whose environment names none.
fn on_the_machine(daemon: &Daemon, user: User, home: &Path, line: &str) -> String {
    // The binary has a path that every user may go, which the folder that it was built in need not be.
    let script = "mount -t tmpfs none /run && mkdir /run/belljar && mount --bind \"$SERVED\" /run/belljar && \
                  touch /run/command && mount --bind \"$BUILT\" /run/command && \
                  exec setpriv --reuid=$USER_ID --regid=$USER_ID $GROUPS_WORD sh -c \"$LINE\"";
    let groups = user.group.map_or_else(|| "--clear-groups".to_owned(), |group| format!("--groups={group}"));
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", home)
        .env("SERVED", daemon.home())
        .env("USER_ID", user.uid.to_string())
        .env("GROUPS_WORD", groups)
        .env("BUILT", binary())
        .env("BELLJAR", "/run/command")
        .env("LINE", line)
        .output()
        .expect("unshare");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_daemon_of_the_machine_is_found_by_whoever_may_use_it() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !engine() {
        return;
    }
    let daemon = Daemon::for_all(USERS.0, "");
    let home = tempfile::tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    chown(home.path(), Some(ALICE.uid), Some(ALICE.uid)).expect("chown");
    let line = "$BELLJAR new mine --image belljar/base; $BELLJAR doctor";
    let said = on_the_machine(&daemon, ALICE, home.path(), line);
    assert!(said.contains("mine\n") && !said.contains("started"), "{said}");
    // What the daemon can do needs no rights of its users.
    assert!(!said.contains("usermod") && !said.contains("chmod g-rwx"), "{said}");
    assert!(said.contains("which the daemon uses"), "{said}");
    assert!(daemon.cli(["ps", "--all"]).ok().stdout.contains("mine"));
    assert!(!home.path().join(".local").exists(), "a home of another daemon was made");
    // Who may not is served by a daemon of its own, which says so, and is told what would help.
    let outside = User { group: None, ..ALICE };
    let said =
        on_the_machine(&daemon, outside, home.path(), "$BELLJAR ps; $BELLJAR doctor; $BELLJAR daemon stop");
    let expected = format!(
        "for members of the group `{}`: sudo usermod -aG {} $USER, then log in again\n",
        USERS.0, USERS.0
    );
    assert!(said.contains("started a daemon of your own (pid ") && said.contains(&expected), "{said}");
    assert!(!said.contains("usermod -aG docker") && said.contains("the daemon has stopped"), "{said}");
}

#[test]
fn the_memory_of_a_session_is_one_number_and_the_reserve_is_named() {
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[sandbox]\ncheckpoint_budget = \"256MiB\"\n");
    daemon.cli(["new", "lab", "--image", "belljar/base", "--memory", "512MiB"]).ok();
    let line = |arguments: &[&str], beginning: &str| {
        let said = daemon.cli(arguments).ok().stdout;
        let found = said.lines().find(|line| line.trim_start().starts_with(beginning)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("no {beginning} in {said}"))
    };
    for command in ["show", "receipt"] {
        assert!(
            line(&[command, "lab"], "memory").ends_with("512 MiB, and 256 MiB for checkpoints"),
            "{command}"
        );
    }
    assert!(line(&["top", "--once"], "lab").contains("512 MiB + 256 MiB"));
    assert!(line(&["quota"], "memory with checkpoints").contains("lab 768 MiB"));
    daemon
        .cli(["new", "plain", "--image", "belljar/base", "--memory", "512MiB", "--checkpointing", "off"])
        .ok();
    assert!(line(&["receipt", "plain"], "memory").ends_with(" 512 MiB"));
}

#[test]
fn top_goes_on_until_q_is_typed() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    daemon.cli(["new", "lab", "--image", "belljar/base"]).ok();
    let heads = Shows("^NAME +OWNER +STATE");
    let shown = play(
        &daemon,
        &["top"],
        &[],
        &[heads, Shows("^lab "), Keys("x"), Shows("^NAME "), Shows("^lab "), Keys("q")],
    );
    assert!(!shown.contains("error: "), "{shown}");
}

#[test]
fn a_daemon_whose_models_have_no_tools_says_so_when_it_starts() {
    const SAID: &str = "`agent.tools` is empty: models have no tools, and cannot run Python";
    if !engine() {
        return;
    }
    let daemon = Daemon::with_config("[agent]\ntools = []\n");
    eventually("it is told", || daemon.log().contains(SAID).then_some(()));
    assert!(
        daemon.log().lines().any(|line| line.contains(SAID) && line.contains("WARN")),
        "{}",
        daemon.log()
    );
    // Who has not said anything has tools.
    assert!(!Daemon::start().log().contains(SAID));
    daemon.assert_sound();
}

#[test]
fn a_configuration_that_the_daemon_did_not_read_is_told() {
    if !engine() {
        return;
    }
    let daemon = Daemon::start();
    let other = daemon.home().join("other.toml");
    std::fs::write(&other, "").expect("written");
    let other = other.to_str().expect("UTF-8");
    let ran = daemon.cli(["--config", other, "ps"]).ok();
    let expected = format!("`{}`, and `{other}` is not read", daemon.home().join("config.toml").display());
    assert_eq!(ran.stderr.matches(&expected).count(), 1, "{ran:?}");
    let by_variable = daemon.command(["ps"]).env("BELLJAR_CONFIG", other).output().expect("belljar runs");
    assert!(String::from_utf8_lossy(&by_variable.stderr).contains(&expected), "{by_variable:?}");
    assert!(!daemon.cli(["ps"]).ok().stderr.contains("warning"));
}

#[test]
fn a_daemon_shows_its_configuration_and_reads_it_again() {
    let Some(daemon) = scripted("", &conversation("hello", &[says("Hi.")])) else { return };
    let file = daemon.home().join("config.toml");
    let begun = std::fs::read_to_string(&file).expect("a file");
    let write = |more: &str| std::fs::write(&file, format!("{begun}{more}")).expect("written");
    let value = |more: &[&str], key: &str| {
        let said = daemon.cli(["config", "show", "--json"].iter().chain(more)).ok().stdout;
        serde_json::from_str::<Value>(&said).expect("JSON")[key]["value"].clone()
    };
    let shown = daemon.cli(["config", "show"]).ok();
    let whose = format!("the configuration of the daemon that runs: {}", file.display());
    assert!(shown.stderr.contains(&whose), "{shown:?}");
    assert_eq!(daemon.cli(["config", "path"]).ok().stdout.trim(), file.to_str().expect("UTF-8"));
    assert!(daemon.cli(["daemon", "reload"]).ok().stderr.contains("nothing has changed in"));

    let model = |name: &str| format!("[model.{name}]\nprovider = \"script\"\nfile = \"script.toml\"\n");
    let more = format!("{}[agent]\nmodel = \"other\"\n[jobs]\nkeep = \"9h\"\n", model("other"));
    write(&more);
    assert_eq!((value(&[], "agent.model"), value(&["--file"], "agent.model")), (Value::Null, "other".into()));
    let reloaded = daemon.cli(["daemon", "reload"]).ok().stderr;
    assert!(reloaded.contains("in use from now on: agent.model, model.other"), "{reloaded}");
    assert!(reloaded.contains("a restart of the daemon is needed for: jobs.keep"), "{reloaded}");
    assert_eq!(value(&[], "agent.model"), "other");
    assert!(value(&[], "jobs.keep") != "9h" && value(&["--file"], "jobs.keep") == "9h");
    assert!(ask(&daemon, &["hello"]).stderr.contains("model `other`"));

    // What is wrong changes nothing, and a signal does what the command does.
    write("[agent]\nmodel = 3\n");
    let wrong = daemon.cli(["daemon", "reload"]).exits(125).stderr;
    assert!(wrong.contains("`agent.model`") && wrong.contains("goes on with what it had"), "{wrong}");
    write("[agent]\ntools = [\"pyhton\"]\n");
    let wrong = daemon.cli(["daemon", "reload"]).exits(125).stderr;
    assert!(wrong.contains("pyhton") && wrong.contains("goes on with what it had"), "{wrong}");
    assert_eq!(value(&[], "agent.model"), "other");
    write(&format!("{more}{}", model("third")));
    daemon.signal("HUP");
    eventually("the third model is there", || {
        daemon.cli(["models"]).ok().stdout.contains("third").then_some(())
    });
    assert_eq!(ask(&daemon, &["--model", "third", "hello"]).stdout, "Hi.\n");
    daemon.assert_sound();
}

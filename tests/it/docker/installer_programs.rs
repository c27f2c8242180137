//! `pip` and `uv` as programs that code and commands start: they have the host install packages.

use serde_json::{Value, json};

use super::asking::{
    answer, begin as begin_ask, conversation, decide_next, end_of, events_of, runs, says, told,
    wait_for_state, write_script,
};
use super::helpers::{S, post, text, value, workspace};
use crate::support::{Daemon, PackageIndex, engine, eventually};

/// Runs a program and shows its exit code and what it said.
const RUN: &str = "
import os, subprocess, sys
def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
";

fn line(daemon: &Daemon, line: &str) -> Value {
    post(daemon, "commands?wait=true", &json!({ "line": line })).expect_status(200)
}

#[test]
pub fn programs_that_code_starts_install_as_its_cells_do() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("deny = [\"bell-denied\"]\n");
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.run(S, RUN);
    let told = value(&daemon, "run('pip', 'install', 'bell-hello')");
    assert!(
        told.starts_with("(0, ") && told.contains("Successfully installed bell-dep-1.0 bell-hello-2.0"),
        "{told}"
    );
    assert_eq!(value(&daemon, "import bell_hello; bell_hello.VERSION"), "'2.0'");
    assert_eq!(
        value(&daemon, "os.system('pip3 install -q bell-set-id'), __import__('bell_set_id').__name__"),
        "(0, 'bell_set_id')"
    );
    // A version that does not fit, a name that is not there or denied, and an option: each ends as `pip` does.
    for (words, code, says) in [
        ("sys.executable, '-m', 'pip', 'install', 'bell-old'", 1, "bell-hello"),
        ("'uv', 'pip', 'install', '--system', 'bell-nowhere'", 1, "bell-nowhere"),
        ("'pip', 'install', 'bell-denied'", 1, "may not be installed here"),
        ("'pip', 'install', '--index-url', 'https://x', 'bell-dep'", 2, "has no option `--index-url` here"),
        ("'pip', 'install', 'https://localhost/x.whl'", 1, "it is a URL"),
        ("'pip', 'uninstall', '-y', 'bell-dep'", 2, "`pip uninstall -y` is not there in this sandbox"),
        ("'uv', 'sync'", 2, "`uv pip install|list|freeze|show`"),
    ] {
        let told = value(&daemon, &format!("run({words})"));
        assert!(told.starts_with(&format!("({code}, ")) && told.contains(says), "{words}: {told}");
    }
    // A file of requirements, and a module of Python.
    daemon.run(S, "open('needs.txt', 'w').write('# what it needs\\nbell-dep>=1  # a comment\\n\\n')");
    let told = value(&daemon, "run(sys.executable, '-m', 'pip', 'install', '-r', 'needs.txt')");
    assert!(told.starts_with("(0, "), "{told}");
    // What is there.
    assert!(value(&daemon, "run('pip', 'freeze')[1]").contains("bell-hello==2.0"));
    assert!(value(&daemon, "run('uv', 'pip', 'list')[1]").contains("bell-hello"));
    assert!(
        value(&daemon, "run('pip', 'list', '--format=json')[1]")
            .contains("{\"name\": \"bell-hello\", \"version\": \"2.0\"}")
    );
    let shown = value(&daemon, "run('pip', 'show', 'bell_hello')[1]");
    assert!(
        shown.contains("Name: bell-hello\\nVersion: 2.0\\n") && shown.contains("Requires: bell-dep\\n"),
        "{shown}"
    );
    assert!(value(&daemon, "run('pip', '--version')").starts_with("(0, 'pip "));
    daemon.assert_sound();
}

#[test]
pub fn commands_install_beside_the_cells() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    let told = line(&daemon, "pip install bell-hello && python3 -c 'import bell_hello'");
    assert_eq!((text(&told, "status"), text(&told, "stderr")), ("success", ""), "{told:#}");
    let called = events_of(&daemon, "tool_called");
    assert_eq!(called[0]["cell"], told["cell"], "the request is the command's");
    assert_eq!(value(&daemon, "import bell_hello; bell_hello.VERSION"), "'2.0'");
    // Code that sends nonsense, or nothing, keeps nobody else from installing.
    let nonsense = "
import socket, threading
def connect():
    s = socket.socket(socket.AF_UNIX); s.connect('\\0belljar-requests'); return s
silent, garbage, gone = connect(), connect(), connect()
garbage.sendall(b'garbage\\n'); gone.sendall(b'{}'); gone.close()
";
    daemon.run(S, nonsense);
    let told = line(&daemon, "pip install bell-set-id");
    assert_eq!(text(&told, "status"), "success", "{told:#}");
    daemon.assert_sound();
    // A job begins with what it is given, and installs nothing itself.
    let script = daemon.home().join("script.py");
    std::fs::write(
        &script,
        "import subprocess, sys\nsys.exit(subprocess.run(['pip', 'install', 'bell-dep']).returncode)\n",
    )
    .unwrap();
    let ran = daemon.cli(["job", "run", script.to_str().unwrap()]).exits(1);
    assert!(ran.stderr.contains("may not be used here"), "{ran:?}");
}

/// A daemon with a session whose model runs `pip` as a program, and leaves one behind that does it later.
fn with_model(index: &PackageIndex, policy: &str) -> Daemon {
    let model = "[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n";
    let daemon = index.daemon(&format!("by_models = \"{policy}\"\n{model}"));
    daemon.session(S, json!({"image": "belljar/base"}));
    let cell = format!(
        "{RUN}\nprint(*run('pip', 'install', 'bell-hello'))\n\
         subprocess.Popen('sleep 2; pip install bell-dep > left 2>&1; echo $? > code', shell=True)"
    );
    write_script(&daemon, &conversation("go", &[runs(&cell), says("done")]));
    daemon
}

/// What the process said that the model's code has left behind. No cell runs meanwhile.
fn left_behind(daemon: &Daemon) -> String {
    let folder = workspace(daemon);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    eventually("it has ended", || {
        (!read("code").is_empty()).then(|| format!("{}{}", read("code"), read("left")))
    })
}

#[test]
fn programs_of_a_models_code_install_as_the_policy_says() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let asked = json!({"text": "go", "fresh": true});

    let daemon = with_model(&index, "auto");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    assert!(
        told(&daemon)[0].contains("Successfully installed bell-dep-1.0 bell-hello-2.0"),
        "{:?}",
        told(&daemon)
    );

    let daemon = with_model(&index, "never");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    assert!(told(&daemon)[0].contains("`install_packages` may not be used here"), "{:?}", told(&daemon));
    // Neither may what its code has left behind.
    let left = left_behind(&daemon);
    assert!(left.starts_with("1\n") && left.contains("it may not use `install_packages`"), "{left}");
    assert!(events_of(&daemon, "packages_installed").is_empty());

    let daemon = with_model(&index, "ask");
    let number = begin_ask(&daemon, asked);
    wait_for_state(&daemon, number, "waiting");
    assert!(
        events_of(&daemon, "packages_installed").is_empty(),
        "nothing is installed before a person decides"
    );
    decide_next(&daemon, json!({"reject": {"reason": "not now"}}));
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert!(told(&daemon)[0].contains("ERROR: not now"), "{:?}", told(&daemon));
    let left = left_behind(&daemon);
    assert!(left.starts_with("1\n"), "nobody can be asked for it: {left}");
    assert!(events_of(&daemon, "packages_installed").is_empty());
}

#[test]
fn the_tag_of_dependencies_installs_as_the_policy_says() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let asked = json!({"text": "go", "fresh": true, "dialect": "xml_tags"});
    let with_policy = |policy: &str| {
        let model = "[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n";
        let daemon = index.daemon(&format!("by_models = \"{policy}\"\n{model}"));
        daemon.session(S, json!({"image": "belljar/base"}));
        let cell = "<pip-dependencies-to-install>bell-hello>=1, <2, json</pip-dependencies-to-install>\
                    <execution-code>import bell_hello\nprint('version', bell_hello.VERSION)</execution-code>";
        write_script(&daemon, &conversation("go", &[says(cell), says("done")]));
        daemon
    };

    let daemon = with_policy("auto");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    assert!(told(&daemon)[0].contains("version 1.0"), "{:?}", told(&daemon));

    let daemon = with_policy("never");
    assert_eq!(answer(&daemon, asked.clone()), "done");
    assert!(told(&daemon)[0].contains("cannot be installed here: bell-hello"), "{:?}", told(&daemon));

    let daemon = with_policy("ask");
    let number = begin_ask(&daemon, asked);
    decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert!(told(&daemon)[0].contains("version 1.0"), "{:?}", told(&daemon));
}

/// A reset lifts the rules of the code before it, so that nothing that code has asked for may be done after it.
#[test]
pub fn requests_of_before_a_reset_are_not_served_after_it() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.run(
        S,
        "import json, socket\ndef connect(sent):\n    client = socket.socket(socket.AF_UNIX)\n    \
         client.connect('\\0belljar-requests')\n    client.sendall(sent)\n    return client\n\
         request = {'name': 'install_packages', 'arguments': {'packages': ['bell-dep']}}\n\
         clients = [connect(b'{')] + [connect(json.dumps(request).encode() + b'\\n') for _ in range(4)]",
    );
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(value(&daemon, "import time; time.sleep(1); 1 + 1"), "2");
    let calls: Vec<Value> = events_of(&daemon, "tool_called");
    assert!(calls.is_empty(), "{calls:#?}");
    // Programs that are started afterwards are served.
    daemon.run(S, RUN);
    assert!(value(&daemon, "run('pip', 'install', 'bell-dep')").starts_with("(0, "));
    daemon.assert_sound();
}

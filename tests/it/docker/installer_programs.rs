//! `pip` and `uv` as programs that code and commands start: they have the host install packages.

use serde_json::{Value, json};

use super::asking::{
    answer, approvals, begin as begin_ask, conversation, decide_next, end_of, events_of, runs, says, told,
    view, wait_for_state, write_script,
};
use super::commands::background;
use super::helpers::{S, outcome, post, text, value, workspace};
use super::packages::{drafts, install};
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
        // Nothing says that what is refused is being installed.
        (
            "'pip', 'install', 'bell-dep', 'https://localhost/x.whl'",
            1,
            "'ERROR: `https://localhost/x.whl` cannot be installed: it is a URL",
        ),
        ("'pip', 'uninstall', '-y', 'bell-dep'", 2, "`pip uninstall -y` is not there in this sandbox"),
        ("'uv', 'sync'", 2, "`uv pip install|list|freeze|show`"),
    ] {
        let told = value(&daemon, &format!("run({words})"));
        assert!(told.starts_with(&format!("({code}, ")) && told.contains(says), "{words}: {told}");
        assert_eq!(
            told.contains("Installing"),
            !told.contains("it is a URL") && code == 1,
            "{words}: {told}"
        );
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
    // Code that sends nonsense, or nothing, keeps no other code from installing.
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
    // One that was served before the reset is none of those that are meant.
    let reset = events_of(&daemon, "reset_done")[0]["seq"].as_u64();
    let mut calls: Vec<Value> = events_of(&daemon, "tool_called");
    calls.retain(|call| call["seq"].as_u64() > reset);
    assert!(calls.is_empty(), "{calls:#?}");
    // Programs that are started afterwards are served.
    daemon.run(S, RUN);
    assert!(value(&daemon, "run('pip', 'install', 'bell-dep')").starts_with("(0, "));
    daemon.assert_sound();
}

/// Has packages installed when it is shown: by itself, by a program that lowers the tag it has from the guardian, and by
/// one that leaves its parent and its session.
const SHOWN: &str = r#"
import os, subprocess, sys, time
CLIENT = """
import json, resource, socket, sys
if sys.argv[1:] == ['lower']: resource.setrlimit(resource.RLIMIT_RTTIME, (9, 9))
client = socket.socket(socket.AF_UNIX)
client.connect(chr(0) + 'belljar-requests')
request = {'name': 'install_packages', 'arguments': {'packages': ['bell-dep']}}
client.sendall(json.dumps(request).encode() + b'\\n')
answer = client.recv(10_000).decode()
"""
def program(*words):
    client = CLIENT + "print(answer, flush=True)"
    return [*words, sys.executable, '-S', '-E', '-c', client]
class Shown:
    def __repr__(self):
        scope = {}
        exec(CLIENT, scope)
        said = [scope['answer'], subprocess.run(program() + ['lower'], capture_output=True, text=True).stdout]
        with open('apart', 'w') as apart: subprocess.run(program('setsid', '--fork'), stdout=apart)
        while not open('apart').read(): time.sleep(0.02)
        open('draft', 'w').write(repr([*said, open('apart').read()])); os.rename('draft', 'said')
        return 'shown'
shown = Shown()
"#;

/// Who looks at variables has asked for no call of a tool, whatever the code does that shows them.
#[test]
pub fn what_shows_variables_has_nothing_installed() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.run(S, SHOWN);
    let said = workspace(&daemon).join("said");
    // A view that takes too long is ended, so a later one may have to do it.
    let said = eventually("the programs have ended", || {
        daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
        std::fs::read_to_string(&said).ok()
    });
    assert_eq!(said.matches("only a cell can call tools").count(), 3, "{said}");
    assert!(events_of(&daemon, "tool_called").is_empty(), "{said}");
    // Programs of cells are served as before.
    daemon.run(S, RUN);
    assert!(value(&daemon, "run('pip', 'install', 'bell-dep')").starts_with("(0, "));
    daemon.assert_sound();
}

/// Connects as a program does, and stops the process of the guardian that talks to it.
const HOLD: &str = "
import glob, json, os, signal, socket, time
def requests():
    found = []
    for path in glob.glob('/proc/[0-9]*/comm'):
        try:
            if open(path).read() == 'belljar-request\\n': found.append(int(path.split('/')[2]))
        except OSError: pass
    return found
def connect():
    client = socket.socket(socket.AF_UNIX); client.connect('\\0belljar-requests'); return client
def hold():
    known, client = set(requests()), connect()
    while not (new := set(requests()) - known): time.sleep(0.01)
    for pid in new: os.kill(pid, signal.SIGSTOP)
    return client
";

/// Code can stop what talks to its programs, which it pays for with its own places, and not for ever.
#[test]
pub fn programs_that_hold_their_requests_keep_nobody_from_installing() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    daemon.run(S, HOLD);
    assert_eq!(value(&daemon, "held = [hold()]; len(requests())"), "1");
    let told = line(&daemon, "pip install bell-dep");
    assert_eq!(text(&told, "status"), "success", "others are served meanwhile: {told:#}");
    // Even if all that are served at a time are held, and who would tell the next one so, too, it is not for long.
    assert_eq!(value(&daemon, "held += [hold() for _ in range(16)]; len(requests()) >= 16"), "True");
    let told = line(&daemon, "for n in $(seq 20); do pip install bell-set-id && exit; sleep 1; done; exit 1");
    assert_eq!(text(&told, "status"), "success", "{told:#}");
    daemon.assert_sound();
}

#[test]
pub fn one_program_more_than_are_served_at_a_time_is_told() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    index.slow(true);
    let many = "import json, socket\nrequest = {'name': 'install_packages', 'arguments': {'packages': ['bell-set-id']}}\n\
                clients = [socket.socket(socket.AF_UNIX) for _ in range(16)]\n\
                for client in clients:\n    client.connect('\\0belljar-requests')\n    \
                client.sendall(json.dumps(request).encode() + b'\\n')\n\
                for client in clients: assert b'bell-set-id 1.0' in client.recv(10_000)\n";
    daemon.http("PUT", "/v1/sessions/s/files/many.py", many.as_bytes()).expect_status(200);
    let served = background(&daemon, "exec python3 many.py");
    eventually("all are served", || (events_of(&daemon, "tool_called").len() == 16).then_some(()));
    let told = line(&daemon, "pip install bell-dep");
    assert!(text(&told, "stderr").contains("16 requests of this sandbox have no answer yet"), "{told:#}");
    index.slow(false);
    let ended = outcome(&daemon, served);
    assert_eq!(text(&ended, "status"), "success", "{ended:#}");
    assert_eq!(text(&line(&daemon, "pip install bell-dep"), "status"), "success");
    daemon.assert_sound();
}

/// A request whose program has ended is neither downloaded nor asked for.
#[test]
pub fn a_request_ends_with_its_program() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = index.daemon("");
    daemon.session(S, json!({"image": "belljar/base"}));
    install(&daemon, S, &["bell-dep"], 200);
    index.slow(true);
    daemon.run(S, "import subprocess\npip = subprocess.Popen(['pip', 'install', 'bell-set-id'])");
    eventually("the installer fetches", || {
        index.requests().iter().any(|path| path.starts_with("/files/bell_set")).then_some(())
    });
    assert_eq!(drafts(&daemon), 1);
    daemon.run(S, "pip.kill(); pip.wait()");
    eventually("the call is answered", || {
        let answered = events_of(&daemon, "tool_answered");
        answered.iter().any(|event| event.to_string().contains("does not wait for it any more")).then_some(())
    });
    eventually("the installer is ended, and its room given back", || (drafts(&daemon) == 0).then_some(()));
    index.slow(false);
    install(&daemon, S, &["bell-set-id"], 200);
    daemon.assert_sound();
}

#[test]
fn a_question_ends_with_its_program() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let model = "[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n";
    let daemon = index.daemon(&format!("by_models = \"ask\"\n{model}"));
    daemon.session(S, json!({"image": "belljar/base"}));
    let cell = "import os, subprocess, time\npip = subprocess.Popen(['pip', 'install', 'bell-dep'])\n\
                while not os.path.exists('kill'): time.sleep(0.1)\n\
                pip.kill(); pip.wait()\nwhile not os.path.exists('end'): time.sleep(0.1)";
    write_script(&daemon, &conversation("go", &[runs(cell), says("done")]));
    let number = begin_ask(&daemon, json!({"text": "go", "fresh": true}));
    wait_for_state(&daemon, number, "waiting");
    daemon.http("PUT", "/v1/sessions/s/files/kill", b"").expect_status(200);
    eventually("nobody is asked any more", || approvals(&daemon).is_empty().then_some(()));
    assert!(view(&daemon, number)["state"] != "done", "its cell still runs");
    daemon.http("PUT", "/v1/sessions/s/files/end", b"").expect_status(200);
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert!(events_of(&daemon, "packages_installed").is_empty());
}

/// A program can take the place of a cell or a command whose code it is not, so that does not help it.
#[test]
fn what_models_may_never_install_nobody_is_asked_for_by_a_program_beside_a_cell() {
    if !engine() {
        return;
    }
    let index = PackageIndex::start();
    let daemon = with_model(&index, "never");
    assert_eq!(answer(&daemon, json!({"text": "go", "fresh": true})), "done");
    // The process that the model's code left behind asks while a cell of the owner runs.
    daemon.run(S, "import os, time\nwhile not os.path.exists('code'): time.sleep(0.1)");
    let left = left_behind(&daemon);
    assert!(left.starts_with("1\n") && left.contains("nor may any program"), "{left}");
    assert_eq!(events_of(&daemon, "approval_wanted").len(), 0);
    assert!(events_of(&daemon, "packages_installed").is_empty());
    // So it is for the owner's own programs, until a reset.
    let told = line(&daemon, "pip install bell-dep");
    assert!(text(&told, "stderr").contains("`belljar reset`"), "{told:#}");
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(text(&line(&daemon, "pip install bell-dep"), "status"), "success");
}

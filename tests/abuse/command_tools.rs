//! Programs of the host that tools are: whatever calls them, they run as the owner of the session, within limits, and
//! no user becomes root by them.

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::docker::asking::{notebook, notes, noting_tool};
use crate::docker::helpers::{outcome, printed, queue, session_with, text};
use crate::docker::many_users::{ALICE, ask, run, shared};
use crate::support::jails::in_a_jail;
use crate::support::{Daemon, User, engine, eventually, http_as};

/// `[tool.NAME]` that runs this program of Python.
fn program(name: &str, code: &str, timeout: &str) -> String {
    format!(
        "[tool.{name}]\ndescription = \"A program.\"\nargv = [\"python3\", \"-c\", {}]\ntimeout = \"{timeout}\"\n",
        json!(code)
    )
}

#[test]
fn a_program_of_a_tool_runs_within_limits() {
    let limits = "import resource as r\nfor name in ('DATA', 'FSIZE', 'NOFILE', 'CPU', 'CORE'):\n    \
                  print(name, *r.getrlimit(getattr(r, 'RLIMIT_' + name)))\nimport os\nprint(os.getsid(0) == os.getpid())";
    let hog = "data = bytearray(5 << 30)\nprint(len(data))";
    let config = [program("limits", limits, "7s"), program("hog", hog, "20s")].concat();
    let Some(daemon) = session_with(&config, json!({"image": "belljar/base"})) else { return };
    let gib = 4u64 << 30;
    assert_eq!(
        printed(&daemon, "print(limits())"),
        format!("DATA {gib} {gib}\nFSIZE {gib} {gib}\nNOFILE 1024 1024\nCPU 28 28\nCORE 0 0\nTrue\n")
    );
    let said =
        printed(&daemon, "try:\n    print(hog())\nexcept ToolError as error:\n    print(error.message)");
    assert!(said.contains("MemoryError"), "{said}");
}

/// Code that calls tools from hundreds of threads starts no more programs than a user may have at once.
#[test]
fn programs_of_tools_are_counted_by_user() {
    let (_folder, file) = notebook();
    let Some(daemon) = session_with(&noting_tool("note", &file), json!({"image": "belljar/base"})) else {
        return;
    };
    let code = "\
from concurrent.futures import ThreadPoolExecutor
def one(place):
    try:
        note(line=str(place), wait=3)
        return 'ran'
    except ToolError as error:
        return error.code
with ThreadPoolExecutor(24) as pool:
    said = list(pool.map(one, range(24)))
print(said.count('ran'), said.count('busy'))";
    assert_eq!(printed(&daemon, code), "8 16\n");
    assert_eq!(notes(&file).len(), 8);
    // Their places are free again.
    assert_eq!(printed(&daemon, "print(note(line='later'))"), "noted later\n");
}

/// What a program leaves behind in its group goes with it.
#[test]
fn a_program_that_takes_too_long_goes_with_all_that_it_started() {
    let (_folder, file) = notebook();
    let code = format!(
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\nopen({:?}, 'w').write(str(child.pid))\ntime.sleep(600)",
        file.to_str().expect("UTF-8")
    );
    let Some(daemon) = session_with(&program("slow", &code, "2s"), json!({"image": "belljar/base"})) else {
        return;
    };
    let said = printed(&daemon, "try:\n    slow()\nexcept ToolError as error:\n    print(error.code)");
    assert_eq!(said, "timed_out\n");
    let pid: u32 = notes(&file)[0].parse().expect("a pid");
    eventually("it is gone", || (!crate::support::jails::is_alive(pid)).then_some(()));
}

/// A program whose grandchild leaves its group and session, notes its number and sleeps.
fn runaway(name: &str, file: &std::path::Path, then: &str, timeout: &str) -> String {
    let file = file.to_str().expect("UTF-8");
    let code = format!(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    \
         open({file:?}, 'a').write('%d\\n' % os.getpid())\n    time.sleep(600)\nos.wait()\n\
         while not os.path.exists({file:?}) or not os.path.getsize({file:?}): time.sleep(0.01)\n{then}"
    );
    program(name, &code, timeout)
}

fn what_a_program_started_ends_with_its_call() {
    let (_folder, file) = notebook();
    let (_other, stuck) = notebook();
    let config = [
        runaway("quick", &file, "print('done')", "20s"),
        runaway("slow", &file, "time.sleep(600)", "3s"),
        runaway("stuck", &stuck, "time.sleep(600)", "300s"),
    ];
    let Some(mut daemon) = session_with(&config.concat(), json!({"image": "belljar/base"})) else { return };
    let gone = |file: &std::path::Path| {
        let pid: u32 = notes(file)[0].parse().expect("a pid");
        assert!(!crate::support::jails::is_alive(pid), "process {pid} lives on\n{}", daemon.log());
        std::fs::remove_file(file).expect("removed");
    };
    assert_eq!(printed(&daemon, "print(quick())"), "done\n");
    gone(&file);
    let said = printed(&daemon, "try:\n    slow()\nexcept ToolError as error:\n    print(error.code)");
    assert_eq!(said, "timed_out\n");
    gone(&file);
    // The cell that called is interrupted; and then the daemon dies.
    for ends_by in ["interrupt", "death"] {
        queue(&daemon, &json!({"code": "stuck()", "timeout_s": 300}));
        let pid: u32 = eventually("it runs", || notes(&stuck).first()?.parse().ok());
        assert!(crate::support::jails::is_alive(pid));
        if ends_by == "interrupt" {
            daemon.http("POST", "/v1/sessions/s/interrupt", b"").expect_status(200);
        } else {
            daemon.kill();
        }
        eventually(&format!("{pid} ends by {ends_by}"), || {
            (!crate::support::jails::is_alive(pid)).then_some(())
        });
        std::fs::remove_file(&stuck).expect("removed");
    }
    daemon.restart();
}

#[test]
fn what_a_program_started_ends_with_its_call_of_root() {
    in_a_jail(None, what_a_program_started_ends_with_its_call);
}

#[test]
fn what_a_program_started_ends_with_its_call_of_a_user() {
    in_a_jail(Some(super::grounds::ANN), what_a_program_started_ends_with_its_call);
}

#[test]
fn a_program_runs_as_the_owner_of_the_session() {
    in_a_jail(None, || {
        let daemon = shared(&program("whoami", "import os; print(*os.getresuid())", "20s"));
        ask(&daemon, ALICE, "POST", "/v1/sessions", json!({"name": "hers"})).expect_status(201);
        let uid = ALICE.uid;
        assert_eq!(run(&daemon, ALICE, "hers", "print(whoami())")["stdout"], format!("{uid} {uid} {uid}\n"));
    });
}

/// Programs run as the owner of the session. An administrator who is not root does not become root by that.
#[test]
fn an_administrator_has_nothing_run_in_a_session_of_root() {
    if !engine() {
        return;
    }
    let (_folder, file) = notebook();
    let whoami = format!(
        "import os\nopen({:?}, 'a').write(str(os.getuid()) + chr(10))\nprint(os.getuid())",
        file.to_str().expect("UTF-8")
    );
    let config = format!("{}[admin]\ngroup = \"games\"\n", program("whoami", &whoami, "20s"));
    let daemon = Daemon::with_config(&config);
    for (path, mode) in [(daemon.home().to_owned(), 0o711), (daemon.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let games = std::fs::read_to_string("/etc/group").expect("groups");
    let games = games.lines().find_map(|line| line.strip_prefix("games:x:")).expect("the group games");
    let gid: u32 = games.split(':').next().and_then(|gid| gid.parse().ok()).expect("a number");
    let admin = User { gid, ..crate::docker::many_users::CAROL };
    daemon.session("s", json!({"image": "belljar/base"}));
    let act = |method: &str, path: &str, body: &Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        http_as(admin, &daemon.socket(), method, &format!("/v1/sessions/s@root{path}"), &[], body.as_bytes())
    };
    act("GET", "", &Value::Null).expect_status(200);
    for (method, path, body) in [
        ("POST", "/cells?wait=true", json!({"code": "print(whoami())"})),
        ("POST", "/eval", json!({"expression": "whoami()"})),
        ("POST", "/asks", json!({"text": "x"})),
        ("POST", "/tools", json!({"tools": []})),
        ("POST", "/replay", Value::Null),
        ("POST", "/undo", json!({})),
        ("PUT", "/files/numpy.py", json!("1")),
    ] {
        let refused = act(method, path, &body);
        assert_eq!((refused.status, text(&refused.json(), "code")), (403, "forbidden"), "{method} {path}");
    }
    assert_eq!(notes(&file), Vec::<String>::new());
    // What a request does is told by its route, and not by the beginning of its path.
    daemon.run("s", "open('keep.txt', 'w').write('kept')");
    for user in ["root".to_owned(), format!("{}0", "0".repeat(250))] {
        let path = format!("/v1/sessions/s@{user}/files/keep.txt");
        let refused = http_as(admin, &daemon.socket(), "DELETE", &path, &[], b"");
        assert!([403, 404].contains(&refused.status), "{user}: {}", refused.text());
    }
    assert_eq!(daemon.run("s", "open('keep.txt').read()")["result"]["repr"], "'kept'");
    let cell = queue(&daemon, &json!({"code": "import time; time.sleep(600)"}));
    std::thread::sleep(Duration::from_millis(300));
    act("POST", "/interrupt", &Value::Null).expect_status(200);
    assert_eq!(text(&outcome(&daemon, cell), "status"), "interrupted");
    act("DELETE", "", &Value::Null).expect_status(200);
}

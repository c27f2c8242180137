//! After a reset nothing of before runs, and the end of a copy takes along what the copy has started.

use serde_json::json;

use super::grounds::on_every_ground;
use crate::support::{Daemon, eventually};

/// Leaves a process that has no parent and a session of its own, and waits.
const HIDE: &str = "
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open('/workspace/started', 'w').close()
        while True:
            time.sleep(0.02)
            open('/workspace/alive', 'w').close()
    os._exit(0)
os.wait()
while not os.path.exists('/workspace/started'):
    time.sleep(0.01)
";

/// Whether the file comes back after it was removed.
const IS_ALIVE: &str = "
import os, time
for name in ('alive', 'started'):
    if os.path.exists(name): os.unlink(name)
time.sleep(0.3)
os.path.exists('alive')
";

fn nothing_of_before_a_reset_runs() {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    for mode in ["main", "fork"] {
        let code = format!("{HIDE}\ntime.sleep(60)");
        let request = json!({"code": code, "mode": mode}).to_string();
        let view = daemon.http("POST", "/v1/sessions/a/cells", request.as_bytes()).expect_status(202);
        let path = format!("/v1/sessions/a/cells/{}", view["cell"]);
        eventually("it hides", || {
            (daemon.http("GET", "/v1/sessions/a/files/started", b"").status == 200).then_some(())
        });
        daemon.http("POST", "/v1/sessions/a/reset", b"{}").expect_status(200);
        assert_eq!(daemon.run("a", IS_ALIVE)["result"]["repr"], "False", "{mode}");
        let view = daemon.http("GET", &path, b"").expect_status(200);
        assert_eq!(view["state"], "done", "{view}");
    }
    daemon.assert_sound();
}

fn a_copy_takes_along_what_it_has_started() {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    // What the main line has started stays.
    daemon.run("a", "import subprocess; own = subprocess.Popen(['sleep', '1000'], start_new_session=True)");
    for ending in ["", "os._exit(0)", "os.kill(os.getpid(), 9)", "while True: pass"] {
        let code = format!("{HIDE}\n{ending}");
        daemon.run_with("a", json!({"code": code, "mode": "fork", "timeout_s": 3}));
        // A copy that has answered ends after its answer, and only then does what it has started.
        eventually(&format!("nothing is left after `{ending}`"), || {
            (daemon.run("a", IS_ALIVE)["result"]["repr"] == "False").then_some(())
        });
    }
    assert_eq!(daemon.run("a", "own.poll()")["status"], "success");
    assert_eq!(daemon.run("a", "own.poll() is None")["result"]["repr"], "True");
    daemon.assert_sound();
}

on_every_ground!(nothing_of_before_a_reset_runs, a_copy_takes_along_what_it_has_started);

//! Checkpoints hold the state that a session goes back to: code of a later cell cannot change it.

use serde_json::json;

use super::grounds::on_every_ground;
use crate::support::Daemon;

/// Writes over a string in every other process of the sandbox that it can open.
const REWRITE: &str = r#"
import os
old, new = b"as it " + b"was, in " + b"the checkpoint", b"what the " + b"attacker put th"
changed = opened = 0
for name in os.listdir("/proc"):
    if not name.isdigit() or int(name) in (1, os.getpid()):
        continue
    try:
        with open(f"/proc/{name}/maps") as maps, open(f"/proc/{name}/mem", "r+b", 0) as memory:
            opened += 1
            for line in maps:
                span, rights = line.split()[:2]
                start, end = (int(part, 16) for part in span.split("-"))
                if not rights.startswith("rw") or end - start > 1 << 28:
                    continue
                try:
                    memory.seek(start)
                    data = memory.read(end - start)
                    at = data.find(old)
                    while at >= 0:
                        memory.seek(start + at)
                        changed += memory.write(new[: len(old)])
                        at = data.find(old, at + 1)
                except OSError:
                    pass
    except OSError:
        pass
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        try:
            opened += len(os.listdir(f"/proc/{name}/fd"))
        except OSError:
            pass
(opened, changed)
"#;

fn code_cannot_rewrite_what_undo_gives_back() {
    let daemon = Daemon::start();
    daemon.session("a", json!({"image": "belljar/base"}));
    daemon.run("a", "kept = ' '.join(['as it was, in', 'the checkpoint'])");
    daemon.run("a", "later = 1");
    let result = daemon.run("a", REWRITE);
    assert_eq!(result["result"]["repr"], "(0, 0)", "{result}");
    daemon.http("POST", "/v1/sessions/a/undo", b"{\"cells\": 2}").expect_status(200);
    assert_eq!(daemon.run("a", "kept")["result"]["repr"], "'as it was, in the checkpoint'");
    // What goes on from a checkpoint is an ordinary process again.
    let promoted = daemon
        .run("a", "import os\nos.listdir('/proc/self/fd') != [] and open('/proc/self/environ').read() != ''");
    assert_eq!(promoted["result"]["repr"], "True", "{promoted}");
    daemon.assert_sound();
}

on_every_ground!(code_cannot_rewrite_what_undo_gives_back);

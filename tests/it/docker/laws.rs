//! The laws of a session: what a snippet may rely on from call to call.

use serde_json::json;

use super::helpers::{
    S, assert_ended, go, names, outcome, post, printed, queue, raised, session, session_with, text, value,
    wait_for_line, with_go,
};
use crate::support::docker;

#[test]
pub fn law_01_seed_variables_are_readable() {
    let seed = json!({"a": 123, "b": [1, 2, 3], "text": "中文", "deep": {"x": [null, true, 1.5]}});
    let Some(daemon) = session_with("", json!({ "seed": seed })) else { return };
    assert_eq!(printed(&daemon, "print(a, b, text, deep)"), "123 [1, 2, 3] 中文 {'x': [None, True, 1.5]}\n");
    assert_eq!(printed(&daemon, "def f(): return a + len(b)\nprint(f())"), "126\n");
    assert_eq!(names(&daemon), ["a", "b", "deep", "f", "text"]);
}

#[test]
pub fn law_02_persistence_of_bindings() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "import math\nx = 41\ndef f(): return x + 1\nclass C: pass\nc = C()");
    assert_eq!(printed(&daemon, "print(f(), isinstance(c, C), math.floor(2.5))"), "42 True 2\n");
    // One namespace: a function sees what a later cell binds.
    printed(&daemon, "def g(): return later");
    assert_eq!(
        printed(&daemon, "later = 'seen'\nprint(g(), __name__, 'x' in globals())"),
        "seen __main__ True\n"
    );
}

#[test]
pub fn law_03_rebind_of_seeded_and_earlier_names_sticks() {
    let Some(daemon) = session_with("", json!({"seed": {"a": 123}})) else { return };
    printed(&daemon, "a += 100000\nb = 1");
    assert_eq!(printed(&daemon, "b = b + 1\nprint(a, b)"), "100123 2\n");
    printed(&daemon, "def set_a():\n    global a\n    a = 'by a function'\nset_a()\ndel b");
    assert_eq!(printed(&daemon, "print(a, 'b' in globals())"), "by a function False\n");
}

#[test]
pub fn law_04_a_snippet_of_several_statements_runs_whole() {
    let Some(daemon) = session() else { return };
    let code = "total = 0\nfor i in range(5):\n    if i % 2:\n        continue\n    total += i\n\
                with open('f', 'w') as f:\n    f.write('x')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    \
                total += 100\nprint(total)\n";
    assert_eq!(printed(&daemon, code), "106\n");
    assert_eq!(value(&daemon, "a = 1; b = 2; a + b"), "3");
}

#[test]
pub fn law_05_printed_text_is_the_returned_text() {
    let Some(daemon) = session() else { return };
    assert_eq!(printed(&daemon, "x = 1"), "");
    assert_eq!(printed(&daemon, "print(2)"), "2\n");
    assert_eq!(printed(&daemon, "print('no newline', end='')"), "no newline");
    assert_eq!(printed(&daemon, ""), "");
    // The value of a last expression stands beside the printed text, not in it.
    let result = daemon.run(S, "print('said')\n'value'");
    assert_eq!((text(&result, "stdout"), text(&result, "/result/repr")), ("said\n", "'value'"));
    assert_eq!(daemon.run(S, "None")["result"], json!(null));
}

#[test]
pub fn law_06_a_syntax_error_is_text_and_the_session_survives() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 41");
    let result = daemon.run(S, "x = 0\nprint('runs?')\ny = (\n");
    assert_ended(&result, "failure", "syntax", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "/exception/type")), ("", "SyntaxError"));
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.contains("line 3") && traceback.contains("y = ("), "{traceback}");
    assert!(!traceback.contains("belljar_kernel"), "{traceback}");
    assert_eq!(text(&result, "/state/kind"), "kept");
    assert_eq!(printed(&daemon, "print(x + 1)"), "42\n");
}

#[test]
pub fn law_07_an_exception_is_traceback_text_and_bindings_survive() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "before = 1");
    let result =
        raised(&daemon, "during = 2\nprint('so far')\nraise ValueError('broken')\nafter = 3", "ValueError");
    assert_eq!(text(&result, "stdout"), "so far\n");
    assert_eq!(text(&result, "/exception/value"), "broken");
    assert_eq!(text(&result, "/exception/repr"), "ValueError('broken')");
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.starts_with("Traceback (most recent call last):\n"), "{traceback}");
    assert!(traceback.ends_with("ValueError: broken\n"), "{traceback}");
    assert_eq!(names(&daemon), ["before", "during"]);
    // No exception is a special one.
    raised(&daemon, "class Odd(BaseException): pass\nraise Odd", "Odd");
    raised(&daemon, "raise GeneratorExit", "GeneratorExit");
    assert_eq!(printed(&daemon, "print(before + during)"), "3\n");
}

#[test]
pub fn law_08_keyboard_interrupt_propagates() {
    let Some(daemon) = session() else { return };
    let result = daemon.run(S, "x = 1\ntry:\n    raise KeyboardInterrupt\nexcept Exception:\n    x = 2");
    assert_ended(&result, "interrupted", "by_user", 0);
    assert_eq!(text(&result, "/exception/type"), "KeyboardInterrupt");

    let code = "while True:\n    try:\n        print('here', flush=True)\n        import time; time.sleep(60)\n    \
                except Exception:\n        x = 3\n    finally:\n        cleaned = True";
    let cell = queue(&daemon, &json!({ "code": code }));
    wait_for_line(&daemon, cell, "here");
    let told = post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_eq!(told["cell"], json!(cell));
    let result = outcome(&daemon, cell);
    assert_ended(&result, "interrupted", "by_user", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "/state/kind")), ("here\n", "kept"));
    assert_eq!(printed(&daemon, "print(x, cleaned)"), "1 True\n");
    // Where nothing runs there is nothing to interrupt, and the next cell is not hit by it.
    assert_eq!(post(&daemon, "interrupt", &json!({})).expect_status(200)["cell"], json!(null));
    assert_eq!(printed(&daemon, "print('next')"), "next\n");
}

#[test]
pub fn law_09_a_traceback_shows_only_frames_of_the_user() {
    let Some(daemon) = session() else { return };
    let result = raised(&daemon, "def f():\n    return 1 / 0\n\nf()", "ZeroDivisionError");
    let traceback = text(&result, "/exception/traceback");
    let frames: Vec<&str> = traceback.lines().filter(|line| line.starts_with("  File ")).collect();
    assert_eq!(frames, ["  File \"<cell 1>\", line 4, in <module>", "  File \"<cell 1>\", line 2, in f"]);
    assert!(traceback.contains("    return 1 / 0\n"), "{traceback}");
    // A library's frames between are the user's business; the kernel's and the event loop's are not.
    let code =
        "import json, asyncio\nasync def g():\n    await asyncio.sleep(0)\n    json.loads('{')\nawait g()";
    let result = raised(&daemon, code, "json.decoder.JSONDecodeError");
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.contains("File \"<cell 2>\", line 4, in g"), "{traceback}");
    assert!(traceback.contains("json/decoder.py"), "{traceback}");
    assert!(!traceback.contains("belljar") && !traceback.contains("asyncio/"), "{traceback}");
}

#[test]
pub fn law_10_a_traceback_across_snippets_shows_the_earlier_source() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "# a comment line\ndef divide(a, b):\n    return a / b  # of the first snippet");
    printed(&daemon, "def through(b):\n    return divide(1, b)");
    let result = raised(&daemon, "through(0)", "ZeroDivisionError");
    let traceback = text(&result, "/exception/traceback");
    let expected = [
        ("<cell 3>\", line 1, in <module>", "through(0)"),
        ("<cell 2>\", line 2, in through", "return divide(1, b)"),
        ("<cell 1>\", line 3, in divide", "return a / b  # of the first snippet"),
    ];
    let mut rest = traceback;
    for (frame, line) in expected {
        for wanted in [frame, line] {
            let place =
                rest.find(wanted).unwrap_or_else(|| panic!("no {wanted:?} in its place: {traceback}"));
            rest = &rest[place + wanted.len()..];
        }
    }
}

#[test]
pub fn law_11_nested_runs_do_not_corrupt_each_other() {
    let Some(daemon) = session() else { return };
    // Captures within a run, and a run within a run.
    let code = "import io, contextlib\nouter, inner = io.StringIO(), io.StringIO()\nprint('1')\n\
                with contextlib.redirect_stdout(outer):\n    print('2')\n    \
                with contextlib.redirect_stdout(inner):\n        exec('print(3)\\nnested = 1')\n        \
                try: exec('raise ValueError(4)')\n        except ValueError as error: print(error)\n    \
                print('5')\nprint('6', outer.getvalue().split(), inner.getvalue().split(), nested)";
    assert_eq!(printed(&daemon, code), "1\n6 ['2', '5'] ['3', '4'] 1\n");

    // Runs that come while one is going on: one after the other, each with its own text.
    let first =
        queue(&daemon, &json!({"code": with_go("print('first')\nwait_for_go()\nprint('first again')")}));
    let second = queue(&daemon, &json!({"code": "print('second')"}));
    let other = daemon.session("other", json!({}));
    assert_eq!(other["state"], "idle");
    wait_for_line(&daemon, first, "first");
    assert_eq!(text(&daemon.run("other", "print('other')\n'nested' in globals()"), "stdout"), "other\n");
    go(&daemon);
    assert_eq!(text(&outcome(&daemon, first), "stdout"), "first\nfirst again\n");
    assert_eq!(text(&outcome(&daemon, second), "stdout"), "second\n");
}

#[test]
pub fn law_12_effects_are_routed_through_the_sandbox() {
    let Some(daemon) = session() else { return };
    let receipt = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200);
    let code = "import os, socket\nprint(os.readlink('/proc/self/ns/pid'), os.readlink('/proc/self/ns/mnt'))\n\
                print(os.getuid(), socket.gethostname(), os.getppid(), os.getcwd())";
    let said = printed(&daemon, code);
    let [namespaces, facts] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };

    // The cell lives in the namespaces of the container that the receipt names, and in no other.
    let pid = receipt["process"]["pid"].to_string();
    let uid = if daemon.is_jailed() {
        receipt["process"]["uid"].to_string()
    } else {
        let container = text(&receipt, "container");
        assert_eq!(daemon.containers(), [container]);
        assert_eq!(docker(["inspect", "--format", "{{.State.Pid}}", container]), pid);
        let user = docker(["inspect", "--format", "{{.Config.User}}", container]);
        user.split(':').next().unwrap_or_default().to_owned()
    };
    let link = |pid: &str, kind: &str| {
        std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace").display().to_string()
    };
    assert_eq!(namespaces, format!("{} {}", link(&pid, "pid"), link(&pid, "mnt")));
    assert_ne!(link(&pid, "pid"), link("self", "pid"));
    assert_ne!(uid, "0");
    assert_eq!(facts, format!("{uid} belljar 1 /workspace"));

    // What it writes is in the container's workspace and nowhere else.
    printed(&daemon, "open('/workspace/mine', 'w').write('x'); open('/tmp/belljar-law-12', 'w').write('x')");
    assert_eq!(daemon.http("GET", "/v1/sessions/s/files/mine", b"").text(), "x");
    assert!(!std::path::Path::new("/tmp/belljar-law-12").exists());
}

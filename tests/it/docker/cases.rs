//! Named ways for a cell to go wrong, and what its result has to say about each.

use serde_json::json;

use super::helpers::{
    S, assert_ended, go, list, names, number, outcome, post, printed, queue, raised, session, session_with,
    text, value, wait_for_line, with_go,
};
use crate::support::{Daemon, eventually, keeps_variables};

fn with_timeout(daemon: &Daemon, seconds: f64, code: &str) -> serde_json::Value {
    daemon.run_with(S, json!({"code": code, "timeout_s": seconds}))
}

#[test]
fn success_with_scipy_and_a_long_timeout() {
    let seed = json!({"seed": {"a": 123, "b": [1, 2, 3]}});
    let Some(daemon) = session_with("[cells]\nmax_timeout = \"6h\"\n", seed) else { return };
    let result = with_timeout(&daemon, 20_000.0, "c = 10; import scipy; print(\"scipy imported\")");
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(text(&result, "stdout"), "scipy imported\n");
    assert_eq!((&result["exception"], &result["timeout_s"]), (&json!(null), &json!(20_000.0)));
    assert_eq!(names(&daemon), ["a", "b", "c"]);
}

#[test]
pub fn failure_by_division() {
    let Some(daemon) = session() else { return };
    let result = raised(&daemon, "a = 123\nb = 0\nc = a / b", "ZeroDivisionError");
    assert_eq!(text(&result, "/exception/repr"), "ZeroDivisionError('division by zero')");
    assert_eq!(text(&result, "/exception/value"), "division by zero");
    assert_eq!(text(&result, "/state/kind"), "kept");
    assert_eq!(names(&daemon), ["a", "b"]);
}

#[test]
pub fn timeout_of_a_sleep_keeps_the_text_so_far() {
    let Some(daemon) = session_with("", json!({"seed": {"a": 123}})) else { return };
    let code = "import time\na = 0\nprint(\"Start sleeping...\", flush=True)\ntime.sleep(10)\nprint('awake')";
    let result = with_timeout(&daemon, 3.0, code);
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!(text(&result, "stdout"), "Start sleeping...\n");
    assert_eq!((&result["exception"], &result["result"]), (&json!(null), &json!(null)));
    assert_eq!(printed(&daemon, "print(a)"), "123\n");
    assert_eq!(names(&daemon), ["a"]);
}

#[test]
pub fn crash_by_an_exit_call() {
    let Some(daemon) = session() else { return };
    let result =
        daemon.run(S, "import os\ntry:\n    os._exit(139)\nexcept BaseException:\n    print('caught')");
    assert_ended(&result, "crashed", "exit_call", 139);
    assert_eq!((text(&result, "stdout"), &result["exception"]), ("", &json!(null)));
    // Also an exit that would look like a success.
    assert_ended(&daemon.run(S, "import os; print('bye'); os._exit(0)"), "crashed", "exit_call", 0);
    assert_eq!(printed(&daemon, "print('a new process')"), "a new process\n");
}

#[test]
pub fn recursion_is_a_failure() {
    let Some(daemon) = session() else { return };
    let code = "def dive(depth):\n    if depth % 100 == 0:\n        print('depth', depth)\n    dive(depth + 1)\n\
                try:\n    dive(1)\nexcept RecursionError:\n    print('caught')\n    raise";
    let result = raised(&daemon, code, "RecursionError");
    let lines: Vec<&str> = text(&result, "stdout").lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"depth 100"), Some(&"caught")));
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.contains("in dive") && traceback.contains("RecursionError: maximum"), "{traceback}");
    // The function that could not be carried by pickle is simply there.
    assert_eq!(value(&daemon, "callable(dive)"), "True");
}

#[test]
pub fn memory_exhaustion_is_told_by_the_cgroup() {
    let Some(daemon) = session_with("", json!({"memory_bytes": 256 << 20})) else { return };
    let code = "print('filling', flush=True)\nheld = []\nwhile True:\n    held.append(b'x' * (1 << 20))";
    let result = daemon.run(S, code);
    assert_ended(&result, "crashed", "out_of_memory", -9);
    assert_eq!((text(&result, "stdout"), &result["exception"]), ("filling\n", &json!(null)));
    // The sandbox is the same one, with a new process in it.
    assert_eq!(printed(&daemon, "print('held' in globals())"), "False\n");
    let gone = daemon.events(S, 0).iter().any(|event| event["type"] == "sandbox_gone");
    assert!(!gone, "the sandbox died of its cell's memory");
}

#[test]
pub fn a_decode_error_with_an_open_file_is_a_failure_with_the_first_error() {
    let Some(daemon) = session() else { return };
    let code = "open('data.txt', 'wb').write(b'a' * 1265 + b'\\x94\\n')\nf = open('data.txt', encoding='gbk')\n\
                lock = __import__('threading').Lock()\ntext = f.read()";
    let result = raised(&daemon, code, "UnicodeDecodeError");
    let message = "'gbk' codec can't decode byte 0x94 in position 1265: illegal multibyte sequence";
    assert_eq!(text(&result, "/exception/value"), message);
    // It is the first and only error, and what no pickle could carry lives on.
    let traceback = text(&result, "/exception/traceback");
    assert_eq!(traceback.matches("Traceback").count(), 1, "{traceback}");
    assert_eq!(value(&daemon, "(f.closed, lock.acquire(), f.name)"), "(False, True, 'data.txt')");
}

#[test]
pub fn timeout_of_an_infinite_loop() {
    let Some(daemon) = session() else { return };
    let result = with_timeout(&daemon, 0.5, "print('round')\nwhile True:\n    pass");
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!((text(&result, "stdout"), &result["timeout_s"]), ("round\n", &json!(0.5)));
    assert_eq!(printed(&daemon, "print('alive')"), "alive\n");
}

#[test]
pub fn timeout_of_a_blocking_network_call() {
    let Some(daemon) = session() else { return };
    let code =
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\nprint('listening')\nserver.accept()";
    let result = with_timeout(&daemon, 0.5, code);
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!(text(&result, "stdout"), "listening\n");
}

#[test]
pub fn timeout_without_output() {
    let Some(daemon) = session() else { return };
    let result = with_timeout(&daemon, 1.0, "import time; c = 10; time.sleep(5)");
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!((text(&result, "stdout"), text(&result, "stderr"), &result["output"]), ("", "", &json!([])));
}

#[test]
pub fn timeout_of_c_code_that_ignores_signals() {
    let Some(daemon) = session() else { return };
    // Python code does not get to run in such a loop, so neither does a handler of signals.
    let code = "import itertools, signal\nprint('so far')\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                all(itertools.repeat(True))";
    let result = with_timeout(&daemon, 0.5, code);
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!(text(&result, "stdout"), "so far\n");
    // One that ignores the polite end too is ended the other way.
    let code = "import itertools, signal\nprint('so far')\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                all(itertools.repeat(True))";
    let result = with_timeout(&daemon, 0.5, code);
    assert_ended(&result, "timeout", "cell_deadline", -9);
    assert_eq!(text(&result, "stdout"), "so far\n");
    // And one whose text is still in a subprocess' and a C library's hands.
    let code = "import ctypes, subprocess\nsubprocess.run(['echo', 'by a child'])\nctypes.CDLL(None).pause()";
    let result = with_timeout(&daemon, 0.5, code);
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!(text(&result, "stdout"), "by a child\n");
}

#[test]
pub fn an_exit_of_the_script_is_its_own_reason() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    assert_ended(&daemon.run(S, "import sys; sys.exit()"), "success", "exit0", 0);
    assert_ended(&daemon.run(S, "raise SystemExit(0)"), "success", "exit0", 0);
    assert_ended(&daemon.run(S, "sys.exit(7)"), "failure", "exit", 7);
    let result = daemon.run(S, "sys.exit('last words')");
    assert_ended(&result, "failure", "exit", 1);
    assert_eq!(text(&result, "stderr"), "last words\n");
    assert_eq!(printed(&daemon, "print(x)"), "1\n");
}

/// X1: an exception of the code is a failure, with the source and a trimmed traceback.
#[test]
pub fn x01_python_exception() {
    let Some(daemon) = session() else { return };
    let code = "def f(items):\n    return items['key']\n\nf({})";
    let result = raised(&daemon, code, "KeyError");
    assert_eq!(text(&result, "code"), code);
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.contains("File \"<cell 1>\", line 2, in f\n    return items['key']\n"), "{traceback}");
    assert!(traceback.ends_with("KeyError: 'key'\n"), "{traceback}");
    assert!(!traceback.contains("belljar"), "{traceback}");
    // Causes and groups are shown, and are trimmed too.
    let result = raised(
        &daemon,
        "try:\n    f({})\nexcept KeyError as e:\n    raise OSError('later') from e",
        "OSError",
    );
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.contains("KeyError: 'key'\n\nThe above exception was the direct cause"), "{traceback}");
    let result =
        raised(&daemon, "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])", "ExceptionGroup");
    let traceback = text(&result, "/exception/traceback");
    assert!(traceback.contains("ValueError: 1") && traceback.contains("TypeError: 2"), "{traceback}");
    assert!(!traceback.contains("belljar"), "{traceback}");
}

/// X2: a syntax error is a failure told as text; the state is intact.
#[test]
fn x02_syntax_error() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    for (code, kind) in [
        ("x = 2\nif", "SyntaxError"),
        ("x = 2\n  y = 3", "IndentationError"),
        ("x = 2\nif x:\n\ty = 1\n        z = 2", "TabError"),
        ("x = 2\nreturn x", "SyntaxError"),
        ("x = 2\n'\0'", "SyntaxError"),
    ] {
        let result = daemon.run(S, code);
        assert_ended(&result, "failure", "syntax", 0);
        assert_eq!(text(&result, "/exception/type"), kind, "{code:?}");
        assert!(text(&result, "/exception/traceback").contains(kind), "{result:#}");
    }
    assert_eq!(printed(&daemon, "print(x)"), "1\n");
}

/// X3: a cell that takes too long is killed, with the output so far and the limit; processes that
/// it started go too.
#[test]
pub fn x03_timeout() {
    let Some(daemon) = session() else { return };
    let code = "import subprocess, time\nchild = subprocess.Popen(['sleep', '1000'])\nprint('begun')\n\
                open('half', 'w').write('done')\ntime.sleep(1000)";
    let result = with_timeout(&daemon, 0.5, code);
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!((text(&result, "stdout"), &result["timeout_s"]), ("begun\n", &json!(0.5)));
    assert_eq!(list(&result, "artifacts"), [json!({"path": "half", "bytes": 4, "change": "new"})]);
    let code = "import glob\nprint([c for c in (open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')) \
                if b'sleep' in c])";
    assert_eq!(printed(&daemon, code), "[]\n");
}

/// X4: a native crash is told with its code, and everything but the process survives.
#[test]
pub fn x04_segfault() {
    let Some(daemon) = session() else { return };
    let sandbox = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200)["container"].clone();
    let result = daemon.run(S, "import ctypes\nprint('soon')\nctypes.string_at(0)");
    assert_ended(&result, "crashed", "signal", -11);
    assert_eq!((text(&result, "stdout"), &result["exception"]), ("soon\n", &json!(null)));
    assert_ended(&daemon.run(S, "import os; os.abort()"), "crashed", "signal", -6);
    assert_ended(&daemon.run(S, "import os; os._exit(1)"), "crashed", "exit_call", 1);
    assert_eq!(printed(&daemon, "print('alive')"), "alive\n");
    let now = daemon.http("GET", "/v1/sessions/s/receipt", b"").expect_status(200)["container"].clone();
    assert_eq!(now, sandbox);
}

/// X5: a memory bomb ends the process that is one; a cell whose child was killed goes on.
#[test]
pub fn x05_out_of_memory() {
    let Some(daemon) = session_with("", json!({"memory_bytes": 192 << 20})) else { return };
    let code = "import subprocess, sys\nbomb = \"held = []\\nwhile True: held.append(b'x' * (1 << 20))\"\n\
                kept = 'kept'\nsubprocess.run([sys.executable, '-c', bomb]).returncode";
    assert_eq!(value(&daemon, code), "-9");
    // A crash that has nothing to do with memory is not blamed on the child's.
    assert_eq!(printed(&daemon, "print(kept)"), "kept\n");
    assert_ended(&daemon.run(S, "import os; os._exit(3)"), "crashed", "exit_call", 3);
    // One bomb after the other.
    for _ in 0..2 {
        let result = daemon.run(S, "b = bytearray(b'x') * (1 << 30)");
        assert_ended(&result, "crashed", "out_of_memory", -9);
    }
    // If a copy dies, the main line keeps its state.
    printed(&daemon, "kept = 'still kept'");
    let result = daemon.run_with(S, json!({"code": "b = bytearray(b'x') * (1 << 30)", "mode": "fork"}));
    assert_ended(&result, "crashed", "out_of_memory", -9);
    assert_eq!(text(&result, "/state/kind"), "kept");
    assert_eq!(printed(&daemon, "print(kept)"), "still kept\n");
}

/// X6: recursion without an end is a failure, not a crash.
#[test]
pub fn x06_deep_recursion() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    raised(&daemon, "f = lambda: f()\nf()", "RecursionError");
    raised(&daemon, "class R:\n    def __repr__(self): return repr(self)\nrepr(R())", "RecursionError");
    raised(&daemon, "l = []\nfor _ in range(200000): l = [l]\nimport json; json.dumps(l)", "RecursionError");
    assert_eq!(printed(&daemon, "del l\nprint(x)"), "1\n");
}

/// X7: what cannot be pickled stays alive in the session, and is never a reason to fail.
#[test]
pub fn x07_unpicklable_globals() {
    let Some(daemon) = session() else { return };
    let code = "import threading, sqlite3, socket\nf = open('f', 'w+')\nlock = threading.Lock()\n\
                db = sqlite3.connect(':memory:')\nleft, right = socket.socketpair()\n\
                def outer():\n    n = 1\n    def local(): return n\n    return local\nlocal = outer()\n\
                square = lambda v: v * v\ngenerator = (i for i in range(3))\nnext(generator)";
    assert_eq!(value(&daemon, code), "0");
    let code = "f.write('x'); f.seek(0); left.send(b'y')\nwith lock: pass\n\
                (f.read(), db.execute('select 1').fetchone(), right.recv(1), local(), square(3), next(generator))";
    assert_eq!(value(&daemon, code), "('x', (1,), b'y', 1, 9, 1)");
    let fork = daemon.run_with(S, json!({"code": "(square(4), next(generator), f.name)", "mode": "fork"}));
    assert_eq!(text(&fork, "/result/repr"), "(16, 2, 'f')");
    assert_eq!(value(&daemon, "next(generator)"), "2");
}

/// X8: an error while the error is told is no reason for silence.
#[test]
pub fn x08_second_error_while_reporting() {
    let Some(daemon) = session() else { return };
    let code = "class Nasty(Exception):\n    def __str__(self): raise ValueError('in str')\n    \
                def __repr__(self): raise SystemExit(9)\nraise Nasty";
    let result = raised(&daemon, code, "Nasty");
    assert!(text(&result, "/exception/traceback").contains("in <module>"), "{result:#}");
    let result = daemon.run(S, "class Silent:\n    def __repr__(self): raise OSError('no')\nSilent()");
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(text(&result, "/result/type"), "Silent");
    // The means of telling are taken away.
    raised(
        &daemon,
        "import sys, traceback\ntraceback.TracebackException = None\nsys.stdout = None\n1 / 0",
        "ZeroDivisionError",
    );
    raised(
        &daemon,
        "import json, os\njson.dumps = os.write = os._exit = None\nraise KeyError('k')",
        "KeyError",
    );
    raised(
        &daemon,
        "import builtins\nbuiltins.str = builtins.repr = None\nraise ValueError(1)",
        "ValueError",
    );
    assert_ended(&daemon.run(S, "'\\ud800'"), "success", "ok", 0);
    assert_ended(&daemon.run(S, "raise Exception('\\ud800')"), "failure", "exception", 0);
}

/// X9: text is UTF-8 whatever the platform thinks.
#[test]
pub fn x09_encoding() {
    let Some(daemon) = session() else { return };
    let code = "import sys, locale, subprocess\nopen('f.txt', 'wb').write('中文 “quoted”'.encode())\n\
                print(open('f.txt').read(), sys.flags.utf8_mode, locale.getpreferredencoding(False))\n\
                print(sys.stdout.encoding, sys.getfilesystemencoding())\n\
                print(subprocess.run(['cat', 'f.txt'], capture_output=True, text=True).stdout)\n\
                child = 'import sys; print(\"子\", sys.stdout.encoding)'\n\
                print(subprocess.run([sys.executable, '-c', child], capture_output=True, text=True).stdout)";
    let expected = "中文 “quoted” 1 utf-8\nutf-8 utf-8\n中文 “quoted”\n子 utf-8\n\n";
    assert_eq!(printed(&daemon, code), expected);
    printed(&daemon, "open('文件.txt', 'w').write('x')\n变量 = 1");
    assert_eq!(daemon.http("GET", "/v1/sessions/s/files/%E6%96%87%E4%BB%B6.txt", b"").text(), "x");
    assert!(names(&daemon).contains(&"变量".to_owned()));
}

/// X10: the end of a pipe is an end, and then the death behind it is told.
#[test]
pub fn x10_end_of_pipe() {
    let Some(daemon) = session() else { return };
    let code = "import multiprocessing, os\nnear, far = multiprocessing.Pipe()\npid = os.fork()\n\
                if pid == 0:\n    os._exit(1)\nfar.close(); os.waitpid(pid, 0)\nnear.recv()";
    raised(&daemon, code, "EOFError");
    // The process that would answer dies itself: by its own hand, and with its pipes closed.
    assert_ended(&daemon.run(S, "import os; os.kill(os.getpid(), 9)"), "crashed", "signal", -9);
    let result = daemon.run(S, "import os\nprint('closing')\nos.closerange(0, 4096)");
    assert_eq!((text(&result, "status"), text(&result, "stdout")), ("crashed", "closing\n"), "{result:#}");
    // A child that outlives its fork's purpose does not speak for the cell.
    let result =
        daemon.run(S, "import os\nif os.fork() == 0: raise ValueError('in the child')\nos.wait()[1] >> 8");
    assert_ended(&result, "success", "ok", 0);
    assert_ne!(text(&result, "/result/repr"), "0");
    raised(&daemon, "input('name? ')", "InputNotAvailable");
}

/// X11: a missing package is a failure that names it.
#[test]
pub fn x11_missing_package() {
    let Some(daemon) = session() else { return };
    let result = raised(&daemon, "import no_such_package_at_all", "ModuleNotFoundError");
    assert_eq!(text(&result, "/exception/value"), "No module named 'no_such_package_at_all'");
    raised(&daemon, "from math import no_such_name", "ImportError");
    // A module that a later cell writes is found, at once.
    printed(&daemon, "open('no_such_package_at_all.py', 'w').write('here = 1')");
    assert_eq!(value(&daemon, "import no_such_package_at_all as m\nm.here"), "1");
}

/// X12: an import of an earlier cell is there in later ones.
#[test]
pub fn x12_modules_persist() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "import math, os.path as path\nfrom collections import Counter as C");
    assert_eq!(value(&daemon, "(math.pi > 3, path.basename('/a/b'), C('aab')['a'])"), "(True, 'b', 2)");
    raised(&daemon, "json.dumps(1)", "NameError");
}

/// X13: plots need no screen, and say nothing about it.
#[test]
fn x13_graphics_are_preset() {
    let Some(daemon) = session() else { return };
    let code = "import matplotlib\nimport matplotlib.pyplot as plt\n\
                plt.figure(figsize=(4, 3)); plt.title('测试图表'); plt.plot([1, 2, 3], [1, 4, 9])\n\
                plt.savefig('test_output.png', dpi=300); plt.show()\n\
                print(matplotlib.get_backend().lower(), matplotlib.rcParams['axes.unicode_minus'])";
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "stdout"), text(&result, "stderr")), ("agg False\n", ""));
    let artifacts = list(&result, "artifacts");
    assert_eq!(artifacts.len(), 1, "{artifacts:?}");
    assert_eq!((text(&artifacts[0], "path"), text(&artifacts[0], "change")), ("test_output.png", "new"));
}

/// X14: a folder that cannot be entered is reported, and the cell's own folder stays.
#[test]
pub fn x14_directory_that_cannot_be_entered() {
    let Some(daemon) = session() else { return };
    let result = raised(&daemon, "import os\nos.mkdir('closed', 0)\nos.chdir('closed')", "PermissionError");
    assert_eq!(text(&result, "/exception/value"), "[Errno 13] Permission denied: 'closed'");
    raised(&daemon, "os.chdir('absent')", "FileNotFoundError");
    assert_eq!(value(&daemon, "os.getcwd()"), "'/workspace'");
    // The folder of a cell may even vanish under it.
    printed(&daemon, "os.mkdir('gone'); os.chdir('gone'); os.rmdir('/workspace/gone')");
    assert_eq!(value(&daemon, "1 + 1"), "2");
}

/// X15: a cancel stops the run, and is not swallowed by code that catches errors.
#[test]
pub fn x15_cancel_propagates() {
    let Some(daemon) = session() else { return };
    let code = "import time, asyncio\nasync def patient():\n    try:\n        print('waiting')\n        \
                await asyncio.sleep(1000)\n    except Exception:\n        print('swallowed')\n    finally:\n        \
                print('cleaned')\ndone = 0\nawait patient()\ndone = 1";
    let cell = queue(&daemon, &json!({ "code": code }));
    wait_for_line(&daemon, cell, "waiting");
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    let result = outcome(&daemon, cell);
    assert_ended(&result, "interrupted", "by_user", 0);
    assert_eq!(text(&result, "stdout"), "waiting\ncleaned\n");
    assert_eq!(printed(&daemon, "print(done)"), "0\n");
    // A cell that waits behind it still runs.
    let first = queue(&daemon, &json!({"code": "print('first')\ntime.sleep(1000)"}));
    let second = queue(&daemon, &json!({"code": "print('second')"}));
    wait_for_line(&daemon, first, "first");
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_eq!(text(&outcome(&daemon, first), "status"), "interrupted");
    assert_eq!(text(&outcome(&daemon, second), "stdout"), "second\n");
}

/// X16: names never vanish in silence.
#[test]
pub fn x16_lost_variables_are_told() {
    if !keeps_variables() {
        return;
    }
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = 1");
    let result = daemon.run(S, "import os; x = 2; y = 3; os._exit(1)");
    assert_eq!((text(&result, "/state/kind"), number(&result, "/state/restored_to")), ("restored", 1));
    assert_eq!(result["state"]["maybe_assigned"], json!(["os", "x", "y"]));
    assert_eq!((names(&daemon), value(&daemon, "x")), (vec!["x".to_owned()], "1".into()));
    // Also when it happens while no cell runs.
    let code = "import os, threading\nx = 2\n\
                threading.Thread(target=lambda: (wait_for_go(), os._exit(7)), daemon=True).start()";
    printed(&daemon, &with_go(code));
    // When a further cell has run, the state before it is certainly kept.
    printed(&daemon, "pass");
    go(&daemon);
    let reason = eventually("the loss is told", || {
        let events = daemon.events(S, 0);
        let lost = events.iter().find(|event| event["type"] == "state_lost");
        lost.map(|event| text(event, "reason").to_owned())
    });
    assert!(reason.contains("exit code 7"), "{reason}");
    let result = daemon.run(S, "x");
    assert_eq!(text(&result, "/result/repr"), "2");
    assert!(text(&result, "/state/note").contains("went back to those after cell "), "{result:#}");
    // Once is enough.
    assert_eq!(daemon.run(S, "1")["state"]["note"], json!(null));
}

/// Such a cell is answered without a look at the workspace; what others have written meanwhile is told later.
#[test]
pub fn files_are_not_looked_for_after_a_cell_that_can_write_none() {
    let Some(daemon) = session() else { return };
    let code = "import subprocess\n\
                p = subprocess.Popen(['sh', '-c', 'sleep 1; echo late > late.txt; echo done > done.txt'])";
    printed(&daemon, code);
    eventually("the process has written", || {
        (daemon.http("GET", "/v1/sessions/s/files/done.txt", b"").status == 200).then_some(())
    });
    let result = daemon.run(S, "x = 1");
    assert_eq!((text(&result, "status"), list(&result, "artifacts").len()), ("success", 0), "{result}");
    let result = daemon.run(S, "x = int(1)");
    let paths: Vec<&str> = list(&result, "artifacts").iter().map(|each| text(each, "path")).collect();
    assert_eq!(paths, ["done.txt", "late.txt"], "{result}");
}

//! Copies, expressions, variables and tools.

use serde_json::{Value, json};

use super::helpers::{
    S, assert_ended, go, list, names, number, outcome, post, printed, queue, session, session_with, text,
    value, wait_for_line, with_go,
};
use crate::support::Daemon;

fn fork(daemon: &Daemon, code: &str) -> Value {
    daemon.run_with(S, json!({"code": code, "mode": "fork"}))
}

fn compute(daemon: &Daemon, expression: &str, values: Value) -> Value {
    let request = json!({"expression": expression, "isolated": true, "values": values, "timeout_s": 5});
    post(daemon, "eval", &request).expect_status(200)
}

#[test]
pub fn a_fork_cell_sees_everything_and_changes_nothing() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "import os\nx = [1]\ndef f(): return x");
    let result = fork(&daemon, "x.append(2); y = 3; del f; import json; os.chdir('/'); print(x, y)\nx");
    assert_ended(&result, "success", "ok", 0);
    assert_eq!((text(&result, "mode"), text(&result, "/state/kind")), ("fork", "kept"));
    assert_eq!((text(&result, "stdout"), text(&result, "/result/repr")), ("[1, 2] 3\n", "[1, 2]"));
    assert_eq!(
        value(&daemon, "(f(), 'y' in globals(), 'json' in globals(), os.getcwd())"),
        "([1], False, False, '/workspace')"
    );
    // However it ends.
    let result = fork(&daemon, "x.append(9)\nraise ValueError(x)");
    assert_ended(&result, "failure", "exception", 0);
    assert_eq!(text(&result, "/exception/value"), "[1, 9]");
    let result = fork(&daemon, "print('dying')\nos._exit(139)");
    assert_ended(&result, "crashed", "exit_call", 139);
    assert_eq!((text(&result, "/state/kind"), text(&result, "stdout")), ("kept", "dying\n"));
    let result =
        daemon.run_with(S, json!({"code": "print(1)\nwhile True: pass", "mode": "fork", "timeout_s": 0.5}));
    assert_ended(&result, "timeout", "cell_deadline", -15);
    assert_eq!((text(&result, "/state/kind"), text(&result, "stdout")), ("kept", "1\n"));
    let cell = queue(&daemon, &json!({"code": "print('stop me')\nwhile True: pass", "mode": "fork"}));
    wait_for_line(&daemon, cell, "stop me");
    assert_eq!(post(&daemon, "interrupt", &json!({})).expect_status(200)["cell"], json!(cell));
    assert_ended(&outcome(&daemon, cell), "interrupted", "by_user", 0);
    assert_eq!(value(&daemon, "f()"), "[1]");
    // Files are not variables: they stay.
    assert_eq!(
        fork(&daemon, "open('f', 'w').write('x')")["artifacts"],
        json!([{"path": "f", "bytes": 1, "change": "new"}])
    );
    assert_eq!(value(&daemon, "open('f').read()"), "'x'");
}

#[test]
pub fn a_fork_cell_that_lacks_descriptors_says_so() {
    let Some(daemon) = session() else { return };
    printed(
        &daemon,
        "import os\nheld = []\ntry:\n    while True: held.append(os.dup(0))\nexcept OSError: pass",
    );
    let result = fork(&daemon, "1");
    assert_eq!((text(&result, "status"), text(&result, "reason")), ("crashed", "descriptors"), "{result:#}");
    assert!(text(&result, "/state/note").contains("Close files"), "{result:#}");
    let refused = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(429);
    assert_eq!(text(&refused, "code"), "sandbox_full", "{refused}");
    printed(&daemon, "for descriptor in held: os.close(descriptor)");
    assert_ended(&fork(&daemon, "1"), "success", "ok", 0);
}

#[test]
pub fn a_variable_that_ends_its_process_costs_only_itself() {
    let Some(daemon) = session() else { return };
    printed(
        &daemon,
        "import os, signal\nclass Exits:\n    def __repr__(self): os._exit(4)\n\
         class Killed:\n    def __repr__(self): os.kill(os.getpid(), signal.SIGKILL)\n\
         a = 1; b = Exits(); c = 2; d = Killed(); e = 3",
    );
    let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    let rows = list(&listing, "variables").iter();
    let rows: Vec<&str> =
        rows.filter(|row| text(row, "type") != "type").map(|row| text(row, "preview")).collect();
    let unshown = "<not shown: it ended the process that was to show it>";
    assert_eq!(rows, ["1", unshown, "2", unshown, "3"]);
    // A variable that ends every process that shows it fails the list, because none is left to go on behind it.
    printed(
        &daemon,
        "class Deadly:\n    def __repr__(self):\n        while os.getppid() != 1: os.kill(os.getppid(), 9)\nf = Deadly()",
    );
    let refused = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(424);
    assert_eq!(text(&refused, "code"), "variables_failed", "{refused}");
    assert!(text(&refused, "hint").contains("__repr__"), "{refused}");
    assert_eq!(value(&daemon, "a"), "1");
}

#[test]
pub fn eval_changes_nothing_and_takes_one_expression() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "x = [1]");
    let eval =
        |expression: &str| post(&daemon, "eval", &json!({ "expression": expression })).expect_status(200);
    let result = eval("x.append(2) or x");
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(text(&result, "/result/repr"), "[1, 2]");
    assert_eq!(text(&eval("(y := 7)"), "/result/repr"), "7");
    assert_eq!(text(&eval("  len(x)\n"), "/result/repr"), "1");
    assert_eq!((names(&daemon), value(&daemon, "x")), (vec!["x".to_owned()], "[1]".into()));
    for statement in ["y = 1", "import os", "for i in x: pass", "", "1; 2"] {
        assert_ended(&eval(statement), "failure", "syntax", 0);
    }
    let failed = eval("x[5]");
    assert_ended(&failed, "failure", "exception", 0);
    assert_eq!(text(&failed, "/exception/type"), "IndexError");
    let refused = post(&daemon, "eval", &json!({"expression": "1", "values": {"a": 1}}));
    assert_eq!(text(&refused.expect_status(400), "code"), "bad_request");
}

#[test]
pub fn isolated_expressions_compute() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "secret = 'of the session'");
    for (expression, expected) in [
        ("'abc123'[::-1]", "321cba"),
        ("'a,b,c'.split(',')[1]", "b"),
        ("''.join(reversed('abc'))", "cba"),
        ("sum(map(lambda v: v * 2, [1, 2, 3]))", "12"),
        ("[n ** 2 for n in range(4) if n % 2]", "[1, 9]"),
        ("{k: v for k, v in zip('ab', (1, 2))}", "{'a': 1, 'b': 2}"),
        ("2 ** 200", "1606938044258990275541962092341162602522202993782792835301376"),
        ("7 // 2, 7 % 2, 7 / 2, round(2.567, 1)", "(3, 1, 3.5, 2.6)"),
        ("sorted(set('hello'))[-1].upper()", "O"),
        ("max(enumerate([3, 9, 4]), key=lambda pair: pair[1])", "(1, 9)"),
        ("re.sub('[aeiou]', '*', 'education')", "*d*c*t**n"),
        ("[chr(ord(c) + 1) for c in 'HAL']", "['I', 'B', 'M']"),
        ("None", "None"),
    ] {
        assert_eq!(
            compute(&daemon, expression, json!({})),
            json!({"result": expected, "error": null}),
            "{expression}"
        );
    }
    // `last_result` and given values, also where Python makes a scope of its own.
    let values = json!({"last_result": "321cba", "factor": 3});
    for (expression, expected) in [
        ("last_result.upper()", "321CBA"),
        ("[c * factor for c in last_result][0]", "333"),
        ("(lambda: last_result)()", "321cba"),
        ("list(c for c in last_result if c in last_result)[1]", "2"),
    ] {
        assert_eq!(text(&compute(&daemon, expression, values.clone()), "result"), expected, "{expression}");
    }
    // It sees nothing of the session, works while a cell runs, and leaves nothing.
    assert!(text(&compute(&daemon, "secret", json!({})), "error").starts_with("PythonError: NameError: "));
    let cell = queue(&daemon, &json!({"code": with_go("print('busy')\nwait_for_go()")}));
    wait_for_line(&daemon, cell, "busy");
    assert_eq!(compute(&daemon, "1 + 1", json!({}))["result"], "2");
    go(&daemon);
    assert_eq!(text(&outcome(&daemon, cell), "status"), "success");
}

#[test]
pub fn isolated_expressions_cannot_get_out() {
    let Some(daemon) = session() else { return };
    let error = |expression: &str| {
        let answer = compute(&daemon, expression, json!({"last_result": "x"}));
        assert_eq!(answer["result"], json!(null), "{expression}: {answer}");
        let error = text(&answer, "error").to_owned();
        assert!(error.starts_with("PythonError: "), "{error}");
        error
    };
    assert!(error("__import__('os').system('ls')").contains("import"));
    for expression in [
        "().__class__.__base__.__subclasses__()",
        "(1).__class__",
        "open('/etc/passwd').read()",
        "os.getcwd()",
        "getattr('', 'join')",
        "eval('1')",
        "exec('x = 1')",
        "compile('1', '', 'eval')",
        "globals()",
        "vars()",
        "'{0.__class__}'.format(1)",
        "'{a.__class__}'.format_map({'a': 1})",
        "f'{().__class__}'",
        "(lambda: 0).__globals__",
        "(g for g in ()).gi_frame",
        "[c for c in ().__class__.__mro__]",
        "str.mro()",
        "__builtins__",
        "__name__",
        "re.__loader__",
        "re.compile('').__class__",
        "json.codecs",
        "statistics.sys",
        "last_result.__class__",
    ] {
        let error = error(expression);
        let named = ["NameError", "AttributeError"]
            .iter()
            .any(|kind| error.starts_with(&format!("PythonError: {kind}: ")));
        assert!(named, "{expression}: {error}");
    }
    for statement in [
        "import os",
        "x = 1",
        "for i in []: pass",
        "def f(): pass",
        "class C: pass",
        "while 1: pass",
        "(x := 1)",
        "(yield 1)",
        "await x",
        "1; 2",
        "",
        "del last_result",
    ] {
        assert!(
            error(statement).starts_with("PythonError: SyntaxError"),
            "{statement}: {}",
            error(statement)
        );
    }
    // Burning time and memory is bounded, and the sandbox outlives it.
    let request = json!({"expression": "9 ** 9 ** 9", "isolated": true, "timeout_s": 0.5});
    let answer = post(&daemon, "eval", &request).expect_status(200);
    assert!(text(&answer, "error").starts_with("PythonError: "), "{answer}");
    let request =
        json!({"expression": "sum(1 for _ in itertools.count())", "isolated": true, "timeout_s": 0.5});
    let answer = post(&daemon, "eval", &request).expect_status(200);
    assert_eq!(text(&answer, "error"), "PythonError: TimeoutError: longer than 500 ms");
    assert!(error("list(range(10 ** 10))").starts_with("PythonError: MemoryError"));
    assert!(error("'x' * 10 ** 12").starts_with("PythonError: MemoryError"));
    assert_eq!(error("1 / 0"), "PythonError: ZeroDivisionError: division by zero");
    assert_eq!(error("[][0]"), "PythonError: IndexError: list index out of range");
    assert!(error(&format!("{}1{}", "(".repeat(5000), ")".repeat(5000))).starts_with("PythonError: "));
    assert_eq!(compute(&daemon, "6 * 7", json!({})), json!({"result": "42", "error": null}));
    assert_eq!(printed(&daemon, "print('alive')"), "alive\n");
}

#[test]
fn variables_are_listed() {
    let Some(daemon) = session_with("", json!({"seed": {"seeded": [1, 2]}})) else { return };
    let code = "import numpy as np, math\narray = np.zeros((3, 4))\nhuge = list(range(10**6))\n_private = 1\n\
                class Bad:\n    def __repr__(self): raise ValueError\n    def __len__(self): raise ValueError\n\
                bad = Bad()\ndef function(): pass\ntext = '中文'";
    printed(&daemon, code);
    let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    let rows: Vec<(&str, &str, &Value)> = list(&listing, "variables")
        .iter()
        .map(|variable| (text(variable, "name"), text(variable, "type"), &variable["shape"]))
        .collect();
    assert_eq!(
        rows,
        [
            ("Bad", "type", &json!(null)),
            ("array", "numpy.ndarray", &json!("(3, 4)")),
            ("bad", "Bad", &json!(null)),
            ("function", "function", &json!(null)),
            ("huge", "list", &json!("[1000000]")),
            ("seeded", "list", &json!("[2]")),
            ("text", "str", &json!("[2]")),
        ]
    );
    assert_eq!(number(&listing, "/total"), 7);
    let row = |name: &str| {
        list(&listing, "variables").iter().find(|row| row["name"] == name).expect("a row").clone()
    };
    assert_eq!(
        (text(&row("array"), "preview"), number(&row("array"), "/bytes")),
        ("numpy.ndarray (3, 4) float64", 96)
    );
    assert_eq!((text(&row("seeded"), "preview"), text(&row("text"), "preview")), ("[1, 2]", "'中文'"));
    assert!(
        text(&row("huge"), "preview").starts_with("[0, 1, 2, ")
            && text(&row("huge"), "preview").chars().count() <= 200
    );
    let private = daemon.http("GET", "/v1/sessions/s/variables?private=true", b"").expect_status(200);
    assert!(list(&private, "variables").iter().any(|row| row["name"] == "_private"), "{private}");
    // A listing of very many is cut, and says how many there are.
    printed(&daemon, "globals().update({f'v{n:04}': n for n in range(1000)})");
    let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    assert_eq!((list(&listing, "variables").len(), number(&listing, "/total")), (500, 1007));
    // While a cell runs it shows what was before that, and says so.
    let cell = queue(&daemon, &json!({"code": with_go("aaa = 'new'\nprint('busy')\nwait_for_go()")}));
    wait_for_line(&daemon, cell, "busy");
    let listing = daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    assert_eq!((number(&listing, "/total"), number(&listing, "/as_before")), (1007, cell));
    assert!(!list(&listing, "variables").iter().any(|row| row["name"] == "aaa"), "{listing}");
    go(&daemon);
    assert_eq!(text(&outcome(&daemon, cell), "status"), "success");
    assert!(names(&daemon).contains(&"aaa".to_owned()));
}

#[test]
pub fn tools_of_the_host_are_callables() {
    let Some(daemon) = session_with("", json!({"memory_bytes": 512 << 20})) else { return };
    assert_eq!(value(&daemon, "session_info()['memory_bytes']"), (512 << 20).to_string());
    assert_eq!(value(&daemon, "tools.session_info() == session_info()"), "True");
    assert_eq!(
        value(&daemon, "(session_info()['session'], session_info()['workspace'])"),
        "('s', '/workspace')"
    );
    assert_eq!(
        value(&daemon, "session_info.__doc__.splitlines()[0]"),
        "'Name, limits and image of this session, as a dict.'"
    );
    assert_eq!(
        value(&daemon, "import inspect; str(inspect.signature(session_info))"),
        "'(tool_call_purpose: str = None) -> dict'"
    );
    let code = "import threading\nfound = []\nthreads = [threading.Thread(target=lambda: \
                found.append(session_info()['session'])) for _ in range(100)]\n\
                for t in threads: t.start()\nfor t in threads: t.join()\nfound == ['s'] * 100";
    assert_eq!(value(&daemon, code), "True");
    let code = "import asyncio\nanswers = await asyncio.gather(*(tools.aio.session_info() for _ in range(200)))\n\
                len([a for a in answers if a['session'] == 's'])";
    assert_eq!(value(&daemon, code), "200");
    assert_eq!(value(&daemon, "sum(session_info()['session'] == 's' for _ in range(1000))"), "1000");
    let fork = fork(&daemon, "session_info()['session']");
    assert_eq!(text(&fork, "/result/repr"), "'s'");

    // Wrong use, and tools that are not there.
    let failed = daemon.run(S, "session_info(unknown=1)");
    assert_ended(&failed, "failure", "exception", 0);
    assert!(text(&failed, "/exception/type") == "TypeError", "{failed:#}");
    let failed = daemon.run(S, "tools.no_such_tool()");
    assert_eq!(text(&failed, "/exception/type"), "AttributeError");
    let code = "fake = type(session_info)(session_info._box, \
                {'name': 'no_such_tool', 'description': '', 'parameters': {'type': 'object', 'properties': {}}})\nfake()";
    let failed = daemon.run(S, code);
    assert_ended(&failed, "failure", "exception", 0);
    assert_eq!(text(&failed, "/exception/type"), "tools.ToolError");
    let message = text(&failed, "/exception/value");
    assert!(message.starts_with("there is no tool `no_such_tool`; known are: ask, "), "{message}");
    assert!(message.ends_with("session_info [unknown_tool]"), "{message}");
    assert!(!text(&failed, "/exception/traceback").contains("belljar_kernel"), "{failed:#}");
    // Calls that had completed in a cell whose state is lost are told.
    let result = daemon.run(S, "session_info(); session_info(); import os; os._exit(1)");
    assert_eq!(result["state"]["completed_tool_calls"], json!(["session_info", "session_info"]));
    // An interrupt reaches a cell that calls all the time.
    let cell = queue(&daemon, &json!({"code": "print('calling')\nwhile True: session_info()"}));
    wait_for_line(&daemon, cell, "calling");
    post(&daemon, "interrupt", &json!({})).expect_status(200);
    assert_ended(&outcome(&daemon, cell), "interrupted", "by_user", 0);
    assert_eq!(value(&daemon, "session_info()['session']"), "'s'");
}

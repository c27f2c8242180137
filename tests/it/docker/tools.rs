//! Tools in cells: programs of the host, calls in every way that Python knows, and nested asks.

use serde_json::json;
use std::os::unix::fs::MetadataExt;

use super::asking::{
    answer, ask, conversation, events_of, notebook, notes, noting_tool, runs, says, scripted, told,
};
use super::helpers::{S, printed, raised, session_with, text, value, written};
use crate::support::{Daemon, eventually};

const NOTHING: &str = "parameters = { type = \"object\", properties = {} }\n";

/// `[tool.NAME]` of a Python program.
fn program(name: &str, code: &str, more: &str) -> String {
    let argv = json!(["python3", "-c", code]);
    format!("[tool.{name}]\ndescription = \"A program.\"\nargv = {argv}\n{more}\n")
}

fn base(config: &str) -> Option<Daemon> {
    session_with(config, json!({"image": "belljar/base"}))
}

/// A marker may come in pieces, and be printed by a thread that outlives its cell.
#[test]
fn the_live_output_shows_what_tools_said() {
    let Some(daemon) = base(&program("say", "print('said <b>')", NOTHING)) else { return };
    let code = "import sys, time\nm = say()\nfor piece in ('a ' + m[:5], m[5:17], m[17:] + ' b <<'):\n    \
                sys.stdout.write(piece); sys.stdout.flush(); time.sleep(0.1)\nprint('TOOL ' + m)";
    let result = daemon.run(S, code);
    assert_eq!(text(&result, "stdout"), "a said <b> b <<TOOL said <b>\n");
    assert_eq!(written(&daemon, Some(1)), "a said <b> b <<TOOL said <b>\n");
    let later = "import threading\ndef later():\n    time.sleep(0.5)\n    print('later ' + m, flush=True)\n\
                 threading.Thread(target=later).start()";
    printed(&daemon, later);
    eventually("the thread prints", || written(&daemon, None).contains("later said <b>\n").then_some(()));
    let shown = daemon.cli(["run", "-s", S, "print(m)"]);
    let logged = daemon.cli(["logs", S]).ok().stdout;
    assert!(logged.contains("later said <b>"), "{logged}");
    assert!(
        !shown.stdout.contains("TOOL_RESPONSE") && !logged.contains("TOOL_RESPONSE"),
        "{shown:?}\n{logged}"
    );
}

#[test]
fn code_in_code_has_its_own_timeout() {
    let Some(daemon) = base("") else { return };
    let code = "print(execute_python_code('kept = 1\\nwhile True: pass', timeout=1))\nprint('on', kept)";
    let said = printed(&daemon, code);
    assert!(said.contains("TimeoutError") && said.ends_with("on 1\n"), "{said}");
}

#[test]
fn code_calls_tools_in_every_way() {
    let add = "parameters = { type = \"object\", required = [\"a\", \"b\"], properties = { a = { type = \"integer\" }, \
               b = { type = \"integer\" } } }\noutput = { type = \"object\", properties = { sum = { type = \"integer\" } } }";
    let code = "import json, sys; x = json.load(sys.stdin); print(json.dumps({'sum': x['a'] + x['b']}))";
    let config = [program("add", code, add), program("say", "print('said <b>')", NOTHING)].concat();
    let Some(daemon) = base(&config) else { return };
    // Plainly, by place and by name, with a value that can be computed with.
    assert_eq!(value(&daemon, "add(1, 2)['sum'] + tools.add(a=3, b=4)['sum']"), "10");
    assert_eq!(value(&daemon, "await tools.aio.add(a=5, b=6)"), "{'sum': 11}");
    let gathered =
        "import asyncio\n[x['sum'] for x in await asyncio.gather(*[tools.aio.add(n, 1) for n in range(5)])]";
    assert_eq!(value(&daemon, gathered), "[1, 2, 3, 4, 5]");
    let threads = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(5) as pool:\n    \
                   sums = list(pool.map(lambda n: add(n, n)['sum'], range(10)))\nsums";
    assert_eq!(value(&daemon, threads), "[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]");
    assert_eq!(
        value(
            &daemon,
            "(add.__doc__.split('.')[0], list(__import__('inspect').signature(add).parameters)[:2])"
        ),
        "('A program', ['a', 'b'])"
    );
    // Text is a marker until it is printed.
    assert_eq!(value(&daemon, "m = say(); m.startswith('<<TOOL_RESPONSE:')"), "True");
    assert_eq!(printed(&daemon, "print('It ' + m + '!'); print(m)"), "It said <b>!\nsaid <b>\n");
    assert_eq!(value(&daemon, "m"), "'said <b>'");
    // What is wrong is an exception, with the place of it.
    let result = raised(&daemon, "add(a=1, b='two')", "tools.ToolError");
    assert!(text(&result, "/exception/value").contains("`/b`"), "{result:#}");
    assert_eq!(
        value(
            &daemon,
            "try:\n    add(1)\nexcept (ToolError, TypeError) as error:\n    kind = type(error).__name__\nkind in ('ToolError', 'TypeError')"
        ),
        "True"
    );
    raised(&daemon, "tools.nothing()", "AttributeError");
    assert_eq!(
        printed(&daemon, "print(execute_python_code('y = 20\\nprint(y + 1)')); print(y)").lines().last(),
        Some("20")
    );
    daemon.assert_sound();
}

#[test]
fn programs_of_the_host_are_held() {
    let (_folder, file) = notebook();
    let touch = format!("; touch {}", file.display());
    let quoted = json!(["echo", touch, "$HOME", "*"]);
    let config = [
        format!("[tool.shell]\ndescription = \"d\"\nargv = {quoted}\n{NOTHING}"),
        program(
            "who",
            "import os; print(os.getuid(), os.getgroups(), sorted(os.environ), os.getcwd())",
            NOTHING,
        ),
        program(
            "slow",
            "import subprocess; subprocess.run(['sleep', '4711'])",
            &format!("timeout = \"500ms\"\n{NOTHING}"),
        ),
        program("loud", "print('x' * 5000)", &format!("output_bytes = 1000\n{NOTHING}")),
        program("bad", "import sys; sys.exit('it broke')", NOTHING),
        program("liar", "print('no number')", &format!("output = {{ type = \"integer\" }}\n{NOTHING}")),
    ]
    .concat();
    let Some(daemon) = base(&config) else { return };
    let owner = std::fs::metadata(daemon.home()).expect("a home").uid();
    assert_eq!(printed(&daemon, "print(shell())"), format!("{touch} $HOME *\n"));
    assert!(!file.exists(), "a shell ran");
    let who = printed(&daemon, "print(who())");
    assert!(
        who.starts_with(&format!("{owner} ")) && !who.contains("BELLJAR") && who.trim().ends_with('/'),
        "{who}"
    );
    let code = |call: &str| {
        let code =
            format!("try:\n    {call}\nexcept ToolError as error:\n    print(error.code, error.message)");
        printed(&daemon, &code)
    };
    assert!(code("slow()").starts_with("timed_out "), "{}", code("slow()"));
    let left = std::fs::read_dir("/proc").expect("proc").flatten().any(|process| {
        std::fs::read(process.path().join("cmdline")).is_ok_and(|line| line == b"sleep\x004711\x00")
    });
    assert!(!left, "what the program started goes on");
    assert!(code("loud()").starts_with("too_large "));
    assert!(code("bad()").contains("failed ") && code("bad()").contains("it broke"));
    assert!(code("liar()").starts_with("failed "));
    daemon.assert_sound();
}

#[test]
fn ten_thousand_calls_are_all_answered() {
    let Some(daemon) = base("") else { return };
    let code = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(50) as pool:\n    \
                answers = list(pool.map(lambda _: session_info()['session'], range(10_000)))\n\
                len(answers), set(answers)";
    let result = daemon.run_with(S, json!({"code": code, "timeout_s": 120}));
    assert_eq!(text(&result, "/result/repr"), "(10000, {'s'})", "{result:#}");
    assert_eq!(events_of(&daemon, "tool_answered").len(), 10_000);
    daemon.assert_sound();
}

#[test]
fn an_ask_uses_only_what_it_may() {
    let (_folder, file) = notebook();
    let code = "try:\n    note(line='x')\nexcept ToolError as error:\n    print(error.code)";
    let script = [
        conversation(
            "listed",
            &[runs(code), super::asking::calls("note", &json!({"line": "y"})), says("done")],
        ),
        conversation(
            "held",
            &[
                runs("open('f', 'w')"),
                runs("x = [n * n for n in range(4)]\nx = sum(x)\nprint('sum', x)"),
                says("done"),
            ],
        ),
    ]
    .concat();
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "listed", "tools": ["execute_python_code"]})), "done");
    let told_now = told(&daemon);
    assert!(told_now[0].contains("not_allowed"), "{told_now:?}");
    assert!(told_now[1].contains("`note`") && told_now[1].contains("execute_python_code"), "{told_now:?}");
    assert_eq!(notes(&file), Vec::<String>::new());
    let refused = super::helpers::post(&daemon, "asks", &json!({"text": "x", "tools": ["nothing"]}));
    assert!(refused.expect_status(400)["message"].to_string().contains("nothing"));
    assert_eq!(answer(&daemon, json!({"text": "held", "restricted": true, "fresh": true})), "done");
    let told_now = told(&daemon);
    assert!(told_now[0].contains("the restricted policy does not allow"), "{told_now:?}");
    assert!(told_now[1].contains("sum 14"), "{told_now:?}");
    assert_eq!(value(&daemon, "__import__('os').path.exists('f')"), "False");
}

#[test]
fn code_asks_in_turn() {
    let names = "print(sorted(n for n in globals() if n in ('mine', 'given')))\nprint(len(given))";
    // The script goes on only if the inner cell sees what it was given, and nothing else.
    let seen = format!("{}expect = \"['given']\"\n", says("{\"count\": 3}"));
    let script = [
        conversation("count", &[runs(names), seen]),
        conversation("deep", &[runs("try:\n    print(ask('deep'))\nexcept ToolError as error:\n    print(error)"), says("deep done")]),
        conversation("outer", &[
            runs("mine = 1\nx = ask('count them', schema={'type': 'object', 'required': ['count'], 'properties': {'count': {'type': 'integer'}}}, context={'given': [1, 2, 3]})\nprint(x['count'] + 1)"),
            says("outer done"),
        ]),
        conversation("steps", &[runs("try:\n    print(ask('deep'))\nexcept ToolError as error:\n    print(error)"), says("steps done")]),
    ]
    .concat();
    let Some(daemon) = scripted("[agent]\ndepth = 1\n", &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "outer"})), "outer done");
    assert!(told(&daemon)[0].contains("4\n"), "{:?}", told(&daemon));
    // The session of the inner ask is gone, with its container.
    crate::support::eventually("one container is left", || (daemon.containers().len() == 1).then_some(()));
    assert_eq!(value(&daemon, "'given' in globals(), mine"), "(False, 1)");
    // It ends at the depth that is set.
    assert_eq!(answer(&daemon, json!({"text": "deep", "fresh": true})), "deep done");
    assert!(told(&daemon)[0].contains("deep done"), "{:?}", told(&daemon));
    // Limits only shrink: of three steps one is left for the inner ask, which needs two.
    let end = ask(&daemon, json!({"text": "steps", "fresh": true, "limits": {"steps": 3}}));
    assert_eq!((text(&end, "outcome"), &end["steps"]), ("answered", &json!(3)), "{end:#}");
    assert!(told(&daemon)[0].contains("StepLimit"), "{:?}", told(&daemon));
    crate::support::eventually("the inner sessions are gone", || {
        let sessions = daemon.http("GET", "/v1/sessions", b"").expect_status(200);
        (sessions["sessions"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
    daemon.assert_sound();
}

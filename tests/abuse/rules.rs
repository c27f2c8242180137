//! Rules belong to code: what an ask may not do, nothing that its code leaves behind may do either, whenever and in
//! whose name it speaks, until a reset.

use serde_json::{Value, json};

use super::grounds::on_every_ground;
use crate::docker::asking::{
    answer, approval, approvals, begin, calls, conversation, decide, decide_next, end_of, events_of,
    notebook, notes, noting_tool, runs, says, scripted, write_script,
};
use crate::docker::helpers::{go, list, outcome, post, queue, restart_by, text, with_go, workspace};
use crate::support::{Daemon, User, eventually};

on_every_ground!(nothing_that_an_ask_left_behind_has_a_model_call_what_the_ask_may_not);

/// A user id without an account; the kernel does not mind.
const ANN: User = User { uid: 61_101, gid: 61_101, group: None };

/// Tries to have a model call the tool by way of an ask within, and writes down what came of it.
const ATTEMPT: &str = "\
def attempt(name):
    try:
        said = 'answered ' + str(ask('the inner one'))
    except ToolError as error:
        said = error.code + ': ' + error.message
    with open('said-' + name, 'w') as file:
        file.write(said)
";

/// The words of an attempt of this name, once it was made.
fn said(daemon: &Daemon, name: &str) -> String {
    let file = workspace(daemon).join(format!("said-{name}"));
    eventually(&format!("{name} tries"), || {
        std::fs::read_to_string(&file).ok().filter(|said| !said.is_empty())
    })
}

/// An inner model that calls `note` at once, and an outer one that runs this code.
fn script(code: &str) -> String {
    let code = with_go(&format!("{ATTEMPT}{code}"));
    [
        conversation("the inner one", &[runs("note(line='nobody was asked')"), says("inner done")]),
        conversation("outer", &[runs(&code), says("left")]),
    ]
    .concat()
}

/// An ask before whose calls of `note` a person has to be asked.
fn careful() -> Value {
    json!({"text": "outer", "approval": {"tools": ["note"]}})
}

const LEFT_BEHIND: &str = "
import asyncio, multiprocessing, signal, threading
def later():
    wait_for_go()
    attempt('thread')
threading.Thread(target=later).start()
async def task():
    while not os.path.exists('/workspace/go'):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(attempt, 'task')
import os
kept = asyncio.ensure_future(task())
def alarm(*_):
    if os.path.exists('/workspace/go'):
        signal.setitimer(signal.ITIMER_REAL, 0)
        threading.Thread(target=attempt, args=('signal',)).start()
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
class Shown:
    def __repr__(self):
        if os.path.exists('/workspace/go'):
            attempt('repr')
        return 'shown'
shown = Shown()
";

fn nothing_that_an_ask_left_behind_has_a_model_call_what_the_ask_may_not() {
    let (_folder, file) = notebook();
    let Some(daemon) = scripted(&noting_tool("note", &file), &script(LEFT_BEHIND)) else { return };
    assert_eq!(answer(&daemon, careful()), "left");
    go(&daemon);
    for name in ["thread", "task", "signal"] {
        let said = said(&daemon, name);
        assert!(said.starts_with("not_allowed: ") && said.contains("ask 1"), "{name}: {said}");
    }
    daemon.http("GET", "/v1/sessions/s/variables", b"").expect_status(200);
    // What shows a variable is a process of its own, which cannot call tools at all.
    let repr = workspace(&daemon).join("said-repr").exists().then(|| said(&daemon, "repr"));
    let is_refused = |said: &str| said.starts_with("not_allowed: ") || said.starts_with("unavailable: ");
    assert!(repr.as_deref().is_none_or(is_refused), "{repr:?}");
    assert_eq!(notes(&file), Vec::<String>::new());
    assert!(approvals(&daemon).is_empty());
    daemon.assert_sound();
}

/// The rules are in the journal, with the code that they bind.
#[test]
fn the_death_of_the_daemon_does_not_lift_the_rules() {
    let (_folder, file) = notebook();
    let code = "import threading\ndef later():\n    wait_for_go()\n    attempt('thread')\nthreading.Thread(target=later).start()";
    let Some(mut daemon) = scripted(&noting_tool("note", &file), &script(code)) else { return };
    assert_eq!(answer(&daemon, careful()), "left");
    restart_by(&mut daemon, "KILL");
    go(&daemon);
    let said = said(&daemon, "thread");
    assert!(said.starts_with("not_allowed: "), "{said}");
    assert_eq!(notes(&file), Vec::<String>::new());
    daemon.assert_sound();
}

/// Whether something still runs is what the guest says.
#[test]
fn the_owner_is_asked_for_what_an_earlier_ask_was_not_allowed_until_a_reset() {
    let (_folder, file) = notebook();
    let script = conversation("outer", &[runs("x = 1"), says("left")]);
    let Some(mut daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    assert_eq!(answer(&daemon, json!({"text": "outer", "tools": ["execute_python_code"]})), "left");
    let note = |line: &str| json!({ "code": format!("print(note(line='{line}'))") });

    let cell = queue(&daemon, &note("accepted"));
    let wanted = approval(&daemon);
    assert_eq!(
        (&wanted["cell"], &wanted["bound_by"], &wanted["ask"]),
        (&json!(cell), &json!(1), &Value::Null)
    );
    let listed = daemon.cli(["approve"]).ok().stdout;
    assert!(listed.contains(text(&wanted, "id")), "{listed}");
    assert_eq!(notes(&file), Vec::<String>::new());
    decide(&daemon, &wanted, json!({"accept": {}})).expect_status(200);
    assert_eq!(text(&outcome(&daemon, cell), "stdout"), "noted accepted\n");

    // Neither an undo nor another daemon changes who may have left something.
    post(&daemon, "undo", &json!({"cells": 1})).expect_status(200);
    restart_by(&mut daemon, "KILL");
    let cell = queue(&daemon, &note("rejected"));
    let wanted = decide_next(&daemon, json!({"reject": {"reason": "no"}}));
    assert_eq!(wanted["bound_by"], json!(1));
    assert_eq!(text(&outcome(&daemon, cell), "/exception/type"), "tools.ToolError");

    // A replay runs the code of the ask again, and its rules come with it.
    post(&daemon, "replay", &json!({})).expect_status(200);
    let cell = queue(&daemon, &note("rejected"));
    decide_next(&daemon, json!({"reject": {"reason": "no"}}));
    outcome(&daemon, cell);

    post(&daemon, "reset", &json!({})).expect_status(200);
    let cell = queue(&daemon, &note("free"));
    assert_eq!(text(&outcome(&daemon, cell), "stdout"), "noted free\n");
    // And so they stay when the daemon dies.
    restart_by(&mut daemon, "KILL");
    let cell = queue(&daemon, &note("still free"));
    assert_eq!(text(&outcome(&daemon, cell), "stdout"), "noted still free\n");
    assert_eq!(notes(&file), ["accepted", "free", "still free"]);
    daemon.assert_sound();
}

/// The owner's own cell may ask a model; the thread that waited for it may not without the owner.
#[test]
fn an_ask_from_a_cell_of_the_owner_asks_the_owner_and_keeps_to_the_rules_of_the_ask_before() {
    let (_folder, file) = notebook();
    let Some(daemon) = scripted(&noting_tool("note", &file), &script("")) else { return };
    assert_eq!(answer(&daemon, careful()), "left");
    let cell = queue(&daemon, &json!({"code": "attempt('owner')"}));
    let wanted = decide_next(&daemon, json!({"accept": {}}));
    assert_eq!((text(&wanted, "/subject/name"), &wanted["bound_by"]), ("ask", &json!(1)));
    let wanted = eventually("the inner ask waits", || {
        approvals(&daemon).into_iter().find(|wanted| wanted["subject"]["name"] == "note")
    });
    decide(&daemon, &wanted, json!({"reject": {"reason": "no"}})).expect_status(200);
    outcome(&daemon, cell);
    assert_eq!(said(&daemon, "owner"), "answered inner done");
    assert_eq!(notes(&file), Vec::<String>::new());
}

/// The inner ask is the later one's, and the code that begins it may be the earlier one's.
#[test]
fn an_ask_within_a_later_ask_keeps_to_the_rules_of_an_earlier_one() {
    let (_folder, file) = notebook();
    let script = [
        conversation("the inner one", &[calls("note", &json!({"line": "by the model"})), says("inner done")]),
        conversation("first", &[runs("x = 1"), says("first done")]),
        conversation("second", &[runs("print(ask('the inner one'))"), says("second done")]),
    ]
    .concat();
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let first = json!({"text": "first", "approval": {"tools": ["note"]}});
    assert_eq!(answer(&daemon, first), "first done");
    let number = begin(&daemon, json!({"text": "second", "approval": "auto", "fresh": true}));
    let wanted = approval(&daemon);
    assert_eq!(text(&wanted, "/subject/name"), "note");
    assert_eq!(notes(&file), Vec::<String>::new());
    decide(&daemon, &wanted, json!({"respond": {"text": "no"}})).expect_status(200);
    assert_eq!(text(&end_of(&daemon, number), "answer"), "second done");
    assert_eq!(notes(&file), Vec::<String>::new());
}

/// What is left of the steps of an ask that has ended is all that its code may have others spend.
#[test]
fn what_an_ask_has_used_up_its_code_cannot_spend_in_the_name_of_a_later_one() {
    let script = [
        conversation("the inner one", &[says("inner done")]),
        conversation("first", &[runs("x = 1"), says("first done")]),
        conversation(
            "second",
            &[
                runs("try:\n    print(ask('the inner one'))\nexcept ToolError as error:\n    print(error.code, error.message)"),
                says("second done"),
            ],
        ),
    ]
    .concat();
    let Some(mut daemon) = scripted("", &script) else { return };
    let said = |daemon: &Daemon| {
        let finished = events_of(daemon, "cell_finished").pop().expect("a result");
        text(&finished, "/result/stdout").to_owned()
    };
    assert_eq!(answer(&daemon, json!({"text": "first", "limits": {"steps": 2}})), "first done");
    for _ in 0..2 {
        assert_eq!(answer(&daemon, json!({"text": "second", "fresh": true})), "second done");
        let said = said(&daemon);
        assert!(said.contains("ask 1") && said.contains("belljar reset"), "{said}");
        restart_by(&mut daemon, "KILL");
    }
    post(&daemon, "reset", &json!({})).expect_status(200);
    assert_eq!(answer(&daemon, json!({"text": "second", "fresh": true})), "second done");
    assert_eq!(said(&daemon), "inner done\n");
    daemon.assert_sound();
}

/// The default may be `process`; what is asked from a jail stays in one, with no more memory than that has.
#[test]
fn an_inner_session_is_never_less_isolated_than_the_one_around_it() {
    let (_folder, file) = notebook();
    let config = format!(
        "{}[agent]\napproval_deadline = \"3s\"\n[sandbox]\nbackend = \"process\"\n[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n",
        noting_tool("note", &file)
    );
    let daemon = Daemon::as_user_with(ANN, &config);
    let looks = format!(
        "import os\nnote(line=f\"{{os.path.exists('{}')}}\")\nnote(line=str(session_info()['memory_bytes']))",
        daemon.home().join("config.toml").display()
    );
    let script = conversation("the inner one", &[runs(&looks), says("inner done")]);
    write_script(&daemon, &script);
    let memory: u64 = 256 << 20;
    daemon.cli(["new", "s", "--backend", "bubblewrap", "--memory", "256m"]).ok();
    // In a session of the backend `process` a person would be asked first, and the deadline would pass.
    assert_eq!(daemon.cli(["exec", "-s", "s", "print(ask('the inner one'))"]).ok().stdout, "inner done\n");
    assert_eq!(notes(&file), ["False".to_owned(), memory.to_string()]);
}

/// What it saw is what its own rules let it see.
#[test]
fn a_variable_that_a_model_reads_runs_its_code_under_the_rules_of_the_ask() {
    let (_folder, file) = notebook();
    let shows = "class Shown:\n    def __repr__(self):\n        try:\n            note(line='repr')\n        except ToolError as error:\n            return error.code\n        return 'shown'\nshown = Shown()";
    let script = conversation("outer", &[calls("read_variable", &json!({"name": "shown"})), says("read")]);
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    daemon.run("s", shows);
    let number = begin(&daemon, json!({"text": "outer", "tools": ["read_variable"]}));
    let end = end_of(&daemon, number);
    assert_eq!(text(&end, "answer"), "read", "{end:#}");
    assert_eq!(notes(&file), Vec::<String>::new());
    assert!(list(&daemon.http("GET", "/v1/approvals", b"").expect_status(200), "approvals").is_empty());
}

//! A person is asked before anything of a careful ask acts outside of the sandbox.

use serde_json::{Value, json};

use crate::docker::asking::{
    begin, calls, conversation, decide_next, end_of, notebook, notes, noting_tool, runs, says, scripted, told,
};
use crate::docker::commands::background;
use crate::docker::helpers::text;
use crate::support::Daemon;

fn careful(words: &str) -> Value {
    json!({"text": words, "approval": "ask", "fresh": true})
}

#[test]
fn the_model_of_a_careful_ask_calls_no_host_tool_unasked() {
    let (_folder, file) = notebook();
    let script = conversation(
        "do",
        &[
            calls("note", &json!({"line": "no"})),
            calls("session_info", &json!({})),
            calls("note", &json!({"line": "yes"})),
            calls("ask", &json!({"prompt": "the inner one"})),
            says("done"),
        ],
    );
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let number = begin(&daemon, careful("do"));
    let wanted = decide_next(&daemon, json!({"respond": {"text": "not that"}}));
    assert_eq!(wanted["subject"]["arguments"]["line"], "no", "{wanted:#}");
    assert_eq!(notes(&file), Vec::<String>::new());
    // What only looks at the session is not asked for.
    let wanted = decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(wanted["subject"]["arguments"]["line"], "yes", "{wanted:#}");
    let wanted = decide_next(&daemon, json!({"respond": {"text": "work alone"}}));
    assert_eq!(text(&wanted, "/subject/name"), "ask");
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert_eq!(notes(&file), ["yes"]);
    assert!(told(&daemon)[3].contains("work alone"));
    daemon.assert_sound();
}

/// The person has seen the code, but not what it calls with which arguments.
#[test]
fn code_of_a_careful_ask_calls_no_host_tool_unasked() {
    let (_folder, file) = notebook();
    let code = "for line in ('no', 'yes'):\n    try:\n        print(note(line=line))\n    except ToolError as error:\n        print(error.code)\nprint(session_info()['network'])";
    let script = conversation("do", &[runs(code), says("done")]);
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    let number = begin(&daemon, careful("do"));
    let wanted = decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(text(&wanted, "/subject/kind"), "cell");
    let wanted = decide_next(&daemon, json!({"reject": {"reason": "no"}}));
    assert_eq!(wanted["subject"]["arguments"]["line"], "no", "{wanted:#}");
    assert_eq!(notes(&file), Vec::<String>::new());
    let wanted = decide_next(&daemon, json!({"accept": {}}));
    assert_eq!(wanted["subject"]["arguments"]["line"], "yes", "{wanted:#}");
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert_eq!(notes(&file), ["yes"]);
    assert!(told(&daemon)[0].contains("rejected\nnoted yes\nnone"), "{:?}", told(&daemon));
    daemon.assert_sound();
}

/// Time stands still for a cell that waits for a person, but not for one that computes meanwhile.
#[test]
fn a_question_to_a_person_is_no_way_around_a_deadline() {
    computes_while_a_person_is_asked(|_| {});
}

/// A command may use the processors as well, and this one does not.
#[test]
fn neither_is_one_beside_a_command_that_sleeps() {
    computes_while_a_person_is_asked(|daemon| {
        background(daemon, "exec sleep 600");
    });
}

/// Something else may be made to run beside the cell, which has a second and computes for a minute.
fn computes_while_a_person_is_asked(beside: impl FnOnce(&Daemon)) {
    let (_folder, file) = notebook();
    let code = "import threading, time\nthreading.Thread(target=note, args=('x',), daemon=True).start()\nend = time.time() + 60\nwhile time.time() < end: pass";
    let cell = calls("execute_python_code", &json!({"python_code_snippet": code, "timeout": 1}));
    let script = conversation("do", &[cell, says("done")]);
    let Some(daemon) = scripted(&noting_tool("note", &file), &script) else { return };
    beside(&daemon);
    let ask = json!({"text": "do", "approval": {"tools": ["note"]}, "fresh": true});
    let number = begin(&daemon, ask);
    assert_eq!(text(&end_of(&daemon, number), "answer"), "done");
    assert!(told(&daemon)[0].contains("ran out of time"), "{:?}", told(&daemon));
    daemon.assert_sound();
}

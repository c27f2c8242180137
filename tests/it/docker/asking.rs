//! Words that the tests of asks share: scripts for the model, asks, approvals, tools of the host.

use serde_json::{Value, json};
use std::path::Path;

use super::helpers::{S, list, number, post, session_with, text};
use crate::model_server::ModelServer;
use crate::support::{Daemon, Response, eventually};

/// A session whose model plays this script. `more` is more of the configuration.
pub fn scripted(more: &str, script: &str) -> Option<Daemon> {
    let config = format!("{more}\n[model.script]\nprovider = \"script\"\nfile = \"script.toml\"\n");
    let daemon = session_with(&config, json!({"image": "belljar/base"}))?;
    write_script(&daemon, script);
    Some(daemon)
}

pub fn write_script(daemon: &Daemon, script: &str) {
    std::fs::write(daemon.home().join("script.toml"), script).expect("a script");
}

/// The configuration of a model behind a server, with deadlines that are soon over.
pub fn served(server: &ModelServer, more: &str) -> String {
    format!(
        "[model.served]\nprovider = \"compatible\"\nmodel = \"test\"\nbase_url = \"{}\"\n\
         first_byte = \"1s\"\nidle = \"1s\"\n{more}\n",
        server.base_url()
    )
}

/// A JSON string is one in TOML, too.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// A reply of the script: words.
pub fn says(words: &str) -> String {
    format!("[[reply]]\ncontent = {}\n", quoted(words))
}

/// A reply of the script: a call.
pub fn calls(name: &str, arguments: &Value) -> String {
    let mut arguments = arguments.clone();
    arguments["tool_call_purpose"] = json!("the test wants it");
    format!(
        "[[reply]]\n[[reply.call]]\nname = {}\narguments_text = {}\n",
        quoted(name),
        quoted(&arguments.to_string())
    )
}

/// A reply of the script: a cell.
pub fn runs(code: &str) -> String {
    calls("execute_python_code", &json!({"python_code_snippet": code, "timeout": 30}))
}

/// The script of the conversation that begins with these words.
pub fn conversation(first: &str, replies: &[String]) -> String {
    let replies = replies.concat().replace("[[reply", "[[conversation.reply");
    format!("[[conversation]]\nfirst = {}\n{replies}", quoted(first))
}

/// `[tool.NAME]` that appends a line to the file and, if that is what it is told, never ends.
pub fn noting_tool(name: &str, file: &Path) -> String {
    let program = format!(
        "import json, sys, time\nwanted = json.load(sys.stdin)\nopen({:?}, 'a').write(wanted['line'] + '\\n')\n\
         time.sleep(wanted.get('wait', 0))\nprint('noted ' + wanted['line'])",
        file.to_str().expect("UTF-8")
    );
    format!(
        "[tool.{name}]\ndescription = \"Note a line.\"\nargv = [\"python3\", \"-c\", {}]\n\
         parameters = {{ type = \"object\", required = [\"line\"], properties = {{ line = {{ type = \"string\" }}, \
         wait = {{ type = \"number\" }} }} }}\n",
        quoted(&program)
    )
}

/// A folder that every user may write to, and in it the file of `noting_tool`.
pub fn notebook() -> (tempfile::TempDir, std::path::PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("bjn").tempdir_in("/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let file = folder.path().join("notes");
    (folder, file)
}

/// The lines that the tool has noted.
pub fn notes(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Asks, and gives how it ended.
#[track_caller]
pub fn ask(daemon: &Daemon, request: Value) -> Value {
    post(daemon, "asks?wait=true", &request).expect_status(200)["end"].clone()
}

/// Asks something that has to be answered, and gives the answer.
#[track_caller]
pub fn answer(daemon: &Daemon, request: Value) -> String {
    let end = ask(daemon, request);
    assert_eq!(end["outcome"], "answered", "{end:#}\n{}", daemon.log());
    text(&end, "answer").to_owned()
}

/// Asks without waiting, and gives the number of the ask.
#[track_caller]
pub fn begin(daemon: &Daemon, request: Value) -> u64 {
    number(&post(daemon, "asks", &request).expect_status(202), "/ask")
}

#[track_caller]
pub fn view(daemon: &Daemon, ask: u64) -> Value {
    daemon.http("GET", &format!("/v1/sessions/{S}/asks/{ask}"), b"").expect_status(200)
}

/// How an ask ended, once it has.
#[track_caller]
pub fn end_of(daemon: &Daemon, ask: u64) -> Value {
    eventually("the ask ends", || {
        let view = view(daemon, ask);
        (view["state"] == "done").then(|| view["end"].clone())
    })
}

#[track_caller]
pub fn wait_for_state(daemon: &Daemon, ask: u64, state: &str) {
    eventually(&format!("the ask is {state}"), || (view(daemon, ask)["state"] == state).then_some(()));
}

/// What waits for a person now.
#[track_caller]
pub fn approvals(daemon: &Daemon) -> Vec<Value> {
    list(&daemon.http("GET", "/v1/approvals", b"").expect_status(200), "approvals").to_vec()
}

/// The one thing that waits for a person, once it does.
#[track_caller]
pub fn approval(daemon: &Daemon) -> Value {
    eventually("a person is asked", || {
        let mut approvals = approvals(daemon);
        assert!(approvals.len() < 2, "{approvals:#?}");
        approvals.pop()
    })
}

pub fn decide(daemon: &Daemon, approval: &Value, decision: Value) -> Response {
    let path = format!("/v1/approvals/{}", text(approval, "id"));
    daemon.http("POST", &path, decision.to_string().as_bytes())
}

/// Decides on the one thing that waits.
#[track_caller]
pub fn decide_next(daemon: &Daemon, decision: Value) -> Value {
    let approval = approval(daemon);
    decide(daemon, &approval, decision).expect_status(200);
    approval
}

/// What the model was told by tools and cells, in the conversation so far.
#[track_caller]
pub fn told(daemon: &Daemon) -> Vec<String> {
    let history = daemon.http("GET", &format!("/v1/sessions/{S}/history"), b"").expect_status(200);
    let messages = list(&history, "messages").iter().filter(|message| message["role"] == "tool");
    messages.map(|message| text(message, "content").to_owned()).collect()
}

/// The events of this type so far.
pub fn events_of(daemon: &Daemon, kind: &str) -> Vec<Value> {
    daemon.events(S, 0).into_iter().filter(|event| event["type"] == kind).collect()
}

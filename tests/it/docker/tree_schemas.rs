//! Schemas that refer to themselves: of a program's tool, of a tool that a client lends and of an answer, in each dialect.

use serde_json::{Value, json};

use super::asking::{begin, calls, conversation, end_of, says, scripted};
use super::client_tools::{Client, reply};
use super::helpers::{S, text};
use crate::support::Daemon;

/// Of a tree, as an inline table of TOML.
const SCHEMA: &str = "{ type = \"object\", required = [\"root\"], properties = { root = { \"$ref\" = \"#/$defs/node\" } }, \
     \"$defs\" = { node = { type = \"object\", required = [\"name\"], additionalProperties = false, properties = { \
     name = { type = \"string\" }, children = { type = \"array\", items = { \"$ref\" = \"#/$defs/node\" } } } } } }";
const LEAVES: &str = "import json, sys\n\
    def leaves(node): return sum(map(leaves, node['children'])) if node.get('children') else 1\n\
    print(leaves(json.load(sys.stdin)['root']))";
/// Where the wrong tree of a call is wrong, and that of an answer.
const IN_CALL: &str = "/root/children/1/name";
const IN_ANSWER: &str = "/root/children/0/children/0/name";

fn schema() -> Value {
    let table: toml::Table = format!("tree = {SCHEMA}").parse().expect("TOML");
    serde_json::to_value(&table["tree"]).expect("JSON")
}

fn tree(first: Value, second: Value) -> Value {
    let first = json!({"name": "b", "children": [{"name": first}, {"name": "d", "children": []}]});
    json!({"root": {"name": "a", "children": [first, {"name": second}]}})
}

fn right() -> Value {
    tree(json!("c"), json!("e"))
}

/// The replies of a model that gives a wrong tree to the program, then the right one to both tools, and answers likewise.
fn replies(dialect: &str) -> Vec<String> {
    let (wrong_call, wrong_answer) = (tree(json!("c"), json!(5)), tree(json!(3), json!("e")));
    let root = |tree: &Value| tree["root"].to_string();
    // Names, strings and lists of JSON are those of Python.
    let code = format!(
        "try:\n    leaves(root={})\nexcept ToolError as error:\n    print(error.message)\n\
         print('leaves', leaves(root={tree}), 'deepest', deepest(root={tree}))",
        root(&wrong_call),
        tree = root(&right())
    );
    match dialect {
        "tool_calls" => vec![
            calls("leaves", &wrong_call),
            calls("leaves", &right()),
            calls("deepest", &right()),
            says(&wrong_answer.to_string()),
            says(&right().to_string()),
        ],
        "next_step" => {
            let step = |tool: &str, mut fields: Value| {
                fields["tool"] = json!(tool);
                says(&json!({"current_state": "So.", "function": fields}).to_string())
            };
            let done = |answer: &Value| step("report_task_completion", json!({ "answer": answer }));
            vec![
                step("leaves", wrong_call),
                step("leaves", right()),
                step("deepest", right()),
                done(&wrong_answer),
                done(&right()),
            ]
        }
        "json_action" => {
            let action = |action: &str, field: &str, value: &Value| {
                says(&json!({"thought": "So.", "action": action, field: value}).to_string())
            };
            vec![
                action("execute_code", "code", &json!(code)),
                action("provide_answer", "final_answer", &wrong_answer),
                action("provide_answer", "final_answer", &right()),
            ]
        }
        _ => vec![
            says(&format!("So.\n<execution-code>\n{code}\n</execution-code>")),
            says(&wrong_answer.to_string()),
            says(&right().to_string()),
        ],
    }
}

/// All that was said in the conversation so far.
fn said(daemon: &Daemon) -> String {
    let history = daemon.http("GET", &format!("/v1/sessions/{S}/history"), b"").expect_status(200);
    history["messages"].to_string()
}

#[test]
fn trees_go_through_tools_and_answers_in_every_dialect() {
    let dialects = ["tool_calls", "next_step", "json_action", "xml_tags"];
    let script: String = dialects.map(|dialect| conversation(dialect, &replies(dialect))).concat();
    let argv = json!(["python3", "-c", LEAVES]);
    let config = format!(
        "[tool.leaves]\ndescription = \"Count the leaves.\"\nargv = {argv}\nparameters = {SCHEMA}\n\
         output = {{ type = \"integer\" }}\n"
    );
    let Some(daemon) = scripted(&config, &script) else { return };
    let lent = json!([{
        "name": "deepest", "description": "Say how deep it is.", "parameters": schema(),
        "output": {"type": "integer"},
    }]);
    let mut client = Client::lend(&daemon, &lent);
    for dialect in dialects {
        let asked = json!({"text": dialect, "dialect": dialect, "schema": schema(), "fresh": true});
        let number = begin(&daemon, asked);
        let call = client.next_call();
        assert_eq!((text(&call, "name"), &call["arguments"]), ("deepest", &right()), "{dialect}");
        assert_eq!(reply(&daemon, &call, json!({"value": 3})), 200);
        let end = end_of(&daemon, number);
        assert_eq!((text(&end, "outcome"), &end["value"]), ("answered", &right()), "{dialect}: {end:#}");
        let said = said(&daemon);
        for place in [IN_CALL, IN_ANSWER] {
            assert!(said.contains(place), "{dialect} is not told of {place}: {said}");
        }
        let is_code = matches!(dialect, "json_action" | "xml_tags");
        assert!(!is_code || said.contains("leaves 3 deepest 3"), "{dialect}: {said}");
    }
    drop(client);
    daemon.assert_sound();
}

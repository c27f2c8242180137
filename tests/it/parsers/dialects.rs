//! What a model says, as each dialect reads it.

use belljar::agent::{AskMachine, Input, Setup};
use belljar::protocol::ask::AskSpec;
use belljar::protocol::chat::ChatReply;
use serde_json::{Value, json};

const DIALECTS: [&str; 4] = ["tool_calls", "next_step", "json_action", "xml_tags"];

fn setup() -> Setup {
    let tools = json!([
        {"name": "execute_python_code", "description": "Runs code.", "parameters": {
            "type": "object",
            "properties": {"python_code_snippet": {"type": "string"}},
            "required": ["python_code_snippet"],
        }},
        {"name": "note", "description": "Notes.", "parameters": {
            "type": "object",
            "properties": {"line": {"type": "string", "maxLength": 100}, "at": {"type": "integer", "minimum": 1}},
            "required": ["line"],
            "additionalProperties": false,
        }},
    ]);
    let setup = json!({
        "tools": tools, "malformed": 2, "legacy_function_call": true, "told_chars": 2000, "python": true,
        "degrade_after": 0, "context_tokens": 100_000, "model_tools": true, "cell_timeout_s": 30.0,
        "max_cell_timeout_s": 60.0, "workspace": "/workspace", "dependencies": {"installed": [], "main": []},
        "prompt": null,
    });
    serde_json::from_value(setup).expect("a setup")
}

fn spec(dialect: &str, schema: &Value) -> AskSpec {
    let spec = json!({
        "text": "Go on.", "model": "m", "dialect": dialect, "language": "en", "approval": "auto",
        "tools": ["execute_python_code", "note"], "schema": schema, "context": {}, "restricted": false,
        "limits": {"steps": 10, "failures": 4, "tokens": 1_000_000, "seconds": 60.0}, "fresh": false, "depth": 0,
    });
    serde_json::from_value(spec).expect("an ask")
}

/// The input as a whole reply, and as the arguments of a call. What comes of it can be told again after a restart.
pub fn read(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let call = json!({"id": "1", "name": "note", "arguments": text});
    let called: Vec<Value> = vec![call];
    let answer = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    for dialect in DIALECTS {
        for (content, calls, schema) in
            [(&*text, &[][..], &Value::Null), (&*text, &[][..], &answer), ("", &called[..], &Value::Null)]
        {
            let message = json!({"role": "assistant", "content": content, "tool_calls": calls});
            let reply: ChatReply =
                serde_json::from_value(json!({"message": message, "finish": "stop"})).expect("a reply");
            let mut machine = AskMachine::new(spec(dialect, schema), setup(), Vec::new());
            machine.step(Input::Begin);
            let effects = machine.step(Input::ModelReplied { step: 1, reply: Box::new(reply) });
            assert!(
                !effects.is_empty() || !machine.outstanding().is_empty(),
                "{dialect}: nothing comes of it"
            );
            assert!(!machine.into_history().is_empty(), "{dialect}");
        }
    }
}

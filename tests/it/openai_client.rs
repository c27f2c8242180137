//! The model server against a client of another project: the `openai` package of Python.

use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

use crate::model_server::{Fault, ModelServer, Play, Reply};

const KEY: &str = "sk-loopback";

#[test]
fn the_openai_package_understands_the_model_server() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/openai/bin/python");
    assert!(
        python.exists(),
        "this test needs the `openai` package in target/openai: run `make openai-client`, which needs pip"
    );
    let calls =
        || Reply::call("run", json!({"code": "print('größer')"})).and_call("run", json!({"code": "2"}));
    let plays: [Play; 7] = [
        Reply::text("Zwei. 二").into(),
        calls().into(),
        Reply::text("Zwei. 二").into(),
        calls().into(),
        Fault::Status(429, Some("0.1")).into(),
        Reply::text("Endlich").into(),
        Fault::Status(500, None).into(),
    ];
    let server = ModelServer::start_with_key(plays.into_iter().chain([Fault::Cut.into()]), KEY);
    let output = Command::new(python)
        .arg(root.join("tests/openai_client.py"))
        .args([server.base_url().as_str(), KEY])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = |text: &str| json!({"content": text, "calls": [], "finish": "stop", "counted": true});
    let called = |content: Value| {
        json!({"content": content, "finish": "tool_calls", "counted": true,
            "calls": [["run", r#"{"code":"print('größer')"}"#], ["run", r#"{"code":"2"}"#]]})
    };
    assert_eq!(report["whole"], said("Zwei. 二"));
    assert_eq!(report["whole_calls"], called(Value::Null));
    assert_eq!(report["streamed"], said("Zwei. 二"));
    assert_eq!(report["streamed_calls"], called(json!("")));
    assert_eq!(report["after_429"], said("Endlich"));
    assert_eq!(report["server_error"], json!(["InternalServerError", 500]));
    assert!(report["cut"].is_string(), "{report}");
    assert_eq!(report["wrong_key"], json!(["AuthenticationError", 401]));
}

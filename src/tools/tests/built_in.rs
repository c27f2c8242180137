//! The built-in tools, one by one.

use serde_json::{Value, json};
use std::sync::Arc;

use super::port::MemoryPort;
use super::{call, text_of};
use crate::protocol::ask::Language;
use crate::tools::{NestedAsk, Registry, SessionPort, ToolOutput};

async fn text(port: &Arc<MemoryPort>, name: &str, arguments: Value) -> String {
    match call(&Registry::built_in().unwrap(), port, name, arguments).await {
        Ok(output) => text_of(output),
        Err(failure) => format!("{}: {}", failure.code, failure.message),
    }
}

#[tokio::test]
async fn code_is_no_call_and_its_time_is_checked_all_the_same() {
    let port = Arc::new(MemoryPort::default());
    let refused = text(&port, "execute_python_code", json!({"python_code_snippet": "1"})).await;
    assert!(refused.starts_with("unavailable"), "{refused}");
    let refused = text(&port, "exec_code", json!({"code": "2", "timeout": 0})).await;
    assert!(refused.starts_with("bad_arguments"), "{refused}");
}

#[tokio::test]
async fn last_result_is_kept_on_success_only() {
    let port = Arc::new(MemoryPort::default());
    let registry = Registry::built_in().unwrap();
    let compute = async |code: &str| {
        call(&registry, &port, "compute_with_python", json!({"code": code, "description": "d"})).await
    };
    let bare = |text: &str| Ok(ToolOutput::Value(text.into()));
    assert_eq!(compute("first").await, bare("first"));
    assert_eq!(compute("last_result").await, bare("first"));
    let failure = compute("1/0").await.unwrap_err();
    let error = "PythonError: ZeroDivisionError: division by zero";
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("python_error", error));
    assert_eq!(port.last_result(), Some("first".into()));
    // The expression gets only those of the given values that it mentions.
    assert_eq!(compute("list(given)").await, bare("given last_result"));
    let undescribed = call(&registry, &port, "compute_with_python", json!({"code": "1"})).await.unwrap_err();
    assert!(undescribed.message.contains("description"), "{undescribed:?}");
}

#[tokio::test]
async fn a_plan_is_answered_with_a_report_or_with_what_is_wrong() {
    let port = Arc::new(MemoryPort { language: Language::Chinese, ..MemoryPort::default() });
    let plan = |status| {
        json!({"recursive_plan_tree": {"core_goal": "g", "tree_nodes": [
            {"task_id": "T1", "task_name": "甲", "status": status}]}})
    };
    let first = text(&port, "recursive_plan_tree_todo", plan("pending")).await;
    assert!(first.starts_with("变更总结：\n✅ 首次创建计划树\n"), "{first}");
    assert!(first.contains("- [⏳] **甲**（ID：T1）"), "{first}");
    assert!(first.contains("status_statistics: {\"__completion_rate\":0.0"), "{first}");
    let second = text(&port, "recursive_plan_tree_todo", plan("completed")).await;
    assert!(second.contains("🔄 状态变更：甲（待执行 → 执行成功）"), "{second}");
    let circle = json!({"recursive_plan_tree": {"core_goal": "g", "tree_nodes": [
        {"task_name": "a", "dependencies": ["a"]}]}});
    let wrong = text(&port, "recursive_plan_tree_todo", circle).await;
    assert_eq!(wrong, "bad_arguments: tasks wait for each other in a circle: a → a");
}

#[tokio::test]
async fn a_file_is_read_within_its_limits() {
    let mut port = MemoryPort::default();
    port.files.insert("data/input.txt".into(), "héllo\n".into());
    port.files.insert("big.log".into(), "x\n".repeat(600_000).into());
    port.files.insert("latin.txt".into(), b"h\xe9".to_vec());
    let port = Arc::new(port);
    let read = async |arguments| text(&port, "file_reader", arguments).await;
    assert_eq!(read(json!({"file_path": "data/input.txt"})).await, "File contents (6 chars):\nhéllo\n");
    assert_eq!(
        read(json!({"file_path": "big.log"})).await,
        "The file `big.log` is larger than 1 MB. It has 600000 lines and 1200000 bytes."
    );
    assert!(
        read(json!({"file_path": "big.log", "max_size_mb": 2})).await.starts_with("File contents (1200000")
    );
    assert_eq!(
        read(json!({"file_path": "none\n"})).await,
        "failed: the file `none\\n` does not exist in the workspace"
    );
    assert_eq!(read(json!({"file_path": "latin.txt"})).await, "File contents (2 chars, windows-1252):\nhé");
    assert!(
        read(json!({"file_path": "latin.txt", "encoding": "utf-8"})).await.contains("try another encoding")
    );
    assert!(read(json!({"file_path": "latin.txt", "encoding": "latin-1"})).await.ends_with("hé"));
    assert!(read(json!({"file_path": "../etc/passwd"})).await.starts_with("bad_arguments"));
}

#[tokio::test]
async fn variables_are_listed_and_read() {
    let mut port = MemoryPort::default();
    port.variables.insert("total".into(), "'a\u{1b}c'".into());
    let port = Arc::new(port);
    assert_eq!(text(&port, "list_variables", json!({})).await, "total: str [3] = 'a\\u{1b}c'\nand 1 more");
    assert_eq!(text(&port, "read_variable", json!({"name": "total"})).await, "'a\u{1b}c'");
    assert_eq!(
        text(&port, "read_variable", json!({"name": "gone"})).await,
        "failed: NameError: name 'gone' is not defined"
    );
    let code = text(&port, "read_variable", json!({"name": "f()"})).await;
    assert!(code.starts_with("bad_arguments"), "{code}");
    let empty = Arc::new(MemoryPort::default());
    assert_eq!(text(&empty, "list_variables", json!({})).await, "no variables");
}

#[tokio::test]
async fn a_nested_ask_gets_what_it_is_given_and_nothing_else() {
    let port = Arc::new(MemoryPort::default());
    let schema = json!({"type": "object"});
    let arguments = json!({"prompt": "add", "schema": schema, "context": {"a": 1}});
    assert_eq!(text(&port, "ask", arguments).await, "{\"answer\":42}");
    let context = super::object(json!({"a": 1}));
    let expected = NestedAsk { prompt: "add".into(), schema: Some(schema), context, ..NestedAsk::default() };
    assert_eq!(*port.asks.lock(), [expected]);
    let by_template = json!({"prompt": "@sum", "parameters": {"n": 1}});
    assert_eq!(text(&port, "ask", by_template).await, "{\"answer\":42}");
    assert_eq!(port.asks.lock()[1].template.as_deref(), Some("sum"));
    let endless = text(&port, "ask", json!({"prompt": "x", "schema": {"$ref": "#"}})).await;
    assert!(endless.starts_with("bad_arguments: `schema`"), "{endless}");
    assert!(text(&port, "ask", json!({"prompt": ""})).await.starts_with("bad_arguments"));
}

#[tokio::test]
async fn code_gives_an_ask_files_and_functions_and_goes_on_with_it() {
    let port = Arc::new(MemoryPort::default());
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let function = json!({"name": "f", "description": "", "parameters": parameters});
    let arguments = json!({"prompt": "p", "files": ["a.csv"], "functions": [function]});
    assert_eq!(text(&port, "ask", arguments.clone()).await, "{\"answer\":42}");
    let asked = port.asks.lock()[0].clone();
    assert_eq!((asked.files, asked.functions.len()), (vec!["a.csv".to_owned()], 1));
    assert_eq!((&asked.functions[0].name, &asked.functions[0].output), (&"f".to_owned(), &Some(json!({}))));
    for (returned, is_told) in [
        (json!({"ask": "1", "answer": {"value": null}}), "{\"ask\":\"1\",\"returned\":{\"value\":null}}"),
        (json!({"ask": "1"}), "{\"ask\":\"1\",\"returned\":null}"),
    ] {
        assert_eq!(text(&port, "ask", json!({"prompt": "p", "go_on": returned})).await, is_told);
    }
    let too_many = json!({"prompt": "p", "functions": vec![function; 17]});
    let odd = json!({"prompt": "p", "functions": [{"name": "f", "code": "1"}]});
    let endless = json!({"prompt": "p", "go_on": {"ask": "1", "answer": {"other": 1}}});
    for wrong in [too_many, odd, endless, json!({"prompt": "p", "files": vec!["a"; 65]})] {
        let refused = text(&port, "ask", wrong).await;
        assert!(refused.starts_with("bad_arguments"), "{refused}");
    }
    assert_eq!(port.asks.lock().len(), 1);
    // A model is told of neither functions nor how code goes on.
    let tools = Registry::built_in().unwrap().model_tools(Language::English);
    let ask = tools.iter().find(|tool| tool.name == "ask").unwrap();
    let told = ask.parameters["properties"].as_object().unwrap();
    assert!(told.contains_key("files") && !told.contains_key("functions") && !told.contains_key("go_on"));
    let continued = super::object(json!({"go_on": {"ask": "1"}}));
    assert_eq!(crate::tools::continued_ask("ask", &continued), Some("1"));
    assert_eq!(crate::tools::continued_ask("other", &continued), None);
    assert_eq!(crate::tools::continued_ask("ask", &super::object(arguments)), None);
}

#[tokio::test]
async fn session_info_gives_what_the_session_knows_of_itself() {
    let port = Arc::new(MemoryPort::default());
    assert_eq!(text(&port, "session_info", json!({})).await, "{\"session\":\"test\"}");
    assert!(text(&port, "session_info", json!({"x": 1})).await.contains("`/x`: there is no such field"));
}

//! Every frame of the bridge, as the Rust types write it, against the checked-in JSON Schema. The
//! kernel's tests hold the frames of the Python side against the same files.

use belljar::protocol::frames::{HostFrame, KernelFrame};
use belljar::schema::Checker;
use serde_json::{Value, json};
use std::path::Path;

fn schema(name: &str) -> Checker {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/schemas").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    Checker::new(&serde_json::from_str(&text).unwrap()).unwrap()
}

fn host_frames() -> Vec<Value> {
    let limits = json!({
        "output_bytes": 1, "output_tail_bytes": 1, "repr_chars": 1, "preview_chars": 1, "variables": 1,
        "exception_chars": 1, "traceback_chars": 1, "displays": 1, "display_bytes": 1, "displays_bytes": 1,
        "tool_calls": 1, "names": 1, "checkpoints": 8, "checkpoints_at_rest": false, "keep_cwd": false, "checkpoint_bytes": 1, "memory_bytes": 1,
        "unacknowledged_bytes": 1, "orphan_s": 1,
    });
    let tool = json!({"name": "t", "description": "d", "parameters": {"type": "object"}});
    let local = json!({"name": "t", "description": "d", "parameters": {"type": "object"},
                       "output": {"type": "string"}, "local": true});
    vec![
        json!({"type": "hello", "versions": [1], "sandbox": "s", "limits": limits, "received": 0}),
        json!({"type": "ack", "received": 7}),
        json!({"type": "configure", "seed": {"a": [1, null]}, "tools": [tool, local], "given": ["a"]}),
        json!({"type": "preload", "request": 1, "imports": ["import a"], "families": ["stdlib", "third-party"], "bind": true}),
        json!({"type": "cell", "cell": 1, "code": "1", "mode": "main", "expression": false, "restricted": true}),
        json!({"type": "cell", "cell": 1, "code": "1", "mode": "main", "expression": false, "restricted": false,
               "no_packages": "why"}),
        json!({"type": "command", "cell": 1, "argv": ["ls"], "line": null, "cwd": "/", "env": {"A": "b"}, "stdin": "",
               "tty": true, "rows": 24, "columns": 80}),
        json!({"type": "typed", "cell": 1, "data": "aGk="}),
        json!({"type": "resize", "cell": 1, "rows": 24, "columns": 80}),
        json!({"type": "interrupt", "cell": 1}),
        json!({"type": "kill", "cell": 1, "grace_ms": 100}),
        json!({"type": "compute", "request": 1, "expression": "1", "values": {}, "timeout_ms": 1, "memory_bytes": 1}),
        json!({"type": "variables", "request": 1, "private": false}),
        json!({"type": "variables", "request": 1, "private": false, "of": "a.b", "keys": true, "begins": "c"}),
        json!({"type": "reset", "request": 1}),
        json!({"type": "undo", "request": 1, "cells": 2}),
        json!({"type": "snapshot", "request": 1, "token": "0f", "path": "/p", "urgent": false, "takes_turns": false, "bytes": 9}),
        json!({"type": "snapshot", "request": 1, "token": "0f", "path": "/p", "urgent": true, "takes_turns": true, "bytes": 9, "state_of": 2}),
        json!({"type": "end_snapshot", "request": 1}),
        json!({"type": "restore", "request": 1, "token": "0f", "path": "/p", "state_of": 2, "keep": ["t"]}),
        json!({"type": "names", "request": 1, "code": "x = 1"}),
        json!({"type": "tool_result", "call": 1, "value": {"any": "thing"}}),
        json!({"type": "tool_failed", "call": 1, "error": {"code": "failed", "message": "m"}}),
        json!({"type": "bye"}),
    ]
}

fn kernel_frames() -> Vec<Value> {
    let probe = json!({
        "no_network": true, "no_kernel_crypto": true, "read_only_root": true, "no_foreign_prlimit": true,
        "no_new_namespaces": true, "is_init": true, "not_dumpable": true,
    });
    let live = json!({"threads": 1, "tasks": 0, "children": 2});
    let exception = json!({"type": "E", "value": "v", "repr": "E('v')", "traceback": "…"});
    vec![
        json!({"type": "hello", "version": 1, "python": "3.13.5", "probe": probe, "running": [3],
               "state_of": 2, "last_cell": 3, "resumes_after": 7}),
        json!({"type": "cell_done", "cell": 1, "status": "success", "reason": "ok", "exit_code": 0,
               "result": {"repr": "1", "type": "int", "mime": {"text/html": "<b>1</b>"}}, "exception": null,
               "duration_ms": 0.5, "displays_dropped": 0, "protected": true, "as_before": null, "live": live}),
        json!({"type": "cell_done", "cell": 1, "status": "failure", "reason": "exception", "exit_code": 0,
               "result": null, "exception": exception, "duration_ms": 0.5, "displays_dropped": 0,
               "protected": false, "as_before": 4, "live": live}),
        json!({"type": "cell_done", "cell": 1, "status": "failure", "reason": "policy", "exit_code": 0,
               "result": null, "exception": exception, "duration_ms": 0.5, "displays_dropped": 0,
               "protected": true, "as_before": null, "live": live}),
        json!({"type": "cell_lost", "cell": 1, "exit_code": -9, "killed": true, "after": "kept"}),
        json!({"type": "cell_lost", "cell": 1, "exit_code": 0, "killed": false, "after": {"restored": 0}}),
        json!({"type": "worker_replaced", "exit_code": 1, "after": "lost"}),
        json!({"type": "display", "cell": 1, "mime": {"image/png": "aGk="}}),
        json!({"type": "output_gap", "cell": 1, "stdout_bytes": 1, "stderr_bytes": 0}),
        json!({"type": "tool_call", "call": 1, "cell": null, "name": "t", "arguments": {"x": 1}}),
        json!({"type": "tool_call", "call": 1, "cell": 2, "name": "t", "arguments": {}, "from_program": true}),
        json!({"type": "tool_abandoned", "call": 1}),
        json!({"type": "variables", "request": 1, "total": 1, "as_before": null, "variables": [
            {"name": "x", "type": "int", "preview": "1", "bytes": 28, "shape": null}]}),
        json!({"type": "variables", "request": 1, "total": 0, "as_before": null, "variables": [], "of": "a.b"}),
        json!({"type": "computed", "request": 1, "outcome": {"value": "1"}}),
        json!({"type": "computed", "request": 1, "outcome": {"error": "PythonError: E: m"}}),
        json!({"type": "reset_done", "request": 1}),
        json!({"type": "preloaded", "request": 1, "names": 2, "failed": [],
               "skipped": [{"import": "a", "error": "b"}]}),
        json!({"type": "undone", "request": 1, "state_of": 0}),
        json!({"type": "snapshotting", "request": 1, "state_of": 2}),
        json!({"type": "snapshot_ended", "request": 1, "reason": null}),
        json!({"type": "restored", "request": 1, "report": {
            "restored": 1, "missing": [{"name": "x", "reason": "r"}], "reopened": [{"name": "f", "path": "/f"}], "error": null}}),
        json!({"type": "names", "request": 1, "names": ["x"]}),
        json!({"type": "refused", "code": "busy", "message": "m", "request": 1, "cell": null}),
    ]
}

/// A variant that no example covers would slip through.
fn names_of_variants(schema: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/schemas").join(schema);
    let value: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let variants = value["oneOf"].as_array().unwrap().iter();
    variants.map(|variant| variant["properties"]["type"]["const"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn check<T: serde::de::DeserializeOwned + serde::Serialize>(file: &str, frames: &[Value]) {
    let checker = schema(file);
    for frame in frames {
        assert!(checker.fits(frame), "the schema refuses {frame}");
        let typed: T =
            serde_json::from_value(frame.clone()).unwrap_or_else(|error| panic!("{error}: {frame}"));
        let again = serde_json::to_value(&typed).unwrap();
        assert!(checker.fits(&again), "the schema refuses what Rust writes: {again}");
        let mut extra = frame.clone();
        extra["surprise"] = json!(1);
        assert!(!checker.fits(&extra), "the schema takes unknown fields: {extra}");
        assert!(serde_json::from_value::<T>(extra).is_err(), "Rust takes unknown fields: {frame}");
    }
    for name in names_of_variants(file) {
        assert!(frames.iter().any(|frame| frame["type"] == json!(name)), "no example of `{name}`");
    }
}

#[test]
fn host_frames_are_those_of_the_schema() {
    check::<HostFrame>("host-frame.json", &host_frames());
}

#[test]
fn kernel_frames_are_those_of_the_schema() {
    check::<KernelFrame>("kernel-frame.json", &kernel_frames());
}

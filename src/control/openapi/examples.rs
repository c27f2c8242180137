//! An example for each type of a request, and for most of those of answers. `Document::media` reads each as its type.

use serde_json::{Value, json};

pub fn problem() -> Value {
    json!({
        "code": "no_such_session",
        "message": "there is no session `lab`",
        "hint": "make it with `belljar new lab`, or list yours with `belljar ps`",
    })
}

/// The example of the type with this name.
pub fn of(name: &str) -> Option<Value> {
    of_request(name).or_else(|| of_answer(name))
}

fn of_request(name: &str) -> Option<Value> {
    Some(match name {
        "NewSession" => json!({"name": "lab", "memory_bytes": 536_870_912, "labels": {"team": "a"}}),
        "RunCell" => json!({"code": "x = 20\nprint('computing')\nx + 22", "timeout_s": 60.0}),
        "Eval" => json!({"expression": "x + 1"}),
        "Undo" => json!({"cells": 1}),
        "NewSnapshot" => json!({"name": "before-cleaning"}),
        "NewCommand" => json!({"line": "ls -la | wc -l"}),
        "Typed" => json!({"data_base64": "bHMK"}),
        "TerminalSize" => json!({"rows": 24, "columns": 80}),
        "NewPackages" => json!({"packages": ["polars>=1"]}),
        "NewAsk" => json!({"text": "Which column of data.csv has outliers?", "limits": {"steps": 10}}),
        "Decision" => json!({"reject": {"reason": "not in this folder"}}),
        "NewClientTools" => {
            let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
            let about = "Tells the weather of a city.";
            json!({"tools": [{"name": "weather", "description": about, "parameters": parameters}]})
        }
        "ClientAnswer" => json!({"value": "sunny"}),
        "NewJob" => {
            let input = "01a1eef5-957b-74c7-93ca-d7d4d3a35544";
            json!({"input": input, "script": "tests/run.py", "args": ["-v"], "artifacts": ["report/*.xml"]})
        }
        "NewBatch" => {
            let input = "01a1eef5-957b-74c7-93ca-d7d4d3a35544";
            json!({"common": {"input": input}, "jobs": [{"script": "a.py"}, {"script": "b.py"}], "parallel": 2})
        }
        "NewVolume" => json!({"name": "models"}),
        "NewBranches" => json!({"name": "what-if", "count": 8}),
        "PullImage" => json!({"reference": "python:3.12"}),
        "BuildImage" => json!({"name": "mine", "packages": ["polars"]}),
        "Shutdown" => json!({"remove": false}),
        _ => return None,
    })
}

fn of_answer(name: &str) -> Option<Value> {
    let many = |key: &str, one: &str| Some(json!({key: [of_answer(one)?]}));
    Some(match name {
        "Done" => json!({}),
        "Health" => json!({"status": "ok", "problems": [], "sessions": 1, "pool": null}),
        "Version" => {
            json!({"version": "0.1.0", "pid": 4711, "bridge": 1, "home": "/var/lib/belljar", "engine": "27.3.1"})
        }
        "SessionView" => session(),
        "SessionList" => return many("sessions", "SessionView"),
        "ExecutionResult" => result(),
        "CellView" => json!({"cell": 1, "state": "queued", "events_after": 3, "result": null}),
        "Computed" => json!({"result": "42", "error": null}),
        "Undone" => json!({"state_of": 1, "files_changed": ["out.csv"]}),
        "SnapshotRecord" => json!({
            "id": "9f86d081884c7d65",
            "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "cell": 3,
            "bytes": 1_204_224,
            "stored_bytes": 401_408,
            "new_bytes": 8192,
            "name": "before-cleaning",
            "at": "2026-01-02T03:04:05.678Z",
            "python": "3.12.7",
            "variables": 12,
            "missing": [{"name": "connection", "reason": "a connection cannot be saved"}],
        }),
        "SnapshotList" => {
            json!({"snapshots": [of_answer("SnapshotRecord")?], "wakes_from": "9f86d081884c7d65"})
        }
        "Asleep" => {
            let missing = of_answer("SnapshotRecord")?["missing"].clone();
            json!({"snapshot": "9f86d081884c7d65", "cell": 3, "missing": missing, "unsaved": false})
        }
        "Interrupted" => json!({"cell": 2}),
        "ReplayReport" => json!({"cells": [{"cell": 1, "replayed_as": 4, "differences": []}]}),
        "VariableList" => {
            let x = json!({"name": "x", "type": "int", "preview": "20", "bytes": 28, "shape": null});
            json!({"variables": [x], "total": 1})
        }
        "FolderView" => {
            let entry = json!({"name": "in.csv", "kind": "file", "bytes": 8});
            json!({"path": "data", "entries": [entry], "truncated": false})
        }
        "CommandList" => {
            let ended = json!({"command": 2, "line": "ls -la | wc -l", "state": "done", "status": "success"});
            json!({"commands": [ended]})
        }
        "InstalledPackages" => {
            let sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
            let polars = json!({"name": "polars", "version": "1.9.0", "sha256": sha256});
            json!({"packages": [polars], "in_image": [], "cached": false})
        }
        "VolumeView" => json!({"owner": 1000, "name": "models", "bytes": 4096, "sessions": ["lab"]}),
        "BranchList" => json!({"sessions": [session()], "cell": 3, "left_out": 0}),
        "Imported" => json!({"session": session()}),
        "SessionDiff" => {
            let x = |preview: &str| json!({"name": "x", "type": "int", "preview": preview, "bytes": 28, "shape": null});
            let changed = json!({"by": ["preview"], "first": x("20"), "second": x("21")});
            let variables = json!({"only_in_first": [], "only_in_second": [], "changed": [changed], "not_compared": [],
                                   "same": 3, "cut": false});
            let file = json!({"path": "out.csv", "bytes": 8});
            let files = json!({"only_in_first": [], "only_in_second": [file], "changed": [], "same": 1, "unread": 0, "cut": false});
            json!({"variables": variables, "files": files})
        }
        "VolumeList" => return many("volumes", "VolumeView"),
        "ImageList" => {
            let science = json!({"reference": "belljar/science", "backend": "docker", "id": "sha256:1f71…",
                                 "bytes": 540_687_087, "default": true});
            json!({"images": [science]})
        }
        "QuotaView" => {
            let sessions = json!({"kind": "sessions", "unit": "count", "used": 1, "limit": 32,
                                  "by": [{"by": "lab", "amount": 1}]});
            json!({"uid": 1000, "user": "ada", "quotas": [sessions]})
        }
        "ModelList" => {
            let model = json!({"name": "qwen", "provider": "dashscope", "model": "qwen-max", "default": true,
                               "missing_key": null});
            json!({"models": [model]})
        }
        "ConfigView" => {
            json!({"file": "/etc/belljar/config.toml", "values": {"pool.size": {"value": 1, "from": "the defaults"}}})
        }
        "ConfigReloaded" => {
            json!({"file": "/etc/belljar/config.toml", "applied": ["quota.sessions"], "needs_restart": []})
        }
        _ => return None,
    })
}

fn session() -> Value {
    json!({
        "id": "01a1eef5-957b-74c7-93ca-d7d4d3a35543",
        "name": "lab",
        "owner": 1000,
        "state": "idle",
        "backend": "docker",
        "image": {"reference": "belljar/science", "id": "sha256:1f71…"},
        "python": "3.12.7",
        "isolation": "container, network none, no capabilities, seccomp filter, read-only root",
        "limits": {"memory_bytes": 536_870_912, "checkpoint_bytes": 268_435_456, "cpus": 1.0, "pids": 256, "idle_s": 3600},
        "labels": {"team": "a"},
        "workspace": "/var/lib/belljar/w/01a1eef5-957b-74c7-93ca-d7d4d3a35543",
        "cells": 1,
        "running": null,
        "queued": 0,
        "created_at": "2026-01-02T03:04:05.678Z",
        "idle_for_s": 12,
        "last_event": 7,
    })
}

fn result() -> Value {
    json!({
        "cell": 1,
        "mode": "main",
        "status": "success",
        "reason": "ok",
        "exit_code": 0,
        "code": "x = 20\nprint('computing')\nx + 22",
        "timeout_s": 60.0,
        "stdout": "computing\n",
        "stderr": "",
        "output": [{"stream": "stdout", "text": "computing\n"}],
        "result": {"repr": "42", "type": "int"},
        "displays": [],
        "artifacts": [],
        "exception": null,
        "duration_ms": 4.5,
        "truncated": {"stdout_bytes": 0, "stderr_bytes": 0, "dropped_bytes": 0, "displays": 0, "artifacts": false},
        "state": {"kind": "kept"},
    })
}

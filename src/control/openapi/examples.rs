//! An example for each type of a request or an answer. `Document::media` reads each as its type.

use serde_json::{Value, json};

const SESSION: &str = "01a1eef5-957b-74c7-93ca-d7d4d3a35543";
/// A job's input, which requests name and answers tell.
const INPUT: &str = "01a1eef5-957b-74c7-93ca-d7d4d3a35544";
const BATCH: &str = "01a1eef5-957b-74c7-93ca-d7d4d3a35546";
const JOB: &str = "01a1eef5-957b-74c7-93ca-d7d4d3a35547";
const SHA256: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const AT: &str = "2026-01-02T03:04:05.678Z";

pub fn problem() -> Value {
    json!({
        "code": "no_such_session",
        "message": "there is no session `lab`",
        "hint": "make it with `belljar new lab`, or list yours with `belljar ps`",
    })
}

/// The example of the type with this name.
pub fn of(name: &str) -> Option<Value> {
    of_request(name).or_else(|| of_answer(name)).or_else(|| of_answer_about_work(name))
}

/// A list with the example of the type with this name.
fn many(key: &str, one: &str) -> Option<Value> {
    Some(json!({key: [of(one)?]}))
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
        "NewClientTools" => tools(),
        "ClientAnswer" => json!({"value": "sunny"}),
        "NewJob" => {
            json!({"input": INPUT, "script": "tests/run.py", "args": ["-v"], "artifacts": ["report/*.xml"]})
        }
        "NewBatch" => {
            json!({"common": {"input": INPUT}, "jobs": [{"script": "a.py"}, {"script": "b.py"}], "parallel": 2})
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
            "digest": SHA256,
            "cell": 3,
            "bytes": 1_204_224,
            "stored_bytes": 401_408,
            "new_bytes": 8192,
            "name": "before-cleaning",
            "at": AT,
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
            let polars = json!({"name": "polars", "version": "1.9.0", "sha256": SHA256});
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
        "KeptPackagesList" => {
            let polars = json!({"name": "polars", "version": "1.9.0"});
            json!({"sets": [{"owner": 1000, "set": "9f86d081884c7d65", "packages": [polars], "bytes": 120_586_240,
                             "used_by": ["lab"], "in_use": true, "last_used": AT}]})
        }
        "ClearedPackages" => json!({"sets": 2, "bytes": 241_172_480, "in_use": 1}),
        "Receipt" => receipt(),
        "ToolList" => tools(),
        _ => return None,
    })
}

/// Example answers of the routes for jobs and asks; apart from the others, as one list of all would be too long to read.
fn of_answer_about_work(name: &str) -> Option<Value> {
    Some(match name {
        "JobInput" => json!({"id": INPUT, "sha256": SHA256, "files": 12, "bytes": 48_128}),
        "JobView" => job(),
        "JobList" => return many("jobs", "JobView"),
        "BatchView" => {
            json!({"id": BATCH, "owner": 1000, "created_at": AT, "parallel": 2, "size": 2, "ended": 1,
                              "passed": 1, "jobs": [JOB, "01a1eef5-957b-74c7-93ca-d7d4d3a35548"]})
        }
        "BatchList" => return many("batches", "BatchView"),
        "Approval" => json!({
            "id": "01a1eef5-957b-74c7-93ca-d7d4d3a35549",
            "session": SESSION,
            "session_name": "lab",
            "ask": 1,
            "subject": {"kind": "cell", "code": "df.describe()", "purpose": "to see the columns", "timeout_s": 30.0},
            "asked_at": AT,
        }),
        "ApprovalList" => return many("approvals", "Approval"),
        "AskView" => {
            let usage = json!({"prompt_tokens": 2048, "completion_tokens": 96});
            let end = json!({"outcome": "answered", "answer": "The column `price` has outliers.", "steps": 2,
                             "usage": usage, "replies": {"all": 3, "valid": 3}});
            json!({"ask": 1, "state": "done", "text": "Which column of data.csv has outliers?", "model": "qwen",
                   "dialect": "tool_calls", "steps": 2, "usage": usage, "events_after": 7, "end": end})
        }
        "AskList" => return many("asks", "AskView"),
        "History" => {
            let asked = json!({"role": "user", "content": "Which column of data.csv has outliers?"});
            let answered = json!({"role": "assistant", "content": "The column `price` has outliers."});
            json!({"messages": [asked, answered]})
        }
        "PlanView" => {
            let task = json!({"task_id": "T1", "task_name": "Read data.csv", "status": "completed"});
            let statistics = json!({"pending": 0, "processing": 0, "completed": 1, "failed": 0, "retry": 0, "skipped": 0,
                                    "__total": 1, "__completion_rate": 1.0, "__pending_rate": 0.0});
            let version = json!({"version": 1, "tree": {"core_goal": "Find outliers", "tree_nodes": [task]},
                                 "changes": ["✅ the first version of the plan"],
                                 "markdown": "- [✅] **Read data.csv** (id: T1)", "statistics": statistics});
            json!({"versions": [version]})
        }
        _ => return None,
    })
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let about = "Tells the weather of a city.";
    json!({"tools": [{"name": "weather", "description": about, "parameters": parameters}]})
}

fn session() -> Value {
    json!({
        "id": SESSION,
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
        "created_at": AT,
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

fn job() -> Value {
    let artifact = json!({"path": "report/unit.xml", "bytes": 2048, "sha256": SHA256});
    json!({
        "id": JOB,
        "name": "tests/run.py",
        "owner": 1000,
        "state": "ended",
        "script": "tests/run.py",
        "args": ["-v"],
        "env": ["CI"],
        "timeout_s": 600.0,
        "batch": {"id": BATCH, "index": 0},
        "created_at": AT,
        "started_at": AT,
        "ended_at": "2026-01-02T03:04:17.912Z",
        "end": {"verdict": "passed", "exit_code": 0, "reason": "ok", "duration_ms": 12_234.5, "artifacts": [artifact],
                "artifacts_cut": false},
    })
}

fn receipt() -> Value {
    json!({
        "sandbox": "9f86d081884c7d65",
        "backend": "docker",
        "container": "belljar-9f86d081884c7d65",
        "runtime": "runc",
        "image": {"reference": "belljar/science", "id": "sha256:1f71…"},
        "python": "3.12.7",
        "process": {"pid": 4712, "uid": 1000, "gid": 1000, "groups": [], "cap_eff": "0000000000000000",
                    "cap_bnd": "0000000000000000", "no_new_privs": true, "seccomp": 2, "apparmor": "docker-default"},
        "namespaces": ["user", "mnt", "pid", "net", "ipc", "uts"],
        "network": "none",
        "read_only_root": true,
        "seccomp_profile": SHA256,
        "limits": {"memory_bytes": 536_870_912, "cpus": 1.0, "pids": 256, "open_files": 1024,
                   "file_bytes": 1_073_741_824, "core_bytes": 0, "cgroup_version": 2},
        "mounts": [{"target": "/workspace", "kind": "bind", "writable": true}],
        "probe": {"no_network": true, "no_kernel_crypto": true, "read_only_root": true, "no_foreign_prlimit": true,
                  "no_new_namespaces": true, "is_init": true, "not_dumpable": true},
    })
}

//! The table of routes: a row for each operation, with what does not follow from its shape.

use schemars::JsonSchema;
use serde_json::{Value, json};

use super::failures::OF_A_SANDBOX;
use super::streams::{self, BATCH, HOLD, SESSION as SESSION_EVENTS, TOOLS};
use super::{ANY_FILE, Document, EVENTS, JSON, LINES, TAR, binary, text};
use crate::protocol::api::{
    CellView, Computed, Done, Eval, FolderView, Health, ImageList, ImageView, Interrupted, NewSession,
    NewVolume, PullImage, QuotaView, ReplayReport, RunCell, SessionList, SessionView, Shutdown, Undo, Undone,
    VariableList, Version, VolumeList, VolumeView,
};
use crate::protocol::ask::{
    ApprovalList, AskList, AskView, Decision, History, ModelList, NewAsk, PlanView, ToolList,
};
use crate::protocol::batch::{BatchEvent, BatchList, BatchView, NewBatch};
use crate::protocol::branch::{BranchList, Imported, NewBranches, SessionDiff};
use crate::protocol::command::{CommandList, NewCommand, TerminalSize, Typed};
use crate::protocol::config::{ConfigReloaded, ConfigView};
use crate::protocol::image::BuildImage;
use crate::protocol::job::{JobInput, JobList, JobView, NewJob};
use crate::protocol::packages::{ClearedPackages, InstalledPackages, KeptPackagesList, NewPackages};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, Receipt};
use crate::protocol::result::ExecutionResult;
use crate::protocol::saved_state::{Asleep, NewSnapshot, SnapshotList};
use crate::protocol::snapshot::SnapshotRecord;
use crate::protocol::tool::{ClientAnswer, ClientCall, NewClientTools};

const SNAPSHOTS: &str = "/v1/sessions/{session}/snapshots";

/// What can be wrong with the variables of a session that go to the disk or come from there.
const OF_A_SNAPSHOT: &[Code] =
    &[Code::SnapshotFailed, Code::SnapshotDamaged, Code::SnapshotMismatch, Code::Busy];

/// A group of operations: its name, what it is about, and the rows of the table.
type Group = (&'static str, &'static str, fn(&mut Document));

const GROUPS: [Group; 12] = [
    ("machine", "The daemon itself, its configuration, and what users may have", machine),
    ("images", "What sandboxes are made of", images),
    ("packages", "Packages that are kept for later sessions", packages),
    ("volumes", "Folders that outlive sessions", volumes),
    ("sessions", "Variables that live on, in a sandbox", sessions),
    ("branches", "Sessions that begin as others are, and what they differ in", branches),
    ("cells", "Python that runs in a session", cells),
    ("commands", "Programs that run beside the cells", commands),
    ("files", "Files of workspaces and volumes", files),
    ("asks", "Models that work in a session, what they may call, and approvals", asks),
    ("jobs", "Scripts that run once", jobs),
    ("batches", "Many scripts that one request brings", batches),
];

/// Adds all routes, and gives what `OpenAPI` says of their groups.
pub fn add_all(document: &mut Document) -> Value {
    for (tag, _, add) in GROUPS {
        document.tag = tag;
        add(document);
    }
    GROUPS.iter().map(|(tag, about, _)| json!({"name": tag, "description": about})).collect()
}

/// What `OpenAPI` says of a part of a path.
pub fn path_parameter(name: &str) -> Value {
    let (kind, meaning) = match name {
        "session" => ("string", "The name or the id of a session; for administrators also `NAME@USER`"),
        "other" => ("string", "The name or the id of the session that is compared with it"),
        "cell" => ("integer", "The number of a cell or of a command in its session"),
        "ask" => ("integer", "The number of an ask in its session"),
        "approval" => ("string", "The id of what waits for a decision"),
        "call" => ("string", "The `call` of a `tool_call`"),
        "job" => ("string", "The id of a job"),
        "batch" => ("string", "The id of a batch"),
        "snapshot" => ("string", "The id or the name of a snapshot"),
        "volume" => ("string", "The name of a volume; for its removal by an administrator also `NAME@USER`"),
        "image" => ("string", "`NAME` or `NAME:TAG`"),
        "path" => ("string", "The path of a file or a folder; slashes in it may be written as `%2F`"),
        other => panic!("nothing is known of `{other}` in a path"),
    };
    json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}, "description": meaning})
}

fn machine(document: &mut Document) {
    document.get::<Health>("get_health", "/v1/health", "Whether the daemon and its engine work");
    document.get::<Version>("get_version", "/v1/version", "Versions and places");
    let any = json!({"schema": {"type": "object"}, "example": {"openapi": "3.1.0", "paths": {}}});
    document.add("get_openapi", "get", "/openapi.json", "This document").answers(200, JSON, any);
    document.post::<Shutdown, Done>("stop_daemon", "/v1/shutdown", "Stop the daemon");
    let summary = "The configuration in use; for who runs the daemon";
    document.get::<ConfigView>("get_config", "/v1/config", summary);
    let summary = "Read the configuration again, for what can change at run time; for who runs the daemon";
    document.act::<ConfigReloaded>("reload_config", "/v1/config/reload", summary);
    let summary = "What the caller may have, and what uses it";
    let user = "Somebody else, by name or number; for administrators";
    document.get::<QuotaView>("get_quota", "/v1/quota", summary).query("user", text(), user);
}

/// A line of the answer while an image is got or built. The last line has `done` or `problem`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the lines are written as JSON; this is their schema")]
struct ImageStep {
    /// What is being done.
    status: Option<String>,
    done: Option<bool>,
    /// The image that was built.
    image: Option<ImageView>,
    problem: Option<Problem>,
}

fn images(document: &mut Document) {
    let summary = "Allowed images, and those that the caller built; for administrators those of all users";
    document.get::<ImageList>("list_images", "/v1/images", summary).fails(&[Code::EngineUnavailable]);
    let example = "{\"status\":\"Downloading\"}\n{\"done\":true}\n";
    let steps = json!({"schema": text(), "example": example, "x-line": document.schema::<ImageStep>()});
    let fails = [Code::EngineUnavailable, Code::ImageForbidden, Code::ImageMissing, Code::Busy];
    let summary = "Get an image; a line of JSON for each step";
    document
        .send::<PullImage>("pull_image", "/v1/images", summary)
        .answers(200, LINES, steps.clone())
        .fails(&fails);
    let summary = "Build an image for the caller's sessions; a line of JSON for each step";
    document
        .send::<BuildImage>("build_image", "/v1/images/build", summary)
        .answers(200, LINES, steps)
        .fails(&fails)
        .fails(&[Code::BuildFailed, Code::PackageConflict]);
    let summary = "Remove an image that the caller built and no session uses";
    document.delete::<Done>("remove_image", "/v1/images/{image}", summary).fails(&[
        Code::NoSuchImage,
        Code::Busy,
        Code::EngineUnavailable,
        Code::Storage,
    ]);
}

fn packages(document: &mut Document) {
    let summary = "Packages that are kept for the caller's sessions; for administrators those of all users";
    document
        .get::<KeptPackagesList>("list_packages", "/v1/packages", summary)
        .of_all()
        .fails(&[Code::Storage]);
    let summary = "Remove kept packages that nothing uses";
    document
        .delete::<ClearedPackages>("clear_packages", "/v1/packages", summary)
        .of_all()
        .fails(&[Code::Storage]);
}

fn volumes(document: &mut Document) {
    let summary = "The caller's volumes; for administrators those of all users";
    document.get::<VolumeList>("list_volumes", "/v1/volumes", summary).of_all();
    let made = document.media::<VolumeView>();
    let summary = "Make a folder that outlives sessions";
    document
        .send::<NewVolume>("create_volume", "/v1/volumes", summary)
        .answers(201, JSON, made)
        .fails(&[Code::VolumeExists]);
    let summary = "Remove a volume that no session uses; somebody else's, for administrators, as `NAME@USER`";
    document.delete::<Done>("remove_volume", "/v1/volumes/{volume}", summary);
}

fn sessions(document: &mut Document) {
    const SESSION: &str = "/v1/sessions/{session}";
    let made = document.media::<SessionView>();
    let summary = "Make a session; answered when its sandbox is ready";
    document
        .send::<NewSession>("create_session", "/v1/sessions", summary)
        .answers(201, JSON, made)
        .fails(OF_A_SANDBOX)
        .fails(&[Code::SessionExists, Code::NoSuchVolume, Code::Busy]);
    let summary = "The caller's sessions; for administrators all of them";
    document.get::<SessionList>("list_sessions", "/v1/sessions", summary).of_all().query(
        "label",
        json!({"type": "array", "items": {"type": "string"}}),
        "Only those with this label, `KEY=VALUE`; of several all",
    );
    let summary = "One session, by name or id; somebody else's, for administrators, by id or as `NAME@USER`";
    document.get::<SessionView>("get_session", SESSION, summary);
    let summary = "Remove a session, its sandbox and its managed workspace";
    document.delete::<Done>("remove_session", SESSION, summary).flag(
        "wait",
        "Answer when the sandbox is gone and its quotas are free, not when the removal is recorded",
    );
    let summary = "Start afresh, with the seed only";
    document.act::<Done>("reset_session", "/v1/sessions/{session}/reset", summary).fails(OF_A_SANDBOX);
    document
        .post::<Undo, Undone>("undo_cells", "/v1/sessions/{session}/undo", "Take back the last cells")
        .fails(OF_A_SANDBOX)
        .fails(&[Code::OutOfReach]);
    let summary =
        "Install packages; answered when code can import them, and the session's events tell the progress";
    document
        .post::<NewPackages, InstalledPackages>("install_packages", "/v1/sessions/{session}/install", summary)
        .fails(OF_A_SANDBOX);
    let summary = "Run the kept cells again in a fresh worker";
    document
        .act::<ReplayReport>("replay_cells", "/v1/sessions/{session}/replay", summary)
        .fails(OF_A_SANDBOX)
        .fails(&[Code::EventsGone]);
    let summary = "Stop all processes of the sandbox";
    document.act::<Done>("freeze_session", "/v1/sessions/{session}/freeze", summary).fails(OF_A_SANDBOX);
    let summary = "Let them go on";
    document.act::<Done>("thaw_session", "/v1/sessions/{session}/thaw", summary).fails(OF_A_SANDBOX);
    let summary = "Save the variables; answered when they are on the disk";
    document
        .post::<NewSnapshot, SnapshotRecord>("take_snapshot", SNAPSHOTS, summary)
        .fails(OF_A_SANDBOX)
        .fails(&[Code::SnapshotFailed, Code::SnapshotExists]);
    let summary = "The saved variables, and which of them the session wakes from";
    document.get::<SnapshotList>("list_snapshots", SNAPSHOTS, summary);
    let summary = "Remove a snapshot, by its id or its name";
    document
        .delete::<Done>("remove_snapshot", "/v1/sessions/{session}/snapshots/{snapshot}", summary)
        .fails(&[Code::NoSuchSnapshot]);
    let summary = "End the sandbox, once its variables are saved; the next cell wakes the session";
    document
        .act::<Asleep>("put_session_to_sleep", "/v1/sessions/{session}/sleep", summary)
        .fails(&[Code::SnapshotFailed, Code::SandboxFailed]);
    let summary = "Let an ephemeral session stay for its idle time when no client holds it any more";
    document.act::<Done>("let_session_linger", "/v1/sessions/{session}/linger", summary);
    let summary = "Raise KeyboardInterrupt in the running cell";
    document.act::<Interrupted>("interrupt_cell", "/v1/sessions/{session}/interrupt", summary);
    let (path, summary) =
        ("/v1/sessions/{session}/cells/{cell}/interrupt", "Raise KeyboardInterrupt in a background cell");
    document.act::<Done>("interrupt_background_cell", path, summary).fails(&[Code::NoSuchCell]);
    document
        .get::<VariableList>("list_variables", "/v1/sessions/{session}/variables", "The session's variables")
        .flag("private", "Names that start with `_` too")
        .flag("imports", "Modules, tools and what was preloaded too")
        .query("of", text(), "The names alone of what this value has, instead: its attributes")
        .flag("keys", "With `of`: its keys, such as the columns of a table")
        .query("begins", text(), "With `of`: only names that begin with this")
        .flag("digests", "With digests of what they hold, where they can be had at little cost")
        .fails(OF_A_SANDBOX)
        .fails(&[Code::VariablesFailed]);
    let summary = "The isolation the sandbox really has";
    document.get::<Receipt>("get_receipt", "/v1/sessions/{session}/receipt", summary).fails(OF_A_SANDBOX);
    let summary = "Keeps an ephemeral session alive for as long as the connection lasts";
    document.add("hold_session", "get", "/v1/sessions/{session}/hold", summary).answers(
        200,
        EVENTS,
        streams::media(HOLD),
    );
    let summary = "The one ordered stream";
    document
        .add("stream_session_events", "get", "/v1/sessions/{session}/events", summary)
        .resumable(SESSION_EVENTS, "Wait for more, until the session ends");
}

fn branches(document: &mut Document) {
    let made = document.media::<BranchList>();
    let summary = "Make sessions with the variables and files of this one; all of them, or none";
    document
        .send::<NewBranches>("branch_session", "/v1/sessions/{session}/branch", summary)
        .answers(201, JSON, made)
        .fails(OF_A_SANDBOX)
        .fails(OF_A_SNAPSHOT)
        .fails(&[Code::SessionExists, Code::OutOfReach]);
    let summary = "What another session has otherwise than this one: variables by what is shown of them, files by content";
    document
        .get::<SessionDiff>("diff_sessions", "/v1/sessions/{session}/diff/{other}", summary)
        .fails(OF_A_SANDBOX)
        .fails(&[Code::VariablesFailed]);
    let summary = "All of a session as an archive: variables, files, packages and journal";
    document
        .add("export_session", "get", "/v1/sessions/{session}/archive", summary)
        .answers(200, TAR, binary())
        .fails(OF_A_SANDBOX)
        .fails(OF_A_SNAPSHOT);
    let (imported, backend) = (document.media::<Imported>(), document.schema::<Backend>());
    let summary = "Make a session of an archive, which is refused if one byte of it was changed";
    document
        .add("import_session", "post", "/v1/archives", summary)
        .takes(TAR, binary())
        .query("name", text(), "The name of the session; as in the archive if absent")
        .query("backend", backend, "The backend; if absent, that of the archive, where it may be used here")
        .query("image", text(), "The image; if absent, that of the archive, where it may be used here")
        .flag(
            "replay",
            "Run the cells again, with the recorded answers of tools, and do not load the variables",
        )
        .flag(
            "trust",
            "The code is the caller's own; without it, it also has the rules of what a model writes",
        )
        .flag("ephemeral", "The daemon removes the session when no client holds it any more")
        .answers(201, JSON, imported)
        .fails(OF_A_SANDBOX)
        .fails(OF_A_SNAPSHOT)
        .fails(&[Code::SessionExists, Code::InstallFailed, Code::PackageConflict, Code::NoSuchImage]);
}

fn cells(document: &mut Document) {
    let (result, view) = (document.media::<ExecutionResult>(), document.media::<CellView>());
    document
        .send::<RunCell>("run_cell", "/v1/sessions/{session}/cells", "Run Python")
        .flag("wait", "Answer with the ExecutionResult (200) instead of a CellView (202)")
        .answers(200, JSON, result)
        .answers(202, JSON, view)
        .streams()
        .fails(OF_A_SANDBOX);
    let cell = "/v1/sessions/{session}/cells/{cell}";
    document
        .get::<CellView>("get_cell", cell, "One cell and its result")
        .wait()
        .fails(&[Code::NoSuchCell, Code::EventsGone]);
    let (result, computed) = (document.media::<ExecutionResult>(), document.media::<Computed>());
    let either =
        json!({"schema": {"anyOf": [result["schema"], computed["schema"]]}, "example": result["example"]});
    document
        .send::<Eval>(
            "evaluate",
            "/v1/sessions/{session}/eval",
            "One expression, without changing anything; a Computed if it is `isolated`",
        )
        .answers(200, JSON, either)
        .fails(OF_A_SANDBOX);
}

fn commands(document: &mut Document) {
    const COMMANDS: &str = "/v1/sessions/{session}/commands";
    let (result, view) = (document.media::<ExecutionResult>(), document.media::<CellView>());
    let summary = "Run a program beside the cells; it has a number among them";
    document
        .send::<NewCommand>("run_command", COMMANDS, summary)
        .flag("wait", "Answer with the ExecutionResult (200) instead of a CellView (202)")
        .answers(200, JSON, result)
        .answers(202, JSON, view)
        .streams()
        .fails(OF_A_SANDBOX);
    let summary = "Those that have not ended, and the last that have";
    document.get::<CommandList>("list_commands", COMMANDS, summary);
    let command = "/v1/sessions/{session}/commands/{cell}";
    let fails = [Code::NoSuchCell, Code::EventsGone];
    document.get::<CellView>("get_command", command, "One command and its result").wait().fails(&fails);
    let summary = "Send it SIGINT, and kill it if it does not end";
    let path = "/v1/sessions/{session}/commands/{cell}/interrupt";
    document.act::<Done>("interrupt_command", path, summary).fails(&[Code::NoSuchCell]);
    let path = "/v1/sessions/{session}/commands/{cell}/kill";
    document.act::<Done>("kill_command", path, "End it and all that it started").fails(&[Code::NoSuchCell]);
    let path = "/v1/sessions/{session}/commands/{cell}/type";
    document
        .post::<Typed, Done>("type_into_command", path, "Type into the terminal of a command")
        .fails(&[Code::NoSuchCell]);
    let path = "/v1/sessions/{session}/commands/{cell}/resize";
    document
        .post::<TerminalSize, Done>("resize_terminal", path, "Tell it the new size of its terminal")
        .fails(&[Code::NoSuchCell]);
}

/// A generated client takes the first content type that it knows, so the file of a path and the list of the root have a
/// path of their own each; what else the daemon can do there is in the summaries.
fn files(document: &mut Document) {
    let of = [
        (
            "/v1/sessions/{session}/files",
            "/v1/sessions/{session}/files/{path}",
            ["list_files", "unpack_files", "read_file", "write_file", "remove_file"],
        ),
        (
            "/v1/volumes/{volume}/files",
            "/v1/volumes/{volume}/files/{path}",
            [
                "list_volume_files",
                "unpack_volume_files",
                "read_volume_file",
                "write_volume_file",
                "remove_volume_file",
            ],
        ),
    ];
    for (root, path, [list, unpack, read, write, remove]) in of {
        let done = document.media::<Done>();
        let summary = "The root folder, as a list with `Accept: application/json`, else as tar";
        document.get::<FolderView>(list, root, summary).answers(200, TAR, binary());
        let summary = "Unpack a folder, as tar (Content-Type application/x-tar), into the root";
        document.add(unpack, "put", root, summary).takes(TAR, binary()).answers(200, JSON, done.clone());
        let summary = "A file; a folder as tar, or as FolderView with `Accept: application/json`";
        document.add(read, "get", path, summary).answers(200, ANY_FILE, binary()).answers(200, TAR, binary());
        let summary = "Write a file, or unpack a folder (Content-Type application/x-tar)";
        document.add(write, "put", path, summary).takes(ANY_FILE, binary()).answers(200, JSON, done);
        document.delete::<Done>(remove, path, "Remove a file or a folder");
    }
}

fn asks(document: &mut Document) {
    const ASKS: &str = "/v1/sessions/{session}/asks";
    document.get::<ModelList>("list_models", "/v1/models", "Models of the configuration");
    document.get::<ToolList>("list_tools", "/v1/tools", "Tools of every session");
    document.get::<ApprovalList>("list_approvals", "/v1/approvals", "What waits for a person").of_all();
    document
        .post::<Decision, Done>("decide_approval", "/v1/approvals/{approval}", "Decide")
        .fails(&[Code::NoSuchApproval, Code::Busy]);
    let begun = document.media::<AskView>();
    document
        .post::<NewAsk, AskView>("start_ask", ASKS, "Ask a model")
        .wait()
        .answers(202, JSON, begun)
        .streams()
        .fails(OF_A_SANDBOX)
        .fails(&[Code::ModelFailed]);
    document.get::<AskList>("list_asks", ASKS, "Asks of a session");
    document
        .get::<AskView>("get_ask", "/v1/sessions/{session}/asks/{ask}", "One ask")
        .wait()
        .streams()
        .fails(&[Code::NoSuchAsk]);
    document
        .act::<AskView>("cancel_ask", "/v1/sessions/{session}/asks/{ask}/cancel", "End an ask")
        .fails(&[Code::NoSuchAsk]);
    document.get::<History>("get_history", "/v1/sessions/{session}/history", "The conversation");
    document.get::<PlanView>("get_plan", "/v1/sessions/{session}/plan", "All versions of the plan tree");
    document.schema::<ClientCall>();
    let summary = "Lend tools to a session: they are there as long as the stream of their calls is";
    document
        .send::<NewClientTools>("lend_tools", "/v1/sessions/{session}/tools", summary)
        .answers(200, EVENTS, streams::media(TOOLS))
        .fails(OF_A_SANDBOX);
    let path = "/v1/sessions/{session}/tool-calls/{call}";
    document.post::<ClientAnswer, Done>("answer_tool_call", path, "Answer a call").fails(&[Code::NoSuchCall]);
}

fn jobs(document: &mut Document) {
    let input = document.media::<JobInput>();
    document
        .add("send_job_input", "put", "/v1/job-inputs", "Send files for jobs, as tar")
        .takes(TAR, binary())
        .answers(200, JSON, input);
    let begun = document.media::<JobView>();
    document
        .send::<NewJob>("submit_job", "/v1/jobs", "Have a script run once")
        .answers(202, JSON, begun)
        .fails(OF_A_SANDBOX)
        .fails(&[Code::NoSuchInput, Code::NoSuchFile]);
    let summary = "The caller's jobs, the newest first; for administrators all of them";
    document.get::<JobList>("list_jobs", "/v1/jobs", summary).of_all().fails(&[Code::Storage]);
    document.get::<JobView>("get_job", "/v1/jobs/{job}", "One job").wait();
    document.delete::<Done>("forget_job", "/v1/jobs/{job}", "Forget a job that has ended");
    document.act::<Done>("cancel_job", "/v1/jobs/{job}/cancel", "End a job that waits or runs");
    document
        .add("stream_job_events", "get", "/v1/jobs/{job}/events", "What happens in its sandbox")
        .resumable(SESSION_EVENTS, "Wait for more, until the job ends");
    document
        .add("get_job_artifacts", "get", "/v1/jobs/{job}/artifacts", "The files that were kept, as tar")
        .answers(200, TAR, binary())
        .fails(&[Code::NoSuchFile]);
}

fn batches(document: &mut Document) {
    const BATCHES: &str = "/v1/batches";
    const ONE: &str = "/v1/batches/{batch}";
    let begun = document.media::<BatchView>();
    let summary = "Have many scripts run, a few at a time; all of them are taken, or none";
    document
        .send::<NewBatch>("submit_batch", BATCHES, summary)
        .answers(202, JSON, begun)
        .fails(OF_A_SANDBOX)
        .fails(&[Code::NoSuchInput, Code::NoSuchFile]);
    let summary = "The caller's batches, the newest first";
    document.get::<BatchList>("list_batches", BATCHES, summary).fails(&[Code::Storage]);
    document.get::<BatchView>("get_batch", ONE, "One batch and its jobs").wait();
    let summary = "Cancel those of its jobs that have not ended; answered when all have";
    document.delete::<Done>("cancel_batch", ONE, summary);
    let _ = document.schema::<BatchEvent>();
    document
        .add("stream_batch_events", "get", "/v1/batches/{batch}/events", "What happens to its jobs")
        .resumable(BATCH, "Wait for more, until all jobs have ended");
}

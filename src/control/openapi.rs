//! `config/openapi.json`, generated from the types, one entry per route. A test compares it with the routes and with
//! the checked-in file.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::protocol::api::{
    CellView, Computed, Done, Eval, FolderView, Health, ImageList, Interrupted, NewSession, PullImage,
    QuotaView, ReplayReport, RunCell, SessionList, SessionView, Shutdown, Undo, Undone, VariableList,
    Version,
};
use crate::protocol::ask::{
    ApprovalList, AskList, AskView, Decision, History, ModelList, NewAsk, PlanView, ToolList,
};
use crate::protocol::event::Event;
use crate::protocol::job::{JobInput, JobList, JobView, NewJob};
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::ExecutionResult;
use crate::protocol::tool::{ClientAnswer, ClientCall, NewClientTools};

struct Route {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Name, schema and meaning of query parameters.
    query: Vec<(&'static str, Value, &'static str)>,
    /// Content type and schema.
    request: Option<(&'static str, Value)>,
    status: &'static str,
    response: (&'static str, Value),
}

const JSON: &str = "application/json";
const ANY_FILE: &str = "application/octet-stream";

struct Document {
    generator: SchemaGenerator,
    routes: Vec<Route>,
}

impl Document {
    fn schema<T: JsonSchema>(&mut self) -> Value {
        self.generator.subschema_for::<T>().to_value()
    }

    fn add(
        &mut self,
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        response: Value,
    ) -> &mut Route {
        let route = Route {
            method,
            path,
            summary,
            query: Vec::new(),
            request: None,
            status: "200",
            response: (JSON, response),
        };
        self.routes.push(route);
        let last = self.routes.len() - 1;
        &mut self.routes[last]
    }
}

/// The whole document.
#[must_use]
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut document = Document { generator: settings.into_generator(), routes: Vec::new() };
    machine_routes(&mut document);
    session_routes(&mut document);
    cell_routes(&mut document);
    file_routes(&mut document);
    ask_routes(&mut document);
    job_routes(&mut document);
    let problem = document.schema::<Problem>();
    // `Event` is the data of the event stream; no route returns it as plain JSON.
    document.schema::<Event>();
    let mut paths = Map::new();
    for route in document.routes {
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        entry[route.method] = operation(&route, &problem);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Belljar",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs Python under glass. Served over a unix socket; the caller is known from the \
                            socket's peer credentials. Every answer that is no success is a Problem. Event streams \
                            are server-sent events: `id` is the sequence number, `event` the type, `data` an Event; \
                            they resume with `Last-Event-ID` or `?after=`.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "paths": paths,
        "components": {"schemas": document.generator.take_definitions(true)},
    })
}

fn operation(route: &Route, problem: &Value) -> Value {
    let in_path =
        route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).map(|name| {
            let kind = if ["cell", "ask"].contains(&name) { "integer" } else { "string" };
            json!({"name": name, "in": "path", "required": true, "schema": {"type": kind}})
        });
    let in_query = route.query.iter().map(|(name, schema, meaning)| {
        json!({"name": name, "in": "query", "required": false, "schema": schema, "description": meaning})
    });
    let mut operation = json!({
        "summary": route.summary,
        "parameters": in_path.chain(in_query).collect::<Vec<_>>(),
        "responses": {
            route.status: {"description": "Success", "content": {route.response.0: {"schema": route.response.1}}},
            "default": {
                "description": "A problem",
                "content": {"application/problem+json": {"schema": problem}},
            },
        },
    });
    if let Some((kind, schema)) = &route.request {
        operation["requestBody"] = json!({"required": true, "content": {*kind: {"schema": schema}}});
    }
    operation
}

fn of_all() -> (&'static str, Value, &'static str) {
    ("all", json!({"type": "boolean"}), "Of all users, for administrators")
}

fn ask_routes(document: &mut Document) {
    let schema = document.schema::<ModelList>();
    document.add("get", "/v1/models", "Models of the configuration", schema);
    let schema = document.schema::<ToolList>();
    document.add("get", "/v1/tools", "Tools of every session", schema);
    let schema = document.schema::<ApprovalList>();
    document.add("get", "/v1/approvals", "What waits for a person", schema).query = vec![of_all()];
    let (schema, request) = (document.schema::<Done>(), document.schema::<Decision>());
    document.add("post", "/v1/approvals/{approval}", "Decide", schema).request = Some((JSON, request));
    let wait = ("wait", json!({"type": "boolean"}), "Answer when it has ended");
    let stream = (
        "stream",
        json!({"type": "boolean"}),
        "Answer with a stream of its events, which may end with a `problem`",
    );
    let (schema, request) = (document.schema::<AskView>(), document.schema::<NewAsk>());
    let route = document.add("post", "/v1/sessions/{session}/asks", "Ask a model", schema.clone());
    route.request = Some((JSON, request));
    route.query = vec![wait.clone(), stream.clone()];
    route.status = "202";
    let list = document.schema::<AskList>();
    document.add("get", "/v1/sessions/{session}/asks", "Asks of a session", list);
    document.add("get", "/v1/sessions/{session}/asks/{ask}", "One ask", schema.clone()).query =
        vec![wait, stream];
    document.add("post", "/v1/sessions/{session}/asks/{ask}/cancel", "End an ask", schema);
    let schema = document.schema::<History>();
    document.add("get", "/v1/sessions/{session}/history", "The conversation", schema);
    let schema = document.schema::<PlanView>();
    document.add("get", "/v1/sessions/{session}/plan", "All versions of the plan tree", schema);
    let (call, request) = (document.schema::<ClientCall>(), document.schema::<NewClientTools>());
    let route = document.add(
        "post",
        "/v1/sessions/{session}/tools",
        "Lend tools to a session: they are there as long as the stream of their calls is",
        call,
    );
    route.request = Some((JSON, request));
    route.response.0 = "text/event-stream";
    let (schema, request) = (document.schema::<Done>(), document.schema::<ClientAnswer>());
    document.add("post", "/v1/sessions/{session}/tool-calls/{call}", "Answer a call", schema).request =
        Some((JSON, request));
}

fn job_routes(document: &mut Document) {
    let schema = document.schema::<JobInput>();
    let route = document.add("put", "/v1/job-inputs", "Send files for jobs, as tar", schema);
    route.request = Some(("application/x-tar", json!({"type": "string", "format": "binary"})));
    let (schema, request) = (document.schema::<JobView>(), document.schema::<NewJob>());
    let route = document.add("post", "/v1/jobs", "Have a script run once", schema.clone());
    route.request = Some((JSON, request));
    route.status = "202";
    let list = document.schema::<JobList>();
    document
        .add("get", "/v1/jobs", "The caller's jobs, the newest first; for administrators all of them", list)
        .query = vec![of_all()];
    document.add("get", "/v1/jobs/{job}", "One job", schema).query =
        vec![("wait", json!({"type": "boolean"}), "Answer when it has ended")];
    let schema = document.schema::<Done>();
    document.add("delete", "/v1/jobs/{job}", "Forget a job that has ended", schema.clone());
    document.add("post", "/v1/jobs/{job}/cancel", "End a job that waits or runs", schema);
    let events = json!({"type": "string"});
    let route = document.add("get", "/v1/jobs/{job}/events", "What happens in its sandbox", events);
    route.response.0 = "text/event-stream";
    route.query = vec![
        ("after", json!({"type": "integer"}), "Only events after this sequence number"),
        ("follow", json!({"type": "boolean", "default": true}), "Wait for more, until the job ends"),
    ];
    let tar = json!({"type": "string", "format": "binary"});
    let route = document.add("get", "/v1/jobs/{job}/artifacts", "The files that were kept, as tar", tar);
    route.response.0 = "application/x-tar";
}

fn machine_routes(document: &mut Document) {
    let schema = document.schema::<Health>();
    document.add("get", "/v1/health", "Whether the daemon and its engine work", schema);
    let schema = document.schema::<Version>();
    document.add("get", "/v1/version", "Versions and places", schema);
    document.add("get", "/openapi.json", "This document", json!({"type": "object"}));
    let (schema, request) = (document.schema::<Done>(), document.schema::<Shutdown>());
    document.add("post", "/v1/shutdown", "Stop the daemon", schema).request = Some((JSON, request));
    let schema = document.schema::<ImageList>();
    document.add("get", "/v1/images", "Allowed images", schema);
    let request = document.schema::<PullImage>();
    let route = document.add("post", "/v1/images", "Get an image; a line of JSON for each step", json!({}));
    route.request = Some((JSON, request));
    route.response.0 = "application/x-ndjson";
}

fn session_routes(document: &mut Document) {
    const SESSION: &str = "/v1/sessions/{session}";
    let (schema, request) = (document.schema::<SessionView>(), document.schema::<NewSession>());
    let route =
        document.add("post", "/v1/sessions", "Make a session; answered when its sandbox is ready", schema);
    route.request = Some((JSON, request));
    route.status = "201";
    let schema = document.schema::<SessionList>();
    document
        .add("get", "/v1/sessions", "The caller's sessions; for administrators all of them", schema)
        .query = vec![of_all()];
    let schema = document.schema::<QuotaView>();
    document.add("get", "/v1/quota", "What the caller may have, and what uses it", schema).query =
        vec![("user", json!({"type": "string"}), "Somebody else, by name or number; for administrators")];
    let schema = document.schema::<SessionView>();
    document.add(
        "get",
        SESSION,
        "One session, by name or id; somebody else's, for administrators, by id or as `NAME@USER`",
        schema,
    );
    let schema = document.schema::<Done>();
    document.add(
        "delete",
        SESSION,
        "Remove a session, its sandbox and its managed workspace",
        schema.clone(),
    );
    document.add("post", "/v1/sessions/{session}/reset", "Start afresh, with the seed only", schema);
    let (schema, request) = (document.schema::<Undone>(), document.schema::<Undo>());
    document.add("post", "/v1/sessions/{session}/undo", "Take back the last cells", schema).request =
        Some((JSON, request));
    let schema = document.schema::<ReplayReport>();
    document.add(
        "post",
        "/v1/sessions/{session}/replay",
        "Run the kept cells again in a fresh worker",
        schema,
    );
    let schema = document.schema::<Done>();
    document.add(
        "post",
        "/v1/sessions/{session}/freeze",
        "Stop all processes of the sandbox",
        schema.clone(),
    );
    document.add("post", "/v1/sessions/{session}/thaw", "Let them go on", schema);
    let schema = document.schema::<Interrupted>();
    document.add(
        "post",
        "/v1/sessions/{session}/interrupt",
        "Raise KeyboardInterrupt in the running cell",
        schema,
    );
    let schema = document.schema::<VariableList>();
    document.add("get", "/v1/sessions/{session}/variables", "The session's variables", schema).query = vec![
        ("private", json!({"type": "boolean"}), "Names that start with `_` too"),
        ("imports", json!({"type": "boolean"}), "Modules, tools and what was preloaded too"),
    ];
    let schema = document.schema::<Receipt>();
    document.add("get", "/v1/sessions/{session}/receipt", "The isolation the sandbox really has", schema);
    let route = document.add(
        "get",
        "/v1/sessions/{session}/hold",
        "Keeps an ephemeral session alive for as long as the connection lasts",
        json!({"type": "string"}),
    );
    route.response.0 = "text/event-stream";
    let route = document.add(
        "get",
        "/v1/sessions/{session}/events",
        "The one ordered stream",
        json!({"type": "string"}),
    );
    route.response.0 = "text/event-stream";
    route.query = vec![
        ("after", json!({"type": "integer"}), "Only events after this sequence number"),
        ("follow", json!({"type": "boolean", "default": true}), "Wait for more, until the session ends"),
    ];
}

fn cell_routes(document: &mut Document) {
    let (result, view) = (document.schema::<ExecutionResult>(), document.schema::<CellView>());
    let request = document.schema::<RunCell>();
    let either = json!({"anyOf": [view.clone(), result.clone()]});
    let route = document.add("post", "/v1/sessions/{session}/cells", "Run Python", either);
    route.request = Some((JSON, request));
    route.query = vec![
        (
            "wait",
            json!({"type": "boolean"}),
            "Answer with the ExecutionResult (200) instead of a CellView (202)",
        ),
        (
            "stream",
            json!({"type": "boolean"}),
            "Answer with the cell's events (text/event-stream); an event `problem` (a Problem) ends them if \
             they cannot be written",
        ),
    ];
    document.add("get", "/v1/sessions/{session}/cells/{cell}", "One cell and its result", view).query =
        vec![("wait", json!({"type": "boolean"}), "Answer when it has ended")];
    let (computed, request) = (document.schema::<Computed>(), document.schema::<Eval>());
    let either = json!({"anyOf": [result, computed]});
    document
        .add("post", "/v1/sessions/{session}/eval", "One expression, without changing anything", either)
        .request = Some((JSON, request));
}

fn file_routes(document: &mut Document) {
    const FILE: &str = "/v1/sessions/{session}/files/{path}";
    let (done, folder) = (document.schema::<Done>(), document.schema::<FolderView>());
    let summary = "A file; a folder as tar, or as FolderView with `Accept: application/json`";
    let either = json!({"anyOf": [{"type": "string", "format": "binary"}, folder]});
    document.add("get", FILE, summary, either).response.0 = ANY_FILE;
    let summary = "Write a file, or unpack a folder (Content-Type application/x-tar)";
    document.add("put", FILE, summary, done.clone()).request =
        Some((ANY_FILE, json!({"type": "string", "format": "binary"})));
    document.add("delete", FILE, "Remove a file or a folder", done);
}

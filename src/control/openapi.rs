//! `config/openapi.json`, generated from the types, one entry per route. A test compares it with the routes and with
//! the checked-in file.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::protocol::api::{
    CellView, Computed, Done, Eval, FolderView, Health, ImageList, Interrupted, NewSession, NewVolume,
    PullImage, QuotaView, ReplayReport, RunCell, SessionList, SessionView, Shutdown, Undo, Undone,
    VariableList, Version, VolumeList, VolumeView,
};
use crate::protocol::ask::{
    ApprovalList, AskList, AskView, Decision, History, ModelList, NewAsk, PlanView, ToolList,
};
use crate::protocol::command::{CommandList, NewCommand, TerminalSize, Typed};
use crate::protocol::config::{ConfigReloaded, ConfigView};
use crate::protocol::event::Event;
use crate::protocol::image::BuildImage;
use crate::protocol::job::{JobInput, JobList, JobView, NewJob};
use crate::protocol::packages::{InstalledPackages, NewPackages};
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

impl Route {
    fn query(&mut self, name: &'static str, schema: Value, meaning: &'static str) -> &mut Self {
        self.query.push((name, schema, meaning));
        self
    }

    fn flag(&mut self, name: &'static str, meaning: &'static str) -> &mut Self {
        self.query(name, json!({"type": "boolean"}), meaning)
    }

    fn of_all(&mut self) -> &mut Self {
        self.flag("all", "Of all users, for administrators")
    }

    fn wait(&mut self) -> &mut Self {
        self.flag("wait", "Answer when it has ended")
    }

    fn wait_or_stream(&mut self) -> &mut Self {
        self.wait().flag("stream", "Answer with a stream of its events, which may end with a `problem`")
    }

    /// A stream of events that can be read from any of them on.
    fn resumable(&mut self, follow: &'static str) {
        self.response.0 = EVENTS;
        self.query("after", json!({"type": "integer"}), "Only events after this sequence number").query(
            "follow",
            json!({"type": "boolean", "default": true}),
            follow,
        );
    }
}

const JSON: &str = "application/json";
const ANY_FILE: &str = "application/octet-stream";
const TAR: &str = "application/x-tar";
const EVENTS: &str = "text/event-stream";

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
        let (query, response) = (Vec::new(), (JSON, response));
        self.routes.push(Route { method, path, summary, query, request: None, status: "200", response });
        let last = self.routes.len() - 1;
        &mut self.routes[last]
    }

    fn get<Answer: JsonSchema>(&mut self, path: &'static str, summary: &'static str) -> &mut Route {
        let answer = self.schema::<Answer>();
        self.add("get", path, summary, answer)
    }

    fn delete<Answer: JsonSchema>(&mut self, path: &'static str, summary: &'static str) -> &mut Route {
        let answer = self.schema::<Answer>();
        self.add("delete", path, summary, answer)
    }

    /// A `POST` without a body.
    fn act<Answer: JsonSchema>(&mut self, path: &'static str, summary: &'static str) {
        let answer = self.schema::<Answer>();
        self.add("post", path, summary, answer);
    }

    fn post<Body: JsonSchema, Answer: JsonSchema>(
        &mut self,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let (answer, body) = (self.schema::<Answer>(), self.schema::<Body>());
        let route = self.add("post", path, summary, answer);
        route.request = Some((JSON, body));
        route
    }
}

/// The whole document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut document = Document { generator: settings.into_generator(), routes: Vec::new() };
    machine_routes(&mut document);
    session_routes(&mut document);
    cell_routes(&mut document);
    command_routes(&mut document);
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

fn text() -> Value {
    json!({"type": "string"})
}

fn binary() -> Value {
    json!({"type": "string", "format": "binary"})
}

fn ask_routes(document: &mut Document) {
    const ASKS: &str = "/v1/sessions/{session}/asks";
    document.get::<ModelList>("/v1/models", "Models of the configuration");
    document.get::<ToolList>("/v1/tools", "Tools of every session");
    document.get::<ApprovalList>("/v1/approvals", "What waits for a person").of_all();
    document.post::<Decision, Done>("/v1/approvals/{approval}", "Decide");
    document.post::<NewAsk, AskView>(ASKS, "Ask a model").wait_or_stream().status = "202";
    document.get::<AskList>(ASKS, "Asks of a session");
    document.get::<AskView>("/v1/sessions/{session}/asks/{ask}", "One ask").wait_or_stream();
    document.act::<AskView>("/v1/sessions/{session}/asks/{ask}/cancel", "End an ask");
    document.get::<History>("/v1/sessions/{session}/history", "The conversation");
    document.get::<PlanView>("/v1/sessions/{session}/plan", "All versions of the plan tree");
    let summary = "Lend tools to a session: they are there as long as the stream of their calls is";
    let route = document.post::<NewClientTools, ClientCall>("/v1/sessions/{session}/tools", summary);
    route.response.0 = EVENTS;
    document.post::<ClientAnswer, Done>("/v1/sessions/{session}/tool-calls/{call}", "Answer a call");
}

fn job_routes(document: &mut Document) {
    let schema = document.schema::<JobInput>();
    let route = document.add("put", "/v1/job-inputs", "Send files for jobs, as tar", schema);
    route.request = Some((TAR, binary()));
    document.post::<NewJob, JobView>("/v1/jobs", "Have a script run once").status = "202";
    let summary = "The caller's jobs, the newest first; for administrators all of them";
    document.get::<JobList>("/v1/jobs", summary).of_all();
    document.get::<JobView>("/v1/jobs/{job}", "One job").wait();
    document.delete::<Done>("/v1/jobs/{job}", "Forget a job that has ended");
    document.act::<Done>("/v1/jobs/{job}/cancel", "End a job that waits or runs");
    let events = document.add("get", "/v1/jobs/{job}/events", "What happens in its sandbox", text());
    events.resumable("Wait for more, until the job ends");
    let summary = "The files that were kept, as tar";
    document.add("get", "/v1/jobs/{job}/artifacts", summary, binary()).response.0 = TAR;
}

fn machine_routes(document: &mut Document) {
    document.get::<Health>("/v1/health", "Whether the daemon and its engine work");
    document.get::<Version>("/v1/version", "Versions and places");
    document.add("get", "/openapi.json", "This document", json!({"type": "object"}));
    document.post::<Shutdown, Done>("/v1/shutdown", "Stop the daemon");
    document.get::<ConfigView>("/v1/config", "The configuration in use; for who runs the daemon");
    let summary = "Read the configuration again, for what can change at run time; for who runs the daemon";
    document.act::<ConfigReloaded>("/v1/config/reload", summary);
    let summary = "The caller's volumes; for administrators those of all users";
    document.get::<VolumeList>("/v1/volumes", summary).of_all();
    document.post::<NewVolume, VolumeView>("/v1/volumes", "Make a folder that outlives sessions").status =
        "201";
    let summary = "Remove a volume that no session uses; somebody else's, for administrators, as `NAME@USER`";
    document.delete::<Done>("/v1/volumes/{volume}", summary);
    document.get::<ImageList>(
        "/v1/images",
        "Allowed images, and those that the caller built; for administrators those of all users",
    );
    let request = document.schema::<PullImage>();
    let route = document.add("post", "/v1/images", "Get an image; a line of JSON for each step", json!({}));
    route.request = Some((JSON, request));
    route.response.0 = "application/x-ndjson";
    let request = document.schema::<BuildImage>();
    let summary = "Build an image for the caller's sessions; a line of JSON for each step";
    let route = document.add("post", "/v1/images/build", summary, json!({}));
    route.request = Some((JSON, request));
    route.response.0 = "application/x-ndjson";
    let summary = "Remove an image that the caller built and no session uses";
    document.delete::<Done>("/v1/images/{image}", summary);
    let summary = "What the caller may have, and what uses it";
    let user = "Somebody else, by name or number; for administrators";
    document.get::<QuotaView>("/v1/quota", summary).query("user", text(), user);
}

fn session_routes(document: &mut Document) {
    const SESSION: &str = "/v1/sessions/{session}";
    let summary = "Make a session; answered when its sandbox is ready";
    document.post::<NewSession, SessionView>("/v1/sessions", summary).status = "201";
    let summary = "The caller's sessions; for administrators all of them";
    document.get::<SessionList>("/v1/sessions", summary).of_all().query(
        "label",
        json!({"type": "array", "items": {"type": "string"}}),
        "Only those with this label, `KEY=VALUE`; of several all",
    );
    let summary = "One session, by name or id; somebody else's, for administrators, by id or as `NAME@USER`";
    document.get::<SessionView>(SESSION, summary);
    document.delete::<Done>(SESSION, "Remove a session, its sandbox and its managed workspace").flag(
        "wait",
        "Answer when the sandbox is gone and its quotas are free, not when the removal is recorded",
    );
    document.act::<Done>("/v1/sessions/{session}/reset", "Start afresh, with the seed only");
    document.post::<Undo, Undone>("/v1/sessions/{session}/undo", "Take back the last cells");
    let summary =
        "Install packages; answered when code can import them, and the session's events tell the progress";
    document.post::<NewPackages, InstalledPackages>("/v1/sessions/{session}/install", summary);
    let summary = "Run the kept cells again in a fresh worker";
    document.act::<ReplayReport>("/v1/sessions/{session}/replay", summary);
    document.act::<Done>("/v1/sessions/{session}/freeze", "Stop all processes of the sandbox");
    document.act::<Done>("/v1/sessions/{session}/thaw", "Let them go on");
    let summary = "Let an ephemeral session stay for its idle time when no client holds it any more";
    document.act::<Done>("/v1/sessions/{session}/linger", summary);
    let summary = "Raise KeyboardInterrupt in the running cell";
    document.act::<Interrupted>("/v1/sessions/{session}/interrupt", summary);
    document
        .get::<VariableList>("/v1/sessions/{session}/variables", "The session's variables")
        .flag("private", "Names that start with `_` too")
        .flag("imports", "Modules, tools and what was preloaded too");
    document.get::<Receipt>("/v1/sessions/{session}/receipt", "The isolation the sandbox really has");
    let summary = "Keeps an ephemeral session alive for as long as the connection lasts";
    document.add("get", "/v1/sessions/{session}/hold", summary, text()).response.0 = EVENTS;
    let events = document.add("get", "/v1/sessions/{session}/events", "The one ordered stream", text());
    events.resumable("Wait for more, until the session ends");
}

fn cell_routes(document: &mut Document) {
    let (result, view) = (document.schema::<ExecutionResult>(), document.schema::<CellView>());
    let request = document.schema::<RunCell>();
    let either = json!({"anyOf": [view, result]});
    let route = document.add("post", "/v1/sessions/{session}/cells", "Run Python", either);
    route.request = Some((JSON, request));
    route.flag("wait", "Answer with the ExecutionResult (200) instead of a CellView (202)").flag(
        "stream",
        "Answer with the cell's events (text/event-stream); an event `problem` (a Problem) ends them if they cannot be \
         written",
    );
    document.get::<CellView>("/v1/sessions/{session}/cells/{cell}", "One cell and its result").wait();
    let (computed, request) = (document.schema::<Computed>(), document.schema::<Eval>());
    let either = json!({"anyOf": [result, computed]});
    let summary = "One expression, without changing anything";
    document.add("post", "/v1/sessions/{session}/eval", summary, either).request = Some((JSON, request));
}

fn command_routes(document: &mut Document) {
    const COMMANDS: &str = "/v1/sessions/{session}/commands";
    let (result, view) = (document.schema::<ExecutionResult>(), document.schema::<CellView>());
    let request = document.schema::<NewCommand>();
    let summary = "Run a program beside the cells; it has a number among them";
    let route = document.add("post", COMMANDS, summary, json!({"anyOf": [view, result]}));
    route.request = Some((JSON, request));
    route
        .flag("wait", "Answer with the ExecutionResult (200) instead of a CellView (202)")
        .flag("stream", "Answer with the command's events (text/event-stream)");
    document.get::<CommandList>(COMMANDS, "Those that have not ended, and the last that have");
    document.get::<CellView>("/v1/sessions/{session}/commands/{cell}", "One command and its result").wait();
    let summary = "Send it SIGINT, and kill it if it does not end";
    document.act::<Done>("/v1/sessions/{session}/commands/{cell}/interrupt", summary);
    document.act::<Done>("/v1/sessions/{session}/commands/{cell}/kill", "End it and all that it started");
    let summary = "Type into the terminal of a command";
    document.post::<Typed, Done>("/v1/sessions/{session}/commands/{cell}/type", summary);
    let summary = "Tell it the new size of its terminal";
    document.post::<TerminalSize, Done>("/v1/sessions/{session}/commands/{cell}/resize", summary);
}

fn file_routes(document: &mut Document) {
    let (done, folder) = (document.schema::<Done>(), document.schema::<FolderView>());
    for file in ["/v1/sessions/{session}/files/{path}", "/v1/volumes/{volume}/files/{path}"] {
        let summary = "A file; a folder as tar, or as FolderView with `Accept: application/json`";
        let either = json!({"anyOf": [binary(), folder]});
        document.add("get", file, summary, either).response.0 = ANY_FILE;
        let summary = "Write a file, or unpack a folder (Content-Type application/x-tar)";
        document.add("put", file, summary, done.clone()).request = Some((ANY_FILE, binary()));
        document.delete::<Done>(file, "Remove a file or a folder");
    }
}

//! `config/openapi.json`, generated from the types and from one table of routes (`routes`). What follows from the shape of
//! a route, such as most of its failures, is not in the table. Tests compare the document with the router and with the
//! checked-in file.

mod examples;
mod failures;
mod routes;
mod schemas;
mod streams;
mod tests;

use axum::http::StatusCode;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::idempotency::KEY_CHARS;
use crate::protocol::event::Event;
use crate::protocol::problem::{Code, Problem};

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
const ANY_FILE: &str = "application/octet-stream";
const TAR: &str = "application/x-tar";
const LINES: &str = "application/x-ndjson";
const EVENTS: &str = "text/event-stream";

/// One operation of the API.
struct Route {
    /// What generators of clients name a function by.
    id: &'static str,
    tag: &'static str,
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Parameters of the query, and headers.
    parameters: Vec<Value>,
    /// The content type of the body and what `OpenAPI` says of it.
    body: Option<(&'static str, Value)>,
    /// The status, the content type and what `OpenAPI` says of it, for each form that a success can have.
    answers: Vec<(u16, &'static str, Value)>,
    /// Codes of problems beside those that follow from the shape of the route.
    failures: Vec<Code>,
}

impl Route {
    fn parameter(
        &mut self,
        place: &'static str,
        name: &'static str,
        schema: Value,
        meaning: &'static str,
    ) -> &mut Self {
        let parameter =
            json!({"name": name, "in": place, "required": false, "schema": schema, "description": meaning});
        self.parameters.push(parameter);
        self
    }

    fn query(&mut self, name: &'static str, schema: Value, meaning: &'static str) -> &mut Self {
        self.parameter("query", name, schema, meaning)
    }

    fn flag(&mut self, name: &'static str, meaning: &'static str) -> &mut Self {
        self.query(name, json!({"type": "boolean", "default": false}), meaning)
    }

    fn takes(&mut self, kind: &'static str, media: Value) -> &mut Self {
        self.body = Some((kind, media));
        self
    }

    fn answers(&mut self, status: u16, kind: &'static str, media: Value) -> &mut Self {
        self.answers.push((status, kind, media));
        self
    }

    fn fails(&mut self, codes: &[Code]) -> &mut Self {
        self.failures.extend(codes);
        self
    }

    fn of_all(&mut self) -> &mut Self {
        self.flag("all", "Of all users, for administrators")
    }

    fn wait(&mut self) -> &mut Self {
        self.flag("wait", "Answer when it has ended")
    }

    /// The answer can be the stream of its events instead.
    fn streams(&mut self) -> &mut Self {
        self.flag("stream", "Answer with a stream of its events, until its end")
            .answers(200, EVENTS, streams::media(streams::SESSION))
            .fails(&[Code::EventsGone])
    }

    /// A stream of events that can be read from any of them on.
    fn resumable(&mut self, stream: &str, follow: &'static str) -> &mut Self {
        let number = || json!({"type": "integer", "minimum": 0});
        self.answers(200, EVENTS, streams::media(stream))
            .query("after", number(), "Only events after this sequence number")
            .query("follow", json!({"type": "boolean", "default": true}), follow)
            .parameter("header", "Last-Event-ID", number(), "As `after`, which it precedes")
            .fails(&[Code::EventsGone])
    }
}

struct Document {
    generator: SchemaGenerator,
    /// The group of the routes that are added next.
    tag: &'static str,
    routes: Vec<Route>,
}

impl Document {
    fn schema<T: JsonSchema>(&mut self) -> Value {
        self.generator.subschema_for::<T>().to_value()
    }

    /// What `OpenAPI` says of a value of this type: its schema, and an example that the type itself can be read from.
    fn media<T: JsonSchema + DeserializeOwned>(&mut self) -> Value {
        let mut media = json!({"schema": self.schema::<T>()});
        let name = T::schema_name();
        if let Some(example) = examples::of(&name) {
            let read = serde_json::from_value::<T>(example.clone());
            assert!(read.is_ok(), "the example of `{name}` is none: {:?}", read.err());
            media["example"] = example;
        }
        media
    }

    fn add(
        &mut self,
        id: &'static str,
        method: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let (tag, parameters, body) = (self.tag, Vec::new(), None);
        let (answers, failures) = (Vec::new(), Vec::new());
        self.routes.push(Route { id, tag, method, path, summary, parameters, body, answers, failures });
        let last = self.routes.len() - 1;
        &mut self.routes[last]
    }

    fn get<Answer: JsonSchema + DeserializeOwned>(
        &mut self,
        id: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let answer = self.media::<Answer>();
        self.add(id, "get", path, summary).answers(200, JSON, answer)
    }

    fn delete<Answer: JsonSchema + DeserializeOwned>(
        &mut self,
        id: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let answer = self.media::<Answer>();
        self.add(id, "delete", path, summary).answers(200, JSON, answer)
    }

    /// A `POST` without a body.
    fn act<Answer: JsonSchema + DeserializeOwned>(
        &mut self,
        id: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let answer = self.media::<Answer>();
        self.add(id, "post", path, summary).answers(200, JSON, answer)
    }

    /// A `POST` of JSON whose answer the caller describes.
    fn send<Body: JsonSchema + DeserializeOwned>(
        &mut self,
        id: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let body = self.media::<Body>();
        self.add(id, "post", path, summary).takes(JSON, body)
    }

    fn post<Body: JsonSchema + DeserializeOwned, Answer: JsonSchema + DeserializeOwned>(
        &mut self,
        id: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> &mut Route {
        let answer = self.media::<Answer>();
        self.send::<Body>(id, path, summary).answers(200, JSON, answer)
    }
}

/// The whole document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut document = Document { generator: settings.into_generator(), tag: "", routes: Vec::new() };
    let tags = routes::add_all(&mut document);
    document.schema::<Problem>();
    // `Event` is the data of the event stream; no route returns it as plain JSON.
    document.schema::<Event>();
    let mut schemas = document.generator.take_definitions(true);
    schemas::prepare(&mut schemas);
    schemas["Problem"]["examples"] = json!([examples::problem()]);
    let mut paths = Map::new();
    for route in &document.routes {
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        entry[route.method] = operation(route, &schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Belljar",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs Python under glass. Served over a unix socket; the caller is known from the \
                            socket's peer credentials. Every answer that is no success is a Problem; an operation names \
                            the codes that it can have. Event streams are server-sent events: `id` is the sequence \
                            number, `event` the type, `data` JSON; `x-events` names the events of a stream.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": "http://belljar", "description": "Any host name does: connect to the daemon's socket"}],
        "tags": tags,
        "paths": paths,
        "components": {
            "responses": failures::responses(&schemas),
            "x-event-streams": streams::all(&schemas),
            "schemas": schemas,
        },
    })
}

fn operation(route: &Route, schemas: &Map<String, Value>) -> Value {
    let in_path = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(routes::path_parameter);
    let key = (route.method == "post").then(|| {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": KEY_CHARS});
        let meaning = "Of requests with the same key only one has an effect, and all get its answer, for a day";
        json!({"name": "Idempotency-Key", "in": "header", "required": false, "schema": schema, "description": meaning})
    });
    let mut responses = failures::of_route(route);
    for (status, kind, media) in &route.answers {
        let meaning = match *status {
            201 => "It is made",
            202 => "It is begun, and goes on",
            _ => "It is done",
        };
        let entry = responses.entry(status.to_string()).or_insert_with(|| json!({"description": meaning}));
        entry["content"][*kind] = media.clone();
    }
    let mut operation = json!({
        "operationId": route.id,
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": in_path.chain(route.parameters.iter().cloned()).chain(key).collect::<Vec<_>>(),
        "responses": responses,
    });
    if let Some((kind, media)) = &route.body {
        operation["requestBody"] =
            json!({"required": is_required(media, schemas), "content": {*kind: media}});
    }
    operation
}

/// Whether a request needs its body. An empty one counts as `{}`, which is enough where no field has to be there.
fn is_required(media: &Value, schemas: &Map<String, Value>) -> bool {
    let schema = media["schema"]["$ref"].as_str().and_then(|path| schemas.get(schemas::name(path)));
    schema.is_none_or(|schema| schema.get("properties").is_none() || schema.get("required").is_some())
}

/// The words of a status without what parts them, as the name of a component.
fn status_name(status: u16) -> String {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    reason.unwrap_or_default().split(' ').collect()
}

fn text() -> Value {
    json!({"type": "string"})
}

fn binary() -> Value {
    json!({"schema": {"type": "string", "format": "binary"}})
}

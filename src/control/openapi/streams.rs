//! The streams of server-sent events, for which `OpenAPI` 3.1 has no words: `x-events` of an answer leads to the names of its
//! events and to the schema of their data.

use serde_json::{Map, Value, json};

use super::schemas::{name, reference};
use super::text;

/// The events of a session, a cell, a command, an ask or a job.
pub const SESSION: &str = "session";
/// What happens to the jobs of a batch.
pub const BATCH: &str = "batch";
/// The calls of tools that a client lends.
pub const TOOLS: &str = "tools";
/// Comments only.
pub const HOLD: &str = "hold";

/// What `OpenAPI` says of an answer that is this stream.
pub fn media(stream: &str) -> Value {
    let example = match stream {
        TOOLS => {
            "event: ready\ndata: {}\n\n\
             event: tool_call\ndata: {\"call\":\"3\",\"name\":\"weather\",\"arguments\":{\"city\":\"Bern\"}}\n\n"
        }
        BATCH => {
            "id: 1\nevent: job_started\ndata: {\"seq\":1,\"type\":\"job_started\",\"index\":0,\
             \"job\":\"0b3a9a52-6ad3-4c2e-8a41-58f1c5a0a6f1\"}\n\n"
        }
        HOLD => ": held\n\n",
        _ => {
            "id: 10\nevent: output\ndata: {\"seq\":10,\"at\":\"2026-01-02T03:04:05.678Z\",\"type\":\"output\",\
             \"cell\":2,\"stream\":\"stdout\",\"text\":\"computing\\n\"}\n\n"
        }
    };
    json!({
        "schema": text(),
        "example": example,
        "x-events": {"$ref": format!("#/components/x-event-streams/{stream}")},
    })
}

/// All streams and their events.
pub fn all(schemas: &Map<String, Value>) -> Value {
    let mut of_session = Map::new();
    let kinds = schemas["Event"]["discriminator"]["mapping"].as_object();
    for (kind, path) in kinds.into_iter().flatten() {
        let schema = path.as_str().and_then(|path| schemas.get(name(path)));
        let meaning = schema.and_then(|schema| schema.get("description"));
        of_session.insert(kind.clone(), json!({"description": meaning, "data": {"$ref": path}}));
    }
    let problem = "The rest cannot be sent. It is the last event, has no `id`, and is not in the journal.";
    let problem = json!({"description": problem, "data": reference("Problem")});
    of_session.insert("problem".into(), problem.clone());
    let ready = "The tools are lent: code that begins from now on can call them. It is the first event.";
    let call = "Code or a model calls a tool. `POST /v1/sessions/{session}/tool-calls/{call}` answers it.";
    let of_batch = |meaning: &str| json!({"description": meaning, "data": reference("BatchEvent")});
    json!({
        BATCH: {
            "description": "What happens to the jobs of a batch. `id` is the sequence number, after which a stream can be \
                            resumed.",
            "events": {
                "job_started": of_batch("The sandbox of a job is ready, and its script runs."),
                "job_ended": of_batch("A job has ended; the event has its view."),
                "batch_ended": of_batch("All jobs have ended. It is the last event."),
                "problem": problem,
            },
        },
        SESSION: {
            "description": "The events of a session in their order; of a cell, a command or an ask those that concern it. \
                            `id` is the sequence number, after which a stream can be resumed.",
            "events": of_session,
        },
        TOOLS: {
            "description": "Calls of the tools that were lent, for as long as the connection lasts. It cannot be resumed.",
            "events": {
                "ready": {"description": ready, "data": {"type": "object", "maxProperties": 0}},
                "tool_call": {"description": call, "data": reference("ClientCall")},
            },
        },
        HOLD: {
            "description": "No events. Comments come at once and then at intervals, until the session ends.",
            "events": {},
        },
    })
}

//! Which problems a request can be answered with: those of every request, those that follow from the shape of its route, and
//! those that the table names. The status of each is that of its code.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

use super::schemas::reference;
use super::{PROBLEM, Route, status_name};
use crate::protocol::problem::Code;

/// Any request can fail with these: the caller is not served, no memory, an internal error, or the daemon ends.
const OF_EVERY_REQUEST: &[Code] = &[Code::Forbidden, Code::QuotaExceeded, Code::Internal, Code::ShuttingDown];
/// A `POST` is read as a whole, and may have an `Idempotency-Key`.
const OF_A_POST: &[Code] = &[
    Code::BadRequest,
    Code::TooSlow,
    Code::TooLarge,
    Code::TooMany,
    Code::KeyReused,
    Code::OutcomeUnknown,
    Code::Storage,
];
/// A `PUT` brings files.
const OF_A_PUT: &[Code] = &[Code::BadRequest, Code::TooLarge, Code::TooMany, Code::Storage];
const OF_A_SESSION: &[Code] =
    &[Code::NoSuchSession, Code::Busy, Code::Storage, Code::SandboxFailed, Code::EngineUnavailable];
const OF_A_JOB: &[Code] = &[Code::NoSuchJob, Code::Busy, Code::Storage];
const OF_A_BATCH: &[Code] = &[Code::NoSuchBatch, Code::Storage];
const OF_A_VOLUME: &[Code] = &[Code::NoSuchVolume, Code::Busy, Code::Storage];
const OF_FILES: &[Code] = &[Code::NoSuchFile, Code::TooLarge, Code::TooMany, Code::Storage];

/// A request may have to start a sandbox before it can do anything, or find that there is no room in it.
pub const OF_A_SANDBOX: &[Code] = &[
    Code::TooMany,
    Code::TooSlow,
    Code::TooLarge,
    Code::EngineUnavailable,
    Code::ImageMissing,
    Code::ImageForbidden,
    Code::ImageArchitecture,
    Code::PreloadFailed,
    Code::InstallFailed,
    Code::PackageConflict,
    Code::PolicyViolation,
    Code::SandboxFailed,
    Code::SandboxFull,
    Code::Storage,
];

/// The word of a code.
pub fn word(code: Code) -> String {
    json!(code).as_str().unwrap_or_default().to_owned()
}

/// The codes of a route by their status.
fn codes(route: &Route) -> BTreeMap<u16, Vec<Code>> {
    let has_values = route.path.contains('{') || !route.parameters.is_empty();
    let follows: [(bool, &[Code]); 10] = [
        (true, OF_EVERY_REQUEST),
        (has_values, &[Code::BadRequest]),
        (route.method == "post", OF_A_POST),
        (route.method == "put", OF_A_PUT),
        (route.path.starts_with("/v1/sessions/{session}"), OF_A_SESSION),
        (route.path.starts_with("/v1/jobs/{job}"), OF_A_JOB),
        (route.path.starts_with("/v1/batches/{batch}"), OF_A_BATCH),
        (route.path.starts_with("/v1/volumes/{volume}"), OF_A_VOLUME),
        (route.path.contains("}/files"), OF_FILES),
        (true, &route.failures),
    ];
    let mut by_status = BTreeMap::<u16, Vec<Code>>::new();
    for code in follows.into_iter().filter(|(holds, _)| *holds).flat_map(|(_, codes)| codes) {
        let codes = by_status.entry(code.http_status()).or_default();
        if !codes.contains(code) {
            codes.push(*code);
        }
    }
    for codes in by_status.values_mut() {
        codes.sort_by_key(|code| word(*code));
    }
    by_status
}

fn listed(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The answers to a request on this route that are no success.
pub fn of_route(route: &Route) -> Map<String, Value> {
    let answer = |name: &str, meaning: &str| json!({"$ref": format!("#/components/responses/{name}"), "description": meaning});
    let mut responses = Map::new();
    for (status, codes) in codes(route) {
        let words: Vec<String> = codes.into_iter().map(word).collect();
        responses.insert(status.to_string(), answer(&status_name(status), &listed(&words)));
    }
    responses.insert("default".into(), answer("Problem", "A problem of a later version"));
    responses
}

/// The answers that operations refer to, one for each status that a code has.
pub fn responses(schemas: &Map<String, Value>) -> Value {
    let content = json!({PROBLEM: {"schema": reference("Problem")}});
    let mut by_status = BTreeMap::<u16, Vec<String>>::new();
    for word in schemas["Code"]["enum"].as_array().into_iter().flatten() {
        if let (Some(text), Ok(code)) = (word.as_str(), serde_json::from_value::<Code>(word.clone())) {
            by_status.entry(code.http_status()).or_default().push(text.to_owned());
        }
    }
    let mut responses = Map::new();
    for (status, words) in by_status {
        responses.insert(status_name(status), json!({"description": listed(&words), "content": content}));
    }
    responses.insert("Problem".into(), json!({"description": "A problem", "content": content}));
    Value::Object(responses)
}

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{document, failures};
use crate::control::routes::{batches, sessions};
use crate::protocol::problem::Code;

/// The operations of the document by method and path.
fn documented(document: &Value) -> BTreeMap<(String, String), &Value> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(move |(method, operation)| ((method.clone(), path.clone()), operation))
    });
    operations.collect()
}

/// The methods and paths that the router serves, read from its source, because a router cannot be asked. A path that ends
/// with a slash is another spelling of one that does not.
fn served() -> BTreeSet<(String, String)> {
    let source = include_str!("../routes.rs");
    let table = source.split_once("Router::new()").unwrap().1.split_once(".fallback(").unwrap().0;
    let mut served = BTreeSet::new();
    for row in table.split(".route(").skip(1) {
        let (path, handlers) = row.split_once(',').unwrap();
        let path = match path.trim() {
            "sessions::PATH" => sessions::PATH,
            "batches::PATH" => batches::PATH,
            quoted => quoted.trim_matches('"'),
        };
        let path = path.trim_end_matches('/').replace("{*", "{");
        for method in ["get", "post", "put", "delete", "patch", "head", "any"] {
            let begins = |call: &str| handlers.trim_start().starts_with(call);
            if begins(&format!("{method}(")) || handlers.contains(&format!(".{method}(")) {
                served.insert((method.to_owned(), path.clone()));
            }
        }
    }
    served
}

#[test]
fn every_route_of_the_router_is_documented() {
    let document = document();
    let documented: BTreeSet<_> = documented(&document).into_keys().collect();
    let served = served();
    assert!(served.len() > 60, "only {} routes were found", served.len());
    assert_eq!(served, documented);
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let document = document();
    let mut names = BTreeSet::new();
    for (route, operation) in documented(&document) {
        let name = operation["operationId"].as_str().unwrap();
        assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'), "{name}");
        assert!(names.insert(name), "{route:?} and another route are both `{name}`");
        for text in ["/summary", "/tags/0"] {
            assert!(operation.pointer(text).is_some_and(|text| text != ""), "{route:?} has no {text}");
        }
    }
}

#[test]
fn every_operation_tells_how_it_can_fail() {
    let document = document();
    let (mut told, mut known) = (BTreeSet::new(), BTreeSet::new());
    for ((method, path), operation) in documented(&document) {
        let responses = operation["responses"].as_object().unwrap();
        let mut needs = vec!["403", "429", "500", "503", "default"];
        if method == "post" {
            needs.extend(["400", "408", "409", "413", "507"]);
        }
        if path.contains("{session}") || path.contains("{job}") || path.contains("{volume}") {
            needs.extend(["400", "404", "409", "507"]);
        }
        if operation.to_string().contains("x-event-streams/session") {
            needs.push("410");
        }
        for status in needs {
            assert!(responses.contains_key(status), "{method} {path} does not tell of {status}");
        }
        let successes = responses.keys().filter(|status| status.starts_with('2')).count();
        assert!(successes > 0, "{method} {path} never succeeds");
        for response in responses.values().filter_map(|response| response.get("$ref")) {
            let place = response.as_str().unwrap().trim_start_matches('#');
            assert!(document.pointer(place).is_some(), "{method} {path} leads to {place}, which is nowhere");
        }
        let words = responses.values().filter_map(|response| response["description"].as_str());
        told.extend(words.flat_map(|words| words.split('`')).map(str::to_owned));
    }
    for word in document["components"]["schemas"]["Code"]["enum"].as_array().unwrap() {
        known.insert(word.as_str().unwrap().to_owned());
    }
    let untold: Vec<_> = known.difference(&told).cloned().collect();
    assert_eq!(untold, [failures::word(Code::NoSuchRoute)], "codes that no operation tells of");
}

#[test]
fn every_body_and_every_answer_has_an_example() {
    let document = document();
    for (route, operation) in documented(&document) {
        let answers = operation["responses"].as_object().unwrap().values();
        for message in std::iter::once(&operation["requestBody"]).chain(answers) {
            let media = &message["content"]["application/json"];
            assert!(
                media.is_null() || media.get("example").is_some(),
                "{route:?} has no example of {message}"
            );
        }
    }
}

#[test]
fn every_event_and_stream_is_documented() {
    let document = document();
    let streams = document["components"]["x-event-streams"].as_object().unwrap();
    for (stream, about) in streams {
        assert!(about["description"].is_string(), "{stream}");
        for (event, about) in about["events"].as_object().unwrap() {
            assert!(about["description"].is_string(), "nothing tells when `{event}` comes");
            let place = about["data"]["$ref"].as_str().unwrap_or("#/components").trim_start_matches('#');
            assert!(document.pointer(place).is_some(), "`{event}` leads to {place}, which is nowhere");
        }
    }
    assert!(streams["tools"]["events"]["ready"].is_object());
    assert!(streams["session"]["events"]["cell_finished"].is_object());
    let mut used = BTreeSet::new();
    for (route, operation) in documented(&document) {
        let media = &operation["responses"]["200"]["content"]["text/event-stream"];
        if !media.is_null() {
            let place = media["x-events"]["$ref"].as_str().unwrap_or_default().trim_start_matches('#');
            assert!(document.pointer(place).is_some(), "{route:?} is a stream of nothing known");
            used.insert(place.rsplit('/').next().unwrap().to_owned());
        }
    }
    assert!(used.iter().eq(streams.keys()), "streams that no operation has: {used:?}");
}

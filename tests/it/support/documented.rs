//! Holds every answer that a test gets against `config/openapi.json`: a status that the document does not tell of for its
//! route is a mistake of the document.

use serde_json::Value;
use std::sync::LazyLock;

use super::Response;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    // Unlike `from_str`, which would be compiled here without optimisation, this is code of `serde_json` itself.
    include_str!("../../../config/openapi.json").parse().expect("the document is JSON")
});

/// Checks the status of an answer. What no route serves, and what the HTTP library itself refuses, is not documented.
pub fn check(method: &str, path: &str, response: &Response) {
    let is_problem = response.header("content-type") == Some("application/problem+json");
    let Some(operation) = operation(method, path).filter(|_| is_problem || response.status < 300) else {
        return;
    };
    let text = response.text();
    if is_problem && text.contains("\"no_such_route\"") {
        return;
    }
    assert!(
        operation["responses"].get(response.status.to_string()).is_some(),
        "`{method} {path}` is answered with {}, of which config/openapi.json does not tell: name its code in \
         src/control/openapi/routes.rs\n{text}",
        response.status
    );
}

/// The operation of a request. Of several paths that fit, the one with the fewest parameters is served.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next()?.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    let paths = DOCUMENT["paths"].as_object()?;
    let fitting = paths.iter().filter(|(template, _)| fits(template, &parts));
    let (_, methods) = fitting.min_by_key(|(template, _)| template.matches('{').count())?;
    methods.get(method.to_ascii_lowercase())
}

/// Whether a path is one of those of a template. A file and an image may have slashes in their names.
fn fits(template: &str, parts: &[&str]) -> bool {
    let expected: Vec<&str> = template.split('/').collect();
    let has_tail = template.ends_with("{path}") || template.ends_with("{image}");
    if parts.len() < expected.len() || (parts.len() > expected.len() && !has_tail) {
        return false;
    }
    expected.iter().zip(parts).all(|(expected, part)| expected.starts_with('{') || expected == part)
}

#[test]
fn a_request_finds_its_operation() {
    let id = |method: &str, path: &str| operation(method, path).map(|found| found["operationId"].clone());
    assert_eq!(id("GET", "/v1/sessions/a/files/b/c.txt?x=1").unwrap(), "read_file");
    assert_eq!(id("GET", "/v1/sessions/a/files/").unwrap(), "list_files");
    assert_eq!(id("POST", "/v1/images/build").unwrap(), "build_image");
    assert_eq!(id("DELETE", "/v1/images/a/b:c").unwrap(), "remove_image");
    assert_eq!(id("POST", "/v1/nonsense"), None);
    assert_eq!(id("POST", "/v1/health"), None);
}

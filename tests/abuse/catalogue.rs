//! `CATALOGUE.md` and the promises of the README are true: every case is there, and every test that is named.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const CASES: usize = 44;

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path: PathBuf = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&std::fs::read_to_string(&path).expect("a source"));
        }
    }
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names in backticks, of which there is at least one.
#[track_caller]
fn assert_tests_exist(what: &str, held: &str) {
    static CODE: LazyLock<String> = LazyLock::new(|| {
        let mut code = String::new();
        sources(&top().join("src"), &mut code);
        sources(&top().join("tests"), &mut code);
        code
    });
    let tests: Vec<&str> = held.split('`').skip(1).step_by(2).filter(|name| name.contains('_')).collect();
    assert!(!tests.is_empty(), "{what}: no test is named");
    for test in tests {
        assert!(CODE.contains(&format!("fn {test}(")), "{what}: there is no test `{test}`");
    }
}

#[test]
fn every_case_is_held_by_tests_that_exist() {
    let text = std::fs::read_to_string(top().join("tests/abuse/CATALOGUE.md")).expect("the catalogue");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|fields| fields.get(1).is_some_and(|number| number.parse::<usize>().is_ok()))
        .collect();
    let numbers: Vec<String> = rows.iter().map(|fields| fields[1].to_owned()).collect();
    assert_eq!(numbers, (1..=CASES).map(|number| number.to_string()).collect::<Vec<_>>());
    for fields in rows {
        let held = fields[3];
        if held.starts_with("not tested") {
            continue;
        }
        assert_tests_exist(&format!("case {}", fields[1]), held);
    }
    let suspicions = text.split("## Suspicions").nth(1).expect("the section");
    for row in suspicions.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| suspicion")) {
        let fields: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_tests_exist(fields[1], fields[3]);
    }
}

#[test]
fn every_promise_is_held_by_tests_that_exist() {
    let text = std::fs::read_to_string(top().join("README.md")).expect("the README");
    let promises = text.split("## What is promised").nth(1).expect("the section");
    let promises = promises.split("Not promised").next().expect("its first half");
    for row in promises.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise")) {
        let fields: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_tests_exist(fields[1], fields[2]);
    }
}

//! Every security control that can be switched off in a test build has its row in `tests/mutate`, with the tests
//! that must notice, and no ordinary build can switch one off.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// Texts of all sources of a kind.
fn texts(folder: &str, extension: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let paths = files(&folder, extension)
        .into_iter()
        .filter(|path| !path.ends_with("src/security_controls.rs") && !path.ends_with("src/controls.rs"));
    paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Names that stand in quotes right behind one of these calls, in the daemon or in the guardian.
fn named_in_code() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in [texts("src", "rs"), texts("sandbox-bootstrap/guardian/src", "rs")].concat() {
        for call in ["controls::holds(", "controls::setting("] {
            let arguments = text.split(call).skip(1).map(str::trim_start);
            names.extend(
                arguments.filter_map(|text| Some(text.strip_prefix('"')?.split_once('"')?.0.to_owned())),
            );
        }
    }
    names
}

#[test]
fn every_control_has_a_row_and_every_row_a_control() {
    let mut applied = named_in_code();
    for text in texts("sandbox-bootstrap", "py") {
        applied.extend(
            text.split("# control: ").skip(1).map(|rest| rest.lines().next().unwrap().trim().to_owned()),
        );
    }
    let there = crate::support::test_paths();
    let mut listed = BTreeSet::new();
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutate"), "toml") {
        let table: toml::Table = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for (name, row) in table {
            assert!(row["what"].is_str(), "`{name}`");
            for also in row.get("also_off").and_then(toml::Value::as_array).into_iter().flatten() {
                assert!(applied.contains(also.as_str().unwrap()), "`{name}`: there is no control {also}");
            }
            let tests = row["tests"].as_array().unwrap();
            assert!(!tests.is_empty(), "`{name}` names no test");
            for test in tests {
                assert!(there.contains(test.as_str().unwrap()), "`{name}`: there is no test {test}");
            }
            assert!(listed.insert(name.clone()), "`{name}` is listed twice");
        }
    }
    assert_eq!(applied, listed);
}

#[test]
#[cfg(not(feature = "mutate"))]
fn no_ordinary_build_can_switch_a_control_off() {
    let binary = std::fs::read(crate::support::binary()).unwrap();
    let variable = ["BELLJAR", "MUTATE"].join("_");
    assert!(!binary.windows(variable.len()).any(|window| window == variable.as_bytes()));
}

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

/// Names between `before` and `after` in all sources of a kind.
fn named(folder: &str, extension: &str, before: &str, after: char) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut names = BTreeSet::new();
    for path in files(&folder, extension).into_iter().filter(|path| !path.ends_with("src/controls.rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for piece in text.split(before).skip(1) {
            names.insert(piece.split(after).next().unwrap().trim().to_owned());
        }
    }
    names
}

#[test]
fn every_control_has_a_row_and_every_row_a_control() {
    let mut applied = named("src", "rs", "controls::holds(\"", '"');
    applied.extend(named("sandbox-bootstrap", "py", "# control: ", '\n'));
    let mut listed = BTreeSet::new();
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutate"), "toml") {
        let table: toml::Table = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for (name, row) in table {
            for key in ["what", "tests"] {
                assert!(row.get(key).is_some(), "{}: `{name}` has no `{key}`", path.display());
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

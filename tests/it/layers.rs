//! Arrows point down only: each folder of `src` may use the ones named here and no other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folder, and what it may use.
const MAY_USE: [(&str, &[&str]); 16] = [
    ("protocol", &[]),
    ("schema", &["protocol"]),
    ("config", &["protocol", "schema"]),
    ("memory", &["config", "protocol"]),
    ("agent", &["config", "protocol", "schema"]),
    ("bridge", &["config", "memory", "protocol"]),
    ("llm", &["config", "memory", "protocol", "schema"]),
    ("quota", &["config", "memory", "protocol"]),
    ("sandbox", &["config", "protocol"]),
    ("store", &["config", "memory", "protocol"]),
    ("tools", &["config", "memory", "protocol", "schema"]),
    (
        "actors",
        &["agent", "bridge", "config", "llm", "memory", "protocol", "quota", "sandbox", "store", "tools"],
    ),
    ("control", &["actors", "config", "memory", "protocol", "quota", "sandbox", "store", "tools"]),
    ("daemon", &["actors", "config", "control", "protocol", "quota", "sandbox", "store", "tools"]),
    ("cli", &["config", "protocol"]),
    ("schemas.rs", &["control", "protocol", "schema"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn no_layer_knows_the_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let may_use: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let mut wrong = Vec::new();
    for path in sources(&src) {
        let relative = path.strip_prefix(&src).unwrap();
        let layer = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        if ["main.rs", "lib.rs", "controls.rs", "deaths.rs", "processes.rs"].contains(&layer) {
            continue;
        }
        let allowed = may_use.get(layer).unwrap_or_else(|| panic!("`{layer}` has no row in this test"));
        let text = std::fs::read_to_string(&path).unwrap();
        for piece in text.split("crate::").skip(1) {
            let used: String = piece.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if used != layer
                && !["controls", "deaths", "processes"].contains(&used.as_str())
                && !allowed.contains(&used.as_str())
            {
                wrong.push(format!("{} uses {used}", relative.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Foot-guns that have one place each.
#[test]
fn libraries_stay_in_their_rooms() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let rooms = [
        ("ractor", &["actors", "control", "daemon"][..]),
        ("bollard", &["sandbox"]),
        ("axum", &["control"]),
        ("rusqlite", &["store"]),
        ("jsonschema", &["schema"]),
    ];
    for path in sources(&src) {
        let relative = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        for (library, allowed) in rooms {
            let used = text.contains(&format!("{library}::"));
            assert!(
                !used || allowed.iter().any(|room| relative.starts_with(room)),
                "{relative} uses {library}"
            );
        }
    }
}

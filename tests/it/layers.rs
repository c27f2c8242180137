//! Arrows point down only: each folder of `src` may use the ones named here and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folder, and what it may use.
const MAY_USE: [(&str, &[&str]); 18] = [
    ("protocol", &[]),
    ("schema", &["protocol"]),
    ("config", &["packages", "protocol", "schema"]),
    ("memory", &["config", "protocol"]),
    ("agent", &["config", "protocol", "schema"]),
    ("bridge", &["config", "memory", "protocol"]),
    ("llm", &["config", "memory", "protocol", "schema"]),
    ("quota", &["config", "memory", "protocol"]),
    ("packages", &["protocol"]),
    ("sandbox", &["config", "packages", "protocol", "quota"]),
    ("store", &["config", "memory", "protocol"]),
    ("tools", &["config", "memory", "protocol", "schema"]),
    ("session", &["agent", "config", "memory", "protocol", "sandbox", "store", "tools"]),
    (
        "actors",
        &[
            "agent", "bridge", "config", "llm", "memory", "packages", "protocol", "quota", "sandbox",
            "session", "store", "tools",
        ],
    ),
    (
        "control",
        &["actors", "config", "memory", "packages", "protocol", "quota", "sandbox", "store", "tools"],
    ),
    ("daemon", &["actors", "config", "control", "memory", "protocol", "quota", "sandbox", "store", "tools"]),
    ("cli", &["config", "protocol"]),
    ("generated_files.rs", &["control", "protocol", "schema"]),
];

/// What stands beside the layers; all of them may use it.
const BESIDE: [&str; 6] =
    ["security_controls", "fair_queue", "offload", "panics", "processes", "project_quotas"];

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder, &["rs"])
}

/// All files below a folder whose names end so, apart from what builds have left there.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, endings));
        } else if path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted)) {
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
        let is_beside = |name: &str| BESIDE.contains(&name);
        if ["main.rs", "lib.rs"].contains(&layer) || layer.strip_suffix(".rs").is_some_and(is_beside) {
            continue;
        }
        let allowed = may_use.get(layer).unwrap_or_else(|| panic!("`{layer}` has no row in this test"));
        let text = std::fs::read_to_string(&path).unwrap();
        for piece in text.split("crate::").skip(1) {
            let used: String = piece.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if used != layer && !is_beside(&used) && !allowed.contains(&used.as_str()) {
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
        ("ractor", &["actors", "daemon"][..]),
        ("bollard", &["sandbox"]),
        ("axum", &["control"]),
        ("rusqlite", &["store"]),
        ("regex", &["schema"]),
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

/// Files that need each other cannot be read, moved or tested one by one.
const LARGEST_CIRCLE: usize = 8;
#[test]
fn no_more_than_a_few_files_use_each_other_in_a_circle() {
    let uses = uses();
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (file.as_str(), reached_from(file, &uses))).collect();
    for file in uses.keys() {
        let circle: Vec<&&str> = reach[file.as_str()]
            .iter()
            .filter(|other| reach.get(**other).is_some_and(|back| back.contains(file.as_str())))
            .collect();
        assert!(circle.len() <= LARGEST_CIRCLE, "{file} is in a circle of {}: {circle:?}", circle.len());
    }
}

/// The only actor whose handler waits: for the start and the end of a generation, which only its own messages await.
const MAY_WAIT: &str = "session/actor.rs";

/// What takes long is a task, whose outcome comes back as a message: else one slow engine, disk or model would hold up all
/// that an actor is told.
#[test]
fn no_handler_of_an_actor_waits() {
    let actors = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/actors");
    let (mut handlers, mut wrong) = (0, Vec::new());
    for path in sources(&actors) {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&actors).unwrap();
        for handler in text.split("async fn handle(\n").skip(1) {
            handlers += 1;
            let body = handler.split("\n    }\n").next().unwrap();
            let waits = |line: &&str| line.contains(".await") && !line.contains("tokio::spawn(");
            if name != Path::new(MAY_WAIT) && body.lines().any(|line| waits(&line)) {
                wrong.push(name.display().to_string());
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(handlers >= 8, "only {handlers} handlers were found");
}

/// A file is read in one go, and a `mod.rs` says what there is and nothing else.
const LONGEST_FILE: usize = 500;
/// Folders with code of this project.
const CODE: [&str; 8] =
    ["benches", "config", "examples", "images", "sandbox-bootstrap", "sdk", "src", "tests"];

#[test]
fn files_are_short_and_lists_of_modules_hold_no_code() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for path in CODE.iter().flat_map(|folder| files(&top.join(folder), &["rs", "py", "sh"])) {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(top).unwrap();
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            wrong.push(format!("{} has {lines} lines, more than {LONGEST_FILE}", name.display()));
        }
        // Beside their modules, the tests of a folder have what all of them need; those of jails are a list of tests.
        let is_list = path.ends_with("mod.rs")
            && !path.parent().unwrap().ends_with("tests")
            && name != Path::new("tests/it/jail/mod.rs");
        if is_list && text.contains("fn ") {
            wrong.push(format!("{} holds code", name.display()));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whatever is not used costs time at every build.
#[test]
fn every_crate_that_is_named_is_used() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text_of = |folders: &[&str]| -> String {
        let paths = folders.iter().flat_map(|folder| sources(&top.join(folder)));
        paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    };
    let mut unused = Vec::new();
    for (manifest, table, folders) in [
        ("Cargo.toml", "[dependencies]", &["src"][..]),
        ("Cargo.toml", "[dev-dependencies]", &["src", "tests/it", "tests/abuse"]),
        ("sandbox-bootstrap/guardian/Cargo.toml", "[dependencies]", &["sandbox-bootstrap/guardian/src"]),
    ] {
        let text = text_of(folders);
        let all = std::fs::read_to_string(top.join(manifest)).unwrap();
        let named = all.split(&format!("{table}\n")).nth(1).unwrap().split("\n[").next().unwrap();
        for line in named.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let name = line.split([' ', '=']).next().unwrap().replace('-', "_");
            if !text.contains(&format!("{name}::")) {
                unused.push(format!("{manifest}: {name}"));
            }
        }
    }
    assert_eq!(unused, Vec::<String>::new());
}

/// All modules that a module leads to; itself only in a circle.
fn reached_from<'a>(module: &str, uses: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![module];
    while let Some(next) = open.pop() {
        for used in uses.get(next).into_iter().flatten() {
            if found.insert(used.as_str()) {
                open.push(used);
            }
        }
    }
    found
}

/// Modules, as `cli::render::screen`, with the modules that their `use` lines name outside of tests.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut texts = BTreeMap::new();
    for path in sources(&src) {
        let relative = path.strip_prefix(&src).unwrap().with_extension("").to_str().unwrap().to_owned();
        if relative.split('/').any(|part| part == "tests") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let module = relative.strip_suffix("/mod").unwrap_or(&relative).replace('/', "::");
        texts.insert(module, text.split("#[cfg(test)]").next().unwrap().to_owned());
    }
    let used_by = |module: &String, text: &String| {
        let statements = text.split(';').filter_map(|statement| {
            let (before, tree) = statement.rsplit_once("use ")?;
            before
                .lines()
                .last()
                .is_none_or(|line| line.trim().is_empty() || line.trim().starts_with("pub"))
                .then_some(tree)
        });
        let paths = statements.flat_map(|tree| paths(tree.trim()));
        let found = paths.filter_map(|path| module_of(module, &path, |known| texts.contains_key(known)));
        found.filter(|used| used != module).collect::<BTreeSet<String>>()
    };
    texts.iter().map(|(module, text)| (module.clone(), used_by(module, text))).collect()
}

/// The paths of a `use` tree: `a::{b, c::{d, e}}` is `a::b`, `a::c::d` and `a::c::e`.
fn paths(tree: &str) -> Vec<String> {
    let Some((before, inner)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap().trim().to_owned()];
    };
    let (mut all, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                all.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    all.into_iter()
        .filter(|part| !part.is_empty())
        .flat_map(|part| paths(&format!("{before}{part}")))
        .collect()
}

/// The module that a path within another module leads into, if it is one of ours.
fn module_of(from: &str, path: &str, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").collect();
    let mut base: Vec<&str> = from.split("::").collect();
    match parts[0] {
        "crate" => base.clear(),
        "self" | "super" => {}
        // A module below its own, or another crate.
        first if !is_known(&format!("{from}::{first}")) => return None,
        _ => parts.insert(0, "self"),
    }
    for part in &parts {
        if *part == "super" {
            base.pop();
        }
    }
    base.extend(parts.into_iter().filter(|part| !["crate", "self", "super"].contains(part)));
    while !base.is_empty() && !is_known(&base.join("::")) {
        base.pop();
    }
    (!base.is_empty()).then(|| base.join("::"))
}

#[test]
fn use_trees_are_read() {
    assert_eq!(paths("a::{b, c::{d, e as f}, self}"), ["a::b", "a::c::d", "a::c::e", "a::self"]);
    let known = |module: &str| ["cli", "cli::render", "cli::render::screen", "protocol"].contains(&module);
    for (path, module) in [
        ("super::screen::Screen", Some("cli::render::screen")),
        ("crate::protocol::ids::Seq", Some("protocol")),
        ("super::super::Failure", Some("cli")),
        ("std::fmt", None),
    ] {
        assert_eq!(module_of("cli::render::cell", path, known).as_deref(), module, "{path}");
    }
}

/// A test of containers that is `pub` is one for every kind of sandbox: forgotten in the list of the jails, it would
/// hold for containers only, and no test would notice.
#[test]
fn every_test_that_is_open_to_jails_runs_there() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let list = std::fs::read_to_string(tests.join("jail/mod.rs")).unwrap();
    let listed: BTreeSet<&str> = list.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let mut forgotten = Vec::new();
    for path in sources(&tests.join("docker")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for test in text.split("#[test]\n").skip(1) {
            let head = test.lines().find(|line| !line.starts_with("#[")).unwrap_or_default();
            let name = head.strip_prefix("pub fn ").and_then(|rest| rest.split('(').next());
            forgotten.extend(name.filter(|name| !listed.contains(name)).map(str::to_owned));
        }
    }
    assert_eq!(forgotten, Vec::<String>::new(), "list them in `jail/mod.rs`, or make them private");
}

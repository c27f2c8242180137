//! Which tests there are, as their sources say: what tables and pages name has to be found among them.

use std::collections::BTreeSet;
use std::path::Path;

/// The tests that the macros of `abuse::grounds` make of a function, in a module of its name.
const GROUNDS: [&str; 3] = ["in_a_container", "in_a_jail_of_root", "in_a_jail_of_a_user"];

/// The whole paths of all tests of the daemon, as its test binaries list them.
pub fn test_paths() -> BTreeSet<String> {
    paths_of([("src", ""), ("tests/it", ""), ("tests/abuse", "abuse")])
}

/// The names of all test functions, those of the guardian too. A test that runs on several grounds is one.
pub fn test_names() -> BTreeSet<String> {
    let paths = [test_paths(), paths_of([("sandbox-bootstrap/guardian/src", "")])];
    let name = |path: &String| path.rsplit("::").find(|name| !GROUNDS.contains(name)).map(ToOwned::to_owned);
    paths.iter().flatten().filter_map(name).collect()
}

fn paths_of<const N: usize>(folders: [(&str, &str); N]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (folder, module) in folders {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), module, &mut found);
    }
    found
}

fn collect(folder: &Path, module: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let inner =
            if matches!(stem, "mod" | "lib" | "main") { module.to_owned() } else { join(module, stem) };
        if path.is_dir() {
            collect(&path, &inner, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(tests_of(&inner, &std::fs::read_to_string(&path).expect("a source")));
        }
    }
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// Functions below a test attribute, and those that a macro makes tests of. Where a module within a file begins and
/// ends is told by the indentation, which `cargo fmt` sees to.
fn tests_of(module: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut modules = vec![(None, module.to_owned())];
    let mut is_test = false;
    for line in source.lines() {
        let (text, indentation) = (line.trim(), line.len() - line.trim_start().len());
        let (inside, current) = modules.last().expect("the module of the file");
        if text == "}" && *inside == Some(indentation) {
            modules.pop();
        } else if let Some(name) = inner_module(text) {
            let current = join(current, name);
            modules.push((Some(indentation), current));
        }
        is_test |= text == "#[test]" || text.starts_with("#[tokio::test");
        if let Some((_, name)) = text.split_once("fn ").filter(|_| is_test && !text.starts_with("//")) {
            let (_, current) = modules.last().expect("the module of the file");
            found.push(join(current, name.split('(').next().unwrap_or_default()));
            is_test = false;
        }
    }
    for (start, grounds) in [("\non_every_ground!(", &GROUNDS[..]), ("\non_grounds_of_root!(", &GROUNDS[..2])]
    {
        for arguments in source.split(start).skip(1).filter_map(|rest| rest.split(')').next()) {
            for test in names(arguments) {
                found.extend(grounds.iter().map(|ground| join(module, &format!("{test}::{ground}"))));
            }
        }
    }
    for (start, users) in [("\nboth! {", &["root", "ordinary_user"][..]), ("\nagain! {", &[])] {
        for arguments in source.split(start).skip(1).filter_map(|rest| rest.split("\n}").next()) {
            let first = arguments.split(',').next().unwrap_or_default().trim();
            let users = if users.is_empty() { &[first] } else { users };
            for (subject, tests) in arguments.split(';').filter_map(|part| part.split_once(": ")) {
                let subject = subject.split_whitespace().last().unwrap_or_default();
                for (user, test) in users.iter().flat_map(|user| names(tests).map(move |test| (user, test))) {
                    found.push(join(module, &format!("{user}::{subject}::{test}")));
                }
            }
        }
    }
    found
}

/// The name in `mod name {`, however visible.
fn inner_module(line: &str) -> Option<&str> {
    let (before, name) = line.strip_suffix(" {")?.split_once("mod ")?;
    let is_plain = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (is_plain && (before.is_empty() || before.starts_with("pub"))).then_some(name)
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty())
}

#[test]
fn only_test_functions_count_and_their_paths_are_whole() {
    let source = "fn helper() {}\n#[test]\n#[ignore]\npub fn one() {}\nfn no_test(x: u8) {}\n\
                  #[cfg(test)]\nmod tests {\n    #[tokio::test(flavor = \"x\")]\n    async fn two() {\n    }\n}\n\
                  on_grounds_of_root!(\n    a_third,\n);\n\
                  again! { root, None,\n    files: a_fourth,\n        a_fifth;\n}\nfn a_sixth() {}\n";
    let paths = [
        "a::one",
        "a::tests::two",
        "a::a_third::in_a_container",
        "a::a_third::in_a_jail_of_root",
        "a::root::files::a_fourth",
        "a::root::files::a_fifth",
    ];
    assert_eq!(tests_of("a", source), paths);
}

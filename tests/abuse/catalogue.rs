//! `CATALOGUE.md` and the promises of the README are true: every case is there, and every test that is named.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

const CASES: usize = 44;
/// The attacks of the first review.
const ATTACKS: usize = 12;

/// The names of all tests in Python in a folder.
fn python_tests_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            python_tests_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            found.extend(python_tests_of(&std::fs::read_to_string(&path).expect("a source")));
        }
    }
}

/// Methods of Python's test cases.
fn python_tests_of(source: &str) -> Vec<String> {
    let names = source.lines().filter_map(|line| line.trim().strip_prefix("def ")?.split_once('('));
    names.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with("test_")).collect()
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names in backticks, of which there is at least one.
#[track_caller]
fn assert_tests_exist(what: &str, held: &str) {
    static TESTS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let mut tests = crate::support::test_names();
        python_tests_in(&top().join("tests"), &mut tests);
        tests
    });
    // A test that runs on several grounds, or as several users, may be named without them.
    let variants = |name: &str| [format!("{name}_in_a_"), format!("{name}_of_")];
    let is_variant = |test: &String, name: &str| variants(name).iter().any(|start| test.starts_with(start));
    let tests: Vec<&str> = held.split('`').skip(1).step_by(2).filter(|name| name.contains('_')).collect();
    assert!(!tests.is_empty(), "{what}: no test is named");
    for test in tests {
        let exists = TESTS.contains(test) || TESTS.iter().any(|known| is_variant(known, test));
        assert!(exists, "{what}: there is no test `{test}`");
    }
}

#[test]
fn every_case_is_held_by_tests_that_exist() {
    let text = std::fs::read_to_string(top().join("tests/abuse/CATALOGUE.md")).expect("the catalogue");
    let (cases, rest) = text.split_once("## Attacks that were run").expect("the section");
    let (attacks, rest) = rest.split_once("## Suspicions").expect("the section");
    let (suspicions, rest) = rest.split_once("## The second review").expect("the section");
    let (review, rules) = rest.split_once("## Rules that are not code").expect("the section");
    for (what, part, count) in [("case", cases, CASES), ("attack", attacks, ATTACKS)] {
        let rows: Vec<Vec<&str>> = part
            .lines()
            .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
            .filter(|fields| fields.get(1).is_some_and(|number| number.parse::<usize>().is_ok()))
            .collect();
        let numbers: Vec<String> = rows.iter().map(|fields| fields[1].to_owned()).collect();
        assert_eq!(numbers, (1..=count).map(|number| number.to_string()).collect::<Vec<_>>(), "{what}");
        for fields in rows.iter().filter(|fields| !fields[3].starts_with("not tested")) {
            assert_tests_exist(&format!("{what} {}", fields[1]), fields[3]);
        }
    }
    let rules = rules.lines().filter(|line| line.starts_with("| ")).count();
    assert!(rules > 1, "no rule is accounted for");
    for (part, head) in [(suspicions, "| suspicion"), (review, "| promise")] {
        for row in part.lines().filter(|line| line.starts_with("| ") && !line.starts_with(head)) {
            let fields: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_tests_exist(&format!("{}: {}", fields[1], fields[2]), fields[3]);
        }
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

#[test]
fn only_methods_of_test_cases_count_as_tests() {
    let source = "def test_no_more(x):\n    def test_one(self):\n    def helper(self):\n# def test_two(\n";
    assert_eq!(python_tests_of(source), ["test_no_more", "test_one"]);
}

/// The README says how many probes there are.
#[test]
fn the_readme_counts_the_probes() {
    let text = std::fs::read_to_string(top().join("README.md")).expect("the README");
    let counted = format!("({} probes:", crate::docker::escape::PROBE_COUNT);
    assert!(text.contains(&counted), "the README does not say «{counted}»");
}

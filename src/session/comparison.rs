//! What two sessions differ in: of variables by what their listing shows and the digest of their content, of files by
//! size and content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::protocol::api::VariableList;
use crate::protocol::branch::{
    ChangedFile, ChangedVariable, ComparedFile, DIFFERENCES_LISTED, FileDiff, VariableDiff,
};
use crate::protocol::frames::Variable;
use crate::sandbox::workspace::compare::{ContentDigest, FileSizes};
use crate::session::replay::volatile::without_volatile;

/// Compares the variables of two sessions.
#[must_use]
pub fn of_variables(mut first: VariableList, second: VariableList) -> VariableDiff {
    let is_cut = |list: &VariableList| list.total > list.variables.len() as u64;
    let mut diff = VariableDiff { cut: is_cut(&first) || is_cut(&second), ..VariableDiff::default() };
    let mut second: BTreeMap<String, Variable> =
        second.variables.into_iter().map(|variable| (variable.name.clone(), variable)).collect();
    // What is cut are the last names, whatever the order in which the sessions list theirs.
    first.variables.sort_by(|a, b| a.name.cmp(&b.name));
    for one in first.variables {
        match second.remove(&one.name) {
            None => list(&mut diff.only_in_first, &mut diff.cut, || one),
            Some(other) => match compared_variables(&one, &other) {
                Finding::Same => diff.same += 1,
                Finding::Unknown => list(&mut diff.not_compared, &mut diff.cut, || one.name),
                Finding::Differs(by) => {
                    let changed = || ChangedVariable { by, first: one, second: other };
                    list(&mut diff.changed, &mut diff.cut, changed);
                }
            },
        }
    }
    for other in second.into_values() {
        list(&mut diff.only_in_second, &mut diff.cut, || other);
    }
    diff
}

/// What is known of two variables with the same name.
enum Finding {
    Same,
    /// They look the same, and nothing says whether they are.
    Unknown,
    Differs(Vec<String>),
}

fn compared_variables(one: &Variable, other: &Variable) -> Finding {
    let same_content = have_same_content(one, other);
    // What holds the same may show it in another order, as sets do, or have more room.
    if one.type_name == other.type_name && same_content == Some(true) {
        return Finding::Same;
    }
    // The bytes that an object takes in memory are no part of its value: a list that has grown has room to grow, and has
    // none after it was loaded.
    let checks = [
        ("type", one.type_name == other.type_name),
        ("shape", one.shape == other.shape),
        // Where an object lies in memory is no difference.
        ("preview", without_volatile(&one.preview) == without_volatile(&other.preview)),
        ("content", same_content != Some(false)),
    ];
    let by: Vec<String> =
        checks.into_iter().filter(|(_, same)| !same).map(|(name, _)| name.to_owned()).collect();
    if by.is_empty() { Finding::Unknown } else { Finding::Differs(by) }
}

/// None if one of them has no digest, or one that was made in another way.
fn have_same_content(one: &Variable, other: &Variable) -> Option<bool> {
    let (one_way, one_digest) = one.digest.as_deref()?.split_once(':')?;
    let (other_way, other_digest) = other.digest.as_deref()?.split_once(':')?;
    (one_way == other_way).then_some(one_digest == other_digest)
}

/// The files that both have in the same size: only their content can tell them apart.
#[must_use]
pub fn to_read(first: &FileSizes, second: &FileSizes) -> Vec<PathBuf> {
    let alike = first.files.iter().filter(|(path, bytes)| second.files.get(*path) == Some(bytes));
    alike.map(|(path, _)| path.clone()).collect()
}

/// The digests of [`to_read`], of either session.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    pub first: &'a [Option<ContentDigest>],
    pub second: &'a [Option<ContentDigest>],
}

/// Compares the files of two sessions, of which `read` were read.
#[must_use]
pub fn of_files(first: &FileSizes, second: &FileSizes, read: &[PathBuf], contents: Contents<'_>) -> FileDiff {
    let mut diff = FileDiff { cut: first.cut || second.cut, ..FileDiff::default() };
    let digests: BTreeMap<&Path, (Option<ContentDigest>, Option<ContentDigest>)> = read
        .iter()
        .zip(contents.first.iter().zip(contents.second))
        .map(|(path, (one, other))| (path.as_path(), (*one, *other)))
        .collect();
    for (path, bytes) in &first.files {
        let Some(other) = second.files.get(path) else {
            list(&mut diff.only_in_first, &mut diff.cut, || compared(path, *bytes));
            continue;
        };
        let is_same = match digests.get(path.as_path()) {
            _ if bytes != other => false,
            Some((Some(one), Some(other))) => one == other,
            _ => {
                diff.unread += 1;
                continue;
            }
        };
        if is_same {
            diff.same += 1;
        } else {
            let changed =
                || ChangedFile { path: display_path(path), bytes_in_first: *bytes, bytes_in_second: *other };
            list(&mut diff.changed, &mut diff.cut, changed);
        }
    }
    for (path, bytes) in second.files.iter().filter(|(path, _)| !first.files.contains_key(*path)) {
        list(&mut diff.only_in_second, &mut diff.cut, || compared(path, *bytes));
    }
    diff
}

fn list<T>(all: &mut Vec<T>, cut: &mut bool, one: impl FnOnce() -> T) {
    if all.len() < DIFFERENCES_LISTED {
        all.push(one());
    } else {
        *cut = true;
    }
}

fn compared(path: &Path, bytes: u64) -> ComparedFile {
    ComparedFile { path: display_path(path), bytes }
}

fn display_path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, type_name: &str, preview: &str, bytes: u64) -> Variable {
        Variable {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            preview: preview.to_owned(),
            bytes: Some(bytes),
            shape: None,
            digest: Some(format!("1:{type_name} {preview}")),
        }
    }

    fn with_digest(digest: Option<&str>, of: Variable) -> Variable {
        Variable { digest: digest.map(ToOwned::to_owned), ..of }
    }

    fn variables(all: &[Variable]) -> VariableList {
        VariableList { variables: all.to_vec(), total: all.len() as u64, as_before: None }
    }

    #[test]
    fn variables_differ_by_what_is_shown_of_them() {
        let first =
            [variable("a", "int", "1", 28), variable("b", "int", "1", 28), variable("c", "int", "1", 28)];
        let second =
            [variable("d", "str", "'x'", 50), variable("b", "str", "'1'", 50), variable("c", "int", "1", 28)];
        let diff = of_variables(variables(&first), variables(&second));
        let names = |all: &[Variable]| all.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&diff.only_in_first), names(&diff.only_in_second)),
            (vec!["a".into()], vec!["d".into()])
        );
        assert_eq!(diff.changed.len(), 1);
        assert_eq!(diff.changed[0].by, ["type", "preview", "content"]);
        assert_eq!((diff.same, diff.cut), (1, false));
        let many = VariableList { total: 900, ..variables(&first) };
        assert!(of_variables(many, variables(&second)).cut);
    }

    #[test]
    fn variables_that_look_the_same_differ_by_the_digest_of_their_content() {
        let array = |digest| [with_digest(digest, variable("a", "ndarray", "ndarray (9,)", 72))];
        let diff = |one, other| of_variables(variables(&array(one)), variables(&array(other)));
        assert_eq!(diff(Some("1:ab"), Some("1:ab")), VariableDiff { same: 1, ..VariableDiff::default() });
        assert_eq!(diff(Some("1:ab"), Some("1:cd")).changed[0].by, ["content"]);
        let unknown = VariableDiff { not_compared: vec!["a".to_owned()], ..VariableDiff::default() };
        for other in [None, Some("1-cpython-312:ab"), Some("2:ab"), Some("ab")] {
            assert_eq!(diff(Some("1:ab"), other), unknown, "{other:?}");
        }
        assert_eq!(diff(None, None), unknown);
    }

    #[test]
    fn variables_of_the_same_content_are_the_same_however_they_are_shown() {
        let set = |preview: &str, bytes| [with_digest(Some("1:ab"), variable("s", "set", preview, bytes))];
        let (one, other) = (set("{'a', 'b'}", 216), set("{'b', 'a'}", 728));
        assert_eq!(of_variables(variables(&one), variables(&other)).same, 1);
        let list = [with_digest(Some("1:ab"), variable("s", "list", "{'b', 'a'}", 728))];
        assert_eq!(of_variables(variables(&other), variables(&list)).changed[0].by, ["type"]);
    }

    #[test]
    fn how_much_memory_an_object_takes_is_no_difference() {
        let list = |bytes| [with_digest(None, variable("big", "list", "[0, 1, …]", bytes))];
        let diff = of_variables(variables(&list(1_671_784)), variables(&list(1_600_056)));
        assert_eq!((diff.not_compared, diff.changed), (vec!["big".to_owned()], Vec::new()));
    }

    #[test]
    fn where_an_object_lies_in_memory_is_no_difference() {
        let object = |address: &str| {
            [with_digest(None, variable("a", "A", &format!("<__main__.A object at {address}>"), 48))]
        };
        let (here, there) = (object("0x7f2cf6d4e7b0"), object("0x7f352374a7b0"));
        assert_eq!(of_variables(variables(&here), variables(&there)).not_compared, ["a"]);
    }

    fn sizes(all: &[(&str, u64)]) -> FileSizes {
        let files = all.iter().map(|(path, bytes)| (PathBuf::from(path), *bytes)).collect();
        FileSizes { files, cut: false }
    }

    #[test]
    fn files_differ_by_size_and_content() {
        let first = sizes(&[("gone", 1), ("grown", 1), ("other", 2), ("same", 3), ("unread", 4)]);
        let second = sizes(&[("grown", 9), ("new", 7), ("other", 2), ("same", 3), ("unread", 4)]);
        let read = to_read(&first, &second);
        assert_eq!(read, ["other", "same", "unread"].map(PathBuf::from));
        let (one, two) = (Some([1; 32]), Some([2; 32]));
        let contents = Contents { first: &[one, one, one], second: &[two, one, None] };
        let diff = of_files(&first, &second, &read, contents);
        let paths = |all: &[ComparedFile]| all.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        assert_eq!(
            (paths(&diff.only_in_first), paths(&diff.only_in_second)),
            (vec!["gone".into()], vec!["new".into()])
        );
        let changed: Vec<_> =
            diff.changed.iter().map(|file| (file.path.as_str(), file.bytes_in_second)).collect();
        assert_eq!(changed, [("grown", 9), ("other", 2)]);
        assert_eq!((diff.same, diff.unread, diff.cut), (1, 1, false));
    }

    #[test]
    fn what_is_listed_is_bounded() {
        let many: Vec<(String, u64)> =
            (0..DIFFERENCES_LISTED as u64 + 5).map(|n| (format!("f{n}"), n)).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|(path, bytes)| (path.as_str(), *bytes)).collect();
        let diff = of_files(&sizes(&many), &sizes(&[]), &[], Contents { first: &[], second: &[] });
        assert_eq!((diff.only_in_first.len(), diff.cut), (DIFFERENCES_LISTED, true));
    }

    #[test]
    fn what_is_listed_of_variables_is_bounded() {
        let many = |preview: &str| {
            let all: Vec<Variable> = (0..DIFFERENCES_LISTED as u64 + 5)
                .map(|n| variable(&format!("v{n:05}"), "int", preview, 28))
                .rev()
                .collect();
            variables(&all)
        };
        let gone = of_variables(many("1"), variables(&[]));
        assert_eq!((gone.only_in_first.len(), gone.cut), (DIFFERENCES_LISTED, true));
        assert_eq!(gone.only_in_first[0].name, "v00000");
        let new = of_variables(variables(&[]), many("1"));
        assert_eq!((new.only_in_second.len(), new.cut), (DIFFERENCES_LISTED, true));
        let changed = of_variables(many("1"), many("2"));
        assert_eq!((changed.changed.len(), changed.cut), (DIFFERENCES_LISTED, true));
        let same = of_variables(many("1"), many("1"));
        assert_eq!((same.same, same.cut), (DIFFERENCES_LISTED as u64 + 5, false));
    }
}

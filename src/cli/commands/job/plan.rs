//! Which jobs a run has, determined before any of them is sent.

use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::protocol::glob;
use crate::protocol::job::NewJob;
use crate::protocol::limits::{ARTIFACT_SCAN_DEPTH, ARTIFACT_SCAN_ENTRIES};

/// Most jobs of one run.
const JOBS: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct PlannedJob {
    pub name: String,
    /// The script's path, as it is shown to people.
    pub path: PathBuf,
    /// Index of the source in the list of sources.
    pub source: usize,
    pub job: NewJob,
}

#[derive(Debug, Default, PartialEq)]
pub(in crate::cli) struct Plan {
    /// What is sent: folders with their content, and single files.
    pub sources: Vec<PathBuf>,
    pub jobs: Vec<PlannedJob>,
    /// Patterns of scripts that no file matches, while others have matches.
    pub unmatched: Vec<String>,
}

/// Names and values of the matrix, in the order in which they were given.
pub(in crate::cli) type Matrix = Vec<(String, Vec<String>)>;

impl Plan {
    /// A file is a job of its own; in a folder, every `*.py` directly in it is a job.
    pub fn of_targets(targets: &[PathBuf], common: &NewJob, matrix: &Matrix) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for target in targets {
            let found = std::fs::metadata(target).map_err(|e| {
                Failure::io(format_args!("failed to find `{}`", target.display()), &e)
                    .hint("name scripts, or a folder with scripts")
            })?;
            if found.is_dir() {
                plan.add_folder(target, &["*.py".to_owned()], common, matrix)?;
            } else {
                let name = utf8(target.file_name().unwrap_or_default().as_ref())?;
                plan.sources.push(target.clone());
                plan.add(target.clone(), &name, common, matrix)?;
            }
        }
        Ok(plan)
    }

    pub fn of_folder(
        folder: &Path,
        scripts: &[String],
        common: &NewJob,
        matrix: &Matrix,
    ) -> Result<Self, Failure> {
        let mut plan = Self::default();
        plan.add_folder(folder, scripts, common, matrix)?;
        Ok(plan)
    }

    fn add_folder(
        &mut self,
        folder: &Path,
        scripts: &[String],
        common: &NewJob,
        matrix: &Matrix,
    ) -> Result<(), Failure> {
        let found = files_in(folder)?;
        self.unmatched.extend(unmatched(scripts, &found));
        let scripts: Vec<_> =
            found.iter().filter(|path| scripts.iter().any(|pattern| glob::matches(pattern, path))).collect();
        if scripts.is_empty() {
            return Err(Failure::usage(format!("there is no script in `{}`", folder.display()))
                .hint("every `*.py` directly in a folder is a job; a specification can name others"));
        }
        self.sources.push(folder.to_owned());
        scripts.into_iter().try_for_each(|script| self.add(folder.join(script), script, common, matrix))
    }

    /// One job for each combination of the matrix.
    fn add(&mut self, path: PathBuf, script: &str, common: &NewJob, matrix: &Matrix) -> Result<(), Failure> {
        for values in combinations(matrix) {
            if self.jobs.len() >= JOBS {
                return Err(Failure::usage(format!("these are more than {JOBS} jobs")));
            }
            let name = match values.as_slice() {
                [] => script.to_owned(),
                values => {
                    let words: Vec<_> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    format!("{script} [{}]", words.join(", "))
                }
            };
            let mut job = NewJob { script: script.to_owned(), name: Some(name.clone()), ..common.clone() };
            job.args = common.args.iter().map(|arg| filled(arg, &values)).collect::<Result<_, _>>()?;
            job.env.extend(values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
            let source = self.sources.len().saturating_sub(1);
            self.jobs.push(PlannedJob { name, path: path.clone(), source, job });
        }
        Ok(())
    }
}

fn combinations(matrix: &Matrix) -> Vec<Vec<(&str, &str)>> {
    let mut all = vec![Vec::new()];
    for (key, values) in matrix {
        let longer = |before: &Vec<(_, _)>| {
            let add = |value| before.iter().copied().chain([(key.as_str(), value)]).collect();
            values.iter().map(String::as_str).map(add).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).take(JOBS + 1).collect();
    }
    all
}

/// The patterns that none of the paths matches.
pub(in crate::cli) fn unmatched(patterns: &[String], paths: &[impl AsRef<str>]) -> Vec<String> {
    let matches_none = |pattern: &&String| !paths.iter().any(|path| glob::matches(pattern, path.as_ref()));
    patterns.iter().filter(matches_none).cloned().collect()
}

/// Replaces `{key}` by its value, and `{{word}}` by `{word}`; a `{word}` that is no key is a mistake. Everything else stays
/// unchanged, also other braces, and all of it where there is no matrix.
fn filled(arg: &str, values: &[(&str, &str)]) -> Result<String, Failure> {
    if values.is_empty() {
        return Ok(arg.to_owned());
    }
    let mut out = String::new();
    let mut rest = arg;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        if let Some((word, after)) = after.strip_prefix('{').and_then(placeholder)
            && let Some(after) = after.strip_prefix('}')
        {
            out.extend(["{", word, "}"]);
            rest = after;
            continue;
        }
        let known = values.iter().find_map(|(key, value)| {
            let after = after.strip_prefix(key)?.strip_prefix('}')?;
            Some((*value, after))
        });
        let (text, after) = match (known, placeholder(after)) {
            (Some(known), _) => known,
            (None, Some((word, _))) => {
                let names: Vec<_> = values.iter().map(|(key, _)| format!("`{{{key}}}`")).collect();
                return Err(Failure::usage(format!("`{{{word}}}` in an argument is no name of the matrix"))
                    .hint(format!(
                        "it has {}; the word itself is written `{{{{{word}}}}}`",
                        names.join(", ")
                    )));
            }
            (None, None) => ("{", after),
        };
        out.push_str(text);
        rest = after;
    }
    Ok(out + rest)
}

/// The word before the next closing brace, if there is nothing else, and what follows the brace.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let (word, after) = text.split_once('}')?;
    let is_word = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    is_word.then_some((word, after))
}

/// Relative paths of all regular files below a folder; links are not followed.
fn files_in(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let mut pending = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = pending.pop() {
        let here = folder.join(&below);
        let failed = |e: &std::io::Error| Failure::io(format_args!("failed to read `{}`", here.display()), e);
        for entry in std::fs::read_dir(&here).map_err(|e| failed(&e))? {
            let entry = entry.map_err(|e| failed(&e))?;
            let kind = entry.file_type().map_err(|e| failed(&e))?;
            let path = below.join(entry.file_name());
            if kind.is_dir() && depth < ARTIFACT_SCAN_DEPTH {
                pending.push((path, depth + 1));
            } else if kind.is_file() {
                // A file whose name is not UTF-8 is sent with the folder, but cannot be a script.
                found.extend(path.to_str().map(ToOwned::to_owned));
            }
            if found.len() > ARTIFACT_SCAN_ENTRIES {
                return Err(Failure::usage(format!("there are too many files in `{}`", folder.display()))
                    .hint("a job gets all files of its folder; use one that holds only what it needs"));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn utf8(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.is_empty());
    text.map(ToOwned::to_owned)
        .ok_or_else(|| Failure::usage(format!("`{}` cannot be the name of a script", path.display())))
}

/// `k=a,b`
pub(in crate::cli) fn matrix(text: &str) -> Result<(String, Vec<String>), String> {
    let usage = "it has to be a name and values, as in `size=1,10`";
    let (key, values) = text.split_once('=').ok_or(usage)?;
    if key.is_empty() || values.is_empty() {
        return Err(usage.to_owned());
    }
    Ok((key.to_owned(), values.split(',').map(ToOwned::to_owned).collect()))
}

/// Refuses a name that is given twice, because one list of values would silently win, and a name without values,
/// because no job would run.
pub(in crate::cli) fn check_matrix(matrix: &Matrix) -> Result<(), Failure> {
    for (at, (key, values)) in matrix.iter().enumerate() {
        if values.is_empty() {
            return Err(Failure::usage(format!(
                "the name `{key}` of the matrix has no values, so no job would run"
            ))
            .hint(format!("give it some, as in `{key} = [1, 10]`, or leave it out")));
        }
        if let Some((_, before)) = matrix.iter().take(at).find(|(other, _)| other == key) {
            let all: Vec<_> = before.iter().chain(values).map(String::as_str).collect();
            return Err(Failure::usage(format!("`--matrix` has the name `{key}` twice"))
                .hint(format!("give all its values at once: `--matrix {key}={}`", all.join(","))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_a_job_for_each_script_and_each_value() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.py", "a.py", "data.csv", ".hidden.py"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/c.py"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link.py")).unwrap();
        let common = NewJob { args: vec!["--n={n}".into(), "{{x}} {m} {".into()], ..NewJob::default() };
        let matrix = vec![
            ("n".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
            ("m".to_owned(), vec!["{n}".to_owned()]),
        ];
        let plan = Plan::of_targets(&[dir.path().to_owned()], &common, &matrix).unwrap();
        let names: Vec<_> = plan.jobs.iter().map(|planned| planned.name.as_str()).collect();
        assert_eq!(
            names,
            ["a.py [n=1, m={n}]", "a.py [n=2, m={n}]", "b.py [n=1, m={n}]", "b.py [n=2, m={n}]"]
        );
        // A value that looks like a template is not filled in again.
        assert_eq!(plan.jobs[1].job.args, ["--n=2", "{x} {n} {"]);
        assert_eq!(plan.jobs[1].job.env["n"], "2");
        assert_eq!(plan.sources.len(), 1);
        let deep = Plan::of_folder(dir.path(), &["**/*.py".into()], &common, &Vec::new()).unwrap();
        assert_eq!(deep.jobs.len(), 3);
        // Without a matrix there is nothing to fill in.
        assert_eq!(deep.jobs[0].job.args, ["--n={n}", "{{x}} {m} {"]);
        assert!(Plan::of_folder(dir.path(), &["*.sh".into()], &common, &Vec::new()).is_err());
        let partly = ["a*.py".to_owned(), "nope*.py".to_owned()];
        let partly = Plan::of_folder(dir.path(), &partly, &common, &Vec::new()).unwrap();
        assert_eq!((partly.jobs.len(), partly.unmatched), (1, vec!["nope*.py".to_owned()]));
    }

    #[test]
    fn a_placeholder_that_nothing_stands_for_is_a_mistake() {
        let values = [("size", "10"), ("n", "1")];
        for (arg, expected) in [
            ("{size}-{n}", "10-1"),
            ("{\"a\": {size}}", "{\"a\": 10}"),
            ("{{size}}", "{size}"),
            ("{} {a b} } {", "{} {a b} } {"),
        ] {
            assert_eq!(filled(arg, &values).unwrap(), expected, "{arg}");
        }
        let failure = filled("--n={sise}", &values).unwrap_err();
        assert_eq!(
            (failure.exit, failure.message.as_str()),
            (64, "`{sise}` in an argument is no name of the matrix")
        );
        assert_eq!(failure.hint.unwrap(), "it has `{size}`, `{n}`; the word itself is written `{{sise}}`");
    }

    #[test]
    fn files_have_inputs_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.py"), dir.path().join("b.py"));
        std::fs::write(&a, "").unwrap();
        std::fs::write(&b, "").unwrap();
        let plan = Plan::of_targets(&[a, b], &NewJob::default(), &Vec::new()).unwrap();
        assert_eq!((plan.sources.len(), plan.jobs[1].source), (2, 1));
        assert!(Plan::of_targets(&["/nope".into()], &NewJob::default(), &Vec::new()).is_err());
    }

    #[test]
    fn a_name_of_the_matrix_has_values() {
        assert_eq!(matrix("a=1,2"), Ok(("a".into(), vec!["1".into(), "2".into()])));
        assert!(matrix("a").is_err() && matrix("=1").is_err());
    }

    #[test]
    fn a_name_of_the_matrix_is_given_once() {
        let given = |all: &[&str]| all.iter().map(|text| matrix(text).unwrap()).collect::<Matrix>();
        assert!(check_matrix(&given(&["a=1,2", "b=1,2"])).is_ok());
        let failure = check_matrix(&given(&["a=1", "b=1", "a=2,3"])).unwrap_err();
        assert_eq!(failure.exit, 64);
        assert!(failure.hint.unwrap().contains("`--matrix a=1,2,3`"));
        let failure = check_matrix(&vec![("a".to_owned(), Vec::new())]).unwrap_err();
        assert!(failure.message.contains("`a` of the matrix has no values"), "{failure:?}");
    }
}

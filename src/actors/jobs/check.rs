//! Checks whether a job can be accepted, before anything of it is created.

use std::time::Duration;

use crate::config::Settings;
use crate::packages::requirement::Requirement;
use crate::protocol::glob::PATTERN_CHARS;
use crate::protocol::job::NewJob;
use crate::protocol::limits::{JOB_NAME_CHARS, JOB_WORDS, JOB_WORDS_BYTES};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, Isolation};
use crate::protocol::text::quotable;
use crate::protocol::timeout::Timeouts;
use crate::protocol::values::is_ascii_identifier;
use crate::sandbox::workspace::job_files::Manifest;

/// Checks a job and gives its time limit.
pub fn check(job: &NewJob, manifest: &Manifest, settings: &Settings) -> Result<Duration, Problem> {
    isolated(job.backend.unwrap_or(settings.sandbox.backend))?;
    if !manifest.files.contains_key(&job.script) {
        return Err(bad(format!("the script `{}` is not among the files of the job", quotable(&job.script)))
            .hint("name it by its path below the folder that was sent"));
    }
    if job.name.as_ref().is_some_and(|name| name.chars().count() > JOB_NAME_CHARS) {
        return Err(bad(format!("a job's name may have {JOB_NAME_CHARS} characters at most")));
    }
    let words = || {
        let env = job.env.iter().flat_map(|(name, value)| [name, value]);
        job.args.iter().chain(env).chain(&job.artifacts).chain(&job.require).chain(&job.with)
    };
    if words().count() > JOB_WORDS || words().map(String::len).sum::<usize>() > JOB_WORDS_BYTES {
        return Err(Problem::new(
            Code::TooLarge,
            format!(
                "arguments, variables and patterns of a job may be {JOB_WORDS}, with {JOB_WORDS_BYTES} bytes"
            ),
        )
        .hint("put large values into a file of the job"));
    }
    if words().any(|word| word.contains('\0')) {
        return Err(bad("an argument or a variable holds a zero byte".to_owned()));
    }
    if let Some(name) = job.env.keys().find(|name| !is_ascii_identifier(name)) {
        return Err(bad(format!("`{}` cannot be the name of a variable", quotable(name)))
            .hint("use letters, digits and `_`, and no digit first"));
    }
    if let Some(pattern) = job.artifacts.iter().find(|pattern| !is_pattern(pattern)) {
        return Err(bad(format!("`{}` is no pattern of artifacts", quotable(pattern)))
            .hint(format!("use a relative path with `*`, `?` or `**`, at most {PATTERN_CHARS} characters")));
    }
    for text in &job.require {
        required(text)?;
    }
    if !job.with.is_empty() {
        settings.packages.wanted_by_owner(&job.with)?;
    }
    Timeouts { default: settings.jobs.timeout, ..settings.cells.timeouts() }.checked(job.timeout_s)
}

/// A job's code is unreviewed, so it never runs without isolation.
fn isolated(backend: Backend) -> Result<(), Problem> {
    if backend.isolation() > Isolation::None {
        return Ok(());
    }
    Err(Problem::new(Code::Forbidden, format!("jobs are not run by the backend `{}`", backend.name()))
        .hint("jobs need a container or a jail: use `docker`, `bubblewrap` or `auto`"))
}

fn bad(message: String) -> Problem {
    Problem::new(Code::BadRequest, message)
}

fn is_pattern(pattern: &str) -> bool {
    !pattern.is_empty()
        && pattern.chars().count() <= PATTERN_CHARS
        && !pattern.starts_with('/')
        && !pattern.split('/').any(|part| part == "..")
}

/// What `--require` names: a package and ranges of its versions, which can be looked up in an image.
pub fn required(text: &str) -> Result<Requirement, Problem> {
    let found = Requirement::parse(text).map_err(|error| {
        bad(format!("`{}` is no requirement: {error}", quotable(text))).hint(error.remedy())
    })?;
    if !found.is_plain() {
        return Err(bad(format!("`{}` has extras or a marker, which cannot be checked", quotable(text)))
            .hint(
                "require a package with ranges of its version, as in `numpy>=2,<3`; `--with` installs others",
            ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        crate::config::load_text("c.toml".as_ref(), text).unwrap().settings
    }

    fn job() -> NewJob {
        NewJob { script: "a.py".into(), ..NewJob::default() }
    }

    fn refused(job: NewJob) -> Problem {
        let manifest = Manifest { files: [("a.py".to_owned(), String::new())].into(), bytes: 0 };
        check(&job, &manifest, &settings("")).unwrap_err()
    }

    #[test]
    fn what_is_wrong_is_said_with_a_way_out() {
        let manifest = Manifest { files: [("a.py".to_owned(), String::new())].into(), bytes: 0 };
        assert_eq!(check(&job(), &manifest, &settings("")), Ok(Duration::from_secs(600)));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for wrong in [
            NewJob { script: "b.py".into(), ..job() },
            NewJob { timeout_s: Some(0.0), ..job() },
            NewJob { timeout_s: Some(1e9), ..job() },
            NewJob { timeout_s: Some(f64::NAN), ..job() },
            NewJob { env: [("A-B".to_owned(), String::new())].into(), ..job() },
            NewJob { artifacts: words(&["../x"]), ..job() },
            NewJob { artifacts: words(&["/etc/*"]), ..job() },
            NewJob { require: words(&["numpy; import os"]), ..job() },
            NewJob { require: words(&["numpy[x]>=2"]), ..job() },
            NewJob { require: words(&["numpy>2.*"]), ..job() },
            NewJob { with: words(&["--index-url=x"]), ..job() },
            NewJob { args: vec!["x".repeat(JOB_WORDS_BYTES + 1)], ..job() },
        ] {
            let problem = refused(wrong.clone());
            assert!(problem.hint.is_some(), "{wrong:?}: {problem:?}");
        }
    }

    #[test]
    fn a_process_is_no_place_for_a_job() {
        let problem = refused(NewJob { backend: Some(Backend::Process), ..job() });
        assert_eq!(problem.code, Code::Forbidden);
        let manifest = Manifest { files: [("a.py".to_owned(), String::new())].into(), bytes: 0 };
        let by_setting = settings("[sandbox]\nbackend = \"process\"\n");
        assert_eq!(check(&job(), &manifest, &by_setting).unwrap_err().code, Code::Forbidden);
        let other = NewJob { backend: Some(Backend::Bubblewrap), ..job() };
        assert!(check(&other, &manifest, &by_setting).is_ok());
    }
}

//! The outcomes of all jobs of a run.

use serde_json::{Value, json};

use super::traceback::{RaisedException, raised_exception};
use crate::cli::failure::Failure;
use crate::cli::render::screen::Tint;
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobView, Verdict};

/// How one job of a run ended.
#[derive(Debug)]
pub(in crate::cli) struct Outcome {
    pub name: String,
    /// The script's path, as the caller named it.
    pub path: String,
    pub conclusion: JobConclusion,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug)]
pub(in crate::cli) enum JobConclusion {
    Ended(Box<JobView>),
    /// The daemon did not take the job, or could not be reached any more.
    Refused(Failure),
    /// The job was not sent, because others had failed.
    Skipped,
}

impl Outcome {
    pub fn verdict(&self) -> Option<Verdict> {
        match &self.conclusion {
            JobConclusion::Ended(view) => Some(view.end.as_ref().map_or(Verdict::Error, |end| end.verdict)),
            JobConclusion::Refused(_) => Some(Verdict::Error),
            JobConclusion::Skipped => None,
        }
    }

    /// The id that the daemon gave the job, if it took it.
    pub fn id(&self) -> Option<JobId> {
        let JobConclusion::Ended(view) = &self.conclusion else { return None };
        Some(view.id)
    }

    pub fn word(&self) -> &'static str {
        self.verdict().map_or("skipped", Verdict::name)
    }

    /// The exception that ended a script which failed, if its traceback is there.
    pub fn exception(&self) -> Option<RaisedException> {
        let failed = self.verdict() == Some(Verdict::Failed);
        failed.then(|| raised_exception(&self.stderr, &self.path)).flatten()
    }

    pub fn reason(&self) -> String {
        if let Some(exception) = self.exception() {
            return exception.sentence();
        }
        match &self.conclusion {
            JobConclusion::Ended(view) => view.end.as_ref().map(|end| end.reason.clone()).unwrap_or_default(),
            JobConclusion::Refused(failure) => match &failure.hint {
                Some(hint) => format!("{} ({hint})", failure.message),
                None => failure.message.clone(),
            },
            JobConclusion::Skipped => "another job had failed".to_owned(),
        }
    }

    pub fn exit_code(&self) -> u8 {
        match &self.conclusion {
            JobConclusion::Ended(view) => view.end.as_ref().map_or(exit::OWN, |end| end.exit_code),
            JobConclusion::Refused(failure) => failure.exit,
            JobConclusion::Skipped => exit::FAILURE,
        }
    }

    pub fn seconds(&self) -> f64 {
        let JobConclusion::Ended(view) = &self.conclusion else { return 0.0 };
        view.end.as_ref().map_or(0.0, |end| end.duration_ms / 1000.0)
    }

    pub fn passed(&self) -> bool {
        self.verdict() == Some(Verdict::Passed)
    }

    pub fn tint(&self) -> Tint {
        match self.verdict() {
            Some(Verdict::Passed) => Tint::Green,
            Some(Verdict::Cancelled) | None => Tint::Yellow,
            Some(_) => Tint::Red,
        }
    }

    pub fn json(&self) -> Value {
        let mut value = match &self.conclusion {
            JobConclusion::Ended(view) => json!(view),
            JobConclusion::Refused(_) | JobConclusion::Skipped => json!({"name": self.name}),
        };
        value["type"] = json!("job");
        value["path"] = json!(self.path);
        value["verdict"] = json!(self.word());
        value["exit_code"] = json!(self.exit_code());
        value["reason"] = json!(self.reason());
        value["stdout"] = json!(self.stdout);
        value["stderr"] = json!(self.stderr);
        value
    }
}

/// For one job, the exit code of its script; for several, 1 if any did not pass.
pub(in crate::cli) fn exit_code(outcomes: &[Outcome]) -> u8 {
    match outcomes {
        [one] => one.exit_code(),
        all if all.iter().all(Outcome::passed) => exit::SUCCESS,
        _ => exit::FAILURE,
    }
}

pub(in crate::cli) fn summary(outcomes: &[Outcome]) -> Value {
    let mut value = json!({"type": "summary", "total": outcomes.len(), "exit_code": exit_code(outcomes)});
    for (word, count) in counts(outcomes) {
        value[word] = json!(count);
    }
    value
}

/// `3 jobs: 2 passed, 1 failed`
pub(in crate::cli) fn summary_line(outcomes: &[Outcome]) -> String {
    let words: Vec<_> = counts(outcomes)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(word, count)| format!("{count} {}", word.replace('_', " ")))
        .collect();
    let jobs = if outcomes.len() == 1 { "job" } else { "jobs" };
    format!("{} {jobs}: {}", outcomes.len(), words.join(", "))
}

fn counts(outcomes: &[Outcome]) -> Vec<(&'static str, usize)> {
    let words = Verdict::ALL.into_iter().map(Verdict::name).chain(["skipped"]);
    words.map(|word| (word, outcomes.iter().filter(|outcome| outcome.word() == word).count())).collect()
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;
    use crate::protocol::job::{JobEnd, JobState};
    use crate::protocol::principal::Principal;

    /// What a script `ci/b.py` that failed wrote there, with characters that mean something to XML and to GitHub.
    pub const TRACEBACK: &str = "Traceback (most recent call last):\n  File \"/workspace/ci/b.py\", line 7, in <module>\n    \
        check(1)\n  File \"/usr/lib/python3.13/json/decoder.py\", line 90, in check\n    raise\n\
        json.decoder.JSONDecodeError: 50% of <a> & \"b\"\n";

    pub fn outcome(name: &str, verdict: Verdict, exit_code: u8, stdout: &str) -> Outcome {
        let end = JobEnd {
            verdict,
            exit_code,
            reason: format!("because {}", verdict.name()),
            duration_ms: 1500.0,
            artifacts: Vec::new(),
            artifacts_cut: false,
        };
        let view = JobView {
            id: JobId(uuid::Uuid::nil()),
            name: name.into(),
            owner: Principal::new(1000),
            state: JobState::Ended,
            script: name.into(),
            args: Vec::new(),
            env: Vec::new(),
            timeout_s: 10.0,
            created_at: String::new(),
            started_at: None,
            ended_at: None,
            receipt: None,
            end: Some(end),
            batch: None,
            admin_acts: Vec::new(),
        };
        Outcome {
            name: name.into(),
            path: format!("ci/{name}"),
            conclusion: JobConclusion::Ended(Box::new(view)),
            stdout: stdout.into(),
            stderr: String::new(),
        }
    }

    #[test]
    fn one_script_has_its_own_code_and_several_have_one_for_all() {
        let passed = || outcome("a.py", Verdict::Passed, 0, "");
        assert_eq!(exit_code(&[passed()]), 0);
        assert_eq!(exit_code(&[outcome("a.py", Verdict::Failed, 7, "")]), 7);
        assert_eq!(exit_code(&[outcome("a.py", Verdict::TimedOut, 124, "")]), 124);
        assert_eq!(exit_code(&[passed(), passed()]), 0);
        assert_eq!(exit_code(&[passed(), outcome("a.py", Verdict::TimedOut, 124, "")]), 1);
        let skipped = Outcome { conclusion: JobConclusion::Skipped, ..passed() };
        assert_eq!(exit_code(&[passed(), skipped]), 1);
        assert_eq!(
            summary_line(&[passed(), outcome("b", Verdict::TimedOut, 124, "")]),
            "2 jobs: 1 passed, 1 timed out"
        );
    }
}

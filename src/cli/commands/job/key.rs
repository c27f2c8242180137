//! How an existing job is named on the command line: by its id, or by its name.

use crate::cli::client::http::Client;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobList, JobState, JobView};
use crate::protocol::text::quotable;

/// Ids that an error names.
const IDS_TOLD: usize = 5;

#[derive(Clone, Debug)]
pub(in crate::cli) struct JobKey(String);

/// Which of the jobs of one name is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Wanted {
    /// For looking at a job: the newest.
    Newest,
    /// For cancelling one: the only one that has not ended.
    Unended,
    /// For forgetting one: the only one that has ended.
    Ended,
}

impl JobKey {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a job has a name".to_owned()) } else { Ok(Self(text.to_owned())) }
    }

    /// The id of the job. Says which job that is if several have the name.
    pub async fn resolve(
        &self,
        context: &mut Context,
        client: &Client,
        wanted: Wanted,
    ) -> Result<String, Failure> {
        if let Ok(id) = serde_json::from_value::<JobId>(self.0.clone().into()) {
            return Ok(id.to_string());
        }
        let list: JobList = client.get("/v1/jobs").await?.parse()?;
        let (id, others) = choose(&list.jobs, &self.0, wanted)?;
        if others > 0 && !context.json {
            context.screen.note(&format!("{id}, the newest of {} jobs of this name", others + 1))?;
        }
        Ok(id.to_string())
    }
}

/// The job that is meant, of a list that has the newest first, and how many others could be.
fn choose(jobs: &[JobView], name: &str, wanted: Wanted) -> Result<(JobId, usize), Failure> {
    let named: Vec<_> = jobs.iter().filter(|job| job.name == name).collect();
    let fits = |job: &&JobView| match wanted {
        Wanted::Newest => true,
        Wanted::Unended => job.state != JobState::Ended,
        Wanted::Ended => job.state == JobState::Ended,
    };
    let fitting: Vec<_> = named.iter().copied().filter(fits).collect();
    let name = quotable(name);
    match (fitting.as_slice(), wanted) {
        ([], _) if named.is_empty() => {
            Err(Failure::new(format!("there is no job `{name}`")).hint("`belljar job ls` lists yours"))
        }
        ([], Wanted::Unended) => Err(Failure::new(format!("no job `{name}` waits or runs"))),
        ([], _) => Err(Failure::new(format!("no job `{name}` has ended yet"))
            .hint(format!("cancel it first: `belljar job cancel '{name}'`"))),
        ([newest, others @ ..], Wanted::Newest) => Ok((newest.id, others.len())),
        ([only], _) => Ok((only.id, 0)),
        (several, _) => {
            let ids: Vec<_> = several.iter().take(IDS_TOLD).map(|job| job.id.to_string()).collect();
            Err(Failure::usage(format!("{} jobs have the name `{name}`", several.len()))
                .hint(format!("name them by id: {}", ids.join(" "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{JobConclusion, tests::outcome};
    use super::*;
    use crate::protocol::job::Verdict;

    fn job(name: &str, state: JobState) -> JobView {
        let JobConclusion::Ended(view) = outcome(name, Verdict::Passed, 0, "").conclusion else {
            unreachable!()
        };
        JobView { id: JobId::fresh(), state, ..*view }
    }

    #[test]
    fn a_name_means_one_job() {
        use JobState::{Ended, Running};
        let jobs = [job("a", Running), job("b", Ended), job("a", Ended), job("a", Ended)];
        let chosen = |name, wanted| choose(&jobs, name, wanted).map_err(|failure| failure.message);
        assert_eq!(chosen("a", Wanted::Newest), Ok((jobs[0].id, 2)));
        assert_eq!(chosen("a", Wanted::Unended), Ok((jobs[0].id, 0)));
        assert_eq!(chosen("b", Wanted::Ended), Ok((jobs[1].id, 0)));
        // What cannot be taken back needs to be said exactly.
        let several = choose(&jobs, "a", Wanted::Ended).unwrap_err();
        assert!(several.hint.unwrap().contains(&jobs[2].id.to_string()));
        assert_eq!(chosen("b", Wanted::Unended), Err("no job `b` waits or runs".into()));
        assert_eq!(chosen("c", Wanted::Newest), Err("there is no job `c`".into()));
    }
}

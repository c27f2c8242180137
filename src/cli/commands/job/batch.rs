//! Runs all jobs of one command, a few at a time, until the last one has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

use super::admission::Admission;
use super::daemon_batch;
use super::plan::{Plan, PlannedJob, unmatched};
use super::progress::ProgressView;
use super::report::{JobConclusion, Outcome};
use super::watch::{self, JobProgress};
use crate::cli::client::http::Client;
use crate::cli::commands::cell::stream::Stops;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::api::QuotaView;
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::{BatchId, InputId, JobId};
use crate::protocol::job::NewJob;
use crate::protocol::limits::BATCH_JOBS;
use crate::protocol::problem::Code;
use crate::protocol::quota::Kind;

/// Messages of jobs that wait to be shown.
const PROGRESS_WAITING: usize = 256;
/// How many jobs are sent one by one before earlier ones have ended, unless `--jobs` is given.
const AHEAD: usize = 64;
/// The most sources that are all sent before the first job runs; the daemon keeps some hundreds for a user, and not for
/// long without a job.
const SOURCES_TOGETHER: usize = 200;

pub(in crate::cli) struct Batch<'a> {
    context: &'a mut Context,
    show: ProgressView,
    client: Arc<Client>,
    plan: Plan,
    /// The inputs that were sent, by the index of their source.
    inputs: BTreeMap<usize, InputId>,
    waiting: VecDeque<usize>,
    running: BTreeMap<usize, JobId>,
    outcomes: Vec<Option<Outcome>>,
    artifacts_to: Option<PathBuf>,
    folders: BTreeSet<String>,
    /// How many jobs may run at once.
    parallel: Option<usize>,
    /// The batch that the daemon took all jobs as.
    together: Option<BatchId>,
    /// The daemon was told to cancel that batch.
    cancelled: bool,
    /// Whether the daemon has room for the next job.
    admission: Admission,
    /// The note that there is no room was already shown.
    said_full: bool,
    fail_fast: bool,
    /// The exit code for the signal that stopped the run.
    stopped: Option<u8>,
}

impl<'a> Batch<'a> {
    pub fn new(
        context: &'a mut Context,
        show: ProgressView,
        plan: Plan,
        parallel: Option<usize>,
        fail_fast: bool,
        artifacts_to: Option<PathBuf>,
    ) -> Self {
        Self {
            client: Arc::new(context.client()),
            context,
            show,
            inputs: BTreeMap::new(),
            waiting: (0..plan.jobs.len()).collect(),
            running: BTreeMap::new(),
            outcomes: plan.jobs.iter().map(|_| None).collect(),
            artifacts_to,
            folders: BTreeSet::new(),
            plan,
            parallel,
            together: None,
            cancelled: false,
            admission: Admission::default(),
            said_full: false,
            fail_fast,
            stopped: None,
        }
    }

    /// Runs the jobs. Returns the outcomes, and the exit code for a signal that stopped the run.
    pub async fn go(mut self, stops: &mut Stops) -> Result<(Vec<Outcome>, Option<u8>), Failure> {
        let (sender, mut receiver) = mpsc::channel(PROGRESS_WAITING);
        let alone = self.plan.jobs.len() == 1;
        self.begin_together(stops, &sender).await?;
        loop {
            if let Some(index) = self.next_to_begin() {
                // Signals are handled only after this: a job whose id is not known yet could not be cancelled.
                match self.begin(index).await {
                    Ok(id) => {
                        self.admission.granted();
                        self.show.begun(self.context, id)?;
                        self.running.insert(index, id);
                        let (client, live) = (Arc::clone(&self.client), self.show.is_live(self.context));
                        tokio::spawn(watch::follow(client, id, index, live, sender.clone()));
                    }
                    Err(failure) if self.shall_wait(&failure).await? => {
                        self.waiting.push_front(index);
                    }
                    // This is the only job, so its failure is the failure of the command.
                    Err(failure) if alone => return Err(failure),
                    Err(failure) => {
                        self.ended(index, JobConclusion::Refused(failure))?;
                    }
                }
                while let Ok(progress) = receiver.try_recv() {
                    self.take(progress).await?;
                }
                if self.can_begin() {
                    tokio::select! {
                        biased;
                        code = stops.next() => self.stop(code)?,
                        () = std::future::ready(()) => {}
                    }
                    continue;
                }
            }
            if self.running.is_empty() && self.waiting.is_empty() {
                break;
            }
            let again = self.admission.again().filter(|_| !self.waiting.is_empty());
            tokio::select! {
                code = stops.next() => {
                    if self.stopped.is_some() {
                        self.context.screen.warn("left; the jobs were told to end")?;
                        return Err(Failure { exit: code, ..Failure::new(String::new()) });
                    }
                    self.stop(code)?;
                }
                progress = receiver.recv() => {
                    if let Some(progress) = progress {
                        self.take(progress).await?;
                    }
                }
                () = until(again) => {}
            }
        }
        let jobs = self.plan.jobs.iter().zip(self.outcomes);
        let outcomes =
            jobs.map(|(planned, outcome)| outcome.unwrap_or_else(|| ended(planned, JobConclusion::Skipped)));
        Ok((outcomes.collect(), self.stopped))
    }

    /// Has the daemon take all jobs with one request. If it does not, because there is no room for all of them at once or
    /// one of them is wrong, it has taken none, and they are sent one by one.
    async fn begin_together(
        &mut self,
        stops: &mut Stops,
        sender: &mpsc::Sender<JobProgress>,
    ) -> Result<(), Failure> {
        let fits = (2..=BATCH_JOBS).contains(&self.plan.jobs.len());
        if !fits || self.plan.sources.len() > SOURCES_TOGETHER {
            return Ok(());
        }
        for source in 0..self.plan.sources.len() {
            // A source that cannot be sent is the failure of its own jobs alone.
            if self.send(source).await.is_err() {
                return Ok(());
            }
            tokio::select! {
                biased;
                code = stops.next() => return self.stop(code),
                () = std::future::ready(()) => {}
            }
        }
        let input_of = |source: usize| self.inputs.get(&source).copied();
        let batch = daemon_batch::batch_of(&self.plan.jobs, self.parallel, input_of);
        // Signals are handled only after this, as with a single job.
        let view = match daemon_batch::submit(&self.client, &batch).await {
            Ok(view) => view,
            Err(failure) if daemon_batch::has_taken_none(&failure) => return Ok(()),
            // The daemon may have taken the jobs, and then they would run twice.
            Err(failure) => return Err(failure),
        };
        self.waiting.clear();
        self.running = view.jobs.iter().copied().enumerate().collect();
        self.together = Some(view.id);
        let (client, live) = (Arc::clone(&self.client), self.show.is_live(self.context));
        tokio::spawn(daemon_batch::follow(client, view, live, sender.clone()));
        Ok(())
    }

    fn can_begin(&self) -> bool {
        let ahead = self.parallel.unwrap_or(AHEAD);
        !self.waiting.is_empty() && self.running.len() < ahead && self.admission.may_try(Instant::now())
    }

    fn next_to_begin(&mut self) -> Option<usize> {
        if self.can_begin() { self.waiting.pop_front() } else { None }
    }

    /// Whether the daemon refused a job only because there is no room at the moment.
    async fn shall_wait(&mut self, failure: &Failure) -> Result<bool, Failure> {
        let full = failure.has_code(Code::QuotaExceeded) || failure.has_code(Code::TooMany);
        if !full || !self.admission.refused(Instant::now(), self.running.len()) {
            return Ok(false);
        }
        if self.running.is_empty() && !self.said_full {
            if self.may_have_none().await {
                self.admission.give_up();
                return Ok(false);
            }
            self.said_full = true;
            self.context.screen.note(&format!("waiting for room: {}", failure.message))?;
        }
        Ok(true)
    }

    /// Whether the user's quota of jobs is 0, so that there is never room.
    async fn may_have_none(&self) -> bool {
        let view = self.client.get("/v1/quota").await.and_then(|answer| answer.parse::<QuotaView>());
        let none = |view: QuotaView| view.quotas.iter().any(|q| q.kind == Kind::Jobs && q.limit == Some(0));
        view.is_ok_and(none)
    }

    async fn begin(&mut self, index: usize) -> Result<JobId, Failure> {
        let Some(planned) = self.plan.jobs.get(index).cloned() else {
            return Err(Failure::new("a job that was not planned"));
        };
        loop {
            let known = self.inputs.get(&planned.source).copied();
            let input = match known {
                Some(input) => input,
                None => self.send(planned.source).await?,
            };
            let job = NewJob { input: Some(input), ..planned.job.clone() };
            match watch::submit(&self.client, &job).await {
                Ok(view) => return Ok(view.id),
                // A restarted daemon does not know the input that was sent to the previous one.
                Err(failure) if failure.has_code(Code::NoSuchInput) && known.is_some() => {
                    self.inputs.remove(&planned.source);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn send(&mut self, index: usize) -> Result<InputId, Failure> {
        let Some(source) = self.plan.sources.get(index) else {
            return Err(Failure::new("a source that was not planned"));
        };
        let (input, skipped) = watch::send(&self.client, source).await?;
        if skipped.count > 0 {
            self.context.screen.warn(&format!(
                "{} left out, being neither plain files nor folders, such as `{}`",
                skipped.count,
                skipped.example.display()
            ))?;
        }
        self.inputs.insert(index, input);
        Ok(input)
    }

    async fn take(&mut self, progress: JobProgress) -> Result<(), Failure> {
        match progress {
            JobProgress::Output { index, stream, text } => {
                let name = self.plan.jobs.get(index).map_or("", |planned| planned.name.as_str()).to_owned();
                self.show.output(self.context, index, &name, stream, &text)
            }
            JobProgress::Ended { index, seen } => {
                self.running.remove(&index);
                self.admission.freed();
                let seen = match *seen {
                    Err(failure) => return self.ended(index, JobConclusion::Refused(failure)),
                    Ok(seen) => seen,
                };
                let Some(planned) = self.plan.jobs.get(index) else { return Ok(()) };
                let conclusion = JobConclusion::Ended(Box::new(seen.view));
                let outcome =
                    Outcome { stdout: seen.stdout, stderr: seen.stderr, ..ended(planned, conclusion) };
                self.warn_of_patterns(index, &outcome)?;
                self.fetch(&outcome).await?;
                self.conclude(index, outcome)
            }
        }
    }

    fn ended(&mut self, index: usize, conclusion: JobConclusion) -> Result<(), Failure> {
        let Some(planned) = self.plan.jobs.get(index) else { return Ok(()) };
        let outcome = ended(planned, conclusion);
        self.conclude(index, outcome)
    }

    fn conclude(&mut self, index: usize, outcome: Outcome) -> Result<(), Failure> {
        self.show.ended(self.context, index, &outcome, self.plan.jobs.len() == 1)?;
        let failed = !outcome.passed();
        if let Some(slot) = self.outcomes.get_mut(index) {
            *slot = Some(outcome);
        }
        if failed && self.fail_fast {
            self.cancel();
        }
        Ok(())
    }

    /// Says which patterns of artifacts matched nothing that a job left.
    fn warn_of_patterns(&mut self, index: usize, outcome: &Outcome) -> Result<(), Failure> {
        let JobConclusion::Ended(view) = &outcome.conclusion else { return Ok(()) };
        let (Some(planned), Some(end)) = (self.plan.jobs.get(index), &view.end) else { return Ok(()) };
        // A job that did not begin has left nothing, and the list of one that left too much is cut.
        if view.started_at.is_none() || end.artifacts_cut {
            return Ok(());
        }
        let paths: Vec<_> = end.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
        for pattern in unmatched(&planned.job.artifacts, &paths) {
            self.context
                .screen
                .warn(&format!("{}: no file matches `{pattern}` of `--artifacts`", outcome.name))?;
        }
        Ok(())
    }

    async fn fetch(&mut self, outcome: &Outcome) -> Result<(), Failure> {
        let (Some(to), JobConclusion::Ended(view)) = (&self.artifacts_to, &outcome.conclusion) else {
            return Ok(());
        };
        let Some(end) = &view.end else { return Ok(()) };
        if end.artifacts_cut {
            let name = &outcome.name;
            self.context
                .screen
                .warn(&format!("{name}: not all artifacts were kept: too many, too large, or oddly named"))?;
        }
        if end.artifacts.is_empty() {
            return Ok(());
        }
        let to = if self.plan.jobs.len() == 1 {
            to.clone()
        } else {
            to.join(folder_of(&outcome.name, &mut self.folders))
        };
        watch::fetch(&self.client, &view.id.to_string(), &to).await
    }

    fn stop(&mut self, code: u8) -> Result<(), Failure> {
        self.stopped = Some(code);
        self.context.screen.note(match code {
            exit::INTERRUPTED => "cancelling the jobs; press Ctrl-C again to leave at once",
            _ => "cancelling the jobs",
        })?;
        self.cancel();
        Ok(())
    }

    /// Cancels all jobs. Their ends are reported like those of all others.
    fn cancel(&mut self) {
        self.waiting.clear();
        if let Some(id) = self.together {
            // Once is enough: with `--fail-fast` each job that was cancelled counts as failed again.
            if std::mem::replace(&mut self.cancelled, true) {
                return;
            }
            let (client, path) = (Arc::clone(&self.client), format!("/v1/batches/{id}"));
            // If the request fails, the daemon cancels the jobs when this process has ended.
            tokio::spawn(async move { drop(client.delete(&path).await) });
            return;
        }
        for id in self.running.values() {
            let (client, path) = (Arc::clone(&self.client), format!("/v1/jobs/{id}/cancel"));
            // The request fails if the job has just ended, which is fine.
            tokio::spawn(async move { drop(client.post_empty(&path).await) });
        }
    }
}

/// Waits until `time`; for ever if there is none.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn ended(planned: &PlannedJob, conclusion: JobConclusion) -> Outcome {
    Outcome {
        name: planned.name.clone(),
        path: planned.path.display().to_string(),
        conclusion,
        stdout: String::new(),
        stderr: String::new(),
    }
}

/// A name for a folder that no other job of the run has.
fn folder_of(name: &str, taken: &mut BTreeSet<String>) -> String {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=') { c } else { '_' };
    let base: String = name.chars().map(plain).collect();
    let base = format!("{}{}", if base.starts_with('.') { "_" } else { "" }, base);
    let mut folder = base.clone();
    let mut number = 1;
    while !taken.insert(folder.clone()) {
        number += 1;
        folder = format!("{base}-{number}");
    }
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_jobs_stay_in_their_place() {
        let mut taken = BTreeSet::new();
        for (name, folder) in [
            ("a.py", "a.py"),
            ("a.py", "a.py-2"),
            ("../../x", "_.._.._x"),
            ("..", "_.."),
            ("sub/b.py [n=1, m=2]", "sub_b.py__n=1__m=2_"),
        ] {
            assert_eq!(folder_of(name, &mut taken), folder);
        }
    }
}

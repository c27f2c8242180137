//! `belljar job run`: all jobs of a plan, a few at a time, to one exit code.

use clap::Args;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::config::parse_size;
use crate::protocol::ids::{InputId, JobId};
use crate::protocol::job::NewJob;
use crate::protocol::problem::Code;
use crate::protocol::receipt::Backend;
use crate::protocol::result::Stream;

use super::super::args::{backend, cpus, seconds};
use super::super::cell::Stops;
use super::super::client::Client;
use super::super::context::Context;
use super::super::exit;
use super::super::failure::Failure;
use super::super::sanitize::one_line;
use super::github::{self, harmless};
use super::junit;
use super::plan::{Matrix, Plan, Planned, matrix, variables};
use super::report::{self, Fate, Outcome};
use super::spec::Spec;
use super::watch::{self, Told};

/// Jobs that are sent ahead of their turn, unless `--jobs` says otherwise.
const AHEAD: usize = 64;
/// What jobs told and is not shown yet.
const TOLD: usize = 256;

/// Run scripts as jobs: each once, in a fresh container or jail without network.
///
/// A FILE is a job with only itself to work with. Of a folder every `*.py` directly in it is a job,
/// and each gets all files of the folder. Working directory is that folder's copy.
///
/// One job: the exit code is the script's own, 124 if its time ran out, 128 + n for signal n, 125 for
/// an error that is not the script's. Several: 1 if any did not pass.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// Scripts, or folders with scripts.
    #[arg(value_name = "FILE|DIR", required_unless_present = "spec", conflicts_with = "spec")]
    targets: Vec<PathBuf>,
    /// A file in TOML that says all of this; flags win over it.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// How long each may run, for example 30s or 5min.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    timeout: Option<f64>,
    /// Memory of each, for example 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// CPUs of each, for example 1.5.
    #[arg(long, value_name = "N", value_parser = cpus)]
    cpus: Option<f64>,
    /// One of the allowed images; see `belljar image list`.
    #[arg(long)]
    image: Option<String>,
    /// What holds them: `docker`, `bubblewrap` or `auto`.
    #[arg(long, value_parser = backend())]
    backend: Option<Backend>,
    /// A variable for the scripts; without a value, with the one that it has here. Nothing else of
    /// this environment reaches them.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// An argument for the scripts; so is all that follows `--`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    arg: Vec<String>,
    /// A job for each value: the script has it as a variable NAME, and arguments as `{NAME}`.
    #[arg(long, value_name = "NAME=A,B", value_parser = matrix)]
    matrix: Vec<(String, Vec<String>)>,
    /// Files to keep when a script has ended, whether it passed or not: `*`, `?` and `**` as in a
    /// shell. A name that begins with a dot has to be named so.
    #[arg(long, value_name = "GLOB")]
    artifacts: Vec<String>,
    /// Where to put them; for several jobs, in a folder for each.
    #[arg(long, value_name = "DIR")]
    artifacts_to: Option<PathBuf>,
    /// A package that the image has to have, perhaps with its version: `numpy`, `numpy==2.1.0`.
    #[arg(long, value_name = "PKG")]
    require: Vec<String>,
    /// How many may wait or run at the same time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Cancel the others when one does not pass.
    #[arg(long)]
    fail_fast: bool,
    /// Do not show what the scripts print.
    #[arg(short, long)]
    quiet: bool,
    /// Write a report in the XML of `JUnit`.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print annotations for GitHub Actions.
    #[arg(long)]
    github: bool,
    /// Arguments for the scripts.
    #[arg(last = true, value_name = "ARGS")]
    rest: Vec<String>,
}

impl Run {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        // From here on no signal may end us before the jobs are cancelled.
        let mut stops = Stops::new()?;
        let (plan, ahead, fail_fast) = self.plan()?;
        if self.artifacts_to.is_some() && plan.jobs.iter().all(|planned| planned.job.artifacts.is_empty()) {
            return Err(Failure::usage("`--artifacts-to` has nothing to put there")
                .hint("say which files with `--artifacts GLOB`"));
        }
        let mut show = Show { quiet: self.quiet, github: self.github, ..Show::default() };
        show.prefix = plan.jobs.len() > 1;
        let round = Round {
            client: Arc::new(context.client()),
            inputs: BTreeMap::new(),
            waiting: (0..plan.jobs.len()).collect(),
            running: BTreeMap::new(),
            outcomes: plan.jobs.iter().map(|_| None).collect(),
            artifacts_to: self.artifacts_to.clone(),
            folders: BTreeSet::new(),
            plan,
            ahead,
            fail_fast,
            stopped: None,
        };
        let (outcomes, stopped) = round.go(context, &mut show, &mut stops).await?;
        if let Some(path) = &self.junit {
            std::fs::write(path, junit::report(&outcomes))
                .map_err(|e| Failure::io(format_args!("failed to write `{}`", path.display()), &e))?;
        }
        if context.json {
            context.screen.json(&report::summary(&outcomes))?;
        } else if outcomes.len() > 1 {
            context.screen.note(&report::summary_line(&outcomes))?;
        }
        Ok(stopped.unwrap_or_else(|| report::exit_code(&outcomes)))
    }

    fn plan(&self) -> Result<(Plan, usize, bool), Failure> {
        let spec = self.spec.as_deref().map(Spec::read).transpose()?.unwrap_or_default();
        let own = |name: &str| std::env::var(name).ok();
        let mut env = spec.env.clone();
        env.extend(variables(&spec.pass_env, own)?);
        env.extend(variables(&self.env, own)?);
        let args: Vec<String> = self.arg.iter().chain(&self.rest).cloned().collect();
        let or = |flags: &Vec<String>, spec: &Vec<String>| {
            if flags.is_empty() { spec.clone() } else { flags.clone() }
        };
        let wrong = Failure::usage;
        let common = NewJob {
            args: or(&args, &spec.args),
            env,
            timeout_s: self.timeout.or(spec.timeout_s().map_err(wrong)?),
            memory_bytes: self.memory.or(spec.memory_bytes().map_err(wrong)?),
            cpus: self.cpus.or(spec.cpus),
            image: self.image.clone().or_else(|| spec.image.clone()),
            backend: self.backend.or(spec.backend),
            artifacts: or(&self.artifacts, &spec.artifacts),
            require: or(&self.require, &spec.require),
            ..NewJob::default()
        };
        let matrix: Matrix = if self.matrix.is_empty() {
            let words = |values: &Vec<_>| values.iter().map(super::spec::Word::text).collect();
            spec.matrix.iter().map(|(key, values)| (key.clone(), words(values))).collect()
        } else {
            self.matrix.clone()
        };
        let plan = match &self.spec {
            None => Plan::of_targets(&self.targets, &common, &matrix)?,
            Some(file) => {
                let beside = file.parent().map(PathBuf::from).unwrap_or_default();
                let folder = beside.join(spec.input.clone().unwrap_or_default());
                let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
                let scripts =
                    if spec.scripts.is_empty() { vec!["*.py".to_owned()] } else { spec.scripts.clone() };
                Plan::of_folder(&folder, &scripts, &common, &matrix)?
            }
        };
        let ahead = self.jobs.map(usize::from).or(spec.jobs).unwrap_or(AHEAD).max(1);
        Ok((plan, ahead, self.fail_fast || spec.fail_fast))
    }
}

/// How what happens is shown.
#[derive(Default)]
struct Show {
    quiet: bool,
    github: bool,
    /// Whose line it is stands before it.
    prefix: bool,
    /// Lines that have not ended, by job and stream.
    open: BTreeMap<(usize, bool), String>,
}

/// Longest line that is held back until it ends.
const LINE_BYTES: usize = 16 * 1024;

impl Show {
    /// Guest text of a run for GitHub is shown at the end only, where it can do no harm.
    fn is_live(&self, context: &Context) -> bool {
        !self.quiet && !self.github && !context.json
    }

    fn output(
        &mut self,
        context: &mut Context,
        place: usize,
        name: &str,
        stream: Stream,
        text: &str,
    ) -> Result<(), Failure> {
        if !self.prefix {
            return context.screen.guest(stream, text);
        }
        let mut open = self.open.remove(&(place, stream == Stream::Stderr)).unwrap_or_default();
        open.push_str(text);
        while let Some(end) =
            open.find('\n').map(|end| end + 1).or((open.len() > LINE_BYTES).then_some(open.len()))
        {
            let rest = open.split_off(end);
            context
                .screen
                .guest(stream, &format!("[{}] {}\n", one_line(name), open.trim_end_matches('\n')))?;
            open = rest;
        }
        if !open.is_empty() {
            self.open.insert((place, stream == Stream::Stderr), open);
        }
        Ok(())
    }

    fn ended(
        &mut self,
        context: &mut Context,
        place: usize,
        outcome: &Outcome,
        alone: bool,
    ) -> Result<(), Failure> {
        for (err, stream) in [(false, Stream::Stdout), (true, Stream::Stderr)] {
            if let Some(open) = self.open.remove(&(place, err)) {
                self.output(context, place, &outcome.name, stream, &format!("{open}\n"))?;
            }
        }
        if context.json {
            return context.screen.json(&outcome.json());
        }
        if self.github {
            context.screen.line(github::block(outcome, &github::stop_word()).trim_end())?;
        }
        if alone && outcome.passed() {
            return Ok(());
        }
        let line = format!(
            "{:<13} {} ({:.2} s){}",
            outcome.word().replace('_', " "),
            one_line(&outcome.name),
            outcome.seconds(),
            if outcome.passed() { String::new() } else { format!(": {}", one_line(&outcome.reason())) }
        );
        let line = if self.github { harmless(&line) } else { line };
        let line = if context.screen.colors_watched() { outcome.tint().paint(&line) } else { line };
        context.screen.block(&line)
    }
}

/// All jobs of one command.
struct Round {
    client: Arc<Client>,
    plan: Plan,
    /// What was sent, by the place of its source.
    inputs: BTreeMap<usize, InputId>,
    waiting: VecDeque<usize>,
    running: BTreeMap<usize, JobId>,
    outcomes: Vec<Option<Outcome>>,
    artifacts_to: Option<PathBuf>,
    folders: BTreeSet<String>,
    /// How many may wait or run.
    ahead: usize,
    fail_fast: bool,
    /// The exit code that a signal asks for.
    stopped: Option<u8>,
}

impl Round {
    async fn go(
        mut self,
        context: &mut Context,
        show: &mut Show,
        stops: &mut Stops,
    ) -> Result<(Vec<Outcome>, Option<u8>), Failure> {
        let (sender, mut receiver) = mpsc::channel(TOLD);
        let alone = self.plan.jobs.len() == 1;
        loop {
            if self.running.len() < self.ahead
                && let Some(place) = self.waiting.pop_front()
            {
                // A signal waits for this: a job that nobody knows of could not be cancelled.
                match self.begin(context, place).await {
                    Ok(id) => {
                        self.running.insert(place, id);
                        let (client, live) = (Arc::clone(&self.client), show.is_live(context));
                        tokio::spawn(watch::follow(client, id, place, live, sender.clone()));
                    }
                    // Nothing was run, and nothing else will be.
                    Err(failure) if alone => return Err(failure),
                    Err(failure) => {
                        self.ended(context, show, place, Fate::Refused(failure)).await?;
                    }
                }
                while let Ok(told) = receiver.try_recv() {
                    self.told(context, show, told).await?;
                }
                if !self.waiting.is_empty() && self.running.len() < self.ahead {
                    tokio::select! {
                        biased;
                        code = stops.next() => self.stop(context, code).await?,
                        () = std::future::ready(()) => {}
                    }
                    continue;
                }
            }
            if self.running.is_empty() && self.waiting.is_empty() {
                break;
            }
            tokio::select! {
                code = stops.next() => {
                    if self.stopped.is_some() {
                        context.screen.warn("left; the jobs were told to end")?;
                        return Err(Failure { exit: code, ..Failure::new(String::new()) });
                    }
                    self.stop(context, code).await?;
                }
                told = receiver.recv() => {
                    if let Some(told) = told {
                        self.told(context, show, told).await?;
                    }
                }
            }
        }
        let jobs = self.plan.jobs.iter().zip(self.outcomes);
        let outcomes =
            jobs.map(|(planned, outcome)| outcome.unwrap_or_else(|| ended(planned, Fate::Skipped)));
        Ok((outcomes.collect(), self.stopped))
    }

    async fn begin(&mut self, context: &mut Context, place: usize) -> Result<JobId, Failure> {
        let Some(planned) = self.plan.jobs.get(place).cloned() else {
            return Err(Failure::new("a job that was not planned"));
        };
        loop {
            let known = self.inputs.get(&planned.source).copied();
            let input = match known {
                Some(input) => input,
                None => self.send(context, planned.source).await?,
            };
            let job = NewJob { input: Some(input), ..planned.job.clone() };
            match watch::submit(&self.client, &job).await {
                Ok(view) => return Ok(view.id),
                // A daemon that was started anew does not know what was sent to the one before.
                Err(failure) if failure.has_code(Code::NoSuchInput) && known.is_some() => {
                    self.inputs.remove(&planned.source);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn send(&mut self, context: &mut Context, place: usize) -> Result<InputId, Failure> {
        let Some(source) = self.plan.sources.get(place) else {
            return Err(Failure::new("a source that was not planned"));
        };
        let (input, skipped) = watch::send(&self.client, source).await?;
        if skipped.count > 0 {
            context.screen.warn(&format!(
                "{} left out, being neither plain files nor folders, such as `{}`",
                skipped.count,
                skipped.example.display()
            ))?;
        }
        self.inputs.insert(place, input);
        Ok(input)
    }

    async fn told(&mut self, context: &mut Context, show: &mut Show, told: Told) -> Result<(), Failure> {
        match told {
            Told::Output { place, stream, text } => {
                let name = self.plan.jobs.get(place).map_or("", |planned| planned.name.as_str()).to_owned();
                show.output(context, place, &name, stream, &text)
            }
            Told::Ended { place, seen } => {
                self.running.remove(&place);
                match *seen {
                    Err(failure) => self.ended(context, show, place, Fate::Refused(failure)).await,
                    Ok(seen) => {
                        let Some(planned) = self.plan.jobs.get(place) else { return Ok(()) };
                        let outcome = Outcome {
                            stdout: seen.stdout,
                            stderr: seen.stderr,
                            ..ended(planned, Fate::Ended(Box::new(seen.view)))
                        };
                        self.fetch(context, &outcome).await?;
                        self.conclude(context, show, place, outcome).await
                    }
                }
            }
        }
    }

    async fn ended(
        &mut self,
        context: &mut Context,
        show: &mut Show,
        place: usize,
        fate: Fate,
    ) -> Result<(), Failure> {
        let Some(planned) = self.plan.jobs.get(place) else { return Ok(()) };
        let outcome = ended(planned, fate);
        self.conclude(context, show, place, outcome).await
    }

    async fn conclude(
        &mut self,
        context: &mut Context,
        show: &mut Show,
        place: usize,
        outcome: Outcome,
    ) -> Result<(), Failure> {
        show.ended(context, place, &outcome, self.plan.jobs.len() == 1)?;
        let failed = !outcome.passed();
        if let Some(slot) = self.outcomes.get_mut(place) {
            *slot = Some(outcome);
        }
        if failed && self.fail_fast {
            self.cancel().await;
        }
        Ok(())
    }

    async fn fetch(&mut self, context: &mut Context, outcome: &Outcome) -> Result<(), Failure> {
        let (Some(to), Fate::Ended(view)) = (&self.artifacts_to, &outcome.fate) else { return Ok(()) };
        let Some(end) = &view.end else { return Ok(()) };
        if end.artifacts_cut {
            let name = &outcome.name;
            context
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

    async fn stop(&mut self, context: &mut Context, code: u8) -> Result<(), Failure> {
        self.stopped = Some(code);
        context.screen.note(match code {
            exit::INTERRUPTED => "cancelling the jobs; press Ctrl-C again to leave at once",
            _ => "cancelling the jobs",
        })?;
        self.cancel().await;
        Ok(())
    }

    /// Their ends follow as those of all others.
    async fn cancel(&mut self) {
        self.waiting.clear();
        let cancelled = self.running.values().map(|id| {
            let client = Arc::clone(&self.client);
            let path = format!("/v1/jobs/{id}/cancel");
            // One that has just ended needs no cancelling.
            async move { drop(client.post_empty(&path).await) }
        });
        futures_util::future::join_all(cancelled).await;
    }
}

fn ended(planned: &Planned, fate: Fate) -> Outcome {
    Outcome {
        name: planned.name.clone(),
        path: planned.path.display().to_string(),
        fate,
        stdout: String::new(),
        stderr: String::new(),
    }
}

/// A folder's name that no other job of the run has.
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

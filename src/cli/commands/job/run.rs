//! `belljar job run`: run all jobs of a plan, a few at a time, and exit with one code.

use clap::Args;
use std::path::PathBuf;

use super::batch::Batch;
use super::junit;
use super::output_files::{self, Report};
use super::plan::{Matrix, Plan, check_matrix, matrix};
use super::progress::ProgressView;
use super::report;
use super::spec::Spec;
use crate::cli::args::{cpus, seconds, variables, word};
use crate::cli::commands::cell::stream::Stops;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::config::parse_size;
use crate::protocol::job::NewJob;
use crate::protocol::receipt::Backend;

/// Run scripts as jobs: each once, in a fresh container or jail without network.
///
/// A FILE is a job with only itself to work with. Of a folder every `*.py` directly in it is a job,
/// and each gets all files of the folder. Working directory is that folder's copy.
///
/// One job: the exit code is the script's own, 124 if its time ran out, 128 + n for signal n, 125 for
/// an error that is not the script's. Several: 1 if any did not pass.
#[derive(Debug, Args)]
pub(in crate::cli) struct Run {
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
    #[arg(long, value_parser = word::<Backend>())]
    backend: Option<Backend>,
    /// A variable for the scripts; without a value, with the one that it has here. Nothing else of
    /// this environment reaches them.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// An argument for the scripts; so is all that follows `--`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    arg: Vec<String>,
    /// A job for each value: the script has it as a variable NAME, and arguments as `{NAME}`. `{{NAME}}` in an argument is
    /// the word itself.
    #[arg(long, value_name = "NAME=A,B", value_parser = matrix)]
    matrix: Vec<(String, Vec<String>)>,
    /// Files to keep when a script has ended, whether it passed or not: `*`, `?` and `**` as in a
    /// shell. A name that begins with a dot has to be named so.
    #[arg(long, value_name = "GLOB")]
    artifacts: Vec<String>,
    /// Where to put them; for several jobs, in a folder for each.
    #[arg(long, value_name = "DIR")]
    artifacts_to: Option<PathBuf>,
    /// A package that the image has to have, perhaps in a range of versions: `numpy`, `numpy>=2,<3`.
    #[arg(long, value_name = "PKG")]
    require: Vec<String>,
    /// A package to install before a script runs, as in 'polars' or 'numpy<3'; can be repeated.
    #[arg(long, value_name = "PACKAGE")]
    with: Vec<String>,
    /// How many may run at the same time.
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
        // From here on no signal may end this process before the jobs are cancelled.
        let mut stops = Stops::new()?;
        let (plan, parallel, fail_fast) = self.plan()?;
        if self.artifacts_to.is_some() && plan.jobs.iter().all(|planned| planned.job.artifacts.is_empty()) {
            return Err(Failure::usage("`--artifacts-to` has nothing to put there")
                .hint("say which files with `--artifacts GLOB`"));
        }
        let report = self.junit.as_deref().map(Report::prepare).transpose()?;
        if let Some(folder) = &self.artifacts_to {
            output_files::check_folder(folder)?;
        }
        for pattern in &plan.unmatched {
            context.screen.warn(&format!("no file matches `{pattern}` of `scripts`"))?;
        }
        let show = ProgressView::new(self.quiet, self.github, plan.jobs.len() > 1);
        let batch = Batch::new(context, show, plan, parallel, fail_fast, self.artifacts_to.clone());
        let (outcomes, stopped) = batch.go(&mut stops).await?;
        if let Some(report) = report {
            report.write(&junit::report(&outcomes))?;
        }
        if context.json {
            context.screen.json(&report::summary(&outcomes))?;
        } else if outcomes.len() > 1 {
            context.screen.note(&report::summary_line(&outcomes))?;
        }
        Ok(stopped.unwrap_or_else(|| report::exit_code(&outcomes)))
    }

    fn plan(&self) -> Result<(Plan, Option<usize>, bool), Failure> {
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
            with: or(&self.with, &spec.with),
            // The daemon cancels the jobs when this process ends, no matter how it ends.
            ephemeral: true,
            ..NewJob::default()
        };
        let matrix: Matrix = if self.matrix.is_empty() {
            let words = |values: &Vec<_>| values.iter().map(super::spec::Word::text).collect();
            spec.matrix.iter().map(|(key, values)| (key.clone(), words(values))).collect()
        } else {
            self.matrix.clone()
        };
        check_matrix(&matrix)?;
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
        let parallel = self.jobs.map(usize::from).or(spec.jobs).map(|jobs| jobs.max(1));
        Ok((plan, parallel, self.fail_fast || spec.fail_fast))
    }
}

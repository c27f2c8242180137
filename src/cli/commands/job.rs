//! `belljar job`: scripts that run once, each in a sandbox of its own, for CI.

mod admission;
mod batch;
mod daemon_batch;
mod github;
mod inspect;
mod junit;
pub(in crate::cli) mod key;
mod output_files;
mod plan;
mod progress;
mod report;
mod run;
mod spec;
mod traceback;
mod watch;

use clap::{Args, Subcommand};

use self::key::JobKey;
use crate::cli::context::Context;
use crate::cli::failure::Failure;

/// Run scripts once, each in a fresh sandbox, and look at such jobs.
#[derive(Debug, Args)]
pub(in crate::cli) struct Job {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    // Boxed, because the command has many flags.
    Run(Box<run::Run>),
    /// List your jobs, the newest first.
    #[command(alias = "list")]
    Ls {
        /// List the jobs of all users, for administrators, who may name any of them.
        #[arg(long)]
        all: bool,
    },
    /// Show one job, with its verdict and its receipt.
    Show {
        /// Its id, or its name: then the newest of that name.
        #[arg(value_parser = JobKey::parse)]
        job: JobKey,
    },
    /// Show what a job printed.
    Logs {
        /// Its id, or its name: then the newest of that name.
        #[arg(value_parser = JobKey::parse)]
        job: JobKey,
        /// Go on until it has ended.
        #[arg(short, long)]
        follow: bool,
    },
    /// End jobs that wait or run.
    Cancel {
        /// Their ids or names.
        #[arg(required = true, value_parser = JobKey::parse)]
        jobs: Vec<JobKey>,
    },
    /// Copy the files that were kept of a job into a folder.
    Artifacts {
        /// Its id, or its name: then the newest of that name.
        #[arg(value_parser = JobKey::parse)]
        job: JobKey,
        folder: std::path::PathBuf,
    },
    /// Forget jobs that have ended, with their output and artifacts.
    Rm {
        /// Their ids or names.
        #[arg(required = true, value_parser = JobKey::parse)]
        jobs: Vec<JobKey>,
    },
}

impl Job {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match self.action {
            Action::Run(run) => run.run(context).await,
            Action::Ls { all } => inspect::list(context, all).await,
            Action::Show { job } => inspect::show(context, &job).await,
            Action::Logs { job, follow } => inspect::logs(context, &job, follow).await,
            Action::Cancel { jobs } => inspect::cancel(context, &jobs).await,
            Action::Artifacts { job, folder } => inspect::artifacts(context, &job, &folder).await,
            Action::Rm { jobs } => inspect::forget(context, &jobs).await,
        }
    }
}

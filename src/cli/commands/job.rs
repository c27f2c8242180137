//! `belljar job`: scripts that run once, each in a sandbox of its own, for CI.

mod admission;
mod batch;
mod github;
mod inspect;
mod junit;
mod output_files;
mod plan;
mod progress;
mod report;
mod run;
mod spec;
mod traceback;
mod watch;

use clap::{Args, Subcommand};

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
        id: String,
    },
    /// Show what a job printed.
    Logs {
        id: String,
        /// Go on until it has ended.
        #[arg(short, long)]
        follow: bool,
    },
    /// End jobs that wait or run.
    Cancel {
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Copy the files that were kept of a job into a folder.
    Artifacts {
        id: String,
        folder: std::path::PathBuf,
    },
    /// Forget jobs that have ended, with their output and artifacts.
    Rm {
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

impl Job {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match self.action {
            Action::Run(run) => run.run(context).await,
            Action::Ls { all } => inspect::list(context, all).await,
            Action::Show { id } => inspect::show(context, &id).await,
            Action::Logs { id, follow } => inspect::logs(context, &id, follow).await,
            Action::Cancel { ids } => inspect::cancel(context, &ids).await,
            Action::Artifacts { id, folder } => inspect::artifacts(context, &id, &folder).await,
            Action::Rm { ids } => inspect::forget(context, &ids).await,
        }
    }
}

//! `belljar freeze` and `belljar thaw`: stop the processes of a sandbox and let them continue.

use clap::Args;
use serde_json::Value;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;

/// Stop all processes of a session's sandbox; `thaw`, or the next work in it, lets them go on.
#[derive(Debug, Args)]
pub(in crate::cli) struct Freeze {
    #[command(flatten)]
    session: SessionArg,
}

/// Let the processes of a frozen sandbox go on.
#[derive(Debug, Args)]
pub(in crate::cli) struct Thaw {
    #[command(flatten)]
    session: SessionArg,
}

impl Freeze {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().post_empty(&self.session.path("/freeze")?).await?;
        context.show(&answer, |_, _: Value| Ok(()))
    }
}

impl Thaw {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().post_empty(&self.session.path("/thaw")?).await?;
        context.show(&answer, |_, _: Value| Ok(()))
    }
}

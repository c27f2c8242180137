//! `belljar install`: install packages into a session.

use clap::Args;
use std::time::Duration;

use crate::cli::args::SessionFlag;
use crate::cli::client::follow::with_steps;
use crate::cli::client::http::Client;
use crate::cli::client::session_key::SessionKey;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::screen::Screen;
use crate::protocol::event::EventBody;
use crate::protocol::packages::{InstalledPackages, NewPackages};

/// If an installation takes longer than this, its progress is shown.
const SLOW: Duration = Duration::from_millis(500);

/// Install packages into a session, whose cells can import them at once.
#[derive(Debug, Args)]
pub(in crate::cli) struct Install {
    #[command(flatten)]
    session: SessionFlag,
    /// Names with extras and ranges of versions, as in `polars` or `numpy<3`.
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Replace versions that are there if need be; the variables of the session are gone then.
    #[arg(long)]
    reset: bool,
    /// Build packages that have no wheel from their sources, where the administrator allows it.
    #[arg(long)]
    sources: bool,
}

impl Install {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let wanted = NewPackages { packages: self.packages, reset: self.reset, sources: self.sources };
        let installed = install(&context.client(), &session, &wanted).await?;
        context.show_value(&installed, show)?;
        Ok(crate::protocol::exit_codes::SUCCESS)
    }
}

/// Installs packages and shows the progress. If the daemon ends meanwhile, the next one is asked for the same: what it
/// finds installed it only says.
pub(in crate::cli) async fn install(
    client: &Client,
    session: &SessionKey,
    wanted: &NewPackages,
) -> Result<InstalledPackages, Failure> {
    let path = format!("/v1/sessions/{session}/install");
    let is_step = |event: &EventBody| matches!(event, EventBody::PackagesInstalling { .. });
    with_steps(client, Some(session), SLOW, is_step, client.post_in_the_end(&path, wanted)).await?.parse()
}

/// Installs the packages that a new session is to begin with. The session is removed if that fails.
pub(in crate::cli) async fn begin_with(
    client: &Client,
    session: &SessionKey,
    packages: Vec<String>,
) -> Result<(), Failure> {
    if packages.is_empty() {
        return Ok(());
    }
    // Nothing of the image is in use yet, so other versions may stand before its own.
    let wanted = NewPackages { packages, reset: true, ..NewPackages::default() };
    let outcome = install(client, session, &wanted).await;
    if outcome.is_err() {
        let _ = client.delete(&format!("/v1/sessions/{session}?wait=true")).await;
    }
    outcome.map(drop)
}

/// Says what the session has now.
pub(in crate::cli) fn show(screen: &mut Screen, installed: &InstalledPackages) -> Result<(), Failure> {
    let InstalledPackages { packages, in_image, cached, replaced } = installed;
    for package in packages {
        screen.line(&format!("{} {}", package.name, package.version))?;
    }
    if !in_image.is_empty() {
        let names: Vec<String> =
            in_image.iter().map(|package| format!("{} {}", package.name, package.version)).collect();
        screen.note(&format!("in the image already: {}", names.join(", ")))?;
    }
    if !replaced.is_empty() {
        let names: Vec<String> =
            replaced.iter().map(|one| format!("{} {} by {}", one.name, one.has, one.wants)).collect();
        screen.note(&format!("replaced: {}; the variables of the session are gone", names.join(", ")))?;
    }
    if *cached {
        screen.note("from the cache: nothing was downloaded")?;
    }
    Ok(())
}

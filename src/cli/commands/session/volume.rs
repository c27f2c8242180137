//! `belljar volume`: folders that outlive sessions.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::session::inspect::owner;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, size};
use crate::protocol::api::{NewVolume, VolumeList, VolumeView};
use crate::protocol::ids::{SessionName, VolumeName};

/// Make, list and remove volumes: folders that outlive sessions, for `new --volume NAME:/data`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Volume {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a volume.
    Create {
        #[arg(value_parser = VolumeName::parse)]
        name: VolumeName,
    },
    /// List your volumes.
    #[command(alias = "list")]
    Ls {
        /// Those of all users, for administrators, who name one of another user as `NAME@USER`.
        #[arg(long)]
        all: bool,
    },
    /// Remove a volume that no session uses, with all that is in it.
    Rm {
        #[arg(value_parser = SessionKey::parse)]
        name: SessionKey,
    },
}

impl Volume {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        match self.action {
            Action::Create { name } => {
                let answer = client.post("/v1/volumes", &NewVolume { name }).await?;
                context.show(&answer, |screen, made: VolumeView| screen.line(made.name.as_str()))
            }
            Action::Ls { all } => {
                let answer = client.get(&format!("/v1/volumes?all={all}")).await?;
                context.show(&answer, |screen, list: VolumeList| match list.volumes.as_slice() {
                    [] => screen.note("no volumes; make one with `belljar volume create NAME`"),
                    volumes => screen.table(&table(volumes, all)),
                })
            }
            Action::Rm { name } => {
                let answer = client.delete(&format!("/v1/volumes/{name}")).await?;
                context.show(&answer, |screen, _: Value| screen.line(name.as_str()))
            }
        }
    }
}

fn table(volumes: &[VolumeView], of_all: bool) -> Table {
    let cells = |volume: &VolumeView| {
        let sessions: Vec<&str> = volume.sessions.iter().map(SessionName::as_str).collect();
        [owner(volume.owner), volume.name.to_string(), size(volume.bytes), sessions.join(", ")]
    };
    let heads = ["OWNER", "NAME", "SIZE", "SESSIONS"];
    Table::new(heads, volumes.iter().map(cells)).without_first(usize::from(!of_all))
}

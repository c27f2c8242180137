//! `belljar snapshot`, `snapshots` and `sleep`: variables on the disk.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::args::{SessionArg, SessionFlag};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, or_dash, size};
use crate::cli::render::screen::Screen;
use crate::protocol::saved_state::{Asleep, NewSnapshot, SnapshotList};
use crate::protocol::snapshot::{MissingVariable, SnapshotRecord};

/// Names that a note lists of what could not be saved.
const NAMED: usize = 5;

/// Save the variables of a session to the disk; one with a name is kept until you remove it.
#[derive(Debug, Args)]
pub(in crate::cli) struct Snapshot {
    #[command(flatten)]
    session: SessionFlag,
    /// A name for it.
    name: Option<String>,
}

/// List the snapshots of a session, or remove one.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct Snapshots {
    #[command(flatten)]
    session: SessionArg,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Remove a snapshot.
    Rm {
        #[command(flatten)]
        session: SessionFlag,
        /// Its id or its name.
        snapshot: String,
    },
}

/// End the sandbox of a session, once its variables are saved; the next cell wakes it.
#[derive(Debug, Args)]
pub(in crate::cli) struct Sleep {
    #[command(flatten)]
    session: SessionArg,
}

impl Snapshot {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = format!("/v1/sessions/{}/snapshots", self.session.resolve()?);
        let answer = context.client().post(&path, &NewSnapshot { name: self.name }).await?;
        context.show(&answer, |screen, taken: SnapshotRecord| {
            screen.line(&taken.id)?;
            show_missing(screen, &taken.missing)
        })
    }
}

impl Snapshots {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        if let Some(Action::Rm { session, snapshot }) = self.action {
            let path = format!("/v1/sessions/{}/snapshots/{}", session.resolve()?, encoded(&snapshot)?);
            let answer = context.client().delete(&path).await?;
            return context.show(&answer, |screen, _: Value| screen.line(&snapshot));
        }
        let answer = context.client().get(&self.session.path("/snapshots")?).await?;
        context.show(&answer, |screen, list: SnapshotList| match list.snapshots.as_slice() {
            [] => screen.note("no snapshots; `belljar snapshot -s NAME` takes one"),
            snapshots => screen.table(&table(snapshots, list.wakes_from.as_deref())),
        })
    }
}

impl Sleep {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let note = format!("`{session}` sleeps; the next cell wakes it");
        let answer = context.client().post_empty(&self.session.path("/sleep")?).await?;
        context.show(&answer, |screen, asleep: Asleep| {
            show_missing(screen, &asleep.missing)?;
            match (asleep.unsaved, asleep.snapshot) {
                (false, _) => {}
                (true, Some(_)) => screen.warn(&format!(
                    "its sandbox had ended before all was saved: the cells after cell {} run again",
                    asleep.cell
                ))?,
                (true, None) => screen.warn(
                    "its sandbox had ended before anything was saved: its cells run again, if they did not take long",
                )?,
            }
            screen.note(&note)
        })
    }
}

/// The text as a part of a path, which ids and names of snapshots are as they stand.
fn encoded(snapshot: &str) -> Result<&str, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if snapshot.is_empty() || !snapshot.chars().all(is_plain) {
        return Err(Failure::usage("this is not the id or the name of a snapshot"));
    }
    Ok(snapshot)
}

fn show_missing(screen: &mut Screen, missing: &[MissingVariable]) -> Result<(), Failure> {
    for missing in missing.iter().take(NAMED) {
        screen.warn(&format!("not saved: `{}`: {}", missing.name, missing.reason))?;
    }
    match missing.len().saturating_sub(NAMED) {
        0 => Ok(()),
        more => screen.warn(&format!("and {more} more; `--json` names all")),
    }
}

fn table(snapshots: &[SnapshotRecord], wakes_from: Option<&str>) -> Table {
    let cells = |taken: &SnapshotRecord| {
        let wakes = if wakes_from == Some(taken.id.as_str()) { "wakes" } else { "" };
        [
            taken.id.clone(),
            or_dash(taken.name.clone()),
            taken.cell.to_string(),
            taken.at.clone(),
            taken.variables.to_string(),
            size(taken.bytes),
            size(taken.stored_bytes),
            wakes.to_owned(),
        ]
    };
    let heads = ["ID", "NAME", "AFTER CELL", "AT", "VARIABLES", "SIZE", "ON DISK", ""];
    Table::new(heads, snapshots.iter().map(cells))
}

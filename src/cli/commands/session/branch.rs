//! `belljar branch`: make sessions that begin with the variables and files of another.

use clap::Args;

use crate::cli::args::SessionFlag;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::branch::{BRANCHES_AT_ONCE, BranchList, NewBranches};
use crate::protocol::ids::{CellNumber, SessionName};

/// Make a session that begins as another one is now, and print its name.
///
/// Variables, files, packages and settings are carried over; threads, connections and running commands are not. What happens in
/// one of them afterwards does not touch the other.
#[derive(Debug, Args)]
pub(in crate::cli) struct Branch {
    #[command(flatten)]
    session: SessionFlag,
    /// The new session's name; made up if absent. Several are named `NEW-1`, `NEW-2` and so on.
    #[arg(value_name = "NEW", value_parser = SessionName::parse)]
    name: Option<SessionName>,
    /// Begin with the variables as after this cell, if its state is still kept or was saved. Files are as they are now.
    #[arg(long, value_name = "CELL", allow_negative_numbers = true)]
    at: Option<CellNumber>,
    /// Begin with the variables of a snapshot (`belljar snapshots`), by its name or id. Files are as they are now.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "at")]
    snapshot: Option<String>,
    /// How many to make.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BRANCHES_AT_ONCE)), allow_negative_numbers = true)]
    count: Option<u32>,
}

impl Branch {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let request = NewBranches {
            name: self.name,
            at: self.at,
            snapshot: self.snapshot,
            count: self.count,
            ephemeral: false,
        };
        let answer = context.client().post(&format!("/v1/sessions/{session}/branch"), &request).await?;
        context.show(&answer, |screen, made: BranchList| {
            screen.note(&match made.cell {
                0 => format!("as `{session}` at its start"),
                cell => format!("as `{session}` after cell {cell}"),
            })?;
            if made.left_out > 0 {
                let count = made.left_out;
                screen.warn(&format!(
                    "{count} left out, being neither files, folders nor links that may be read"
                ))?;
            }
            made.sessions.iter().try_for_each(|session| screen.line(session.name.as_str()))
        })
    }
}

//! `belljar packages`: what is kept of installed packages for later sessions.

use clap::{Args, Subcommand};

use crate::cli::commands::session::inspect::owner;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, age, size};
use crate::protocol::clock;
use crate::protocol::ids::SessionName;
use crate::protocol::packages::{ClearedPackages, KeptPackages, KeptPackagesList};

/// Characters of a key that a table has.
const KEY_CHARS: usize = 12;
/// Packages that a table names of one set.
const NAMED: usize = 4;

/// List and remove what is kept of installed packages for later sessions.
#[derive(Debug, Args)]
pub(in crate::cli) struct Packages {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the sets of packages that are kept for your sessions.
    #[command(alias = "list")]
    Ls {
        /// Those of all users, for administrators.
        #[arg(long)]
        all: bool,
    },
    /// Remove the sets that no session uses.
    Clear {
        /// Those of all users, for administrators.
        #[arg(long)]
        all: bool,
    },
}

impl Packages {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        match self.action {
            Action::Ls { all } => {
                let answer = client.get(&format!("/v1/packages?all={all}")).await?;
                context.show(&answer, |screen, list: KeptPackagesList| match list.sets.as_slice() {
                    [] => {
                        screen.note("no packages are kept; `belljar install -s NAME PACKAGE` installs some")
                    }
                    sets => screen.table(&table(sets, all)),
                })
            }
            Action::Clear { all } => {
                let answer = client.delete(&format!("/v1/packages?all={all}")).await?;
                context.show(&answer, |screen, cleared: ClearedPackages| screen.line(&sentence(cleared)))
            }
        }
    }
}

fn sentence(ClearedPackages { sets, bytes, in_use }: ClearedPackages) -> String {
    let plural = |count: u64| if count == 1 { "set" } else { "sets" };
    let kept = match in_use {
        0 => String::new(),
        kept => format!("; {kept} {} in use", plural(kept)),
    };
    format!("removed {sets} {} of packages, {bytes} bytes ({}){kept}", plural(sets), size(bytes))
}

fn table(sets: &[KeptPackages], of_all: bool) -> Table {
    let heads = ["OWNER", "SET", "PACKAGES", "SIZE", "USED BY", "LAST USED"];
    let cells = |set: &KeptPackages| {
        let named = set.packages.iter().take(NAMED);
        let mut packages: Vec<String> =
            named.map(|package| format!("{} {}", package.name, package.version)).collect();
        if set.packages.len() > NAMED {
            packages.push(format!("{} more", set.packages.len() - NAMED));
        }
        let sessions: Vec<&str> = set.used_by.iter().map(SessionName::as_str).collect();
        let used_by = match (sessions.is_empty(), set.in_use) {
            (false, _) => sessions.join(", "),
            (true, true) => "others".to_owned(),
            (true, false) => "-".to_owned(),
        };
        [
            owner(set.owner),
            set.set.chars().take(KEY_CHARS).collect(),
            packages.join(", "),
            size(set.bytes),
            used_by,
            format!("{} ago", age(clock::since(&set.last_used).as_secs())),
        ]
    };
    Table::new(heads, sets.iter().map(cells)).without_first(usize::from(!of_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_how_much_was_removed_and_what_stays() {
        let cleared = |sets, bytes, in_use| sentence(ClearedPackages { sets, bytes, in_use });
        assert!(cleared(1, 2048, 0).starts_with("removed 1 set of packages, 2048 bytes ("));
        assert!(cleared(2, 10, 1).ends_with("; 1 set in use"));
        assert!(cleared(0, 0, 2).ends_with("; 2 sets in use"));
    }
}

//! `belljar plan`: the plan tree of a session, in all its versions.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::block::{Block, render};
use crate::cli::render::human::Table;
use crate::protocol::ask::{PlanVersion, PlanView};
use crate::protocol::exit_codes as exit;

/// Show the plan that a model made in a session.
#[derive(Debug, Args)]
pub(in crate::cli) struct Plan {
    #[command(flatten)]
    session: SessionArg,
    /// An older version than the newest.
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// What differs from the version before, instead of the tree.
    #[arg(long)]
    diff: bool,
    /// How many tasks there are of each status, instead of the tree.
    #[arg(long)]
    stats: bool,
}

impl Plan {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get(&self.session.path("/plan")?).await?;
        if let (true, None) = (context.json, self.version) {
            return context.show(&answer, |_, _: PlanView| Ok(()));
        }
        let plan: PlanView = answer.parse()?;
        let Some(version) = chosen(&plan, self.version)? else {
            context.screen.note("there is no plan")?;
            return Ok(exit::SUCCESS);
        };
        context.show_value(version, |screen, version| {
            screen.note(&format!("version {} of {}", version.version, plan.versions.len()))?;
            let color = screen.colors_data();
            self.parts(version).iter().try_for_each(|part| screen.line(&render(part, color)))
        })
    }

    fn parts(&self, version: &PlanVersion) -> Vec<Block> {
        let mut parts = Vec::new();
        if self.diff {
            let changes =
                if version.changes.is_empty() { "no changes".to_owned() } else { version.changes.join("\n") };
            parts.push(Block::Plan(changes));
        }
        if self.stats {
            parts.push(Block::Plan(statistics(version)));
        }
        if parts.is_empty() {
            parts.push(Block::Plan(version.markdown.clone()));
        }
        parts
    }
}

fn chosen(plan: &PlanView, wanted: Option<u64>) -> Result<Option<&PlanVersion>, Failure> {
    let Some(wanted) = wanted else { return Ok(plan.versions.last()) };
    match plan.versions.iter().find(|version| version.version == wanted) {
        Some(version) => Ok(Some(version)),
        None => Err(Failure::new(format!(
            "the plan has no version {wanted}; it has {}",
            match plan.versions.as_slice() {
                [] => "none at all".to_owned(),
                [only] => format!("{} only", only.version),
                [first, .., last] => format!("{} to {}", first.version, last.version),
            }
        ))),
    }
}

fn statistics(version: &PlanVersion) -> String {
    let rows = version.statistics.iter().map(|(key, value)| [key.clone(), value.to_string()]);
    Table::new(["STATUS", "TASKS"], rows).lines().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn version(version: u64) -> PlanVersion {
        let Value::Object(statistics) = json!({"completed": 1, "pending": 1, "__total": 2}) else { panic!() };
        PlanVersion {
            version,
            tree: json!({}),
            changes: vec![format!("change {version}")],
            markdown: format!("- [✅] **a{version}**"),
            statistics,
        }
    }

    #[test]
    fn the_newest_version_is_shown_unless_another_is_named() {
        let plan = PlanView { versions: vec![version(1), version(2)] };
        assert_eq!(chosen(&plan, None).unwrap().unwrap().version, 2);
        assert_eq!(chosen(&plan, Some(1)).unwrap().unwrap().version, 1);
        assert_eq!(chosen(&plan, Some(3)).unwrap_err().message, "the plan has no version 3; it has 1 to 2");
        assert!(chosen(&PlanView { versions: Vec::new() }, None).unwrap().is_none());
    }

    #[test]
    fn the_tree_gives_way_to_what_was_asked_for() {
        let text = |diff, stats| {
            use clap::Parser as _;
            let mut words = vec!["belljar", "plan", "-s", "a"];
            words.extend(
                [("--diff", diff), ("--stats", stats)].iter().filter(|(_, on)| *on).map(|(flag, _)| *flag),
            );
            let cli = crate::cli::entry::Cli::try_parse_from(words).unwrap();
            let crate::cli::entry::Command::Plan(plan) = cli.command else { panic!("not plan") };
            plan.parts(&version(2)).iter().map(|part| render(part, false)).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(text(false, false), "- [✅] **a2**");
        assert_eq!(text(true, false), "change 2");
        insta::assert_snapshot!(text(true, true), @r"
        change 2
        STATUS     TASKS
        __total    2
        completed  1
        pending    1
        ");
    }
}

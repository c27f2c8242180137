//! `belljar doctor`: checks whether this host can run Belljar well, and says how to fix what is wrong.
//!
//! [`collect`] gathers facts, [`diagnosis`] judges them without looking at anything else.

mod collect;
mod diagnosis;
mod engine;
mod engine_rules;
mod facts;
mod finding;
mod machine;
mod runc;

use clap::Args;
use serde_json::json;

use self::finding::{Finding, Severity};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::word;
use crate::cli::render::screen::{Screen, Tint};
use crate::protocol::exit_codes as exit;
use crate::protocol::text::one_line;

const STATUS_COLUMNS: usize = 9;
const CHECK_COLUMNS: usize = 17;

/// Check this machine, and say how to fix what is wrong.
///
/// Exits with 1 if something keeps Belljar from working or makes it unsafe; warnings do not count.
#[derive(Debug, Args)]
pub(in crate::cli) struct Doctor {}

impl Doctor {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let findings = diagnosis::diagnosis(&collect::facts(context).await);
        let count = |status| findings.iter().filter(|finding| finding.status == status).count();
        let (warnings, failures) = (count(Severity::Warning), count(Severity::Failure));
        context.show_value(&json!({ "ok": failures == 0, "findings": findings }), |screen, _| {
            findings.iter().try_for_each(|finding| show(screen, finding))?;
            screen.note(&summary(warnings, failures))
        })?;
        Ok(if failures == 0 { exit::SUCCESS } else { exit::FAILURE })
    }
}

/// `failure  images           none of …`, and the remedy below it.
fn show(screen: &mut Screen, finding: &Finding) -> Result<(), Failure> {
    let tint = match finding.status {
        Severity::Ok => Tint::Green,
        Severity::Warning => Tint::Yellow,
        Severity::Failure => Tint::Red,
    };
    let word = format!("{:<STATUS_COLUMNS$}", word(&finding.status));
    let word = screen.tinted(tint, &word);
    let message = one_line(&finding.message);
    screen.line(&format!("{word}{:<CHECK_COLUMNS$}{message}", finding.check))?;
    if let Some(fix) = &finding.fix {
        let label = screen.tinted(Tint::Cyan, "fix");
        screen.line(&format!("{:<STATUS_COLUMNS$}{label}: {}", "", one_line(fix)))?;
    }
    Ok(())
}

fn summary(warnings: usize, failures: usize) -> String {
    let counted = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    match (warnings, failures) {
        (0, 0) => "all is well".to_owned(),
        (_, 0) => format!("Belljar works here; {}", counted(warnings, "warning")),
        (0, _) => counted(failures, "failure"),
        _ => format!("{}, {}", counted(failures, "failure"), counted(warnings, "warning")),
    }
}

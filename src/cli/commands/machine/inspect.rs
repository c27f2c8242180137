//! Commands that show settings, quotas and versions.

use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::daemon::is_served;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, or_dash, size};
use crate::config::load;
use crate::protocol::api;
use crate::protocol::api::QuotaView;
use crate::protocol::config::{ConfigValue, ConfigView};
use crate::protocol::problem::Code;
use crate::protocol::quota::{QuotaUsage, Unit};
use crate::protocol::text::clipped;

/// Characters of a value that are shown, so that it fits in a row.
const VALUE_CHARS: usize = 60;

/// Show the configuration of the daemon in use, and where each value came from.
#[derive(Debug, Args)]
pub(in crate::cli) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show every value and where it came from.
    Show(Whose),
    /// Print the path of the configuration file.
    Path(Whose),
}

#[derive(Debug, Args)]
struct Whose {
    /// What a daemon would start with, even if one runs with something else.
    #[arg(long)]
    file: bool,
}

impl Config {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match self.action {
            Action::Show(whose) => {
                let (view, runs) = view(context, &whose).await?;
                if !context.json {
                    let whose =
                        if runs { "of the daemon that runs" } else { "that a daemon would start with" };
                    context.screen.note(&format!("the configuration {whose}: {}", view.file))?;
                }
                context.show_value(&view.values, |screen, values| screen.table(&settings_table(values)))
            }
            Action::Path(whose) => path(context, &whose).await,
        }
    }
}

async fn path(context: &mut Context, whose: &Whose) -> Result<u8, Failure> {
    // A daemon of the machine does not tell its users, and one of an earlier version cannot.
    let hides = |failure: &Failure| failure.has_code(Code::Forbidden) || failure.has_code(Code::NoSuchRoute);
    let (found, is_told) = match of_daemon(context, whose).await {
        Err(failure) if hides(&failure) => (None, false),
        found => (found?, true),
    };
    let file = match found {
        Some(view) => PathBuf::from(view.file),
        // Not read: a file with mistakes has a path, too.
        None => context.config().unwrap_or(context.paths.config_file()).to_owned(),
    };
    let there = file.exists();
    context.show_value(&json!({ "file": file.display().to_string(), "exists": there }), |screen, _| {
        screen.line(&file.display().to_string())?;
        if !is_told {
            screen.note("the daemon that runs does not tell its file; one of your own would read this")?;
        }
        if there { Ok(()) } else { screen.note("it is not there, so the defaults hold") }
    })
}

/// The configuration, and whether it is that of a daemon that runs.
async fn view(context: &Context, whose: &Whose) -> Result<(ConfigView, bool), Failure> {
    if let Some(view) = of_daemon(context, whose).await? {
        return Ok((view, true));
    }
    let loaded = load(context.config(), &context.paths).map_err(|e| {
        Failure::usage(e.to_string()).hint("`belljar config path --file` names the file to edit")
    })?;
    let file = context.config().unwrap_or(context.paths.config_file());
    Ok((ConfigView { file: file.display().to_string(), values: loaded.views() }, false))
}

/// What the daemon in use says of its configuration, if one runs.
async fn of_daemon(context: &Context, whose: &Whose) -> Result<Option<ConfigView>, Failure> {
    if whose.file || !is_served(context).await {
        return Ok(None);
    }
    let named = context.config().filter(|_| !context.json).map(ToOwned::to_owned);
    let client = context.client_of_running_daemon().with_config(named);
    let answer = client.get("/v1/config").await.map_err(|failure| {
        if failure.has_code(Code::Forbidden) {
            return failure.hint("`--file` shows what a daemon of your own would start with");
        }
        failure
    })?;
    answer.parse().map(Some)
}

fn settings_table(values: &BTreeMap<String, ConfigValue>) -> Table {
    let rows = values.iter().map(|(key, found)| match &found.from {
        Some(from) => [key.clone(), clipped(&found.value.to_string(), VALUE_CHARS), from.clone()],
        None => [key.clone(), "-".to_owned(), "not set".to_owned()],
    });
    Table::new(["KEY", "VALUE", "FROM"], rows)
}

/// Show your quotas, and what uses them.
#[derive(Debug, Args)]
pub(in crate::cli) struct Quota {
    /// Show the quotas of another user, by name or number; for administrators.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Quota {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = match &self.user {
            None => "/v1/quota".to_owned(),
            Some(user) if user.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) => {
                format!("/v1/quota?user={user}")
            }
            Some(_) => return Err(Failure::usage("this is no name of a user")),
        };
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, view: QuotaView| screen.table(&quota_table(&view.quotas)))
    }
}

fn quota_table(quotas: &[QuotaUsage]) -> Table {
    let cells = |quota: &QuotaUsage| {
        let show = |amount: u64| amount_of(quota.unit, amount);
        let by: Vec<String> =
            quota.by.iter().map(|share| format!("{} {}", share.by, show(share.amount))).collect();
        [quota.kind.to_string(), show(quota.used), or_dash(quota.limit.map(show)), by.join(", ")]
    };
    Table::new(["QUOTA", "USED", "OF", "BY"], quotas.iter().map(cells))
}

fn amount_of(unit: Unit, amount: u64) -> String {
    match unit {
        Unit::Count => amount.to_string(),
        Unit::Bytes => size(amount),
        Unit::Millicpus => {
            let text = format!("{}.{:03}", amount / 1000, amount % 1000);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// Show the version of Belljar, and of the daemon if it runs.
#[derive(Debug, Args)]
pub(in crate::cli) struct Version {}

impl Version {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = env!("CARGO_PKG_VERSION");
        let daemon = match context.client_of_running_daemon().get("/v1/version").await {
            Ok(answer) => Some(answer.parse::<api::Version>()?),
            // The daemon does not run, which is fine here, or does not answer, which `daemon status` reports.
            Err(_) => None,
        };
        context.show_value(&json!({ "version": client, "daemon": daemon }), |screen, _| {
            screen.line(&format!("belljar {client}"))?;
            screen.line(&match &daemon {
                Some(daemon) => format!(
                    "daemon {} (bridge {}, engine {})",
                    daemon.version,
                    daemon.bridge,
                    daemon.engine.as_deref().unwrap_or("not there")
                ),
                None => "daemon not running".to_owned(),
            })
        })
    }
}

#[cfg(test)]
mod config_tests {
    use super::*;
    use crate::config::load_text;

    #[test]
    fn each_value_says_where_it_came_from() {
        let text = "[sandbox]\nmemory = '2GiB'\n[model.m]\nprovider = 'vllm'\nmodel = 'x'\n";
        let loaded = load_text(std::path::Path::new("/c.toml"), text).unwrap();
        let all = json!(loaded.views());
        assert_eq!(all["sandbox.memory"], json!({ "value": "2GiB", "from": "/c.toml" }));
        assert_eq!(all["sandbox.pids"], json!({ "value": 256, "from": "the defaults" }));
        assert_eq!(all["sandbox.image"], json!({ "value": null, "from": null }));
        assert_eq!(all["model.m"]["value"], json!({ "provider": "vllm", "model": "x" }));
        let lines = settings_table(&loaded.views()).lines();
        assert!(lines.iter().any(|line| line.starts_with("sandbox.memory ") && line.ends_with("/c.toml")));
    }
}

#[cfg(test)]
mod quota_tests {
    use super::*;
    use crate::protocol::quota::{Kind, Share};

    #[test]
    fn quotas_are_shown_as_a_table() {
        let usage = |kind: Kind, used, limit, by: &[(&str, u64)]| QuotaUsage {
            kind,
            unit: kind.unit(),
            used,
            limit,
            by: by.iter().map(|(by, amount)| Share { by: (*by).to_owned(), amount: *amount }).collect(),
        };
        let table = quota_table(&[
            usage(Kind::Sessions, 2, Some(32), &[("a", 1), ("b", 1)]),
            usage(Kind::Cpus, 1500, Some(64_000), &[("a", 1500)]),
            usage(Kind::Memory, 3 << 30, None, &[]),
        ]);
        insta::assert_snapshot!(table.lines().join("\n"), @r"
        QUOTA                    USED   OF  BY
        sessions                 2      32  a 1, b 1
        CPUs                     1.5    64  a 1.5
        memory with checkpoints  3 GiB  -
        ");
    }
}

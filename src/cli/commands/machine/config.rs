//! `belljar config`: the effective settings, and where each was set.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::Table;
use crate::config::{Loaded, Written, load};
use crate::protocol::text::clipped;

/// Characters of a value that are shown, so that it fits in a row.
const VALUE_CHARS: usize = 60;

/// Show the configuration, and where each value came from.
///
/// It is what a daemon would start with. One that runs already keeps what it read.
#[derive(Debug, Args)]
pub(in crate::cli) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show every value and where it came from.
    Show,
    /// Print the path of the configuration file.
    Path,
}

impl Config {
    #[expect(clippy::unused_async, reason = "all commands are run in the same way")]
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match self.action {
            Action::Show => show(context),
            Action::Path => path(context),
        }
    }
}

fn path(context: &mut Context) -> Result<u8, Failure> {
    let file = context.config().unwrap_or(context.paths.config_file()).to_owned();
    let there = file.exists();
    context.show_value(&json!({ "file": file.display().to_string(), "exists": there }), |screen, _| {
        screen.line(&file.display().to_string())?;
        if there { Ok(()) } else { screen.note("it is not there, so the defaults hold") }
    })
}

fn show(context: &mut Context) -> Result<u8, Failure> {
    let loaded = load(context.config(), &context.paths)
        .map_err(|e| Failure::usage(e.to_string()).hint("`belljar config path` names the file to edit"))?;
    context.show_value(&as_json(&loaded), |screen, _| screen.table(&table(&loaded)))
}

/// Values that are not set anywhere have a null value and a null source.
fn as_json(loaded: &Loaded) -> Value {
    let entry = |written: &Written| json!({ "value": written.value, "from": written.source.to_string() });
    let nothing = || json!({ "value": null, "from": null });
    let entries: Map<String, Value> = loaded
        .values
        .iter()
        .map(|(key, written)| (key.clone(), written.as_ref().map_or_else(nothing, entry)))
        .collect();
    Value::Object(entries)
}

fn table(loaded: &Loaded) -> Table {
    let rows = loaded.values.iter().map(|(key, written)| match written {
        Some(written) => {
            [key.clone(), clipped(&written.value.to_string(), VALUE_CHARS), written.source.to_string()]
        }
        None => [key.clone(), "-".to_owned(), "not set".to_owned()],
    });
    Table::new(["KEY", "VALUE", "FROM"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    #[test]
    fn each_value_says_where_it_came_from() {
        let text = "[sandbox]\nmemory = '2GiB'\n[model.m]\nprovider = 'vllm'\nmodel = 'x'\n";
        let loaded = load_text(std::path::Path::new("/c.toml"), text).unwrap();
        let all = as_json(&loaded);
        assert_eq!(all["sandbox.memory"], json!({ "value": "2GiB", "from": "/c.toml" }));
        assert_eq!(all["sandbox.pids"], json!({ "value": 256, "from": "the defaults" }));
        assert_eq!(all["sandbox.image"], json!({ "value": null, "from": null }));
        assert_eq!(all["model.m"]["value"], json!({ "provider": "vllm", "model": "x" }));
        let lines = table(&loaded).lines();
        assert!(lines.iter().any(|line| line.starts_with("sandbox.memory ") && line.ends_with("/c.toml")));
    }
}

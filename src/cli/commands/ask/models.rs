//! `belljar models`: the models that can be asked.

use clap::Args;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::Table;
use crate::protocol::ask::{ModelList, ModelView};

/// List the models of the configuration.
#[derive(Debug, Args)]
pub(in crate::cli) struct Models {}

impl Models {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get("/v1/models").await?;
        context.show(&answer, |screen, list: ModelList| match list.models.as_slice() {
            [] => screen.note("no models; describe one as `[model.NAME]` in the configuration"),
            models => screen.table(&table(models)),
        })
    }
}

/// The replies that a provider plays back without asking any model.
pub(in crate::cli) fn played(provider: &str) -> Option<&'static str> {
    match provider {
        "script" => Some("answers written by hand"),
        "replay" => Some("answers recorded before"),
        _ => None,
    }
}

fn table(models: &[ModelView]) -> Table {
    let cells = |model: &ModelView| {
        let key = model.missing_key.as_ref().map(|variable| format!("the daemon lacks the key `{variable}`"));
        [
            model.name.clone(),
            model.provider.clone(),
            model.model.clone(),
            if model.default { "yes" } else { "" }.to_owned(),
            key.or_else(|| played(&model.provider).map(ToOwned::to_owned)).unwrap_or_default(),
        ]
    };
    Table::new(["NAME", "PROVIDER", "MODEL", "DEFAULT", "NOTE"], models.iter().map(cells))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_shown_as_a_table() {
        let model = |name: &str, provider: &str, missing_key: Option<&str>| ModelView {
            name: name.into(),
            provider: provider.into(),
            model: format!("{name}-1"),
            default: name == "qwen",
            missing_key: missing_key.map(Into::into),
        };
        let table = table(&[
            model("qwen", "dashscope", Some("DASHSCOPE_API_KEY")),
            model("local", "ollama", None),
            model("demo", "script", None),
        ]);
        insta::assert_snapshot!(table.lines().join("\n"), @r"
        NAME   PROVIDER   MODEL    DEFAULT  NOTE
        qwen   dashscope  qwen-1   yes      the daemon lacks the key `DASHSCOPE_API_KEY`
        local  ollama     local-1
        demo   script     demo-1            answers written by hand
        ");
    }
}

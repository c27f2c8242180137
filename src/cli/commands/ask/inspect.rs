//! Commands that show what asks work with: the conversation, the plan, models and tools.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::block::{Block, render};
use crate::cli::render::human::{Table, word};
use crate::cli::render::screen::Tint;
use crate::protocol::ask::{ModelList, ModelView, PlanVersion, PlanView, ToolList};
use crate::protocol::chat::{Message, ModelTool};
use crate::protocol::text::{clipped, one_line};
use crate::protocol::{ask, exit_codes as exit};

/// Show what was said between a session and its models, as the next ask continues it.
#[derive(Debug, Args)]
pub(in crate::cli) struct History {
    #[command(flatten)]
    session: SessionArg,
}

impl History {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get(&self.session.path("/history")?).await?;
        context.show(&answer, |screen, history: ask::History| {
            if history.messages.is_empty() {
                screen.note("nothing was said yet; ask with `belljar ask`")?;
            }
            history.messages.iter().try_for_each(|message| {
                screen.line(&screen.tinted(Tint::Bold, &head(message)))?;
                screen.guest_line(&body(message))
            })
        })
    }
}

/// `── tool · call_1`
fn head(message: &Message) -> String {
    let role = word(&message.role);
    match message.tool_call_id.as_ref().or(message.name.as_ref()) {
        Some(of) => format!("── {role} · {}", one_line(of)),
        None => format!("── {role}"),
    }
}

/// The text of the message, and a line for each call.
fn body(message: &Message) -> String {
    let content = Some(message.content.trim_end().to_owned()).filter(|content| !content.is_empty());
    let tools = message.tool_calls.iter();
    let tools = tools.map(|call| format!("→ {} {} {}", call.id, call.name, one_line(&call.arguments)));
    let functions = message.function_call.iter();
    let functions = functions.map(|call| format!("→ {} {}", call.name, one_line(&call.arguments)));
    content.into_iter().chain(tools).chain(functions).collect::<Vec<_>>().join("\n")
}

/// List the models of the configuration.
#[derive(Debug, Args)]
pub(in crate::cli) struct Models {}

impl Models {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get("/v1/models").await?;
        context.show(&answer, |screen, list: ModelList| match list.models.as_slice() {
            [] => screen.note("no models; describe one as `[model.NAME]` in the configuration"),
            models => screen.table(&model_table(models)),
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

fn model_table(models: &[ModelView]) -> Table {
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

/// Characters of a description in the list.
const DESCRIPTION_CHARS: usize = 80;

/// List the tools that models and code may call, or show one.
#[derive(Debug, Args)]
pub(in crate::cli) struct Tools {
    /// The tool to show with its parameters.
    name: Option<String>,
}

impl Tools {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get("/v1/tools").await?;
        let Some(name) = self.name else {
            return context.show(&answer, |screen, list: ToolList| screen.table(&tool_table(&list.tools)));
        };
        let list: ToolList = answer.parse()?;
        let tool = list.tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
            Failure::new(format!("there is no tool `{name}`")).hint("`belljar tools` lists them")
        })?;
        context.show_value(tool, |screen, tool| screen.guest_line(&described(tool)))
    }
}

fn tool_table(tools: &[ModelTool]) -> Table {
    let about = |tool: &ModelTool| tool.description.lines().next().unwrap_or_default().to_owned();
    let cells = |tool: &ModelTool| [tool.name.clone(), clipped(&about(tool), DESCRIPTION_CHARS)];
    Table::new(["NAME", "DESCRIPTION"], tools.iter().map(cells))
}

fn described(tool: &ModelTool) -> String {
    let parameters = serde_json::to_string_pretty(&tool.parameters).unwrap_or_default();
    format!("{}\n\n{}\n\n{parameters}\n", tool.name, tool.description.trim_end())
}

#[cfg(test)]
mod history_tests {
    use super::*;
    use crate::protocol::chat::Role;
    use crate::protocol::chat::ToolCall;

    #[test]
    fn messages_are_told_with_their_calls() {
        let mut call = Message::new(Role::Assistant, "");
        let arguments = "{\n  \"code\": \"1+1\"\n}".to_owned();
        call.tool_calls = vec![ToolCall { id: "c1".into(), name: "execute_python_code".into(), arguments }];
        let mut answer = Message::new(Role::Tool, "2\n");
        answer.tool_call_id = Some("c1".into());
        let all = [Message::new(Role::User, "how much?"), call, answer];
        insta::assert_snapshot!(all.map(|m| format!("{}\n{}", head(&m), body(&m))).join("\n"), @r#"
        ── user
        how much?
        ── assistant
        → c1 execute_python_code { "code": "1+1" }
        ── tool · c1
        2
        "#);
    }
}

#[cfg(test)]
mod models_tests {
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
        let table = model_table(&[
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

#[cfg(test)]
mod plan_tests {
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

#[cfg(test)]
mod tools_tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_are_listed_and_described() {
        let tool = ModelTool {
            name: "file_reader".into(),
            description: "Reads a file.\nOnly of the workspace.".into(),
            parameters: json!({"type": "object"}),
        };
        insta::assert_snapshot!(tool_table(std::slice::from_ref(&tool)).lines().join("\n"), @r"
        NAME         DESCRIPTION
        file_reader  Reads a file.
        ");
        insta::assert_snapshot!(described(&tool), @r#"
        file_reader

        Reads a file.
        Only of the workspace.

        {
          "type": "object"
        }
        "#);
    }
}

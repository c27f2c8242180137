//! `belljar ask`: a model works on a request until it answers.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::watch::{WatchEnd, watch};
use crate::cli::args::{SandboxArgs, SessionFlag, read_text, seconds, word};
use crate::cli::client::http::Client;
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::ask::inspect::played;
use crate::cli::commands::cell::run::{FirstSandbox, ThrowAway};
use crate::cli::commands::cell::stream::Stops;
use crate::cli::commands::session::cp::copy_workspace;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::block::{Block, Section};
use crate::cli::render::human::age;
use crate::cli::render::screen::Screen;
use crate::protocol::api::{FolderView, SessionView};
use crate::protocol::ask::{
    ApprovalPolicy, AskEnd, AskLimitsWanted, AskView, Dialect, Language, ModelList, ModelView, NewAsk,
};
use crate::protocol::event::phrases;
use crate::protocol::exit_codes::ask_exit_code;
use crate::protocol::values;

/// Ask a model, which may run Python in a session until it knows the answer.
///
/// What it does is shown on stderr, the answer alone goes to stdout. Ctrl-C cancels; a second one leaves.
#[derive(Debug, Args)]
pub(in crate::cli) struct Ask {
    #[command(flatten)]
    session: SessionFlag,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// A model of the configuration; see `belljar models`.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// How the model says what it wants.
    #[arg(long, value_parser = word::<Dialect>())]
    dialect: Option<Dialect>,
    /// The language of what the model is told.
    #[arg(long, value_parser = word::<Language>())]
    language: Option<Language>,
    /// When you are asked: never (`auto`), before every cell (`ask`), or `tools:NAME,NAME`.
    #[arg(long, value_name = "WHEN", value_parser = approval)]
    approval: Option<ApprovalPolicy>,
    /// A tool that may be used; all, if none is named. See `belljar tools`.
    #[arg(long = "tool", value_name = "NAME")]
    tools: Vec<String>,
    /// A JSON Schema: the answer will be JSON of that kind.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// A JSON object whose values become variables.
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,
    /// Let only code run that passes the check of the restricted policy.
    #[arg(long)]
    restricted: bool,
    /// Requests to the model at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    steps: Option<u32>,
    /// Replies one after the other of whose cells and tools none may work.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    max_failures: Option<u32>,
    /// Tokens at most, of all requests and replies together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    max_tokens: Option<u64>,
    /// How long it may take, for example 5min; waiting for you does not count.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    time: Option<f64>,
    /// Forget the conversation so far.
    #[arg(long)]
    fresh: bool,
    /// An empty folder, or a new one, for the files that it made, for an ask without a session. Without this, a session with
    /// files stays for its idle time.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Do not wait: print the number of the ask, for `belljar wait --ask`.
    #[arg(long)]
    detach: bool,
    /// The request, `-` to read it from stdin, or `@NAME` for a template of the configuration.
    text: String,
    /// Parameters of the template. A value that is JSON is taken as such, any other as text.
    #[arg(value_name = "NAME=VALUE")]
    parameters: Vec<String>,
}

impl Ask {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let named = self.session.named()?;
        if named.is_some() && self.sandbox.is_given() {
            return Err(Failure::usage("a session that is there keeps the sandbox that it was made with")
                .hint("leave the flags of the sandbox out, or the session"));
        }
        if named.is_none() && self.detach {
            return Err(
                Failure::usage("`--detach` needs a session that stays").hint("name one with `-s NAME`")
            );
        }
        if let (Some(session), Some(_)) = (&named, &self.out) {
            return Err(Failure::usage("`--out` is for an ask without a session")
                .hint(format!("files of `{session}` stay in it: `belljar cp {session}: DIR` copies them")));
        }
        if self.sandbox.workspace.is_some() && self.out.is_some() {
            return Err(Failure::usage("with `--workspace` the files are in that folder already")
                .hint("leave `--out` out"));
        }
        if let Some(out) = &self.out {
            check_out(out)?;
        }
        let ask = self.request()?;
        let client = context.client();
        let models: ModelList = client.get("/v1/models").await?.parse()?;
        // From here on no signal may end this process before its throw-away session is removed again.
        let mut stops = Stops::new()?;
        let Some(session) = named else {
            // The caller's own folder keeps the files by itself.
            let keeps_files = self.sandbox.workspace.is_none();
            let session = ThrowAway::make(context, &client, self.sandbox, FirstSandbox::WhenNeeded).await?;
            let asked = ask_in(context, &client, &session.name, &ask, &models, &mut stops).await;
            // An ask that was left ends with its session.
            let has_ended = asked.as_ref().map_or(true, |asked| asked.has_ended);
            if keeps_files && has_ended {
                let handed_over = tokio::select! {
                    handed_over = hand_over(context, &client, &session, self.out.as_deref()) => Some(handed_over),
                    _ = stops.next() => None,
                };
                match handed_over {
                    Some(Ok(true)) => return asked.map(|asked| asked.code),
                    Some(Ok(false)) => {}
                    not_done => {
                        // Whatever went wrong, the files are not lost with it.
                        let stays = session.leave(&client).await.is_ok().then_some(&session.name);
                        return not_handed_over(context, asked, not_done.and_then(Result::err), stays);
                    }
                }
            }
            session.remove(&client).await.iter().try_for_each(|warning| context.screen.warn(warning))?;
            return asked.map(|asked| asked.code);
        };
        if self.detach {
            let answer = client.post(&format!("/v1/sessions/{session}/asks"), &ask).await?;
            return context.show(&answer, |screen, view: AskView| screen.line(&view.ask.to_string()));
        }
        let asked = ask_in(context, &client, &session, &ask, &models, &mut stops).await?;
        Ok(asked.code)
    }

    fn request(&self) -> Result<NewAsk, Failure> {
        let (text, template) = match self.text.strip_prefix('@') {
            Some("") => return Err(Failure::usage("`@` needs the name of a template behind it")),
            Some(name) => (String::new(), Some(name.to_owned())),
            None if self.text == "-" => (read_text("-".as_ref(), "file")?, None),
            None => (self.text.clone(), None),
        };
        if let (None, Some(extra)) = (&template, self.parameters.first()) {
            return Err(Failure::usage(format!("`{extra}` belongs to no template"))
                .hint("put the whole request in quotes, or name a template as `@NAME`"));
        }
        let context = match self.context.as_deref().map(json_file).transpose()? {
            None => Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => return Err(Failure::usage("the context is no JSON object such as `{\"x\": 1}`")),
        };
        Ok(NewAsk {
            text,
            template,
            parameters: parameters(&self.parameters)?,
            model: self.model.clone(),
            dialect: self.dialect,
            language: self.language,
            approval: self.approval.clone(),
            tools: (!self.tools.is_empty()).then(|| self.tools.clone()),
            schema: self.schema.as_deref().map(json_file).transpose()?,
            context,
            restricted: self.restricted.then_some(true),
            limits: AskLimitsWanted {
                steps: self.steps,
                failures: self.max_failures,
                tokens: self.max_tokens,
                seconds: self.time,
            },
            fresh: self.fresh,
        })
    }
}

/// The exit code of an ask, and whether it has ended or was only left.
struct Asked {
    code: u8,
    has_ended: bool,
}

/// Refuses a folder that has files already: code of a model could replace them.
fn check_out(out: &Path) -> Result<(), Failure> {
    let is_free = match std::fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if is_free {
        return Ok(());
    }
    let what =
        format!("`{}` is no empty folder, and files of an ask could replace others there", out.display());
    Err(Failure::usage(what).hint("name a folder that is empty, or not there yet"))
}

/// Hands the files over that an ask without a session has made: into a folder, or by leaving the session as it is. Gives
/// whether the session stays.
async fn hand_over(
    context: &mut Context,
    client: &Client,
    session: &ThrowAway,
    out: Option<&Path>,
) -> Result<bool, Failure> {
    let name = &session.name;
    let folder: FolderView = client.get(&format!("/v1/sessions/{name}/files")).await?.parse()?;
    if folder.entries.is_empty() {
        return Ok(false);
    }
    if let Some(out) = out {
        let left_out = copy_workspace(context, name, out).await?;
        let out = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
        context.screen.note(&format!("files: {}", out.display()))?;
        if left_out == 0 {
            return Ok(false);
        }
    }
    let view: SessionView = client.get(&format!("/v1/sessions/{name}")).await?.parse()?;
    session.leave(client).await?;
    context.screen.note(&format!(
        "its files stay in the session `{name}` until that was not used for {}: `belljar cp {name}: DIR` copies them, \
         `belljar ask -s {name}` goes on",
        age(view.limits.idle_s)
    ))?;
    Ok(true)
}

/// What to say and to exit with if files were not handed over: for a failure, or because a person did not want to wait.
/// The latter takes nothing away from how the ask ended.
fn not_handed_over(
    context: &mut Context,
    asked: Result<Asked, Failure>,
    failure: Option<Failure>,
    stays_in: Option<&SessionKey>,
) -> Result<u8, Failure> {
    let hint =
        stays_in.map(|name| format!("the files are still there: `belljar cp {name}: DIR` copies them"));
    let hinted = |failure: Failure| match &hint {
        Some(hint) => failure.hint(hint.clone()),
        None => failure,
    };
    let asked = asked.map_err(hinted)?;
    if let Some(failure) = failure {
        return Err(hinted(failure));
    }
    context.screen.warn("the files were not copied: it was interrupted")?;
    hint.iter().try_for_each(|hint| context.screen.note(hint))?;
    Ok(asked.code)
}

async fn ask_in(
    context: &mut Context,
    client: &Client,
    session: &SessionKey,
    ask: &NewAsk,
    models: &ModelList,
    stops: &mut Stops,
) -> Result<Asked, Failure> {
    // Not as a stream, so that the ask's number is known, and the ask can be cancelled, before its first event.
    let view: AskView = client.post(&format!("/v1/sessions/{session}/asks"), ask).await?.parse()?;
    if let Some(model) = models.models.iter().find(|model| model.name == view.model) {
        context.screen.note(&model_line(model))?;
    }
    match watch(context, client, session, &view, stops).await? {
        WatchEnd::Left(code) => Ok(Asked { code, has_ended: false }),
        WatchEnd::Ended { end, is_shown } => {
            if !context.json {
                show_end(&mut context.screen, &end, is_shown)?;
            }
            Ok(Asked { code: ask_exit_code(end.outcome), has_ended: true })
        }
    }
}

/// Writes the answer to stdout and everything else about the end to stderr. An answer that was already shown on
/// the same terminal is not repeated.
pub(in crate::cli) fn show_end(screen: &mut Screen, end: &AskEnd, is_shown: bool) -> Result<(), Failure> {
    let tally = format!("{}, {} tokens", phrases::steps(end.steps), end.usage.total());
    if let Some(why) = phrases::why_unanswered(end) {
        screen.error(&why)?;
        return screen.note(&tally);
    }
    if is_shown && end.value.is_none() && screen.is_one_terminal() {
        return screen.show(&Block::Head(Section::Answer, format!("· above · {tally}")));
    }
    screen.show(&Block::Head(Section::Answer, format!("· {tally}")))?;
    match (&end.value, &end.answer) {
        (Some(value), _) => screen.guest_line(&value.to_string()),
        (None, Some(answer)) => screen.guest_line(answer.trim_end()),
        (None, None) => Ok(()),
    }
}

/// Which model is used; a model that only plays back prepared replies is named as such.
fn model_line(model: &ModelView) -> String {
    match played(&model.provider) {
        Some(what) => format!(
            "model `{}`: {what} (provider `{}`); set `[agent] model` to use a real one",
            model.name, model.provider
        ),
        None => format!("model `{}`: {} ({})", model.name, model.model, model.provider),
    }
}

fn approval(text: &str) -> Result<ApprovalPolicy, String> {
    let tools = || {
        let names = text.strip_prefix("tools:")?.split(',').map(|name| name.trim().to_owned());
        let names: Vec<String> = names.collect();
        names.iter().all(|name| !name.is_empty()).then_some(ApprovalPolicy::Tools(names))
    };
    ApprovalPolicy::named(text)
        .or_else(tools)
        .ok_or_else(|| "it has to be `auto`, `ask` or `tools:NAME,NAME`".to_owned())
}

fn parameters(given: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut all = Map::new();
    for text in given {
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(Failure::usage(format!("`{text}` is no parameter such as `name=value`")));
        };
        values::check_integers(value).map_err(|e| Failure::usage(format!("`{name}`: {e}")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        if all.insert(name.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("the parameter `{name}` is given twice")));
        }
    }
    Ok(all)
}

fn json_file(path: &Path) -> Result<Value, Failure> {
    values::from_json(&read_text(path, "file")?)
        .map_err(|e| Failure::usage(format!("`{}` is no JSON that can be used: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::entry::{Cli, Command};
    use crate::cli::render::screen::Color;
    use crate::config::Paths;
    use crate::protocol::exit_codes as exit;
    use clap::Parser as _;
    use serde_json::json;

    fn request(words: &[&str]) -> Result<NewAsk, u8> {
        let cli = Cli::try_parse_from(["belljar", "ask"].iter().chain(words)).map_err(|_| exit::USAGE)?;
        let Command::Ask(ask) = cli.command else { panic!("not ask") };
        ask.request().map_err(|failure| failure.exit)
    }

    #[test]
    fn a_request_is_made_of_its_flags() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("context.json");
        std::fs::write(&file, "{\"x\": 1}").unwrap();
        let file = file.to_str().unwrap();
        let line = "--model m --dialect xml_tags --language zh --approval tools:a,b --tool t --tool u --restricted \
                    --steps 3 --max-failures 2 --max-tokens 500 --time 1min --fresh";
        let words: Vec<&str> =
            line.split_whitespace().chain(["--context", file, "--schema", file, "how much?"]).collect();
        let expected = NewAsk {
            text: "how much?".into(),
            template: None,
            parameters: Map::new(),
            model: Some("m".into()),
            dialect: Some(Dialect::XmlTags),
            language: Some(Language::Chinese),
            approval: Some(ApprovalPolicy::Tools(vec!["a".into(), "b".into()])),
            tools: Some(vec!["t".into(), "u".into()]),
            schema: Some(json!({"x": 1})),
            context: [("x".to_owned(), json!(1))].into_iter().collect(),
            restricted: Some(true),
            limits: AskLimitsWanted {
                steps: Some(3),
                failures: Some(2),
                tokens: Some(500),
                seconds: Some(60.0),
            },
            fresh: true,
        };
        assert_eq!(request(&words), Ok(expected));
        assert_eq!(request(&["x"]), Ok(NewAsk { text: "x".into(), ..NewAsk::default() }));
    }

    #[test]
    fn an_interruption_while_files_are_copied_keeps_the_exit_code() {
        let paths =
            Paths::discover(false, &|name| (name == "BELLJAR_HOME").then(|| "/tmp/x".into())).unwrap();
        let mut context = Context::new(Screen::new(Color::Never), true, paths, None, None);
        let name = SessionKey::parse("s").unwrap();
        let mut exits = |code: u8, failure: Option<Failure>| {
            let asked = Ok(Asked { code, has_ended: true });
            not_handed_over(&mut context, asked, failure, Some(&name)).map_err(|failure| failure.exit)
        };
        assert_eq!((exits(0, None), exits(1, None)), (Ok(0), Ok(1)));
        assert_eq!(exits(0, Some(Failure::new("the disk is full"))), Err(125));
    }

    #[test]
    fn a_template_takes_parameters() {
        let asked = request(&["@sum", "a=1", "b=[1, 2]", "c=a=b", "d=", "e=\"1\""]).unwrap();
        assert_eq!((asked.template.as_deref(), asked.text.as_str()), (Some("sum"), ""));
        assert_eq!(
            Value::Object(asked.parameters),
            json!({"a": 1, "b": [1, 2], "c": "a=b", "d": "", "e": "1"})
        );
        for wrong in [&["@sum", "a"][..], &["@sum", "=1"], &["@sum", "a=1", "a=2"], &["@"], &["two", "words"]]
        {
            assert_eq!(request(wrong), Err(64), "{wrong:?}");
        }
    }

    #[test]
    fn policies_are_words() {
        assert_eq!(approval("auto"), Ok(ApprovalPolicy::Auto));
        assert_eq!(approval("ask"), Ok(ApprovalPolicy::Ask));
        assert_eq!(approval("tools:a, b"), Ok(ApprovalPolicy::Tools(vec!["a".into(), "b".into()])));
        for wrong in ["", "always", "tools", "tools:", "tools:a,,b"] {
            assert!(approval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn models_are_named_for_what_they_are() {
        let model = |provider: &str| ModelView {
            name: "demo".into(),
            provider: provider.into(),
            model: "qwen-plus".into(),
            default: true,
            missing_key: None,
        };
        insta::assert_snapshot!(["script", "replay", "dashscope"].map(|name| model_line(&model(name))).join("\n"), @r"
        model `demo`: answers written by hand (provider `script`); set `[agent] model` to use a real one
        model `demo`: answers recorded before (provider `replay`); set `[agent] model` to use a real one
        model `demo`: qwen-plus (dashscope)
        ");
    }
}

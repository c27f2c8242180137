//! Turns a client's request into an ask specification in which every choice is made.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

use super::shared_budget::ParentBudget;
use super::templates;
use crate::agent::Setup;
use crate::config::{Agent, InstallPolicy, Model, Settings};
use crate::protocol::api::ImagePackages;
use crate::protocol::ask::{ApprovalPolicy, AskLimits, AskLimitsWanted, AskSpec, Dialect, Language, NewAsk};
use crate::protocol::chat::ModelTool;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;
use crate::protocol::tool_names::INSTALL_TOOL;
use crate::protocol::values;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::security_controls;
use crate::session::rules::{self, CellRules};
use crate::tools::Registry;

/// The most characters in the text of an ask.
const TEXT_CHARS: usize = 1_000_000;
/// The most bytes of all context values together.
const CONTEXT_BYTES: usize = 8 * 1024 * 1024;

/// The facts that a request is resolved against.
pub struct Circumstances<'a> {
    pub settings: &'a Settings,
    /// Tools that the session may use.
    pub tools: &'a Registry,
    /// The caller's bounds, if code or a model starts the ask.
    pub outer: Option<&'a Outer>,
    /// Whether a container or a jail isolates the sandbox. If not, code is shown to a person first by
    /// default.
    pub contained: bool,
}

/// The bounds of an ask that code or a model starts: the ask may do nothing that its caller may not do.
#[derive(Default)]
pub struct Outer {
    /// The rules of all code in the outer sandbox, because any of it may have begun this ask.
    pub rules: CellRules,
    /// The specification of the outer ask, if there is one.
    pub spec: Option<AskSpec>,
    /// The nesting depth of the new ask.
    pub depth: u32,
    /// What the outer ask has left of its limits; an inner ask never gets more.
    pub left: Option<AskLimits>,
    pub above: Option<ParentBudget>,
    /// The paths of files that the new ask finds in its workspace.
    pub files: Vec<String>,
    /// The functions of the caller that the new ask may call, whatever tools its caller may use.
    pub functions: Vec<String>,
}

/// The nesting depth of an ask within `outer`, if nesting is allowed.
pub fn may_nest(outer: Option<&Outer>, agent: &Agent) -> Result<u32, Problem> {
    let Some(outer) = outer else { return Ok(0) };
    let depth = outer.depth;
    if depth > agent.depth && security_controls::holds("asks_nest_to_a_depth") {
        return Err(bad(format!("asks nest at most {} deep", agent.depth))
            .hint("raise `agent.depth` in the configuration"));
    }
    if let (Some(spec), Some(AskLimits { steps: 0, .. })) = (&outer.spec, outer.left) {
        let most = spec.limits.steps;
        return Err(Problem::new(
            Code::ModelFailed,
            format!("of the {most} steps of the ask none is left for another one within it"),
        )
        .hint("give the ask more with `--steps`"));
    }
    Ok(depth)
}

pub fn resolve(new: NewAsk, around: &Circumstances<'_>) -> Result<AskSpec, Problem> {
    let agent = &around.settings.agent;
    let depth = may_nest(around.outer, agent)?;
    let template = templates::find(&new, around.settings)?;
    let (text, parameters) = match template {
        Some(template) => templates::filled(&new, template)?,
        None => (new.text, Map::new()),
    };
    let language = new.language.unwrap_or(agent.language);
    let text = match around.outer {
        Some(Outer { files, .. }) if !files.is_empty() => with_files(text, files, language),
        _ => text,
    };
    // Parameters are variables, too; a value of the context is meant where both have a name.
    let context: Map<String, Value> = parameters.into_iter().chain(new.context).collect();
    if text.trim().is_empty() {
        return Err(bad("the ask says nothing").hint("say in `text` what the model shall do"));
    }
    if text.chars().count() > TEXT_CHARS {
        return Err(Problem::new(Code::TooLarge, format!("an ask has at most {TEXT_CHARS} characters")));
    }
    values::check_names(&context)?;
    let context_bytes = serde_json::to_vec(&context).map_or(usize::MAX, |json| json.len());
    if context_bytes > CONTEXT_BYTES {
        return Err(Problem::new(Code::TooLarge, format!("the context has {context_bytes} bytes"))
            .hint(format!("at most {CONTEXT_BYTES}; put more into files of the workspace")));
    }
    let model = new.model.or_else(|| template.and_then(|template| template.model.clone()));
    let (model_name, model) = chosen_model(model, around.settings)?;
    let dialect = new.dialect.or_else(|| template.and_then(|template| template.dialect)).or(agent.dialect);
    let dialect = dialect.unwrap_or(model.dialect);
    let wanted = new.tools.or_else(|| template.and_then(|template| template.tools.clone()));
    let outer = around.outer.map(|outer| &outer.rules);
    let is_bound = outer.is_some_and(|outer| outer.restricted)
        && security_controls::holds("restriction_binds_asks_within");
    let by_default = || checked(default_approval(agent, around.contained), around.tools);
    let (approval, mut also_approve) = match around.outer {
        // The outer ask's policy was checked when it began; a tool that a client lent to that session is
        // unknown here.
        Some(Outer { rules, spec, .. }) => {
            let of_template = template.and_then(|template| template.approval.clone());
            let of_template = of_template.map(|policy| checked(policy, around.tools)).transpose()?;
            let usual = if spec.is_none() { Some(by_default()?) } else { None };
            let policies = of_template.iter().chain(&usual);
            policies
                .fold(rules.clone(), |rules, policy| rules.tightened(&CellRules::of_policy(policy)))
                .policy()
        }
        None => match new.approval.or_else(|| template.and_then(|template| template.approval.clone())) {
            Some(wanted) => (checked(wanted, around.tools)?, Vec::new()),
            None => (by_default()?, Vec::new()),
        },
    };
    let schema = new.schema.or_else(|| template.and_then(|template| template.schema.clone()));
    if let Some(schema) = &schema {
        // The model controls the value that is validated, so the schema must not allow endless validation.
        crate::tools::check_schema(schema)
            .map_err(|problem| bad(format!("the schema of the answer cannot be used: {problem}")))?;
    }
    let lean = wanted.is_none() && agent.tools.is_none();
    let mut tools = tools(wanted, around.tools)?;
    let allowed = outer.and_then(|outer| outer.allowed.as_ref());
    tools.retain(|name| allowed.is_none_or(|allowed| allowed.contains(name)));
    for function in around.outer.iter().flat_map(|outer| &outer.functions) {
        if !tools.contains(function) && around.tools.definition(function).is_some() {
            tools.push(function.clone());
        }
    }
    let installs = |name: &String| name == INSTALL_TOOL;
    let by_models = around.settings.packages.by_models;
    if by_models == InstallPolicy::Never && security_controls::holds("models_install_by_policy") {
        tools.retain(|name| !installs(name));
    }
    let is_named = also_approve.iter().any(installs) || !tools.iter().any(installs);
    if by_models == InstallPolicy::Ask && !is_named && security_controls::holds("models_install_by_policy") {
        also_approve.push(INSTALL_TOOL.into());
    }
    // Into a sandbox that nothing contains none is installed, so a model is not told how to. The rule above is for its code,
    // which may move to another one.
    if !around.contained {
        tools.retain(|name| !installs(name));
    }
    Ok(AskSpec {
        text,
        model: model_name,
        dialect,
        language,
        approval,
        also_approve,
        tools,
        lean,
        schema,
        context,
        system: template.and_then(|template| template.system.clone()),
        restricted: new.restricted.unwrap_or(false) || is_bound,
        limits: limits(
            templates::limits(new.limits, template),
            dialect,
            agent,
            around.outer.and_then(|outer| outer.left),
        )?,
        fresh: new.fresh,
        depth,
    })
}

/// The text of an ask, and which files its caller has put into its workspace.
fn with_files(text: String, files: &[String], language: Language) -> String {
    if text.trim().is_empty() {
        return text;
    }
    let names: Vec<String> = files.iter().map(|path| format!("`{}`", quotable(path))).collect();
    match language {
        Language::English => format!("{text}\n\nFiles in your workspace: {}.", names.join(", ")),
        Language::Chinese => format!("{text}\n\n你的工作区中有这些文件：{}。", names.join("、")),
    }
}

/// The machine's setup beside the ask itself. `prompt` replaces the built-in one.
pub fn setup(
    settings: &Settings,
    spec: &AskSpec,
    tools: &Registry,
    dependencies: ImagePackages,
    prompt: Option<String>,
) -> Setup {
    let agent = &settings.agent;
    let model = settings.models.get(&spec.model);
    let mut described = tools.model_tools(spec.language);
    let gone = spec.tools.iter().filter(|name| described.iter().all(|tool| tool.name != **name));
    let gone: Vec<ModelTool> = gone.map(|name| gone_tool(name)).collect();
    // A missing tool was a client's or came from the configuration; Belljar's own tools are never missing.
    let mut outside: BTreeSet<String> = gone.iter().map(|tool| tool.name.clone()).collect();
    outside.extend(
        tools.names().into_iter().filter(|name| tools.definition(name).is_some_and(|tool| tool.outside)),
    );
    described.extend(gone);
    Setup {
        tools: described,
        approvals: rules::of_model(spec, outside),
        malformed: agent.malformed,
        legacy_function_call: agent.legacy_function_call,
        told_chars: agent.told_chars,
        python: agent.python,
        degrade_after: agent.degrade_after,
        context_tokens: model.map_or(u64::MAX, |model| model.context_tokens),
        model_tools: model.is_none_or(|model| model.tools),
        vision: model.is_some_and(|model| model.vision),
        cell_timeout_s: settings.cells.timeout.as_secs_f64(),
        max_cell_timeout_s: settings.cells.max_timeout.as_secs_f64(),
        workspace: crate::sandbox::spec::WORKSPACE.to_owned(),
        dependencies,
        prompt,
    }
}

/// The text that replaces the built-in prompt. It is read again for each ask, so that it can be edited
/// without a restart; on a thread of the ask's owner, because its file system may answer late.
pub async fn read_prompt(agent: &Agent, owner: Principal) -> Result<Option<String>, Problem> {
    let Some(path) = agent.prompt.clone() else { return Ok(None) };
    let read = move || {
        std::fs::read_to_string(&path).map_err(|error| {
            bad(format!("the prompt `{}` cannot be read: {error}", path.display()))
                .hint("mend the file, or `agent.prompt` in the configuration")
        })
    };
    folders::run(owner, WorkKind::Look, None, read).await?.map(Some)
}

/// A placeholder for a tool that the ask may use but that is missing, such as one of a client that left. The
/// conversation may mention the tool, and a call of it still gets an answer.
fn gone_tool(name: &str) -> ModelTool {
    ModelTool {
        name: name.to_owned(),
        description: "Not there any more.".into(),
        parameters: serde_json::json!({"type": "object"}),
    }
}

fn chosen_model(wanted: Option<String>, settings: &Settings) -> Result<(String, &Model), Problem> {
    let known: Vec<&str> = settings.models.keys().map(String::as_str).collect();
    let Some(name) = wanted.or_else(|| default_model(settings).map(str::to_owned)) else {
        let problem = bad("no model is configured");
        return Err(if known.is_empty() {
            problem.hint(
                "write a `[model.NAME]` with a `provider` into the file that `belljar config path` names, for example `[model.qwen]` with `provider = \"dashscope\"`; `belljar daemon reload` has the daemon read it, and a new key in its environment needs `belljar daemon stop`",
            )
        } else {
            problem.hint(format!(
                "name one with `--model`, or set `agent.model`; known are: {}",
                known.join(", ")
            ))
        });
    };
    if let Some(model) = settings.models.get(&name) {
        return Ok((name, model));
    }
    Err(bad(format!("there is no model `{}`", quotable(&name))).hint(match known.as_slice() {
        [] => format!("write it into the configuration as `[model.{}]`", quotable(&name)),
        known => format!("known are: {}", known.join(", ")),
    }))
}

/// The model of an ask that names no model.
pub fn default_model(settings: &Settings) -> Option<&str> {
    let only = |models: &'_ crate::config::Named<Model>| models.len() == 1;
    settings
        .agent
        .model
        .as_deref()
        .or_else(|| settings.models.keys().next().map(String::as_str).filter(|_| only(&settings.models)))
}

/// What a person has to allow a model whose ask does not say it.
pub(in crate::actors) fn default_approval(agent: &Agent, contained: bool) -> ApprovalPolicy {
    match &agent.approval {
        ApprovalPolicy::Auto if !contained => ApprovalPolicy::Ask,
        policy => policy.clone(),
    }
}

/// Rejects unknown tools: a misspelt name would let the tool run without approval.
fn checked(policy: ApprovalPolicy, known: &Registry) -> Result<ApprovalPolicy, Problem> {
    match policy {
        ApprovalPolicy::Tools(names) => Ok(ApprovalPolicy::Tools(tools(Some(names), known)?)),
        ApprovalPolicy::Auto | ApprovalPolicy::Ask => Ok(policy),
    }
}

fn tools(wanted: Option<Vec<String>>, tools: &Registry) -> Result<Vec<String>, Problem> {
    let Some(wanted) = wanted else { return Ok(tools.names()) };
    let mut names = BTreeSet::new();
    for name in wanted {
        let Some(definition) = tools.definition(&name) else {
            return Err(bad(format!("there is no tool `{}` in this session", quotable(&name)))
                .hint(format!("known are: {}", tools.names().join(", "))));
        };
        names.insert(definition.name.clone());
    }
    Ok(names.into_iter().collect())
}

fn limits(
    wanted: AskLimitsWanted,
    dialect: Dialect,
    agent: &Agent,
    outer: Option<AskLimits>,
) -> Result<AskLimits, Problem> {
    let steps = if dialect == Dialect::NextStep { agent.next_step_steps } else { agent.limits.steps };
    let most = &agent.max_limits;
    let inner = AskLimits {
        steps: limit("steps", wanted.steps, steps, 1, most.steps)?,
        failures: limit("failures", wanted.failures, agent.limits.failures, 1, most.failures)?,
        tokens: limit("tokens", wanted.tokens, agent.limits.tokens, 1, most.tokens)?,
        seconds: limit("seconds", wanted.seconds, agent.limits.seconds, f64::MIN_POSITIVE, most.seconds)?,
    };
    let Some(outer) = outer else { return Ok(inner) };
    Ok(AskLimits {
        steps: inner.steps.min(outer.steps),
        failures: inner.failures.min(outer.failures),
        tokens: inner.tokens.min(outer.tokens),
        seconds: inner.seconds.min(outer.seconds),
    })
}

/// The wanted value if it is within the bounds, or else the usual one.
fn limit<T: PartialOrd + Copy + std::fmt::Display>(
    name: &str,
    wanted: Option<T>,
    usual: T,
    least: T,
    most: T,
) -> Result<T, Problem> {
    let Some(wanted) = wanted else { return Ok(usual) };
    if wanted >= least && wanted <= most {
        return Ok(wanted);
    }
    let setting = if name == "seconds" { "agent.max_time" } else { &format!("agent.max_{name}") };
    Err(bad(format!("a limit of {wanted} {name} is not possible"))
        .hint(format!("use more than 0 and at most {most}, or raise `{setting}` in the configuration")))
}

fn bad(message: impl Into<String>) -> Problem {
    Problem::new(Code::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent;
    use crate::config::load_text;

    #[test]
    fn asks_nest_as_deep_as_the_settings_say_and_no_deeper() {
        let settings = load_text(std::path::Path::new("x"), "[agent]\ndepth = 2\n").unwrap().settings;
        let at = |depth| {
            let outer = Outer { depth, ..Outer::default() };
            may_nest(Some(&outer), &settings.agent)
        };
        assert_eq!((at(1).unwrap(), at(2).unwrap()), (1, 2));
        let refused = at(3).unwrap_err();
        assert!(refused.message.contains("at most 2 deep"), "{refused:?}");
        assert_eq!(may_nest(None, &settings.agent).unwrap(), 0);
    }

    #[test]
    fn an_ask_within_is_told_of_its_files_and_may_call_the_functions_of_its_caller() {
        let text = "[model.m]\nprovider = \"ollama\"\nmodel = \"m\"\n\
                    [template.price]\nprompt = \"x\"\ndescription = \"Prices.\"\n";
        let settings = load_text(std::path::Path::new("x"), text).unwrap().settings;
        let tools = Registry::built_in().unwrap().with_templates(&settings.templates).unwrap();
        let allowed: Option<BTreeSet<String>> = Some(["execute_python_code".to_owned()].into());
        let resolved = |files: &[&str], functions: &[&str]| {
            let outer = Outer {
                rules: CellRules { allowed: allowed.clone(), ..CellRules::default() },
                files: files.iter().map(ToString::to_string).collect(),
                functions: functions.iter().map(ToString::to_string).collect(),
                ..Outer::default()
            };
            let around =
                Circumstances { settings: &settings, tools: &tools, outer: Some(&outer), contained: true };
            resolve(NewAsk { text: "hello".into(), ..NewAsk::default() }, &around).unwrap()
        };
        let plain = resolved(&[], &[]);
        assert_eq!((plain.text.as_str(), plain.tools), ("hello", vec!["execute_python_code".to_owned()]));
        let given = resolved(&["a.csv", "b/c.txt"], &["price", "gone"]);
        assert_eq!(given.text, "hello\n\nFiles in your workspace: `a.csv`, `b/c.txt`.");
        assert_eq!(given.tools, ["execute_python_code", "price"]);
    }

    #[test]
    fn an_ask_within_a_restricted_one_is_restricted_whatever_it_says() {
        let text = "[model.m]\nprovider = \"ollama\"\nmodel = \"m\"\n";
        let settings = load_text(std::path::Path::new("x"), text).unwrap().settings;
        let tools = Registry::built_in().unwrap();
        let is_restricted = |outer: bool, wanted: Option<bool>| {
            let rules = CellRules { restricted: outer, ..CellRules::default() };
            let outer = Outer { rules, ..Outer::default() };
            let around =
                Circumstances { settings: &settings, tools: &tools, outer: Some(&outer), contained: true };
            let new = NewAsk { text: "hello".into(), restricted: wanted, ..NewAsk::default() };
            resolve(new, &around).unwrap().restricted
        };
        assert!(
            is_restricted(true, None) && is_restricted(true, Some(false)) && is_restricted(true, Some(true))
        );
        assert!(!is_restricted(false, None) && is_restricted(false, Some(true)));
    }

    #[test]
    fn the_dialect_is_the_asks_or_the_settings_or_else_the_models() {
        let chosen = |config: &str, dialect| {
            let text = format!("[model.m]\nprovider = \"llama.cpp\"\n{config}");
            let mut settings = load_text(std::path::Path::new("x"), &text).unwrap().settings;
            settings.models.get_mut("m").unwrap().dialect = Dialect::XmlTags;
            let tools = Registry::built_in().unwrap();
            let around = Circumstances { settings: &settings, tools: &tools, outer: None, contained: true };
            let new = NewAsk { text: "hello".into(), dialect, ..NewAsk::default() };
            resolve(new, &around).unwrap().dialect
        };
        let set = "[agent]\ndialect = \"next_step\"\n";
        assert_eq!(chosen("", None), Dialect::XmlTags);
        assert_eq!(chosen(set, None), Dialect::NextStep);
        assert_eq!(chosen(set, Some(Dialect::JsonAction)), Dialect::JsonAction);
    }

    #[test]
    fn a_model_is_offered_packages_only_where_some_can_be_installed() {
        let text = "[model.m]\nprovider = \"ollama\"\nmodel = \"m\"\n";
        let settings = load_text(std::path::Path::new("x"), text).unwrap().settings;
        let tools = Registry::built_in().unwrap().narrowed(&crate::tools::Allowed::All).unwrap();
        for contained in [true, false] {
            let around = Circumstances { settings: &settings, tools: &tools, outer: None, contained };
            let spec = resolve(NewAsk { text: "hello".into(), ..NewAsk::default() }, &around).unwrap();
            assert_eq!(spec.tools.iter().any(|name| name == INSTALL_TOOL), contained);
        }
    }

    /// The estimated tokens of the first request of an ask that says hello.
    fn first_request_tokens(config: &str, dialect: Dialect) -> u64 {
        let text = format!("[model.m]\nprovider = \"ollama\"\nmodel = \"m\"\n{config}");
        let settings = load_text(std::path::Path::new("x"), &text).unwrap().settings;
        let tools = Registry::built_in().unwrap().narrowed(&crate::tools::Allowed::All).unwrap();
        let around = Circumstances { settings: &settings, tools: &tools, outer: None, contained: true };
        let new = NewAsk { text: "hello".into(), dialect: Some(dialect), ..NewAsk::default() };
        let spec = resolve(new, &around).unwrap();
        let main =
            ["matplotlib", "numpy", "openpyxl", "pandas", "pillow", "requests", "scikit-learn", "scipy"];
        let main: Vec<String> = main.map(str::to_owned).to_vec();
        let packages = ImagePackages { installed: main.clone(), main };
        let setup = setup(&settings, &spec, &tools, packages, None);
        let mut machine = agent::AskMachine::new(spec, setup, Vec::new());
        let effects = machine.step(agent::Input::Begin);
        let Some(agent::Effect::AskModel { tokens, .. }) = effects.last() else { panic!("{effects:#?}") };
        *tokens
    }

    #[test]
    fn the_first_request_of_an_ask_is_small_unless_all_tools_are_wanted() {
        const MOST_TOKENS: u64 = 1_200;
        for dialect in [Dialect::ToolCalls, Dialect::NextStep, Dialect::JsonAction, Dialect::XmlTags] {
            let lean = first_request_tokens("", dialect);
            let all = first_request_tokens("[agent]\ntools = [\"*\"]\n", dialect);
            assert!(lean <= MOST_TOKENS && all > lean, "{dialect:?}: {lean}, with all tools {all}");
        }
    }
}

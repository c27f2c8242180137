//! Reads `[tool.NAME]` and `[template.NAME]`.

use std::time::Duration;

use super::agent::{CommandTool, Model, Named, Template, TemplateParameter};
use super::entry::Entry;
use super::layer::Bytes;
use super::reader::Reader;
use crate::protocol::ask::AskLimitsWanted;
use crate::protocol::tool_names::is_tool_name;
use crate::protocol::values::is_ascii_identifier;
use crate::schema::Checker;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);
const OUTPUT: Bytes = Bytes(1024 * 1024);

impl Reader<'_> {
    pub fn command_tools(&mut self) -> Named<CommandTool> {
        self.named("tool", "tool.*", command_tool)
    }

    pub fn templates(&mut self, models: &Named<Model>) -> Named<Template> {
        self.named("template", "template.*", |entry| template(entry, models))
    }
}

fn command_tool(entry: &mut Entry<'_, '_>) -> Option<CommandTool> {
    if !is_tool_name(entry.name) {
        entry.whole("a tool's name has to be one in Python, too: letters, digits and `_`");
    }
    let description = entry.required::<String>("description");
    let parameters = entry.schema("parameters");
    let output = entry.schema("output");
    let argv = entry.required::<Vec<String>>("argv");
    let timeout = entry.positive_or("timeout", TIMEOUT);
    let output_bytes = entry.or("output_bytes", OUTPUT).0;
    let env = entry.or("env", Vec::<String>::new());
    let env_file = entry.path("env_file");
    let cwd = entry.path("cwd").unwrap_or_else(|| "/".into());
    let read_only = entry.or("read_only", false);
    let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
    entry.check("env", env.iter().all(is_name), "it lists names of variables; values belong into `env_file`");
    if parameters.as_ref().is_some_and(|schema| schema.get("type") != Some(&"object".into())) {
        entry.problem("parameters", "its `type` has to be \"object\"");
    }
    if argv.as_ref().is_some_and(|argv| argv.first().is_none_or(String::is_empty)) {
        entry.problem("argv", "it has to begin with a program");
    }
    let nothing = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    Some(CommandTool {
        description: description?,
        parameters: parameters.unwrap_or_else(nothing),
        output,
        argv: argv?,
        timeout,
        output_bytes,
        env,
        env_file,
        cwd,
        read_only,
    })
}

fn template(entry: &mut Entry<'_, '_>, models: &Named<Model>) -> Option<Template> {
    let prompt = entry.required::<String>("prompt");
    let declared = entry.json("parameters");
    let system = entry.text("system");
    let schema = entry.schema("schema");
    let tools = entry.optional::<Vec<String>>("tools");
    let model = entry.optional::<String>("model");
    let dialect = entry.optional("dialect");
    let approval = entry.optional("approval");
    let limits = AskLimitsWanted {
        steps: entry.optional("steps"),
        failures: entry.optional("failures"),
        tokens: entry.optional("tokens"),
        seconds: entry.optional::<Duration>("time").map(|time| time.as_secs_f64()),
    };
    let description = entry.text("description");
    let is_named = description.is_none() || is_tool_name(entry.name);
    entry.check("description", is_named, "a template that is a tool needs a name that is one in Python, too");
    let known = model.as_ref().is_none_or(|model| models.contains_key(model));
    entry.check("model", known, "there is no `[model.NAME]` of this name");
    let prompt = prompt?;
    let mut parameters = match declared.map(|declared| template_parameters(&declared)).transpose() {
        Ok(parameters) => parameters.unwrap_or_default(),
        Err(message) => {
            entry.problem("parameters", &message);
            return None;
        }
    };
    for name in placeholders(&prompt).map_err(|message| entry.problem("prompt", &message)).ok()? {
        parameters.entry(name).or_insert_with(|| TemplateParameter { schema: json!({}), default: None });
    }
    Some(Template {
        prompt,
        parameters,
        system,
        schema,
        tools,
        model,
        dialect,
        approval,
        limits,
        description,
    })
}

/// Parameters as a table: a JSON Schema each, or a type of Python with a default as in `"int = 3"`.
fn template_parameters(declared: &Value) -> Result<Named<TemplateParameter>, String> {
    let table = declared.as_object().ok_or("it has to be a table of parameters")?;
    let parameter = |(name, declared): (&String, &Value)| {
        if !is_ascii_identifier(name) {
            return Err(format!("`{name}` cannot be the name of a parameter"));
        }
        let parameter = match declared {
            Value::String(short) => short_parameter(short),
            schema => {
                let default = schema.get("default").cloned();
                crate::schema::check(schema).map(|()| TemplateParameter { schema: schema.clone(), default })
            }
        };
        Ok((name.clone(), parameter.map_err(|problem| format!("`{name}`: {problem}"))?))
    };
    table.iter().map(parameter).collect()
}

fn short_parameter(short: &str) -> Result<TemplateParameter, String> {
    let (name, default) = match short.split_once('=') {
        Some((name, default)) => (name, Some(default.trim())),
        None => (short, None),
    };
    let kind = match name.trim() {
        "any" => return Ok(TemplateParameter { schema: json!({}), default: default.map(json_or_text) }),
        "str" => "string",
        "int" => "integer",
        "float" => "number",
        "bool" => "boolean",
        "list" => "array",
        "dict" => "object",
        other => {
            return Err(format!(
                "`{other}` is no type; take str, int, float, bool, list, dict or any, or write a JSON Schema"
            ));
        }
    };
    let schema = json!({ "type": kind });
    let default = default.map(|text| if kind == "string" { Value::from(text) } else { json_or_text(text) });
    let problems = default.as_ref().and_then(|value| Some(Checker::new(&schema).ok()?.problems(value)));
    match problems.as_deref() {
        None | Some([]) => Ok(TemplateParameter { schema, default }),
        Some(_) => Err(format!("its default is no {}", name.trim())),
    }
}

fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// The names in braces, each once, in the order of their first use.
fn placeholders(prompt: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    let mut rest = prompt;
    while let Some(at) = rest.find(['{', '}']) {
        let (brace, after) = rest.split_at(at).1.split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            rest = after;
            continue;
        }
        let inside = (brace == "{").then(|| after.split_once('}')).flatten();
        let Some((name, after)) = inside.filter(|(name, _)| is_ascii_identifier(name)) else {
            return Err(
                "braces hold the name of a parameter; one that is meant as such is doubled".to_owned()
            );
        };
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        rest = after;
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::load::{ConfigError, Loaded, load_text};
    use super::*;
    use crate::protocol::ask::Dialect;
    use std::path::Path;

    fn with(text: &str) -> Result<Loaded, ConfigError> {
        load_text(Path::new("/etc/belljar/config.toml"), text)
    }

    #[test]
    fn a_program_of_the_host_is_a_tool() {
        let text = r#"
[tool.weather]
description = "Say the weather of a city."
argv = ["/usr/local/bin/weather", "--json"]
timeout = "5s"
env = ["WEATHER_KEY"]
env_file = "weather.env"
cwd = "/srv/weather"
read_only = true
parameters = { type = "object", required = ["city"], properties = { city = { type = "string" } } }
[tool.weather.output]
type = "number"
[tool.today]
description = "Say the date."
argv = ["date"]
"#;
        let tools = with(text).unwrap().settings.command_tools;
        assert_eq!(
            tools["weather"],
            CommandTool {
                description: "Say the weather of a city.".into(),
                parameters: json!({"type": "object", "required": ["city"],
                    "properties": {"city": {"type": "string"}}}),
                output: Some(json!({"type": "number"})),
                argv: vec!["/usr/local/bin/weather".into(), "--json".into()],
                timeout: Duration::from_secs(5),
                output_bytes: 1 << 20,
                env: vec!["WEATHER_KEY".into()],
                env_file: Some("/etc/belljar/weather.env".into()),
                cwd: "/srv/weather".into(),
                read_only: true,
            }
        );
        assert_eq!(tools["today"].parameters["properties"], json!({}));
        assert!(!tools["today"].read_only);
    }

    #[test]
    fn a_schema_may_stand_in_a_file_beside_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("person.json"), r#"{"type": "object"}"#).unwrap();
        let load = |text: &str| load_text(&dir.path().join("config.toml"), text);
        let loaded = load("[template.who]\nprompt = \"Who?\"\nschema = \"person.json\"\n").unwrap();
        assert_eq!(loaded.settings.templates["who"].schema, Some(json!({"type": "object"})));
        let error = load("[template.who]\nprompt = \"Who?\"\nschema = \"gone.json\"\n").unwrap_err();
        assert!(error.to_string().contains("gone.json cannot be read"), "{error}");
    }

    #[test]
    fn the_parameters_of_a_template_are_those_in_its_prompt() {
        let text = "[template.sum]\nprompt = \"Sum {what} of {file}, not {{this}}; {what}!\"\n\
                    dialect = \"xml_tags\"\ntools = []\n";
        let template = with(text).unwrap().settings.templates["sum"].clone();
        assert_eq!(template.parameters.keys().collect::<Vec<_>>(), ["file", "what"]);
        assert_eq!((template.dialect, template.tools), (Some(Dialect::XmlTags), Some(Vec::new())));
    }

    #[test]
    fn a_template_has_types_and_settings_of_its_own() {
        let text = "[template.sum]\nprompt = \"Sum {n} of {file}\"\nsystem = \"Be brief.\"\napproval = \"ask\"\n\
                    steps = 3\ntime = \"1min\"\ndescription = \"Sums.\"\n\
                    parameters = { n = \"int = 3\", file = \"str\", rows = { type = \"array\", default = [] } }\n";
        let template = with(text).unwrap().settings.templates["sum"].clone();
        let parameter = |schema, default| TemplateParameter { schema, default };
        assert_eq!(template.parameters["n"], parameter(json!({"type": "integer"}), Some(json!(3))));
        assert_eq!(template.parameters["file"], parameter(json!({"type": "string"}), None));
        assert_eq!(template.parameters["rows"].default, Some(json!([])));
        assert_eq!((template.limits.steps, template.limits.seconds), (Some(3), Some(60.0)));
        for (wrong, said) in [("int = x", "no int"), ("number", "is no type")] {
            let text = format!("[template.sum]\nprompt = \"x\"\nparameters = {{ n = \"{wrong}\" }}\n");
            let error = with(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn problems_are_told_with_their_places() {
        let text = "[tool.\"2fast\"]\nargv = []\nparameters = { type = \"array\" }\n\
                    [tool.b]\ndescription = \"b\"\nargv = \"ls -l\"\noutput = { type = \"thing\" }\nshell = true\n\
                    [template.c]\nprompt = \"{a b}\"\nmodel = \"gone\"\ndialect = \"latin\"\n";
        insta::assert_snapshot!(with(text).unwrap_err(), @r#"
        the configuration has 10 problems:
          /etc/belljar/config.toml:1: `tool.2fast`: a tool's name has to be one in Python, too: letters, digits and `_`
          /etc/belljar/config.toml:1: `tool.2fast`: `description` is missing
          /etc/belljar/config.toml:2: `tool.2fast.argv`: it has to begin with a program
          /etc/belljar/config.toml:3: `tool.2fast.parameters`: its `type` has to be "object"
          /etc/belljar/config.toml:6: `tool.b.argv`: expected a list of texts, found text
          /etc/belljar/config.toml:7: `tool.b.output`: it is no JSON Schema: `type` has to be one or more of array, boolean, integer, null, number, object and string, and not "thing"
          /etc/belljar/config.toml:8: `tool.b.shell`: there is no such key
          /etc/belljar/config.toml:10: `template.c.prompt`: braces hold the name of a parameter; one that is meant as such is doubled
          /etc/belljar/config.toml:11: `template.c.model`: there is no `[model.NAME]` of this name
          /etc/belljar/config.toml:12: `template.c.dialect`: `latin` is none of `tool_calls`, `next_step`, `json_action`, `xml_tags`
        "#);
    }

    proptest::proptest! {
        #[test]
        fn any_prompt_is_answered(prompt in "[a{}é ]{0,20}") {
            let _ = placeholders(&prompt);
        }
    }
}

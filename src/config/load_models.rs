//! Reads `[model.NAME]`. Missing values come from the profile of the provider.

use std::time::Duration;

use super::agent::{Model, Named, Provider};
use super::entry::Entry;
use super::layer::none_of;
use super::reader::Reader;
use crate::protocol::ask::Dialect;

/// The most characters of a model's name in the configuration.
const NAME_CHARS: usize = 64;

const FIRST_BYTE: Duration = Duration::from_secs(120);
const IDLE: Duration = Duration::from_secs(60);
const TOTAL: Duration = Duration::from_secs(600);
const CONNECT: Duration = Duration::from_secs(10);
const RETRIES: u32 = 4;
/// More retries would only hide that a provider is down.
const MAX_RETRIES: u32 = 20;
const CONCURRENCY: usize = 4;
const CONTEXT_TOKENS: u64 = 32_768;

/// The defaults of a provider.
struct Profile {
    word: &'static str,
    provider: Provider,
    base_url: Option<&'static str>,
    key_variable: Option<&'static str>,
    model: Option<&'static str>,
    strict: bool,
    tools: bool,
    json_schema: bool,
    dialect: Dialect,
}

impl Profile {
    const fn remote(
        word: &'static str,
        provider: Provider,
        base_url: &'static str,
        key_variable: &'static str,
    ) -> Self {
        Self { key_variable: Some(key_variable), ..Self::local(word, provider, Some(base_url)) }
    }

    const fn local(word: &'static str, provider: Provider, base_url: Option<&'static str>) -> Self {
        let (key_variable, model) = (None, None);
        Self {
            word,
            provider,
            base_url,
            key_variable,
            model,
            strict: false,
            tools: true,
            json_schema: true,
            dialect: Dialect::ToolCalls,
        }
    }
}

const PROFILES: [Profile; 9] = [
    Profile {
        strict: true,
        ..Profile::remote("openai", Provider::OpenAi, "https://api.openai.com/v1", "OPENAI_API_KEY")
    },
    Profile {
        model: Some("qwen-plus"),
        // The provider supports only `json_object`.
        json_schema: false,
        ..Profile::remote(
            "dashscope",
            Provider::DashScope,
            "https://dashscope.aliyuncs.com/compatible-mode/v1",
            "DASHSCOPE_API_KEY",
        )
    },
    Profile::local("ollama", Provider::Ollama, Some("http://127.0.0.1:11434/v1")),
    Profile::local("vllm", Provider::Vllm, Some("http://127.0.0.1:8000/v1")),
    Profile {
        // The server has one model and accepts any name for it.
        model: Some("default"),
        ..Profile::local("llama.cpp", Provider::LlamaCpp, Some("http://127.0.0.1:8080/v1"))
    },
    Profile::remote("openrouter", Provider::OpenRouter, "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    Profile { json_schema: false, ..Profile::local("compatible", Provider::Compatible, None) },
    Profile { model: Some("replay"), ..Profile::local("replay", Provider::Replay, None) },
    Profile { model: Some("script"), ..Profile::local("script", Provider::Script, None) },
];

impl Provider {
    /// The provider's name in the configuration.
    pub fn name(self) -> &'static str {
        PROFILES.iter().find(|profile| profile.provider == self).map_or("", |profile| profile.word)
    }

    /// Whether the provider answers from a file, without a network.
    pub fn is_played(self) -> bool {
        matches!(self, Self::Replay | Self::Script)
    }
}

impl Reader<'_> {
    pub fn models(&mut self) -> Named<Model> {
        self.named("model", "model.*", model)
    }
}

fn model(entry: &mut Entry<'_, '_>) -> Option<Model> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if entry.name.is_empty() || entry.name.len() > NAME_CHARS || !entry.name.chars().all(plain) {
        entry.whole("a model's name is made of letters, digits, `-`, `_` and `.`");
    }
    let profile = profile(entry);
    // Every key is read before a missing provider ends the function; otherwise the keys would be reported as unknown.
    let name = entry.text("model");
    let base_url = entry.text("base_url");
    let key_variable = entry.optional::<String>("key_variable");
    let file = entry.path("file");
    let record = entry.path("record");
    let strict = entry.optional("strict");
    let tools = entry.optional("tools");
    let json_schema = entry.optional("json_schema");
    let vision = entry.or("vision", false);
    let temperature = entry.optional::<f64>("temperature");
    let max_tokens = entry.optional::<u64>("max_tokens");
    let context_tokens = entry.positive_or("context_tokens", CONTEXT_TOKENS);
    let connect = entry.positive_or("connect", CONNECT);
    let first_byte = entry.positive_or("first_byte", FIRST_BYTE);
    let idle = entry.positive_or("idle", IDLE);
    let total = entry.positive_or("total", TOTAL);
    let retries = entry.or("retries", RETRIES);
    let concurrency = entry.positive_or("concurrency", CONCURRENCY);
    entry.check("temperature", temperature.is_none_or(|t| (0.0..=2.0).contains(&t)), "it is from 0 to 2");
    entry.check("max_tokens", max_tokens != Some(0), "it has to be more than 0");
    entry.check("retries", retries <= MAX_RETRIES, "it is at most 20");
    if let Some(url) = &base_url {
        check_url(entry, url);
    }
    let profile = profile?;
    let played = profile.provider.is_played();
    if played && file.is_none() {
        entry.whole("`file` is missing: what shall be played?");
    }
    entry.check("file", played || file.is_none(), "only `script` and `replay` play a file");
    entry.check("base_url", !played || base_url.is_none(), "what is played from a file has no address");
    entry.check("record", !played || record.is_none(), "what is played from a file is not recorded");
    let named = name.is_some() || profile.model.is_some();
    if !named {
        entry.whole("`model` is missing: the provider's name for the model");
    }
    let has_address = played || base_url.is_some() || profile.base_url.is_some();
    if !has_address {
        entry.whole("`base_url` is missing, as in \"http://127.0.0.1:8000/v1\"");
    }
    Some(Model {
        provider: profile.provider,
        model: name.or_else(|| profile.model.map(str::to_owned)).unwrap_or_default(),
        base_url: base_url
            .or_else(|| profile.base_url.map(str::to_owned))
            .map(|url| url.trim_end_matches('/').to_owned())
            .unwrap_or_default(),
        key_variable: key_variable
            .or_else(|| profile.key_variable.map(str::to_owned))
            .filter(|variable| !variable.is_empty()),
        file,
        record,
        strict: strict.unwrap_or(profile.strict),
        tools: tools.unwrap_or(profile.tools),
        json_schema: json_schema.unwrap_or(profile.json_schema),
        dialect: profile.dialect,
        vision,
        temperature,
        max_tokens,
        context_tokens,
        connect,
        first_byte,
        idle,
        total,
        retries,
        concurrency,
    })
}

fn profile(entry: &mut Entry<'_, '_>) -> Option<&'static Profile> {
    let word: String = entry.required("provider")?;
    let found = PROFILES.iter().find(|profile| profile.word == word);
    if found.is_none() {
        entry.problem("provider", &none_of(&word, PROFILES.iter().map(|profile| profile.word)));
    }
    found
}

/// Checks the address. It is shown in errors, so it must not contain a secret.
fn check_url(entry: &mut Entry<'_, '_>, text: &str) {
    let Ok(url) = reqwest::Url::parse(text) else {
        return entry.problem("base_url", "it is no address; it looks like \"https://host/v1\"");
    };
    entry.check("base_url", matches!(url.scheme(), "http" | "https"), "it has to be http or https");
    let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    entry.check("base_url", bare, "no key belongs into an address; name a variable in `key_variable`");
    entry.check("base_url", url.fragment().is_none(), "it ends with the path, without `#`");
}

#[cfg(test)]
mod tests {
    use super::super::load::{ConfigError, load_text};
    use super::*;
    use std::path::Path;

    fn models(text: &str) -> Result<Named<Model>, ConfigError> {
        load_text(Path::new("/etc/belljar/config.toml"), text).map(|loaded| loaded.settings.models)
    }

    #[test]
    fn a_provider_is_enough_where_it_says_all() {
        let found = models("[model.qwen]\nprovider = \"dashscope\"\n").unwrap();
        assert_eq!(
            found["qwen"],
            Model {
                provider: Provider::DashScope,
                model: "qwen-plus".into(),
                base_url: "https://dashscope.aliyuncs.com/compatible-mode/v1".into(),
                key_variable: Some("DASHSCOPE_API_KEY".into()),
                file: None,
                record: None,
                strict: false,
                tools: true,
                json_schema: false,
                dialect: Dialect::ToolCalls,
                vision: false,
                temperature: None,
                max_tokens: None,
                context_tokens: 32_768,
                connect: Duration::from_secs(10),
                first_byte: Duration::from_secs(120),
                idle: Duration::from_secs(60),
                total: Duration::from_secs(600),
                retries: 4,
                concurrency: 4,
            }
        );
    }

    #[test]
    fn local_servers_want_no_key_and_what_is_given_wins() {
        let found = models(
            "[model.a]\nprovider = \"ollama\"\nmodel = \"qwen3\"\nidle = \"5s\"\n\
             [model.b]\nprovider = \"openai\"\nmodel = \"gpt-4o-mini\"\nbase_url = \"https://proxy.test/v1/\"\n\
             key_variable = \"PROXY_KEY\"\nstrict = false\n\
             [model.c]\nprovider = \"script\"\nfile = \"script.toml\"\n",
        )
        .unwrap();
        assert_eq!((&found["a"].key_variable, found["a"].idle), (&None, Duration::from_secs(5)));
        assert_eq!(found["b"].base_url, "https://proxy.test/v1");
        assert_eq!((found["b"].key_variable.as_deref(), found["b"].strict), (Some("PROXY_KEY"), false));
        assert_eq!(found["c"].file.as_deref(), Some(Path::new("/etc/belljar/script.toml")));
        assert_eq!(found["c"].provider.name(), "script");
    }

    #[test]
    fn problems_are_told_with_their_places() {
        let text = "[model.a]\nprovider = \"clippy\"\ntemprature = 1\n\
                    [model.b]\nprovider = \"compatible\"\ntemperature = 3\n\
                    [model.c]\nprovider = \"vllm\"\nmodel = \"m\"\nbase_url = \"https://me:key@host/v1?key=k\"\n\
                    [model.d]\nprovider = \"script\"\nbase_url = \"ftp://host\"\n\
                    [model.\"e f\"]\nretries = 99\n\
                    [model]\ng = 3\n";
        insta::assert_snapshot!(models(text).unwrap_err(), @r#"
        the configuration has 13 problems:
          /etc/belljar/config.toml:2: `model.a.provider`: `clippy` is none of `openai`, `dashscope`, `ollama`, `vllm`, `llama.cpp`, `openrouter`, `compatible`, `replay`, `script`
          /etc/belljar/config.toml:3: `model.a.temprature`: there is no such key; did you mean `temperature`?
          /etc/belljar/config.toml:4: `model.b`: `model` is missing: the provider's name for the model
          /etc/belljar/config.toml:4: `model.b`: `base_url` is missing, as in "http://127.0.0.1:8000/v1"
          /etc/belljar/config.toml:6: `model.b.temperature`: it is from 0 to 2
          /etc/belljar/config.toml:10: `model.c.base_url`: no key belongs into an address; name a variable in `key_variable`
          /etc/belljar/config.toml:11: `model.d`: `file` is missing: what shall be played?
          /etc/belljar/config.toml:13: `model.d.base_url`: it has to be http or https
          /etc/belljar/config.toml:13: `model.d.base_url`: what is played from a file has no address
          /etc/belljar/config.toml:14: `model.e f`: a model's name is made of letters, digits, `-`, `_` and `.`
          /etc/belljar/config.toml:14: `model.e f`: `provider` is missing
          /etc/belljar/config.toml:15: `model.e f.retries`: it is at most 20
          /etc/belljar/config.toml:17: `model.g`: expected a section, found a whole number
        "#);
    }
}

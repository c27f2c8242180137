//! Reads `[agent]`.

use std::time::Duration;

use toml::de::DeValue;

use super::agent::{Agent, Model, Named};
use super::layer::{FromToml, expected};
use super::reader::{Reader, read_all};
use crate::protocol::ask::{ApprovalPolicy, AskLimits};

impl Reader<'_> {
    /// Reads the section; `models` must already be read.
    pub fn agent(&mut self, models: &Named<Model>) -> Option<Agent> {
        let model = self.optional::<String>("agent.model");
        let approval_deadline = self.optional::<Duration>("agent.approval_deadline");
        let waits = approval_deadline.is_none_or(|deadline| deadline > Duration::ZERO);
        self.check("agent.approval_deadline", waits, "it has to be more than 0");
        let both = self.limits();
        let steps = self.positive::<u32>("agent.next_step_steps");
        if let (Some(steps), Some((_, most))) = (steps, both) {
            self.ordered("agent.next_step_steps", "agent.max_steps", steps <= most.steps);
        }
        let prompt = self.optional::<String>("agent.prompt");
        Some(read_all!(Agent {
            dialect: Some(self.optional("agent.dialect")),
            language: self.required("agent.language"),
            approval: self.required("agent.approval"),
            approval_deadline: Some(approval_deadline),
            approval_default: self.required("agent.approval_default"),
            limits: both.map(|(limits, _)| limits),
            max_limits: both.map(|(_, most)| most),
            next_step_steps: steps,
            malformed: self.required("agent.malformed"),
            legacy_function_call: self.required("agent.legacy_function_call"),
            told_chars: self.positive("agent.told_chars"),
            depth: self.required("agent.depth"),
            python: self.required("agent.python"),
            degrade_after: self.required("agent.degrade_after"),
            tools: Some(self.optional("agent.tools")),
            prompt: Some(prompt.map(|path| self.beside("agent.prompt", &path))),
            model: Some(self.default_model(model, models)),
        }))
    }

    /// The model named by `agent.model`; without a name, the only configured model.
    fn default_model(&mut self, named: Option<String>, models: &Named<Model>) -> Option<String> {
        if let Some(name) = named {
            self.check("agent.model", models.contains_key(&name), "there is no `[model.NAME]` of this name");
            return Some(name);
        }
        let mut names = models.keys();
        names.next().filter(|_| names.next().is_none()).cloned()
    }

    fn limits(&mut self) -> Option<(AskLimits, AskLimits)> {
        let limits = self.limits_of(["agent.steps", "agent.failures", "agent.tokens", "agent.time"]);
        let most =
            self.limits_of(["agent.max_steps", "agent.max_failures", "agent.max_tokens", "agent.max_time"]);
        let (limits, most) = (limits?, most?);
        self.ordered("agent.steps", "agent.max_steps", limits.steps <= most.steps);
        self.ordered("agent.failures", "agent.max_failures", limits.failures <= most.failures);
        self.ordered("agent.tokens", "agent.max_tokens", limits.tokens <= most.tokens);
        self.ordered("agent.time", "agent.max_time", limits.seconds <= most.seconds);
        Some((limits, most))
    }

    fn limits_of(&mut self, [steps, failures, tokens, time]: [&'static str; 4]) -> Option<AskLimits> {
        Some(read_all!(AskLimits {
            steps: self.positive(steps),
            failures: self.positive(failures),
            tokens: self.positive(tokens),
            seconds: self.positive::<Duration>(time).map(|time| time.as_secs_f64()),
        }))
    }
}

impl FromToml for ApprovalPolicy {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let wanted = "\"auto\", \"ask\" or a list of tools";
        match value {
            DeValue::String(word) => Self::named(word).ok_or_else(|| format!("expected {wanted}")),
            DeValue::Array(_) => Vec::from_toml(value).map(Self::Tools),
            other => Err(expected(wanted, other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::{ConfigError, Loaded, load_text};
    use super::*;
    use crate::protocol::ask::{DefaultDecision, Language};
    use std::path::Path;

    fn with(text: &str) -> Result<Loaded, ConfigError> {
        load_text(Path::new("/etc/belljar/config.toml"), text)
    }

    #[test]
    fn the_defaults_are_the_ones_documented() {
        let loaded = with("").unwrap().settings;
        assert_eq!(
            loaded.agent,
            Agent {
                model: None,
                dialect: None,
                language: Language::English,
                approval: ApprovalPolicy::Auto,
                approval_deadline: None,
                approval_default: DefaultDecision::Reject,
                limits: AskLimits { steps: 30, failures: 5, tokens: 1_000_000, seconds: 3600.0 },
                max_limits: AskLimits { steps: 200, failures: 50, tokens: 20_000_000, seconds: 86_400.0 },
                next_step_steps: 10,
                malformed: 3,
                legacy_function_call: true,
                told_chars: 20_000,
                depth: 3,
                python: true,
                degrade_after: 0,
                tools: None,
                prompt: None,
            }
        );
        assert!(loaded.models.is_empty() && loaded.command_tools.is_empty() && loaded.templates.is_empty());
    }

    #[test]
    fn one_model_is_the_default_and_of_several_one_is_named() {
        let default = |text: &str| with(text).map(|loaded| loaded.settings.agent.model);
        let two = "[model.a]\nprovider = \"dashscope\"\n[model.b]\nprovider = \"openai\"\nmodel = \"m\"\n";
        assert_eq!(default("[model.a]\nprovider = \"dashscope\"\n").unwrap(), Some("a".to_owned()));
        assert_eq!(default(two).unwrap(), None);
        assert_eq!(default(&format!("agent.model = \"b\"\n{two}")).unwrap(), Some("b".to_owned()));
        assert!(default(&format!("agent.model = \"c\"\n{two}")).is_err());
    }

    #[test]
    fn approval_is_a_word_or_a_list() {
        let agent = |text: &str| with(text).unwrap().settings.agent;
        assert_eq!(agent("[agent]\napproval = \"ask\"\n").approval, ApprovalPolicy::Ask);
        assert_eq!(
            agent("[agent]\napproval = [\"pay\"]\n").approval,
            ApprovalPolicy::Tools(vec!["pay".into()])
        );
        assert_eq!(
            agent("[agent]\nprompt = \"prompt.md\"\n").prompt.as_deref(),
            Some(Path::new("/etc/belljar/prompt.md"))
        );
    }

    #[test]
    fn problems_are_told_with_their_places() {
        let text = "[agent]\nmodel = \"gone\"\nstep = 3\nsteps = 500\napproval = \"maybe\"\n\
                    approval_deadline = 0\ndialect = \"latin\"\npython = 1\n";
        insta::assert_snapshot!(with(text).unwrap_err(), @r#"
        the configuration has 7 problems:
          /etc/belljar/config.toml:2: `agent.model`: there is no `[model.NAME]` of this name
          /etc/belljar/config.toml:3: `agent.step`: there is no such key; did you mean `agent.steps`?
          /etc/belljar/config.toml:4: `agent.steps`: it is more than `agent.max_steps`
          /etc/belljar/config.toml:5: `agent.approval`: expected "auto", "ask" or a list of tools
          /etc/belljar/config.toml:6: `agent.approval_deadline`: it has to be more than 0
          /etc/belljar/config.toml:7: `agent.dialect`: `latin` is none of `tool_calls`, `next_step`, `json_action`, `xml_tags`
          /etc/belljar/config.toml:8: `agent.python`: expected true or false, found a whole number
        "#);
    }
}

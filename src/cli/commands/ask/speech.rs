//! Which part of a model's text is for people. In some dialects a reply is JSON or has tags, which is
//! hard to read raw, so the text is held back until its parts can be separated.

use serde_json::{Map, Value};

use crate::cli::render::block::Section;
use crate::protocol::ask::Dialect;
use crate::protocol::chat::Message;

/// The tags whose content is not text for people.
const TAGS: [&str; 2] = ["pip-dependencies-to-install", "execution-code"];

/// The text of one reply while it streams.
#[derive(Debug, Default)]
pub(in crate::cli) struct Speech {
    state: State,
    /// The text that was shown so far.
    shown_text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Only white space came so far.
    #[default]
    Silent,
    Live,
    Held,
}

impl Speech {
    /// The part of a piece that is shown at once.
    pub fn hear(&mut self, dialect: Dialect, text: &str) -> Option<String> {
        let text = if self.state == State::Silent { text.trim_start() } else { text };
        let first = text.chars().next()?;
        if self.state == State::Silent {
            self.state = if is_for_people(dialect, first) { State::Live } else { State::Held };
        }
        if self.state == State::Held {
            return None;
        }
        // The tags come after the text for people.
        let words = match text.split_once('<') {
            Some((words, _)) if dialect == Dialect::XmlTags => {
                self.state = State::Held;
                words
            }
            _ => text,
        };
        self.shown_text.push_str(words);
        (!words.is_empty()).then(|| words.to_owned())
    }

    pub fn shown_text(&self) -> &str {
        &self.shown_text
    }

    /// The part that is still to be shown when the whole reply is there.
    pub fn rest(&mut self, dialect: Dialect, reply: &Message) -> Option<(Section, String)> {
        let (section, words) = spoken(dialect, reply)?;
        let words = words.trim();
        let rest = words.strip_prefix(self.shown_text.trim_end()).unwrap_or(if self.shown_text.is_empty() {
            words
        } else {
            ""
        });
        if rest.trim().is_empty() {
            return None;
        }
        let rest = rest.to_owned();
        self.shown_text.push_str(&rest);
        Some((section, rest))
    }
}

fn is_for_people(dialect: Dialect, first: char) -> bool {
    match dialect {
        Dialect::ToolCalls | Dialect::XmlTags => !matches!(first, '{' | '[' | '<' | '`'),
        Dialect::NextStep | Dialect::JsonAction => false,
    }
}

/// The part of a reply that is for people. It has no code, which is shown when it runs, and no answer, which is
/// shown at the end.
fn spoken(dialect: Dialect, reply: &Message) -> Option<(Section, String)> {
    let content = &reply.content;
    let thought = |key: &str| match json_in(content) {
        Some(object) => {
            let text = object.get(key).and_then(Value::as_str)?;
            Some((Section::Thought, text.to_owned()))
        }
        None => Some((Section::Model, content.clone())),
    };
    match dialect {
        Dialect::NextStep => thought("current_state"),
        Dialect::JsonAction => thought("thought"),
        Dialect::XmlTags => Some((Section::Model, outside_tags(content))),
        // JSON without a call is the answer to a schema.
        Dialect::ToolCalls
            if reply.tool_calls.is_empty() && reply.function_call.is_none() && json_in(content).is_some() =>
        {
            None
        }
        Dialect::ToolCalls => Some((Section::Model, content.clone())),
    }
}

/// The JSON object in a reply, with any text around it ignored.
fn json_in(content: &str) -> Option<Map<String, Value>> {
    let (start, end) = (content.find('{')?, content.rfind('}')?);
    serde_json::from_str(content.get(start..=end)?).ok()
}

/// The text outside of the tags. A tag that is never closed extends to the end.
fn outside_tags(content: &str) -> String {
    let mut out = content.to_owned();
    for tag in TAGS {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        while let Some(start) = out.find(&open) {
            let end = out.get(start..).and_then(|rest| rest.find(&close)).map(|at| start + at + close.len());
            out.replace_range(start..end.unwrap_or(out.len()), "");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::chat::{Role, ToolCall};

    /// The text that was shown while the pieces came, and the text shown at the end.
    fn streamed(dialect: Dialect, pieces: &[&str]) -> (String, String) {
        let mut speech = Speech::default();
        let live: String = pieces.iter().filter_map(|piece| speech.hear(dialect, piece)).collect();
        let reply = Message::new(Role::Assistant, pieces.concat());
        let rest = speech.rest(dialect, &reply).map(|(section, text)| format!("{section:?}: {text}"));
        (live, rest.unwrap_or_default())
    }

    #[test]
    fn plain_words_are_shown_as_they_come() {
        assert_eq!(
            streamed(Dialect::ToolCalls, &[" \n", "It is", " 4 < 5."]),
            ("It is 4 < 5.".into(), String::new())
        );
    }

    #[test]
    fn json_is_held_until_its_thought_is_known() {
        let pieces = ["{\"thought\": \"I add", ".\", \"action\": \"execute_code\", \"code\": \"1+1\"}"];
        assert_eq!(streamed(Dialect::JsonAction, &pieces), (String::new(), "Thought: I add.".into()));
        let fenced = ["```json\n{\"current_state\": \"so far\", \"function\": {}}\n```"];
        assert_eq!(streamed(Dialect::NextStep, &fenced), (String::new(), "Thought: so far".into()));
        assert_eq!(streamed(Dialect::NextStep, &["no idea"]), (String::new(), "Model: no idea".into()));
        assert_eq!(streamed(Dialect::ToolCalls, &["{\"answer\"", ": 1}"]), (String::new(), String::new()));
    }

    #[test]
    fn words_around_tags_are_shown_without_them() {
        let pieces = ["I will", " add.\n<exec", "ution-code>1 < 2</execution-code>\nDone."];
        assert_eq!(streamed(Dialect::XmlTags, &pieces).0, "I will add.\n");
        assert_eq!(streamed(Dialect::XmlTags, &pieces).1.trim_end(), "Model: \n\nDone.");
        assert_eq!(streamed(Dialect::XmlTags, &["<execution-code>1+1"]), (String::new(), String::new()));
    }

    #[test]
    fn odd_words_before_a_call_are_shown_at_the_end() {
        let mut reply = Message::new(Role::Assistant, "[1] and {\"a\": 1}");
        reply.tool_calls.push(ToolCall { id: "1".into(), name: "x".into(), arguments: "{}".into() });
        let rest = Speech::default().rest(Dialect::ToolCalls, &reply);
        assert_eq!(rest, Some((Section::Model, "[1] and {\"a\": 1}".into())));
    }
}

//! Which part of a model's text is for people, and which is code. In some dialects a reply is JSON or has tags, which is
//! hard to read raw, so these are taken apart while they arrive.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::arriving::{JsonTexts, Piece, TaggedText, WantedField};
use crate::cli::render::block::Section;
use crate::protocol::ask::Dialect;
use crate::protocol::chat::Message;
use crate::protocol::tool_names::{ANSWER_ACTION, COMPLETION, COMPUTE_TOOL};

/// The tags whose content is not text for people.
const TAGS: &[(&str, Option<Section>)] =
    &[("pip-dependencies-to-install", None), ("execution-code", Some(Section::Code))];

/// The fields of JSON that are shown while they arrive: the thought, the code of both tools that run it, and the answer.
const STEP_FIELDS: &[WantedField] = &[
    WantedField::new("current_state", Section::Thought),
    WantedField::new("python_code_snippet", Section::Code),
    WantedField { key: "code", section: Section::Code, only_of: Some(COMPUTE_TOOL) },
    WantedField { key: "answer", section: Section::Model, only_of: Some(COMPLETION) },
];
const ACTION_FIELDS: &[WantedField] = &[
    WantedField::new("thought", Section::Thought),
    WantedField::new("code", Section::Code),
    WantedField { key: "final_answer", section: Section::Model, only_of: Some(ANSWER_ACTION) },
];

/// The text of one reply while it streams.
#[derive(Debug)]
pub(in crate::cli) struct Speech {
    reader: Reader,
    /// What was shown so far of each section.
    shown: BTreeMap<Section, String>,
}

#[derive(Debug)]
enum Reader {
    /// Only white space came so far.
    Silent,
    Live,
    Held,
    Json(JsonTexts),
    Tags(TaggedText),
}

impl Speech {
    pub fn new(dialect: Dialect) -> Self {
        let reader = match dialect {
            Dialect::ToolCalls => Reader::Silent,
            Dialect::NextStep => Reader::Json(JsonTexts::new("tool", STEP_FIELDS)),
            Dialect::JsonAction => Reader::Json(JsonTexts::new("action", ACTION_FIELDS)),
            Dialect::XmlTags => Reader::Tags(TaggedText::new(TAGS)),
        };
        Self { reader, shown: BTreeMap::new() }
    }

    /// The parts of a piece that are shown at once.
    pub fn hear(&mut self, text: &str) -> Vec<Piece> {
        let pieces = match &mut self.reader {
            Reader::Json(texts) => texts.hear(text),
            Reader::Tags(tagged) => tagged.hear(text),
            Reader::Held => Vec::new(),
            Reader::Live => vec![(Section::Model, text.to_owned())],
            Reader::Silent => {
                let text = text.trim_start();
                let Some(first) = text.chars().next() else { return Vec::new() };
                // JSON without a call is the answer to a schema.
                self.reader =
                    if matches!(first, '{' | '[' | '<' | '`') { Reader::Held } else { Reader::Live };
                return self.hear(text);
            }
        };
        pieces.into_iter().filter_map(|(section, text)| self.record_shown(section, text)).collect()
    }

    /// Notes a piece as shown, without the white space that a part begins with.
    fn record_shown(&mut self, section: Section, text: String) -> Option<Piece> {
        let so_far = self.shown.entry(section).or_default();
        let text = match so_far.trim().is_empty() {
            true if section == Section::Code => text.trim_start_matches('\n').to_owned(),
            true => text.trim_start().to_owned(),
            false => text,
        };
        so_far.push_str(&text);
        (!text.is_empty()).then_some((section, text))
    }

    /// What was shown of a section.
    pub fn shown(&self, section: Section) -> &str {
        self.shown.get(&section).map_or("", String::as_str)
    }

    /// The part that is still to be shown when the whole reply is there.
    pub fn rest(&mut self, dialect: Dialect, reply: &Message) -> Option<Piece> {
        let (section, words) = spoken(dialect, reply)?;
        let words = words.trim();
        let before = self.shown(section).trim_end();
        // A reply that is not written in its dialect was shown in other sections already, so it is not shown a second time.
        let is_other = before.is_empty() && self.shown.values().any(|shown| !shown.is_empty());
        let rest = words.strip_prefix(before).filter(|_| !is_other).unwrap_or_default();
        if rest.trim().is_empty() {
            return None;
        }
        let rest = rest.to_owned();
        self.shown.entry(section).or_default().push_str(&rest);
        Some((section, rest))
    }
}

/// What of a reply is shown at its end, if it was not shown before. It has no code, which is shown when it runs, and no
/// answer, which is shown when the ask ends.
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
    for (tag, _) in TAGS {
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
        let mut speech = Speech::new(dialect);
        let shown = |(section, text): Piece| format!("{section:?}: {text}");
        let live: Vec<String> = pieces.iter().flat_map(|piece| speech.hear(piece)).map(shown).collect();
        let reply = Message::new(Role::Assistant, pieces.concat());
        (live.join("|"), speech.rest(dialect, &reply).map(shown).unwrap_or_default())
    }

    #[test]
    fn plain_words_are_shown_as_they_come() {
        assert_eq!(
            streamed(Dialect::ToolCalls, &[" \n", "It is", " 4 < 5."]),
            ("Model: It is|Model:  4 < 5.".into(), String::new())
        );
    }

    #[test]
    fn thoughts_and_code_in_json_are_shown_as_they_come() {
        let pieces = ["{\"thought\": \"I add", ".\", \"action\": \"execute_code\", \"code\": \"1", "+1\"}"];
        assert_eq!(
            streamed(Dialect::JsonAction, &pieces),
            ("Thought: I add|Thought: .|Code: 1|Code: +1".into(), String::new())
        );
        let pieces =
            ["{\"action\": \"provide_answer\", \"thought\": \"Done.\", \"final_answer\": \"It ", "is 2.\"}"];
        assert_eq!(
            streamed(Dialect::JsonAction, &pieces),
            ("Thought: Done.|Model: It |Model: is 2.".into(), String::new())
        );
        let step = |tool: &str, field: &str| {
            let function = format!("\"function\": {{\"tool\": \"{tool}\", \"{field}\": \"1");
            streamed(Dialect::NextStep, &["{\"current_state\": \"I add.\", ", &function, "+1\"}}"])
        };
        let shown = |section: &str| (format!("Thought: I add.|{section}: 1|{section}: +1"), String::new());
        assert_eq!(step("execute_python_code", "python_code_snippet"), shown("Code"));
        assert_eq!(step("compute_with_python", "code"), shown("Code"));
        assert_eq!(step("report_task_completion", "answer"), shown("Model"));
        // A tool of that ask, which only has such a parameter, and an answer beside code, which is none.
        assert_eq!(step("provide_answer", "answer"), ("Thought: I add.".into(), String::new()));
        let beside =
            ["{\"thought\": \"\", \"action\": \"execute_code\", \"code\": \"1\", \"final_answer\": \"2\"}"];
        assert_eq!(streamed(Dialect::JsonAction, &beside), ("Code: 1".into(), String::new()));
        let value =
            ["{\"action\": \"provide_answer\", \"thought\": \"Done.\", \"final_answer\": {\"n\": \"2\"}}"];
        assert_eq!(streamed(Dialect::JsonAction, &value), ("Thought: Done.".into(), String::new()));
        let broken = ["{\"thought\": \"I add.\", \"action\""];
        assert_eq!(streamed(Dialect::JsonAction, &broken), ("Thought: I add.".into(), String::new()));
        let fenced = ["```json\n{\"current_state\": \"so far\", \"function\": {}}\n```"];
        assert_eq!(streamed(Dialect::NextStep, &fenced), ("Thought: so far".into(), String::new()));
        assert_eq!(streamed(Dialect::NextStep, &["no idea"]), (String::new(), "Model: no idea".into()));
        assert_eq!(streamed(Dialect::ToolCalls, &["{\"answer\"", ": 1}"]), (String::new(), String::new()));
    }

    #[test]
    fn words_around_tags_are_shown_without_them() {
        let pieces = ["I will", " add.\n<exec", "ution-code>\n1 < 2</execution-code>\nDone."];
        let shown = "Model: I will|Model:  add.\n|Code: 1 < 2|Model: \nDone.";
        assert_eq!(streamed(Dialect::XmlTags, &pieces), (shown.into(), String::new()));
        assert_eq!(streamed(Dialect::XmlTags, &["<execution-code>1+1"]), ("Code: 1+1".into(), String::new()));
    }

    #[test]
    fn odd_words_before_a_call_are_shown_at_the_end() {
        let mut reply = Message::new(Role::Assistant, "[1] and {\"a\": 1}");
        reply.tool_calls.push(ToolCall { id: "1".into(), name: "x".into(), arguments: "{}".into() });
        let rest = Speech::new(Dialect::ToolCalls).rest(Dialect::ToolCalls, &reply);
        assert_eq!(rest, Some((Section::Model, "[1] and {\"a\": 1}".into())));
    }
}

//! Makes a conversation acceptable for providers: every call is answered right after it, once, in the right
//! role and under its id.

use std::collections::BTreeSet;

use super::words::Words;
use crate::protocol::chat::{Message, Role, ToolCall};

/// Makes a conversation valid. Returns notes on the changes; empty if it was valid.
pub(super) fn repair(messages: &mut Vec<Message>, words: Words) -> Vec<String> {
    let mut notes = Vec::new();
    let mut valid: Vec<Message> = Vec::with_capacity(messages.len());
    let mut rest = std::mem::take(messages).into_iter().peekable();
    while let Some(mut message) = rest.next() {
        match message.role {
            Role::Assistant => {
                separate_ids(&mut message.tool_calls, &mut notes);
                let calls = message.tool_calls.clone();
                let function = message.function_call.as_ref().map(|call| call.name.clone());
                valid.push(message);
                let mut answers = Vec::new();
                while let Some(answer) = rest.next_if(|next| next.role == Role::Tool) {
                    answers.push(answer);
                }
                answer_calls(&calls, answers, &mut valid, &mut notes, words);
                if let Some(name) = function {
                    let answer = rest.next_if(|next| next.role == Role::Function);
                    valid.push(answer.unwrap_or_else(|| {
                        notes.push(format!("repaired the history: call of `{name}` had no result"));
                        function_result(&name, words.never_answered())
                    }));
                }
            }
            Role::Tool | Role::Function => {
                notes.push("repaired the history: dropped a result that answers no call".to_owned());
            }
            Role::System | Role::User => valid.push(message),
        }
    }
    *messages = valid;
    notes
}

fn separate_ids(calls: &mut [ToolCall], notes: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for call in calls {
        if !seen.insert(call.id.clone()) {
            let mut number = seen.len() + 1;
            while seen.contains(&format!("{}_{number}", call.id)) {
                number += 1;
            }
            call.id = format!("{}_{number}", call.id);
            seen.insert(call.id.clone());
            notes.push(format!("repaired the history: two calls had one id, one is now `{}`", call.id));
        }
    }
}

/// Adds one answer per call, in the order of the calls. An answer under a wrong id belongs to no call and is
/// dropped.
fn answer_calls(
    calls: &[ToolCall],
    mut answers: Vec<Message>,
    valid: &mut Vec<Message>,
    notes: &mut Vec<String>,
    words: Words,
) {
    for call in calls {
        let own = answers.iter().position(|answer| answer.tool_call_id.as_deref() == Some(call.id.as_str()));
        if let Some(index) = own {
            valid.push(answers.remove(index));
        } else {
            notes.push(format!("repaired the history: call `{}` had no result", call.id));
            valid.push(tool_result(&call.id, words.never_answered()));
        }
    }
    if !answers.is_empty() {
        notes.push(format!("repaired the history: dropped {} results that answer no call", answers.len()));
    }
}

pub(super) fn tool_result(id: &str, text: String) -> Message {
    let mut message = Message::new(Role::Tool, text);
    message.tool_call_id = Some(id.to_owned());
    message
}

pub(super) fn function_result(name: &str, text: String) -> Message {
    let mut message = Message::new(Role::Function, text);
    message.name = Some(name.to_owned());
    message
}

/// The same conversation for a model that does not support calls: calls become text, and results become
/// messages of the user.
pub(super) fn without_calls(messages: Vec<Message>) -> Vec<Message> {
    messages.into_iter().map(told_as_text).collect()
}

fn told_as_text(mut message: Message) -> Message {
    match message.role {
        Role::Assistant => {
            let calls = message.tool_calls.drain(..).map(|call| (call.name, call.arguments));
            let function = message.function_call.take().map(|call| (call.name, call.arguments));
            for (name, arguments) in calls.chain(function) {
                // A call without arguments only stands for something that the text already says, so it adds
                // nothing.
                if arguments != NO_ARGUMENTS {
                    if !message.content.is_empty() {
                        message.content.push('\n');
                    }
                    let call_text = format!("[call of {name}: {arguments}]");
                    message.content.push_str(&call_text);
                }
            }
            message
        }
        Role::Tool | Role::Function => Message::new(Role::User, format!("[result]\n{}", message.content)),
        Role::System | Role::User => message,
    }
}

pub(super) const NO_ARGUMENTS: &str = "{}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ask::Language;
    use crate::protocol::chat::FunctionCall;

    fn assistant(ids: &[&str]) -> Message {
        let mut message = Message::new(Role::Assistant, "");
        message.tool_calls = ids
            .iter()
            .map(|id| ToolCall { id: (*id).into(), name: "t".into(), arguments: "{\"a\": 1}".into() })
            .collect();
        message
    }

    fn shape(messages: &[Message]) -> Vec<String> {
        let id =
            |message: &Message| message.tool_call_id.clone().or(message.name.clone()).unwrap_or_default();
        messages.iter().map(|message| format!("{:?} {}", message.role, id(message))).collect()
    }

    #[test]
    fn e2_calls_without_a_result_get_one_and_results_without_a_call_go() {
        let mut messages = vec![
            tool_result("x", "orphan".into()),
            Message::new(Role::User, "hi"),
            assistant(&["a", "b"]),
            tool_result("b", "of b".into()),
            tool_result("c", "wrong id".into()),
            Message::new(Role::User, "in the role of a tool"),
            function_result("f", "orphan".into()),
            assistant(&["a", "a"]),
        ];
        let notes = repair(&mut messages, Words(Language::English));
        assert_eq!(
            shape(&messages),
            ["User ", "Assistant ", "Tool a", "Tool b", "User ", "Assistant ", "Tool a", "Tool a_2"]
        );
        assert_eq!(messages[3].content, "of b");
        assert_eq!(notes.len(), 7, "{notes:#?}");
        assert_eq!(repair(&mut messages, Words(Language::English)), Vec::<String>::new());
    }

    #[test]
    fn a_legacy_call_wants_a_result_of_its_own_role() {
        let mut call = Message::new(Role::Assistant, "");
        call.function_call = Some(FunctionCall { name: "f".into(), arguments: "{}".into() });
        let mut messages = vec![call.clone(), function_result("f", "ok".into()), call];
        assert_eq!(repair(&mut messages, Words(Language::Chinese)).len(), 1);
        assert_eq!(shape(&messages), ["Assistant ", "Function f", "Assistant ", "Function f"]);
    }

    #[test]
    fn a_model_that_knows_no_calls_is_told_in_text() {
        let messages = without_calls(vec![assistant(&["a"]), tool_result("a", "5".into())]);
        assert_eq!(
            messages,
            [
                Message::new(Role::Assistant, "[call of t: {\"a\": 1}]"),
                Message::new(Role::User, "[result]\n5")
            ]
        );
    }
}

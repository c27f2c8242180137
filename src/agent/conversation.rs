//! The conversation of an ask: valid, and small enough for the model.

use super::budget::{self, Excess};
use super::history;
use super::words::Words;
use crate::protocol::chat::{ChatReply, Message, Role, Usage};

#[derive(Debug)]
pub(super) struct Conversation {
    words: Words,
    prompt: String,
    /// The messages without the system prompt.
    messages: Vec<Message>,
    /// The index of the text of this ask.
    anchor: usize,
    /// How many messages the model's last usage covers, and its tokens.
    counted: Option<(usize, u64)>,
    /// The estimated tokens that a request has beside its messages.
    beside: u64,
    /// The tokens that fit into the model.
    context: u64,
}

impl Conversation {
    pub fn new(prompt: String, earlier: Vec<Message>, beside: u64, context: u64, words: Words) -> Self {
        let anchor = earlier.len();
        Self { words, prompt, messages: earlier, anchor, counted: None, beside, context }
    }

    /// Adds the text of the ask, which is never cut.
    pub fn push_ask_text(&mut self, text: String) {
        self.anchor = self.messages.len();
        self.messages.push(Message::new(Role::User, text));
    }

    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub fn extend(&mut self, messages: impl IntoIterator<Item = Message>) {
        self.messages.extend(messages);
    }

    /// Appends to the last result. It is not a separate message, because some providers reject a user message
    /// between a result and the next reply.
    pub fn add_to_last_result(&mut self, text: &str) {
        let result = self.messages.iter_mut().rev().find(|message| message.role != Role::User);
        if let Some(result) = result {
            result.content.push_str("\n\n");
            result.content.push_str(text);
        }
    }

    /// Makes the conversation valid and small enough for the next request. Returns notes on the changes.
    pub fn prepare(&mut self) -> Vec<String> {
        let mut notes = self.repair();
        if let Some(excess) = budget::excess(self.tokens(), self.context) {
            notes.extend(self.cut(excess));
        }
        notes
    }

    pub fn repair(&mut self) -> Vec<String> {
        let notes = history::repair(&mut self.messages, self.words);
        if !notes.is_empty() {
            self.counted = None;
        }
        notes
    }

    /// Halves the conversation, for a provider that rejects it as too long despite the estimate.
    pub fn halve(&mut self) -> Option<String> {
        let half = self.messages.iter().map(budget::tokens).sum::<u64>() / 2;
        self.cut(Excess { wanted: half, needed: half })
    }

    fn cut(&mut self, excess: Excess) -> Option<String> {
        let note = budget::cut(&mut self.messages, &mut self.anchor, excess, self.words)?;
        self.counted = None;
        Some(note)
    }

    /// The tokens of the next request: as counted by the model, plus an estimate of the later messages.
    pub fn tokens(&self) -> u64 {
        let (known, tokens) = self
            .counted
            .unwrap_or_else(|| (0, budget::tokens_of_text(&self.prompt).saturating_add(self.beside)));
        let since: u64 = self.messages.iter().skip(known).map(budget::tokens).sum();
        tokens.saturating_add(since)
    }

    /// Counts the cost of a request and its reply; estimated if the provider does not report it.
    pub fn count(&mut self, reply: &ChatReply) -> Usage {
        if let Some(usage) = reply.usage {
            self.counted = Some((self.messages.len(), usage.prompt_tokens));
        }
        self.cost(reply)
    }

    /// The cost as the provider counted it, or as estimated.
    pub fn cost(&self, reply: &ChatReply) -> Usage {
        reply.usage.unwrap_or_else(|| Usage {
            prompt_tokens: self.tokens(),
            completion_tokens: budget::tokens(&reply.message),
        })
    }

    /// The messages of a request; as text only for a model that does not support calls.
    pub fn messages(&self, with_calls: bool) -> Vec<Message> {
        let prompt = Message::new(Role::System, self.prompt.clone());
        let messages: Vec<Message> = std::iter::once(prompt).chain(self.messages.iter().cloned()).collect();
        if with_calls { messages } else { history::without_calls(messages) }
    }

    pub fn into_messages(mut self) -> Vec<Message> {
        self.repair();
        self.messages
    }
}

//! The conversation of an ask: valid, and small enough for the model.

use super::budget::{self, Excess};
use super::history;
use super::pictures::{PICTURE_BYTES, PICTURE_SIDE, PICTURES, ShownPictures};
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
    /// Whether it has pictures, or had them before a restart of the daemon. The pictures are gone by then, but a
    /// failure from which the ask recovered by dropping them may not end it now.
    has_pictures: bool,
}

impl Conversation {
    pub fn new(prompt: String, earlier: Vec<Message>, beside: u64, context: u64, words: Words) -> Self {
        let anchor = earlier.len();
        Self { words, prompt, messages: earlier, anchor, counted: None, beside, context, has_pictures: false }
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

    /// Adds pictures as a message of the user, because providers take none in the results of calls. Of all that the
    /// conversation has, the newest stay.
    pub fn push_pictures(&mut self, shown: ShownPictures) {
        let ShownPictures { pictures, left_out, broken, gone } = shown;
        self.has_pictures |= gone || !pictures.is_empty();
        let mut lines = Vec::new();
        if left_out > 0 {
            let kib = PICTURE_BYTES / 1024;
            lines.push(self.words.pictures_left_out(left_out, PICTURES, kib, PICTURE_SIDE));
        }
        if broken > 0 {
            lines.push(self.words.pictures_broken(broken));
        }
        if !pictures.is_empty() {
            self.drop_pictures(PICTURES.saturating_sub(pictures.len()), self.words.pictures_gone());
            lines.insert(0, self.words.pictures());
            self.messages.push(Message { pictures, ..Message::new(Role::User, lines.join("\n")) });
            return;
        }
        if !lines.is_empty() {
            self.add_to_last_result(&lines.join("\n"));
        }
        if gone {
            self.messages.push(Message::new(Role::User, self.words.pictures_gone()));
        }
    }

    /// Drops all pictures, for a provider that refuses the request: it may be unable to decode one, of which only the
    /// head is checked here. Returns a note; none if there are no pictures.
    pub fn refuse_pictures(&mut self) -> Option<String> {
        std::mem::take(&mut self.has_pictures).then(|| {
            self.drop_pictures(0, self.words.pictures_refused());
            "the provider refused the request; the model is asked again without pictures".to_owned()
        })
    }

    /// Drops all pictures but those of the newest messages that have at most so many together. `instead` is what
    /// their messages say then.
    fn drop_pictures(&mut self, mut keep: usize, instead: &str) {
        for message in self.messages.iter_mut().rev().filter(|message| !message.pictures.is_empty()) {
            if let Some(left) = keep.checked_sub(message.pictures.len()) {
                keep = left;
                continue;
            }
            keep = 0;
            message.pictures.clear();
            instead.clone_into(&mut message.content);
            self.counted = None;
        }
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
        let half = budget::size(&self.messages) / 2;
        self.cut(Excess { wanted: half, needed: half })
    }

    /// Drops the pictures, and cuts what is still too much without them.
    fn cut(&mut self, excess: Excess) -> Option<String> {
        let before = budget::size(&self.messages);
        let had_pictures = std::mem::take(&mut self.has_pictures);
        self.drop_pictures(0, self.words.pictures_gone());
        let freed = before.saturating_sub(budget::size(&self.messages));
        let left = |tokens: u64| tokens.saturating_sub(freed);
        let excess = Excess { wanted: left(excess.wanted), needed: left(excess.needed) };
        let note = budget::cut(&mut self.messages, &mut self.anchor, excess, self.words);
        if note.is_some() {
            self.counted = None;
        }
        let dropped = "the conversation nears what fits into the model: its pictures were dropped";
        note.or_else(|| had_pictures.then(|| dropped.to_owned()))
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
        self.drop_pictures(0, self.words.pictures_gone());
        self.messages
    }
}

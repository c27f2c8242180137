//! The ids of calls. Models repeat ids, leave them out, or use characters that fit no URL.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::chat::Message;

const ID_CHARS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Ids {
    taken: BTreeSet<String>,
    /// The number that the next repetition of an id gets.
    repeated: BTreeMap<String, u32>,
}

impl Ids {
    pub fn of(history: &[Message]) -> Self {
        let calls = history.iter().flat_map(|message| &message.tool_calls);
        Self { taken: calls.map(|call| call.id.clone()).collect(), repeated: BTreeMap::new() }
    }

    /// The id itself if it is free and harmless, otherwise a similar one.
    pub fn unique(&mut self, input: &str) -> String {
        let mut id: String = input
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
            .take(ID_CHARS)
            .collect();
        if id.is_empty() {
            id.push_str("call");
        }
        let mut candidate = id.clone();
        while !self.taken.insert(candidate.clone()) {
            let number = self.repeated.entry(id.clone()).or_insert(1);
            *number = number.saturating_add(1);
            candidate = format!("{id}_{number}");
        }
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_taken_gets_a_number() {
        let mut ids = Ids::default();
        let given: Vec<String> = ["a", "a", "a_2", "a", "", "../x"].map(|input| ids.unique(input)).into();
        assert_eq!(given, ["a", "a_2", "a_2_2", "a_3", "call", "x"]);
    }
}

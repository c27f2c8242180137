//! The size of a conversation, and what is cut when it nears the model's context size.
//!
//! The provider's own token count is exact; between two counts, tokens are estimated from bytes. First old
//! results are shortened, then old turns are replaced by one line each, then the results of the newest turns
//! are shortened, too. Results that the model has not seen yet stay whole as long as they fit, and otherwise
//! keep as much as fits. The user's request is never cut, and no call loses its answer, nor an answer its
//! call.

use super::pictures;
use super::report::shortened;
use super::words::Words;
use crate::protocol::chat::{Message, Role};
use crate::protocol::text::brief;

/// Three bytes are one Chinese character and most of an English token, so the estimate is rather too high
/// than too low.
const BYTES_PER_TOKEN: u64 = 3;
/// The tokens of a message beside its text.
const TOKENS_PER_MESSAGE: u64 = 4;

/// In hundredths of the model's context: where cutting begins, and where it stops. The space above is for the
/// reply.
const NEAR: u64 = 80;
const ENOUGH: u64 = 60;

/// The characters that remain of a shortened result.
const SHORT_CHARS: usize = 600;
/// The number of turns at the end that stay whole as long as anything else can be cut.
const NEWEST_TURNS: usize = 2;
/// The most lines of a summary, and the most characters of a line.
const SUMMARY_LINES: usize = 60;
const LINE_CHARS: usize = 160;

pub(super) fn tokens(message: &Message) -> u64 {
    let calls: usize =
        message.tool_calls.iter().map(|call| call.id.len() + call.name.len() + call.arguments.len()).sum();
    let function = message.function_call.as_ref().map_or(0, |call| call.name.len() + call.arguments.len());
    let bytes = (message.content.len() + calls + function) as u64;
    let pictures: u64 = message.pictures.iter().map(pictures::tokens).sum();
    TOKENS_PER_MESSAGE + bytes.div_ceil(BYTES_PER_TOKEN) + pictures
}

/// The estimated tokens of a text, where no provider has counted them.
pub fn tokens_of_text(text: &str) -> u64 {
    (text.len() as u64).div_ceil(BYTES_PER_TOKEN)
}

/// The tokens by which a conversation is too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Excess {
    /// The tokens to cut so that there is room for a while.
    pub wanted: u64,
    /// The part of them that has to be cut even from results that the model has not seen yet.
    pub needed: u64,
}

/// How much has to be cut; none as long as the conversation is not near the limit.
pub(super) fn excess(size: u64, context: u64) -> Option<Excess> {
    let above = |hundredths| size.saturating_sub(context.saturating_mul(hundredths) / 100);
    let needed = above(NEAR);
    (needed > 0).then(|| Excess { wanted: above(ENOUGH), needed })
}

/// Cuts about the tokens of `excess` from the conversation. `anchor` is the index of the message that has to
/// stay, and is kept up to date. Returns a note on what was cut; none if nothing could be.
pub(super) fn cut(
    messages: &mut Vec<Message>,
    anchor: &mut usize,
    excess: Excess,
    words: Words,
) -> Option<String> {
    let before = size(messages);
    let goal = before.saturating_sub(excess.wanted);

    let old = newest(messages, words);
    let mut short = shorten(&mut messages[..old], goal, before, words);
    let mut turns = 0;
    while size(messages) > goal {
        let Some(gone) = summarise_one(messages, anchor, words) else { break };
        turns += gone;
    }
    let left = size(messages);
    let first_unseen = unseen(messages);
    let (seen, new) = messages.split_at_mut(first_unseen);
    short += shorten(seen, goal, left, words);
    let tokens_left = before.saturating_sub(excess.needed).saturating_sub(size(seen));
    short += fit(new, tokens_left, words);
    (short + turns > 0).then(|| {
        let after = size(messages);
        format!("the conversation nears what fits into the model: shortened {short} results and summarised {turns} turns, about {before} tokens are now {after}")
    })
}

pub(super) fn size(messages: &[Message]) -> u64 {
    messages.iter().map(tokens).sum()
}

/// The index at which the newest turns begin.
fn newest(messages: &[Message], words: Words) -> usize {
    let starts: Vec<usize> = (0..messages.len()).filter(|index| is_start(&messages[*index], words)).collect();
    starts.len().checked_sub(NEWEST_TURNS).and_then(|index| starts.get(index)).copied().unwrap_or(0)
}

/// Whether a turn begins here: a message of the user, or one of the model together with the results of its
/// calls and their pictures.
fn is_start(message: &Message, words: Words) -> bool {
    match message.role {
        Role::User => message.pictures.is_empty() && !words.stands_for_pictures(&message.content),
        Role::Assistant => true,
        Role::System | Role::Tool | Role::Function => false,
    }
}

/// The index of the first message that the model has not seen yet: after its last reply. A call in the old
/// form that came together with others is recorded as a separate message, behind their results.
fn unseen(messages: &[Message]) -> usize {
    let last_reply_before =
        |end: usize| messages[..end].iter().rposition(|message| message.role == Role::Assistant);
    let Some(last) = last_reply_before(messages.len()) else { return 0 };
    let message = &messages[last];
    let is_second = message.function_call.is_some()
        && message.content.is_empty()
        && last.checked_sub(1).is_some_and(|before| messages[before].role == Role::Tool);
    let first = if is_second { last_reply_before(last) } else { None };
    first.unwrap_or(last) + 1
}

/// Shortens results just enough to share the room, and never below the size of an old one: short ones stay
/// whole, and the space that they leave goes to the long ones. Returns how many were shortened.
fn fit(messages: &mut [Message], token_limit: u64, words: Words) -> usize {
    let within = |message: &Message, limit: usize| {
        let chars = message.content.chars().count();
        let is_long = !is_start(message, words) && chars > limit;
        is_long.then(|| shortened(&message.content, chars, limit, &|left_out| words.left_out(left_out)))
    };
    let fits = |messages: &[Message], limit: usize| {
        let tokens = |message: &Message| match within(message, limit) {
            Some(content) => tokens(&Message { content, ..message.clone() }),
            None => tokens(message),
        };
        messages.iter().map(tokens).sum::<u64>() <= token_limit
    };
    let longest = messages.iter().map(|message| message.content.chars().count()).max().unwrap_or(0);
    let (mut least, mut most) = (SHORT_CHARS, longest.max(SHORT_CHARS));
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        if fits(messages, middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    let mut count = 0;
    for message in messages {
        if let Some(content) = within(message, least) {
            message.content = content;
            count += 1;
        }
    }
    count
}

/// Shortens results, the oldest first, until the goal is reached. Returns how many.
fn shorten(messages: &mut [Message], goal: u64, mut size: u64, words: Words) -> usize {
    let mut count = 0;
    for message in messages.iter_mut().filter(|message| !is_start(message, words)) {
        if size <= goal {
            break;
        }
        let chars = message.content.chars().count();
        if chars > SHORT_CHARS {
            let before = tokens(message);
            message.content =
                shortened(&message.content, chars, SHORT_CHARS, &|left_out| words.left_out(left_out));
            size = size.saturating_sub(before.saturating_sub(tokens(message)));
            count += 1;
        }
    }
    count
}

/// Replaces the oldest turn that may be cut by a line of the summary. Returns how many turns were replaced,
/// which is one; none if no turn may be cut.
fn summarise_one(messages: &mut Vec<Message>, anchor: &mut usize, words: Words) -> Option<usize> {
    let last = newest(messages, words);
    let is_summary =
        |message: &Message| message.role == Role::User && message.content.starts_with(words.summary());
    let start = (0..last).find(|index| {
        *index != *anchor && is_start(&messages[*index], words) && !is_summary(&messages[*index])
    })?;
    let is_end = |index: &usize| *index == *anchor || is_start(&messages[*index], words);
    let end = (start + 1..messages.len()).find(is_end).unwrap_or(messages.len());
    let line = line_of(&messages[start..end]);
    let has_summary = start > 0 && is_summary(&messages[start - 1]);
    if has_summary {
        messages.drain(start..end);
        let summary = &mut messages[start - 1].content;
        summary.push('\n');
        summary.push_str(&line);
        drop_first_lines(summary);
        if start < *anchor {
            *anchor -= end - start;
        }
    } else {
        let summary = Message::new(Role::User, format!("{}\n{line}", words.summary()));
        messages.splice(start..end, [summary]);
        if start < *anchor {
            *anchor -= end - start - 1;
        }
    }
    Some(1)
}

/// Keeps the heading and the last lines.
fn drop_first_lines(summary: &mut String) {
    let lines: Vec<&str> = summary.lines().collect();
    if lines.len() > SUMMARY_LINES + 1 {
        let remaining: Vec<&str> =
            lines.iter().take(1).chain(&lines[lines.len() - SUMMARY_LINES..]).copied().collect();
        *summary = remaining.join("\n");
    }
}

/// A summary line: who said or ran what, and how it ended.
fn line_of(turn: &[Message]) -> String {
    let Some(first) = turn.first() else { return String::new() };
    let who = if first.role == Role::User { "user" } else { "assistant" };
    let calls = first.tool_calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
    let function = first.function_call.iter().map(|call| format!("{} {}", call.name, call.arguments));
    let texts = std::iter::once(first.content.clone()).chain(calls).chain(function);
    let texts: Vec<String> =
        texts.map(|text| brief(&text, LINE_CHARS)).filter(|text| !text.is_empty()).collect();
    let results: Vec<String> = turn[1..].iter().map(|result| ends_of(&result.content)).collect();
    let line = format!("- {who}: {}", texts.join(" | "));
    if results.is_empty() { line } else { format!("{line} → {}", results.join(" | ")) }
}

/// The first line of a result and its last one: how a cell ended stands in the one or in the other.
fn ends_of(result: &str) -> String {
    let mut lines = result.lines().filter(|line| !line.trim().is_empty());
    let ends = [lines.next(), lines.next_back()];
    ends.into_iter().flatten().map(|line| brief(line, LINE_CHARS / 2)).collect::<Vec<_>>().join(" … ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::agent::history::{function_result, repair, tool_result};
    use crate::protocol::ask::Language;
    use crate::protocol::chat::{FunctionCall, ToolCall};

    const WORDS: Words = Words(Language::Chinese);

    #[test]
    fn the_line_of_a_turn_says_how_its_cells_ended() {
        let result = |text: &str| ends_of(text);
        assert_eq!(
            result("ok\n\nThe cell did not end within 2 s.\n"),
            "ok … The cell did not end within 2 s."
        );
        assert_eq!(
            result("Traceback (most recent call last):\n  …\nKeyError: 1"),
            "Traceback (most recent call last): … KeyError: 1"
        );
        assert_eq!((result("2"), result("\n")), ("2".into(), String::new()));
    }
    /// The number in the notice of how much was left out has at most this many characters.
    const NUMBER_CHARS: usize = 6;

    fn turn(number: usize, calls: usize, size: usize) -> Vec<Message> {
        if calls == 0 {
            return vec![Message::new(Role::User, format!("{number} {}", "问".repeat(size)))];
        }
        let mut reply = Message::new(Role::Assistant, "思".repeat(size / 10));
        let ids: Vec<String> = (0..calls).map(|call| format!("{number}_{call}")).collect();
        for id in &ids {
            let arguments = "{\"code\": \"1\"}".to_owned();
            reply.tool_calls.push(ToolCall { id: id.clone(), name: "run".into(), arguments });
        }
        let results = ids.iter().map(|id| tool_result(id, "## done\n".to_owned() + &"果".repeat(size)));
        std::iter::once(reply).chain(results).collect()
    }

    proptest! {
        #[test]
        fn cutting_keeps_what_has_to_stay(
            turns in proptest::collection::vec((0..3_usize, 0..3_000_usize), 0..20),
            later in proptest::collection::vec((1..3_usize, 0..3_000_usize), 0..10),
            (wanted, needed) in (0..100_u64, 0..100_u64),
        ) {
            let number = turns.len();
            let turns = turns.into_iter().enumerate();
            let mut messages: Vec<Message> = turns.flat_map(|(index, (calls, size))| turn(index, calls, size)).collect();
            let mut anchor = messages.len();
            messages.push(Message::new(Role::User, "the request"));
            messages.extend(later.into_iter().enumerate().flat_map(|(index, (calls, size))| turn(number + index, calls, size)));
            let before = size(&messages);
            let excess = Excess { wanted: before * wanted / 100, needed: before * wanted.min(needed) / 100 };

            let note = cut(&mut messages, &mut anchor, excess, WORDS);
            prop_assert_eq!(&messages[anchor].content, "the request");
            prop_assert_eq!(repair(&mut messages, WORDS), Vec::<String>::new());
            prop_assert_eq!(note.is_none(), size(&messages) == before);
        }

        #[test]
        fn what_is_new_keeps_all_that_fits(
            earlier in proptest::collection::vec((1..3_usize, 0..3_000_usize), 0..6),
            sizes in proptest::collection::vec(0..6_000_usize, 1..4),
            is_legacy in any::<bool>(),
            share in 0..100_u64,
        ) {
            let mut messages = vec![Message::new(Role::User, "the request")];
            messages.extend(earlier.into_iter().enumerate().flat_map(|(index, (calls, size))| turn(index, calls, size)));
            let new = messages.len() + 1;
            let mut messages_of_turn = turn(99, sizes.len(), 0);
            for (message, size) in messages_of_turn[1..].iter_mut().zip(&sizes) {
                message.content = "new ".repeat(*size);
            }
            messages.extend(messages_of_turn);
            if is_legacy {
                let mut second = Message::new(Role::Assistant, "");
                second.function_call = Some(FunctionCall { name: "old".into(), arguments: "{}".into() });
                messages.extend([second, function_result("old", "new ".repeat(1_000))]);
            }
            let (whole, before) = (messages[new..].to_vec(), size(&messages));
            let needed = before * share / 100;

            cut(&mut messages, &mut 0, Excess { wanted: before, needed }, WORDS);
            let start = messages.len() - whole.len();
            let after = size(&messages);
            let short = |message: &Message| message.content.chars().count() <= SHORT_CHARS;
            prop_assert!(messages[1..start].iter().filter(|message| !is_start(message, WORDS)).all(short));
            prop_assert!(after <= before - needed || messages[start..].iter().filter(|message| !is_start(message, WORDS)).all(short));
            let cut: Vec<_> = messages[start..].iter().zip(&whole).filter(|(left, whole)| left != whole).collect();
            for (left, _) in &cut {
                prop_assert!(left.content.chars().count() + NUMBER_CHARS >= SHORT_CHARS);
                prop_assert!(left.content.starts_with("new ") && left.content.ends_with("new "));
            }
            // One more character of each would not fit.
            let slack = (cut.len() * NUMBER_CHARS) as u64;
            prop_assert!(cut.is_empty() || after + slack >= before - needed, "{after} of {}", before - needed);
        }
    }

    #[test]
    fn old_results_go_before_turns_and_the_newest_stay_whole() {
        let mut messages = vec![Message::new(Role::User, "the request")];
        messages.extend((0..6).flat_map(|number| turn(number, 1, 2_000)));
        let mut anchor = 0;
        let note = cut(&mut messages, &mut anchor, Excess { wanted: 3_000, needed: 0 }, WORDS).unwrap();
        assert!(note.contains("shortened 3 results and summarised 0 turns"), "{note}");
        let note = cut(&mut messages, &mut anchor, Excess { wanted: 3_500, needed: 0 }, WORDS).unwrap();
        assert!(note.contains("shortened 1 results and summarised 4 turns"), "{note}");
        assert!(messages.last().unwrap().content.chars().count() > 2_000);
        assert!(messages[1].content.starts_with(WORDS.summary()), "{}", messages[1].content);
        assert_eq!(messages[1].content.lines().count(), 5);
    }

    #[test]
    fn pictures_belong_to_the_turn_that_showed_them() {
        let mut messages = vec![Message::new(Role::User, "the request")];
        for number in 0..3 {
            messages.extend(turn(number, 1, 2_000));
            messages.push(Message::new(Role::User, WORDS.pictures_gone()));
        }
        assert_eq!(newest(&messages, WORDS), 4);
        let wanted = size(&messages);
        cut(&mut messages, &mut 0, Excess { wanted, needed: 0 }, WORDS).unwrap();
        assert_eq!(messages.len(), 8);
        assert!(messages[1].content.starts_with(WORDS.summary()), "{}", messages[1].content);
        assert_eq!(messages[2].role, Role::Assistant);
    }
}

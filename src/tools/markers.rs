//! Answers of tools that are not values: code in a cell gets a marker, a plain string, which it may print anywhere. In
//! the cell's output the marker is replaced by the tool's answer.

use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};

use super::contract::{Image, ToolOutput};
use crate::protocol::limits::TOOL_RESPONSES_BYTES;

const OPENING: &str = "<<TOOL_RESPONSE:";
const CLOSING: &str = ">>";
/// The digits of the largest call number.
const DIGITS: usize = 20;

/// The most answers that are kept, and the bytes that one takes in addition to its text.
const RESPONSES: usize = 10_000;
const RESPONSE_BYTES: u64 = 128;

/// The marker that code gets in place of the answer to this call.
pub fn marker(call: u64) -> String {
    format!("{OPENING}{call}{CLOSING}")
}

/// The answers of a session's tools, for markers in later output. The oldest are dropped when they take too much.
#[derive(Clone, Debug, Default)]
pub struct Responses {
    by_call: BTreeMap<u64, (String, Vec<Image>)>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl Responses {
    /// The value that the code gets: the tool's own value, or a marker for an answer that is kept here.
    pub fn answer(&mut self, call: u64, output: ToolOutput) -> Value {
        let (text, images) = match output {
            ToolOutput::Value(value) => return value,
            ToolOutput::Text(text) => (text, Vec::new()),
            ToolOutput::Parts { text, images } => (text, images),
        };
        self.bytes = self.bytes.saturating_add(size(&text, &images));
        if let Some((text, images)) = self.by_call.insert(call, (text, images)) {
            self.bytes = self.bytes.saturating_sub(size(&text, &images));
        } else {
            self.order.push_back(call);
        }
        while (self.bytes > TOOL_RESPONSES_BYTES || self.by_call.len() > RESPONSES)
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some((text, images)) = self.by_call.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(size(&text, &images));
            }
        }
        Value::String(marker(call))
    }

    /// The bytes that the kept answers take.
    pub fn bytes(&self) -> u64 {
        (self.bytes as u64).saturating_add(RESPONSE_BYTES.saturating_mul(self.by_call.len() as u64))
    }

    pub fn is_empty(&self) -> bool {
        self.by_call.is_empty()
    }

    pub fn text(&self, call: u64) -> Option<&str> {
        self.by_call.get(&call).map(|(text, _)| text.as_str())
    }

    pub fn images(&self, call: u64) -> &[Image] {
        self.by_call.get(&call).map(|(_, images)| images.as_slice()).unwrap_or_default()
    }
}

fn size(text: &str, images: &[Image]) -> usize {
    images.iter().fold(text.len(), |sum, image| sum.saturating_add(image.base64.len()))
}

/// Output with its markers replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpandedText {
    pub text: String,
    /// The calls whose markers were found, each once, in order; their images are to be shown.
    pub calls: Vec<u64>,
}

/// Replaces markers in a stream that arrives in pieces; each stream has its own expander. A tool's answer is not
/// searched for further markers. The marker of an unknown call stays as it is, and so do all markers whose answer would
/// exceed the limit of inserted bytes.
#[derive(Debug)]
pub struct Expander {
    withheld: String,
    bytes_left: usize,
}

impl Expander {
    /// `most_bytes` limits the bytes that are inserted in total.
    pub fn new(most_bytes: usize) -> Self {
        Self { withheld: String::new(), bytes_left: most_bytes }
    }

    /// The text that can be shown now. A possible beginning of a marker is held back.
    pub fn push<'a>(&mut self, piece: &str, lookup: impl Fn(u64) -> Option<&'a str>) -> ExpandedText {
        let mut text = std::mem::take(&mut self.withheld);
        text.push_str(piece);
        let mut expanded = ExpandedText::default();
        let mut rest = text.as_str();
        while let Some((before, from_opening)) = split_at_found(rest, OPENING) {
            expanded.text.push_str(before);
            match read(from_opening) {
                MarkerRead::Whole { call, after } => {
                    let whole = from_opening.strip_suffix(after).unwrap_or_default();
                    self.replace(call, whole, lookup(call), &mut expanded);
                    rest = after;
                }
                MarkerRead::Unfinished => {
                    from_opening.clone_into(&mut self.withheld);
                    return expanded;
                }
                MarkerRead::Other => {
                    expanded.text.push_str(OPENING);
                    rest = from_opening.strip_prefix(OPENING).unwrap_or_default();
                }
            }
        }
        let begun = (1..OPENING.len()).rev().filter_map(|length| OPENING.get(..length));
        let begun = begun.into_iter().find(|begun| rest.ends_with(begun)).unwrap_or_default();
        expanded.text.push_str(rest.strip_suffix(begun).unwrap_or(rest));
        begun.clone_into(&mut self.withheld);
        expanded
    }

    /// Text that was held back and did not become a marker.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.withheld)
    }

    fn replace(&mut self, call: u64, marker: &str, found: Option<&str>, expanded: &mut ExpandedText) {
        match found {
            Some(response) if response.len() <= self.bytes_left => {
                self.bytes_left -= response.len();
                expanded.text.push_str(response);
                if !expanded.calls.contains(&call) {
                    expanded.calls.push(call);
                }
            }
            _ => expanded.text.push_str(marker),
        }
    }
}

/// Replaces the markers in a whole text at once.
pub fn expand_markers<'a>(
    text: &str,
    lookup: impl Fn(u64) -> Option<&'a str>,
    most_bytes: usize,
) -> ExpandedText {
    let mut expander = Expander::new(most_bytes);
    let mut expanded = expander.push(text, lookup);
    expanded.text.push_str(&expander.finish());
    expanded
}

/// Replaces markers in bytes that need not be UTF-8; `None` if nothing was replaced.
pub fn replace_markers<'a>(
    data: &[u8],
    lookup: impl Fn(u64) -> Option<&'a str>,
    most_bytes: usize,
) -> Option<Vec<u8>> {
    let mut expander = Expander::new(most_bytes);
    let (mut replaced, mut found) = (Vec::new(), false);
    for chunk in data.utf8_chunks() {
        let expanded = expander.push(chunk.valid(), &lookup);
        found |= !expanded.calls.is_empty();
        replaced.extend_from_slice(expanded.text.as_bytes());
        replaced.extend_from_slice(expander.finish().as_bytes());
        replaced.extend_from_slice(chunk.invalid());
    }
    found.then_some(replaced)
}

/// The length of `data` before a possible beginning of a marker whose end has not arrived yet.
pub fn before_begun_marker(data: &[u8]) -> usize {
    let from = data.len().saturating_sub(OPENING.len() + DIGITS + 1);
    let begun = |start: &usize| data.get(*start..).is_some_and(is_begun);
    (from..data.len()).find(begun).unwrap_or(data.len())
}

fn is_begun(text: &[u8]) -> bool {
    match text.strip_prefix(OPENING.as_bytes()) {
        None => OPENING.as_bytes().starts_with(text),
        Some(rest) => {
            let digits = rest.strip_suffix(b">").filter(|digits| !digits.is_empty()).unwrap_or(rest);
            digits.len() <= DIGITS && digits.iter().all(u8::is_ascii_digit)
        }
    }
}

fn split_at_found<'a>(text: &'a str, pattern: &str) -> Option<(&'a str, &'a str)> {
    text.split_at_checked(text.find(pattern)?)
}

enum MarkerRead<'a> {
    Whole {
        call: u64,
        after: &'a str,
    },
    /// The text may become a marker when more arrives.
    Unfinished,
    Other,
}

/// Parses a text that begins with the opening.
fn read(text: &str) -> MarkerRead<'_> {
    let rest = text.strip_prefix(OPENING).unwrap_or_default();
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let Some((number, end)) = rest.split_at_checked(digits).filter(|_| digits <= DIGITS) else {
        return MarkerRead::Other;
    };
    if let Some(after) = end.strip_prefix(CLOSING) {
        return match number.parse() {
            Ok(call) => MarkerRead::Whole { call, after },
            Err(_) => MarkerRead::Other,
        };
    }
    if end.is_empty() || (end == ">" && digits > 0) { MarkerRead::Unfinished } else { MarkerRead::Other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 1_000;

    fn response_of(call: u64) -> Option<&'static str> {
        match call {
            1 => Some("one"),
            2 => Some("<<TOOL_RESPONSE:1>>"),
            3 => Some(""),
            u64::MAX => Some("last"),
            _ => None,
        }
    }

    #[test]
    fn markers_are_replaced_where_they_stand() {
        let text = format!("a {} b{}{}", marker(1), marker(1), marker(u64::MAX));
        let expanded = expand_markers(&text, response_of, MOST);
        assert_eq!(expanded, ExpandedText { text: "a one bonelast".into(), calls: vec![1, u64::MAX] });
    }

    #[test]
    fn what_a_tool_said_is_not_searched_again() {
        assert_eq!(expand_markers(&marker(2), response_of, MOST).text, "<<TOOL_RESPONSE:1>>");
        assert_eq!(expand_markers(&marker(3), response_of, MOST).text, "");
    }

    #[test]
    fn what_is_no_marker_stays() {
        for text in [
            "<<TOOL_RESPONSE:7>>",
            "<<TOOL_RESPONSE:>>",
            "<<TOOL_RESPONSE:1>",
            "<<TOOL_RESPONSE:1",
            "<<TOOL_RESP",
            "<<TOOL_RESPONSE:-1>>",
            "<<TOOL_RESPONSE:99999999999999999999>>",
            "<<",
            "",
            "<<TOOL_RESPONSE:111111111111111111111111111>>",
        ] {
            assert_eq!(
                expand_markers(text, response_of, MOST),
                ExpandedText { text: text.into(), calls: vec![] }
            );
        }
        assert_eq!(
            expand_markers("<<TOOL_RESPONSE:<<TOOL_RESPONSE:1>>", response_of, MOST).text,
            "<<TOOL_RESPONSE:one"
        );
        assert_eq!(expand_markers("<<<TOOL_RESPONSE:1>>>", response_of, MOST).text, "<one>");
    }

    #[test]
    fn what_is_put_in_is_bounded() {
        let text = marker(1).repeat(3);
        assert_eq!(expand_markers(&text, response_of, 7).text, format!("oneone{}", marker(1)));
    }

    #[test]
    fn little_is_held_back() {
        let mut expander = Expander::new(MOST);
        assert_eq!(expander.push("abc<", response_of).text, "abc");
        assert_eq!(expander.push("<TOOL_RESPONSE:1>", response_of).text, "");
        assert_eq!(expander.push(">d", response_of), ExpandedText { text: "oned".into(), calls: vec![1] });
        expander.push("<<TOOL_RESPONSE:", response_of);
        assert_eq!(expander.push(&"1".repeat(10_000), response_of).text.len(), 10_000 + OPENING.len());
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        let data = [b"\xff".as_slice(), marker(1).as_bytes(), b"\xe4\xb8 <<TOOL_RESPONSE:9>>"].concat();
        let expected = b"\xffone\xe4\xb8 <<TOOL_RESPONSE:9>>".as_slice();
        assert_eq!(replace_markers(&data, response_of, MOST).as_deref(), Some(expected));
        assert_eq!(replace_markers(b"<<TOOL_RESPONSE:9>> \xff", response_of, MOST), None);
    }

    #[test]
    fn the_oldest_answers_go_first() {
        let mut responses = Responses::default();
        assert_eq!(responses.answer(1, ToolOutput::Value(5.into())), Value::from(5));
        assert_eq!(responses.answer(2, ToolOutput::Text("two".into())), Value::from("<<TOOL_RESPONSE:2>>"));
        assert_eq!((responses.text(1), responses.text(2)), (None, Some("two")));
        let image = Image { mime: "image/png".into(), base64: "x".repeat(TOOL_RESPONSES_BYTES - 2) };
        responses.answer(3, ToolOutput::Parts { text: "p".into(), images: vec![image] });
        assert_eq!((responses.text(2), responses.text(3)), (None, Some("p")));
        assert_eq!(responses.images(3).len(), 1);
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_as_the_whole(text in "(<|<<TOOL_RESPONSE:|1|2|7|>|>>|é|a){0,30}", cuts in prop::collection::vec(0usize..200, 0..8)) {
            let whole = expand_markers(&text, response_of, MOST);
            let mut expander = Expander::new(MOST);
            let mut joined = String::new();
            let letters: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(letters.len())).collect();
            cuts.push(letters.len());
            cuts.sort_unstable();
            let mut start = 0;
            for cut in cuts {
                let piece: String = letters[start..cut].iter().collect();
                joined.push_str(&expander.push(&piece, response_of).text);
                start = cut;
            }
            joined.push_str(&expander.finish());
            prop_assert_eq!(joined, whole.text);
        }

        #[test]
        fn bytes_cut_before_a_begun_marker_give_the_same_as_the_whole(text in "(<|<<TOOL_RESPONSE:|1|2|7|>|>>|é|a){0,30}", cut in 0usize..300) {
            let data = text.as_bytes();
            let replaced = |data: &[u8]| replace_markers(data, response_of, MOST).unwrap_or_else(|| data.to_vec());
            let came = &data[..cut.min(data.len())];
            let end = before_begun_marker(came);
            prop_assert!(came.len() - end < marker(u64::MAX).len());
            prop_assert_eq!([replaced(&data[..end]), replaced(&data[end..])].concat(), replaced(data));
        }
    }
}

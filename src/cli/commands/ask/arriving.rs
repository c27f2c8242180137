//! Takes apart a reply that is still arriving, where it is JSON or has tags: the parts that are text for people and those
//! that are code are known piece by piece, before the reply is whole.

use crate::cli::render::block::Section;

/// The most characters of a key that are kept, and of the text of one; none that is looked for is longer.
const KEY_CHARS: usize = 32;

/// A piece of a reply, and what it is part of.
pub(super) type Piece = (Section, String);

/// Adds text to the last piece if that is part of the same, so that there are few pieces.
fn push(pieces: &mut Vec<Piece>, section: Section, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some((last, before)) if *last == section => before.push_str(text),
        _ => pieces.push((section, text.to_owned())),
    }
}

/// A field whose text is shown, and what that is.
#[derive(Debug)]
pub(super) struct WantedField {
    pub key: &'static str,
    pub section: Section,
    /// It is meant only if the field that says so had this text before.
    pub only_of: Option<&'static str>,
}

impl WantedField {
    pub const fn new(key: &'static str, section: Section) -> Self {
        Self { key, section, only_of: None }
    }
}

/// Finds the texts of some fields in JSON.
#[derive(Debug)]
pub(super) struct JsonTexts {
    /// The field that says what the others mean, and its text.
    kind_key: &'static str,
    kind: String,
    wanted: &'static [WantedField],
    place: Place,
    key: String,
    is_after_colon: bool,
    escape: Escape,
    /// The first half of a character that is written as two escapes.
    high_surrogate: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Between,
    Key,
    Kind,
    Wanted(Section),
    Unwanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// The digits so far, and their number.
    Unicode(u32, u8),
}

impl JsonTexts {
    pub fn new(kind_key: &'static str, wanted: &'static [WantedField]) -> Self {
        Self {
            kind_key,
            kind: String::new(),
            wanted,
            place: Place::Between,
            key: String::new(),
            is_after_colon: false,
            escape: Escape::None,
            high_surrogate: None,
        }
    }

    pub fn hear(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for letter in text.chars() {
            if self.place == Place::Between {
                self.between(letter);
            } else if let Some(letter) = self.unescaped(letter) {
                self.add(letter, &mut pieces);
            }
        }
        pieces
    }

    fn between(&mut self, letter: char) {
        match letter {
            '"' if self.is_after_colon => {
                self.place = self.place_of_text();
            }
            '"' => {
                self.key.clear();
                self.place = Place::Key;
            }
            ':' => self.is_after_colon = true,
            letter if letter.is_whitespace() => {}
            _ => self.is_after_colon = false,
        }
    }

    /// What the text that begins behind a key is.
    fn place_of_text(&mut self) -> Place {
        if self.key == self.kind_key {
            self.kind.clear();
            return Place::Kind;
        }
        let is_meant = |field: &&WantedField| {
            field.key == self.key && field.only_of.is_none_or(|kind| kind == self.kind)
        };
        let wanted = self.wanted.iter().find(is_meant);
        wanted.map_or(Place::Unwanted, |field| Place::Wanted(field.section))
    }

    /// The letter that a string has at this place; none if it ends, or an escape goes on.
    fn unescaped(&mut self, letter: char) -> Option<char> {
        match (self.escape, letter) {
            (Escape::None, '\\') => self.escape = Escape::Begun,
            (Escape::None, '"') => (self.place, self.is_after_colon) = (Place::Between, false),
            (Escape::None, letter) => return Some(letter),
            (Escape::Begun, 'u') => self.escape = Escape::Unicode(0, 0),
            (Escape::Begun, letter) => {
                self.escape = Escape::None;
                return Some(match letter {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' | 'f' => ' ',
                    letter => letter,
                });
            }
            (Escape::Unicode(digits, count), letter) => {
                let digits = digits * 16 + letter.to_digit(16).unwrap_or_default();
                if count < 3 {
                    self.escape = Escape::Unicode(digits, count + 1);
                } else {
                    self.escape = Escape::None;
                    return self.of_code_unit(digits);
                }
            }
        }
        None
    }

    fn of_code_unit(&mut self, unit: u32) -> Option<char> {
        match (self.high_surrogate.take(), unit) {
            (_, 0xd800..=0xdbff) => {
                self.high_surrogate = Some(unit);
                None
            }
            (Some(high), 0xdc00..=0xdfff) => {
                char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (unit - 0xdc00))
            }
            (_, unit) => Some(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }

    fn add(&mut self, letter: char, pieces: &mut Vec<Piece>) {
        match self.place {
            Place::Key if self.key.len() < KEY_CHARS => self.key.push(letter),
            Place::Kind if self.kind.len() < KEY_CHARS => self.kind.push(letter),
            Place::Wanted(section) => push(pieces, section, letter.encode_utf8(&mut [0; 4])),
            Place::Key | Place::Kind | Place::Unwanted | Place::Between => {}
        }
    }
}

/// Tells text from what stands between tags.
#[derive(Debug)]
pub(super) struct TaggedText {
    /// The tags, and what stands in them; nothing that is shown if there is no section.
    tags: &'static [(&'static str, Option<Section>)],
    /// The tag that is open.
    open: Option<usize>,
    /// The end of the text so far, if it may be the beginning of a tag.
    held: String,
}

impl TaggedText {
    pub fn new(tags: &'static [(&'static str, Option<Section>)]) -> Self {
        Self { tags, open: None, held: String::new() }
    }

    pub fn hear(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let text = std::mem::take(&mut self.held) + text;
        let mut rest = text.as_str();
        while let Some(at) = rest.find('<') {
            self.show(&rest[..at], &mut pieces);
            rest = &rest[at..];
            let (end, open) = match self.tag_at(rest) {
                Tag::Whole(length, open) => (length, open),
                Tag::Begun => {
                    rest.clone_into(&mut self.held);
                    return pieces;
                }
                Tag::None => (1, self.open),
            };
            if open == self.open {
                self.show(&rest[..end], &mut pieces);
            }
            self.open = open;
            rest = &rest[end..];
        }
        self.show(rest, &mut pieces);
        pieces
    }

    fn show(&self, text: &str, pieces: &mut Vec<Piece>) {
        let section = match self.open {
            Some(tag) => self.tags.get(tag).and_then(|(_, section)| *section),
            None => Some(Section::Model),
        };
        if let Some(section) = section {
            push(pieces, section, text);
        }
    }

    /// The tag that can stand here, at the beginning of a text that begins with `<`.
    fn tag_at(&self, text: &str) -> Tag {
        let tags = self.tags.iter().enumerate().filter(|(at, _)| self.open.is_none_or(|open| open == *at));
        let mut is_begun = false;
        for (at, (name, _)) in tags {
            let (tag, after) = match self.open {
                None => (format!("<{name}>"), Some(at)),
                Some(_) => (format!("</{name}>"), None),
            };
            let length = text.len().min(tag.len());
            if text.as_bytes()[..length].eq_ignore_ascii_case(&tag.as_bytes()[..length]) {
                if length == tag.len() {
                    return Tag::Whole(tag.len(), after);
                }
                is_begun = true;
            }
        }
        if is_begun { Tag::Begun } else { Tag::None }
    }
}

enum Tag {
    /// A complete tag: its length, and the tag open after it.
    Whole(usize, Option<usize>),
    Begun,
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[WantedField] =
        &[WantedField::new("thought", Section::Thought), WantedField::new("code", Section::Code)];
    const TAGS: &[(&str, Option<Section>)] = &[("code", Some(Section::Code)), ("pip", None)];

    /// What is heard of a text, whole and letter by letter, which has to be the same.
    fn heard(text: &str, mut reader: impl FnMut() -> Box<dyn FnMut(&str) -> Vec<Piece>>) -> Vec<Piece> {
        let whole = reader()(text);
        let mut by_letter = reader();
        let mut pieces = Vec::new();
        for letter in text.chars() {
            for (section, text) in by_letter(&letter.to_string()) {
                push(&mut pieces, section, &text);
            }
        }
        assert_eq!(whole, pieces, "{text}");
        whole
    }

    fn json(text: &str) -> Vec<Piece> {
        heard(text, || {
            let mut texts = JsonTexts::new("action", FIELDS);
            Box::new(move |text| texts.hear(text))
        })
    }

    fn tagged(text: &str) -> Vec<Piece> {
        heard(text, || {
            let mut tagged = TaggedText::new(TAGS);
            Box::new(move |text| tagged.hear(text))
        })
    }

    fn piece(section: Section, text: &str) -> Piece {
        (section, text.to_owned())
    }

    #[test]
    fn texts_of_json_are_known_before_its_end() {
        let text = r#"```json {"thought" : "I \"add\"\n\u4e2d\ud83d\ude00", "n": [1, "code"], "x": {"code": "a = {\"thought\": 1}"#;
        assert_eq!(
            json(text),
            [piece(Section::Thought, "I \"add\"\n中😀"), piece(Section::Code, "a = {\"thought\": 1}")]
        );
        for nothing in ["no idea", "{\"thought\": null, \"y\": \"z\"}", "[\"code\", \"thought\"]", "{\"thou"]
        {
            assert_eq!(json(nothing), [], "{nothing}");
        }
        assert_eq!(json(r#"{"thought": "\ud800x"}"#), [piece(Section::Thought, "x")]);
    }

    #[test]
    fn text_around_tags_and_in_them_is_told_apart() {
        assert_eq!(
            tagged("1 < 2 <b> <PIP>numpy</pip>so <code>if a</b: 1</code> done <cod"),
            [
                piece(Section::Model, "1 < 2 <b> so "),
                piece(Section::Code, "if a</b: 1"),
                piece(Section::Model, " done "),
            ]
        );
    }
}

//! Patterns in schemas. They are matched in linear time, so look-around and back references are not supported. Matching
//! costs the size of the compiled pattern times the length of the text, and untrusted clients and models supply both:
//! the patterns of a schema have a size that they share, and matching counts as steps of the check.

use regex::{Regex, RegexBuilder};
use std::collections::HashMap;

use super::budget::{Budget, Stop};
use super::pattern_syntax::translated;
use super::problem::excerpt;
use crate::protocol::limits::{PATTERNS, PATTERNS_COMPILED_BYTES, PATTERNS_TEXT_BYTES};

/// The compiled size that every pattern is assumed to have at least; larger ones are tried in turn.
/// The less they are apart, the better is the cost of a match known, and the more often a pattern is compiled.
const SMALLEST_BYTES: usize = 8 * 1024;
const LARGER_TIMES: usize = 2;
/// Bytes of a compiled pattern for which one byte of text costs one step.
const COMPILED_BYTES_A_STEP: usize = 1024;
/// Steps that every match costs.
const MATCH_STEPS: u64 = 16;
/// Bytes of memory for states that the matcher remembers between texts.
const REMEMBERED_BYTES: usize = 64 * 1024;
/// How many times a pattern takes the size that it is compiled within: read forwards, backwards, and by the slower
/// matcher.
const COMPILED_COPIES: u64 = 3;
/// The matchers of a pattern that remember states.
const REMEMBERING: u64 = 2;
/// How many times the text of a pattern with flags counts: one that ignores case takes much longer to compile.
const FLAGS_TIMES: usize = 8;

#[derive(Debug)]
struct Pattern {
    regex: Regex,
    /// The steps that each byte of text costs.
    byte_steps: u64,
}

/// The compiled patterns of a schema, each once, by the text of the pattern.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    compiled: HashMap<String, Pattern>,
    text_bytes: usize,
    compiled_bytes: usize,
}

impl Patterns {
    /// The most memory that the patterns of one schema take.
    pub const MOST_BYTES: u64 = memory_bytes(PATTERNS, PATTERNS_COMPILED_BYTES);

    pub fn memory_bytes(&self) -> u64 {
        memory_bytes(self.compiled.len(), self.compiled_bytes)
    }

    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        if self.compiled.contains_key(pattern) {
            return Ok(());
        }
        let times = if has_flags(pattern) { FLAGS_TIMES } else { 1 };
        self.text_bytes += pattern.len() * times;
        if self.compiled.len() == PATTERNS || self.text_bytes > PATTERNS_TEXT_BYTES {
            return Err(format!(
                "the schema has more than {PATTERNS} different patterns, or {PATTERNS_TEXT_BYTES} bytes of them"
            ));
        }
        let translated = translated(pattern)
            .map_err(|what| format!("{what} is not supported in patterns: {:?}", excerpt(pattern)))?;
        let mut bytes = SMALLEST_BYTES;
        let regex = loop {
            if self.compiled_bytes + bytes > PATTERNS_COMPILED_BYTES {
                return Err(format!("the pattern {:?} is too large, or others are", excerpt(pattern)));
            }
            // The ends of lines are those of JavaScript but for two that are rare, U+2028 and U+2029.
            let mut builder = RegexBuilder::new(&translated);
            match builder.crlf(true).size_limit(bytes).dfa_size_limit(REMEMBERED_BYTES).build() {
                Ok(regex) => break regex,
                Err(regex::Error::CompiledTooBig(_)) => bytes *= LARGER_TIMES,
                Err(_) => {
                    return Err(format!("it is no JSON Schema: {:?} is no pattern", excerpt(pattern)));
                }
            }
        };
        self.compiled_bytes += bytes;
        let byte_steps = (bytes / COMPILED_BYTES_A_STEP) as u64;
        self.compiled.insert(pattern.to_owned(), Pattern { regex, byte_steps });
        Ok(())
    }

    /// Whether a text has a part that matches a pattern of this schema.
    pub fn is_match(&self, pattern: &str, text: &str, budget: &mut Budget) -> Result<bool, Stop> {
        // Every pattern of a schema was compiled with it; a text cannot match one that was not.
        let Some(pattern) = self.compiled.get(pattern) else { return Ok(false) };
        budget.charge(MATCH_STEPS.saturating_add(pattern.byte_steps.saturating_mul(text.len() as u64)))?;
        Ok(pattern.regex.is_match(text))
    }
}

const fn memory_bytes(patterns: usize, compiled_bytes: usize) -> u64 {
    COMPILED_COPIES * compiled_bytes as u64 + REMEMBERING * (REMEMBERED_BYTES * patterns) as u64
}

/// Whether a pattern may have flags such as `(?i)`; those of names of groups are none.
fn has_flags(pattern: &str) -> bool {
    pattern.split("(?").skip(1).any(|group| !group.starts_with([':', '<', 'P']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_for_captures() {
        let mut patterns = Patterns::default();
        let pattern = "^(?<key>[a-z]{1,9})=(\\w{1,9})$";
        patterns.add(pattern).unwrap();
        assert!(patterns.is_match(pattern, "a=1", &mut Budget::new()).unwrap());
        assert!(patterns.compiled.values().all(|pattern| pattern.regex.captures_len() == 1));
    }

    #[test]
    fn what_could_take_long_is_refused_by_name() {
        let refusal = |pattern: &str| Patterns::default().add(pattern).unwrap_err();
        for pattern in ["(?=a)", "a(?!b)", "(?<=a)b", "(?<!a)b"] {
            assert!(refusal(pattern).starts_with("look-around is not supported in patterns"), "{pattern}");
        }
        assert!(refusal("(a)\\1").starts_with("a back reference is not supported"));
        assert!(refusal("(?<x>a)\\k<x>").starts_with("a back reference is not supported"));
        assert!(refusal("[]").starts_with("an empty class is not supported"));
        assert!(refusal("(").starts_with("it is no JSON Schema"));
        assert!(refusal("a[ab]{50000}[^ab]").contains("too large"));
        assert!(refusal("(((a{100}){100}){100}){100}").contains("too large"));
        assert!(refusal(&"a".repeat(PATTERNS_TEXT_BYTES + 1)).contains("bytes of them"));
        assert!(refusal(&format!("(?i){}", "\\p{L}".repeat(300))).contains("bytes of them"));
        assert!(refusal(&"(".repeat(1_000)).contains("no pattern"), "nesting is bounded");
        assert!(Patterns::default().add("[(?=]").is_ok(), "in a class, that is three characters");
    }

    #[test]
    fn the_patterns_of_a_schema_share_their_bounds() {
        let mut patterns = Patterns::default();
        for number in 0..PATTERNS {
            patterns.add(&format!("^{number}")).unwrap();
            patterns.add("^0").unwrap();
        }
        assert!(patterns.add("^more").unwrap_err().contains("different patterns"));
        let mut patterns = Patterns::default();
        let large = (0..PATTERNS).map(|number| patterns.add(&format!("{number}\\p{{L}}{{10}}")));
        assert!(large.filter(Result::is_err).count() > PATTERNS / 2);
        assert!(patterns.compiled_bytes <= PATTERNS_COMPILED_BYTES);
        assert!(patterns.memory_bytes() <= Patterns::MOST_BYTES);
    }
}

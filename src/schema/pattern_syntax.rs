//! Translates patterns of JSON Schema, which are those of JavaScript (ECMA-262), for the crate `regex`. Both look alike
//! and differ in details, so that everything but plain characters is read here and written anew; what has no
//! counterpart is refused by name. No caller asks what a group captured: every group is written as one that captures
//! nothing, because for those that capture the crate builds one more automaton that its size limit does not count.

/// The part of a pattern that matches one character.
enum Atom {
    Literal(char),
    /// A set of characters, as the crate writes it.
    Set(String),
}

const DIGITS: &str = "0-9";
const WORD: &str = "A-Za-z0-9_";
/// White space and ends of lines of ECMA-262, which has U+FEFF among them and not U+0085.
const SPACE: &str = r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";
/// The flags of a group that both know.
const FLAGS: [char; 4] = ['i', 'm', 's', '-'];

/// The error names what is not supported. What is no pattern at all is left to the crate to refuse.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut reader = Reader { rest: pattern };
    let mut out = String::with_capacity(pattern.len());
    while let Some(c) = reader.next() {
        match c {
            '\\' => match reader.peek() {
                None => out.push('\\'),
                Some('1'..='9' | 'k') => return Err("a back reference".to_owned()),
                Some(boundary @ ('b' | 'B')) => {
                    reader.next();
                    // Words are of ASCII in JavaScript.
                    out.extend(["(?-u:\\", boundary.encode_utf8(&mut [0; 4]), ")"]);
                }
                Some(_) => match reader.escape()? {
                    Atom::Literal(c) => push_literal(&mut out, c),
                    Atom::Set(set) => out.push_str(&set),
                },
            },
            '(' => reader.group(&mut out)?,
            '[' => reader.class(&mut out)?,
            '{' if !reader.begins_count() => return Err("a `{` that begins no count".to_owned()),
            _ => out.push(c),
        }
    }
    Ok(out)
}

struct Reader<'p> {
    rest: &'p str,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next();
        self.rest = chars.as_str();
        c
    }

    fn skip(&mut self, text: &str) -> bool {
        let after = self.rest.strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Takes what comes before a mark, and the mark.
    fn until(&mut self, mark: char) -> Option<&str> {
        let (before, after) = self.rest.split_once(mark)?;
        self.rest = after;
        Some(before)
    }

    /// Whether a `{` that was just read begins `{2}`, `{2,}` or `{2,3}`. The crate takes some more for counts.
    fn begins_count(&self) -> bool {
        let Some((count, _)) = self.rest.split_once('}') else { return false };
        let (least, most) = count.split_once(',').unwrap_or((count, ""));
        !least.is_empty() && least.chars().chain(most.chars()).all(|c| c.is_ascii_digit())
    }

    /// Reads what follows a `(`.
    fn group(&mut self, out: &mut String) -> Result<(), String> {
        out.push_str("(?");
        if ["?=", "?!", "?<=", "?<!"].iter().any(|prefix| self.rest.starts_with(prefix)) {
            return Err("look-around".to_owned());
        }
        if self.skip("?<") || self.skip("?P<") {
            let name = self.until('>').unwrap_or_default();
            let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
                && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$');
            if name.is_empty() || !is_name {
                return Err("such a name of a group".to_owned());
            }
        } else if self.skip("?") {
            while let Some(flag) = self.peek().filter(|c| FLAGS.contains(c)) {
                self.next();
                out.push(flag);
            }
            return match self.next() {
                Some(end @ (':' | ')')) => {
                    out.push(end);
                    Ok(())
                }
                _ => Err("a group with such a mark".to_owned()),
            };
        }
        out.push(':');
        Ok(())
    }

    /// Reads what follows a `[`.
    fn class(&mut self, out: &mut String) -> Result<(), String> {
        out.push('[');
        if self.skip("^") {
            out.push('^');
        }
        if self.rest.starts_with(']') {
            return Err("an empty class".to_owned());
        }
        while !self.skip("]") {
            let Some(first) = self.class_atom()? else { return Ok(()) };
            if !self.rest.starts_with('-') || self.rest.starts_with("-]") {
                first.push_into(out);
                continue;
            }
            self.next();
            let Some(last) = self.class_atom()? else { return Ok(()) };
            first.push_into(out);
            // Between sets, of which none can begin or end a range, JavaScript takes the sign as it is.
            let is_range = matches!((&first, &last), (Atom::Literal(_), Atom::Literal(_)));
            out.push_str(if is_range { "-" } else { "\\-" });
            last.push_into(out);
        }
        out.push(']');
        Ok(())
    }

    fn class_atom(&mut self) -> Result<Option<Atom>, String> {
        match self.next() {
            Some('\\') if self.skip("b") => Ok(Some(Atom::Literal('\u{8}'))),
            Some('\\') => self.escape().map(Some),
            c => Ok(c.map(Atom::Literal)),
        }
    }

    /// Reads what follows a `\`, and means the same in a class as outside of one.
    fn escape(&mut self) -> Result<Atom, String> {
        let Some(c) = self.next() else { return Err("a `\\` at the end".to_owned()) };
        let read = match c {
            'd' => Some(Atom::Set(format!("[{DIGITS}]"))),
            'D' => Some(Atom::Set(format!("[^{DIGITS}]"))),
            'w' => Some(Atom::Set(format!("[{WORD}]"))),
            'W' => Some(Atom::Set(format!("[^{WORD}]"))),
            's' => Some(Atom::Set(format!("[{SPACE}]"))),
            'S' => Some(Atom::Set(format!("[^{SPACE}]"))),
            'p' | 'P' => self.property().map(|name| Atom::Set(format!("\\{c}{{{name}}}"))),
            't' => Some(Atom::Literal('\t')),
            'n' => Some(Atom::Literal('\n')),
            'v' => Some(Atom::Literal('\u{b}')),
            'f' => Some(Atom::Literal('\u{c}')),
            'r' => Some(Atom::Literal('\r')),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => Some(Atom::Literal('\0')),
            'c' => self.control().map(Atom::Literal),
            'x' => self.hexadecimal(2).and_then(char::from_u32).map(Atom::Literal),
            'u' => self.code_point().map(Atom::Literal),
            c if c.is_alphanumeric() => None,
            c => Some(Atom::Literal(c)),
        };
        read.ok_or_else(|| format!("`\\{c}` as it stands here"))
    }

    /// Reads the name of a property of characters, as in `{L}` and `{Script=Greek}`.
    fn property(&mut self) -> Option<String> {
        if !self.skip("{") {
            return None;
        }
        let name = self.until('}')?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=');
        (!name.is_empty() && is_name).then(|| name.to_owned())
    }

    fn control(&mut self) -> Option<char> {
        let letter = self.next().filter(char::is_ascii_alphabetic)?;
        char::from_u32(u32::from(letter) % 32)
    }

    fn code_point(&mut self) -> Option<char> {
        if self.skip("{") {
            let digits = self.until('}')?;
            let is_hexadecimal = digits.chars().all(|c| c.is_ascii_hexdigit());
            return u32::from_str_radix(digits, 16).ok().filter(|_| is_hexadecimal).and_then(char::from_u32);
        }
        let first = self.hexadecimal(4)?;
        if let Some(c) = char::from_u32(first) {
            return Some(c);
        }
        // What is no character by itself has to be the first half of one.
        let second = if self.skip("\\u") { self.hexadecimal(4)? } else { return None };
        let halves = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
        char::decode_utf16(halves).next()?.ok()
    }

    fn hexadecimal(&mut self, digits: usize) -> Option<u32> {
        let (mut number, mut read) = (0, 0);
        while read < digits {
            number = number * 16 + self.next()?.to_digit(16)?;
            read += 1;
        }
        Some(number)
    }
}

impl Atom {
    fn push_into(&self, out: &mut String) {
        match self {
            Self::Literal(c) => push_literal(out, *c),
            Self::Set(set) => out.push_str(set),
        }
    }
}

/// Writes a character that has no other meaning to the crate, in a class or outside of one.
fn push_literal(out: &mut String, c: char) {
    out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    fn is_match(pattern: &str, text: &str) -> bool {
        Regex::new(&translated(pattern).unwrap()).unwrap().is_match(text)
    }

    #[test]
    fn patterns_mean_what_they_mean_in_javascript() {
        for (pattern, text, matches) in [
            ("^\\d+$", "123", true),
            ("^\\d+$", "١٢", false),
            ("^[\\w.-]+$", "a_1.b-c", true),
            ("^\\W$", "é", true),
            ("^[^\\d]$", "5", false),
            ("^[^\\d]$", "x", true),
            ("^\\s\\S$", "\u{feff}\u{85}", true),
            ("b", "abc", true),
            ("^\\u0041\\/\\x42$", "A/B", true),
            ("^\\ud83d\\ude00\\u{1f600}$", "😀😀", true),
            ("^\\p{L}+\\P{Script=Greek}$", "Öl", true),
            ("^(?<year>[0-9]{4})(a|b){1,}$", "2024ab", true),
            ("^(?i:A)b$", "ab", true),
            ("^\\<\\>\\-\\@$", "<>-@", true),
            ("^\\cJ\\0$", "\n\0", true),
        ] {
            assert_eq!(is_match(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn classes_mean_what_they_mean_in_javascript() {
        for (class, within, without) in [
            ("[[a]", "[a", "]b"),
            ("[a&&b]", "a&b", "c"),
            ("[a~~b]", "a~b", "c"),
            ("[+--]", "+,-", "."),
            ("[--a]", "-A_a", ",b"),
            ("[+-\\d]", "+-07", ",./"),
            ("[\\d-x]", "5-x", "a"),
            ("[\\w-.]", "a-.", "+"),
            ("[\\w-\\s]", "a- ", "+"),
            ("[\\d\\-x]", "5-x", "a"),
            ("[-a]", "-a", "b"),
            ("[a-]", "-a", "b"),
            ("[^-a]", "b", "-a"),
            ("[a^]", "a^", "b"),
            ("[\\]\\\\]", "]\\", "["),
            ("[\\b]", "\u{8}", "b"),
            ("[\\x41-\\u0043]", "ABC", "D"),
            ("[(?=]", "(?=", ":"),
            ("[#-&]", "#$%&", "'-"),
        ] {
            let regex = Regex::new(&format!("^{}$", translated(class).unwrap())).unwrap();
            assert!(within.chars().all(|c| regex.is_match(&c.to_string())), "{class} {within}");
            assert!(!without.chars().any(|c| regex.is_match(&c.to_string())), "{class} {without}");
        }
        for broken in ["[a--]", "[a", "[a-", "a\\", "[\\]"] {
            assert!(
                translated(broken).is_err() || Regex::new(&translated(broken).unwrap()).is_err(),
                "{broken}"
            );
        }
    }

    #[test]
    fn words_are_of_ascii() {
        for (pattern, text, matches) in [
            ("\\bcat\\b", "a cat!", true),
            ("\\bcat\\b", "concat", false),
            ("\\bcat\\b", "écaté", true),
            ("\\Bcat\\B", "écaté", false),
            ("\\Bcat\\B", "xcatx", true),
            ("^é\\Bé$", "éé", true),
            ("é\\bé", "éé", false),
            // Within the bytes of a character there is no place at all.
            ("\\B", "aéa", false),
            ("\\B", "éé", true),
        ] {
            assert_eq!(is_match(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn no_group_captures() {
        for pattern in ["(a)|(b)", "^(?<year>[0-9]{4})((x)*)$", "(?P<a>b)", "([(])", "\\((a)"] {
            let regex = Regex::new(&translated(pattern).unwrap()).unwrap();
            assert_eq!(regex.captures_len(), 1, "{pattern}: only the whole match is captured");
        }
    }

    #[test]
    fn what_has_no_counterpart_is_refused_by_name() {
        for (pattern, what) in [
            ("(?=a)", "look-around"),
            ("(?<!a)", "look-around"),
            ("(a)\\1", "a back reference"),
            ("[]", "an empty class"),
            ("[^]", "an empty class"),
            ("\\Aa", "`\\A` as it stands here"),
            ("a\\z", "`\\z` as it stands here"),
            ("[\\B]", "`\\B` as it stands here"),
            ("[\\1]", "`\\1` as it stands here"),
            ("\\x4", "`\\x` as it stands here"),
            ("\\u12g4", "`\\u` as it stands here"),
            ("\\ud800", "`\\u` as it stands here"),
            ("\\pL", "`\\p` as it stands here"),
            ("\\p{^L}", "`\\p` as it stands here"),
            ("\\01", "`\\0` as it stands here"),
            ("(?x) # [\n(a)", "a group with such a mark"),
            ("(?-u)a", "a group with such a mark"),
            ("(?<1>a)", "such a name of a group"),
            ("a{,3}", "a `{` that begins no count"),
            ("a{ 3 }", "a `{` that begins no count"),
        ] {
            assert_eq!(translated(pattern).unwrap_err(), what, "{pattern}");
        }
    }
}

//! The parts of a text that differ each time the same code runs: numbers of cells in the names of their source, and
//! addresses of objects.

/// How the name of a cell's source begins, here and in other notebooks; a number and perhaps more follows, up to `>`.
const SOURCES: [&str; 2] = ["<cell ", "<ipython-input-"];
const HEX: &str = "0x";
/// What stands before an address in Python's own descriptions of objects, and the fewest digits of an address there.
const AT: &str = " at ";
const DIGITS_AT: usize = 6;
/// Digits of an address of a process with 64 bits, and how those of the stack, of libraries and of programs begin. A number
/// that is no address may look so too, but hardly ever does.
const DIGITS: usize = 12;
const BEGINNINGS: [&str; 3] = ["7f", "55", "56"];

/// The text without these parts.
pub(in crate::session) fn without_volatile(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['<', '0']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let (kept, after) =
            source(from).or_else(|| address(from, out.ends_with(AT))).unwrap_or_else(|| from.split_at(1));
        out.push_str(kept);
        rest = after;
    }
    out + rest
}

/// If a name of a cell's source begins here: what is kept of it, and what follows it.
fn source(text: &str) -> Option<(&str, &str)> {
    let (beginning, number) =
        SOURCES.iter().find_map(|source| Some((*source, text.strip_prefix(source)?)))?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let after = number.trim_start_matches(is_part);
    (number.starts_with(|c: char| c.is_ascii_digit()) && after.starts_with('>')).then_some((beginning, after))
}

/// If an address begins here: what is kept of it, and what follows it.
fn address(text: &str, is_described: bool) -> Option<(&str, &str)> {
    let digits = text.strip_prefix(HEX)?;
    let after = digits.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    let count = digits.len() - after.len();
    let is_plain = || count == DIGITS && BEGINNINGS.iter().any(|beginning| digits.starts_with(beginning));
    ((is_described && count >= DIGITS_AT) || is_plain()).then_some((HEX, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cells_and_addresses_go_and_all_else_stays() {
        for (text, expected) in [
            ("<cell 3>:1: UserWarning: x", "<cell >:1: UserWarning: x"),
            ("<cell 12.4>", "<cell >"),
            ("File <ipython-input-3-0a1b2c>", "File <ipython-input->"),
            ("<function f at 0x7f3a1b2c3d40>", "<function f at 0x>"),
            ("<object object at 0x1a2b3c0>", "<object object at 0x>"),
            ("c_void_p(0x55d0a1b2c3d4)", "c_void_p(0x)"),
            ("0x7f3a1b2c3d40", "0x"),
            (
                "hex(255) = 0xff at 0xff, 100, <cell a>, <cell 3",
                "hex(255) = 0xff at 0xff, 100, <cell a>, <cell 3",
            ),
            ("0x123456789abc 0x7f3a1b2c3d401", "0x123456789abc 0x7f3a1b2c3d401"),
            ("0x", "0x"),
            ("ü<ü0ü", "ü<ü0ü"),
        ] {
            assert_eq!(without_volatile(text), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_taken_and_never_grows(text in "(<cell [0-9]*>?| at |0x[0-9a-f]{0,14}|\\PC){0,20}") {
            let once = without_volatile(&text);
            assert!(once.len() <= text.len(), "{once}");
        }
    }
}

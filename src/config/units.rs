//! Sizes and times as people write them.

use crate::protocol::text::quotable;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} `{text}`: {reason}")]
pub struct UnitError {
    what: &'static str,
    text: String,
    reason: String,
}

/// Decimal places that are used; further ones would change even a size in TiB by about a byte at most.
const PLACES: usize = 12;

const SIZE_UNITS: [(&str, u64); 18] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

const NANOSECONDS: u64 = 1_000_000_000;
const TIME_UNITS: [(&str, u64); 16] = [
    ("ms", NANOSECONDS / 1_000),
    ("", NANOSECONDS),
    ("s", NANOSECONDS),
    ("sec", NANOSECONDS),
    ("second", NANOSECONDS),
    ("seconds", NANOSECONDS),
    ("m", 60 * NANOSECONDS),
    ("min", 60 * NANOSECONDS),
    ("minute", 60 * NANOSECONDS),
    ("minutes", 60 * NANOSECONDS),
    ("h", 3_600 * NANOSECONDS),
    ("hour", 3_600 * NANOSECONDS),
    ("hours", 3_600 * NANOSECONDS),
    ("d", 86_400 * NANOSECONDS),
    ("day", 86_400 * NANOSECONDS),
    ("days", 86_400 * NANOSECONDS),
];

/// Bytes: `1GiB`, `512MiB`, `64m`, `1.5g`, `10MB` (decimal), or a plain number.
///
/// # Errors
/// Says what is wrong with the text and what it could look like.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let error = |reason: String| UnitError { what: "size", text: quotable(text), reason };
    let total =
        scaled(text, &SIZE_UNITS, "use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`").map_err(error)?;
    u64::try_from(total).map_err(|_| error("it is too large".into()))
}

/// A time: `30s`, `60min`, `24h`, `1.5h`, `500ms`, or a plain number of seconds.
///
/// # Errors
/// Says what is wrong with the text and what it could look like.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let error = |reason: String| UnitError { what: "duration", text: quotable(text), reason };
    let total = scaled(text, &TIME_UNITS, "use `ms`, `s`, `min`, `h` or `d`, as in `30s`").map_err(error)?;
    u64::try_from(total).map(Duration::from_nanos).map_err(|_| error("it is too long".into()))
}

/// The number times its unit, in whole smallest units, computed exactly, without floating point.
fn scaled(text: &str, units: &[(&str, u64)], usage: &str) -> Result<u128, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(if text.starts_with('-') {
            "it cannot be negative".to_owned()
        } else {
            format!("a number is missing; {usage}")
        });
    }
    if fraction.contains('.') {
        return Err(format!("`{number}` is no number; {usage}"));
    }
    let unit = unit.trim().to_ascii_lowercase();
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("there is no unit `{}`; {usage}", quotable(&unit)));
    };
    let factor = u128::from(*factor);
    let whole: u128 =
        if whole.is_empty() { 0 } else { whole.parse().map_err(|_| "it is too large".to_owned())? };
    let (mut rest, mut divisor) = (0, 1);
    for digit in fraction.bytes().take(PLACES) {
        rest = rest * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    let whole = whole.checked_mul(factor).ok_or("it is too large")?;
    Ok(whole.checked_add(rest * factor / divisor).ok_or("it is too large")?)
}

/// `512 B`, `12 KiB`, `1.5 GiB`.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // The value is kept in rounded tenths, so that no floating point is needed.
    let mut unit = 0;
    let mut tenths = (u128::from(bytes) * 10 + 512) / 1024;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths = (tenths + 512) / 1024;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    if tenths >= 100 || tenths % 10 == 0 {
        format!("{} {name}", (tenths + 5) / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units_unless_said_otherwise() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7b", 7),
            ("64m", 64 << 20),
            ("64KiB", 64 << 10),
            ("512 MiB", 512 << 20),
            ("1GiB", 1 << 30),
            ("1.5g", 3 << 29),
            (".5k", 512),
            ("2Ti", 2 << 40),
            ("10MB", 10_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn times_are_seconds_unless_said_otherwise() {
        for (text, milliseconds) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("60min", 3_600_000),
            ("24h", 86_400_000),
            ("1.5h", 5_400_000),
            ("0.25", 250),
            ("500ms", 500),
            ("2 days", 172_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        let of = |text| parse_size(text).unwrap_err().to_string();
        insta::assert_snapshot!(
            [of("12x"), of(""), of("GiB"), of("-1m"), of("1.2.3g"), of("99999999999999999999t"), of("1\u{1b}[31m")]
                .join("\n"),
            @r"
        invalid size `12x`: there is no unit `x`; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
        invalid size ``: a number is missing; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
        invalid size `GiB`: a number is missing; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
        invalid size `-1m`: it cannot be negative
        invalid size `1.2.3g`: `1.2.3` is no number; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
        invalid size `99999999999999999999t`: it is too large
        invalid size `1\u{1b}[31m`: there is no unit `\u{1b}[31m`; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
        "
        );
        assert_eq!(
            parse_duration("5 weeks").unwrap_err().to_string(),
            "invalid duration `5 weeks`: there is no unit `weeks`; use `ms`, `s`, `min`, `h` or `d`, as in `30s`"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "\\PC*") {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
        }
    }
}

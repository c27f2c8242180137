//! A report in the XML format of `JUnit`, which CI systems understand.

use std::fmt::Write as _;

use super::report::Outcome;
use crate::protocol::job::Verdict;

pub(in crate::cli) fn report(outcomes: &[Outcome]) -> String {
    let count = |element| outcomes.iter().filter(|outcome| element_of(outcome) == Some(element)).count();
    let totals = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\"",
        outcomes.len(),
        count("failure"),
        count("error"),
        count("skipped"),
        outcomes.iter().map(Outcome::seconds).sum::<f64>(),
    );
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {totals}>\n  <testsuite name=\"belljar\" {totals}>\n"
    );
    for outcome in outcomes {
        let _ = writeln!(
            xml,
            "    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">",
            escaped(&outcome.path),
            escaped(&outcome.name),
            outcome.seconds()
        );
        let kind = outcome.exception().map_or_else(|| outcome.word().to_owned(), |raised| raised.type_name);
        let (message, kind) = (escaped(&outcome.reason()), escaped(&kind));
        let _ = match element_of(outcome) {
            None => Ok(()),
            Some("skipped") => writeln!(xml, "      <skipped message=\"{message}\"/>"),
            Some(element) => writeln!(xml, "      <{element} message=\"{message}\" type=\"{kind}\"/>"),
        };
        let _ = writeln!(xml, "      <system-out>{}</system-out>", escaped(&outcome.stdout));
        let _ = writeln!(xml, "      <system-err>{}</system-err>", escaped(&outcome.stderr));
        xml.push_str("    </testcase>\n");
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

/// The element for an outcome; none if the job passed. A script that exits with an error has failed; a script that did not get to its own end is an error.
fn element_of(outcome: &Outcome) -> Option<&'static str> {
    match outcome.verdict() {
        Some(Verdict::Passed) => None,
        Some(Verdict::Failed) => Some("failure"),
        Some(Verdict::TimedOut | Verdict::Crashed | Verdict::OutOfMemory | Verdict::Error) => Some("error"),
        Some(Verdict::Cancelled) | None => Some("skipped"),
    }
}

/// Escapes text and attributes. Characters that XML does not allow, not even escaped, are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // An XML parser would turn an unescaped one into a line feed.
            '\r' => out.push_str("&#13;"),
            '\t' | '\n' => out.push(char),
            '\u{fffe}' | '\u{ffff}' | '\0'..='\u{1f}' => out.push('\u{fffd}'),
            _ => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{TRACEBACK, outcome};
    use super::*;

    #[test]
    fn a_report_is_what_readers_of_junit_expect() {
        let hostile = "\u{0}\u{1b}[31m]]> <b a=\"c\">&amp;\u{fffe}\r\n\t😀</system-out>";
        let outcomes = [
            outcome("a.py", Verdict::Passed, 0, hostile),
            outcome("b\"<.py", Verdict::Failed, 3, ""),
            outcome("c.py", Verdict::TimedOut, 124, ""),
            outcome("d.py", Verdict::Cancelled, 130, ""),
        ];
        let xml = report(&outcomes);
        assert!(
            xml.contains("tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\" time=\"6.000\""),
            "{xml}"
        );
        assert!(xml.contains("<failure message=\"because failed\" type=\"failed\"/>"), "{xml}");
        assert_eq!(xml.matches("</system-out>").count(), 4);
        assert!(!xml.contains('\u{1b}') && !xml.contains('\0'));
    }

    #[test]
    fn a_failure_has_the_type_the_message_and_the_line_of_its_exception() {
        let failed = |verdict| {
            let failed = outcome("b.py", verdict, 1, "");
            report(&[Outcome { stderr: TRACEBACK.into(), ..failed }])
        };
        let xml = failed(Verdict::Failed);
        let element = "<failure message=\"json.decoder.JSONDecodeError: 50% of &lt;a&gt; &amp; &quot;b&quot; (line 7)\" \
                       type=\"json.decoder.JSONDecodeError\"/>";
        assert!(xml.contains(element), "{xml}");
        // What ended the script otherwise is not told by what it wrote before.
        let xml = failed(Verdict::TimedOut);
        assert!(xml.contains("<error message=\"because timed_out\" type=\"timed_out\"/>"), "{xml}");
    }

    proptest::proptest! {
        #[test]
        fn nothing_gets_out_of_its_place(text in proptest::prelude::any::<String>()) {
            let clean = escaped(&text);
            proptest::prop_assert!(!clean.contains(['<', '>', '"', '\r']));
            proptest::prop_assert!(clean.chars().all(|c| c >= ' ' || c == '\n' || c == '\t'));
        }
    }
}

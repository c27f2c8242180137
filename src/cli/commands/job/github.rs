//! Annotations for GitHub Actions. Its runner reads commands (`::error …`) from everything that a step
//! prints, so text from a guest is printed between a `::stop-commands::` and its end, which requires
//! a random word that the guest does not know.

use std::fmt::Write as _;

use super::report::Outcome;

/// The block of one job: its output in a collapsed group, and an annotation if it did not pass.
pub(in crate::cli) fn block(outcome: &Outcome, stop: &str) -> String {
    let mut text = format!("::group::{} {}\n", data(outcome.word()), data(&outcome.name));
    let _ = writeln!(text, "::stop-commands::{stop}");
    for (label, output) in [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)] {
        if !output.is_empty() {
            let _ = writeln!(text, "[{label}]\n{}", output.trim_end_matches('\n'));
        }
    }
    let _ = writeln!(text, "::{stop}::\n::endgroup::");
    if !outcome.passed() {
        let level = if outcome.verdict().is_none() { "notice" } else { "error" };
        let line = outcome.exception().and_then(|raised| raised.line);
        let line = line.map(|line| format!(",line={line}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "::{level} file={}{line},title={}::{}",
            property(&outcome.path),
            property(&format!("{}: {}", outcome.name, outcome.word())),
            data(&outcome.reason())
        );
    }
    text
}

/// A word that no guest can know, because it is made after the guest has ended.
pub(in crate::cli) fn stop_word() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Escapes the value of a command. Commands of the older form (`##[…]`) are recognized anywhere in a line.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A").replace("##[", "## [")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Makes a line of this command harmless that contains names chosen by guests or users.
pub(in crate::cli) fn harmless(line: &str) -> String {
    let line = line.replace(['\n', '\r'], " ").replace("##[", "## [");
    if line.trim_start().starts_with("::") { format!("> {line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{TRACEBACK, outcome};
    use super::*;
    use crate::protocol::job::Verdict;

    /// The commands that a runner would obey: lines between a stop and its word are only text.
    fn commands(text: &str) -> Vec<String> {
        let mut stopped: Option<String> = None;
        let mut found = Vec::new();
        for line in text.split(['\n', '\r']) {
            let line = line.trim_start();
            match &stopped {
                Some(word) if line == format!("::{word}::") => stopped = None,
                None if line.starts_with("::stop-commands::") => {
                    stopped = line.strip_prefix("::stop-commands::").map(ToOwned::to_owned);
                }
                None if line.starts_with("::") || line.contains("##[") => found.push(line.to_owned()),
                Some(_) | None => {}
            }
        }
        assert!(stopped.is_none(), "commands stay stopped: {text}");
        found
    }

    #[test]
    fn a_guest_cannot_give_commands_to_the_runner() {
        let hostile = "::error::forged\n  ::set-env name=A::b\r::add-path::/x\n##[add-mask]x\n::stop-commands::mine\n::mine::\n::endgroup::";
        let mut failed = outcome("::warning::a\n::error::b.py", Verdict::Failed, 1, hostile);
        failed.stderr = hostile.into();
        failed.path = "a,line=3::x\n::error::y##[error]z".into();
        let found = commands(&block(&failed, &stop_word()));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("::group::failed ") && found[1] == "::endgroup::", "{found:?}");
        assert!(
            found[2].starts_with("::error file=a%2Cline=3%3A%3Ax%0A%3A%3Aerror%3A%3Ay## [error]z,title="),
            "{found:?}"
        );
        assert!(commands(&harmless("::error::x\n::error::y ##[error]z")).is_empty());
        assert_eq!(commands(&block(&outcome("a.py", Verdict::Passed, 0, hostile), &stop_word())).len(), 2);
    }

    #[test]
    fn an_annotation_has_the_exception_and_is_at_the_line_of_the_script() {
        let failed = Outcome { stderr: TRACEBACK.into(), ..outcome("b.py", Verdict::Failed, 1, "") };
        let found = commands(&block(&failed, &stop_word()));
        let annotation = "::error file=ci/b.py,line=7,title=b.py%3A failed::\
                          json.decoder.JSONDecodeError: 50%25 of <a> & \"b\" (line 7)";
        assert_eq!(found.last().map(String::as_str), Some(annotation), "{found:?}");
    }
}

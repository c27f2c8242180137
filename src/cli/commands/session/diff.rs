//! `belljar diff`: what two sessions differ in.

use clap::Args;

use crate::cli::client::session_key::SessionKey;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{or_dash, size};
use crate::cli::render::screen::Screen;
use crate::protocol::branch::{FileDiff, SessionDiff, VariableDiff};
use crate::protocol::exit_codes as exit;
use crate::protocol::frames::Variable;
use crate::protocol::text::one_line;

/// Characters of a value's preview that are shown.
const VALUE_CHARS: usize = 60;
/// Characters before the first difference of two values that are shown, if their beginning is not.
const CONTEXT_CHARS: usize = 15;
/// Names that are shown of variables that cannot be compared.
const NAMES_SHOWN: usize = 10;

/// Show what the variables and files of two sessions differ in. Exits with 1 if they do.
///
/// Variables are compared by their type and a digest of what they hold. Where there is none, as for most objects and for
/// what is very large, two that look the same are named as not compared. Files are compared by size and content.
#[derive(Debug, Args)]
pub(in crate::cli) struct Diff {
    /// The session to compare with.
    #[arg(value_name = "A", value_parser = SessionKey::parse)]
    first: SessionKey,
    /// The session that is compared.
    #[arg(value_name = "B", value_parser = SessionKey::parse)]
    second: SessionKey,
}

impl Diff {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = format!("/v1/sessions/{}/diff/{}", self.first, self.second);
        let answer = context.client().get(&path).await?;
        let diff: SessionDiff = answer.parse()?;
        let differs = differs(&diff);
        context.show(&answer, |screen, diff: SessionDiff| show(screen, &diff))?;
        Ok(if differs { exit::FAILURE } else { exit::SUCCESS })
    }
}

fn differs(diff: &SessionDiff) -> bool {
    let (variables, files) = (&diff.variables, &diff.files);
    !(variables.only_in_first.is_empty()
        && variables.only_in_second.is_empty()
        && variables.changed.is_empty()
        && files.only_in_first.is_empty()
        && files.only_in_second.is_empty()
        && files.changed.is_empty())
}

fn show(screen: &mut Screen, diff: &SessionDiff) -> Result<(), Failure> {
    let lines = variable_lines(&diff.variables).into_iter().chain(file_lines(&diff.files));
    for line in lines {
        screen.line(&line)?;
    }
    let (variables, files) = (&diff.variables, &diff.files);
    screen.note(&format!("the same: {} variables, {} files", variables.same, files.same))?;
    if let Some(warning) = not_compared(&variables.not_compared) {
        screen.warn(&warning)?;
    }
    if files.unread > 0 {
        let count = files.unread;
        screen.warn(&format!(
            "{count} files of the same size were not read, because there is too much in them"
        ))?;
    }
    if variables.cut || files.cut {
        screen.warn("there are more variables, files or differences than were compared")?;
    }
    Ok(())
}

/// As `diff` marks lines: `-` what only the first has, `+` what only the second has, `~` what is otherwise.
fn variable_lines(diff: &VariableDiff) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(diff.only_in_first.iter().map(|one| format!("- {}", describe(one))));
    lines.extend(diff.only_in_second.iter().map(|one| format!("+ {}", describe(one))));
    for changed in &diff.changed {
        let part = Part::of_both(&changed.first, &changed.second);
        let (one, other) = (value(&changed.first, part), value(&changed.second, part));
        lines.push(if one == other {
            format!("~ {}: {one} ({} differs)", one_line(&changed.first.name), changed.by.join(", "))
        } else {
            format!("~ {}: {one} → {other}", one_line(&changed.first.name))
        });
    }
    lines
}

fn file_lines(diff: &FileDiff) -> Vec<String> {
    let mut lines = Vec::new();
    let file = |path: &str| format!("file {}", one_line(path));
    lines.extend(diff.only_in_first.iter().map(|one| format!("- {}, {}", file(&one.path), size(one.bytes))));
    lines.extend(diff.only_in_second.iter().map(|one| format!("+ {}, {}", file(&one.path), size(one.bytes))));
    for changed in &diff.changed {
        let (one, other) = (size(changed.bytes_in_first), size(changed.bytes_in_second));
        lines.push(if changed.bytes_in_first == changed.bytes_in_second {
            format!("~ {}, {one}", file(&changed.path))
        } else {
            format!("~ {}, {one} → {other}", file(&changed.path))
        });
    }
    lines
}

/// What is said of variables that look the same and may differ.
fn not_compared(names: &[String]) -> Option<String> {
    let mut shown: Vec<String> = names.iter().take(NAMES_SHOWN).map(|name| one_line(name)).collect();
    let more = names.len().saturating_sub(NAMES_SHOWN);
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    (!names.is_empty()).then(|| format!("cannot be compared, but look the same: {}", shown.join(", ")))
}

fn describe(variable: &Variable) -> String {
    format!("{}: {}", one_line(&variable.name), value(variable, Part::default()))
}

/// What is shown of a value.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The place of the first character.
    from: usize,
    /// How many items it has.
    length: bool,
}

impl Part {
    /// The part in which two values differ.
    fn of_both(first: &Variable, second: &Variable) -> Self {
        let (one, other) = (one_line(&first.preview), one_line(&second.preview));
        let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
        // What is shown of both is the same to its end where another part of them differs.
        let from = if one == other || same + CONTEXT_CHARS < VALUE_CHARS { 0 } else { same - CONTEXT_CHARS };
        Self { from, length: first.shape != second.shape }
    }
}

/// `DataFrame (3, 4), 1.2 KiB` for arrays and tables, for all else its type and a part of the value.
fn value(variable: &Variable, part: Part) -> String {
    let kind = one_line(&variable.type_name);
    let shape = variable.shape.as_deref().map(one_line).unwrap_or_default();
    // Containers have a length in its place: `[3]`.
    if shape.starts_with('(') {
        return format!("{kind} {shape}, {}", or_dash(variable.bytes.map(size)));
    }
    let preview = one_line(&variable.preview);
    let begin = if part.from > 0 { "…" } else { "" };
    let end = if preview.chars().nth(part.from + VALUE_CHARS).is_some() { "…" } else { "" };
    let shown: String = preview.chars().skip(part.from).take(VALUE_CHARS).collect();
    let length = if part.length && !shape.is_empty() { format!(" {shape}") } else { String::new() };
    format!("{kind}{length} {begin}{shown}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::branch::{ChangedFile, ChangedVariable, ComparedFile};

    fn variable(name: &str, preview: &str, shape: Option<&str>) -> Variable {
        Variable {
            name: name.to_owned(),
            type_name: "T".to_owned(),
            preview: preview.to_owned(),
            bytes: Some(2048),
            shape: shape.map(ToOwned::to_owned),
            digest: None,
        }
    }

    #[test]
    fn what_cannot_be_compared_is_named_in_one_line() {
        assert_eq!(not_compared(&[]), None);
        let names: Vec<String> = (0..NAMES_SHOWN + 2).map(|number| format!("v{number}")).collect();
        let said = not_compared(&names[..2]).unwrap();
        assert_eq!(said, "cannot be compared, but look the same: v0, v1");
        assert!(not_compared(&names).unwrap().ends_with(", v9, 2 more"));
        let diff = VariableDiff { not_compared: names, ..VariableDiff::default() };
        assert!(!differs(&SessionDiff { variables: diff, ..SessionDiff::default() }), "it may be the same");
    }

    #[test]
    fn differences_are_marked_as_diff_marks_them() {
        let changed = |by: &str, first, second| ChangedVariable { by: vec![by.to_owned()], first, second };
        let diff = VariableDiff {
            only_in_first: vec![variable("gone", "1\u{1b}[2J", None)],
            only_in_second: vec![variable("new", "...", Some("(3, 4)"))],
            changed: vec![
                changed("preview", variable("x", "1", None), variable("x", "2", None)),
                changed("content", variable("y", "1", None), variable("y", "1", None)),
            ],
            ..VariableDiff::default()
        };
        let lines = variable_lines(&diff);
        assert!(lines[0].starts_with("- gone: T 1") && !lines[0].contains('\u{1b}'));
        assert_eq!(lines[1], "+ new: T (3, 4), 2 KiB");
        assert_eq!(lines[2], "~ x: T 1 → T 2");
        assert_eq!(lines[3], "~ y: T 1 (content differs)");
        let items = |text: &str, length: &str| variable("d", text, Some(length));
        let line = |first, second| {
            let changed = vec![changed("preview", first, second)];
            variable_lines(&VariableDiff { changed, ..VariableDiff::default() }).remove(0)
        };
        let dicts = line(items("{'pear': 3}", "[1]"), items("{'pear': 4}", "[1]"));
        assert_eq!(dicts, "~ d: T {'pear': 3} → T {'pear': 4}");
        let grown = line(items("[1, 1]", "[2]"), items("[1, 1, 1]", "[3]"));
        assert_eq!(grown, "~ d: T [2] [1, 1] → T [3] [1, 1, 1]");
        let zeros = "0".repeat(70);
        let late = line(items(&format!("{zeros}1"), "[71]"), items(&format!("{zeros}2{zeros}"), "[71]"));
        let (before, after) = ("0".repeat(CONTEXT_CHARS), "0".repeat(VALUE_CHARS - CONTEXT_CHARS - 1));
        assert_eq!(late, format!("~ d: T …{before}1 → T …{before}2{after}…"), "the place where they differ");
        let file = |path: &str, bytes| ComparedFile { path: path.to_owned(), bytes };
        let other = |path: &str, bytes_in_first, bytes_in_second| ChangedFile {
            path: path.to_owned(),
            bytes_in_first,
            bytes_in_second,
        };
        let files = FileDiff {
            only_in_first: vec![file("a", 1024)],
            only_in_second: vec![file("b", 2048)],
            changed: vec![other("c", 1024, 1024), other("d", 1024, 2048)],
            ..FileDiff::default()
        };
        let wanted = ["- file a, 1 KiB", "+ file b, 2 KiB", "~ file c, 1 KiB", "~ file d, 1 KiB → 2 KiB"];
        assert_eq!(file_lines(&files), wanted);
        let both = SessionDiff { variables: diff, files };
        assert!(differs(&both) && !differs(&SessionDiff::default()));
    }
}

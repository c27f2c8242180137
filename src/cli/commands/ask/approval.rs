//! How a person decides: what is shown of an approval, and which answers are possible. Shared by `ask` and
//! `approve`.

use crate::cli::failure::Failure;
use crate::cli::render::block::{Block, Section};
use crate::cli::temporary_folder::scratch_folder;
use crate::protocol::ask::{Approval, Decision, DefaultDecision, Subject};
use crate::protocol::clock::since;
use crate::protocol::event::phrases;
use crate::protocol::text::{visible, visible_line};

/// The editor if neither `VISUAL` nor `EDITOR` is set.
const EDITOR: &str = "vi";

/// The meaning of a typed line.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum Choice {
    Decided(Decision),
    /// Change the code in an editor, then run it.
    Edit,
    /// Change the code or the arguments in an editor, and give that to the model as a suggestion.
    Suggest,
    /// Tell the model something; the text is still to be typed.
    Tell,
}

pub(in crate::cli) fn question(subject: &Subject) -> &'static str {
    match subject {
        Subject::Cell { .. } => {
            "[a]ccept, [e]dit and run, [s]uggest a change, [r]eject, [t]ell the model … > "
        }
        Subject::Tool { .. } => "[a]ccept, [s]uggest a change, [r]eject, [t]ell the model … > ",
    }
}

/// None if the line does not answer the question.
pub(in crate::cli) fn choice(subject: &Subject, line: &str) -> Option<Choice> {
    let (word, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
    let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(ToOwned::to_owned);
    Some(match (word.to_lowercase().as_str(), rest) {
        ("a" | "accept", None) => Choice::Decided(Decision::Accept { code: None }),
        ("e" | "edit", None) if matches!(subject, Subject::Cell { .. }) => Choice::Edit,
        ("s" | "suggest", None) => Choice::Suggest,
        ("r" | "reject", reason) => Choice::Decided(Decision::Reject { reason }),
        ("t" | "tell", None) => Choice::Tell,
        ("t" | "tell", Some(text)) => Choice::Decided(Decision::Respond { text }),
        _ => return None,
    })
}

/// Everything that a person has to see before deciding: nothing is cut or hidden.
pub(in crate::cli) fn blocks(approval: &Approval) -> Vec<Block> {
    let mut head = format!("· {}", approval.id);
    if let Some(cell) = approval.cell {
        head = format!("{head} · from cell {cell}");
    }
    let mut all = match &approval.subject {
        Subject::Cell { code, purpose, .. } => {
            let purpose =
                purpose.iter().map(|purpose| Block::Note(format!("for: {}", visible_line(purpose))));
            let head = Block::Head(Section::Approval, format!("{head} · run this"));
            std::iter::once(head).chain(purpose).chain([Block::Code(code.clone())]).collect()
        }
        Subject::Tool { name, arguments } => {
            let text = serde_json::to_string_pretty(arguments).unwrap_or_default();
            vec![
                Block::Head(Section::Approval, format!("{head} · call the tool {name}")),
                Block::Flow(format!("{}\n", visible(&text))),
            ]
        }
    };
    all.extend(phrases::bound_by(approval).map(Block::Note));
    all.extend(deadline(approval).map(Block::Note));
    all
}

/// What happens if no person decides in time.
fn deadline(approval: &Approval) -> Option<String> {
    let (seconds, by_default) = (approval.deadline_s?, approval.by_default?);
    let left = (seconds - since(&approval.asked_at).as_secs_f64()).max(0.0);
    let end = match by_default {
        DefaultDecision::Accept => "accepted",
        DefaultDecision::Reject => "rejected",
    };
    Some(format!("without a decision within {left:.0} s it is {end}"))
}

/// The decision of a person who wants an editor; none if nothing was changed there.
pub(in crate::cli) async fn decision_by_editor(
    subject: &Subject,
    is_suggestion: bool,
) -> Result<Option<Decision>, Failure> {
    let edited = match subject {
        Subject::Cell { code, .. } => edited(code, "cell.py").await?,
        Subject::Tool { arguments, .. } => {
            let text = serde_json::to_string_pretty(arguments).unwrap_or_default();
            edited(&text, "arguments.json").await?
        }
    };
    Ok(edited.map(|text| {
        if is_suggestion { Decision::Edit { text } } else { Decision::Accept { code: Some(text) } }
    }))
}

/// The text after a person edited it; none if it is unchanged.
async fn edited(text: &str, file: &str) -> Result<Option<String>, Failure> {
    let failed = |e: std::io::Error| Failure::io("failed to write the file for the editor", &e);
    let scratch = scratch_folder().map_err(failed)?;
    let path = scratch.path().join(file);
    std::fs::write(&path, text).map_err(failed)?;

    let named = |variable| std::env::var(variable).ok().filter(|value| !value.trim().is_empty());
    let editor = named("VISUAL").or_else(|| named("EDITOR")).unwrap_or_else(|| EDITOR.to_owned());
    // The value may contain arguments, as in `code --wait`.
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or(EDITOR);
    let ended = tokio::process::Command::new(program).args(words).arg(&path).status().await;
    let ended = ended.map_err(|e| {
        Failure::io(format_args!("failed to start the editor `{editor}`"), &e).hint("set `EDITOR`")
    })?;
    if !ended.success() {
        return Ok(None);
    }
    let changed =
        std::fs::read_to_string(&path).map_err(|e| Failure::io("failed to read the edited file", &e))?;
    Ok(Some(changed).filter(|changed| changed != text && !changed.trim().is_empty()))
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;
    use crate::cli::render::block::render;
    use crate::protocol::ids::{SessionId, SessionName};
    use crate::protocol::principal::Principal;
    use serde_json::{Value, json};

    pub fn approval(id: &str, subject: Subject) -> Approval {
        Approval {
            id: id.into(),
            session: SessionId::fresh(),
            session_name: SessionName::parse("lab").unwrap(),
            owner: Principal::new(61_001),
            ask: Some(1),
            call: Some("call_1".into()),
            cell: None,
            bound_by: None,
            subject,
            asked_at: "2026-01-01T00:00:00.000Z".into(),
            deadline_s: None,
            by_default: None,
        }
    }

    pub fn cell(code: &str) -> Subject {
        Subject::Cell { code: code.into(), timeout_s: 30.0, purpose: None }
    }

    fn tool() -> Subject {
        let Value::Object(arguments) = json!({"path": "a\u{202e}b"}) else { panic!() };
        Subject::Tool { name: "file_reader".into(), arguments }
    }

    #[test]
    fn answers_are_a_letter_or_a_word() {
        let code = cell("1");
        let accept = Choice::Decided(Decision::Accept { code: None });
        assert_eq!(choice(&code, " A \n"), Some(accept));
        assert_eq!(choice(&code, "e\n"), Some(Choice::Edit));
        assert_eq!(choice(&tool(), "e\n"), None);
        for subject in [&code, &tool()] {
            assert_eq!(choice(subject, "suggest\n"), Some(Choice::Suggest));
        }
        let reason = Some("not on my disk".to_owned());
        assert_eq!(
            choice(&code, "reject  not on my disk\n"),
            Some(Choice::Decided(Decision::Reject { reason }))
        );
        assert_eq!(choice(&code, "t"), Some(Choice::Tell));
        let response = Decision::Respond { text: "use pandas".into() };
        assert_eq!(choice(&code, "tell use pandas"), Some(Choice::Decided(response)));
        for unclear in ["", "\n", "y", "accept it all", "x"] {
            assert_eq!(choice(&code, unclear), None, "{unclear:?}");
        }
    }

    #[test]
    fn all_of_what_would_run_is_shown() {
        let text = |approval: &Approval| {
            blocks(approval).iter().map(|block| render(block, false)).collect::<Vec<_>>().join("\n")
        };
        let mut code = approval("9f3c", cell("exec('\x1b]0;evil\x07')\rprint(1)\n"));
        (code.deadline_s, code.by_default) = (Some(1.0), Some(DefaultDecision::Reject));
        insta::assert_snapshot!(text(&code), @r"
        ── approval wanted · 9f3c · run this
        exec('\u{1b}]0;evil\u{7}')\u{d}print(1)
        without a decision within 0 s it is rejected
        ");
        let purposeful =
            Subject::Cell { code: "print(1)".into(), timeout_s: 30.0, purpose: Some("Count\nall".into()) };
        insta::assert_snapshot!(text(&approval("9f3e", purposeful)), @r"
        ── approval wanted · 9f3e · run this
        for: Count\u{a}all
        print(1)
        ");
        let mut call = approval("9f3d", tool());
        call.cell = Some(4);
        call.bound_by = Some(3);
        insta::assert_snapshot!(text(&call), @r#"
        ── approval wanted · 9f3d · from cell 4 · call the tool file_reader
        {
          "path": "a\u{202e}b"
        }
        code of ask 3 may still run in this session, and its rules want this; `belljar reset` ends them
        "#);
    }
}

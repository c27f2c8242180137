//! `belljar approve`: decide about cells and tool calls that wait for a person.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::cli::args::read_text;
use crate::cli::commands::ask::approval::{Choice, blocks, choice, decision_by_editor, question};
use crate::cli::commands::ask::line_reader::LineReader;
use crate::cli::commands::session::inspect::owner;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::block::render;
use crate::cli::render::human::{Table, age};
use crate::protocol::ask::{Approval, ApprovalList, Decision};
use crate::protocol::clock::since;
use crate::protocol::event::phrases::{approval_subject, decision as decision_line};
use crate::protocol::exit_codes as exit;
use crate::protocol::text::{clipped, visible};

/// Characters of a waiting cell or call that are shown, so that it fits in a row.
const SUMMARY_CHARS: usize = 80;

/// List what waits for a decision, or decide it.
///
/// With an id alone it is shown, and asked about if this is a terminal.
#[derive(Debug, Args)]
pub(in crate::cli) struct Approve {
    /// The start of an id is enough if there is no other like it.
    id: Option<String>,
    /// List those of all users, for administrators; the events of each session record that they looked.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    verdict: ApprovalArgs,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct ApprovalArgs {
    /// Run it as it is.
    #[arg(long, requires = "id")]
    accept: bool,
    /// Run the code of this file instead.
    #[arg(long, value_name = "FILE", requires = "id")]
    accept_with: Option<PathBuf>,
    /// Do not run it; the ask ends.
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "", requires = "id")]
    reject: Option<String>,
    /// Do not run it; the model gets these words instead.
    #[arg(long, value_name = "TEXT", requires = "id")]
    respond: Option<String>,
    /// Do not run it; the model is told that you would rather have the code of this file.
    #[arg(long, value_name = "FILE", requires = "id")]
    edit: Option<PathBuf>,
}

impl ApprovalArgs {
    fn decision(self) -> Result<Option<Decision>, Failure> {
        let Self { accept, accept_with, reject, respond, edit } = self;
        Ok(match (accept, accept_with, reject, respond, edit) {
            (true, ..) => Some(Decision::Accept { code: None }),
            (_, Some(file), ..) => Some(Decision::Accept { code: Some(read_text(&file, "file")?) }),
            (_, _, Some(reason), ..) => {
                Some(Decision::Reject { reason: Some(reason).filter(|reason| !reason.is_empty()) })
            }
            (_, _, _, Some(text), _) => Some(Decision::Respond { text }),
            (.., Some(file)) => Some(Decision::Edit { text: read_text(&file, "file")? }),
            _ => None,
        })
    }
}

impl Approve {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        let answer = client.get(if self.all { "/v1/approvals?all=true" } else { "/v1/approvals" }).await?;
        let Some(id) = self.id else {
            return context.show(&answer, |screen, list: ApprovalList| match list.approvals.as_slice() {
                [] => screen.note("nothing waits for a decision"),
                approvals => screen.table(&table(approvals, self.all)),
            });
        };
        let list: ApprovalList = answer.parse()?;
        let approval = find(&list.approvals, &id)?;
        let decision = match self.verdict.decision()? {
            Some(decision) => decision,
            None if !context.json && context.screen.is_watched() && std::io::stdin().is_terminal() => {
                context.screen.show_all(&blocks(approval))?;
                match ask_person(context, approval).await? {
                    Some(decision) => decision,
                    None => return Ok(exit::SUCCESS),
                }
            }
            None => {
                return context.show_value(approval, |screen, approval| {
                    blocks(approval).iter().try_for_each(|part| screen.line(&render(part, false)))
                });
            }
        };
        let answer = client.post(&format!("/v1/approvals/{}", approval.id), &decision).await?;
        context.show(&answer, |screen, _: Value| screen.note(&decision_line(&decision)))
    }
}

fn table(approvals: &[Approval], of_all: bool) -> Table {
    let cells = |approval: &Approval| {
        [
            owner(approval.owner),
            approval.id.clone(),
            approval.session_name.to_string(),
            age(since(&approval.asked_at).as_secs()),
            clipped(&visible(&approval_subject(&approval.subject)), SUMMARY_CHARS),
        ]
    };
    let heads = ["OWNER", "ID", "SESSION", "AGE", "WHAT"];
    Table::new(heads, approvals.iter().map(cells)).without_first(usize::from(!of_all))
}

/// Finds an approval by its id, or by the start of the id.
fn find<'a>(approvals: &'a [Approval], wanted: &str) -> Result<&'a Approval, Failure> {
    if let Some(exact) = approvals.iter().find(|approval| approval.id == wanted) {
        return Ok(exact);
    }
    let mut alike = approvals.iter().filter(|approval| approval.id.starts_with(wanted));
    match (alike.next(), alike.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("several ids begin with `{wanted}`")).hint("give more of it"))
        }
        (None, _) => Err(Failure::new(format!("nothing waits as `{wanted}`; it may be decided already"))
            .hint("`belljar approve` lists what waits; administrators add `--all` for that of others")),
    }
}

/// Asks until there is a decision; none at the end of input.
async fn ask_person(context: &mut Context, approval: &Approval) -> Result<Option<Decision>, Failure> {
    let mut input = LineReader::default();
    input.forget_stale();
    loop {
        let Some(line) = answer(context, &mut input, question(&approval.subject)).await? else {
            return Ok(None);
        };
        match choice(&approval.subject, &line) {
            Some(Choice::Decided(decision)) => return Ok(Some(decision)),
            Some(editing @ (Choice::Edit | Choice::Suggest)) => {
                match decision_by_editor(&approval.subject, editing == Choice::Suggest).await? {
                    Some(decision) => return Ok(Some(decision)),
                    None => context.screen.note("nothing was changed")?,
                }
            }
            Some(Choice::Tell) => {
                let Some(text) = answer(context, &mut input, "what to tell the model > ").await? else {
                    return Ok(None);
                };
                if !text.trim().is_empty() {
                    return Ok(Some(Decision::Respond { text: text.trim().to_owned() }));
                }
            }
            None => {}
        }
    }
}

async fn answer(
    context: &mut Context,
    input: &mut LineReader,
    question: &str,
) -> Result<Option<String>, Failure> {
    context.screen.prompt(question)?;
    let line = input.line().await?;
    if line.is_some() {
        context.screen.was_answered();
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::ask::approval::tests::{approval, cell};
    use crate::cli::entry::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn the_start_of_an_id_is_enough() {
        let all = [approval("9f3c", cell("1")), approval("9f4d", cell("2")), approval("9f", cell("3"))];
        assert_eq!(find(&all, "9f3").unwrap().id, "9f3c");
        assert_eq!(find(&all, "9f").unwrap().id, "9f");
        assert_eq!(find(&all, "9").unwrap_err().exit, 64);
        assert_eq!(find(&all, "x").unwrap_err().exit, 125);
        assert_eq!(find(&[], "").unwrap_err().exit, 125);
    }

    #[test]
    fn flags_are_decisions() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cell.py");
        std::fs::write(&file, "x = 2").unwrap();
        let file = file.to_str().unwrap();
        let decision = |words: &[&str]| {
            let cli = Cli::try_parse_from(["belljar", "approve"].iter().chain(words)).map_err(|_| ())?;
            let Command::Approve(approve) = cli.command else { panic!("not approve") };
            approve.verdict.decision().map_err(|_| ())
        };
        let code = || Some("x = 2".to_owned());
        assert_eq!(decision(&[]), Ok(None));
        assert_eq!(decision(&["9f"]), Ok(None));
        assert_eq!(decision(&["9f", "--accept"]), Ok(Some(Decision::Accept { code: None })));
        assert_eq!(decision(&["9f", "--accept-with", file]), Ok(Some(Decision::Accept { code: code() })));
        assert_eq!(decision(&["9f", "--reject"]), Ok(Some(Decision::Reject { reason: None })));
        assert_eq!(
            decision(&["9f", "--reject", "no"]),
            Ok(Some(Decision::Reject { reason: Some("no".into()) }))
        );
        assert_eq!(
            decision(&["9f", "--respond", "why?"]),
            Ok(Some(Decision::Respond { text: "why?".into() }))
        );
        assert_eq!(decision(&["9f", "--edit", file]), Ok(Some(Decision::Edit { text: "x = 2".into() })));
        assert_eq!(decision(&["--accept"]), Err(()));
        assert_eq!(decision(&["9f", "--accept", "--reject"]), Err(()));
        assert_eq!(decision(&["9f", "--edit", "/does/not/exist"]), Err(()));
    }

    #[test]
    fn nothing_of_what_waits_is_hidden() {
        let hides = approval("9f3c", cell("1 # \x1b[8m\u{202e}seen\x07"));
        let listed = table(&[hides], false).lines().join("\n");
        assert!(listed.contains(r"code: 1 # \u{1b}[8m\u{202e}seen\u{7}"), "{listed}");
    }

    #[test]
    fn what_waits_is_listed() {
        let mut first = approval("9f3c", cell("import os\nos.listdir()"));
        first.asked_at = String::new();
        insta::assert_snapshot!(table(&[first.clone()], false).lines().join("\n"), @r"
        ID    SESSION  AGE  WHAT
        9f3c  lab      0s   code: import os os.listdir()
        ");
        insta::assert_snapshot!(table(&[first], true).lines().join("\n"), @r"
        OWNER  ID    SESSION  AGE  WHAT
        61001  9f3c  lab      0s   code: import os os.listdir()
        ");
    }
}

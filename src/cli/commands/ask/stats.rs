//! `belljar stats`: what the asks of a session came to.

use clap::Args;
use serde_json::json;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::Table;
use crate::protocol::ask::{AskEnd, AskList, AskOutcome};

/// Count the asks of a session that have ended, the replies of their models, and the tokens.
///
/// A reply is valid if it had the agreed form: it could be read, its calls named a tool and gave what that wants, and its
/// Python was Python. Whether it worked is another question.
#[derive(Debug, Args)]
pub(in crate::cli) struct Stats {
    #[command(flatten)]
    session: SessionArg,
}

#[derive(Debug, Default, PartialEq)]
struct Sums {
    asks: u64,
    answered: u64,
    replies: u64,
    valid: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
}

impl Stats {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get(&self.session.path("/asks")?).await?;
        let list: AskList = answer.parse()?;
        let sums = Sums::of(list.asks.iter().filter_map(|ask| ask.end.as_ref()));
        let shown = json!({
            "asks": sums.asks, "answered": sums.answered, "replies": sums.replies, "valid_replies": sums.valid,
            "prompt_tokens": sums.prompt_tokens, "completion_tokens": sums.completion_tokens,
        });
        context.show_value(&shown, |screen, _| screen.table(&sums.table()))
    }
}

impl Sums {
    fn of<'a>(ends: impl Iterator<Item = &'a AskEnd>) -> Self {
        let mut sums = Self::default();
        for end in ends {
            sums.asks += 1;
            sums.answered += u64::from(end.outcome == AskOutcome::Answered);
            sums.replies += u64::from(end.replies.all);
            sums.valid += u64::from(end.replies.valid);
            sums.prompt_tokens = sums.prompt_tokens.saturating_add(end.usage.prompt_tokens);
            sums.completion_tokens = sums.completion_tokens.saturating_add(end.usage.completion_tokens);
        }
        sums
    }

    fn table(&self) -> Table {
        let share = |part: u64, all: u64| {
            let percent = (part * 100).checked_div(all).map(|percent| format!(" ({percent} %)"));
            format!("{part}{}", percent.unwrap_or_default())
        };
        let rows = [
            ("asks that ended", self.asks.to_string()),
            ("answered", share(self.answered, self.asks)),
            ("replies of models", self.replies.to_string()),
            ("of the agreed form", share(self.valid, self.replies)),
            ("tokens of requests", self.prompt_tokens.to_string()),
            ("tokens of replies", self.completion_tokens.to_string()),
        ];
        Table::new(["WHAT", "COUNT"], rows.map(|(what, count)| [what.to_owned(), count]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ask::ReplyCount;
    use crate::protocol::chat::Usage;

    #[test]
    fn replies_and_tokens_of_all_asks_are_added_up() {
        let end = |outcome, all, valid| AskEnd {
            outcome,
            answer: None,
            value: None,
            message: None,
            steps: all,
            usage: Usage { prompt_tokens: 10, completion_tokens: 2 },
            replies: ReplyCount { all, valid },
        };
        let ends = [end(AskOutcome::Answered, 3, 2), end(AskOutcome::StepLimit, 1, 1)];
        let sums = Sums::of(ends.iter());
        assert_eq!((sums.asks, sums.answered, sums.replies, sums.valid), (2, 1, 4, 3));
        let lines = sums.table().lines().join("\n");
        assert!(lines.contains("3 (75 %)") && lines.contains("20"), "{lines}");
        assert!(!Sums::default().table().lines().join("\n").contains('%'));
    }
}

//! The loop that watches an ask: it handles events, signals and typed lines.

use std::collections::{BTreeSet, VecDeque};
use std::io::IsTerminal as _;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::live::LiveView;
use crate::cli::client::follow::StreamPosition;
use crate::cli::client::http::Client;
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::ask::approval::{self, Choice, choice, decision_by_editor, question};
use crate::cli::commands::ask::line_reader::LineReader;
use crate::cli::commands::cell::stream::Stops;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::ask::{Approval, AskEnd, AskView, Decision, ENDED_WITH_SESSION};
use crate::protocol::event::EventBody;
use crate::protocol::exit_codes as exit;

/// The spinner, and how often it moves.
const SPINNER: [char; 8] = ['⣷', '⣯', '⣟', '⡿', '⢿', '⣻', '⣽', '⣾'];
const TICK: Duration = Duration::from_millis(120);

/// Why this command stopped watching.
pub(in crate::cli) enum WatchEnd {
    Ended {
        end: Box<AskEnd>,
        is_shown: bool,
    },
    /// A signal ended the watching; the ask may continue. The exit code says which signal.
    Left(u8),
}

/// Shows an ask until it ends. A first Ctrl-C cancels the ask, a second one leaves it.
pub(in crate::cli) async fn watch(
    context: &mut Context,
    client: &Client,
    session: &SessionKey,
    view: &AskView,
    stops: &mut Stops,
) -> Result<WatchEnd, Failure> {
    let hint = format!(
        "as long as its session is there, `belljar wait -s {session} --ask {}` shows its end",
        view.ask
    );
    let mut watcher = Watcher::new(context, client, view);
    let mut trail = StreamPosition::after(view.events_after);
    let mut cancelled = false;
    let mut events = None;
    loop {
        let Some(stream) = &mut events else {
            events = tokio::select! {
                code = stops.next() => return Ok(WatchEnd::Left(code)),
                resumed = trail.resume(client, session, &hint) => Some(resumed?),
            };
            continue;
        };
        let event = tokio::select! {
            code = stops.next() => {
                if cancelled || code == exit::TERMINATED {
                    return Ok(WatchEnd::Left(code));
                }
                cancelled = true;
                watcher.cancel(&format!("/v1/sessions/{session}/asks/{}/cancel", view.ask)).await?;
                continue;
            }
            event = stream.next() => event,
            line = watcher.lines.line(), if watcher.desk.is_asking() => {
                watcher.answered(line?).await?;
                continue;
            }
            _ = watcher.ticks.tick(), if watcher.spins() => {
                watcher.spin()?;
                continue;
            }
        };
        let Ok(Some(event)) = event else {
            events = None;
            continue;
        };
        trail.saw(event.seq);
        if !watcher.live.concerns(&event.body) {
            continue;
        }
        if watcher.context.json {
            watcher.context.screen.json(&event)?;
        } else {
            watcher.show(&event.body)?;
        }
        match event.body {
            EventBody::AskFinished { end, .. } if end.message.as_deref() == Some(ENDED_WITH_SESSION) => {
                return Err(ended_with_session(session, view));
            }
            EventBody::AskFinished { end, .. } => {
                let is_shown = end.answer.as_deref().is_some_and(|answer| watcher.live.has_shown(answer));
                return Ok(WatchEnd::Ended { end, is_shown });
            }
            EventBody::SessionRemoved => return Err(ended_with_session(session, view)),
            _ => {}
        }
    }
}

fn ended_with_session(session: &SessionKey, view: &AskView) -> Failure {
    Failure::new(ENDED_WITH_SESSION).hint(format!(
        "press Ctrl-C, or use `belljar interrupt {session} --ask {}`, to end an ask and keep its session",
        view.ask
    ))
}

/// `⣷ thinking · 1234 tokens · 5 s`
fn status_line(turn: usize, status: &str, elapsed: Duration) -> String {
    let sign = SPINNER.get(turn % SPINNER.len()).copied().unwrap_or(' ');
    format!("{sign} {status} · {} s", elapsed.as_secs())
}

/// Approvals that are not decided yet; this terminal asks about the first one.
struct ApprovalDesk {
    staffed: bool,
    waiting: VecDeque<Approval>,
    /// Ids of the approvals that nested asks waited for at the latest event; some may be decided since.
    within: BTreeSet<String>,
    /// The next typed line is a text for the model.
    wants_words: bool,
}

impl ApprovalDesk {
    fn is_asking(&self) -> bool {
        self.staffed && !self.waiting.is_empty()
    }

    fn question(&self) -> Option<&'static str> {
        let first = self.waiting.front().filter(|_| self.staffed)?;
        Some(if self.wants_words { "what to tell the model > " } else { question(&first.subject) })
    }

    /// Removes an approval that was decided, here or elsewhere. True if it was the one that this terminal
    /// asks about.
    fn decided(&mut self, id: &str) -> bool {
        let first = self.waiting.front().is_some_and(|first| first.id == id);
        self.wants_words &= !first;
        self.waiting.retain(|approval| approval.id != id);
        first
    }
}

struct Watcher<'a> {
    context: &'a mut Context,
    client: &'a Client,
    live: LiveView,
    desk: ApprovalDesk,
    lines: LineReader,
    began: Instant,
    ticks: Interval,
    turn: usize,
}

impl<'a> Watcher<'a> {
    fn new(context: &'a mut Context, client: &'a Client, view: &AskView) -> Self {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let staffed = !context.json && context.screen.is_watched() && std::io::stdin().is_terminal();
        let desk =
            ApprovalDesk { staffed, waiting: VecDeque::new(), within: BTreeSet::new(), wants_words: false };
        Self {
            context,
            client,
            live: LiveView::new(view),
            desk,
            lines: LineReader::default(),
            began: Instant::now(),
            ticks,
            turn: 0,
        }
    }

    fn spins(&self) -> bool {
        !self.context.json && self.context.screen.is_watched() && !self.desk.is_asking()
    }

    fn spin(&mut self) -> Result<(), Failure> {
        self.turn += 1;
        let line = status_line(self.turn, &self.live.status(), self.began.elapsed());
        self.context.screen.progress(&line)
    }

    async fn cancel(&mut self, path: &str) -> Result<(), Failure> {
        self.context.screen.note("cancelling the ask; press Ctrl-C again to leave it")?;
        // If the ask has just ended, the request fails, and the event of its end follows.
        match self.client.post_empty(path).await {
            Ok(_) => Ok(()),
            Err(failure) => self.context.screen.warn(&failure.message),
        }
    }

    fn show(&mut self, event: &EventBody) -> Result<(), Failure> {
        let was_asking = self.desk.is_asking();
        let blocks = self.live.show(event);
        self.context.screen.show_all(&blocks)?;
        if let EventBody::ApprovalDecided { id, .. } = event
            && self.desk.decided(id)
        {
            return self.next_question();
        }
        match event {
            EventBody::ApprovalWanted { approval } => self.wanted(approval)?,
            EventBody::AskWaitsWithin { approvals, .. } => {
                let fresh: Vec<&Approval> =
                    approvals.iter().filter(|approval| !self.desk.within.contains(&approval.id)).collect();
                let ids: BTreeSet<String> = approvals.iter().map(|approval| approval.id.clone()).collect();
                let gone: Vec<String> = self.desk.within.difference(&ids).cloned().collect();
                self.desk.within = ids;
                for approval in fresh {
                    self.wanted(approval)?;
                }
                // They were decided here or elsewhere; one of them may be the one that this terminal asks about.
                if gone.iter().filter(|id| self.desk.decided(id)).count() > 0 {
                    return self.next_question();
                }
            }
            _ => {}
        }
        if self.desk.is_asking() && !was_asking {
            self.lines.forget_stale();
        }
        // The blocks were shown below the question, so it is asked again.
        if blocks.is_empty() { Ok(()) } else { self.prompt() }
    }

    fn wanted(&mut self, approval: &Approval) -> Result<(), Failure> {
        if self.desk.staffed {
            self.desk.waiting.push_back(approval.clone());
            return Ok(());
        }
        let id = &approval.id;
        let how = format!("decide with `belljar approve {id} --accept`, or `belljar approve --help`");
        self.context.screen.note(&how)
    }

    /// Shows the next approval again, if there is one: it was first shown before the decision about the previous one.
    fn next_question(&mut self) -> Result<(), Failure> {
        if let Some(approval) = self.desk.waiting.front() {
            self.context.screen.show_all(&approval::blocks(approval))?;
            self.lines.forget_stale();
        }
        self.prompt()
    }

    fn prompt(&mut self) -> Result<(), Failure> {
        match self.desk.question() {
            Some(question) => self.context.screen.prompt(question),
            None => Ok(()),
        }
    }

    async fn answered(&mut self, line: Option<String>) -> Result<(), Failure> {
        let Some(approval) = self.desk.waiting.front().cloned() else { return Ok(()) };
        let Some(line) = line else {
            // The person has closed the input, so the decision is left to `belljar approve`.
            self.desk.staffed = false;
            return self.context.screen.note(&format!("decide with `belljar approve {}`", approval.id));
        };
        self.context.screen.was_answered();
        if std::mem::take(&mut self.desk.wants_words) {
            return match line.trim() {
                "" => self.prompt(),
                words => self.decide(&approval.id, Decision::Respond { text: words.to_owned() }).await,
            };
        }
        match choice(&approval.subject, &line) {
            Some(Choice::Decided(decision)) => self.decide(&approval.id, decision).await,
            Some(editing @ (Choice::Edit | Choice::Suggest)) => {
                match decision_by_editor(&approval.subject, editing == Choice::Suggest).await {
                    Ok(Some(decision)) => self.decide(&approval.id, decision).await,
                    Ok(None) => {
                        self.context.screen.note("nothing was changed")?;
                        self.prompt()
                    }
                    Err(failure) => {
                        self.context.screen.failure(&failure, false);
                        self.prompt()
                    }
                }
            }
            Some(Choice::Tell) => {
                self.desk.wants_words = true;
                self.prompt()
            }
            None => self.prompt(),
        }
    }

    async fn decide(&mut self, id: &str, decision: Decision) -> Result<(), Failure> {
        if let Err(failure) = self.client.post(&format!("/v1/approvals/{id}"), &decision).await {
            self.context.screen.failure(&failure, false);
            // Without an answer of the daemon nothing has changed; with one, the approval was decided elsewhere.
            if failure.problem.is_none() {
                return self.prompt();
            }
        }
        self.desk.decided(id);
        self.next_question()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_turns_and_tells_the_seconds() {
        let line = |turn, milliseconds| status_line(turn, "thinking", Duration::from_millis(milliseconds));
        assert_eq!([line(0, 999), line(9, 61_000)], ["⣷ thinking · 0 s", "⣯ thinking · 61 s"]);
    }
}

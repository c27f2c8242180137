//! Turns the outcomes of a turn's calls into the answers for the model.

use super::{AskMachine, Phase};
use crate::agent::arguments::Work;
use crate::agent::effects::Effect;
use crate::agent::report::{plain_report, report};
use crate::agent::turn::{CallVerdict, Rules};
use crate::protocol::ask::{AskOutcome, Decision};
use crate::protocol::event::ToolOutcome;
use crate::protocol::frames::PYTHON_ERROR;
use crate::protocol::result::{ExecutionResult, Reason, Status};

impl AskMachine {
    pub(super) fn cell_finished(&mut self, id: &str, result: &ExecutionResult) -> Vec<Effect> {
        let Phase::Acting { turn } = &self.phase else { return Vec::new() };
        let Some(Work::Cell { timeout_s: wanted, .. }) = turn.running(id) else { return Vec::new() };
        let allowed = Rules::of(&self.spec, &self.setup).timeout_s(*wanted);
        let cut = wanted.filter(|wanted| *wanted > allowed);
        if result.reason == Reason::Syntax {
            self.spoil();
        }
        let verdict = if result.status == Status::Success { CallVerdict::Good } else { CallVerdict::Bad };
        if self.setup.vision {
            self.shown.take(result);
        }
        let report = if self.speech.has_headings() { report } else { plain_report };
        let mut text = report(result, self.spec.language, self.setup.told_chars);
        if let Some(wanted) = cut {
            text.push_str(&self.words.time_was_cut(wanted, allowed));
        }
        if matches!(&self.phase, Phase::Acting { turn } if turn.is_edited(id)) {
            text.insert_str(0, &self.words.person_changed_code(&self.shorten(&result.code)));
        }
        self.answered(id, text, verdict)
    }

    pub(super) fn cell_refused(&mut self, id: &str, why: &str) -> Vec<Effect> {
        if !self.running_cell(id) {
            return Vec::new();
        }
        let text = self.words.not_run(&self.shorten(why));
        self.answered(id, text, CallVerdict::Bad)
    }

    fn running_cell(&self, id: &str) -> bool {
        matches!(&self.phase, Phase::Acting { turn } if matches!(turn.running(id), Some(Work::Cell { .. })))
    }

    pub(super) fn tool_finished(&mut self, id: &str, outcome: ToolOutcome) -> Vec<Effect> {
        let Phase::Acting { turn } = &self.phase else { return Vec::new() };
        let Some(Work::Tool { .. }) = turn.running(id) else { return Vec::new() };
        let (text, verdict) = match outcome {
            ToolOutcome::Value(serde_json::Value::String(text)) => (text, CallVerdict::Good),
            ToolOutcome::Value(value) => (value.to_string(), CallVerdict::Good),
            ToolOutcome::Failure(failure) if failure.code == PYTHON_ERROR => {
                (failure.message, CallVerdict::Bad)
            }
            ToolOutcome::Failure(failure) => (self.words.call_failed(&failure.message), CallVerdict::Bad),
        };
        let text = self.shorten(&text);
        self.answered(id, text, verdict)
    }

    pub(super) fn decided(&mut self, id: &str, decision: Decision) -> Vec<Effect> {
        let rules = Rules::of(&self.spec, &self.setup);
        let Phase::Acting { turn } = &mut self.phase else { return Vec::new() };
        if turn.asked(id).is_none() {
            return Vec::new();
        }
        match decision {
            Decision::Accept { code } => turn.accept(id, code, &rules).into_iter().collect(),
            Decision::Reject { reason } => {
                let message = reason.unwrap_or_else(|| "a person refused to let it run".to_owned());
                self.finish(AskOutcome::Rejected, None, Some(message))
            }
            Decision::Respond { text } => {
                let answer = self.words.person_responds(&self.shorten(&text));
                self.answered(id, answer, CallVerdict::Neither)
            }
            Decision::Edit { text } => {
                let answer = self.words.person_edits(&self.shorten(&text));
                self.answered(id, answer, CallVerdict::Neither)
            }
        }
    }

    /// Cuts a text to the characters that a model is shown of one result.
    fn shorten(&self, text: &str) -> String {
        self.words.shorten(text, self.setup.told_chars)
    }
}

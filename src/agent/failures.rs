//! Counts how often tools failed since they last succeeded, and notices a step that is repeated though it failed.

use std::collections::{BTreeMap, BTreeSet};

use super::turn::{AnsweredCall, CallVerdict};
use crate::protocol::tool_names::{COMPUTE_TOOL, is_cell_tool};

/// How often the same failing step is made before the ask ends: once, once more, and once after the model was told.
const SAME_STEPS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// By the name of the tool; all names that are no tool's count as one, so that a model cannot make the map grow.
    by_tool: BTreeMap<Option<String>, u32>,
    /// What the calls asked for that failed in the reply before, and how often in a row just these failed.
    last_step: BTreeSet<u64>,
    same_steps: u32,
}

/// Whether the last reply repeated a step that had failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    None,
    Again,
    TooOften,
}

impl Failures {
    /// Takes the calls of one reply. Several calls of one tool count once, because the model made them before it knew of
    /// any failure; one success among them is progress.
    pub fn take(&mut self, answered: &[AnsweredCall]) {
        let tools: BTreeSet<&Option<String>> = answered.iter().map(|answer| &answer.tool).collect();
        for tool in tools {
            let has = |verdict| answered.iter().any(|call| call.tool == *tool && call.verdict == verdict);
            if has(CallVerdict::Good) {
                self.by_tool.remove(tool);
            } else if has(CallVerdict::Bad) {
                *self.by_tool.entry(tool.clone()).or_default() += 1;
            }
        }
        let failed = answered.iter().filter(|answer| answer.verdict == CallVerdict::Bad);
        let step: BTreeSet<u64> = failed.map(|answer| answer.fingerprint).collect();
        let is_same = !step.is_empty() && step == self.last_step;
        self.same_steps = if is_same { self.same_steps + 1 } else { u32::from(!step.is_empty()) };
        self.last_step = step;
    }

    pub fn repetition(&self) -> Repetition {
        match self.same_steps {
            0 | 1 => Repetition::None,
            SAME_STEPS.. => Repetition::TooOften,
            _ => Repetition::Again,
        }
    }

    /// The failures of the tool of these calls that failed most often, with the tool's name if there is such a tool.
    pub fn most(&self, answered: &[AnsweredCall]) -> (Option<&str>, u32) {
        let failed = answered.iter().filter(|answer| answer.verdict == CallVerdict::Bad);
        let counted = failed.filter_map(|answer| self.by_tool.get_key_value(&answer.tool));
        counted.max_by_key(|(_, count)| **count).map_or((None, 0), |(tool, count)| (tool.as_deref(), *count))
    }

    /// The failures of the Python tool that failed most often.
    pub fn of_python(&self) -> u32 {
        let is_python = |tool: &str| is_cell_tool(tool) || tool == COMPUTE_TOOL;
        let counts = self.by_tool.iter().filter(|(tool, _)| tool.as_deref().is_some_and(is_python));
        counts.map(|(_, count)| *count).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, verdict: CallVerdict, fingerprint: u64) -> AnsweredCall {
        AnsweredCall {
            id: String::new(),
            name: tool.to_owned(),
            tool: Some(tool.to_owned()).filter(|tool| tool != "?"),
            legacy: false,
            text: String::new(),
            verdict,
            fingerprint,
        }
    }

    #[test]
    fn a_counter_is_reset_only_by_a_success_of_its_own_tool() {
        use CallVerdict::{Bad, Good, Neither};
        let mut failures = Failures::default();
        let mut take = |calls: &[(&str, CallVerdict)]| {
            let calls: Vec<AnsweredCall> =
                calls.iter().map(|(tool, verdict)| call(tool, *verdict, 0)).collect();
            failures.take(&calls);
            let (tool, count) = failures.most(&calls);
            (tool.map(str::to_owned), count, failures.of_python())
        };
        let cell = "execute_python_code";
        assert_eq!(take(&[(cell, Bad), (cell, Bad)]), (Some(cell.to_owned()), 1, 1));
        assert_eq!(take(&[("read", Good), (cell, Bad)]), (Some(cell.to_owned()), 2, 2));
        assert_eq!(take(&[("?", Bad)]), (None, 1, 2));
        assert_eq!(take(&[(cell, Neither)]), (None, 0, 2));
        assert_eq!(take(&[("compute_with_python", Bad)]), (Some("compute_with_python".to_owned()), 1, 2));
        assert_eq!(take(&[(cell, Good), (cell, Bad)]), (None, 0, 1));
        assert_eq!(take(&[("?", Bad), ("read", Bad)]), (None, 2, 1));
    }

    #[test]
    fn a_step_is_repeated_if_just_the_same_calls_failed_before() {
        use CallVerdict::{Bad, Good};
        let mut failures = Failures::default();
        let mut take = |calls: &[(CallVerdict, u64)]| {
            let calls: Vec<AnsweredCall> =
                calls.iter().map(|(verdict, what)| call("t", *verdict, *what)).collect();
            failures.take(&calls);
            failures.repetition()
        };
        assert_eq!(take(&[(Bad, 1)]), Repetition::None);
        assert_eq!(take(&[(Bad, 1), (Good, 2)]), Repetition::Again);
        assert_eq!(take(&[(Bad, 3)]), Repetition::None);
        assert_eq!(take(&[(Good, 3)]), Repetition::None);
        assert_eq!(take(&[(Bad, 3)]), Repetition::None);
        assert_eq!(take(&[(Bad, 3)]), Repetition::Again);
        assert_eq!(take(&[(Bad, 3)]), Repetition::TooOften);
        assert_eq!(take(&[(Bad, 3)]), Repetition::TooOften);
        assert_eq!(take(&[]), Repetition::None);
    }
}

//! The bounds of an ask that another ask, or code of a session, starts: the rules of all code that may have
//! started it, and what the asks of that code have left of their limits, also those that have ended.

use std::sync::Arc;
use std::time::Duration;

use super::messages::AsksRef;
use super::port::{CallerContext, PortCaller};
use super::shared_budget::ParentBudget;
use super::spec::Outer;
use super::state::Remains;
use super::state::{AsksState, Current};
use crate::agent::Input;
use crate::protocol::ask::{AskLimits, AskNumber, AskSpec};
use crate::protocol::chat::Usage;
use crate::protocol::event::EventBody;
use crate::protocol::problem::{Code, Problem};
use crate::security_controls;
use crate::session::rules::{CallOrigin, CellRules, SandboxRules};

/// The number of ended asks whose remaining limits are kept. Older ones count as having nothing left.
const REMAINS_KEPT: usize = 256;

impl AsksState {
    /// Keeps what an ask has left of its limits when it ends.
    pub(super) fn keep_remains(&mut self, ask: AskNumber, remains: Remains) {
        self.remains.insert(ask, remains);
        while self.remains.len() > REMAINS_KEPT {
            self.remains.pop_first();
        }
    }

    pub(super) fn outer(&self, myself: &AsksRef, caller: PortCaller) -> Result<Outer, Problem> {
        match caller {
            PortCaller::Model(_) => {
                let current = self.current.as_ref().ok_or_else(has_ended)?;
                self.within(myself, current, CellRules::of_ask(&current.spec), &SandboxRules::default())
            }
            PortCaller::Code(CallerContext { origin, rules, .. }) => {
                if let Some(ask) = origin.ask() {
                    let current = self.current.as_ref().filter(|current| current.ask == ask);
                    let current = current.ok_or_else(has_ended)?;
                    return self.within(myself, current, combined(&rules, origin, &current.spec), &rules);
                }
                // The owner's own code, or code that the owner has allowed to act in the owner's name.
                let depth = rules.asks().map(|ask| self.remains.get(&ask).map_or(0, |ended| ended.depth + 1));
                let depth = depth.max().unwrap_or(0);
                Ok(Outer { rules: rules.combined(origin), depth, ..Outer::default() })
            }
        }
    }

    /// The bounds of an ask within the present one. All asks whose code may be the caller pay for it, each
    /// from what it has left.
    fn within(
        &self,
        myself: &AsksRef,
        current: &Current,
        rules: CellRules,
        sandbox: &SandboxRules,
    ) -> Result<Outer, Problem> {
        let (limits, own) = (current.spec.limits, current.budget.left_within());
        let mut left = AskLimits {
            steps: own.steps,
            failures: limits.failures,
            tokens: own.tokens,
            seconds: (limits.seconds - current.work_time().as_secs_f64()).max(0.0),
        };
        let mut budgets = vec![Arc::clone(&current.budget)];
        let mut ended = Vec::new();
        let others = sandbox.asks().filter(|ask| *ask != current.ask);
        for ask in others.filter(|_| security_controls::holds("ended_asks_pay_for_asks_of_their_code")) {
            let is_known = sandbox.merged().all(|gathered| gathered != ask);
            let remains =
                self.remains.get(&ask).filter(|_| is_known).ok_or_else(|| used_up(ask, "budget"))?;
            let has = remains.budget.left_within();
            for (what, none) in
                [("steps", has.steps == 0), ("tokens", has.tokens == 0), ("time", remains.seconds <= 0.0)]
            {
                if none {
                    return Err(used_up(ask, what));
                }
            }
            left = AskLimits {
                steps: left.steps.min(has.steps),
                failures: left.failures.min(remains.limits.failures),
                tokens: left.tokens.min(has.tokens),
                seconds: left.seconds.min(remains.seconds),
            };
            budgets.push(Arc::clone(&remains.budget));
            ended.push(ask);
        }
        let above = ParentBudget { budgets, asks: myself.clone(), ask: current.ask, ended };
        let (spec, depth) = (Some(current.spec.clone()), current.spec.depth + 1);
        Ok(Outer { rules, spec, depth, left: Some(left), above: Some(above), ..Outer::default() })
    }

    /// Keeps what the present ask has left when it ends.
    pub(super) fn current_ended(&mut self, current: &Current) {
        let remains = Remains::with(&current.spec, Arc::clone(&current.budget), current.work_time());
        self.keep_remains(current.ask, remains);
    }

    pub(super) fn spent_within(&mut self, myself: &AsksRef, ask: AskNumber, usage: Usage, steps: u32) {
        let Some(current) = self.current.as_ref().filter(|current| current.ask == ask) else {
            if self.remains.contains_key(&ask) {
                // The ask's budget has been charged already; the event lets the next daemon charge it as
                // well.
                self.args.log.append(EventBody::AskSpentWithin { ask, usage, steps });
            }
            return;
        };
        self.args.log.append(EventBody::AskSpentWithin { ask, usage, steps });
        if let Some(above) = &current.above {
            above.tell(usage, steps);
        }
        self.take(myself, Input::SpentWithin { usage, steps });
    }

    /// Deducts the duration of inner asks from the time of the ended asks that pay for them.
    pub(super) fn lasted(&mut self, asks: &[AskNumber], took: Duration) {
        for ask in asks {
            if let Some(remains) = self.remains.get_mut(ask) {
                remains.seconds = (remains.seconds - took.as_secs_f64()).max(0.0);
            }
        }
    }
}

fn combined(rules: &SandboxRules, origin: CallOrigin, spec: &AskSpec) -> CellRules {
    if security_controls::holds("asks_within_keep_the_rules_of_the_sandbox") {
        rules.combined(origin)
    } else {
        CellRules::of_ask(spec)
    }
}

fn has_ended() -> Problem {
    Problem::new(Code::ModelFailed, "the ask whose code this is has ended, and so have asks within it")
}

fn used_up(ask: AskNumber, what: &str) -> Problem {
    let message =
        format!("code of ask {ask} may still run in this session, and ask {ask} has no {what} left");
    Problem::new(Code::ModelFailed, message)
        .hint(format!("`belljar reset` ends the rules of ask {ask}, with all variables"))
}

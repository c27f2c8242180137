//! What code in a sandbox may do outside of it. Rules belong to code, not to moments: those of every cell bind all
//! that comes of it (threads, tasks, processes, asks within, the `repr` of its objects), and who of them speaks is
//! the guest's word, which is not believed. So the rules of all code that ran in a sandbox since its last reset
//! hold together for every call that comes out of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Agent;
use crate::controls;
use crate::protocol::ask::{ApprovalPolicy, AskNumber, AskSpec};
use crate::protocol::ids::CellNumber;
use crate::tools::{self, Registry};

/// Asks of one sandbox whose rules are told apart. Of more, the oldest are held together as one.
const ASKS_APART: usize = 256;

/// The rules of one piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellRules {
    /// Tools it may call; none: all that the session has.
    pub allowed: Option<BTreeSet<String>>,
    /// Tools that a person has to allow, each time.
    pub approve: BTreeSet<String>,
    /// A person has to allow every tool that acts outside of the sandbox, each time.
    pub approve_outside: bool,
    /// It runs only if it passes the check of the restricted policy.
    pub restricted: bool,
}

impl CellRules {
    /// Of cells that a model wrote.
    #[must_use]
    pub fn of_ask(spec: &AskSpec) -> Self {
        let mut rules = Self::of_policy(&spec.approval);
        rules.approve.extend(spec.also_approve.iter().cloned());
        Self { allowed: Some(spec.tools.iter().cloned().collect()), restricted: spec.restricted, ..rules }
    }

    /// Of code of which nobody knows what it may do: nothing.
    #[must_use]
    pub fn strictest() -> Self {
        Self {
            allowed: Some(BTreeSet::new()),
            approve: BTreeSet::new(),
            approve_outside: true,
            restricted: true,
        }
    }

    /// Of cells that a client sends. The configuration may call a tool by another name of it.
    #[must_use]
    pub fn of_client(agent: &Agent, tools: &Registry) -> Self {
        let named = Self::of_policy(&agent.approval);
        let right = |name: String| match tools.definition(&name) {
            Some(tool) => tool.name.clone(),
            None => name,
        };
        Self { approve: named.approve.into_iter().map(right).collect(), ..named }
    }

    /// Before a cell a person is asked by the machine; here it is only about its calls.
    #[must_use]
    pub fn of_policy(policy: &ApprovalPolicy) -> Self {
        let approve = match policy {
            ApprovalPolicy::Auto | ApprovalPolicy::Ask => BTreeSet::new(),
            ApprovalPolicy::Tools(names) => names.iter().cloned().collect(),
        };
        let approve_outside =
            *policy == ApprovalPolicy::Ask && controls::holds("host_tools_in_code_are_asked");
        Self { approve, approve_outside, ..Self::default() }
    }

    /// What an ask is told that has to keep to these rules: its policy, and the tools that a person has to allow
    /// besides.
    #[must_use]
    pub fn policy(&self) -> (ApprovalPolicy, Vec<String>) {
        let names: Vec<String> = self.approve.iter().cloned().collect();
        match (self.approve_outside, names.is_empty()) {
            (true, _) => (ApprovalPolicy::Ask, names),
            (false, true) => (ApprovalPolicy::Auto, Vec::new()),
            (false, false) => (ApprovalPolicy::Tools(names), Vec::new()),
        }
    }

    /// What code has to keep to that both were given for.
    #[must_use]
    pub fn tightened(&self, other: &Self) -> Self {
        let allowed = match (&self.allowed, &other.allowed) {
            (Some(one), Some(other)) => Some(one & other),
            (allowed, None) | (None, allowed) => allowed.clone(),
        };
        Self {
            allowed,
            approve: &self.approve | &other.approve,
            approve_outside: self.approve_outside || other.approve_outside,
            restricted: self.restricted || other.restricted,
        }
    }

    fn allows(&self, call: Call<'_>) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(call.name))
    }

    fn wants_person(&self, call: Call<'_>) -> bool {
        self.approve.contains(call.name) || self.approve_outside && call.outside
    }
}

/// Whose code it is: of an ask, or of a client.
pub type Source = Option<AskNumber>;

/// A tool that code calls.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// As its definition has it.
    pub name: &'a str,
    /// It acts outside of the sandbox.
    pub outside: bool,
}

impl Call<'_> {
    /// It begins an ask within.
    fn nests(self) -> bool {
        self.name == tools::ASK
    }
}

/// In whose name a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrigin {
    /// No cell runs: something that one left behind calls.
    Leftover,
    /// A cell of that source.
    Cell(Source),
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDecision {
    Free,
    /// A person has to allow it; named is an ask whose rules want that and of which the cell that runs is not.
    Person {
        bound_by: Option<AskNumber>,
    },
    /// Nobody can allow it, and why.
    Never(String),
}

/// The rules of all code that ran in a sandbox since its last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxRules {
    /// Of code that no cell brought along, such as modules that the sandbox begins with.
    base: Arc<CellRules>,
    by_source: BTreeMap<Source, SourceRules>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SourceRules {
    rules: CellRules,
    /// The newest cell that brought it.
    newest: CellNumber,
    /// It stands for later asks as well.
    merged: bool,
}

impl SandboxRules {
    /// Of a sandbox in which nothing has run yet.
    #[must_use]
    pub fn new(of_client: Arc<CellRules>) -> Self {
        Self { base: of_client, by_source: BTreeMap::new() }
    }

    /// From now on the code of this cell may be what speaks.
    pub fn bind(&mut self, source: Source, rules: &CellRules, cell: CellNumber) {
        let before = self.by_source.remove(&source);
        let bound = match before {
            Some(before) => SourceRules {
                rules: before.rules.tightened(rules),
                newest: before.newest.max(cell),
                merged: before.merged,
            },
            None => SourceRules { rules: rules.clone(), newest: cell, merged: false },
        };
        self.by_source.insert(source, bound);
        if self.asks().count() > ASKS_APART {
            self.merge();
        }
    }

    /// The two oldest asks become one.
    fn merge(&mut self) {
        let mut asks = self.asks();
        let (Some(first), Some(second)) = (asks.next(), asks.next()) else { return };
        drop(asks);
        if let (Some(second), Some(first)) =
            (self.by_source.remove(&Some(second)), self.by_source.get_mut(&Some(first)))
        {
            first.rules = first.rules.tightened(&second.rules);
            first.newest = first.newest.max(second.newest);
            first.merged = true;
        }
    }

    /// A reset is done: nothing is left of the cells up to this one.
    pub fn free(&mut self, up_to: CellNumber) {
        self.by_source.retain(|_, bound| bound.newest > up_to);
    }

    /// The newest cell that is bound.
    #[must_use]
    pub fn newest(&self) -> CellNumber {
        self.by_source.values().map(|bound| bound.newest).max().unwrap_or_default()
    }

    /// Asks whose code may speak.
    pub fn asks(&self) -> impl Iterator<Item = AskNumber> {
        self.by_source.keys().copied().flatten()
    }

    /// Those of them that stand for others, too, of which nothing else is known.
    pub fn merged(&self) -> impl Iterator<Item = AskNumber> {
        self.by_source.iter().filter(|(_, bound)| bound.merged).filter_map(|(source, _)| *source)
    }

    /// Whether some code of an ask has to have a person allow a tool of this name.
    #[must_use]
    pub fn an_ask_names(&self, name: &str) -> bool {
        let of_asks = self.by_source.iter().filter(|(source, _)| source.is_some());
        of_asks.map(|(_, bound)| bound).any(|bound| bound.rules.approve.contains(name))
    }

    /// What something keeps to that the code of a cell of this source begins: never wider than any of them.
    #[must_use]
    pub fn combined(&self, runs: Source) -> CellRules {
        let base = if runs.is_none() { (*self.base).clone() } else { CellRules::default() };
        let bound = self.by_source.iter().filter(|(source, _)| binds(**source, CallOrigin::Cell(runs)));
        bound.fold(base, |rules, (_, bound)| rules.tightened(&bound.rules))
    }

    /// Whether a call may be made. What the cell that runs may do by its own rules and those of earlier code
    /// forbid, a person may allow; when no cell runs there is nobody to wait for that.
    #[must_use]
    pub fn judge(&self, call: Call<'_>, origin: CallOrigin) -> CallDecision {
        let base = Some((None, &*self.base))
            .filter(|_| matches!(origin, CallOrigin::Leftover | CallOrigin::Cell(None)));
        let bound = self.by_source.iter().map(|(source, bound)| (*source, &bound.rules));
        let bound = base.into_iter().chain(bound).filter(|(source, _)| binds(*source, origin));
        let mut person = None;
        let mut others = None;
        for (source, rules) in bound {
            let own = origin == CallOrigin::Cell(source);
            if !rules.allows(call) {
                if own || source.is_none() {
                    return CallDecision::Never(not_among(call, rules));
                }
                others = others.or(source);
            }
            if rules.wants_person(call) {
                if own { person = Some(None) } else { person = person.or(Some(source)) }
            }
            if call.nests() && !matches!(origin, CallOrigin::Cell(Some(_))) {
                others = others.or(source);
            }
        }
        match (origin, others, person) {
            (CallOrigin::Leftover, Some(ask), _) => CallDecision::Never(format!(
                "code of ask {ask} may still run here, and it may not use `{}` when no cell runs; `belljar reset` \
                 ends the rules of that ask",
                call.name
            )),
            (CallOrigin::Leftover, None, Some(_)) => CallDecision::Never(format!(
                "a person has to allow `{}`, for which only a running cell can wait",
                call.name
            )),
            (_, Some(ask), _) => CallDecision::Person { bound_by: Some(ask) },
            (_, None, Some(bound_by)) => CallDecision::Person { bound_by },
            (_, None, None) => CallDecision::Free,
        }
    }
}

/// Whether rules of this source concern what is done in that name: all do.
fn binds(source: Source, origin: CallOrigin) -> bool {
    origin == CallOrigin::Cell(source) || controls::holds("rules_of_all_code_hold")
}

fn not_among(call: Call<'_>, rules: &CellRules) -> String {
    let allowed: Vec<&str> = rules.allowed.iter().flatten().map(String::as_str).collect();
    format!("`{}` may not be used here; allowed are: {}", call.name, allowed.join(", "))
}

#[cfg(test)]
mod tests;

//! Decides whether a person has to approve what a model or code in a sandbox wants to do, or whether it is refused at once.
//!
//! `of_model` says it of a model's own acts, for `actors::asks::spec`; `SandboxRules::decide` of each call that code makes,
//! for `actors::executor::tool_calls`. `asks::approvals` and `executor::call_approvals` then ask the person.
//!
//! Rules belong to code, not to moments: those of a cell bind everything that comes of it (threads, tasks, processes, inner
//! asks, the `repr` of its objects). Only the guest could say which code makes a call, and the guest is not trusted. So the
//! rules of all code that has run in a sandbox since its last reset apply together to every call from it.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::digest::json_bytes;
use crate::agent::ModelApprovals;
use crate::config::{Agent, InstallPolicy};
use crate::protocol::ask::{ApprovalPolicy, AskNumber, AskSpec};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::APPROVAL_BYTES;
use crate::protocol::saved_state::BoundRules;
use crate::protocol::tool_names::{COMMAND_TOOL, COMPUTE_TOOL, INSTALL_TOOL, is_cell_tool};
use crate::security_controls;
use crate::tools::{Definition, Registry};

/// The most asks of one sandbox whose rules are kept separately. Beyond that, the rules of the oldest are
/// merged.
const ASKS_APART: usize = 256;

/// Stands for the asks of another session, in which the variables or cells of this one were made.
const ELSEWHERE: AskNumber = 0;

/// The rules of one piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellRules {
    /// The tools that the code may call; none for all tools of the session.
    pub allowed: Option<BTreeSet<String>>,
    /// The tools that a person has to allow, for every call.
    pub approve: BTreeSet<String>,
    /// Whether a person has to allow every call of a tool that acts outside of the sandbox.
    pub approve_outside: bool,
    /// Whether the code runs only if it passes the check of the restricted policy.
    pub restricted: bool,
}

impl CellRules {
    /// The rules for cells that a model wrote.
    #[must_use]
    pub fn of_ask(spec: &AskSpec) -> Self {
        let mut rules = Self::of_policy(&spec.approval);
        rules.approve.extend(spec.also_approve.iter().cloned());
        Self { allowed: Some(spec.tools.iter().cloned().collect()), restricted: spec.restricted, ..rules }
    }

    /// The rules for code whose rules are unknown: it may do nothing.
    #[must_use]
    pub fn strictest() -> Self {
        Self {
            allowed: Some(BTreeSet::new()),
            approve: BTreeSet::new(),
            approve_outside: true,
            restricted: true,
        }
    }

    /// The rules for cells of clients. The configuration may use an alias of a tool's name. What the owner may never install,
    /// code that a client has left behind may not install by itself either, in the name of a model's cell that runs then.
    #[must_use]
    pub fn of_client(agent: &Agent, by_owner: InstallPolicy, tools: &Registry) -> Self {
        let mut named = Self::of_policy(&agent.approval);
        if by_owner != InstallPolicy::Auto && security_controls::holds("owners_install_by_policy") {
            named.approve.insert(INSTALL_TOOL.into());
        }
        let right = |name: String| match tools.definition(&name) {
            Some(tool) => tool.name.clone(),
            None => name,
        };
        Self { approve: named.approve.into_iter().map(right).collect(), ..named }
    }

    /// The rules for calls within a cell. Approval of the cell itself is up to the machine.
    #[must_use]
    pub fn of_policy(policy: &ApprovalPolicy) -> Self {
        let approve = match policy {
            ApprovalPolicy::Auto | ApprovalPolicy::Ask => BTreeSet::new(),
            ApprovalPolicy::Tools(names) => names.iter().cloned().collect(),
        };
        let approve_outside =
            *policy == ApprovalPolicy::Ask && security_controls::holds("host_tools_in_code_are_asked");
        Self { approve, approve_outside, ..Self::default() }
    }

    /// The policy of an ask that is bound by these rules, and the tools that a person has to allow besides.
    #[must_use]
    pub fn policy(&self) -> (ApprovalPolicy, Vec<String>) {
        let names: Vec<String> = self.approve.iter().cloned().collect();
        match (self.approve_outside, names.is_empty()) {
            (true, _) => (ApprovalPolicy::Ask, names),
            (false, true) => (ApprovalPolicy::Auto, Vec::new()),
            (false, false) => (ApprovalPolicy::Tools(names), Vec::new()),
        }
    }

    /// Rules that came with variables from elsewhere.
    #[must_use]
    pub fn of_bound(bound: &BoundRules) -> Self {
        Self {
            allowed: bound.allowed.as_ref().map(|names| names.iter().cloned().collect()),
            approve: bound.approve.iter().cloned().collect(),
            approve_outside: bound.approve_outside,
            restricted: bound.restricted,
        }
    }

    /// As they go where the variables go.
    #[must_use]
    pub fn bound(&self) -> BoundRules {
        BoundRules {
            allowed: self.allowed.as_ref().map(|names| names.iter().cloned().collect()),
            approve: self.approve.iter().cloned().collect(),
            approve_outside: self.approve_outside,
            restricted: self.restricted,
        }
    }

    /// The rules for code that is bound by both.
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
            || !security_controls::holds("code_calls_allowed_tools_only")
    }

    fn wants_person(&self, call: Call<'_>) -> bool {
        self.approve.contains(call.name) && security_controls::holds("named_tools_are_asked")
            || self.approve_outside && call.outside
    }
}

/// What a person has to allow of the calls that the model of an ask makes itself; `outside` are the tools that act
/// outside of the sandbox.
#[must_use]
pub fn of_model(spec: &AskSpec, outside: BTreeSet<String>) -> ModelApprovals {
    let asks = spec.approval == ApprovalPolicy::Ask;
    let outside =
        outside.into_iter().filter(|_| asks && security_controls::holds("host_tools_of_models_are_asked"));
    let python = [COMPUTE_TOOL, COMMAND_TOOL].into_iter().filter(|_| asks).map(ToOwned::to_owned);
    let named = match &spec.approval {
        ApprovalPolicy::Tools(names) => names.as_slice(),
        ApprovalPolicy::Auto | ApprovalPolicy::Ask => &[],
    };
    let named = named.iter().chain(&spec.also_approve).cloned();
    let tools: BTreeSet<String> = named.chain(outside).chain(python).collect();
    ModelApprovals { cells: asks || tools.iter().any(|name| is_cell_tool(name)), tools }
}

/// Whether a person can look through the arguments of a call before allowing it.
#[must_use]
pub fn is_reviewable(arguments: &Map<String, Value>) -> bool {
    json_bytes(arguments) <= APPROVAL_BYTES
}

/// The source of code: an ask, or a client.
pub type Source = Option<AskNumber>;

/// A tool that code calls.
#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    /// The name in the tool's definition.
    name: &'a str,
    /// Whether the tool acts outside of the sandbox.
    outside: bool,
    /// Whether the call begins an inner ask.
    nests: bool,
}

/// The code in whose name a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrigin {
    /// No cell runs: the caller is something that an earlier cell left behind.
    Leftover,
    /// A cell of that source.
    Cell(Source),
    /// A program that seems to belong to a running cell or command of that source. It can take the place of any other
    /// one, so the rules of that source are no way around those of others.
    Program(Source),
}

impl CallOrigin {
    /// The ask in whose name the call is made.
    #[must_use]
    pub fn ask(self) -> Source {
        match self {
            Self::Leftover => None,
            Self::Cell(source) | Self::Program(source) => source,
        }
    }
}

/// The decision on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDecision {
    Free,
    /// A person has to allow the call. `bound_by` is an ask whose rules require that, if the running cell is
    /// not of that ask.
    Person {
        bound_by: Option<AskNumber>,
    },
    /// No person can allow the call; the text says why.
    Never(String),
}

impl CallDecision {
    /// The decision on a call that has waited for a person already, and that may have been bound by rules that are not
    /// known any more: it does not become free.
    #[must_use]
    pub fn after_waiting(self) -> Self {
        match self {
            Self::Free => Self::Person { bound_by: None },
            decision => decision,
        }
    }
}

/// The rules of all code that ran in a sandbox since its last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxRules {
    /// The rules for code that no cell brought, such as preloaded modules.
    base: Arc<CellRules>,
    by_source: BTreeMap<Source, SourceRules>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SourceRules {
    rules: CellRules,
    /// The newest cell of this source.
    newest: CellNumber,
    /// Whether the entry includes the rules of later asks.
    merged: bool,
}

impl SandboxRules {
    /// The rules of a sandbox in which no cell has run yet.
    #[must_use]
    pub fn new(of_client: Arc<CellRules>) -> Self {
        Self { base: of_client, by_source: BTreeMap::new() }
    }

    /// The rules of a new sandbox of a session that began with variables, cells or files from elsewhere: those of their code
    /// are among them.
    #[must_use]
    pub fn begin(of_client: &Arc<CellRules>, inherited: Option<&BoundRules>) -> Self {
        let mut rules = Self::new(Arc::clone(of_client));
        if let Some(bound) = inherited {
            rules.inherit(bound);
        }
        rules
    }

    /// Adds the rules of code that came from elsewhere. Code that may do everything binds nothing.
    pub fn inherit(&mut self, bound: &BoundRules) {
        if *bound != BoundRules::default() {
            self.bind(Some(ELSEWHERE), &CellRules::of_bound(bound), 0);
        }
    }

    /// Takes note of a reset, which ended the code of all cells up to this one. What the session began with comes back in a
    /// replay, and its rules with it; `inherited` is none after any other reset.
    pub fn reset(&mut self, up_to: CellNumber, inherited: Option<&BoundRules>) {
        self.release_up_to(up_to);
        if let Some(bound) = inherited.filter(|_| security_controls::holds("inherited_rules_outlast_replays"))
        {
            self.inherit(bound);
        }
    }

    /// Adds the rules of a cell, whose code may be the caller from now on.
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

    /// Merges the rules of the two oldest asks.
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

    /// Drops the rules of the cells up to this one after a reset, which ended all their code.
    pub fn release_up_to(&mut self, up_to: CellNumber) {
        self.by_source.retain(|_, bound| bound.newest > up_to);
    }

    /// The newest cell with rules.
    #[must_use]
    pub fn newest(&self) -> CellNumber {
        self.by_source.values().map(|bound| bound.newest).max().unwrap_or_default()
    }

    /// The asks whose code may be the caller.
    pub fn asks(&self) -> impl Iterator<Item = AskNumber> {
        self.by_source.keys().copied().flatten()
    }

    /// The asks whose entries include merged rules of other asks.
    pub fn merged(&self) -> impl Iterator<Item = AskNumber> {
        self.by_source.iter().filter(|(_, bound)| bound.merged).filter_map(|(source, _)| *source)
    }

    /// Whether the rules of any ask require a person to allow a tool of this name.
    #[must_use]
    pub fn an_ask_names(&self, name: &str) -> bool {
        let of_asks = self.by_source.iter().filter(|(source, _)| source.is_some());
        of_asks.map(|(_, bound)| bound).any(|bound| bound.rules.approve.contains(name))
    }

    /// The rules for anything that a call of this origin begins: never wider than any rules in the sandbox.
    #[must_use]
    pub fn combined(&self, origin: CallOrigin) -> CellRules {
        let base = self.base_for(origin).cloned().unwrap_or_default();
        let bound = self.by_source.iter().filter(|(source, _)| binds(**source, origin));
        bound.fold(base, |rules, (_, bound)| rules.tightened(&bound.rules))
    }

    /// The rules for code that no cell brought, if they apply to a call of this origin: a cell of an ask has the rules of
    /// its ask instead.
    fn base_for(&self, origin: CallOrigin) -> Option<&CellRules> {
        (!matches!(origin, CallOrigin::Cell(Some(_)))).then_some(&*self.base)
    }

    /// Decides on a call of this tool with these arguments.
    #[must_use]
    pub fn decide(
        &self,
        tool: &Definition,
        arguments: &Map<String, Value>,
        origin: CallOrigin,
    ) -> CallDecision {
        if tool.local {
            return CallDecision::Never(format!(
                "`{}` runs in the sandbox itself, not through a call",
                tool.name
            ));
        }
        match self.judge(Call { name: &tool.name, outside: tool.outside, nests: tool.nests }, origin) {
            CallDecision::Person { .. } if !is_reviewable(arguments) => CallDecision::Never(format!(
                "a person has to allow `{}`, and cannot look at more than {APPROVAL_BYTES} bytes of arguments",
                tool.name
            )),
            decision => decision,
        }
    }

    /// Decides on a call, whatever its arguments. If the rules of the running cell allow the call but those of earlier code
    /// forbid it, a person may allow it, unless it comes from a program; without a running cell, nothing could wait for
    /// that decision.
    fn judge(&self, call: Call<'_>, origin: CallOrigin) -> CallDecision {
        let base = self.base_for(origin).map(|base| (None, base));
        let bound = self.by_source.iter().map(|(source, bound)| (*source, &bound.rules));
        let bound = base.into_iter().chain(bound).filter(|(source, _)| binds(*source, origin));
        let mut person = None;
        let mut others = None;
        for (source, rules) in bound {
            let own = matches!(origin, CallOrigin::Cell(its) | CallOrigin::Program(its) if its == source);
            if !rules.allows(call) {
                if own || source.is_none() {
                    return CallDecision::Never(not_among(call, rules));
                }
                others = others.or(source);
            }
            if rules.wants_person(call) {
                if own { person = Some(None) } else { person = person.or(Some(source)) }
            }
            if call.nests && !matches!(origin, CallOrigin::Cell(Some(_))) {
                others = others.or(source);
            }
        }
        match (origin, others, person) {
            (CallOrigin::Leftover, Some(ask), _) => CallDecision::Never(format!(
                "code of ask {ask} may still run here, and it may not use `{}` when no cell runs; `belljar reset` \
                 ends the rules of that ask",
                call.name
            )),
            (CallOrigin::Program(_), Some(ask), _)
                if security_controls::holds("programs_have_no_rules_of_their_own") =>
            {
                CallDecision::Never(format!(
                    "code of ask {ask} may still run here, and it may not use `{}`, nor may any program as long as it \
                     could be that code; `belljar reset` ends the rules of that ask",
                    call.name
                ))
            }
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

/// Whether the rules of this source apply to a call in that name: those of every source do.
fn binds(source: Source, origin: CallOrigin) -> bool {
    origin == CallOrigin::Cell(source) || security_controls::holds("rules_of_all_code_hold")
}

fn not_among(call: Call<'_>, rules: &CellRules) -> String {
    let allowed: Vec<&str> = rules.allowed.iter().flatten().map(String::as_str).collect();
    format!("`{}` may not be used here; allowed are: {}", call.name, allowed.join(", "))
}

#[cfg(test)]
mod tests;

//! What the code of a cell may do with tools, and under which policy it runs.

use std::collections::BTreeSet;

use crate::config::Agent;
use crate::protocol::ask::{ApprovalPolicy, AskSpec};
use crate::tools::Registry;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellRules {
    /// Tools it may call; none: all that the session has.
    pub allowed: Option<BTreeSet<String>>,
    /// Tools that a person has to allow, each time.
    pub approve: BTreeSet<String>,
    /// It runs only if it passes the check of the restricted policy.
    pub restricted: bool,
}

impl CellRules {
    /// Of cells that a model wrote.
    #[must_use]
    pub fn of_ask(spec: &AskSpec) -> Self {
        Self {
            allowed: Some(spec.tools.iter().cloned().collect()),
            approve: approve(&spec.approval),
            restricted: spec.restricted,
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
            restricted: self.restricted || other.restricted,
        }
    }

    /// Of cells that a client sends. The configuration may call a tool by another name of it.
    #[must_use]
    pub fn of_client(agent: &Agent, tools: &Registry) -> Self {
        let named = approve(&agent.approval).into_iter();
        let approve = named.map(|name| match tools.definition(&name) {
            Some(tool) => tool.name.clone(),
            None => name,
        });
        Self { allowed: None, approve: approve.collect(), restricted: false }
    }
}

/// Before a cell a person is asked by the machine; here it is only about its calls.
fn approve(policy: &ApprovalPolicy) -> BTreeSet<String> {
    match policy {
        ApprovalPolicy::Auto | ApprovalPolicy::Ask => BTreeSet::new(),
        ApprovalPolicy::Tools(names) => names.iter().cloned().collect(),
    }
}

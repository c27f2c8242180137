//! From facts to findings, in the order in which things build on each other.

use super::facts::Facts;
use super::finding::Finding;
use super::{engine_rules, machine};

pub fn diagnosis(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![
        machine::kernel(facts.kernel.as_deref()),
        machine::cgroups(facts),
        machine::seccomp(facts.seccomp),
        machine::user_namespaces(facts),
        machine::apparmor(facts),
    ];
    findings.extend(machine::sysctls(&facts.sysctls));
    findings.extend([machine::bubblewrap(facts), engine_rules::engine(facts)]);
    if let Ok(engine) = &facts.engine {
        findings.extend(engine_rules::all(engine, facts));
    }
    findings.extend([
        machine::config(&facts.config),
        machine::home(&facts.home),
        machine::disk(&facts.home),
        machine::socket(&facts.socket, facts.root),
        machine::daemon(facts.daemon.as_ref()),
    ]);
    findings
}

#[cfg(test)]
mod tests;
